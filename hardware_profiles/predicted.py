"""Profiles that nobody measured: architectures on devices, priced by the roofline.

Every operation of such a profile has the provenance `roofline` (or `paper`, where a printed number sets its
scale), with what it rests on in its note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from hardware_profiles.costs import Axis, GridCost, InterpolationError, Point, Provenance
from hardware_profiles.devices import DEVICES, Device, DeviceError, find_device, known_part
from hardware_profiles.parts import AXES, DeviceInfo, OperationName, Overlap, Role, RoleName
from hardware_profiles.roofline import Efficiency, Setting, find_precision
from hardware_profiles.shapes import CONFIGS, find_shape

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
OPERATIONS: Mapping[RoleName, tuple[OperationName, ...]] = {
    "target": ("target.forward", "target.prefill"),
    "draft": ("draft.forward", "draft.prefill", "draft.tree"),
}


@dataclass(frozen=True, slots=True)
class Basis:
    """What the prediction of one operation rests on.

    Attributes:
        efficiency: Of the engine there.
        provenance: Of the numbers that come out.
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
        for role, names in OPERATIONS.items()
        for name in names
        if name in bases
    }


def predicted_role(setting: Setting, *, backend: str | None = None, memory_bytes: int | None = None) -> Role:
    """A role with the sizes that follow from its architecture: what the check of memory asks for.

    Args:
        setting: The model on its device.
        backend: What is assumed to run it.
        memory_bytes: Of each device, where it is not the device's published memory.
    """
    shape, precision, device = setting.shape, setting.precision, setting.device
    return Role(
        device=DeviceInfo(
            kind=device.kind, name=device.part, memory_bytes=memory_bytes or device.memory_bytes
        ),
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

    Args:
        role: Of the profile.
        shape: The architecture, where its name does not tell.
        device: The device, likewise.

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
    pairs: tuple[tuple[RoleName, RoleName], ...] = (("target", "draft"), ("draft", "target"))
    return tuple(
        Overlap(device=mine, operation=operation, while_busy=other, slowdown=TURNS)
        for mine, other in pairs
        for operation in (("forward", "prefill") if mine == "target" else ("forward", "prefill", "tree"))
    )
