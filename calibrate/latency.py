"""Measure the latency grids of a pair on its devices.

Every repetition visits all points in a new random order, a target point and a draft point in turn, so that
a drift of the machine's speed is spread over the whole grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np

from hardware_profiles.costs import LEVELS, Axis, GridCost, InterpolationError, Point, Quantiles
from hardware_profiles.latency import held_out_error

WARM = 2
"""Samples taken per visit, after the first, which finds cold caches and freshly made tensors."""

Timer: TypeAlias = Callable[[str, str, dict[str, int], int], list[float]]
"""(device, kind, shape, repeats) to seconds of each repetition; kind: `forward`, `tree` or `prefill`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of one operation.

    Attributes:
        operation: As in the profile, e.g. `target.forward`.
        axes: Its axes.
        values: Grid values per axis.
        held_out: Further points, measured but kept out of the grid, that tell the interpolation error.
    """

    operation: str
    axes: tuple[Axis, ...]
    values: tuple[tuple[int, ...], ...]
    held_out: tuple[tuple[int, ...], ...] = ()

    @property
    def points(self) -> list[tuple[int, ...]]:
        """All points to measure, grid first."""
        return [*product(*self.values), *self.held_out]

    @property
    def device(self) -> str:
        """`target` or `draft`."""
        return self.operation.split(".")[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how often.

    Attributes:
        grids: Grids of all operations.
        repeats: Repetitions of each point.
        overlap_repeats: Repetitions of each overlap measurement.
    """

    grids: tuple[Grid, ...]
    repeats: int
    overlap_repeats: int


def plan(*, quick: bool) -> Plan:
    """The grids of a calibration; `quick` covers batch 1 only and repeats less."""
    batch = (1,) if quick else (1, 2, 4, 8, 16)
    width = (1, 2, 3, 4, 5, 6, 8, 12)
    context = (48, 240) if quick else (32, 128, 288)
    trees = (1, 2, 4, 8, 12, 16, 24, 32, 48) if quick else (1, 2, 4, 8, 12, 16, 24, 32, 48, 96, 192, 384, 512)
    prompt = (16, 64, 128) if quick else (16, 64, 128, 256)
    prefill_batch = (1,) if quick else (1, 4)
    forward: tuple[Axis, ...] = ("batch", "new_tokens", "context")
    prefill: tuple[Axis, ...] = ("batch", "new_tokens")
    held_forward: tuple[tuple[int, ...], ...] = ((1, 7, 96), (1, 10, 180), (1, 1, 180), (1, 5, 96))
    if not quick:
        held_forward += ((3, 3, 96), (6, 5, 200), (12, 2, 64), (3, 7, 180))
    held_tree = ((3, 96), (10, 180), (20, 96), (40, 180))
    return Plan(
        grids=(
            Grid("target.forward", forward, (batch, width, context), held_forward),
            Grid("target.prefill", prefill, (prefill_batch, prompt)),
            Grid("draft.forward", forward, (batch, width, context), held_forward),
            Grid("draft.prefill", prefill, (prefill_batch, prompt)),
            Grid("draft.tree", ("branches", "context"), (trees, context), held_tree),
        ),
        repeats=5 if quick else 7,
        overlap_repeats=15 if quick else 30,
    )


@dataclass
class Samples:
    """Seconds measured per operation and point."""

    by_point: dict[tuple[str, tuple[int, ...]], list[float]] = field(default_factory=dict)

    def add(self, operation: str, at: tuple[int, ...], seconds: float) -> None:
        """One more sample."""
        self.by_point.setdefault((operation, at), []).append(seconds)

    def point(self, operation: str, at: tuple[int, ...]) -> Point:
        """Mean and quantiles of a point, stragglers trimmed (see `robust`)."""
        kept = robust(np.array(self.by_point[operation, at]))
        return Point(
            at=at,
            mean_s=float(kept.mean()),
            quantiles_s=quantiles(kept),
            samples=len(kept),
        )


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
    plan: Plan, timer: Timer, *, seed: int, progress: Callable[[int, int], None]
) -> dict[str, GridCost]:
    """Measure all grids of a plan.

    Args:
        plan: What to measure.
        timer: Times one shape on one device.
        seed: Keys the order of the points.
        progress: Called with (visits done, visits in all).
    """
    samples = Samples()
    random = np.random.default_rng(seed)
    todo = [(grid, at) for grid in plan.grids for at in grid.points]
    total, done = len(todo) * plan.repeats, 0
    for _ in range(plan.repeats):
        target = [t for t in todo if t[0].device == "target"]
        draft = [t for t in todo if t[0].device == "draft"]
        random.shuffle(target)
        random.shuffle(draft)
        for grid, at in _alternate(target, draft):
            for seconds in _visit(grid, at, timer):
                samples.add(grid.operation, at, seconds)
            done += 1
            progress(done, total)
    return {grid.operation: _cost(grid, samples) for grid in plan.grids}


def _visit(grid: Grid, at: tuple[int, ...], timer: Timer) -> list[float]:
    """Samples of one visit, warm; what waking up costs in real rounds is charged per operation
    (`calibrate.overheads.measure_host`).
    """
    kind = grid.operation.split(".")[1]
    return timer(grid.device, kind, shape_of(grid, at), 1 + WARM)[1:]


Visit: TypeAlias = tuple[Grid, tuple[int, ...]]


def _alternate(first: list[Visit], second: list[Visit]) -> list[Visit]:
    """Both lists merged so that members of the shorter are spread evenly between the other's."""
    keyed = [((i + 0.5) / len(items), item) for items in (first, second) for i, item in enumerate(items)]
    return [item for _, item in sorted(keyed, key=lambda pair: pair[0])]


def _cost(grid: Grid, samples: Samples) -> GridCost:
    cost = GridCost(
        axes=grid.axes, points=tuple(samples.point(grid.operation, at) for at in product(*grid.values))
    )
    if not grid.held_out:
        return cost
    error: InterpolationError = held_out_error(
        cost, [samples.point(grid.operation, at) for at in grid.held_out]
    )
    return cost.model_copy(update={"interpolation_error": error})
