"""What `python -m analysis.papers` says: tables for people, Markdown, JSON for machines, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from analysis.papers.cells import read_csv
from analysis.papers.forecast import Forecast, relative
from analysis.papers.study import ROLES, TOTAL, Errors, Line, Study, as_dict, summarise
from analysis.show import markdown as markdown_table
from analysis.show import save
from analysis.study import Picture
from hardware_profiles.files import to_json

if TYPE_CHECKING:
    from rich.console import Console


SUMMARY = (
    "paper",
    "method: value",
    "n",
    "law",
    "simulated",
    "naive",
    "inside",
    "width",
    "flagged",
)
ROWS = ("table", "cell", "re-\nported", "law", "interval", "in", "simu-\nlated", "naive", "error", "assumed")
HEADER = tuple(title.replace("-\n", "") for title in ROWS[:-1])
FIGURES = ("paper", "figure", "shows", "command", "stored", "shape", "why")
METHOD = (
    "errors: median / worst of |predicted / reported - 1|; naive: mean ratio of the method's other rows to "
    "their baselines, times this row's baseline; inside: printed values in the interval that the quantities "
    "which the paper withholds leave; width: its median, high / low - 1"
)


def as_json(found: Sequence[Study]) -> str:
    """One object for one paper, a list for several; numbers to 12 digits."""
    objects = [_rounded(as_dict(one)) for one in found]
    return to_json(objects[0] if len(objects) == 1 else objects, indent=1)


def _rounded(value: Any) -> Any:
    """Without the last digits, which differ between versions of numerical libraries."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def summary_cells(line: Line) -> tuple[str, ...]:
    """A summary line as text, in the order of `SUMMARY`."""
    errors = [_errors(kind) for kind in (line.law, line.simulated, line.naive)]
    inside = f"{line.inside}/{line.predicted}" if line.predicted else "-"
    width = "-" if line.width is None else f"{line.width:.0%}"
    return (line.paper, line.method, str(line.predicted), *errors, inside, width, str(line.flagged))


def _errors(errors: Errors | None) -> str:
    return "-" if errors is None else f"{100 * errors.median:.1f} / {errors.worst:.1%}"


def row_cells(forecast: Forecast, flag: str | None) -> tuple[str, ...]:
    """A predicted cell as text, in the order of `ROWS`."""
    cell, estimate = forecast.cell, forecast.estimate
    simulated = "-" if forecast.simulated is None else f"{forecast.simulated:.4g}"
    naive = "-" if forecast.naive is None else f"{forecast.naive:.4g}"
    inside = "flag" if flag else ("yes" if forecast.inside else "NO")
    return (
        cell.table.partition(" (")[0].removesuffix(" numerical results"),
        _place(forecast),
        cell.printed,
        f"{estimate.value:.4g}",
        f"{estimate.low:.4g}-{estimate.high:.4g}",
        inside,
        simulated,
        naive,
        f"{relative(estimate.value, cell.value):+.1%}",
        ", ".join(k.name for k in forecast.known if k.source == "assumed" and k.low < k.high) or "-",
    )


def _place(forecast: Forecast) -> str:
    cell = forecast.cell
    dataset = "" if cell.dataset.startswith("mean of") else cell.dataset
    parts = (cell.method, cell.target, dataset, cell.temperature and f"T={cell.temperature}", cell.param)
    return " ".join([*(part for part in parts if part), cell.value_name])


def markdown_summary(found: Sequence[Study]) -> str:
    """The summary as a Markdown table."""
    return markdown_table(SUMMARY, [summary_cells(line) for one in found for line in summarise(one)], right=2)


def markdown_counts(found: Sequence[Study]) -> str:
    """What became of every printed value, as a Markdown table."""
    rows = [(s.paper, *(str(s.counts[role]) for role in ROLES), str(len(s.cells))) for s in found]
    return markdown_table(("paper", *ROLES, "values"), rows, right=1)


def markdown_summaries(found: Sequence[Study]) -> str:
    """Summary, account of all values, and how to read them."""
    return "\n\n".join([markdown_summary(found), markdown_counts(found), METHOD])


