"""How results are shown: tables for people, Markdown for notebooks, and panels of pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.results import EVERY, Row
from analysis.study import Picture
from hardware_profiles.files import atomic_write
from policies.commandline import fitted_table
from policies.curves import HitCurves
from policies.laws.ssd import power_law_hit
from policies.registry import configure, find_policy
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, simulate

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#64b5cd")
WORLDS: dict[str, dict[str, Any]] = {
    "law": {"linestyle": ":", "marker": "|", "markersize": 9, "linewidth": 1.2},
    "simulated": {"linestyle": "-", "marker": "D", "markersize": 4, "linewidth": 1.5},
    "measured": {"linestyle": "none", "marker": "o", "markersize": 8, "markerfacecolor": "none"},
}
"""Law, simulation and measurement look the same everywhere."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its head.
        value: Key of the rows, or a function of a row.
        form: How a value is written: a format, or a function of it; None is `-`.
    """

    title: str
    value: str | Callable[[Row], Any]
    form: str | Callable[[Any], str] = "{}"

    def cell(self, row: Row) -> str:
        """Text of a row."""
        value = row.get(self.value) if isinstance(self.value, str) else self.value(row)
        if value is None:
            return "-"
        return self.form(value) if callable(self.form) else self.form.format(value)


def factor(title: str, world: str) -> Column:
    """A column of speedups over plain decoding."""
    return Column(title, f"{world}_speedup_vs_ar", "{:.2f}")


def by_category(rows: Iterable[Row], cell: Callable[[Row], str], *, every: bool = False) -> list[Column]:
    """A column per category of prompts: what `cell` says of the row of the same setting there.

    Args:
        rows: Of all categories.
        cell: Text of a row.
        every: Whether all prompts together have a column too.
    """
    of = {(row["setting"], row["category"]): row for row in rows}

    def column(category: str) -> Column:
        def text(row: Row) -> str | None:
            own = of.get((row["setting"], category))
            return None if own is None else cell(own)

        return Column(category, text)

    return [column(name) for name in dict.fromkeys(c for _, c in of) if every or name != EVERY]


def milli(seconds: float) -> str:
    """Milliseconds."""
    return f"{1e3 * seconds:.1f}"


def micro(seconds: float) -> str:
    """Microseconds, with the unit."""
    return f"{1e6 * seconds:.0f} us"


def yes(value: bool) -> str:
    """`yes`, or a loud no."""
    return "yes" if value else "NO"


SETTING = Column("setting", "setting")
BATCH = Column("batch", "batch")
OPINIONS = (
    factor("law", "law"),
    factor("simulated", "simulated"),
    factor("measured", "measured"),
    Column("spread", "measured_spread", "±{:.1%}"),
    Column("error", "simulated_error", "{:+.1%}"),
)
"""What every comparison shows."""
TEXT = Column("text", "identical", lambda same: "identical" if same else "DIFFERS")


def table(
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    left: Sequence[str] = (),
    drop: Sequence[str | tuple[str, ...]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Table:
    """Rows for people; where there is no room columns go whole (`policies.commandline.fitted_table`).

    The first column and those titled in `left` are aligned to the left; columns go in the order `drop` of
    their titles, by default the last first, to three; `notes` are said below, by the column they explain.
    """
    titles = [column.title for column in columns]
    cells = [[column.cell(row) for column in columns] for row in rows]
    order: Sequence[str | tuple[str, ...]] = titles[:2:-1] if drop is None else drop
    return fitted_table(titles, cells, drop=order, left=left, title=title or None, notes=notes)


def used(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns in which any row has something."""
    return [column for column in columns if any(column.cell(row) != "-" for row in rows)]


def markdown(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int | Collection[int] | None = None
) -> str:
    """A Markdown table; its columns from `right` on, or those in it, are aligned to the right."""
    numbers = range(right, len(head)) if isinstance(right, int) else (right or ())
    ruler = ["--:" if column in numbers else "---" for column in range(len(head))]
    signs = str.maketrans({"|": "\\|", "*": "\\*", "<": "&lt;"})  # else columns, emphasis, tags
    clean = ([cell.translate(signs) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *clean))


def markdown_of(columns: Sequence[Column], rows: Iterable[Row], *, right: int = 1) -> str:
    """A Markdown table of these columns; from `right` on they are aligned to the right."""
    lines = [[column.cell(row) for column in columns] for row in rows]
    return markdown([column.title for column in columns], lines, right=right)


