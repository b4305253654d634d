"""Profiles that nobody measured: architectures on devices, priced by the roofline.

Whole profiles (`predicted_operations`, `predicted_role`), and measured ones carried to other models or
another placement (`rescaled`, `replaced`): the efficiencies of each operation are fitted to the profile's
own grid, and every point is multiplied with the ratio that the roofline sees between the new model and the
old one. What the roofline misses of the old model is thereby kept, as far as it is a property of the
engine.

Every such operation has the provenance `roofline` (or `paper`, where a printed number sets its scale), with
what it rests on in its note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from hardware_profiles.profile import DeviceInfo, Overlap, Profile, ProfileError, Role
from hardware_profiles.roofline import (
    DEVICES,
    Device,
    DeviceError,
    Efficiency,
    Setting,
    find_device,
    find_precision,
    fit_roofline,
    known_part,
)
from hardware_profiles.shapes import CONFIGS, ShapeError, find_shape
from hardware_profiles.surface import (
    AXES,
    OPERATIONS,
    Axis,
    GridCost,
    InterpolationError,
    OperationCost,
    OperationName,
    Point,
    Provenance,
    RoleName,
)

BATCHES = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (1, 2, 4, 8, 16, 32)
BRANCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (0, 1024, 8192)
PROMPTS = (16, 128, 1024, 8192)
TICKS: Mapping[str, Mapping[Axis, tuple[int, ...]]] = {
    "forward": {"batch": BATCHES, "new_tokens": WIDTHS, "context": CONTEXTS},
    "prefill": {"batch": (1, 8, 64), "new_tokens": PROMPTS},
    "tree": {"batch": BATCHES, "branches": BRANCHES, "context": CONTEXTS},
}
"""Where the roofline is sampled.  It is nearly linear between: the interpolation adds little to its error."""
TURNS = 2.0
"""Two models that share a device take turns: each runs at half its speed while the other works.  Assumed."""
ROLE_OPERATIONS: Mapping[RoleName, tuple[OperationName, ...]] = {
    "target": tuple(name for name in AXES if name.startswith("target.")),
    "draft": tuple(name for name in AXES if name.startswith("draft.")),
}
"""The operations of each role."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What the prediction of one operation rests on.

    Attributes:
        error: Of the roofline on points left out of its fit; None where nothing was measured.
        factor: On every duration, where a printed number sets the scale.
    """

    efficiency: Efficiency
    provenance: Provenance
    error: InterpolationError | None = None
    factor: float = 1.0


def predicted_grid(operation: OperationName, setting: Setting, basis: Basis) -> GridCost:
    """The surface of an operation on the points of `TICKS`.

    Raises:
        DeviceError: A tensor-parallel group without a link.
    """
    ticks = TICKS[operation.split(".")[1]]
    axes = tuple(axis for axis in AXES[operation] if axis in ticks)
    points = []
    for at in product(*(ticks[axis] for axis in axes)):
        where = {str(axis): float(value) for axis, value in zip(axes, at, strict=True)}
        mean = basis.factor * setting.seconds(operation, where, basis.efficiency)
        points.append(Point(at=at, mean_s=float(f"{mean:.5g}")))
    return GridCost(
        axes=axes, points=tuple(points), interpolation_error=basis.error, provenance=basis.provenance
    )


def predicted_operations(
    target: Setting, draft: Setting, bases: Mapping[OperationName, Basis]
) -> dict[OperationName, GridCost]:
    """The surfaces of both roles, as far as there is a basis for them."""
    settings = {"target": target, "draft": draft}
    return {
        name: predicted_grid(name, settings[role], bases[name])
        for role, names in ROLE_OPERATIONS.items()
        for name in names
        if name in bases
    }


def predicted_role(setting: Setting, *, backend: str | None = None) -> Role:
    """A role with the sizes that follow from its architecture: what the check of memory asks for.

    `backend` is what is assumed to run it.
    """
    shape, precision, device = setting.shape, setting.precision, setting.device
    return Role(
        device=DeviceInfo(kind=device.kind, name=device.part, memory_bytes=device.memory_bytes),
        model=shape.name,
        parameters=shape.parameters,
        precision=precision.name,
        backend=backend,
        tensor_parallel=setting.devices,
        kv_bytes_per_token=round(shape.kv_numbers_per_token * precision.activation_bytes),
        weight_bytes=round(shape.parameters * precision.weight_bytes),
        layers=shape.layers,
    )


def setting_of(role: Role, *, shape: str | None = None, device: str | None = None) -> Setting:
    """The model and the device behind a role of a profile, as the roofline knows them.

    `shape` and `device` name them where the role does not tell.

    Raises:
        ShapeError: The architecture is not known.
        DeviceError: The device is not.
    """
    return Setting(
        shape=find_shape(shape or _shape_name(role.model)),
        device=find_device(device) if device else _device_of(role),
        precision=find_precision(role.precision or "fp32"),
        devices=role.tensor_parallel,
    )


def _shape_name(model: str) -> str:
    """The pair's folders are called `x5-5bbfbf7d161d94ac` and `draft`."""
    short = f"pair:{model.split('-', maxsplit=1)[0]}"
    return short if short in CONFIGS else model


