"""The picture of a recommendation: speeds, where the time goes, and what is best at other traffic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.recommend.answer import Point, Ranked, Recommendation, time_per_token
from analysis.show import legend_below, lines_of
from hardware_profiles.files import atomic_write
from policies.registry import find_policy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {
    "target_alone": ("#4c72b0", "target alone"),
    "both": ("#55a868", "both"),
    "draft_alone": ("#dd8452", "draft alone"),
    "nobody": ("#dddddd", "nobody (host, messages)"),
}
MARKERS = "osD^vPX"
"""Settings of one policy have its colour, and differ in their markers."""


def plot(answer: Recommendation, path: Path) -> None:
    """Write the picture; the suffix of the path says the format."""
    figure = draw(answer)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")


def draw(answer: Recommendation) -> Figure:
    """Speeds with intervals, where the time goes, and the best setting over batch and acceptance."""
    from matplotlib.figure import Figure

    rows = list(answer.best.values())
    sweeps = [
        (points, name)
        for points, name in ((answer.by_batch, "requests at any time"), (answer.by_acceptance, "acceptance"))
        if points
    ]
    heights = [1.6 + 0.36 * len(rows), *([4.6] if sweeps else [])]
    figure = Figure(figsize=(12, sum(heights)), layout="constrained")
    # Figures of their own, so that long names beside the bars do not squeeze what is below.
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    left, right = parts[0].subplots(1, 2, sharey=True)
    draw_speeds(left, rows)
    draw_times(right, rows)
    if sweeps:
        for axes, (points, name) in zip(
            parts[1].subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True
        ):
            draw_sweep(axes, points, name)
    query = answer.query
    figure.suptitle(
        f"{answer.winner.choice.settings.label} on {answer.sources.profile.name}: {query.devices} devices, "
        f"batch {query.batch}, temperature {query.temperature:g}",
        fontsize=11,
    )
    return figure


def draw_speeds(axes: Any, rows: Sequence[Ranked]) -> None:
    """Speedup over plain decoding of the best of each policy, with its interval."""
    middle = [row.over_ar.middle for row in rows]
    low = [row.over_ar.middle - row.over_ar.low for row in rows]
    high = [row.over_ar.high - row.over_ar.middle for row in rows]
    colours = [find_policy(row.choice.settings.policy).colour for row in rows]
    axes.barh(range(len(rows)), middle, xerr=[low, high], color=colours, capsize=3)
    names = [lines_of(row.choice.settings.label) for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"speed over plain decoding, same devices ({rows[0].over_ar.level:.0%} intervals)")


def draw_times(axes: Any, rows: Sequence[Ranked]) -> None:
    """Milliseconds per token of one group, by who works meanwhile."""
    times = [time_per_token(row.choice.summary) for row in rows]
    left = np.zeros(len(rows))
    for name, (colour, label) in PARTS.items():
        values = np.array([t[name] for t in times])
        axes.barh(range(len(rows)), values, left=left, color=colour, label=label)
        left += values
    axes.tick_params(labelleft=False)
    axes.set_xlabel("ms per token of one group")
    legend_below(axes, columns=4)


def draw_sweep(axes: Any, points: Sequence[Point], name: str) -> None:
    """The best setting's speed over plain decoding and over SD; extrapolated points are hollow."""
    x = [point.at for point in points]
    axes.plot(x, [point.vs_ar for point in points], "-", color="#999999", linewidth=1)
    markers: dict[str, dict[str, str]] = {}
    for point in points:
        colour, label = find_policy(point.best.policy).colour, point.best.label
        own = markers.setdefault(point.best.policy, {})
        named = lines_of(label) if label not in own else None  # once in the legend
        marker = own.setdefault(label, MARKERS[len(own) % len(MARKERS)])
        face = "white" if point.extrapolated else colour
        axes.plot(
            point.at,
            point.vs_ar,
            marker,
            color=colour,
            markerfacecolor=face,
            markersize=8,
            linestyle="",
            label=named,
        )
    axes.plot(x, [point.vs_sd for point in points], "--", color="#4c72b0", linewidth=1, label="over best SD")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    if name != "acceptance":
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{v:g}" for v in x])
    axes.set_xlabel(name)
    axes.set_ylabel("fastest over plain decoding\n(hollow: extrapolated)")
    axes.margins(x=0.08, y=0.12)
    axes.grid(alpha=0.3)
    legend_below(axes, columns=2)
