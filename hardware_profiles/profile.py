"""The hardware profile: devices, models, what a draft/target pair costs, as a versioned JSON file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from hardware_profiles.files import FileRefused, atomic_write, check_name, parse_json, read_bytes, to_json
from hardware_profiles.optime import Host
from hardware_profiles.records import (
    Count,
    FieldError,
    Frozen,
    Positive,
    RecordError,
    Seconds,
    field,
    plain,
    record,
)
from hardware_profiles.surface import (
    AXES,
    ConstantCost,
    Forward,
    GridCost,
    OperationCost,
    OperationName,
    Provenance,
    RoleName,
    cost_of,
)


class DeviceInfo(Frozen, frozen=True, kw_only=True):
    """Hardware that a model runs on.

    Attributes:
        kind: What torch calls it, e.g. `cpu` or `cuda`.
        name: The part, e.g. `NVIDIA H100 80GB HBM3`.
        memory_bytes: Memory that weights and caches may take; None: not stated, so that nothing is checked.
    """

    kind: str
    name: str | None = None
    cores: tuple[int, ...] = ()
    threads: Count | None = None
    memory_bytes: Count | None = None


class Role(Frozen, frozen=True, kw_only=True):
    """The device and the model behind one of the two roles.  None means: not stated.

    Attributes:
        mode: Whether its kernels are launched one by one or as a captured graph.
        kv_bytes_per_token: Keys and values of one token in all layers.
    """

    device: DeviceInfo
    model: str
    parameters: Count | None = None
    precision: str | None = None
    backend: str | None = None
    mode: Literal["eager", "captured"] | None = None
    tensor_parallel: Count = 1
    kv_bytes_per_token: Count | None = None
    weight_bytes: Count | None = None
    layers: Count | None = None


class Roles(Frozen, frozen=True, kw_only=True):
    """Both roles of a pair."""

    target: Role
    draft: Role


class Overlap(Frozen, frozen=True, kw_only=True):
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
    while_busy: RoleName = field(name="while")
    while_operation: Forward | None = None
    # Below 1 it would be a speedup: noise, perhaps, but below one half a mistake.
    slowdown: Annotated[float, Meta(ge=0.5)]

    def __post_init__(self) -> None:
        """Check that it is possible."""
        if self.device == self.while_busy:
            raise FieldError("while", f"must be the other device than {self.device!r}")
        for name, device, operation in (
            ("operation", self.device, self.operation),
            ("while_operation", self.while_busy, self.while_operation),
        ):
            if operation is not None and f"{device}.{operation}" not in get_args(OperationName):
                raise FieldError(name, f"the {device} has no operation {operation!r}")


class MeasuredRun(Frozen, frozen=True, kw_only=True):
    """Speed of one policy setting, run live during calibration beside plain decoding.

    Attributes:
        lookahead: Drafted tokens per round, if it has that knob; so are fan-out and backup.
        temperature: Of both models; 0 is greedy.
        tokens: Tokens emitted per pass over the prompts.
        tokens_per_second: Over decode time, prefill left out.
        speedup_vs_ar: Over plain decoding interleaved with it.
    """

    policy: str
    lookahead: Count | None = None
    fanout: tuple[int, ...] | None = None
    backup: str | None = None
    batch: Count = 1
    temperature: Seconds = 0.0
    tokens: Count
    tokens_per_second: Positive
    speedup_vs_ar: Positive


SCHEMA = "spectwin/profile/1"
"""The one schema that this version reads and writes."""

_LARGEST_BYTES = 64 * 1024 * 1024
_LINE_WIDTH = 110


class ProfileError(ValueError):
    """A profile cannot be found, read or used; the message names the file and the field."""


class Profile(Frozen, frozen=True, kw_only=True):
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

    schema_version: Literal["spectwin/profile/1"] = field(name="schema", default="spectwin/profile/1")
    name: str
    description: str = ""
    roles: Roles
    placement: Literal["split", "shared"] = "split"
    placement_note: str = ""
    verification: Literal["padded", "packed"] = "padded"
    operations: Mapping[OperationName, OperationCost]
    host: Host = Host()
    overlap: tuple[Overlap, ...] = ()
    measured_runs: tuple[MeasuredRun, ...] = ()
    model_error: Seconds | None = None
    provenance: Provenance

    def __post_init__(self) -> None:
        """Check what types do not say; costs as a file has them become records."""
        try:
            check_name(self.name)
        except ValueError as error:
            raise FieldError("name", str(error)) from error
        msgspec.structs.force_setattr(self, "operations", self._costs())
        seen = set()
        for index, entry in enumerate(self.overlap):
            key = (entry.device, entry.operation, entry.while_operation)
            if key in seen:
                beside = f" while {entry.while_operation}" if entry.while_operation else ""
                message = f"a second entry for {entry.device}.{entry.operation}{beside}"
                raise FieldError(f"overlap.{index}", message)
            seen.add(key)

    def _costs(self) -> dict[OperationName, OperationCost]:
        costs: dict[OperationName, OperationCost] = {}
        entry: Any
        for name, entry in self.operations.items():
            try:
                costs[name] = entry if isinstance(entry, ConstantCost | GridCost) else cost_of(entry)
            except RecordError as error:
                raise RecordError(
                    "Profile", [(f"operations.{name}.{at}", why) for at, why in error.faults]
                ) from error
            if strange := [axis for axis in costs[name].axes if axis not in AXES[name]]:
                known = ", ".join(AXES[name])
                message = f"{strange[0]!r} is no axis of {name}, which has {known}"
                raise FieldError(f"operations.{name}.axes", message)
        if "target.forward" not in costs:
            raise FieldError("operations.target.forward", "is required")
        return costs

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
        value = parse_json(text)
    except FileRefused as error:
        raise ProfileError(f"{path}{f':{error.line}' if error.line else ''}: {error}") from error
    try:
        if isinstance(value, dict) and value.setdefault("schema", None) != SCHEMA:
            # A file of another schema has a wrong field everywhere; only this one matters.
            got = f"must be {SCHEMA!r}, got {value['schema']!r:.80}"
            why = got if value["schema"] is not None else f"is required, this version reads {SCHEMA!r}"
            raise RecordError("Profile", [("schema", why)])
        return record(Profile, value)
    except RecordError as error:
        raise ProfileError(f"{path}: {error}") from error


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile; the file appears complete or not at all.

    Raises:
        RecordError: A field of it is not what a reader takes.
        OSError: The file system refuses.
    """
    text = format_profile(profile)
    record(Profile, parse_json(text))
    with atomic_write(path) as file:
        file.write(text)


def format_profile(profile: Profile) -> str:
    """The text of a profile's file.  Fields that are None are left out."""
    return _layout(_stated(plain(profile))) + "\n"


def _stated(value: Any) -> Any:
    """A value without the fields that are None."""
    if isinstance(value, dict):
        return {name: _stated(each) for name, each in value.items() if each is not None}
    return [_stated(each) for each in value] if isinstance(value, list | tuple) else value


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
