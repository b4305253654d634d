"""Pace: what operations stated row by row take in real rounds, beside what a profile says of their forwards.

A profile prices a step of such an operation as the forward that it resembles, and its host time as that of
the operation that it is like.  `calibrate decide` measures how far that holds: a forward over a tree's
nodes is masked otherwise than a tree step of SSD, one graph may run as two, tries and lookups take host time
of their own.  Per kind of operation a step then takes

    extra_s + row_s * (rows - 1) + factor * (what the profile says)

and host time is the kind's own.  All seconds are at full rate, with the neighbour's contention taken out, and
at the speed that the machine had when the profile was measured (`calibrate.timing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat

from hardware_profiles.costs import Frozen
from hardware_profiles.jsonfile import to_json
from hardware_profiles.parts import OperationHost, Role, RoleName
from hardware_profiles.profile import Profile


class StepPace(Frozen):
    """What the steps of one name take.

    Attributes:
        factor: Seconds per second that the profile says.
        extra_s: Seconds of each step beyond that; all there is of a step that calls no model.
        row_s: Further seconds of each step for each row after the first, likewise.
    """

    factor: PositiveFloat = 1.0
    extra_s: NonNegativeFloat = 0.0
    row_s: NonNegativeFloat = 0.0

    def seconds(self, expected_s: float, rows: int = 1, calls: int = 1) -> float:
        """Seconds of `calls` steps over `rows` rows, of which the profile says `expected_s` in all."""
        return calls * (self.extra_s + self.row_s * (rows - 1)) + self.factor * expected_s


AS_EXPECTED = StepPace()
BORROWED = "steps are priced as the forwards they resemble, host time as that of built-in operations"
NO_PACE = f"not recorded: {BORROWED} (`calibrate decide` measures it, on an idle machine)"


class KindPace(Frozen):
    """What the operations of one kind take.

    Attributes:
        host: Their own host time, in place of that of the operation they are like.
        steps: By name, without a share (`early` of `early:0.4`); others take what the profile says.
        mark_s: From the end of the step that an operation announces after to the policy's hearing of it;
            None: as long as its report takes.
    """

    host: OperationHost = OperationHost()
    steps: Mapping[str, StepPace] = Field(default_factory=dict)
    mark_s: NonNegativeFloat | None = None

    def step(self, name: str) -> StepPace:
        """What the steps called `name` take, with or without a share."""
        return self.steps.get(base_name(name), AS_EXPECTED)


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


class StepTotal(NamedTuple):
    """The steps of one name in an operation.

    Attributes:
        name: Without a share.
        calls: How many there were.
        expected_s: What the profile says of them together.
        seconds: What they took together, at full rate.
    """

    name: str
    calls: int
    expected_s: float
    seconds: float


class Timed(NamedTuple):
    """One operation of a live run.  Seconds are at full rate and at the machine's usual speed.

    Attributes:
        kind: Of the operation.
        role: Of the device that did it.
        like: The built-in operation it is like.
        batch: Rows served at once in its run.
        rows: Rows it was about.
        tokens: Tokens that went through the model, padding not counted.
        lead_s: From what the policy acted on to its start; -1 where it waited for other work.
        work_s: From start to end.
        report_s: From the end to the policy.
        idle_s: How long its device did nothing before.
        steps: By name.
        mark_s: From the end of the step that it announces after to the policy's hearing of it; -1 where it
            announces nothing, or where that was not kept.
    """

    kind: str
    role: RoleName
    like: str
    batch: int
    rows: int
    tokens: int
    lead_s: float
    work_s: float
    report_s: float
    idle_s: float
    steps: tuple[StepTotal, ...]
    mark_s: float = -1.0


def timed_from(plain: Any) -> Timed:
    """An operation's times from the lists that a file keeps."""
    place = Timed._fields.index("steps")
    if not isinstance(plain, list) or len(plain) < place + 1 or not isinstance(plain[place], list):
        raise ValueError(f"timing: expected a list of {len(Timed._fields)} values, got {plain!r:.80}")
    steps = tuple(StepTotal._make(step) for step in plain[place])
    return Timed._make([*plain[:place], steps, *(plain[place + 1 :] or [-1.0])])


def base_name(step: str) -> str:
    """Name of a step without its share."""
    return step.partition(":")[0]


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
