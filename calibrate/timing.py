"""What operations stated row by row took in a live run, for their pace (`hardware_profiles.pace`).

Two things are taken out of every duration, since a simulation adds them by itself:

- *the neighbour*: where the other device was busy, time counts by the profile's slow-downs, so that what is
  left is work at full rate;
- *the machine's day*: plain decoding runs before and after each timed run.  What it takes, over what the
  profile says of it, divides all durations.  Speeds of such machines drift by a tenth within an hour, and a
  pace that held the drift would be wrong beside predictions that do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import TypeVar

from calibrate.fitting import Sample, predicted, trimmed_mean, waited
from calibrate.live.device import LiveDevice, Timing
from calibrate.live.world import LiveWorld
from calibrate.observations import Step, observe
from calibrate.overheads import Tables
from hardware_profiles.costs import OperationCost
from hardware_profiles.pace import StepTotal, Timed, base_name
from hardware_profiles.parts import OPERATIONS, Forward, RoleName
from hardware_profiles.profile import Profile
from policies.rowwise import Rowwise, Work

MOST_KEPT = 400
"""Operations of a kind that are kept of a run, evenly spread over it."""
DIGITS = 7
"""Seconds are kept to a tenth of a microsecond."""
_FORWARDS: Mapping[tuple[RoleName, str], Forward] = {
    (role, like): forward for (role, forward), likes in OPERATIONS.items() for like in likes
}
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _Done:
    """A rowwise operation with its times and each row's work."""

    operation: Rowwise
    work: tuple[Work, ...]
    timing: Timing


