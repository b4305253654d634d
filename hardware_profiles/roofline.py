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

Devices have the peaks that their makers publish: per device, dense (no sparsity), decimal units.
Efficiencies are fitted to measured grids (`fit_roofline`). Those of `ENGINES` were not measured by this
project: a paper's rate of plain decoding leaves one unknown per engine, the time per block; the shares of
both peaks are assumed, within the bands given, and that time takes the blame for anything else.
`analysis.papers.profiles` derives them from the tables, and a test compares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.records import plain
from hardware_profiles.shapes import Shape
from hardware_profiles.surface import ConstantCost, GridCost, InterpolationError, OperationCost, summary_of

GB = 10**9
TERA = 1e12
HOP_S = 5e-6
"""alpha of an all-reduce, s per ln(devices): 7 us over 4 of them.  Assumed, of the order seen on NVLink."""


class DeviceError(ValueError):
    """A device is not known, or cannot do what is asked; the message says what would do."""


class RooflineError(ValueError):
    """A roofline cannot be fitted or asked; the message says why."""


class Device(NamedTuple):
    """Peaks of one device.

    Attributes:
        name: Short name.
        part: The part, in full.
        kind: What torch calls it, as in a profile; `npu` where torch has no word for it.
        flops: Multiplications and additions per second, at the precision that language models run in there
            (16 bit on accelerators, 32 bit on CPUs).
        bytes_per_s: Memory bandwidth.
        memory_bytes: Memory; None where it is a machine's own affair.
        link_bytes_per_s: To the other devices, one direction; None: no link that is fit for tensor
            parallelism.
        source: Where the numbers are published.
        reported: Words that a driver's name of the part has, e.g. `NVIDIA A100-SXM4-80GB`.
    """

    name: str
    part: str
    kind: str
    flops: float
    bytes_per_s: float
    memory_bytes: int | None
    link_bytes_per_s: float | None
    source: str
    reported: tuple[str, ...] = ()

    def of_cores(self, count: int) -> Device:
        """That many CPU cores in place of one, as if they did not share their bandwidth."""
        if count == 1:
            return self
        flops, bytes_per_s = count * self.flops, count * self.bytes_per_s
        return self._replace(part=f"{count} of: {self.part}", flops=flops, bytes_per_s=bytes_per_s)


_NVLINK = "NVLink, half of the printed two-way bandwidth"

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(
            "a100-40", "NVIDIA A100 40GB SXM", "cuda", 312 * TERA, 1555 * GB, 40 * GB, 300 * GB,
            f"NVIDIA A100 datasheet: 312 TFLOPS FP16, 1555 GB/s, 600 GB/s {_NVLINK}", ("A100", "40GB"),
        ),
        Device(
            "a100", "NVIDIA A100 80GB SXM", "cuda", 312 * TERA, 2039 * GB, 80 * GB, 300 * GB,
            f"NVIDIA A100 datasheet: 312 TFLOPS FP16, 2039 GB/s, 600 GB/s {_NVLINK}", ("A100", "80GB"),
        ),
        Device(
            "a800", "NVIDIA A800 80GB SXM", "cuda", 312 * TERA, 2039 * GB, 80 * GB, 200 * GB,
            f"an A100 with 400 GB/s {_NVLINK} (NVIDIA A800 datasheet)", ("A800",),
        ),
        Device(
            "h100", "NVIDIA H100 80GB SXM", "cuda", 989.4 * TERA, 3350 * GB, 80 * GB, 450 * GB,
            f"NVIDIA H100 datasheet: 989.4 TFLOPS BF16 dense, 3.35 TB/s, 900 GB/s {_NVLINK}", ("H100",),
        ),
        Device(
            "h200", "NVIDIA H200 141GB SXM", "cuda", 989.4 * TERA, 4800 * GB, 141 * GB, 450 * GB,
            f"NVIDIA H200 datasheet: 989.4 TFLOPS BF16 dense, 4.8 TB/s, 900 GB/s {_NVLINK}", ("H200",),
        ),
        Device(
            "l40s", "NVIDIA L40S 48GB", "cuda", 362.05 * TERA, 864 * GB, 48 * GB, 32 * GB,
            "NVIDIA L40S datasheet: 362 TFLOPS BF16 dense, 864 GB/s, PCIe 4.0 x16", ("L40S",),
        ),
        Device(
            "rtx4090", "NVIDIA GeForce RTX 4090", "cuda", 165.2 * TERA, 1008 * GB, 24 * GB, 32 * GB,
            "NVIDIA Ada whitepaper: 165.2 TFLOPS FP16 with FP32 accumulation, 1008 GB/s, PCIe 4.0 x16",
            ("RTX 4090",),
        ),
        Device(
            "m2ultra", "Apple M2 Ultra GPU, 76 cores", "mps", 27.2 * TERA, 800 * GB, 192 * GB, 15 * GB,
            "Apple: 27.2 TFLOPS FP32, 800 GB/s, up to 192 GB; link: Thunderbolt 5, 120 Gb/s (Mirror-SD, G.1)",
        ),
        Device(
            "m2ultra-npu", "Apple M2 Ultra Neural Engine", "npu", 31.6 * TERA, 800 * GB, 192 * GB, 15 * GB,
            "Mirror-SD, D.3 (Apple): 31.6 TOPS, 0.8 TB/s, memory shared with the GPU; link as the GPU's",
        ),
        Device(
            "xeon16", "16 cores of an Intel Xeon, third generation", "cpu", 1.64e12, 204.8 * GB, None, None,
            "16 cores x 32 FP32 FLOP x 3.2 GHz (AVX-512, nominal); 8 channels of DDR4-3200, Intel ARK",
        ),
        Device(
            "cpu-core", "one x86 server core", "cpu", 96e9, 25.6 * GB, None, None,
            "nominal: 32 FP32 FLOP per cycle (two AVX2 FMA units) at 3 GHz; one channel of DDR4-3200",
        ),
    )
}  # fmt: skip
"""Devices by name.  `cpu-core` stands for the cores of a profile measured on a CPU: what its efficiencies are
shares of is nominal, and above 1 where a small model stays in the caches."""


