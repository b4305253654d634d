"""Measure the latency grids of a pair on its devices.

Every repetition visits all points in a new random order, a target point and a draft point in turn, so that
a drift of the machine's speed is spread over the whole grid.  How much it drifted is kept: the mean speed of
each repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from calibrate.journal import Journal, Json
from calibrate.plans import Grid, Plan
from hardware_profiles.costs import LEVELS, GridCost, InterpolationError, Point, Quantiles
from hardware_profiles.latency import held_out_error

WARM = 2
"""Samples taken per visit, after the first, which finds cold caches and freshly made tensors."""
SLOW_S = 0.2
"""A point whose visit takes longer is visited in every second repetition only."""
VERY_SLOW_S = 1.0
"""Likewise in every third one."""
STAGE = "grids"
"""Under which the journal keeps repetitions."""

Timer: TypeAlias = Callable[[str, str, dict[str, int], int], list[float]]
"""(device, kind, shape, repeats) to seconds of each repetition; kind: `forward`, `tree` or `prefill`."""
Place: TypeAlias = tuple[str, tuple[int, ...]]
"""Operation and coordinates."""
Repetition: TypeAlias = dict[Place, list[float]]
"""Seconds measured at every point that was visited."""


class Samples:
    """Seconds measured per operation and point, repetition by repetition.

    Args:
        repetitions: In the order in which they were measured.
    """

    def __init__(self, repetitions: Sequence[Repetition]) -> None:
        self.repetitions = list(repetitions)

    def at(self, operation: str, at: tuple[int, ...]) -> np.ndarray:
        """All samples of a point, stragglers left out (see `robust`)."""
        found = [s for repetition in self.repetitions for s in repetition.get((operation, at), [])]
        return robust(np.array(found))

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
    low, lower, middle, upper, high = (float(q) for q in np.quantile(samples, LEVELS))
    return low, lower, middle, upper, high


def robust(samples: np.ndarray) -> np.ndarray:
    """Samples without stragglers: those a quarter above the median, where another process had the core.

    A shared machine interrupts; keeping such samples would make the mean of a few repetitions a lottery.
    """
    return samples[samples <= 1.25 * np.median(samples)]


def shape_of(grid: Grid, at: Sequence[int]) -> dict[str, int]:
    """A point as a probe's shape; a prefill is a forward from an empty cache."""
    shape = dict(zip(grid.axes, at, strict=True))
    shape.setdefault("context", 0)
    return {str(axis): value for axis, value in shape.items()}


def measure_grids(
    plan: Plan,
    timer: Timer,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    journal: Journal | None = None,
) -> dict[str, GridCost]:
    """Measure all grids of a plan.

    Args:
        plan: What to measure.
        timer: Times one shape on one device.
        seed: Keys the order of the points, by repetition.
        progress: Called with (visits done, visits in all).
        journal: Keeps every repetition that is done; those that are there are not measured again.
    """
    journal = journal or Journal()
    todo: list[Visit] = [(grid, at) for grid in plan.grids for at in grid.points]
    total, done = len(todo) * plan.repeats, 0
    repetitions: list[Repetition] = []
    for number in range(plan.repeats):
        due = [visit for visit in todo if number % _stride(visit, repetitions) == 0]
        done += len(todo) - len(due)
        if not journal.has(STAGE, number):
            found: Repetition = {}
            for grid, at in _shuffled(due, seed, number):
                found[grid.operation, at] = _visit(grid, at, timer)
                done += 1
                progress(done, total)
            journal.put(_pack(found), STAGE, number)
        else:
            done += len(due)
            progress(done, total)
        repetitions.append(_unpack(journal.get(STAGE, number)))
    samples = Samples(repetitions)
    return {grid.operation: _cost(grid, samples) for grid in plan.grids}


Visit: TypeAlias = tuple[Grid, tuple[int, ...]]


def _visit(grid: Grid, at: tuple[int, ...], timer: Timer) -> list[float]:
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
    """Visits in random order, target and draft in turn; the order of a repetition is its own."""
    random = np.random.default_rng([seed, repetition])
    target = [visit for visit in visits if visit[0].device == "target"]
    draft = [visit for visit in visits if visit[0].device == "draft"]
    return _alternate(
        [target[i] for i in random.permutation(len(target))],
        [draft[i] for i in random.permutation(len(draft))],
    )


def _alternate(first: list[Visit], second: list[Visit]) -> list[Visit]:
    """Both lists merged so that members of the shorter are spread evenly between the other's."""
    keyed = [((i + 0.5) / len(items), item) for items in (first, second) for i, item in enumerate(items)]
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def _pack(repetition: Repetition) -> Json:
    return [[operation, list(at), seconds] for (operation, at), seconds in repetition.items()]


def _unpack(kept: Json) -> Repetition:
    return {(operation, tuple(at)): seconds for operation, at, seconds in kept}


def _cost(grid: Grid, samples: Samples) -> GridCost:
    cost = GridCost(
        axes=grid.axes,
        points=tuple(samples.point(grid.operation, at) for at in product(*grid.values)),
        block_factors=samples.block_factors(grid.operation),
    )
    if not grid.held_out:
        return cost
    error: InterpolationError = held_out_error(
        cost, [samples.point(grid.operation, at) for at in grid.held_out]
    )
    return cost.model_copy(update={"interpolation_error": error})
