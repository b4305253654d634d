"""Saguaro's C: what drawing cached tokens less often costs in acceptance and brings in hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.execute import Bench
from analysis.results import Row
from analysis.show import COLOURS, draw_worlds, finish, parity, values
from analysis.studies.openquestions import question
from analysis.study import Entry
from policies.registry import configure

LOOKAHEAD, TEMPERATURE = 4, 1.0
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)
FANOUTS = (1, 3)


def rows(bench: Bench) -> list[Row]:
    """One row per fan-out and C."""
    knobs: Row = {"lookahead": LOOKAHEAD, "backup": "plain", "temperature": TEMPERATURE}
    return bench.compare(
        [
            Entry(
                configure("saguaro", fanout=(f,), scale=c, **knobs),
                tags=(("uniform_fanout", f), ("scale", c)),
            )
            for f in FANOUTS
            for c in SCALES
        ]
    )


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    said = []
    for f in FANOUTS:
        mine = {row["scale"]: row["simulated_speedup_vs_ar"] for row in found if row["uniform_fanout"] == f}
        best = max(mine, key=lambda c: mine[c])
        said.append(f"F={f}: best C = {best:g} ({100 * (mine[best] / mine[1.0] - 1):+.1f} % over C = 1)")
    return "Rescaling the draft, simulated. " + "; ".join(said)


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Acceptance and hits against C, and the speed that comes of both."""
    left, middle, right = figure.subplots(1, 3)
    for colour, f in zip(COLOURS, FANOUTS, strict=False):
        mine = [row for row in found if row["uniform_fanout"] == f]
        both = ("simulated", "measured")
        draw_worlds(left, mine, "scale", "acceptance_rate", colour=colour, label=f"F={f}", worlds=both)
        draw_worlds(middle, mine, "scale", "cache_hit_rate", colour=colour, label=f"F={f}")
        draw_worlds(right, mine, "scale", "speedup_vs_ar", colour=colour, label=f"F={f}")
    finish(left, x="Saguaro's C", y="acceptance rate")
    finish(middle, x="Saguaro's C", y="cache hit rate")
    finish(right, x="Saguaro's C", y="speedup over plain decoding")
    parity(right)
    left.set_ylim(0, max(1.0, float(values(found, "simulated_acceptance_rate").max())))


STUDY = question(
    "scale", "What does Saguaro's rescaling of the draft by C cost and bring?", rows, title, draw
)
