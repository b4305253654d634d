"""What the operations of live runs took, as the fits of host time need it and the journal keeps it.

`reduce_run` keeps a run's operations with their forwards. `time_operations` keeps those that are replayed
from recorded replies, beside a profile, with two things taken out of every duration that a simulation adds
itself:

- *the neighbour*: where the other device was busy, time counts by the profile's slow-downs, so that what is
  left is work at full rate;
- *the day*: plain decoding runs before and after each timed run, and what it takes over what the profile says
  of it divides all durations.  Such machines drift by a tenth within an hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from calibrate.journal import Json
from calibrate.live.transport.device import LiveDevice, StepTime, Timing
from calibrate.live.transport.world import LiveWorld
from hardware_profiles.optime import HostOperation, StepTotal, Timed, base_name
from hardware_profiles.profile import Profile
from hardware_profiles.surface import OPERATIONS, FloatArray, Forward, LatencySurface, OperationCost, RoleName
from policies.operation import RowOperation, Work
from policies.registry import Settings, configure, find_policy


class Step(NamedTuple):
    """One forward of an operation.

    Attributes:
        kind: `forward` or `tree`.
        rows: Rows that took part.
        width: New tokens per row, or branches.
        context: Tokens in the cache before, per row (the mean, where rows differ).
        tokens: New tokens (or branches) of all rows, padding not counted.
    """

    kind: Forward
    rows: int
    width: int
    context: float
    tokens: int


class Observation(NamedTuple):
    """One operation of a live run.

    Attributes:
        operation: What it was; a verification of nothing is a `decode`.
        device: Who did it.
        rows: Rows that it was about.
        lead_s: From the report that the policy acted on to the start of its work.
        work_s: From start to end.
        report_s: From the end to the policy.
        idle_s: How long its device did nothing before.
        beside_s: Seconds of its work in which the other device worked, by what that did.
        steps: Its forwards.
    """

    operation: HostOperation
    device: RoleName
    rows: int
    lead_s: float
    work_s: float
    report_s: float
    idle_s: float
    beside_s: Mapping[Forward, float]
    steps: tuple[Step, ...]

    @property
    def calls(self) -> int:
        """Number of its forwards."""
        return len(self.steps)

    @property
    def tokens(self) -> int:
        """Tokens that went through its forwards, padding not counted."""
        return sum(step.tokens for step in self.steps)


class LiveRecord(NamedTuple):
    """One live run, as far as it matters here.

    Attributes:
        settings: What ran.
        batch: Rows served at once.
        requests: Ids of the requests.
        repeat: Which repetition.
        tokens: Tokens emitted.
        seconds: Decode seconds.
        observations: Its operations, prefills left out.
        overlap_s: Seconds in which both devices worked.
    """

    settings: Settings
    batch: int
    requests: tuple[int, ...]
    repeat: int
    tokens: int
    seconds: float
    observations: tuple[Observation, ...]
    overlap_s: float = 0.0

    @property
    def alone(self) -> bool:
        """Whether the devices take turns by the policy's design."""
        return find_policy(self.settings.policy).collocated


def observe(timings: Sequence[Timing]) -> list[Observation]:
    """The operations of a run whose start and surroundings are known, prefills left out.

    Left out, too, is what waited for other work on its device, and what followed a prefill.
    """
    around = Surroundings(timings)
    return [
        Observation(
            operation=_name(timing),
            device=role_of(timing.device),
            rows=timing.rows,
            lead_s=around.lead_s(timing),
            work_s=timing.end_s - timing.start_s,
            report_s=timing.report_overhead_s,
            idle_s=around.idle_s(timing),
            beside_s=_beside(timing, around),
            steps=_steps(timing),
        )
        for timing in sorted(timings, key=lambda t: t.submit_s)
        if not (timing.operation == "prefill" or timing.queued or timing.start_s < 0)
        and not around.followed_prefill(timing)
    ]


def _name(timing: Timing) -> HostOperation:
    decode = timing.operation == "verify" and all(step.width == 1 for step in timing.steps)
    return cast("HostOperation", "decode" if decode else timing.operation)


def _kind(step: StepTime) -> Forward:
    return "tree" if step.name == "tree" else "forward"


def _steps(timing: Timing) -> tuple[Step, ...]:
    """Forwards with the context that each found: the committed text but its last token, then what was fed."""
    context, found = timing.context - 1, []
    for step in timing.steps:
        found.append(Step(_kind(step), step.rows, step.width, context, step.tokens))
        context += step.width
    return tuple(found)


def _beside(timing: Timing, around: Surroundings) -> dict[Forward, float]:
    """Seconds in which each kind of the other device's work went on during an operation's, prefills left out.

    An operation is what its current step is, up to the next one's start.
    """
    found: dict[Forward, float] = {}
    for other, _ in around.beside(timing, timing.start_s, timing.end_s):
        if other.operation == "prefill" or not other.steps:
            continue
        starts = [other.start_s, *(step.start_s for step in other.steps[1:]), other.end_s]
        for step, start, end in zip(other.steps, starts[:-1], starts[1:], strict=True):
            shared = min(timing.end_s, end) - max(timing.start_s, start)
            if shared > 0.0:
                found[_kind(step)] = found.get(_kind(step), 0.0) + shared
    return found


