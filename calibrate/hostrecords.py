"""What the operations of live runs took, as the fits of host time need it and the journal keeps it.

`observe` keeps a run's operations with their forwards. `time_operations` keeps those that are replayed
from recorded replies, beside a profile, with two things taken out of every duration that a simulation adds
itself:

- *the neighbour*: where the other device was busy, time counts by the profile's slow-downs, so that what is
  left is work at full rate;
- *the day*: plain decoding runs before and after each timed run, and what it takes over what the profile says
  of it divides all durations.  Such machines drift by a tenth within an hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from calibrate.journal import Json
from calibrate.live.transport.device import Timing
from calibrate.live.transport.world import LiveWorld
from calibrate.live.wire import StepTime
from hardware_profiles.optime import HostOperation, OperationHost, StepTotal, Timed, base_name, share_of
from hardware_profiles.profile import Profile
from hardware_profiles.surface import OPERATIONS, FloatArray, Forward, LatencySurface, OperationCost, RoleName
from policies.operation import RowOperation, Work, row_calls
from policies.protocols import role_of
from policies.registry import Settings, configure, find_policy

MOST_KEPT = 400
"""Operations of a kind that are kept of a run, evenly spread over it."""
DIGITS = 7
"""Seconds are kept to a tenth of a microsecond."""
_FORWARDS: Mapping[tuple[RoleName, str], Forward] = {
    (role, kind): forward for (role, forward), kinds in OPERATIONS.items() for kind in kinds
}
_Item = TypeVar("_Item")


class Step(NamedTuple):
    """One forward of an operation: `width` new tokens (or branches) in each row.

    `context` is what a row's cache held before (the mean, where rows differ); `tokens` leaves padding out.
    """

    kind: Forward
    rows: int
    width: int
    context: float
    tokens: int


class Observation(NamedTuple):
    """One operation of a live run with its forwards; seconds as those of `Timed`, as they passed.

    Attributes:
        operation: What it was; a verification of nothing is a `decode`.
        beside_s: Seconds of its work in which the other device worked, by what that did.
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

    def in_usual(self, weather: float) -> Observation:
        """See `LiveRecord.in_usual`; a lead below 0 is not known."""
        return self._replace(
            lead_s=self.lead_s / weather,
            work_s=self.work_s / weather,
            report_s=self.report_s / weather,
            idle_s=self.idle_s / weather,
            beside_s={kind: seconds / weather for kind, seconds in self.beside_s.items()},
        )


class LiveRecord(NamedTuple):
    """One live run, as far as a calibration keeps it: tokens emitted, seconds of decoding.

    Prefills are not among the observations; `overlap_s` is how long both devices worked, `began_s` the Unix
    time of its start.
    """

    settings: Settings
    batch: int
    requests: tuple[int, ...]
    repeat: int
    tokens: int
    seconds: float
    observations: tuple[Observation, ...]
    overlap_s: float = 0.0
    began_s: float = 0.0

    @property
    def place(self) -> str:
        """A calibration runs in one."""
        return ""

    @property
    def alone(self) -> bool:
        """Whether the devices take turns by the policy's design."""
        return find_policy(self.settings.policy).collocated

    def in_usual(self, weather: float) -> LiveRecord:
        """The run as it would have been on a machine that is not `weather` times as slow."""
        return self._replace(
            seconds=self.seconds / weather,
            overlap_s=self.overlap_s / weather,
            observations=tuple(seen.in_usual(weather) for seen in self.observations),
        )


def to_json(record: LiveRecord) -> Json:
    """A run as plain values."""
    names = ("policy", "knobs", "temperature", "top_p", "seed")
    return {**record._asdict(), "settings": {name: getattr(record.settings, name) for name in names}}


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


def observe(timings: Sequence[Timing]) -> list[Observation]:
    """The operations of a run whose start and surroundings are known, prefills left out.

    Left out, too, is what waited for other work on its device, and what followed a prefill.
    """
    around = Surroundings(timings)
    return [
        Observation(
            operation=_operation(timing),
            device=role_of(timing.device),
            rows=timing.rows,
            lead_s=around.lead_s(timing),
            work_s=timing.end_s - timing.start_s,
            report_s=timing.report_overhead_s,
            idle_s=around.idle_s(timing),
            beside_s=around.beside_s(timing),
            steps=_steps(timing),
        )
        for timing in sorted(timings, key=lambda t: t.submit_s)
        if not (timing.operation == "prefill" or timing.queued or timing.start_s < 0)
        and not around.followed_prefill(timing)
    ]


def _operation(timing: Timing) -> HostOperation:
    decode = timing.operation == "verify" and all(step.width == 1 for step in timing.steps)
    return cast("HostOperation", "decode" if decode else timing.operation)


def _kind(step: StepTime) -> Forward:
    return "tree" if step.name == "tree" else "forward"


def _steps(timing: Timing) -> tuple[Step, ...]:
    """Forwards with the context that each found: the committed text but its last token, then what was fed."""
    context, steps = timing.context - 1, []
    for step in timing.steps:
        steps.append(Step(_kind(step), step.rows, step.width, context, step.tokens))
        context += step.width
    return tuple(steps)


