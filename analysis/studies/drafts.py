"""Whether several draft devices, which share the outcomes to prepare for, are worth their price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.execute import Bench
from analysis.results import Row
from analysis.show import COLOURS, draw_worlds, finish, parity
from analysis.studies.openquestions import question
from analysis.study import Entry
from policies.registry import configure

LOOKAHEADS = (4, 6)
FANOUT = 5
DEVICES = (1, 2, 3)


def rows(bench: Bench) -> list[Row]:
    """One row per lookahead and number of draft devices."""
    entries = [
        Entry(
            configure("saguaro", lookahead=k, fanout=(FANOUT,), backup="plain", draft_devices=n),
        )
        for k in LOOKAHEADS
        for n in DEVICES
    ]
    found = bench.compare(entries)
    for row in found:
        row["per_device_speedup_vs_ar"] = row["simulated_speedup_vs_ar"] / (1 + (row["draft_devices"] or 0))
    return found


def title(found: Sequence[Row]) -> str:
    """What is seen."""
    said = []
    for k in LOOKAHEADS:
        mine = {r["draft_devices"]: r["simulated_speedup_vs_ar"] for r in found if r["lookahead"] == k}
        gain = 100 * (mine[2] / mine[1] - 1)
        said.append(f"K={k} F={FANOUT}: a second draft device brings {gain:+.0f} %")
    return "; ".join(said) + " (simulated)"


def draw(figure: Any, found: Sequence[Row]) -> None:
    """Speed, and speed per device, against the number of draft devices."""
    left, right = figure.subplots(1, 2)
    for colour, k in zip(COLOURS, LOOKAHEADS, strict=False):
        mine = [row for row in found if row["lookahead"] == k]
        draw_worlds(left, mine, "draft_devices", "speedup_vs_ar", colour=colour, label=f"K={k} F={FANOUT}")
        x = [row["draft_devices"] for row in mine]
        y = [row["per_device_speedup_vs_ar"] for row in mine]
        right.plot(x, y, "-D", color=colour, markersize=4, label=f"K={k} F={FANOUT}")
    finish(left, x="draft devices", y="speedup over plain decoding on one device")
    finish(right, x="draft devices", y="the same, per device (target's included)")
    for axes in (left, right):
        axes.set_xticks(list(DEVICES))
    parity(left)


STUDY = question("drafts", "Are several draft devices worth their price?", rows, title, draw)