def to_json(record: LiveRecord) -> Json:
    """A run as plain values."""
    settings = {name: getattr(record.settings, name) for name in ("policy", "knobs", *_SAMPLING)}
    return {**record._asdict(), "settings": settings}


def from_json(kept: Json) -> LiveRecord:
    """The run that `to_json` was given."""
    own: dict[str, Any] = dict(kept["settings"])
    own |= {k: tuple(v) if isinstance(v, list) else v for k, v in own.pop("knobs").items()}
    changed = {
        "settings": configure(**own),
        "requests": tuple(kept["requests"]),
        "observations": tuple(
            Observation._make([*seen[:-1], tuple(Step._make(step) for step in seen[-1])])
            for seen in kept["observations"]
        ),
    }
    return LiveRecord(**(kept | changed))


_SAMPLING = ("temperature", "top_p", "seed")
MOST_KEPT = 400
"""Operations of a kind that are kept of a run, evenly spread over it."""
DIGITS = 7
"""Seconds are kept to a tenth of a microsecond."""
_FORWARDS: Mapping[tuple[RoleName, str], Forward] = {
    (role, like): forward for (role, forward), likes in OPERATIONS.items() for like in likes
}
_Item = TypeVar("_Item")


class _Done(NamedTuple):
    """A row operation with its times and each row's work."""

    operation: RowOperation
    work: tuple[Work, ...]
    timing: Timing


class Tables:
    """Seconds of forwards by context, looked up once per shape: a run has tens of thousands of steps.

    Args:
        grids: Measured surfaces by operation.
    """

    def __init__(self, grids: Mapping[str, OperationCost]) -> None:
        self._surfaces = {name: LatencySurface(cost) for name, cost in grids.items()}
        self._tables: dict[tuple[str, int, int], FloatArray] = {}

    def seconds(self, device: str, step: Step) -> float:
        """What the grids say of one forward."""
        name, context = f"{device}.{step.kind}", round(step.context)
        key = (name, step.rows, step.width)
        if key not in self._tables or len(self._tables[key]) <= context:
            shape = {"branches" if step.kind == "tree" else "new_tokens": step.width}
            upto = max(1023, 2 * context)
            self._tables[key] = self._surfaces[name].along("context", upto, batch=step.rows, **shape)
        return float(self._tables[key][context])


class Expectation:
    """What a profile says of operations: seconds of forwards, and of what neighbours cost each other.

    Args:
        profile: Costs.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._tables = Tables({str(name): cost for name, cost in profile.operations.items()})

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

        As `simulator.costs.ProfileCosts.worked` says it.
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

    Left out is what followed a prefill, as in `calibrate.hostrecords`.

    Args:
        world: After a run.
        beside: The profile.
        batch: Rows served at once.
    """
    timings = world.timings()
    done = [each for device in world.devices for each in _done(device)]
    likes = {each.operation.kind: each.operation.cost_class for each in done}
    around = Surroundings(timings, beside, likes)
    return [
        _timed(each, around, beside, batch)
        for each in sorted(done, key=lambda d: d.timing.submit_s)
        if not around.followed_prefill(each.timing)
    ]


def at_usual_speed(timings: Iterable[Timed], drift: float) -> list[Timed]:
    """Operations at the speed of a machine that is not `drift` times as slow; `MOST_KEPT` of a kind."""
    by_kind: dict[str, list[Timed]] = {}
    for timed in timings:
        by_kind.setdefault(timed.kind, []).append(_scaled(timed, drift))
    return [found[i] for found in by_kind.values() for i in _spread(len(found))]


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
    kinds = {operation.kind for operation, _, _ in device.replies}
    timings = [timing for timing in device.timings if timing.operation in kinds]
    for (operation, replies, _), timing in zip(device.replies, timings, strict=True):
        index = operation.reply._fields.index("work")
        yield _Done(operation, tuple(reply[index] for reply in replies), timing)


