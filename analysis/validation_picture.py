"""The picture of a validation: three opinions per setting, and the errors beside the spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.rows import Row
from analysis.validation import Validation
from hardware_profiles.atomic import atomic_write


def plot(validation: Validation, path: Path) -> Path:
    """Law, simulated and measured speedup per setting, and the simulation's error beside the spread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in validation.rows if row.settings.policy != "ar"]
    height = 1.6 + 0.32 * len(rows)
    figure, axes = pyplot.subplots(
        1, 2, figsize=(12, height), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    draw_speedups(axes[0], rows)
    draw_errors(axes[1], rows)
    meta = validation.trace.meta
    figure.suptitle(
        f"{meta.target_model} + {meta.draft_model}, {len(validation.trace.requests)} prompts", fontsize=11
    )
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format="png")
    pyplot.close(figure)
    return path


def draw_speedups(axes: Any, rows: Sequence[Row]) -> None:
    """Markers per setting: law, simulated, measured with its range; the predicted interval behind them."""
    y = np.arange(len(rows))
    widths = [row.interval.high - row.interval.low for row in rows]
    label = f"{rows[0].interval.level:.0%} interval, from calibration prompts" if rows else ""
    lows = [row.interval.low for row in rows]
    axes.barh(y, widths, left=lows, height=0.55, color="#f3d9c4", label=label)
    middles = [row.interval.middle for row in rows]
    axes.plot(middles, y, "|", color="#c44e52", label="simulated, calibration prompts", markersize=12)
    measured = np.array([row.measured_speedup_vs_ar for row in rows])
    low = np.array([min(row.speedup_by_repeat) for row in rows])
    high = np.array([max(row.speedup_by_repeat) for row in rows])
    bars = np.maximum(0.0, [measured - low, high - measured])
    axes.errorbar(measured, y, xerr=bars, fmt="o", color="#55a868", label="measured", markersize=7, capsize=3)
    simulated = [row.simulated_speedup_vs_ar for row in rows]
    axes.plot(simulated, y, "D", color="#dd8452", label="simulated, own prompts", markersize=5)
    laws = [(row.law_speedup_vs_ar, i) for i, row in enumerate(rows)]
    told = [(value, i) for value, i in laws if value is not None]
    axes.plot([v for v, _ in told], [i for _, i in told], "|", color="#4c72b0", label="law", markersize=12)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(y, [row.label for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)  # first setting on top, both panels alike
    axes.set_xlabel("speedup over plain decoding")
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", alpha=0.3)


def draw_errors(axes: Any, rows: Sequence[Row]) -> None:
    """Error of the simulation per setting, with the spread of the live runs behind it."""
    y = np.arange(len(rows))
    spreads = [(row.spread * 100, i) for i, row in enumerate(rows) if row.spread is not None]
    if spreads:
        widths, lows = [2 * s for s, _ in spreads], [-s for s, _ in spreads]
        axes.barh([i for _, i in spreads], widths, left=lows, color="#dddddd", label="spread of live runs")
    axes.plot([row.error * 100 for row in rows], y, "D", color="#dd8452", label="simulated", markersize=5)
    alone = [row.error_without_contention * 100 for row in rows]
    axes.plot(alone, y, "d", markersize=5, markerfacecolor="none", color="#dd8452", label="no contention")
    nearest = [(row.nearest_error * 100, i) for i, row in enumerate(rows) if row.nearest_error is not None]
    x, at = [v for v, _ in nearest], [i for _, i in nearest]
    axes.plot(x, at, "x", color="#8172b3", label="nearest calibrated setting", markersize=5)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(y, [])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # first setting on top, both panels alike
    axes.set_xlabel("error of the predicted speedup, %")
    axes.legend(fontsize=8, loc="best")
    axes.grid(axis="x", alpha=0.3)
