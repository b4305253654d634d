"""What `simulate` prints and draws of several settings: one table, the fastest of each load, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardware_profiles.files import atomic_write
from hardware_profiles.tables import Row
from policies.commandline import fitted_table
from policies.config import shown
from policies.registry import KNOBS, find_policy
from simulator.report import METHOD

if TYPE_CHECKING:
    from rich.console import Console

OF_A_SETTING = {*KNOBS, "policy", "shape", "budget"}
"""Axes that say what runs; the others, on what and how much."""
MOST_PANELS = 12
COLUMNS = (
    ("tokens/s", "tokens_per_second", "{:.4g}"),
    ("vs AR", "speedup_vs_ar", "{:.3f}x"),
    ("vs AR,\nper device", "speedup_vs_ar_per_device", "{:.3f}x"),
    ("vs SD", "speedup_vs_sd", "{:.3f}x"),
    ("law", "law_speedup_vs_ar", "{:.3f}x"),
    ("tokens/\nround", "tokens_per_round", "{:.2f}"),
    ("hit rate", "cache_hit_rate", "{:.1%}"),
)
DROPPED = ("law", "tokens/\nround", "hit rate", "vs SD", "vs AR,\nper device")


def loads(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """The rows by their load: the values of the axes that are not of a setting."""
    names = [name for name in axes if name not in OF_A_SETTING]

    def load(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    order = {key: place for place, key in enumerate(dict.fromkeys(map(load, rows)))}
    found = groupby(sorted(rows, key=lambda row: order[load(row)]), load)
    return [(key, list(mine)) for key, mine in found]


def print_rows(rows: Sequence[Row], axes: Sequence[str], console: Console) -> None:
    """A table of all settings by load, the fastest of each marked, and what could not run."""
    names = [name for name in axes if name not in OF_A_SETTING]
    ran = [row for row in rows if row["refused"] is None]
    cells = []
    for load, mine in loads(ran, axes):
        best = max(row["tokens_per_second"] for row in mine)
        for row in mine:
            mark = " *" if row["tokens_per_second"] == best and len(mine) > 1 else ""
            numbers = ("-" if row[name] is None else form.format(row[name]) for _, name, form in COLUMNS)
            cells.append([row["setting"] + mark, *map(shown, load), *numbers])
    titles = ["setting", *(name.replace("_", " ") for name in names), *(title for title, _, _ in COLUMNS)]
    console.print(fitted_table(titles, cells, console.width, drop=DROPPED))
    console.print("[dim]*: fastest of its load[/dim]", highlight=False)
    failed = sorted((row for row in rows if row["refused"]), key=lambda row: str(row["refused"]))
    for reason, same in groupby(failed, key=lambda row: row["refused"]):
        labels = ", ".join(dict.fromkeys(row["setting"] for row in same))
        console.print(f"[yellow]not run: {labels}: {reason}[/yellow]", highlight=False)
    outside = [row for row in ran if row["extrapolated"]]
    if outside:
        console.print(
            f"[yellow]extrapolated: {len(outside)} of {len(ran)}, e.g. {outside[0]['setting']}: "
            f"{outside[0]['extrapolated']}[/yellow]",
            highlight=False,
        )
    console.print(f"[dim]{METHOD}[/dim]", highlight=False)


def plot_rows(rows: Sequence[Row], axes: Sequence[str], path: Path) -> None:
    """Speedup over plain decoding along the longest axis of numbers, a line per setting, a panel per load."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ran = [row for row in rows if row["refused"] is None]
    along = _along(ran, axes)
    others = [name for name in axes if name != along]
    panels = loads(ran, [name for name in others if name not in OF_A_SETTING])[:MOST_PANELS]
    wide = 2 if len(panels) == 4 else min(3, len(panels))
    tall = -(-len(panels) // wide)
    figure, grid = pyplot.subplots(
        tall,
        wide,
        figsize=(4.2 * wide + 1, 3.2 * tall + 0.6),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for axes_, (load, mine) in zip(grid.flat, panels, strict=False):
        _draw_lines(axes_, mine, along, [name for name in others if name in OF_A_SETTING])
        names = [name for name in others if name not in OF_A_SETTING]
        axes_.set_title(", ".join(f"{n} {shown(v)}" for n, v in zip(names, load, strict=True)), fontsize=10)
    for axes_ in list(grid.flat)[len(panels) :]:
        axes_.set_visible(False)
    for row in grid:
        row[0].set_ylabel("speedup over plain decoding")
    handles = {
        label: line
        for each in grid.flat
        for line, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(5, 2 * wide),
        fontsize=9,
        frameon=False,
    )
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")
    pyplot.close(figure)


def _along(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """The axis with the most numbers; of those that are alike, one of the setting."""

    def count(name: str) -> tuple[int, bool]:
        values = {row.get(name) for row in rows}
        return len({value for value in values if isinstance(value, int | float)}), name in OF_A_SETTING

    return max(axes, key=count)


def _draw_lines(axes: Any, rows: Sequence[Row], along: str, kinds: Sequence[str]) -> None:
    """A line for each setting but for what the axis varies; what the axis does not touch lies across."""

    def kind(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("policy", *kinds))

    ordered = sorted(rows, key=lambda row: str(kind(row)))
    styles: dict[str, int] = {}
    for key, mine in groupby(ordered, kind):
        points = sorted((row[along], row["speedup_vs_ar"]) for row in mine if row[along] is not None)
        policy = str(key[0])
        number = styles[policy] = styles.get(policy, -1) + 1
        look = {"color": find_policy(policy).colour, "linestyle": ("-", "--", ":", "-.")[number % 4]}
        parts = zip(("policy", *kinds), key, strict=True)
        words = (f"{name} {shown(part)}" for name, part in parts if name != "policy" and part is not None)
        label = " ".join([policy, *words])
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker="o", markersize=4, label=label, **look)
        elif policy != "ar":
            axes.axhline(max(row["speedup_vs_ar"] for row in mine), label=label, **look)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel(along.replace("_", " "))
    values = sorted({row[along] for row in rows if isinstance(row[along], int | float)})
    if len(values) > 2 and values[0] > 0 and values[-1] / values[0] > 12:
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    axes.grid(alpha=0.3)
