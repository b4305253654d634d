"""What an operation must compute and move, and how long that takes: a roofline with fitted efficiencies.

    seconds = flop_cost * FLOPs / (G * peak) + byte_cost * bytes / (G * bandwidth)
              + layers * layer_s + 2 layers * (alpha ln G + beta M)

over G devices of a tensor-parallel group. The terms are added rather than the larger one taken: on both
profiles measured here the sum leaves a smaller error on points held out (docs/how-to/unmeasured-
hardware.md); a device that overlaps the two perfectly is at most twice as fast as the sum says, where both
are equal.

What is counted, for B rows of n new tokens over c cached ones (T = B n tokens):

- FLOPs: 2 per weight of the blocks and token, 2 per weight of the output matrix and token whose logits are
  asked for (one per row in a prefill), and 4 * query width per layer, token and position that it attends to.
- bytes: every matrix once, one row of embeddings per token, keys and values of the B c cached and T new
  tokens, and what goes into and comes out of every matrix.  The branches of a tree share the trunk's keys.
- all-reduces: 2 per layer, of M = T * hidden numbers, as in Megatron's tensor parallelism; their law is
  Mirror-SD's alpha log G + beta M (section 3.3; `policies.laws.mirror.allreduce_time`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hardware_profiles.devices import Device, DeviceError
from hardware_profiles.shapes import Shape

HOP_S = 5e-6
"""alpha of an all-reduce, s per ln(devices): 7 us over 4 of them.  Assumed, of the order seen on NVLink."""


class RooflineError(ValueError):
    """A roofline cannot be fitted or asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes per number.

    Attributes:
        name: As in a profile.
        weight_bytes: Of a weight.
        activation_bytes: Of an activation, a key or a value.
    """

    name: str
    weight_bytes: float
    activation_bytes: float


PRECISIONS: Mapping[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", 4.0, 4.0),
        Precision("fp64", 8.0, 8.0),
        Precision("bf16", 2.0, 2.0),
        Precision("fp16", 2.0, 2.0),
        Precision("q8_0", 8.5 / 8.0, 2.0),  # llama.cpp: blocks of 32 with a scale of 16 bits
        Precision("q4_0", 4.5 / 8.0, 2.0),
        Precision("q5_k_m", 5.7 / 8.0, 2.0),  # llama.cpp: 5.7 bits per weight, keys and values in fp16
    )
}


def find_precision(name: str) -> Precision:
    """A precision by name.

    Raises:
        RooflineError: There is none.
    """
    if name not in PRECISIONS:
        raise RooflineError(f"no precision {name!r}; there are {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a model has to do.

    Attributes:
        flops: Multiplications and additions.
        moved_bytes: Read or written.
        layers: Blocks it goes through.
        message_bytes: Of each all-reduce, if the model is spread over devices.
    """

    flops: float
    moved_bytes: float
    layers: int
    message_bytes: float


def work_of(
    shape: Shape,
    operation: str,
    at: Mapping[str, float],
    *,
    precision: Precision = PRECISIONS["fp32"],
) -> Work:
    """The work of one call of an operation.

    Args:
        shape: The model.
        operation: As in a profile, e.g. `target.forward`; the kind after the dot is what counts.
        at: Coordinates: `batch` (1 if left out), `new_tokens` or `branches`, `context`.
        precision: Of weights and activations.
    """
    kind = operation.rsplit(".", 1)[-1]
    rows = at.get("batch", 1.0)
    each = at["branches"] if kind == "tree" else at["new_tokens"]
    context = 0.0 if kind == "prefill" else at["context"]
    tokens = rows * each
    seen = context + (1.0 if kind == "tree" else 0.5 * (each + 1.0))
    answered = rows if kind == "prefill" else tokens
    flops = 2.0 * tokens * shape.layers * shape.layer_weights + 2.0 * answered * shape.head_weights
    flops += 4.0 * tokens * seen * shape.query_width * shape.layers
    weights = shape.matrix_weights + tokens * shape.hidden
    cached = shape.kv_numbers_per_token * (rows * context + tokens)
    matrices = 4 * shape.hidden + 2 * shape.query_width + 2 * shape.kv_width + 3 * shape.intermediate
    passing = tokens * shape.layers * matrices + answered * (shape.hidden + shape.vocabulary)
    return Work(
        flops=flops,
        moved_bytes=precision.weight_bytes * weights + precision.activation_bytes * (cached + passing),
        layers=shape.layers,
        message_bytes=precision.activation_bytes * tokens * shape.hidden,
    )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What an engine makes of a device's peaks; all at least 0.

    Attributes:
        flop_cost: Seconds per second that the FLOPs take at peak: 1 / share of the peak.
        byte_cost: The same of the bandwidth.
        layer_s: Time per block whatever its work: launching its kernels.
    """

    flop_cost: float
    byte_cost: float
    layer_s: float

    @property
    def compute(self) -> float | None:
        """Share of the compute peak that is reached; None where the fit saw no cost of computing."""
        return 1.0 / self.flop_cost if self.flop_cost > 0.0 else None

    @property
    def bandwidth(self) -> float | None:
        """Share of the bandwidth, likewise."""
        return 1.0 / self.byte_cost if self.byte_cost > 0.0 else None

    def as_dict(self) -> dict[str, float | None]:
        """Plain values, ready for JSON."""
        return {"compute": self.compute, "bandwidth": self.bandwidth, "layer_s": self.layer_s}


def allreduce_s(message_bytes: float, devices: int, device: Device) -> float:
    """All-reduce over a group: alpha ln G + beta M, with beta of a ring, 2 (G - 1) / (G * link).

    Raises:
        DeviceError: The device has no link.
    """
    if devices == 1:
        return 0.0
    if device.link_bytes_per_s is None:
        raise DeviceError(f"{device.name} has no link for tensor parallelism: use 1 device")
    beta = 2.0 * (devices - 1) / devices / device.link_bytes_per_s
    return HOP_S * math.log(devices) + beta * message_bytes


def communication_s(work: Work, devices: int, device: Device) -> float:
    """All all-reduces of a call."""
    return 2.0 * work.layers * allreduce_s(work.message_bytes, devices, device)


def terms(work: Work, device: Device, devices: int = 1) -> tuple[float, float, float]:
    """What `flop_cost`, `byte_cost` and `layer_s` are multiplied with."""
    compute = work.flops / (devices * device.flops)
    return compute, work.moved_bytes / (devices * device.bytes_per_s), float(work.layers)


def seconds(work: Work, device: Device, efficiency: Efficiency, devices: int = 1) -> float:
    """Duration of a call on a tensor-parallel group of `devices`.

    Raises:
        DeviceError: The devices have no link.
    """
    compute, memory, layers = terms(work, device, devices)
    own = efficiency.flop_cost * compute + efficiency.byte_cost * memory + efficiency.layer_s * layers
    return own + communication_s(work, devices, device)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a device: what turns coordinates into work and work into seconds.

    Attributes:
        shape: The model.
        device: Where it runs.
        precision: Of its numbers.
        devices: Of a tensor-parallel group.
    """

    shape: Shape
    device: Device
    precision: Precision
    devices: int = 1

    def work(self, operation: str, at: Mapping[str, float]) -> Work:
        """The work of an operation at coordinates."""
        return work_of(self.shape, operation, at, precision=self.precision)

    def seconds(self, operation: str, at: Mapping[str, float], efficiency: Efficiency) -> float:
        """Its duration."""
        return seconds(self.work(operation, at), self.device, efficiency, self.devices)
