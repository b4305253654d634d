"""Is a second device worth it?  Speeds of policies on one device, on two, and side by side, all interleaved.

AR and SD run on one core and on both cores, PEARL and Saguaro with a core for each model.  Speculation with a
device for the draft has to beat SD collocated on equal devices, not only AR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import SETTING, Column, table
from analysis.study import POSITIVE, SHARED, SPLIT, Entry, Plan, Study, option
from policies.registry import configure

ONE, BOTH = "shared:0", SHARED
PLACES = {ONE: "one core", BOTH: "both cores", SPLIT: "a core each"}


@dataclass(frozen=True)
class PlacementsPlan(Plan):
    """Which lookaheads, on the pair whose target is the slower."""

    hw: tuple[str, ...] = option(("cpu2-x20",), "Profile whose pair runs.")
    max_tokens: int | None = option(128, "Most tokens per prompt.", type=POSITIVE)
    lookahead: tuple[int, ...] = option((4,), "List of K.")
    fanout: int = option(3, "Of Saguaro.", type=POSITIVE)


def contenders(lookaheads: Sequence[int], fanout: int) -> list[Entry]:
    """Everything that is compared."""
    entries = [Entry(configure("ar"), place=ONE), Entry(configure("ar"), place=BOTH)]
    for lookahead in lookaheads:
        entries += [Entry(configure("sd", lookahead=lookahead), place=place) for place in (ONE, BOTH)]
        entries.append(Entry(configure("pearl", lookahead=lookahead)))
        entries += [
            Entry(configure("saguaro", lookahead=lookahead, fanout=(fanout,), backup=backup))
            for backup in ("primary", "plain")
        ]
    return entries


def answer(bench: Bench) -> list[Row]:
    """One row per contender: its speed over AR on one and on both cores, with range, and overlap."""
    plan = bench.plan_as(PlacementsPlan)
    rows = bench.compare(contenders(plan.lookahead, plan.fanout))
    units = {row["place"]: row for row in rows if row["policy"] == "ar"}
    return [{"devices": PLACES[row["place"]], **row, **_over(row, units)} for row in rows]


def _over(row: Row, units: dict[str, Row]) -> Row:
    if row.get("measured_tokens") is None:
        return {}
    over: Row = {"overlap_ms_per_token": row["measured_overlap_s"] * 1e3 / row["measured_tokens"]}
    for name, place in (("one_core", ONE), ("both_cores", BOTH)):
        unit = units[place]
        pairs = zip(unit["measured_repeat_seconds"], row["measured_repeat_seconds"], strict=True)
        ratios = [before / after for before, after in pairs]
        over[f"speedup_vs_ar_{name}"] = unit["measured_seconds"] / row["measured_seconds"]
        over |= {f"speedup_vs_ar_{name}_low": min(ratios), f"speedup_vs_ar_{name}_high": max(ratios)}
    return over


def _range(title: str, name: str) -> Column:
    def cell(row: Row) -> str | None:
        if row.get(name) is None:
            return None
        return f"{row[name]:.2f} ({row[f'{name}_low']:.2f}-{row[f'{name}_high']:.2f})"

    return Column(title, cell)


def show(results: Results) -> Iterator[Any]:
    """A row per contender."""
    yield table(
        "",
        (
            Column("devices", "devices"),
            SETTING,
            Column("tok/s", "measured_tokens_per_second", "{:.1f}"),
            _range("vs AR one core", "speedup_vs_ar_one_core"),
            _range("vs AR both cores", "speedup_vs_ar_both_cores"),
            Column("overlap, ms/token", "overlap_ms_per_token", "{:.2f}"),
            Column("simulated vs AR", "simulated_speedup_vs_ar", "{:.2f}"),
        ),
        results.rows,
        left=("setting",),
    )


STUDY = Study(
    "placements",
    "Is a second device worth it?  One core, both cores, a core for each model.",
    PlacementsPlan,
    answer=answer,
    show=show,
    examples=("--live", "--live --hw cpu2-x5 --lookahead 3,5 --json"),
)
