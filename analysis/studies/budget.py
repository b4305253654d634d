"""How the hit rate and the speed grow with the fan-out budget, for three ways to spread it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Row
from analysis.show import COLOURS, draw_worlds, finish, parity, values
from analysis.studies.openquestions import question
from analysis.study import Entry
from simulator.auto import resolve, settings_query
from simulator.fanout import SHAPES

LOOKAHEAD = 4
BUDGETS = (2, 5, 10, 15, 25)
_HITS = "simulated_cache_hit_rate"


def rows(bench: Bench) -> list[Row]:
    """One row per shape and budget, as `simulate --shape --budget` resolves it."""
    return bench.compare(
        [
            Entry(
                resolve(
                    bench.scenario(0.0), settings_query("saguaro", LOOKAHEAD, shape, budget, backup="plain")
                ).settings,
                tags=(("shape", shape), ("budget", budget)),
            )
            for shape in SHAPES
            for budget in BUDGETS
        ]
    )


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    by = {(row["shape"], row["budget"]): row for row in found}
    budgets = sorted({row["budget"] for row in found})
    gains = {b: by["exact", b][_HITS] - by["uniform", b][_HITS] for b in budgets}
    best = max(gains, key=lambda b: gains[b])
    fastest = max(found, key=lambda row: row["simulated_speedup_vs_ar"])
    return (
        f"The exact shape hits up to {100 * gains[best]:.0f} points more than the uniform (budget {best}); "
        f"fastest at a budget of {fastest['budget']} ({fastest['shape']})"
    )


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Hit rate and speed against the budget."""
    left, right = figure.subplots(1, 2)
    for colour, shape in zip(COLOURS, SHAPES, strict=False):
        mine = [row for row in found if row["shape"] == shape]
        draw_worlds(left, mine, "budget", "cache_hit_rate", colour=colour, label=shape)
        draw_worlds(right, mine, "budget", "speedup_vs_ar", colour=colour, label=shape)
    finish(left, x="cached outcomes per row (budget)", y="cache hit rate")
    finish(right, x="cached outcomes per row (budget)", y="speedup over plain decoding")
    parity(right)
    if np.isfinite(laws := values(found, "law_speedup_vs_ar")).any():
        right.set_ylim(0, 1.05 * float(np.nanmax(laws)))


STUDY = question("budget", "How far do hits and speed grow with the fan-out budget?", rows, title, draw)
