"""A profile carried to other models or another placement by the roofline: always an extrapolation.

The efficiencies of each operation are fitted to the profile's own grid; every point is then multiplied with
the ratio that the roofline sees between the new model and the old one.  What the roofline misses of the old
model is thereby kept, as far as it is a property of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hardware_profiles.costs import GridCost, OperationCost, Provenance
from hardware_profiles.devices import DeviceError
from hardware_profiles.parts import OperationName, Role, RoleName
from hardware_profiles.predicted import OPERATIONS, predicted_role, setting_of, turns
from hardware_profiles.profile import Profile, ProfileError
from hardware_profiles.roofline import Setting
from hardware_profiles.roofline_fit import fit_roofline
from hardware_profiles.shapes import ShapeError, find_shape

Placement = Literal["split", "shared"]


def rescaled(profile: Profile, *, target: str | None = None, draft: str | None = None) -> Profile:
    """The profile with other models on the same devices.

    Host times, overlap and noise stay as they are; live runs of the old pair are dropped.

    Args:
        profile: To start from; its operations must be grids, its models and devices known.
        target: Architecture of the new target (`hardware_profiles.shapes`); None keeps the old one.
        draft: Of the new draft, likewise.

    Raises:
        ValueError: A model or device that is not known, or an operation that is no grid.
    """
    for role, name in (("target", target), ("draft", draft)):
        if name is not None:
            profile = _with_model(profile, "target" if role == "target" else "draft", name)
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
    for operation in OPERATIONS[role]:
        if operation in operations:
            operations[operation] = _scaled(profile, operation, old, new)
    sizes = predicted_role(new)
    kept = {
        "device": old_role.device, "backend": old_role.backend, "mode": old_role.mode,
    }  # fmt: skip
    roles = profile.roles.model_copy(update={role: sizes.model_copy(update=kept)})
    return _changed(profile, roles=roles, operations=operations)


def _scaled(profile: Profile, operation: OperationName, old: Setting, new: Setting) -> GridCost:
    cost = profile.operations[operation]
    fit = fit_roofline(operation, cost, old)
    assert isinstance(cost, GridCost)  # a constant has no fit
    points = []
    for point in cost.points:
        at = {str(axis): float(value) for axis, value in zip(cost.axes, point.at, strict=True)}
        then, now = (setting.seconds(operation, at, fit.efficiency) for setting in (old, new))
        factor = now / then
        quantiles = point.quantiles_s and tuple(factor * q for q in point.quantiles_s)
        points.append(point.model_copy(update={"mean_s": factor * point.mean_s, "quantiles_s": quantiles}))
    origin = profile.provenance_of(operation)
    note = f"{old.shape.name} carried to {new.shape.name} by the roofline fitted to this operation"
    if origin.kind == "measured":
        note += f", which is {100 * fit.error.median:.0f} % off on its own points left out"
        note += f" (95 %: {100 * fit.error.p95:.0f} %) and further on another model"
    note += f"; before that {origin.kind}" + (f": {origin.note}" if origin.kind != "measured" else "")
    return cost.model_copy(
        update={
            "points": tuple(points),
            "interpolation_error": None,
            "provenance": Provenance(kind="roofline", note=note),
        }
    )


def _changed(profile: Profile, **changes: Any) -> Profile:
    """A checked copy; what was measured live of the old profile is no longer of this one."""
    fields: Mapping[str, Any] = {
        name: getattr(profile, name) for name in type(profile).model_fields if name != "schema_version"
    }
    return Profile(**{**fields, **changes, "measured_runs": (), "model_error": None})
