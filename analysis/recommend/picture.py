"""The picture of a recommendation: speeds, where the time goes, and what is best at other traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.recommend.answer import Optimum, Ranked, Recommendation, time_per_token
from analysis.show import legend_below, lines_of, name_rows
from analysis.study import Picture
from policies.registry import find_policy

PARTS = {
    "target_alone": ("#4c72b0", "target alone"),
    "both": ("#55a868", "both"),
    "draft_alone": ("#dd8452", "draft alone"),
    "nobody": ("#dddddd", "nobody (host, messages)"),
}
MARKERS = "osD^vPX"
"""Settings of one policy have its colour, and differ in their markers."""


def picture(answer: Recommendation) -> Picture:
    """Speeds with intervals, where the time goes, and the best setting over batch and acceptance."""
    rows, search = list(answer.best.values()), answer.search
    named = {"requests at any time": answer.by_batch, "acceptance": answer.by_acceptance}
    sweeps = {name: points for name, points in named.items() if points}
    heights = [1.6 + 0.36 * len(rows), *([4.6] if sweeps else [])]

    def draw(figure: Any) -> None:
        # Figures of their own, so that long names beside the bars do not squeeze what is below.
        above, *below = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        left, right = above.subplots(1, 2, sharey=True)
        draw_speeds(left, rows)
        draw_times(right, rows)
        for part in below:
            panels = part.subplots(1, len(sweeps), squeeze=False)[0]
            for axes, (name, points) in zip(panels, sweeps.items(), strict=True):
                draw_sweep(axes, points, name)
        figure.suptitle(
            f"{answer.winner.settings.label} on {answer.sources.profile.name}: {search.devices} devices, "
            f"batch {search.batch}, temperature {search.temperature:g}",
            fontsize=11,
        )

    return Picture(draw, (12.0, sum(heights)))


def draw_speeds(axes: Any, rows: Sequence[Ranked]) -> None:
    """Speedup over plain decoding of the best of each policy, with its interval."""
    low, middle, high = np.array([(r.over_ar.low, r.over_ar.middle, r.over_ar.high) for r in rows]).T
    colours = [find_policy(row.settings.policy).colour for row in rows]
    axes.barh(range(len(rows)), middle, xerr=[middle - low, high - middle], color=colours, capsize=3)
    name_rows(axes, [lines_of(row.settings.label) for row in rows])
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"speed over plain decoding, same devices ({rows[0].over_ar.level:.0%} intervals)")


def draw_times(axes: Any, rows: Sequence[Ranked]) -> None:
    """Milliseconds per token of one group, by who works meanwhile."""
    times = [time_per_token(row.summary) for row in rows]
    left = np.zeros(len(rows))
    for name, (colour, label) in PARTS.items():
        values = np.array([t[name] for t in times])
        axes.barh(range(len(rows)), values, left=left, color=colour, label=label)
        left += values
    axes.tick_params(labelleft=False)
    axes.set_xlabel("ms per token of one group")
    legend_below(axes, columns=4)


def draw_sweep(axes: Any, points: Sequence[Optimum], name: str) -> None:
    """The best setting's speed over plain decoding and over SD; extrapolated points are hollow."""
    x = [point.at for point in points]
    axes.plot(x, [point.speedup_vs_ar for point in points], "-", color="#999999", linewidth=1)
    markers: dict[str, dict[str, str]] = {}
    for point in points:
        colour, label = find_policy(point.best.policy).colour, point.best.label
        own = markers.setdefault(point.best.policy, {})
        look = {"color": colour, "markerfacecolor": "white" if point.extrapolated else colour}
        look |= {} if label in own else {"label": lines_of(label)}  # once in the legend
        marker = own.setdefault(label, MARKERS[len(own) % len(MARKERS)])
        axes.plot(point.at, point.speedup_vs_ar, marker, markersize=8, linestyle="", **look)
    axes.plot(
        x, [point.speedup_vs_sd for point in points], "--", color="#4c72b0", linewidth=1, label="over best SD"
    )
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    if name != "acceptance":
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{v:g}" for v in x])
    axes.set_xlabel(name)
    axes.set_ylabel("fastest over plain decoding\n(hollow: extrapolated)")
    axes.margins(x=0.08, y=0.12)
    axes.grid(alpha=0.3)
    legend_below(axes, columns=2)