def markdown(found: Sequence[Study]) -> str:
    """Rows with their identifiability, flags, and the summary."""
    parts = []
    for one in found:
        rows = [
            (*row_cells(f, one.flags.get(f.cell.row))[:-1], f"{f.law}: {f.identifiability}")
            for f in one.forecasts
        ]
        parts += [f"## {one.paper}", markdown_table((*HEADER, "identifiability"), rows, right=2)]
        if one.flags:
            parts += ["Flagged, not fitted:", "\n".join(f"- {text}" for text in _flags(one))]
        if reasons := _unsimulated(one):
            parts += ["Not simulated:", "\n".join(f"- {text}" for text in reasons)]
        if one.others:
            parts += ["No prediction targets:", "\n".join(f"- {text}" for text in _others(one))]
    return "\n\n".join([*parts, "## Summary", markdown_summaries(found)])


def _flags(found: Study) -> list[str]:
    reasons = dict.fromkeys(found.flags[cell.row] for cell in found.cells if cell.row in found.flags)
    return [f"{reason} ({list(found.flags.values()).count(reason)} values)" for reason in reasons]


def _unsimulated(found: Study) -> list[str]:
    return _counted(f.unsimulated for f in found.forecasts if f.unsimulated)


def _others(found: Study) -> list[str]:
    return _counted(found.others.values())


def _counted(reasons: Iterable[str]) -> list[str]:
    return [f"{reason} ({count} values)" for reason, count in Counter(reasons).items()]


def print_study(found: Study, console: Console) -> None:
    """Rows, what was known for them, flags and the summary of a paper."""
    from rich.table import Table

    table = Table(title=found.paper, header_style="bold", padding=(0, 0, 0, 1))
    for title in ROWS:
        # Only words may be broken: a number over two lines is misread.
        words = title in ("table", "cell", "assumed")
        table.add_column(title, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for forecast in found.forecasts:
        table.add_row(*row_cells(forecast, found.flags.get(forecast.cell.row)))
    console.print(table)
    console.print("identifiability (numbers by row: --markdown, --json)", style="bold")
    for text in _needs(found):
        console.print(f"  {text}", highlight=False, markup=False)
    for title, texts in (
        ("flagged, not fitted", _flags(found)),
        ("not simulated", _unsimulated(found)),
        ("no prediction targets", _others(found)),
    ):
        if texts:
            console.print(title, style="bold")
        for text in texts:
            console.print(f"  {text}", highlight=False, markup=False)


def _needs(found: Study) -> list[str]:
    """By law: which quantities were given, fitted and assumed, the latter with the widest range."""
    by_law: dict[str, dict[str, list[Any]]] = {}
    for forecast in found.forecasts:
        for known in forecast.known:
            by_law.setdefault(forecast.law, {}).setdefault(known.name, []).append(known)
    texts = []
    for law, quantities in by_law.items():
        parts = []
        for name, entries in quantities.items():
            low, high = min(k.low for k in entries), max(k.high for k in entries)
            parts.append(f"{name} {entries[0].source} {low:.3g}..{high:.3g}")
        texts.append(f"{law}: {'; '.join(parts)}")
    return texts


def print_summary(found: Sequence[Study], console: Console) -> None:
    """The summary of several papers."""
    from rich.table import Table

    table = Table(title="summary", header_style="bold", padding=(0, 0, 0, 1))
    for number, title in enumerate(SUMMARY):
        table.add_column(title, justify="left" if number < 2 else "right", overflow="fold")
    for one in found:
        for line in summarise(one):
            table.add_row(*summary_cells(line), end_section=line.method == TOTAL)
    console.print(table)
    for one in found:
        counts = ", ".join(f"{number} {role}" for role, number in one.counts.items())
        console.print(f"{one.paper}: {len(one.cells)} printed values: {counts}", highlight=False)
    console.print(f"[dim]{METHOD}[/dim]")


def print_figures(console: Console) -> None:
    """The index of the papers' figures and ablations."""
    from rich.table import Table

    table = Table(header_style="bold", padding=(0, 0, 0, 1), show_lines=True)
    for title in ("figure", "shows", "command -> stored result", "shape", "why"):
        table.add_column(title, overflow="fold")
    for entry in read_csv("figures"):
        where = entry["command"] if entry["stored"] == "-" else f"{entry['command']} -> {entry['stored']}"
        table.add_row(
            f"{entry['paper']} {entry['figure']}", entry["shows"], where, entry["shape"], entry["why"]
        )
    console.print(table)


def markdown_figures() -> str:
    """The same as Markdown."""
    rows = [tuple(entry[name] for name in FIGURES) for entry in read_csv("figures")]
    return markdown_table(FIGURES, rows, right=len(FIGURES))


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
    return save(Picture(partial(draw, found=found), size(found)), folder / f"{found['paper']}.png")


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