def save(picture: Picture, path: Path) -> Path:
    """Draw a picture into a file; its suffix says the format.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path


def values(rows: Sequence[Row], name: str) -> np.ndarray:
    """A column as numbers; NaN where there is none."""
    return np.array([np.nan if row.get(name) is None else float(row[name]) for row in rows])


def best_world(rows: Sequence[Row]) -> str:
    """`measured` where anything was, else `simulated`."""
    return "measured" if any(row.get("measured_speedup_vs_ar") is not None for row in rows) else "simulated"


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
    """A figure over the column `x`, in whose order the rows come: a line per world that has a value.

    The figure is a column less the world's name, e.g. `speedup_vs_ar`; worlds differ in line and marker.
    """
    at = values(rows, x)
    for world in worlds:
        heights = values(rows, f"{world}_{figure}")
        if np.isnan(heights).all():
            continue
        if world == "measured" and figure == "speedup_vs_ar":
            low, high = values(rows, "measured_low"), values(rows, "measured_high")
            bars = [(heights - low).clip(min=0), (high - heights).clip(min=0)]
            axes.errorbar(at, heights, yerr=bars, fmt="none", ecolor=colour, capsize=3)
        axes.plot(at, heights, color=colour, label=label if world == "simulated" else None, **WORLDS[world])


def finish(axes: Any, *, x: str, y: str, powers: Sequence[float] = ()) -> None:
    """Labels, grid, and a legend that says which marker is which world."""
    from matplotlib.lines import Line2D

    known = axes.get_legend_handles_labels()
    seen = {line.get_marker() for line in axes.get_lines()}
    looks = ({"label": name, **style} for name, style in WORLDS.items() if style["marker"] in seen)
    worlds = [Line2D([], [], color="#555555", **look) for look in looks]
    axes.legend(handles=[*known[0], *worlds], fontsize=7, ncols=2)
    frame(axes, x=x, y=y, legend=0)
    if powers:  # of two, on a logarithmic axis
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(powers), [f"{tick:g}" for tick in powers])


def frame(axes: Any, *, x: str, y: str = "", legend: float = 8) -> None:
    """Labels, grid, and a legend in letters of a size; 0: none."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=legend)


def name_rows(axes: Any, names: Sequence[str], *, size: float = 8) -> None:
    """Names on the vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.invert_yaxis()


def legend_above(axes: Any) -> None:
    """Above the frame: within it, it would hide points."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)


def draw_lines(
    figure: Any,
    rows: Sequence[Row],
    *,
    by: str,
    x: str,
    label: str,
    panels: Mapping[str, str],
    name: str = "{}",
    powers: Sequence[float] = (),
) -> list[Any]:
    """A panel per figure side by side, in each a line per world and value of a column; returns the axes.

    Args:
        figure: Where to.
        rows: In the order of `x`.
        by: Column whose values have a line each.
        x: Column on the horizontal axis.
        label: Of that axis.
        panels: Labels of the vertical axes by column less the world's name, e.g. `speedup_vs_ar`.
        name: Format of what a line is called.
        powers: See `finish`.
    """
    all_axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for axes, (column, y) in zip(all_axes, panels.items(), strict=True):
        for colour, value in zip(COLOURS, dict.fromkeys(row[by] for row in rows), strict=False):
            mine = [row for row in rows if row[by] == value]
            draw_worlds(axes, mine, x, column, colour=colour, label=name.format(value))
        finish(axes, x=label, y=y, powers=powers)
        if column == "speedup_vs_ar":
            parity(axes)
    return all_axes


def legend_below(axes: Any, *, columns: int) -> None:
    """Outside of the panel and below its label, so that it hides nothing."""
    from matplotlib.transforms import ScaledTranslation

    below_label = ScaledTranslation(0.0, -0.45, axes.figure.dpi_scale_trans)  # inches
    axes.legend(
        fontsize=8,
        ncols=columns,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + below_label,
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.5,
    )


def parity(axes: Any, *, upright: bool = False) -> None:
    """The line at which a setting is as fast as plain decoding."""
    (axes.axvline if upright else axes.axhline)(1.0, color="black", linewidth=0.8, linestyle=(0, (1, 3)))


