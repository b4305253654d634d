"""A picture per paper: predicted against reported, with intervals, flagged values hollow.

Drawn from the stored form of a study (`summary.as_dict`), so that notebooks need not compute it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hardware_profiles.atomic import atomic_write

Row: TypeAlias = Mapping[str, Any]

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#64b5cd")
MARKERS = ("o", "s", "^", "D", "v")
UNITS = {"x": "speedup over plain decoding", "tok/s": "tokens/s"}


def panels(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by unit; values that follow by definition, and those that stand alone, are not drawn."""
    units: dict[str, list[Row]] = {}
    for row in rows:
        if not row["table"].startswith("Construction"):
            unit: str = UNITS.get(row["unit"]) or row["value_name"]
            units.setdefault(unit, []).append(row)
    return {unit: group for unit, group in units.items() if len(group) > 2}


def plot(found: Mapping[str, Any], folder: Path) -> Path:
    """Write `<paper>.png` into a folder; returns the file.

    Args:
        found: A study as `summary.as_dict` gives it.
        folder: Made if it is not there.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=size(found), layout="constrained")
    draw(figure, found)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found['paper']}.png"
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=120, format="png", metadata={"Software": None})
    pyplot.close(figure)
    return path


def size(found: Mapping[str, Any]) -> tuple[float, float]:
    """Inches that the picture needs."""
    return 6.2 * len(panels(found["rows"])), 6.4


def draw(figure: Any, found: Mapping[str, Any]) -> None:
    """The picture on a figure of the caller's."""
    groups = panels(found["rows"])
    axes = figure.subplots(1, len(groups), squeeze=False)[0]
    for place, (unit, rows) in zip(axes, groups.items(), strict=True):
        _panel(place, unit, rows)
    overall = found["summary"][-1]
    law = "-" if overall["law"] is None else f"{overall['law']['median']:.1%}"
    figure.suptitle(
        f"{found['paper']}: {overall['predicted']} speeds predicted, median error {law}\n"
        f"{overall['inside']} inside their interval; hollow: flagged",
        fontsize=10,
    )


def _panel(axes: Any, unit: str, rows: Sequence[Row]) -> None:
    for number, name in enumerate(dict.fromkeys(row["label"] for row in rows)):
        look = {"colour": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        mine = [row for row in rows if row["label"] == name]
        sound = [row for row in mine if row["flag"] is None]
        flagged = [row for row in mine if row["flag"] is not None]
        if sound:
            _points(axes, sound, name=name, hollow=False, **look)
        if flagged:
            _points(axes, flagged, name=None if sound else name, hollow=True, **look)
    _frame(axes, unit, rows)


def _points(
    axes: Any, rows: Sequence[Row], *, colour: str, marker: str, name: str | None, hollow: bool
) -> None:
    x = [row["reported"] for row in rows]
    y = [row["predicted"] for row in rows]
    bars = [
        [max(0.0, row["predicted"] - row["low"]) for row in rows],
        [max(0.0, row["high"] - row["predicted"]) for row in rows],
    ]
    axes.errorbar(x, y, yerr=bars, fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.35)
    face = "none" if hollow else colour
    axes.scatter(x, y, s=22, marker=marker, facecolors=face, edgecolors=colour, linewidths=0.9, label=name)


def _frame(axes: Any, unit: str, rows: Sequence[Row]) -> None:
    values = [row[name] for row in rows for name in ("reported", "predicted")]
    low, high = 0.9 * min(values), 1.1 * max(values)
    axes.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_xlim(low, high)
    # Intervals may be far wider than the values: they are cut, or all points would lie on one spot.
    axes.set_ylim(low, high)
    axes.set_xlabel(f"{unit}, reported", fontsize=9)
    axes.set_ylabel(f"{unit}, predicted by law", fontsize=9)
    axes.grid(alpha=0.3)
    # Below the axes: inside them it would hide points of papers with many methods.
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