class Expectation:
    """What a profile says of operations: seconds of forwards, and of what neighbours cost each other.

    Args:
        profile: Costs.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        grids: dict[str, OperationCost] = {name: cost for name, cost in profile.operations.items()}  # noqa: C416
        self._tables = Tables(grids)

    def call(self, role: RoleName, name: str, rows: int, width: int, context: float) -> float:
        """Seconds of one model call over `width` tokens in each of `rows` rows.

        Raises:
            ValueError: The profile has no such operation.
        """
        kind: Forward = "tree" if role == "draft" and base_name(name) == "tree" else "forward"
        operation = self.profile.operations.get("draft.tree" if kind == "tree" else f"{role}.forward")  # type: ignore[call-overload]
        if operation is None:
            raise ValueError(
                f"profile {self.profile.name!r} has no {role}.{kind}, beside which steps could be timed; "
                "record decisions alone with --untimed"
            )
        if kind == "tree" and "batch" not in operation.axes:  # it knows the branches of all rows together
            rows, width = 1, width * rows
        return self._tables.seconds(role, Step(kind, rows, width, context, rows * width))

    def slowdown(self, role: RoleName, like: str, other: RoleName, other_like: str) -> float:
        """How much longer an operation takes while the other device does another."""
        mine = _FORWARDS.get((role, like))
        if mine is None or role == other:
            return 1.0
        return self.profile.slowdown(f"{role}.{mine}", _FORWARDS.get((other, other_like)))  # type: ignore[arg-type]

    def steps(self, role: RoleName, work: Sequence[Work], context: float) -> Iterator[tuple[str, float]]:
        """(name, seconds) of the steps of an operation by its rows' work; 0 s for what calls no model.

        As `simulator.measured.ProfileCosts.worked` says it.
        """
        fed, call_s = int(context), 0.0
        for parts in zip_longest(*work):
            there = [part for part in parts if part is not None]
            name, widest = max(there, key=itemgetter(1))
            _, _, share = name.partition(":")
            if widest:
                call_s = self.call(role, name, len(there), widest, fed)
            yield base_name(name), (float(share) if share else 1.0) * call_s * bool(widest or share)
            fed += widest


def time_operations(world: LiveWorld, beside: Expectation, *, batch: int) -> list[Timed]:
    """What the rowwise operations of the run just done took, at the machine's speed of the moment.

    Left out is what followed a prefill, as in `calibrate.observations`.

    Args:
        world: After a run.
        beside: The profile.
        batch: Rows served at once.
    """
    timings = world.timings()
    done = [each for device in world.devices for each in _done(device)]
    likes = {each.operation.kind: each.operation.like for each in done}
    surroundings = Surroundings(beside, timings, likes)
    return [
        _timed(each, surroundings, batch)
        for each in sorted(done, key=lambda d: d.timing.submit_s)
        if not surroundings.followed_prefill(each.timing)
    ]


def at_usual_speed(timings: Iterable[Timed], drift: float) -> list[Timed]:
    """Operations at the speed of a machine that is not `drift` times as slow; `MOST_KEPT` of a kind."""
    by_kind: dict[str, list[Timed]] = {}
    for timed in timings:
        by_kind.setdefault(timed.kind, []).append(_scaled(timed, drift))
    return [timed for found in by_kind.values() for timed in _spread(found, MOST_KEPT)]


def _scaled(timed: Timed, drift: float) -> Timed:
    def usual(seconds: float) -> float:
        return round(seconds / drift, DIGITS)

    return timed._replace(
        lead_s=timed.lead_s if timed.lead_s < 0.0 else usual(timed.lead_s),
        work_s=usual(timed.work_s),
        report_s=usual(timed.report_s),
        idle_s=usual(timed.idle_s),
        mark_s=timed.mark_s if timed.mark_s < 0.0 else usual(timed.mark_s),
        steps=tuple(
            step._replace(expected_s=round(step.expected_s, DIGITS), seconds=usual(step.seconds))
            for step in timed.steps
        ),
    )


def _done(device: LiveDevice) -> Iterator[_Done]:
    """The finished rowwise operations of a device: it notes their times and their replies in one order."""
    kinds = {operation.kind for operation, _, _ in device.decisions}
    timings = [timing for timing in device.timings if timing.operation in kinds]
    for (operation, replies, _), timing in zip(device.decisions, timings, strict=True):
        index = operation.reply._fields.index("work")
        yield _Done(operation, tuple(reply[index] for reply in replies), timing)


class Surroundings:
    """What went on around the operations of a run.

    Args:
        beside: The profile.
        timings: All operations, in order of their starts.
        likes: Kind of rowwise operations to the built-in one they are like.
    """

    def __init__(self, beside: Expectation, timings: Sequence[Timing], likes: Mapping[str, str]) -> None:
        self.beside = beside
        self.likes = likes
        news = [(t.arrival_s, t.operation == "prefill") for t in timings]
        news += [(t.mark_s, False) for t in timings if t.mark_s is not None]
        self._news = sorted(news)
        self._heard = [at for at, _ in self._news]
        self._by_device: dict[str, list[Timing]] = {}
        for timing in timings:
            self._by_device.setdefault(timing.device, []).append(timing)
        self._ends = {name: [t.end_s for t in found] for name, found in self._by_device.items()}

    def followed_prefill(self, timing: Timing) -> bool:
        """Whether the policy had just heard of a prefill, or of nothing yet."""
        index = bisect_right(self._heard, timing.submit_s)
        return index == 0 or self._news[index - 1][1]

    def lead_s(self, timing: Timing) -> float:
        """Seconds from the report or the mark that the policy acted on; -1 if it waited for other work."""
        index = bisect_right(self._heard, timing.submit_s)
        return -1.0 if timing.queued else timing.start_s - self._heard[index - 1]

    def idle_s(self, timing: Timing) -> float:
        """How long its device did nothing before."""
        ends = self._ends[timing.device]
        index = bisect_right(ends, timing.start_s)
        return timing.start_s - ends[index - 1] if index else 0.0

    def full_s(self, timing: Timing, start_s: float, end_s: float) -> float:
        """A stretch of an operation in seconds of work at full rate."""
        work, role = end_s - start_s, role_of(timing.device)
        like = self.likes.get(timing.operation, timing.operation)
        for name, found in self._by_device.items():
            if role_of(name) == role:
                continue
            for other in found[bisect_right(self._ends[name], start_s) :]:
                if other.start_s >= end_s:
                    break
                theirs = self.likes.get(other.operation, other.operation)
                slowdown = self.beside.slowdown(role, like, role_of(name), theirs)
                shared = min(end_s, other.end_s) - max(start_s, other.start_s)
                work -= shared * (1.0 - 1.0 / slowdown)
        return work


def role_of(device: str) -> RoleName:
    """The role of a device by its name."""
    return "target" if device == "target" else "draft"


def _timed(done: _Done, around: Surroundings, batch: int) -> Timed:
    operation, timing = done.operation, done.timing
    role = role_of(timing.device)
    return Timed(
        kind=operation.kind,
        role=role,
        like=operation.like,
        batch=batch,
        rows=timing.rows,
        tokens=sum(tokens for row in done.work for _, tokens in row),
        lead_s=around.lead_s(timing),
        work_s=around.full_s(timing, timing.start_s, timing.end_s),
        report_s=timing.report_overhead_s,
        idle_s=around.idle_s(timing),
        steps=tuple(
            StepTotal(name, calls, expected_s, seconds)
            for name, (calls, expected_s, seconds) in _steps(done, around, role).items()
        ),
        mark_s=_mark_s(operation, timing),
    )


def _mark_s(operation: Rowwise, timing: Timing) -> float:
    """Seconds from the end of the step that an operation announces after to the policy's hearing of it."""
    if timing.mark_s is None:
        return -1.0
    ends = [step.end_s for step in timing.steps if base_name(step.name) == operation.announced_after]
    return max(0.0, timing.mark_s - max(ends, default=timing.start_s))