def known_part(reported: str) -> Device | None:
    """The device behind a name as drivers report it, or as profiles here have it; None: unknown."""
    for device in DEVICES.values():
        said = device.reported and all(word in reported for word in device.reported)
        if reported == device.part or said:
            return device
    return None


def find_device(name: str) -> Device:
    """A device by name.

    Raises:
        DeviceError: There is none; the message lists the names there are.
    """
    if name not in DEVICES:
        raise DeviceError(f"no device {name!r}; there are {', '.join(DEVICES)}")
    return DEVICES[name]


class Precision(NamedTuple):
    """Bytes per number: of a weight; of an activation, a key or a value."""

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
        """Share of the bandwidth that is reached; None where the fit saw no cost of moving bytes."""
        return 1.0 / self.byte_cost if self.byte_cost > 0.0 else None


class Work(NamedTuple):
    """What one call of a model has to do: FLOPs, bytes read or written, bytes of each of its all-reduces."""

    flops: float
    moved_bytes: float
    message_bytes: float


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
    precision: Precision = PRECISIONS["fp32"]
    devices: int = 1

    def work(self, operation: str, at: Mapping[str, float]) -> Work:
        """The work of one call of an operation.

        Args:
            operation: As in a profile, e.g. `target.forward`; the kind after the dot is what counts.
            at: Coordinates: `batch` (1 if left out), `new_tokens` or `branches`, `context`.
        """
        shape, precision, kind = self.shape, self.precision, operation.rsplit(".", 1)[-1]
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
        moved = precision.weight_bytes * weights + precision.activation_bytes * (cached + passing)
        return Work(flops, moved, precision.activation_bytes * tokens * shape.hidden)

    def terms(self, work: Work) -> tuple[float, float, float]:
        """What `flop_cost`, `byte_cost` and `layer_s` are multiplied with."""
        compute = work.flops / (self.devices * self.device.flops)
        return compute, work.moved_bytes / (self.devices * self.device.bytes_per_s), float(self.shape.layers)

    def communication_s(self, work: Work) -> float:
        """All all-reduces of a call: each alpha ln G + beta M, with beta of a ring, 2 (G - 1) / (G * link).

        Raises:
            DeviceError: The devices have no link.
        """
        if self.devices == 1:
            return 0.0
        if self.device.link_bytes_per_s is None:
            raise DeviceError(f"{self.device.name} has no link for tensor parallelism: use 1 device")
        beta = 2.0 * (self.devices - 1) / self.devices / self.device.link_bytes_per_s
        return 2.0 * self.shape.layers * (HOP_S * math.log(self.devices) + beta * work.message_bytes)

    def seconds(self, operation: str, at: Mapping[str, float], efficiency: Efficiency) -> float:
        """Duration of a call.

        Raises:
            DeviceError: The devices have no link.
        """
        work = self.work(operation, at)
        compute, memory, layers = self.terms(work)
        own = efficiency.flop_cost * compute + efficiency.byte_cost * memory + efficiency.layer_s * layers
        return own + self.communication_s(work)


