"""The hardware profile: devices, models, what a draft/target pair costs, as a versioned JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from hardware_profiles.files import FileRefused, atomic_write, check_name, parse_json, read_bytes, to_json
from hardware_profiles.optime import Host
from hardware_profiles.surface import (
    AXES,
    Forward,
    Frozen,
    OperationCost,
    OperationName,
    Provenance,
    RoleName,
    field_error,
)


class DeviceInfo(Frozen):
    """Hardware that a model runs on.

    Attributes:
        kind: What torch calls it, e.g. `cpu` or `cuda`.
        name: The part, e.g. `NVIDIA H100 80GB HBM3`.
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
        mode: Whether its kernels are launched one by one or as a captured graph.
        kv_bytes_per_token: Keys and values of one token in all layers.
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
        lookahead: Drafted tokens per round, if it has that knob; so are fan-out and backup.
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


SCHEMA = "spectwin/profile/1"
"""The one schema that this version reads and writes."""

_MOST_ERRORS_SHOWN = 5
_LARGEST_BYTES = 64 * 1024 * 1024
_LINE_WIDTH = 110


class ProfileError(ValueError):
    """A profile cannot be found, read or used; the message names the file and the field."""


class Profile(Frozen):
    """Costs of a draft/target pair on given hardware.

    Attributes:
        schema_version: Always `SCHEMA` (`schema` in the file).
        placement: Whether the two models have a device each or share one.
        operations: Cost of each operation; `target.forward` is always there.
        verification: Whether a verification computes the widest row's tokens for every row, as the live
            engine does, or each row's own, as engines of GPUs do.
        measured_runs: Settings run live during calibration, whose rounds gave the host time.
        model_error: Standard deviation of log(simulated / measured speedup) over those settings; None:
            not known.
        provenance: Where the numbers come from, unless an operation says otherwise.
    """

    schema_version: Annotated[Literal["spectwin/profile/1"], Field(alias="schema")] = "spectwin/profile/1"
    name: Annotated[str, AfterValidator(check_name)]
    description: str = ""
    roles: Roles
    placement: Literal["split", "shared"] = "split"
    placement_note: str = ""
    verification: Literal["padded", "packed"] = "padded"
    operations: Mapping[OperationName, OperationCost]
    host: Host = Host()
    overlap: tuple[Overlap, ...] = ()
    measured_runs: tuple[MeasuredRun, ...] = ()
    model_error: NonNegativeFloat | None = None
    provenance: Provenance

    @field_validator("operations")
    @classmethod
    def _operations_fit(
        cls, operations: Mapping[OperationName, OperationCost]
    ) -> Mapping[OperationName, OperationCost]:
        for name, cost in operations.items():
            if strange := [axis for axis in cost.axes if axis not in AXES[name]]:
                raise field_error(
                    f"{name}.axes", f"{strange[0]!r} is no axis of {name}, which has {', '.join(AXES[name])}"
                )
        if "target.forward" not in operations:
            raise field_error("target.forward", "is required")
        return operations

    @field_validator("overlap")
    @classmethod
    def _overlaps_differ(cls, overlap: tuple[Overlap, ...]) -> tuple[Overlap, ...]:
        seen = set()
        for index, entry in enumerate(overlap):
            key = (entry.device, entry.operation, entry.while_operation)
            if key in seen:
                beside = f" while {entry.while_operation}" if entry.while_operation else ""
                raise field_error(str(index), f"a second entry for {entry.device}.{entry.operation}{beside}")
            seen.add(key)
        return overlap

    def operation(self, name: OperationName) -> OperationCost:
        """Cost of one operation.

        Raises:
            ProfileError: The profile does not have it.
        """
        if name not in self.operations:
            known = ", ".join(self.operations)
            raise ProfileError(f"profile {self.name!r} has no operation {name!r}, only {known}")
        return self.operations[name]

    def slowdown(self, name: OperationName, while_operation: Forward | None = None) -> float:
        """Factor on the duration of an operation while the other device is busy; 1 if none is stated.

        An entry for just what the other device does counts before one for anything it may do.
        """
        factors = {e.while_operation: e.slowdown for e in self.overlap if f"{e.device}.{e.operation}" == name}
        return factors.get(while_operation, factors.get(None, 1.0))

    def provenance_of(self, name: OperationName) -> Provenance:
        """Where the numbers of one operation come from.

        Raises:
            ProfileError: The profile does not have the operation.
        """
        return self.operation(name).provenance or self.provenance


