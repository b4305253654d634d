"""Measurements on idle workers: latency grids, messages, and what two busy devices cost each other.

Every repetition of the grids visits all points in a new random order, a target point and a draft point
alternately, so that a drift of the machine's speed is spread over the whole grid.  How much it drifted is
kept: the mean speed of each repetition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from calibrate.journal import Journal, Json
from calibrate.live.transport.world import LiveWorld
from calibrate.live.wire import Echo, Probe
from calibrate.plan import Grid, Plan
from hardware_profiles.profile import Overlap
from hardware_profiles.surface import (
    LEVELS,
    GridCost,
    Point,
    Quantiles,
    RoleName,
    held_out_error,
)
from policies.protocols import Steps

WARM = 2
"""Samples taken per visit, after the first, which finds cold caches and freshly made tensors."""
SLOW_S = 0.2
"""A point whose visit takes longer is visited in every second repetition only."""
VERY_SLOW_S = 1.0
"""A point whose visit takes longer is visited in every third repetition only."""
GRIDS_STAGE = "grids"
"""Under which the journal keeps repetitions."""

Timer: TypeAlias = Callable[[str, str, dict[str, int], int], list[float]]
"""(device, kind, shape, repeats) to seconds of each repetition; kind: `forward`, `tree` or `prefill`."""
Place: TypeAlias = tuple[str, tuple[int, ...]]
"""Operation and coordinates."""
Visit: TypeAlias = tuple[Grid, tuple[int, ...]]
Repetition: TypeAlias = dict[Place, list[float]]
"""Seconds measured at every point that was visited."""


class Samples:
    """Seconds measured per operation and point, repetition by repetition, in the order of measuring."""

    def __init__(self, repetitions: Sequence[Repetition]) -> None:
        self.repetitions = list(repetitions)

    def at(self, operation: str, at: tuple[int, ...]) -> np.ndarray:
        """All samples of a point, stragglers left out (see `robust`)."""
        samples = [s for repetition in self.repetitions for s in repetition.get((operation, at), [])]
        return robust(np.array(samples))

    def point(self, operation: str, at: tuple[int, ...]) -> Point:
        """Mean and quantiles of a point."""
        kept = self.at(operation, at)
        return Point(at=at, mean_s=float(kept.mean()), quantiles_s=quantiles(kept), samples=len(kept))

    def block_factors(self, operation: str) -> tuple[float, ...]:
        """How long the operation took in each repetition, relative to all of them; the mean is 1.

        The median over the points visited every time, so that a single interruption does not count.
        """
        places = [place for place in self.repetitions[0] if place[0] == operation]
        places = [place for place in places if all(place in r for r in self.repetitions)]
        if not places or len(self.repetitions) < 2:
            return ()
        means = np.array([[np.median(r[place]) for place in places] for r in self.repetitions])
        factors = np.median(means / means.mean(axis=0), axis=1)
        return tuple(float(f) for f in factors / factors.mean())


def quantiles(samples: np.ndarray) -> Quantiles:
    """Quantiles at `LEVELS`."""
    values: Quantiles = tuple(np.quantile(samples, LEVELS).tolist())
    return values


def robust(samples: np.ndarray) -> np.ndarray:
    """Samples without stragglers: those a quarter above the median, where another process had the core.

    A shared machine interrupts; keeping such samples would make the mean of a few repetitions a lottery.
    """
    return samples[samples <= 1.25 * np.median(samples)]


def shape_of(grid: Grid, at: Sequence[int]) -> dict[str, int]:
    """A point as a probe's shape; a prefill is a forward from an empty cache."""
    shape: dict[str, int] = dict(zip(grid.axes, at, strict=True))
    shape.setdefault("context", 0)
    return shape