COMPUTE_SHARE = 0.6
"""Share of the compute peak that matrix products of a language model reach.  Assumed; 0.4 to 0.8 occur."""
BANDWIDTH_SHARE = 0.8
"""Share of the bandwidth.  Assumed; 0.6 to 0.95 occur."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How models are run, as far as one printed number tells.

    Attributes:
        name: Short name.
        layer_s: Time per block whatever its work, all-reduces apart.
        source: The cells it is fitted to.
        residual: Largest relative error of those cells with it.
    """

    name: str
    layer_s: float
    source: str
    residual: float

    @property
    def efficiency(self) -> Efficiency:
        """Of every operation alike."""
        return Efficiency(1.0 / COMPUTE_SHARE, 1.0 / BANDWIDTH_SHARE, self.layer_s)

    @property
    def note(self) -> str:
        """One sentence for a provenance."""
        return (
            f"engine {self.name}: {1e6 * self.layer_s:.0f} us per block fitted to {self.source} (residual "
            f"{100 * self.residual:.0f} %), {COMPUTE_SHARE:g} of peak compute and {BANDWIDTH_SHARE:g} of "
            "peak bandwidth assumed"
        )


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("ssd", 59.2e-6, "SSD B.3, plain decoding of Llama-3.1-70B and Qwen3-32B, TP 4 on H100", 0.051),
        Engine("transformers", 445e-6, "DuoDecoding Table 1, plain decoding of Llama-2-7B on A800", 0.099),
    )
}
"""`ssd`: captured graphs; `transformers`: the library of that name, called eagerly."""


def default_engine(device: Device) -> Engine | None:
    """What is assumed on a device where nothing is said: captured graphs; None on a CPU."""
    return None if device.kind == "cpu" else ENGINES["ssd"]


FOLDS = 3
"""A third of the grid is left out at a time."""
SEED = 0
FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RooflineFit:
    """Efficiencies fitted to the grid of one operation.

    Attributes:
        operation: Which.
        efficiency: Fitted to all points.
        error: Relative error on points left out, a third of the grid at a time.
        beyond: The same on the third of the points with the most FLOPs, from the others: how it reaches.
        points: How many there are.
    """

    operation: str
    efficiency: Efficiency
    error: InterpolationError
    beyond: InterpolationError
    points: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "compute": self.efficiency.compute,
            "bandwidth": self.efficiency.bandwidth,
            "layer_s": self.efficiency.layer_s,
            "points": self.points,
            "held_out_error": plain(self.error),
            "beyond_error": plain(self.beyond),
        }


def fit_roofline(operation: str, cost: OperationCost, setting: Setting) -> RooflineFit:
    """Fit the efficiencies of one operation to its measured grid, and say how well they predict.

    Raises:
        RooflineError: The operation is no grid of at least two points for each of three unknowns.
    """
    if isinstance(cost, ConstantCost) or len(cost.points) < 6:
        raise RooflineError(f"{operation} has no grid of at least 6 points to fit a roofline to")
    flops, table, fixed, measured = _columns(operation, cost, setting)
    every = np.arange(len(measured))
    order = np.random.default_rng(SEED).permutation(len(measured))
    largest = np.argsort(flops, kind="stable")[-(len(measured) // FOLDS) :]

    def errors(left_out: NDArray[np.intp]) -> FloatArray:
        kept = np.setdiff1d(every, left_out)
        costs = _least_squares(table[kept], fixed[kept], measured[kept])
        return np.asarray(np.abs((table[left_out] @ costs + fixed[left_out]) / measured[left_out] - 1.0))

    return RooflineFit(
        operation,
        Efficiency(*_least_squares(table, fixed, measured).tolist()),
        summary_of(np.concatenate([errors(order[k::FOLDS]) for k in range(FOLDS)])),
        summary_of(errors(largest)),
        len(measured),
    )


def carried_error(
    operation: str, cost: GridCost, setting: Setting, efficiency: Efficiency
) -> InterpolationError:
    """Error of efficiencies fitted elsewhere (another model, another machine) on a measured grid."""
    _, table, fixed, measured = _columns(operation, cost, setting)
    return summary_of(np.abs((table @ np.array(astuple(efficiency)) + fixed) / measured - 1.0))


def _columns(
    operation: str, cost: GridCost, setting: Setting
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """[n] FLOPs, [n, 3] what the unknowns are multiplied with, [n] communication, [n] measured seconds."""
    works = [setting.work(operation, cost.where(point)) for point in cost.points]
    return (
        np.array([work.flops for work in works]),
        np.array([setting.terms(work) for work in works]),
        np.array([setting.communication_s(work) for work in works]),
        np.array([point.mean_s for point in cost.points]),
    )


def _least_squares(table: FloatArray, fixed: FloatArray, measured: FloatArray) -> FloatArray:
    """[3] unknowns, at least 0, of least squares in log(predicted / measured).

    It starts from the least squares of the relative error, a linear problem with one answer: the search in
    log space, where a factor too slow counts as much as a factor too fast, then cannot end elsewhere.
    """
    from scipy.optimize import least_squares, nnls

    scale = table.mean(axis=0)
    scaled = table / scale
    start, _ = nnls(scaled / measured[:, None], np.maximum(0.0, 1.0 - fixed / measured))
    floor = 1e-9 * float(measured.min())

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray(np.log((scaled @ x + fixed + floor) / measured))

    solution = least_squares(
        residuals, np.maximum(start, floor), bounds=(0.0, np.inf), x_scale=float(np.median(measured))
    )
    # A cost that ends at the bound is one that the points do not show.
    unknown = np.where(solution.x < 1e-6 * measured.min(), 0.0, solution.x)
    return np.asarray(unknown / scale, dtype=np.float64)
