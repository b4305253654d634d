"""How the hit rate and the speed grow with the fan-out budget, for three ways to spread it."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.experiments.bench import Bench, Row, column
from analysis.experiments.pictures import COLOURS, draw_worlds, finish, parity
from policies.registry import Settings
from simulator.auto import resolve, settings_query
from simulator.fanout import SHAPES

LOOKAHEAD = 4
BUDGETS = (2, 5, 10, 15, 25)


def settings(bench: Bench) -> dict[tuple[str, int], Settings]:
    """Every shape at every budget, as `simulate --shape --budget` resolves it."""
    found: dict[tuple[str, int], Settings] = {}
    for shape in SHAPES:
        for budget in BUDGETS:
            query = settings_query("saguaro", LOOKAHEAD, shape, budget, backup="plain")
            found[shape, budget] = resolve(bench.scenario(0.0), query).settings
    return found


def run(bench: Bench) -> list[Row]:
    """One row per shape and budget."""
    wanted = settings(bench)
    rows = {row["setting"]: row for row in bench.compare([(s, 1) for s in wanted.values()])}
    return [{"shape": shape, "budget": budget, **rows[s.label]} for (shape, budget), s in wanted.items()]


def title(rows: list[Row]) -> str:
    """What is seen."""
    by = {(row["shape"], row["budget"]): row for row in rows}
    budgets = sorted({row["budget"] for row in rows})
    gains = {b: by["exact", b][_HITS] - by["uniform", b][_HITS] for b in budgets}
    best = max(gains, key=lambda b: gains[b])
    fastest = max(rows, key=lambda row: row["simulated_speedup_vs_ar"])
    return (
        f"The exact shape hits up to {100 * gains[best]:.0f} points more than the uniform (budget {best}); "
        f"fastest at a budget of {fastest['budget']} ({fastest['shape']})"
    )


_HITS = "simulated_cache_hit_rate"


def draw(figure: Any, rows: list[Row]) -> None:
    """Hit rate and speed against the budget."""
    left, right = figure.subplots(1, 2)
    for colour, shape in zip(COLOURS, SHAPES, strict=False):
        mine = [row for row in rows if row["shape"] == shape]
        draw_worlds(left, mine, "budget", "cache_hit_rate", colour=colour, label=shape)
        draw_worlds(right, mine, "budget", "speedup_vs_ar", colour=colour, label=shape)
    finish(left, x="cached outcomes per row (budget)", y="cache hit rate")
    finish(right, x="cached outcomes per row (budget)", y="speedup over plain decoding")
    parity(right)
    if np.isfinite(column(rows, "law_speedup_vs_ar")).any():
        right.set_ylim(0, 1.05 * float(np.nanmax(column(rows, "law_speedup_vs_ar"))))
