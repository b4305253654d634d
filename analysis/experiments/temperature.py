"""What the temperature does to acceptance, hits and speed, over the fan-out."""

from __future__ import annotations

from typing import Any

from analysis.experiments.bench import Bench, Row
from analysis.experiments.pictures import COLOURS, draw_worlds, finish, parity
from policies.registry import configure

LOOKAHEAD = 4
FANOUTS = (1, 2, 3, 5)


def run(bench: Bench) -> list[Row]:
    """One row per recorded temperature and fan-out."""
    wanted = [
        (configure("saguaro", lookahead=LOOKAHEAD, fanout=(f,), backup="plain", temperature=t), 1)
        for t in sorted(bench.sources.traces)
        for f in FANOUTS
    ]
    rows = bench.compare(wanted)
    return [{"uniform_fanout": int(row["fanout"].split(",")[0]), **row} for row in rows]


def title(rows: list[Row]) -> str:
    """What is seen."""
    said = []
    for t in sorted({row["temperature"] for row in rows}):
        best = max((r for r in rows if r["temperature"] == t), key=lambda r: r["simulated_speedup_vs_ar"])
        said.append(
            f"T={t:g}: acceptance {best['simulated_acceptance_rate']:.2f}, best F={best['uniform_fanout']} "
            f"({best['simulated_speedup_vs_ar']:.2f}x)"
        )
    return "; ".join(said)


def draw(figure: Any, rows: list[Row]) -> None:
    """Hit rate and speed against the fan-out, a line per temperature."""
    left, right = figure.subplots(1, 2)
    for colour, t in zip(COLOURS, sorted({row["temperature"] for row in rows}), strict=False):
        mine = [row for row in rows if row["temperature"] == t]
        draw_worlds(left, mine, "uniform_fanout", "cache_hit_rate", colour=colour, label=f"T={t:g}")
        draw_worlds(right, mine, "uniform_fanout", "speedup_vs_ar", colour=colour, label=f"T={t:g}")
    finish(left, x="fan-out F", y="cache hit rate")
    finish(right, x="fan-out F", y="speedup over plain decoding")
    parity(right)
