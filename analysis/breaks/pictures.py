"""The map as pictures: a heat map of all laws, and a panel of lines per law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.store import Map
from analysis.breaks.sweep import MARGIN, OWN_ASSUMPTIONS, Cell
from analysis.breaks.tables import percent
from hardware_profiles.files import atomic_write

COLOURS = (
    "#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452",
    "#64b5cd", "#937860", "#da8bc3", "#8c8c8c", "#222222", "#b5a642",
)  # fmt: skip
MARKERS = "osD^vP*Xdhp"
PANELS = 5
"""Panels of the line figure beside each other."""
TICKS = (-50, -20, -10, 0, 10, 20, 50, 100, 500)
WIDE = 10.0
"""Least width of the line figure in inches, which its legend takes."""
FULL = 100.0
"""Error in per cent from which on the heat map's colour is the darkest."""


def plot(found: Map, folder: Path) -> list[Path]:
    """Draw both pictures; returns the files.

    Raises:
        OSError: The file system refuses.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _draw(heat_map, found, folder / "breaks_map.png"),
        _draw(lines, found, folder / "breaks_sizes.png"),
    ]


def _draw(draw: Callable[[Any, Map], None], found: Map, path: Path) -> Path:
    from matplotlib import pyplot

    figure = pyplot.figure(layout="constrained")
    draw(figure, found)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=110, format="png", metadata={"Software": None})
    pyplot.close(figure)
    return path


def heat_map(figure: Any, found: Map) -> None:
    """Law by relaxation: colour and number are the largest error in per cent."""
    import numpy as np
    from matplotlib.colors import PowerNorm

    columns = [OWN_ASSUMPTIONS, *found.relaxations]
    cells = [[found.worst(law, name) for name in columns] for law in found.laws]
    sizes = [[np.nan if c is None else min(FULL, 100 * abs(c.error)) for c in row] for row in cells]
    figure.set_size_inches(3.4 + 0.95 * len(columns), 1.9 + 0.36 * len(found.laws))
    axes = figure.subplots()
    norm = PowerNorm(0.5, vmin=0.0, vmax=FULL)
    image = axes.imshow(np.ma.masked_invalid(sizes), cmap="YlOrRd", norm=norm, aspect="auto")
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            if cell is not None:
                dark = 100 * abs(cell.error) > 0.45 * FULL
                axes.text(
                    x, y, percent(cell), ha="center", va="center", fontsize=8, color="w" if dark else "k"
                )
    axes.set_xticks(range(len(columns)), [_title(name) for name in columns], fontsize=8)
    axes.set_yticks(range(len(found.laws)), found.laws, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(len(columns) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(found.laws) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if len(columns) > 1:
        axes.axvline(0.5, color="black", linewidth=1)
    figure.colorbar(image, ax=axes, label="|error|, %", fraction=0.025, pad=0.01)
    figure.suptitle("Largest error of each law, in %, by what is relaxed", fontsize=11)


def _title(name: str) -> str:
    return "own\nassumptions" if name == OWN_ASSUMPTIONS else RELAXATIONS[name].title


def lines(figure: Any, found: Map) -> None:
    """A panel per law: error over the size of each relaxation, at the point of its largest error."""
    rows = -(-len(found.laws) // PANELS)
    across = min(PANELS, len(found.laws))
    figure.set_size_inches(max(WIDE, 3.0 * across + 0.4), 2.15 * rows + 1.9)
    panels = figure.subplots(rows, across, squeeze=False, sharey=True).ravel()
    for panel, law in zip(panels, found.laws, strict=False):
        _panel(panel, found, law)
    for panel in panels[len(found.laws) :]:
        panel.set_axis_off()
    handles = [_handle(name) for name in found.relaxations]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=3 if across > 3 else 2,
        fontsize=8,
        frameon=False,
    )
    figure.supylabel("error of the law, %", fontsize=9)
    figure.suptitle("Error over the size of each relaxation, from near to far", fontsize=11)


def _panel(axes: Any, found: Map, law: str) -> None:
    for name in found.relaxations:
        followed = _followed(found, law, name)
        if followed:
            steps = [_step(name, cell) for cell in followed]
            axes.plot(steps, [100 * cell.error for cell in followed], **_style(name))
    axes.axhspan(-100 * MARGIN, 100 * MARGIN, color="#dddddd", zorder=0)
    axes.axhline(0.0, color="black", linewidth=0.6)
    axes.set_yscale("symlog", linthresh=10.0)
    axes.set_yticks(TICKS, [f"{tick:+d}" if tick else "0" for tick in TICKS], fontsize=7)
    axes.set_yticks([], minor=True)
    axes.set_ylim(-80, 1200)
    axes.set_xlim(-0.08, 1.08)
    axes.set_xticks([0.0, 1.0], ["near", "far"], fontsize=7)
    axes.grid(alpha=0.25)
    axes.set_title(law, fontsize=8.5)


def _followed(found: Map, law: str, name: str) -> list[Cell]:
    """A relaxation's cells at the point of its largest error, by size; at a recording, of that lookahead."""
    cells, worst = found.of(law, name), found.worst(law, name)
    if worst is None:
        return []
    if name == "trace":  # the label tells what the recording says, which differs by temperature
        by_size = [[c for c in cells if c.size == size] for size in dict.fromkeys(c.size for c in cells)]
        at = next(same.index(worst) for same in by_size if worst in same)
        return [same[at] for same in by_size if at < len(same)]
    return [c for c in cells if c.point == worst.point]


def _step(name: str, cell: Cell) -> float:
    """Where a size stands between the nearest (0) and the farthest (1)."""
    sizes = RELAXATIONS[name].sizes
    return sizes.index(cell.size) / max(1, len(sizes) - 1)


def _style(name: str) -> dict[str, Any]:
    index = list(RELAXATIONS).index(name)
    return {
        "color": COLOURS[index],
        "marker": MARKERS[index],
        "markersize": 3.5,
        "linewidth": 1.2,
    }


def _handle(name: str) -> Any:
    from matplotlib.lines import Line2D

    sizes = RELAXATIONS[name].sizes
    span = f"{sizes[0]:g} to {sizes[-1]:g}" if len(sizes) > 1 else f"{sizes[0]:g}"
    label = f"{name}: {RELAXATIONS[name].size}, {span}"
    return Line2D([], [], label=label, **_style(name))
