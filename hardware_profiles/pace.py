"""Pace: what operations stated row by row take in real rounds, beside what a profile says of their forwards.

A profile prices a step of such an operation as the forward that it resembles, and its host time as that of
the operation that it is like.  `calibrate decide` measures how far that holds: a forward over a tree's
nodes is masked otherwise than a tree step of SSD, one graph may run as two, tries and lookups take host time
of their own.  Per kind of operation a step then takes

    extra_s + row_s * (rows - 1) + factor * (what the profile says)

and host time is the kind's own.  All seconds are at full rate, with the neighbour's contention taken out, and
at the speed that the machine had when the profile was measured (`calibrate.hostrecords`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from hardware_profiles.files import to_json
from hardware_profiles.optime import KindPace
from hardware_profiles.profile import Profile, Role
from hardware_profiles.surface import Frozen

BORROWED = "steps are priced as the forwards they resemble, host time as that of built-in operations"
NO_PACE = f"not recorded: {BORROWED} (`calibrate decide` measures it, on an idle machine)"


class Pace(Frozen):
    """The pace of policies' operations at one sampling, on one machine and pair of models.

    Attributes:
        profile: Name of the profile beside which it was measured.
        place: `place_fingerprint` of that profile.
        costs: `costs_fingerprint` of that profile.
        batches: Batches that it was measured at.
        policies: By policy, what its operations take, by their kind: rounds of another policy may treat the
            same kind otherwise.
    """

    profile: str
    place: str
    costs: str
    batches: tuple[int, ...] = (1,)
    policies: Mapping[str, Mapping[str, KindPace]] = Field(default_factory=dict)

    def note(self, profile: Profile) -> str:
        """Where it comes from, and whether it holds for a profile."""
        if self.place != place_fingerprint(profile):
            return f"measured on another machine or pair (profile {self.profile!r}), not used: {BORROWED}"
        other = "" if self.costs == costs_fingerprint(profile) else ", another calibration of this machine"
        at = ", ".join(map(str, self.batches))
        return f"measured beside profile {self.profile!r}{other}, at batch {at}"

    def of(self, profile: Profile, policy: str) -> Mapping[str, KindPace]:
        """Of a policy, by kind; empty beside a profile of another machine or pair."""
        return self.policies.get(policy, {}) if self.place == place_fingerprint(profile) else {}


def joined_pace(first: Pace | None, then: Pace | None) -> Pace | None:
    """Two paces as one; the second counts where both know a policy, or where they are of different places."""
    if first is None or then is None or first.place != then.place:
        return then or first
    known = {**first.policies, **then.policies}
    batches = tuple(sorted({*first.batches, *then.batches}))
    return then.model_copy(update={"policies": known, "batches": batches})


def place_fingerprint(profile: Profile) -> str:
    """Tells machines, pairs of models and ways of running them apart."""
    roles = [_place_of(role) for role in (profile.roles.target, profile.roles.draft)]
    return _digest([profile.provenance.machine, profile.placement, roles])


def costs_fingerprint(profile: Profile) -> str:
    """Tells calibrations apart: a digest of all measured times."""
    kept = profile.model_dump(mode="json", include={"operations", "host", "overlap"})
    for host in (*kept["host"]["operations"].values(), *kept["host"]["sampled"].values()):
        if host["spread"] is None:  # as before profiles could have one: what was timed beside them still is
            del host["spread"]
    return _digest([place_fingerprint(profile), kept])


def _place_of(role: Role) -> Any:
    kept = {"model", "precision", "backend", "mode", "tensor_parallel"}
    device = role.device.model_dump(mode="json", exclude={"memory_bytes"})
    return [device, role.model_dump(mode="json", include=kept)]


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(value, sort_keys=True).encode()).hexdigest()[:16]