def measure_grids(
    plan: Plan,
    timer: Timer,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    journal: Journal | None = None,
) -> dict[str, GridCost]:
    """Measure all grids of a plan; the journal keeps every repetition, `progress` hears of visits done."""
    journal = journal or Journal()
    todo: list[Visit] = [(grid, at) for grid in plan.grids for at in grid.points]
    total, done = len(todo) * plan.repeats, 0
    repetitions: list[Repetition] = []
    for number in range(plan.repeats):
        due = [visit for visit in todo if number % _stride(visit, repetitions) == 0]
        done += len(todo) - len(due)
        if not journal.has(GRIDS_STAGE, number):
            visits = []
            for grid, at in _shuffled(due, seed, number):
                visits.append([grid.operation, list(at), visit_point(grid, at, timer)])
                done += 1
                progress(done, total)
            journal.put(visits, GRIDS_STAGE, number)
        else:
            done += len(due)
            progress(done, total)
        kept = journal.get(GRIDS_STAGE, number)
        repetitions.append({(operation, tuple(at)): seconds for operation, at, seconds in kept})
    samples = Samples(repetitions)
    return {grid.operation: _cost(grid, samples) for grid in plan.grids}


def visit_point(grid: Grid, at: tuple[int, ...], timer: Timer) -> list[float]:
    """Samples of one visit, warm; what waking up costs in real rounds is charged per operation
    (`calibrate.hostfit.fit_host`).
    """
    kind = grid.operation.split(".")[1]
    return timer(grid.device, kind, shape_of(grid, at), 1 + WARM)[1:]


def _stride(visit: Visit, before: Sequence[Repetition]) -> int:
    """A point is visited in every `stride`-th repetition, by what its first visit took."""
    if not before:
        return 1
    grid, at = visit
    seconds = sum(before[0][grid.operation, at])
    return 1 if seconds <= SLOW_S else 2 if seconds <= VERY_SLOW_S else 3


def _shuffled(visits: Sequence[Visit], seed: int, repetition: int) -> list[Visit]:
    """Visits in random order, those of the device with fewer spread evenly between the other's.

    The order of a repetition is its own.
    """
    random = np.random.default_rng([seed, repetition])
    keyed: list[tuple[float, Visit]] = []
    for device in ("target", "draft"):
        own = [visit for visit in visits if visit[0].device == device]
        keyed += [((i + 0.5) / len(own), own[j]) for i, j in enumerate(random.permutation(len(own)))]
    return [visit for _, visit in sorted(keyed, key=lambda pair: pair[0])]


def _cost(grid: Grid, samples: Samples) -> GridCost:
    cost = GridCost(
        axes=grid.axes,
        points=tuple(samples.point(grid.operation, at) for at in product(*grid.values)),
        block_factors=samples.block_factors(grid.operation),
    )
    if not grid.held_out:
        return cost
    error = held_out_error(cost, [samples.point(grid.operation, at) for at in grid.held_out])
    return cost.but(interpolation_error=error)


TURN = Probe("forward", new_tokens=1, context=128, repeats=3, warmup=0)
"""What the draft does between two repetitions of a target's probe."""
NEIGHBOUR_REPEATS = 100_000
"""More repetitions than any neighbour lasts: it is stopped when the measured one is done."""
HEAD_START_S = 0.002
OVERLAP_STAGE = "overlap"
"""Under which the journal keeps repetitions."""


def ask(world: LiveWorld, device: str, message: Any) -> Any:
    """Submit one calibration message and wait for its answer."""
    answers: list[Any] = []

    def steps() -> Steps:
        answers.append((yield getattr(world, device).submit(message)))

    world.run(steps())
    return answers[0]


