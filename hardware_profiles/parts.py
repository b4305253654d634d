"""The parts of a profile besides its costs: devices and models, host time, overlap, live runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from hardware_profiles.costs import Axis, Frozen, Quantiles, check_quantiles, field_error

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


class OperationHost(Frozen):
    """What one operation costs beyond its forwards, in real rounds, s.

    Attributes:
        submit_s: From the report that the controller acted on to the start of the work on an idle device:
            the policy's own time and the message.
        report_s: From the end of the work to the controller's learning of it.
        submit_row_s: Further time until the start for each row of the batch after the first.
        report_token_s: Further time until the report for each token that went through its forwards: an
            answer grows with them.
        extra_s: Work beyond its forwards; negative where the fit says so.
        row_s: Further work for each row of the batch after the first.
        step_s: Further work for each of its forwards: where tokens are sampled, drawing has a price per
            step besides that per token.
        token_s: Further work for each token that goes through its forwards, padding not counted: choosing a
            token in each branch, and drawing it where tokens are sampled.
        scale: Seconds of its forwards in real rounds per second that the grids say.
        wake: Seconds of further work per second that the device idled before: caches grow cold.
        idle_cap_s: Longest idling that `wake` was fitted on; longer idling costs no more.
        spread: What whole operations took in real rounds over the mean of their kind, at `LEVELS`; None: they
            vary as their forwards do in probes.  In rounds the forwards of an operation are slow together,
            and devices that wait for each other wait for whichever is.
    """

    submit_s: NonNegativeFloat = 0.0
    report_s: NonNegativeFloat = 0.0
    submit_row_s: NonNegativeFloat = 0.0
    report_token_s: NonNegativeFloat = 0.0
    extra_s: float = 0.0
    row_s: float = 0.0
    step_s: NonNegativeFloat = 0.0
    token_s: NonNegativeFloat = 0.0
    scale: PositiveFloat = 1.0
    wake: NonNegativeFloat = 0.0
    idle_cap_s: NonNegativeFloat = 0.0
    spread: Quantiles | None = None

    _check_spread = field_validator("spread")(check_quantiles)


HostOperation: TypeAlias = Literal["decode", "verify", "settle", "draft", "prespeculate", "continue"]


class Host(Frozen):
    """What the controller adds to the devices' own time, s.

    Attributes:
        submit_s: From the report that the controller acted on to the start of the work.
        report_s: From the end of the work to the controller's learning of it.
        message_latency_s: Time of one message between controller and worker, at `LEVELS`.
        operations: What differs by operation; `decode` is a verification of nothing, `settle` has no
            forward at all.
        sampled: The same in runs at a temperature above 0; an operation that is not here costs what
            `operations` says.
    """

    submit_s: NonNegativeFloat = 0.0
    report_s: NonNegativeFloat = 0.0
    message_latency_s: Quantiles | None = None
    operations: Mapping[HostOperation, OperationHost] = Field(default_factory=dict)
    sampled: Mapping[HostOperation, OperationHost] = Field(default_factory=dict)

    _check_quantiles = field_validator("message_latency_s")(check_quantiles)

    def of(self, operation: HostOperation, *, sampled: bool = False) -> OperationHost:
        """What an operation costs; what all have in common if nothing is said of it."""
        found = (self.sampled.get(operation) if sampled else None) or self.operations.get(operation)
        return found or OperationHost(submit_s=self.submit_s, report_s=self.report_s)


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
