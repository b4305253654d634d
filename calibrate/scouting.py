"""Choosing the points of the latency grids by measuring: `calibrate --until-error`.

Every grid keeps its range and loses its plan: `calibrate.adaptive` looks for the ticks.  What it measures on
the way is thrown away, since it was measured once and in an order that favours some points; the grids are
measured anew, as always, in shuffled repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from calibrate.adaptive import At, Refined, refine
from calibrate.journal import Journal, Json
from calibrate.latency import WARM, Timer, shape_of
from calibrate.live.errors import WorkerError
from calibrate.plans import Grid, Plan

STAGE = "scouting"
"""Under which the journal keeps the ticks of each grid."""
TIME_BUDGET_S = 300.0
"""For choosing the points and measuring them, if nothing is said."""
OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "can't allocate memory", "not enough memory")
"""What torch says on its devices."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How well grids are to interpolate, and what that may cost.

    Attributes:
        until_error: Worst relative error on held-out points.
        time_budget_s: For scouting and all repetitions of what it finds, by estimate: a repetition takes
            about as long as the scouting did.
    """

    until_error: float
    time_budget_s: float = TIME_BUDGET_S

    def __post_init__(self) -> None:
        if not 0.0 < self.until_error < 1.0:
            raise ValueError(f"--until-error must be above 0 and below 1, got {self.until_error:g}")
        if self.time_budget_s <= 0.0:
            raise ValueError(f"--time-budget must be above 0 s, got {self.time_budget_s:g}")


def scouting_wish(until_error: float | None, time_budget_s: float | None) -> Wish | None:
    """The wish that two options make; None where the points are the plan's.

    Raises:
        ValueError: A budget without a bound, or a number that makes no sense.
    """
    if until_error is None:
        if time_budget_s is not None:
            raise ValueError("--time-budget changes nothing without --until-error")
        return None
    return Wish(until_error, TIME_BUDGET_S if time_budget_s is None else time_budget_s)


def scout(
    plan: Plan,
    wish: Wish,
    timer: Timer,
    *,
    journal: Journal,
    progress: Callable[[int, int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """The plan with grids whose ticks were chosen by measuring.

    Args:
        plan: Ranges, and how often points will be measured.
        wish: When to stop.
        timer: Times one shape.
        journal: Keeps the ticks of every grid that is done.
        progress: Called with (grids done, grids in all).
        clock: Seconds.

    Raises:
        ValueError: Not even the smallest point of a grid fits into memory.
    """
    share = wish.time_budget_s / (1 + plan.repeats * plan.passes) / len(plan.grids)
    chosen = []
    for number, grid in enumerate(plan.grids):
        kept = journal.once(partial(_scout, grid, wish, timer, share, clock), STAGE, grid.operation)
        chosen.append(_unpack(grid, kept))
        progress(number + 1, len(plan.grids))
    return replace(plan, grids=tuple(chosen))


def _scout(grid: Grid, wish: Wish, timer: Timer, seconds: float, clock: Callable[[], float]) -> Json:
    start, kind = clock(), grid.operation.split(".")[1]

    def measure(at: At) -> float | None:
        try:
            samples = timer(grid.device, kind, shape_of(grid, at), 1 + WARM)[1:]
        except WorkerError as error:
            if not any(words in error.remote_traceback for words in OUT_OF_MEMORY):
                raise
            return None
        return float(np.mean(samples))

    return _pack(
        refine(grid, measure, until_error=wish.until_error, spent=lambda: clock() - start >= seconds)
    )


def scouting_notes(journal: Journal) -> str:
    """How the scouting ended, for the profile's note; empty where there was none."""
    return "; ".join(kept["note"] for kept in journal.stage(STAGE))


def _pack(found: Refined) -> Json:
    error = "" if found.error is None else f", worst error {100 * found.error:.0f} % on scouting samples"
    large = f", out of memory at {', '.join(map(str, found.out_of_memory))}" if found.out_of_memory else ""
    ended = {"error": "under the bound", "budget": "time was spent", "full": "no room for more"}[found.ended]
    return {
        "values": [list(ticks) for ticks in found.grid.values],
        "held_out": [list(at) for at in found.grid.held_out],
        "note": f"points of {found.grid.operation} chosen by scouting: {ended}{error}{large}",
    }


def _unpack(grid: Grid, kept: Json) -> Grid:
    values = tuple(tuple(ticks) for ticks in kept["values"])
    return replace(grid, values=values, held_out=tuple(tuple(at) for at in kept["held_out"]))
