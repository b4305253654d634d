"""What the temperature does to acceptance, hits and speed, over the fan-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.execute import Bench
from analysis.results import Row
from analysis.show import COLOURS, draw_worlds, finish, parity
from analysis.studies.openquestions import question
from analysis.study import Entry
from policies.registry import configure

LOOKAHEAD = 4
FANOUTS = (1, 2, 3, 5)


def rows(bench: Bench) -> list[Row]:
    """One row per recorded temperature and fan-out."""
    return bench.compare(
        [
            Entry(
                configure("saguaro", lookahead=LOOKAHEAD, fanout=(f,), backup="plain", temperature=t),
                tags=(("uniform_fanout", f),),
            )
            for t in sorted(bench.sources.traces)
            for f in FANOUTS
        ]
    )


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    said = []
    for t in sorted({row["temperature"] for row in found}):
        best = max((r for r in found if r["temperature"] == t), key=lambda r: r["simulated_speedup_vs_ar"])
        said.append(
            f"T={t:g}: acceptance {best['simulated_acceptance_rate']:.2f}, best F={best['uniform_fanout']} "
            f"({best['simulated_speedup_vs_ar']:.2f}x)"
        )
    return "; ".join(said)


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Hit rate and speed against the fan-out, a line per temperature."""
    left, right = figure.subplots(1, 2)
    for colour, t in zip(COLOURS, sorted({row["temperature"] for row in found}), strict=False):
        mine = [row for row in found if row["temperature"] == t]
        draw_worlds(left, mine, "uniform_fanout", "cache_hit_rate", colour=colour, label=f"T={t:g}")
        draw_worlds(right, mine, "uniform_fanout", "speedup_vs_ar", colour=colour, label=f"T={t:g}")
    finish(left, x="fan-out F", y="cache hit rate")
    finish(right, x="fan-out F", y="speedup over plain decoding")
    parity(right)


STUDY = question(
    "temperature", "What does the temperature do to acceptance, hits and speed?", rows, title, draw
)