class Surroundings:
    """What went on around the operations of a run.

    Args:
        timings: All operations.
        expectation: Says what neighbours cost each other, for `full_s`.
        likes: Kind of row operations to the built-in one they are like, for `full_s`.
    """

    def __init__(
        self,
        timings: Sequence[Timing],
        expectation: Expectation | None = None,
        likes: Mapping[str, str] | None = None,
    ) -> None:
        self._expectation = expectation
        self._likes = likes or {}
        news = [(t.arrival_s, t.operation == "prefill") for t in timings]
        news += [(t.early_s, False) for t in timings if t.early_s is not None]
        self._news = sorted(news)
        self._heard = [at for at, _ in self._news]
        self._by_device: dict[str, list[Timing]] = {}
        for timing in sorted(timings, key=lambda t: t.start_s):
            self._by_device.setdefault(timing.device, []).append(timing)
        self._ends = {name: [t.end_s for t in found] for name, found in self._by_device.items()}

    def followed_prefill(self, timing: Timing) -> bool:
        """Whether the policy had just heard of a prefill, or of nothing yet."""
        index = bisect_right(self._heard, timing.submit_s)
        return index == 0 or self._news[index - 1][1]

    def lead_s(self, timing: Timing) -> float:
        """Seconds from the report or early result that was acted on; -1 if it waited for other work."""
        index = bisect_right(self._heard, timing.submit_s)
        return -1.0 if timing.queued else timing.start_s - self._heard[index - 1]

    def idle_s(self, timing: Timing) -> float:
        """How long its device did nothing before."""
        ends = self._ends[timing.device]
        index = bisect_right(ends, timing.start_s)
        return timing.start_s - ends[index - 1] if index else 0.0

    def beside(self, timing: Timing, start_s: float, end_s: float) -> Iterator[tuple[Timing, float]]:
        """The operations of the other role during a stretch of one, and for how long of it each went on."""
        for name, found in self._by_device.items():
            if role_of(name) == role_of(timing.device):
                continue
            for other in found[bisect_right(self._ends[name], start_s) :]:
                if other.start_s >= end_s:
                    break
                yield other, min(end_s, other.end_s) - max(start_s, other.start_s)

    def full_s(self, timing: Timing, start_s: float, end_s: float) -> float:
        """A stretch of an operation in seconds of work at full rate."""
        assert self._expectation is not None
        work = end_s - start_s
        for other, shared_s in self.beside(timing, start_s, end_s):
            slowdown = self._expectation.slowdown(
                role_of(timing.device), self._like(timing), role_of(other.device), self._like(other)
            )
            work -= shared_s * (1.0 - 1.0 / slowdown)
        return work

    def _like(self, timing: Timing) -> str:
        return self._likes.get(timing.operation, timing.operation)


def role_of(device: str) -> RoleName:
    """The role of a device by its name."""
    return "target" if device == "target" else "draft"


def _timed(done: _Done, around: Surroundings, beside: Expectation, batch: int) -> Timed:
    operation, timing = done.operation, done.timing
    return Timed(
        kind=operation.kind,
        role=role_of(timing.device),
        like=operation.cost_class,
        batch=batch,
        rows=timing.rows,
        tokens=sum(tokens for row in done.work for _, tokens in row),
        lead_s=around.lead_s(timing),
        work_s=around.full_s(timing, timing.start_s, timing.end_s),
        report_s=timing.report_overhead_s,
        idle_s=around.idle_s(timing),
        steps=tuple(
            StepTotal(name, calls, expected_s, seconds)
            for name, (calls, expected_s, seconds) in _step_totals(done, around, beside).items()
        ),
        mark_s=_early_s(operation, timing),
    )


def _early_s(operation: RowOperation, timing: Timing) -> float:
    """Seconds from the end of the step before an early result to the policy's hearing of it."""
    if timing.early_s is None:
        return -1.0
    ends = [step.end_s for step in timing.steps if base_name(step.name) == operation.early_after]
    return max(0.0, timing.early_s - max(ends, default=timing.start_s))


def _step_totals(
    done: _Done, around: Surroundings, beside: Expectation
) -> dict[str, tuple[int, float, float]]:
    """Steps that the work names, by name: how many, seconds expected and seconds taken of all of them."""
    taken: dict[str, float] = {}
    for step in done.timing.steps:
        name = base_name(step.name)
        taken[name] = taken.get(name, 0.0) + around.full_s(done.timing, step.start_s, step.end_s)
    found: dict[str, tuple[int, float, float]] = {}
    for name, seconds in beside.steps(role_of(done.timing.device), done.work, done.timing.context):
        calls, expected_s, _ = found.get(name, (0, 0.0, 0.0))
        found[name] = (calls + 1, expected_s + seconds, taken.get(name, 0.0))
    return found


def _spread(count: int) -> list[int]:
    """At most `MOST_KEPT` of so many, evenly spread."""
    most = min(count, MOST_KEPT)
    return [i * count // most for i in range(most)]


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
        told = host.work_s(expected, rows=seen.rows, calls=seen.calls, tokens=seen.tokens, idle_s=seen.idle_s)
        took = seen.lead_s + seen.work_s + seen.report_s
        ratios.append(took / (host.lead_s(seen.rows) + told + host.after_s(seen.tokens)))
    return trimmed_mean(ratios) if ratios else 1.0


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and lowest 1 %, which on a shared machine belong to other processes."""
    return float(np.mean(without_extremes(values, values)))


def without_extremes(items: Sequence[_Item], keys: Sequence[float], share: float = 0.01) -> list[_Item]:
    """Items without those of the highest and lowest keys, `share` of them on each side."""
    low, high = np.quantile(keys, [share, 1.0 - share])
    # Of two, neither lies between: both are kept.
    return [item for item, key in zip(items, keys, strict=True) if low <= key <= high] or list(items)
