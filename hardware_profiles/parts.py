"""The parts of a profile besides its costs: devices and models, host time, overlap, live runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from hardware_profiles.costs import Axis, Frozen, field_error

RoleName: TypeAlias = Literal["target", "draft"]
OperationName: TypeAlias = Literal[
    "target.forward", "target.prefill", "draft.forward", "draft.prefill", "draft.tree"
]
Forward: TypeAlias = Literal["forward", "prefill", "tree"]
"""An operation without the device's name."""

AXES: Mapping[OperationName, tuple[Axis, ...]] = {
    "target.forward": ("batch", "new_tokens", "context"),
    "target.prefill": ("batch", "new_tokens"),
    "draft.forward": ("batch", "new_tokens", "context"),
    "draft.prefill": ("batch", "new_tokens"),
    "draft.tree": ("batch", "branches", "context"),
}
"""Axes that the grid of each operation may have."""

OPERATIONS: Mapping[tuple[RoleName, Forward], tuple[str, ...]] = {
    ("target", "forward"): ("verify",),
    ("target", "prefill"): ("prefill",),
    ("draft", "forward"): ("draft", "continue"),
    ("draft", "prefill"): ("prefill",),
    ("draft", "tree"): ("prespeculate",),
}
"""The operations of policies that each measured forward stands for, where devices slow each other down."""


class DeviceInfo(Frozen):
    """Hardware that a model runs on.

    Attributes:
        kind: What torch calls it, e.g. `cpu` or `cuda`.
        name: The part, e.g. `NVIDIA H100 80GB HBM3`.
        cores: CPU cores that the process is pinned to.
        threads: Threads that the model computes with.
        memory_bytes: Memory that weights and caches may take; None: not stated, so that nothing is checked.
    """

    kind: str
    name: str | None = None
    cores: tuple[int, ...] = ()
    threads: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None


class Role(Frozen):
    """The device and the model behind one of the two roles.  None means: not stated.

    Attributes:
        device: Where it runs.
        model: Name of the model.
        parameters: Number of its weights.
        precision: Of weights and activations, e.g. `float32`.
        backend: What runs it, e.g. `torch-eager`.
        mode: Whether its kernels are launched one by one or as a captured graph.
        tensor_parallel: Devices that it is spread over.
        kv_bytes_per_token: Keys and values of one token in all layers.
        weight_bytes: Weights in memory.
        layers: Number of its layers.
    """

    device: DeviceInfo
    model: str
    parameters: PositiveInt | None = None
    precision: str | None = None
    backend: str | None = None
    mode: Literal["eager", "captured"] | None = None
    tensor_parallel: PositiveInt = 1
    kv_bytes_per_token: PositiveInt | None = None
    weight_bytes: PositiveInt | None = None
    layers: PositiveInt | None = None


class Roles(Frozen):
    """Both roles of a pair."""

    target: Role
    draft: Role


class Overlap(Frozen):
    """How much slower an operation runs while the other device is busy.

    Attributes:
        device: Device that runs the operation.
        operation: The operation, without the device's name.
        while_busy: The other device (`while` in the file).
        while_operation: What the other device does meanwhile; None: anything that has no entry of its own.
        slowdown: Factor on the duration; 1 where overlap costs nothing.
    """

    device: RoleName
    operation: Forward
    while_busy: Annotated[RoleName, Field(alias="while")]
    while_operation: Forward | None = None
    # Below 1 it would be a speedup: noise, perhaps, but below one half a mistake.
    slowdown: Annotated[float, Field(ge=0.5)]

    @model_validator(mode="after")
    def _is_possible(self) -> Overlap:
        if self.device == self.while_busy:
            raise field_error("while", f"must be the other device than {self.device!r}")
        for field, device, operation in (
            ("operation", self.device, self.operation),
            ("while_operation", self.while_busy, self.while_operation),
        ):
            if operation is not None and f"{device}.{operation}" not in get_args(OperationName):
                raise field_error(field, f"the {device} has no operation {operation!r}")
        return self


class MeasuredRun(Frozen):
    """Speed of one policy setting, run live during calibration beside plain decoding.

    Attributes:
        policy: Name of the policy.
        lookahead: Drafted tokens per round, if it has that knob.
        fanout: F_0 ... F_K, likewise.
        backup: What it does on a cache miss, likewise.
        batch: Rows served at once.
        temperature: Of both models; 0 is greedy.
        tokens: Tokens emitted per pass over the prompts.
        tokens_per_second: Over decode time, prefill left out.
        speedup_vs_ar: Over plain decoding interleaved with it.
    """

    policy: str
    lookahead: PositiveInt | None = None
    fanout: tuple[int, ...] | None = None
    backup: str | None = None
    batch: PositiveInt = 1
    temperature: NonNegativeFloat = 0.0
    tokens: PositiveInt
    tokens_per_second: PositiveFloat
    speedup_vs_ar: PositiveFloat