def unmeasured(profile: Profile) -> dict[str, str]:
    """What operations rest on whose times were composed or come from a roofline or a paper, by their names
    joined.

    Empty for a profile that was measured or made up throughout.
    """
    operations: dict[str, list[str]] = {}
    for name in profile.operations:
        origin = profile.provenance_of(name)
        if origin.kind in ("composed", "roofline", "paper"):
            operations.setdefault(f"{origin.kind}: {origin.note or 'nothing more is said'}", []).append(name)
    return {", ".join(names): text for text, names in operations.items()}


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read and check a hardware profile.

    Raises:
        ProfileError: The file cannot be read or is no valid profile; the message names the file and
            the dotted path of each bad field.
    """
    try:
        text = read_bytes(path, _LARGEST_BYTES)
    except FileRefused as error:
        raise ProfileError(str(error)) from error
    try:
        parse_json(text)
    except FileRefused as error:
        raise ProfileError(f"{path}{f':{error.line}' if error.line else ''}: {error}") from error
    try:
        # Strict, so that a number in quotes is reported instead of guessed at.
        profile = Profile.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ProfileError(_describe(path, error)) from error
    if "schema_version" not in profile.model_fields_set:
        raise ProfileError(f"{path}: schema: is required, this version reads {SCHEMA!r}")
    return profile


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile; the file appears complete or not at all.

    Raises:
        OSError: The file system refuses.
    """
    with atomic_write(path) as file:
        file.write(format_profile(profile))


def format_profile(profile: Profile) -> str:
    """The text of a profile's file.  Fields that are None are left out."""
    return _layout(profile.model_dump(mode="json", by_alias=True, exclude_none=True)) + "\n"


def _layout(value: Any, indent: int = 0) -> str:
    """JSON with every value that fits on one line (such as a point of a grid) on one line."""
    line = to_json(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(line) + indent < _LINE_WIDTH:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{to_json(k, ensure_ascii=False)}: {_layout(v, indent + 2)}" for k, v in value.items()]
        opening, closing = "{}"
    else:
        parts = [_layout(item, indent + 2) for item in value]
        opening, closing = "[]"
    return f"{opening}\n{pad}" + f",\n{pad}".join(parts) + f"\n{' ' * indent}{closing}"


def _describe(path: str | os.PathLike[str], error: ValidationError) -> str:
    details = error.errors(include_url=False)
    # A file of another schema has a wrong field everywhere; only one of them matters.
    shown = [d for d in details if d["loc"] == ("schema",)] or details
    lines = []
    for detail in shown[:_MOST_ERRORS_SHOWN]:
        # Parts in brackets are pydantic's: the kind of a union's member, "[key]" of a mapping.
        parts = [str(part) for part in detail["loc"] if str(part)[:1] not in ("<", "[")]
        if detail["type"] == "field":
            parts.append(detail["ctx"]["path"])
        lines.append(": ".join([*filter(None, [".".join(parts)]), _reason(detail)]))
    if len(shown) > _MOST_ERRORS_SHOWN:
        lines.append(f"and {len(shown) - _MOST_ERRORS_SHOWN} more")
    return f"{path}: {'; '.join(lines)}"


_REASONS = {
    "missing": "is required",
    "extra_forbidden": "is no field of a profile",
    "value_error": "{error}",
    "field": "{message}",
    "json_invalid": "is not JSON: {error}",
}
_REASONS_WITH_VALUE = {
    "greater_than": "must be > {gt:g}",
    "greater_than_equal": "must be >= {ge:g}",
    "literal_error": "must be {expected}",
}


def _reason(detail: ErrorDetails) -> str:
    """What pydantic says, in the words of the other errors here."""
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind in _REASONS:
        return _REASONS[kind].format(**context)
    got = f", got {given!r:.80}" if isinstance(given, str | int | float) else ""
    own = detail["msg"][:1].lower() + detail["msg"][1:]
    return (_REASONS_WITH_VALUE[kind].format(**context) if kind in _REASONS_WITH_VALUE else own) + got
