"""How experiments draw: law, simulation and measurement look the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.experiments.bench import Row, column

WORLDS: dict[str, dict[str, Any]] = {
    "law": {"linestyle": ":", "marker": "|", "markersize": 9, "linewidth": 1.2},
    "simulated": {"linestyle": "-", "marker": "D", "markersize": 4, "linewidth": 1.5},
    "measured": {"linestyle": "none", "marker": "o", "markersize": 8, "markerfacecolor": "none"},
}
COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#64b5cd")


def draw_worlds(
    axes: Any,
    rows: Sequence[Row],
    x: str,
    figure: str,
    *,
    colour: str,
    label: str,
    worlds: Sequence[str] = ("law", "simulated", "measured"),
) -> None:
    """A figure over a column, one line per world; worlds without a value are left out.

    Args:
        axes: Where to.
        rows: In the order of `x`.
        x: Column on the horizontal axis.
        figure: Column less the world's name, e.g. `speedup_vs_ar`.
        colour: Of all worlds; they differ in line and marker.
        label: For the legend, given to the simulated line.
        worlds: Which to draw.
    """
    at = column(rows, x)
    for world in worlds:
        name = f"{world}_{figure}"
        if name not in rows[0] or all(row[name] is None for row in rows):
            continue
        values = column(rows, name)
        if world == "measured" and figure == "speedup_vs_ar":
            low, high = column(rows, "measured_low"), column(rows, "measured_high")
            bars = [(values - low).clip(min=0), (high - values).clip(min=0)]
            axes.errorbar(at, values, yerr=bars, fmt="none", ecolor=colour, capsize=3)
        axes.plot(at, values, color=colour, label=label if world == "simulated" else None, **WORLDS[world])


def finish(axes: Any, *, x: str, y: str, powers: Sequence[float] = ()) -> None:
    """Labels, grid, and a legend that says which marker is which world."""
    from matplotlib.lines import Line2D

    known = axes.get_legend_handles_labels()
    seen = {line.get_marker() for line in axes.get_lines()}
    worlds = [
        Line2D([], [], color="#555555", label=name, **style)
        for name, style in WORLDS.items()
        if style["marker"] in seen
    ]
    axes.legend(handles=[*known[0], *worlds], fontsize=7, ncols=2)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if powers:  # of two, on a logarithmic axis
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(powers), [f"{tick:g}" for tick in powers])


def parity(axes: Any) -> None:
    """The line at which a setting is as fast as plain decoding."""
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=(0, (1, 3)))