class Tables:
    """Seconds of forwards by context, looked up once per shape: a run has tens of thousands of steps."""

    def __init__(self, grids: Mapping[Any, OperationCost]) -> None:
        self._surfaces = {str(name): LatencySurface(cost) for name, cost in grids.items()}
        self._tables: dict[tuple[str, int, int], FloatArray] = {}

    def seconds(self, device: str, step: Step) -> float:
        """What the grids say of one forward.

        Raises:
            ValueError: They say nothing of its kind.
        """
        name, context, rows, width = f"{device}.{step.kind}", round(step.context), step.rows, step.width
        surface = self._surfaces.get(name)
        if surface is None:
            raise ValueError(
                f"there is no {name} beside which steps could be timed; record decisions alone with --untimed"
            )
        if step.kind == "tree" and "batch" not in surface.axes:  # of the branches of all rows together
            rows, width = 1, width * rows
        if len(self._tables.get((name, rows, width), ())) <= context:
            shape = {"branches" if step.kind == "tree" else "new_tokens": width}
            upto = max(1023, 2 * context)
            self._tables[name, rows, width] = surface.along("context", upto, batch=rows, **shape)
        return float(self._tables[name, rows, width][context])


class Expectation(Tables):
    """What a profile says of operations: seconds of forwards, and of what neighbours cost each other."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.operations)
        self.profile = profile

    def slowdown(self, role: RoleName, like: str, other: RoleName, other_like: str) -> float:
        """How much longer an operation takes while the other device does another."""
        mine = _FORWARDS.get((role, like))
        if mine is None or role == other:
            return 1.0
        return self.profile.slowdown(f"{role}.{mine}", _FORWARDS.get((other, other_like)))  # type: ignore[arg-type]

    def steps(self, role: RoleName, work: Sequence[Work], context: float) -> Iterator[tuple[str, float]]:
        """(name, seconds) of the steps of an operation by its rows' work; 0 s for what calls no model.

        As `simulator.costs.ProfileCosts.row_steps` says it.
        """
        fed, call_s = int(context), 0.0
        for name, rows, widest in row_calls(work):
            share = share_of(name)
            if widest:
                kind: Forward = "tree" if role == "draft" and base_name(name) == "tree" else "forward"
                call_s = self.seconds(role, Step(kind, rows, widest, fed, rows * widest))
            part = float(widest > 0) if share is None else share
            yield base_name(name), part * call_s
            fed += widest


class Surroundings:
    """What went on around the operations of a run."""

    def __init__(self, timings: Sequence[Timing]) -> None:
        news = [(t.arrival_s, t.operation == "prefill") for t in timings]
        news += [(t.early_s, False) for t in timings if t.early_s is not None]
        self._news = sorted(news)
        self._heard = [at for at, _ in self._news]
        self._by_device: dict[str, list[Timing]] = defaultdict(list)
        for timing in sorted(timings, key=lambda t: t.start_s):
            self._by_device[timing.device].append(timing)
        self._ends = {name: [t.end_s for t in own] for name, own in self._by_device.items()}

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

    def beside_s(self, timing: Timing) -> dict[Forward, float]:
        """Seconds of an operation in which each kind of the other device's work went on, but no prefill.

        An operation is what its current step is, up to the next one's start.
        """
        seconds: dict[Forward, float] = {}
        for other in self._neighbours(timing, timing.start_s, timing.end_s):
            if other.operation == "prefill" or not other.steps:
                continue
            starts = [other.start_s, *(step.start_s for step in other.steps[1:]), other.end_s]
            for step, start, end in zip(other.steps, starts[:-1], starts[1:], strict=True):
                shared = min(timing.end_s, end) - max(timing.start_s, start)
                if shared > 0.0:
                    seconds[_kind(step)] = seconds.get(_kind(step), 0.0) + shared
        return seconds

    def full_s(
        self, timing: Timing, start_s: float, end_s: float, slowdown: Callable[[Timing, Timing], float]
    ) -> float:
        """A stretch of an operation in seconds of work at full rate, by what its neighbours cost it."""
        work = end_s - start_s
        for other in self._neighbours(timing, start_s, end_s):
            shared_s = min(end_s, other.end_s) - max(start_s, other.start_s)
            work -= shared_s * (1.0 - 1.0 / slowdown(timing, other))
        return work

    def _neighbours(self, timing: Timing, start_s: float, end_s: float) -> Iterator[Timing]:
        """The operations of the other role during a stretch of one."""
        for name, timings in self._by_device.items():
            if role_of(name) == role_of(timing.device):
                continue
            for other in timings[bisect_right(self._ends[name], start_s) :]:
                if other.start_s >= end_s:
                    break
                yield other


def time_operations(world: LiveWorld, beside: Expectation, *, batch: int) -> list[Timed]:
    """What the row operations of the run just done took at full rate; not of those after a prefill."""
    done: list[tuple[RowOperation, tuple[Any, ...], Timing]] = []
    for device in world.devices:
        kinds = {operation.kind for operation, _, _ in device.replies}
        timings = [timing for timing in device.timings if timing.operation in kinds]
        # A device notes times and replies in one order.
        done += [
            (operation, replies, timing)
            for (operation, replies, _), timing in zip(device.replies, timings, strict=True)
        ]
    classes: dict[str, str] = {operation.kind: operation.cost_class for operation, _, _ in done}
    around = Surroundings(world.timings())

    def slowdown(*pair: Timing) -> float:
        mine, other = ((role_of(t.device), classes.get(t.operation, t.operation)) for t in pair)
        return beside.slowdown(*mine, *other)

    timed = []
    for operation, replies, timing in sorted(done, key=lambda each: each[2].submit_s):
        if around.followed_prefill(timing):
            continue
        work: list[Work] = [reply.work for reply in replies]
        taken: dict[str, float] = defaultdict(float)
        for step in timing.steps:
            taken[base_name(step.name)] += around.full_s(timing, step.start_s, step.end_s, slowdown)
        totals: dict[str, StepTotal] = {}
        for name, seconds in beside.steps(role_of(timing.device), work, timing.context):
            total = totals.get(name, StepTotal(name, 0, 0.0, taken[name]))
            totals[name] = total._replace(calls=total.calls + 1, expected_s=total.expected_s + seconds)
        timed.append(
            Timed(
                kind=operation.kind,
                role=role_of(timing.device),
                cost_class=operation.cost_class,
                batch=batch,
                rows=timing.rows,
                tokens=sum(tokens for row in work for _, tokens in row),
                lead_s=around.lead_s(timing),
                work_s=around.full_s(timing, timing.start_s, timing.end_s, slowdown),
                report_s=timing.report_overhead_s,
                idle_s=around.idle_s(timing),
                steps=tuple(totals.values()),
                mark_s=_early_s(operation, timing),
            )
        )
    return timed


def _early_s(operation: RowOperation, timing: Timing) -> float:
    """Seconds from the end of the step before an early result to the policy's hearing of it; -1: none."""
    if timing.early_s is None:
        return -1.0
    ends = [step.end_s for step in timing.steps if base_name(step.name) == operation.early_after]
    return max(0.0, timing.early_s - max(ends, default=timing.start_s))