def time_shape(world: LiveWorld, device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
    """Seconds of `repeats` forwards of a shape (a `calibrate.measure.Timer`).

    A draft's steps follow each other, and so do its repetitions here.  A target's verifications wait for
    their turn: between its repetitions the draft takes a few steps, as in a round.
    """
    once = Probe(step=kind, repeats=1, warmup=0, **shape)  # type: ignore[arg-type]
    if device == "draft":
        return list(ask(world, device, replace(once, repeats=repeats)).durations_s)
    durations: list[float] = []
    for _ in range(repeats):
        durations += ask(world, device, once).durations_s
        ask(world, "draft", TURN)
    return durations


def message_latency(world: LiveWorld, device: str, count: int) -> list[float]:
    """Half a round trip of `count` messages, s."""
    samples = []
    for _ in range(count):
        world.clear_records()
        ask(world, device, Echo())
        timing = world.timings()[-1]
        samples.append((timing.arrival_s - timing.submit_s) / 2)
    return samples


class OverlapCase(NamedTuple):
    """A device's operation, and what the other does over and over meanwhile."""

    device: RoleName
    probe: Probe
    neighbour: Probe

    @property
    def other(self) -> RoleName:
        """The other device."""
        return "draft" if self.device == "target" else "target"


def overlap_cases() -> list[OverlapCase]:
    """The shapes of a typical round at lookahead 4 and fan-out 3.

    A target verifies or, after a miss, decodes beside a draft that goes on (PEARL); it verifies beside the
    draft's tree (SSD).
    """
    verify = Probe("forward", new_tokens=5, context=128, repeats=3, warmup=0)
    decode = replace(verify, new_tokens=1)
    step = Probe("forward", new_tokens=1, context=128, repeats=20, warmup=0)
    tree = Probe("tree", branches=15, context=128, repeats=20, warmup=0)
    verifying, stepping, growing = (replace(p, repeats=NEIGHBOUR_REPEATS) for p in (verify, step, tree))
    return [
        OverlapCase("target", verify, stepping),
        OverlapCase("target", decode, stepping),
        OverlapCase("target", verify, growing),
        OverlapCase("draft", tree, verifying),
        OverlapCase("draft", step, verifying),
    ]


def measure_overlap(
    world: Callable[[], LiveWorld],
    repeats: int,
    progress: Callable[[int, int], None],
    journal: Journal | None = None,
) -> list[Overlap]:
    """Slow-down of each pair of operations: seconds with a busy neighbour over those without, interleaved.

    The world is asked for when something is to be measured; the journal keeps every repetition.
    """
    journal = journal or Journal()
    cases = overlap_cases()
    repetitions: list[Json] = []

    def once() -> Json:
        return [
            [list(ask(world(), case.device, case.probe).durations_s), _beside(world(), case)]
            for case in cases
        ]

    for number in range(repeats):
        repetitions.append(journal.once(once, OVERLAP_STAGE, number))
        progress(number + 1, repeats)
    return slowdowns(cases, repetitions)


def slowdowns(cases: Sequence[OverlapCase], repetitions: Sequence[Sequence[Sequence[Any]]]) -> list[Overlap]:
    """One entry per pair of operations: the geometric mean over its cases of a ratio of medians.

    `repetitions`: per repetition and case, (seconds alone, seconds beside the neighbour).
    """
    ratios: dict[tuple[RoleName, str, RoleName, str], list[float]] = defaultdict(list)
    for index, case in enumerate(cases):
        alone, beside = (np.median([s for each in repetitions for s in each[index][i]]) for i in (0, 1))
        pair = (case.device, case.probe.step, case.other, case.neighbour.step)
        ratios[pair].append(float(beside / alone))
    return [
        Overlap(
            device=device,
            operation=operation,  # type: ignore[arg-type]
            while_busy=other,
            while_operation=other_operation,  # type: ignore[arg-type]
            slowdown=max(0.5, float(np.exp(np.mean(np.log(values))))),
        )
        for (device, operation, other, other_operation), values in ratios.items()
    ]


def _beside(world: LiveWorld, case: OverlapCase) -> list[float]:
    """Seconds of the measured probe beside its neighbour."""
    durations: list[float] = []

    def steps() -> Steps:
        neighbour = getattr(world, case.other).submit(case.neighbour)
        # Its first forward runs before the measured one starts: let it get going.
        yield world.environment.timeout(HEAD_START_S)
        result = yield getattr(world, case.device).submit(case.probe)
        neighbour.stop()
        yield neighbour
        durations.extend(result.durations_s)

    world.run(steps())
    return durations