def bars(
    axes: Any, groups: Mapping[str, Mapping[str, float]], styles: Callable[[str], Row] | None = None
) -> None:
    """Bars side by side: {category: {name: height}}."""
    names = list(dict.fromkeys(name for heights in groups.values() for name in heights))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [j + i * width for j, heights in enumerate(groups.values()) if name in heights]
        heights = [own[name] for own in groups.values() if name in own]
        style = {"color": f"C{i}"} if styles is None else styles(name)
        axes.bar(places, heights, width, label=name, edgecolor="white", **style)
    axes.set_xticks([j + 0.4 - width / 2 for j in range(len(groups))], list(groups))
    axes.set_ylim(top=1.3 * max(max(own.values()) for own in groups.values()))  # room for the names
    axes.legend(fontsize=7, ncols=2, loc="upper right")


def draw_marks(axes: Any, rows: Sequence[Row], column: str, *, scale: float = 1.0, **look: Any) -> None:
    """A column as marks, a line per row; nothing where no row has a value."""
    if np.isfinite(at := scale * values(rows, column)).any():
        axes.plot(at, range(len(rows)), linestyle="", **look)


def opinions(
    axes: Any,
    rows: Sequence[Row],
    names: Sequence[str],
    *,
    figure: str = "speedup_vs_ar",
    label: str = "speedup over plain decoding",
    scale: float = 1.0,
) -> None:
    """The three opinions on every setting, a line each, first row on top.

    Args:
        axes: Where to.
        rows: One per setting.
        names: Of the settings.
        figure: Column less the world's name.
        label: What it is.
        scale: What values are multiplied by.
    """
    looks = {"law": ("x", "#888888"), "simulated": ("D", "#dd8452"), "measured": ("o", "#4c72b0")}
    every = scale * np.array([values(rows, f"{world}_{figure}") for world in looks])
    ends = (np.nanmin(every, axis=0), np.nanmax(every, axis=0))
    axes.hlines(range(len(rows)), *ends, color="#dddddd", linewidth=1.5, zorder=0)
    for world, (marker, colour) in looks.items():
        look: Row = {"marker": marker, "color": colour, "label": world}
        draw_marks(axes, rows, f"{world}_{figure}", scale=scale, markersize=5.5, **look)
    if figure == "speedup_vs_ar":
        parity(axes, upright=True)
    name_rows(axes, names, size=7.5)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    legend_above(axes)


def lines_of(setting: str) -> str:
    """A label without its temperature, over as many short lines as it takes, for an axis.

    The knobs of a tree go without `tree_`.
    """
    first, *words = (word for word in setting.split() if not word.startswith("T="))
    return textwrap.fill(" ".join([first, *(word.removeprefix("tree_") for word in words)]), 34)


def draw_hit_curve(axes: Any, curves: HitCurves) -> None:
    """Recorded hit probability by fan-out, with the power law fitted to it."""
    fanouts = np.array(curves.fanouts)
    axes.plot(fanouts, curves.after_rejection, "o", color="#c44e52", label="after a rejection, recorded")
    axes.plot(fanouts, curves.unconditional, "s", color="#999999", label="nothing rejected, recorded")
    if (law := curves.power_law) is not None:
        fitted = power_law_hit(curves.fanouts, law.exponent, law.scale)
        label = f"1 - {law.scale:.2f} F^-{law.exponent:.2f} (R2 {law.r_squared:.3f})"
        axes.plot(fanouts, fitted, "-", color="#4c72b0", label=label)
    frame(axes, x="fan-out F", y="probability that the token is cached")
    axes.set_ylim(0, 1)


def draw_sweep(axes: Any, scenario: Scenario, lookaheads: Sequence[int], *, fanout: int = 3) -> None:
    """Speedup over AR against lookahead for SD, PEARL and Saguaro: law dashed, simulated solid."""
    inputs = law_inputs(scenario)
    ar = simulate(scenario, configure("ar")).summary.tokens_per_second
    for policy in ("sd", "pearl", "saguaro"):
        knobs: Row = {"fanout": (fanout,), "backup": "primary"} if policy == "saguaro" else {}
        settings = [configure(policy, lookahead=k, **knobs) for k in lookaheads]
        simulated = [simulate(scenario, s).summary.tokens_per_second / ar for s in settings]
        laws = [law_prediction(s, inputs, batch=scenario.batch).speedup_vs_ar for s in settings]
        colour = find_policy(policy).colour
        axes.plot(lookaheads, simulated, "-o", color=colour, markersize=4, label=f"{policy}, simulated")
        if all(value is not None for value in laws):
            axes.plot(lookaheads, laws, "--", color=colour, linewidth=1, label=f"{policy}, law")
    parity(axes)
    frame(axes, x="lookahead K", y="speedup over plain decoding", legend=0)
    axes.legend(fontsize=8, ncols=2)
