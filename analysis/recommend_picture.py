"""The picture of a recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.flips import Point
from analysis.recommend import Ranked, Recommendation, time_per_token
from hardware_profiles.atomic import atomic_write
from policies.registry import find_policy

PARTS = {
    "target_alone": ("#4c72b0", "target alone"),
    "both": ("#55a868", "both"),
    "draft_alone": ("#dd8452", "draft alone"),
    "nobody": ("#dddddd", "nobody (host, messages)"),
}


def plot(found: Recommendation, path: Path) -> None:
    """Speeds with intervals, where the time goes, and the best setting over batch and acceptance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(found.best.values())
    flips = [
        (points, name)
        for points, name in ((found.by_batch, "requests at any time"), (found.by_acceptance, "acceptance"))
        if points
    ]
    figure, panels = pyplot.subplots(
        1 + bool(flips), 2, figsize=(12, 3.4 * (1 + bool(flips))), layout="constrained", squeeze=False
    )
    draw_speeds(panels[0][0], rows)
    draw_times(panels[0][1], rows)
    for axes, (points, name) in zip(panels[-1] if flips else (), flips, strict=False):
        draw_flips(axes, points, name)
    wanted = found.wanted
    figure.suptitle(
        f"{found.winner.choice.settings.label} on {found.sources.profile.name}: {wanted.devices} devices, "
        f"batch {wanted.batch}, temperature {wanted.temperature:g}",
        fontsize=11,
    )
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")
    pyplot.close(figure)


def draw_speeds(axes: Any, rows: Sequence[Ranked]) -> None:
    """Speedup over plain decoding of the best of each policy, with its interval."""
    y = np.arange(len(rows))
    middle = np.array([row.over_ar.middle for row in rows])
    bars = [[row.over_ar.middle - row.over_ar.low for row in rows],
            [row.over_ar.high - row.over_ar.middle for row in rows]]  # fmt: skip
    colours = [find_policy(row.choice.settings.policy).colour for row in rows]
    axes.barh(y, middle, xerr=bars, color=colours, capsize=3)
    axes.set_yticks(y, [row.choice.settings.label for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(f"speed over plain decoding, same devices ({rows[0].over_ar.level:.0%} intervals)")


def draw_times(axes: Any, rows: Sequence[Ranked]) -> None:
    """Milliseconds per token of one group, by who works meanwhile."""
    y = np.arange(len(rows))
    times = [time_per_token(row.choice.summary) for row in rows]
    left = np.zeros(len(rows))
    for name, (colour, label) in PARTS.items():
        values = np.array([t[name] for t in times])
        axes.barh(y, values, left=left, color=colour, label=label)
        left += values
    axes.set_yticks(y, [row.choice.settings.label for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms per token of one group")
    axes.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def draw_flips(axes: Any, points: Sequence[Point], name: str) -> None:
    """The best setting's speed over plain decoding and over SD; extrapolated points are hollow."""
    x = [point.at for point in points]
    axes.plot(x, [point.vs_ar for point in points], "-", color="#999999", linewidth=1)
    for point in points:
        colour = find_policy(point.best.policy).colour
        face = "white" if point.extrapolated else colour
        axes.plot(point.at, point.vs_ar, "o", color=colour, markerfacecolor=face)
        axes.annotate(
            point.best.label, (point.at, point.vs_ar), fontsize=7, xytext=(3, 5), textcoords="offset points"
        )
    axes.plot(x, [point.vs_sd for point in points], "--", color="#4c72b0", linewidth=1, label="over best SD")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    if name != "acceptance":
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{v:g}" for v in x])
    axes.set_xlabel(name)
    axes.set_ylabel("fastest over plain decoding\n(hollow: extrapolated)")
    axes.margins(x=0.12, y=0.12)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
