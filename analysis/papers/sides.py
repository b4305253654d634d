"""A role of a paper's machine: the model, where it sits, and what a printed number says of its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware_profiles.costs import Provenance
from hardware_profiles.devices import find_device
from hardware_profiles.efficiencies import BANDWIDTH_SHARE, COMPUTE_SHARE, Engine
from hardware_profiles.parts import OperationName, Overlap, Role, RoleName, Roles
from hardware_profiles.predicted import (
    OPERATIONS,
    Basis,
    predicted_operations,
    predicted_role,
    turns,
)
from hardware_profiles.profile import Profile
from hardware_profiles.roofline import PRECISIONS, Efficiency, Setting
from hardware_profiles.shapes import Shape, find_shape

CONTEXT = 512
"""Tokens in the cache where a printed time is taken to hold: prompts and outputs of a few hundred each."""
STEP: Mapping[str, float] = {"batch": 1.0, "new_tokens": 1.0, "context": float(CONTEXT)}
COMMAND = "python -m analysis.papers.profiles"
IDEAL = Efficiency(1.0 / COMPUTE_SHARE, 1.0 / BANDWIDTH_SHARE, 0.0)


@dataclass(frozen=True, slots=True)
class Side:
    """A role of a paper's machine.

    Attributes:
        setting: The model and where it sits.
        forward: What its forwards (a draft's tree steps too) rest on.
        rest: What its prefill rests on.
        backend: What ran it.
    """

    setting: Setting
    forward: Basis
    rest: Basis
    backend: str

    @property
    def step_s(self) -> float:
        """One token at the context where printed numbers are taken to hold."""
        return self.forward.factor * self.setting.seconds("x.forward", STEP, self.forward.efficiency)

    @property
    def role(self) -> Role:
        """For the profile."""
        return predicted_role(self.setting, backend=self.backend)


def place(model: str | Shape, device: str, precision: str = "bf16", devices: int = 1) -> Setting:
    """A model, by name or shape, on so many devices."""
    shape = find_shape(model) if isinstance(model, str) else model
    return Setting(shape, find_device(device), PRECISIONS[precision], devices)


def printed(setting: Setting, step_s: float, note: str, *, backend: str) -> Side:
    """A side whose step for one token is printed: the time per block is what the peaks leave of it.

    Where they leave nothing, all durations are scaled instead.
    """
    least = setting.seconds("x.forward", STEP, IDEAL)
    layer_s = max(0.0, step_s - least) / setting.shape.layers
    basis = Basis(
        replace(IDEAL, layer_s=layer_s),
        Provenance(
            kind="paper",
            command=COMMAND,
            note=f"{note}: {1e3 * step_s:.3g} ms for one token at context {CONTEXT}, batch 1; batches, "
            f"widths and contexts by roofline, {COMPUTE_SHARE:g} of peak compute and {BANDWIDTH_SHARE:g} of "
            "peak bandwidth assumed",
        ),
        factor=min(1.0, step_s / least),
    )
    rest = replace(basis, provenance=Provenance(kind="roofline", command=COMMAND, note=f"as forward; {note}"))
    return Side(setting, basis, rest, backend)


def unprinted(setting: Setting, engine: Engine, note: str = "") -> Side:
    """A side of which the paper prints nothing: roofline, by an engine fitted elsewhere."""
    text = f"{engine.note}; {note}" if note else engine.note
    basis = Basis(engine.efficiency, Provenance(kind="roofline", command=COMMAND, note=text))
    return Side(setting, basis, basis, engine.name)


def profile_of(
    name: str,
    target: Side,
    draft: Side,
    *,
    description: str,
    where: str,
    shared: bool = False,
) -> Profile:
    """A profile of two sides."""
    bases: dict[OperationName, Basis] = {}
    sides: tuple[tuple[RoleName, Side], ...] = (("target", target), ("draft", draft))
    for role, side in sides:
        for operation in OPERATIONS[role]:
            bases[operation] = side.rest if operation.endswith("prefill") else side.forward
    overlap: tuple[Overlap, ...] = turns() if shared else ()
    costs = "two models on one device take turns" if shared else "work side by side costs nothing"
    return Profile(
        name=name,
        description=description,
        roles=Roles(target=target.role, draft=draft.role),
        placement="shared" if shared else "split",
        placement_note=where,
        operations=predicted_operations(target.setting, draft.setting, bases),
        overlap=overlap,
        provenance=Provenance(
            kind="paper",
            command=COMMAND,
            note="see each operation; host time is part of the printed rates, not stated apart; "
            f"{costs} (assumed)",
        ),
    )
