"""Adaptive latency grids: their points are chosen by measuring (`calibrate --until-error`).

A tick goes where interpolation is worst, until a held-out error is small or time is spent.  A grid has to be
full, so that a new tick costs a whole layer of points.  It starts from the ends of its axes.  Probes are
measured that the grid does not know: in the middle of every interval between two ticks, with the other
coordinates all at their first ticks, all at their last and all in the centre; and at points scattered over
the whole of it, since where two axes bend each other's cost (batch and new tokens) the intervals alone do
not show it.  The worst probe becomes a tick, and the two halves get probes of their own.  The probes that are
left are the held-out points of the grid: an error found on points, not a bound on all that lies between.

What is measured on the way is thrown away, since it was measured once and in an order that favours some
points; the grids are measured anew, as always, in shuffled repetitions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Literal, TypeAlias

import numpy as np

from calibrate.journal import Journal, Json
from calibrate.live.errors import WorkerError
from calibrate.measure import Timer, visit_point
from calibrate.plan import Grid, Plan
from hardware_profiles.surface import GridCost, LatencySurface, Point

At: TypeAlias = tuple[int, ...]
Measure: TypeAlias = Callable[[At], float | None]
"""Seconds at a point; None where memory does not suffice."""
Ended: TypeAlias = Literal["error", "budget", "full"]
SCATTERED = 16
BAD_SHARE = 0.25
"""An axis whose own probes are off by this share of the worst error has to do with it."""


@dataclass(frozen=True, slots=True)
class Refined:
    """A grid whose ticks were chosen by measuring, with its held-out points.

    Attributes:
        error: Worst relative error on them; None where no interval is left to probe.
        out_of_memory: Points that were tried and did not fit.
        ended: `error`: it is under the bound; `budget`: time is spent; `full`: every integer is a tick.
    """

    grid: Grid
    error: float | None
    out_of_memory: tuple[At, ...]
    ended: Ended


def refine(grid: Grid, measure: Measure, *, until_error: float, spent: Callable[[], bool]) -> Refined:
    """Choose the ticks of a grid.

    Args:
        grid: Only the ends of its axes count.
        measure: Measures one point, each at most once.
        until_error: Stop when the worst relative error on probes is at most this.
        spent: Whether time is spent; asked before every step, the first one is always taken.

    Raises:
        ValueError: Not even the smallest point fits into memory.
    """
    seconds: dict[At, float] = {}
    too_large: list[At] = []

    def known(points: Iterable[At]) -> None:
        for at in points:
            if at in seconds or any(_beyond(at, limit) for limit in too_large):
                continue
            seconds_at = measure(at)
            if seconds_at is None:
                too_large.append(at)
            else:
                seconds[at] = seconds_at

    values = tuple(tuple(sorted({ticks[0], ticks[-1]})) for ticks in grid.values)
    while True:
        known(product(*values))
        values = fitting(values, too_large)
        known(probes(values))
        held = {at: seconds[at] for at in probes(values) if at in seconds}
        errors = held_out_errors(replace(grid, values=values), seconds, held)
        worst = max(errors.values(), default=None)
        if worst is None or worst <= until_error or spent():
            ended: Ended = "full" if worst is None else "error" if worst <= until_error else "budget"
            chosen = replace(grid, values=values, held_out=tuple(sorted(held)))
            return Refined(chosen, worst, tuple(too_large), ended)
        values = next_values(values, errors, seconds)


def probes(values: tuple[At, ...]) -> list[At]:
    """The middle of every interval, with the others at their first ticks, their last and their centres; and
    the scattered points, as far as they are not on the grid.
    """
    places = [tuple(t[0] for t in values), tuple(t[-1] for t in values), tuple(map(_centre, values))]
    points: dict[At, None] = {}
    for axis, ticks in enumerate(values):
        for low, high in pairwise(ticks):
            if (between := middle(low, high)) is not None:
                points |= dict.fromkeys((*at[:axis], between, *at[axis + 1 :]) for at in places)
    points |= dict.fromkeys(at for at in scattered(values) if _off(at, values))
    return list(points)


def scattered(values: tuple[At, ...]) -> list[At]:
    """Points evenly spread over the whole range of ratios (a Halton sequence), the same for all ticks."""
    from scipy.stats import qmc

    shares = qmc.Halton(len(values), scramble=False).random(SCATTERED + 1)[1:].tolist()
    ends = [(max(ticks[0], 1), max(ticks[-1], 1)) for ticks in values]
    return [tuple(round(a * (b / a) ** u) for (a, b), u in zip(ends, point, strict=True)) for point in shares]


def _centre(ticks: At) -> int:
    """The middle tick, or what lies between two."""
    if len(ticks) > 2:
        return ticks[len(ticks) // 2]
    between = middle(ticks[0], ticks[-1])
    return ticks[0] if between is None else between


def middle(low: int, high: int) -> int | None:
    """An integer strictly between, in the middle of the ratio: costs bend at small batches; None: none."""
    if high - low < 2:
        return None
    return min(max(round(math.sqrt(max(low, 1) * high)), low + 1), high - 1)


def next_values(
    values: tuple[At, ...], errors: Mapping[At, float], seconds: Mapping[At, float]
) -> tuple[At, ...]:
    """The ticks with one of the worst probe's coordinates added; the first of equals.

    A probe that lies off the ticks of several axes blames the one whose own probes, off its ticks alone, are
    bad, too; where none is, the one along which the cost changes most between the ticks around it.
    """
    worst = max(errors, key=lambda at: errors[at])

    def blame(axis: int) -> tuple[float, float]:
        alone = max((e for at, e in errors.items() if _off(at, values) == [axis]), default=0.0)
        own = alone if alone > BAD_SHARE * errors[worst] else 0.0
        return own, _change(values, axis, worst[axis], seconds)

    chosen = max(_off(worst, values), key=blame)
    ticks = tuple(sorted({*values[chosen], worst[chosen]}))
    return (*values[:chosen], ticks, *values[chosen + 1 :])


def _change(values: tuple[At, ...], axis: int, x: int, seconds: Mapping[At, float]) -> float:
    """Largest log ratio of the cost between the two ticks around a coordinate, on any line of the grid."""
    low = max(tick for tick in values[axis] if tick < x)
    high = min(tick for tick in values[axis] if tick > x)
    lines = product(*(ticks if i != axis else (low,) for i, ticks in enumerate(values)))
    return max(abs(math.log(seconds[*at[:axis], high, *at[axis + 1 :]] / seconds[at])) for at in lines)


def _off(at: At, values: tuple[At, ...]) -> list[int]:
    """Axes on which a point lies between ticks."""
    return [axis for axis, (x, ticks) in enumerate(zip(at, values, strict=True)) if x not in ticks]


def held_out_errors(grid: Grid, seconds: Mapping[At, float], held: Mapping[At, float]) -> dict[At, float]:
    """Relative error of the interpolation that `simulate` uses, by held-out point."""
    points = tuple(Point(at=at, mean_s=seconds[at]) for at in product(*grid.values))
    surface = LatencySurface(GridCost(axes=grid.axes, points=points))
    return {
        at: abs(surface.seconds(**dict(zip(grid.axes, at, strict=True))) - measured) / measured
        for at, measured in held.items()
    }


def fitting(values: tuple[At, ...], too_large: Iterable[At]) -> tuple[At, ...]:
    """The ticks without those whose points do not fit: a grid must be full.

    Of the ticks that meet such a point, the one goes whose layer has the largest share of them; of equal
    ones the larger tick of the earlier axis, which is the batch.

    Raises:
        ValueError: Nothing is left.
    """
    limits = list(too_large)
    while bad := [at for at in product(*values) if any(_beyond(at, limit) for limit in limits)]:
        total = math.prod(map(len, values))
        shares = {
            (sum(at[axis] == tick for at in bad) * len(values[axis]) / total, -axis, tick): (axis, tick)
            for axis, tick in {(axis, x) for at in bad for axis, x in enumerate(at)}
            if len(values[axis]) > 1
        }
        if not shares:
            raise ValueError(f"not even the smallest point {values} fits into memory")
        axis, tick = shares[max(shares)]
        kept = tuple(x for x in values[axis] if x != tick)
        values = (*values[:axis], kept, *values[axis + 1 :])
    return values


def _beyond(at: At, limit: At) -> bool:
    """Whether a point is at least as large in every coordinate."""
    return all(x >= most for x, most in zip(at, limit, strict=True))


STAGE = "scouting"
"""Under which the journal keeps the ticks of each grid (the name that it has in unfinished journals)."""
OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "can't allocate memory", "not enough memory")
"""What torch says on its devices."""


@dataclass(frozen=True, slots=True)
class AdaptiveGoal:
    """How well grids are to interpolate (worst relative error on held-out points), and what that may cost.

    The time is for choosing the points and all repetitions of them, by estimate: a repetition takes about as
    long as the choice did.
    """

    until_error: float
    time_budget_s: float = 300.0


def adapt_plan(
    plan: Plan,
    goal: AdaptiveGoal,
    timer: Timer,
    *,
    journal: Journal,
    progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """The plan with grids whose ticks were chosen by measuring; the journal keeps those of every grid.

    Raises:
        ValueError: Not even the smallest point of a grid fits into memory.
    """
    share = goal.time_budget_s / (1 + plan.repeats * plan.passes) / len(plan.grids)
    chosen = []
    for number, grid in enumerate(plan.grids):
        kept = journal.once(partial(_adapt, grid, goal, timer, share, clock), STAGE, grid.operation)
        values, held_out = (tuple(tuple(each) for each in kept[name]) for name in ("values", "held_out"))
        chosen.append(replace(grid, values=values, held_out=held_out))
        progress(number + 1, len(plan.grids))
    return replace(plan, grids=tuple(chosen))


def _adapt(grid: Grid, goal: AdaptiveGoal, timer: Timer, seconds: float, clock: Callable[[], float]) -> Json:
    start = clock()

    def measure(at: At) -> float | None:
        try:
            return float(np.mean(visit_point(grid, at, timer)))
        except WorkerError as error:
            if not any(words in error.remote_traceback for words in OUT_OF_MEMORY):
                raise
            return None

    done = refine(grid, measure, until_error=goal.until_error, spent=lambda: clock() - start >= seconds)
    error = "" if done.error is None else f", worst error {100 * done.error:.0f} % on samples of its choice"
    large = f", out of memory at {', '.join(map(str, done.out_of_memory))}" if done.out_of_memory else ""
    ended = {"error": "under the bound", "budget": "time was spent", "full": "no room for more"}[done.ended]
    return {
        "values": done.grid.values,
        "held_out": done.grid.held_out,
        "note": f"points of {done.grid.operation} chosen by measuring: {ended}{error}{large}",
    }


def adaptive_notes(journal: Journal) -> str:
    """How the choice of points ended, for the profile's note; empty where there was none."""
    return "; ".join(kept["note"] for kept in journal.stage(STAGE))