def _steps(done: _Done, around: Surroundings, role: RoleName) -> dict[str, tuple[int, float, float]]:
    """Steps that the work names, by name: how many, seconds expected and seconds taken of all of them."""
    taken: dict[str, float] = {}
    for step in done.timing.steps:
        name = base_name(step.name)
        taken[name] = taken.get(name, 0.0) + around.full_s(done.timing, step.start_s, step.end_s)
    found: dict[str, tuple[int, float, float]] = {}
    for name, seconds in around.beside.steps(role, done.work, done.timing.context):
        calls, expected_s, _ = found.get(name, (0, 0.0, 0.0))
        found[name] = (calls + 1, expected_s + seconds, taken.get(name, 0.0))
    return found


def _spread(found: Sequence[_Item], most: int) -> list[_Item]:
    """At most so many of a sequence, evenly spread."""
    if len(found) <= most:
        return list(found)
    return [found[i * len(found) // most] for i in range(most)]


def drift_of(timings: Sequence[Timing], profile: Profile, *, sampled: bool) -> float:
    """How much longer plain decoding took than the profile says; 1 where nothing tells.

    Args:
        timings: Of a run of it.
        profile: What it was expected to take.
        sampled: Whether it was at a temperature above 0.
    """
    beside, ratios = Expectation(profile), []
    for seen in observe(timings):
        host = profile.host.of(seen.operation, sampled=sampled)
        expected = sum(
            beside.call(seen.device, step.kind, step.rows, step.width, step.context) for step in seen.steps
        )
        tokens = sum(step.tokens for step in seen.steps)
        sample = Sample(
            run=None,
            rows=seen.rows,
            calls=len(seen.steps),
            tokens=tokens,
            lead_s=seen.lead_s,
            work_s=seen.work_s,
            report_s=seen.report_s,
            idle_s=seen.idle_s,
            expected_s=expected,
        )
        took = seen.lead_s + seen.work_s + seen.report_s
        ratios.append(took / (waited(host, sample) + predicted(host, sample)))
    return trimmed_mean(ratios) if ratios else 1.0