def _device_of(role: Role) -> Device:
    if (device := known_part(role.device.name or "")) is not None:
        return device
    if role.device.kind == "cpu":
        return DEVICES["cpu-core"].of_cores(role.device.threads or 1)
    raise DeviceError(
        f"no peaks are known of {role.device.name or role.device.kind!r}; there are {', '.join(DEVICES)}"
    )


def turns() -> tuple[Overlap, ...]:
    """What sharing one device costs, as assumed (`TURNS`)."""
    other: dict[RoleName, RoleName] = {"target": "draft", "draft": "target"}
    return tuple(
        Overlap(device=mine, operation=operation, while_busy=other[mine], slowdown=TURNS)
        for mine, operation in OPERATIONS
    )


Placement = Literal["split", "shared"]


def rescaled(profile: Profile, *, target: str | None = None, draft: str | None = None) -> Profile:
    """The profile with other models on the same devices.

    Host times, overlap and noise stay as they are; live runs of the old pair are dropped.

    `target` and `draft` are architectures (`hardware_profiles.shapes`); None keeps the old one.  The
    operations must be grids, and the old models and devices known.

    Raises:
        ValueError: A model or device that is not known, or an operation that is no grid.
    """
    if target is not None:
        profile = _with_model(profile, "target", target)
    if draft is not None:
        profile = _with_model(profile, "draft", draft)
    return profile


def replaced(profile: Profile, placement: Placement) -> Profile:
    """The profile with its models on devices of their own, or on the same ones.

    Shared devices are assumed to take turns (`predicted.turns`), devices of one's own not to disturb each
    other.  Unchanged where the profile is placed so already.

    Raises:
        ProfileError: Shared, but the models run on different parts: one would have to move.
    """
    if placement == profile.placement:
        return profile
    devices = [role.device for role in (profile.roles.target, profile.roles.draft)]
    parts = [device.name or device.kind for device in devices]
    if placement == "shared" and parts[0] != parts[1]:
        raise ProfileError(
            f"profile {profile.name!r} has its target on {parts[0]} and its draft on {parts[1]}: sharing "
            "would move one of them.  Price the pair with `python -m calibrate.roofline predict --placement "
            "shared` instead"
        )
    return _changed(profile, placement=placement, overlap=turns() if placement == "shared" else ())


def placement_note(placement: Placement) -> str:
    """What `replaced` assumes, for people."""
    if placement == "shared":
        return (
            "shared, not as measured: both models take turns, each at half speed beside the other (assumed)"
        )
    return "split, not as measured: a device each, and neither slows the other (assumed)"


def _with_model(profile: Profile, role: RoleName, name: str) -> Profile:
    old_role: Role = getattr(profile.roles, role)
    try:
        old = setting_of(old_role)
    except (ShapeError, DeviceError) as error:
        raise ProfileError(
            f"profile {profile.name!r} cannot be carried to {name!r}: of its own {role} {error}"
        ) from None
    new = Setting(find_shape(name), old.device, old.precision, old.devices)
    operations: dict[OperationName, OperationCost] = dict(profile.operations)
    for operation in ROLE_OPERATIONS[role]:
        if operation in operations:
            operations[operation] = _scaled(profile, operation, old, new)
    sizes = predicted_role(new)
    kept = {name: getattr(old_role, name) for name in ("device", "backend", "mode")}
    roles = profile.roles.but(**{role: sizes.but(**kept)})
    return _changed(profile, roles=roles, operations=operations)


def _scaled(profile: Profile, operation: OperationName, old: Setting, new: Setting) -> GridCost:
    cost = profile.operations[operation]
    fit = fit_roofline(operation, cost, old)
    assert isinstance(cost, GridCost)  # a constant has no fit
    points = []
    for point in cost.points:
        at = cost.where(point)
        then, now = (setting.seconds(operation, at, fit.efficiency) for setting in (old, new))
        factor = now / then
        quantiles = point.quantiles_s and tuple(factor * q for q in point.quantiles_s)
        points.append(point.but(mean_s=factor * point.mean_s, quantiles_s=quantiles))
    origin = profile.provenance_of(operation)
    note = f"{old.shape.name} carried to {new.shape.name} by the roofline fitted to this operation"
    if origin.kind == "measured":
        note += f", which is {100 * fit.error.median:.0f} % off on its own points left out"
        note += f" (95 %: {100 * fit.error.p95:.0f} %) and further on another model"
    note += f"; before that {origin.kind}" + (f": {origin.note}" if origin.kind != "measured" else "")
    return cost.but(
        points=tuple(points), interpolation_error=None, provenance=Provenance(kind="roofline", note=note)
    )


def _changed(profile: Profile, **changes: Any) -> Profile:
    """A copy; what was measured live of the old profile is no longer of this one."""
    return profile.but(**changes, measured_runs=(), model_error=None)