def at_usual_speed(timings: Iterable[Timed], drift: float) -> list[Timed]:
    """Operations at the speed of a machine that is not `drift` times as slow; `MOST_KEPT` of a kind."""

    def usual(seconds: float) -> float:  # below 0: not known
        return seconds if seconds < 0.0 else round(seconds / drift, DIGITS)

    by_kind: dict[str, list[Timed]] = defaultdict(list)
    for timed in timings:
        by_kind[timed.kind].append(timed)
    kept = []
    for of_kind in by_kind.values():
        most = min(len(of_kind), MOST_KEPT)
        for timed in (of_kind[i * len(of_kind) // most] for i in range(most)):
            seconds: dict[str, Any] = {
                name: usual(getattr(timed, name))
                for name in ("lead_s", "work_s", "report_s", "idle_s", "mark_s")
            }
            steps = tuple(
                step._replace(expected_s=round(step.expected_s, DIGITS), seconds=usual(step.seconds))
                for step in timed.steps
            )
            kept.append(timed._replace(steps=steps, **seconds))
    return kept


def wait_and_work_s(host: OperationHost, seen: Observation | Timed, expected_s: float) -> tuple[float, float]:
    """Seconds of an operation by a fit, of whose forwards `expected_s` is expected: waits around it, work."""
    work = host.work_s(expected_s, rows=seen.rows, calls=seen.calls, tokens=seen.tokens, idle_s=seen.idle_s)
    return host.lead_s(seen.rows) + host.after_s(seen.tokens), work


def drift_of(timings: Sequence[Timing], profile: Profile, *, sampled: bool) -> float:
    """How much longer plain decoding took than the profile says; 1 where nothing tells."""
    beside, ratios = Expectation(profile), []
    for seen in observe(timings):
        expected_s = sum(beside.seconds(seen.device, step) for step in seen.steps)
        predicted = wait_and_work_s(profile.host.of(seen.operation, sampled=sampled), seen, expected_s)
        ratios.append((seen.lead_s + seen.work_s + seen.report_s) / sum(predicted))
    return trimmed_mean(ratios) if ratios else 1.0


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and lowest 1 %, which on a shared machine belong to other processes."""
    return float(np.mean(without_extremes(values, values)))


def without_extremes(items: Sequence[_Item], keys: Sequence[float], share: float = 0.01) -> list[_Item]:
    """Items without those of the highest and lowest keys, `share` of them on each side."""
    low, high = np.quantile(keys, [share, 1.0 - share])
    # Of two, neither lies between: both are kept.
    return [item for item, key in zip(items, keys, strict=True) if low <= key <= high] or list(items)
