"""What `python -m analysis.papers` says: tables for people, Markdown, JSON for machines, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.papers.cells import PaperCell, read_csv
from analysis.papers.forecast import Known
from analysis.papers.predicted import ROLES, PredictedPaper, as_dict, summarise
from analysis.results import Row
from analysis.show import Column, markdown, markdown_of, save, yes
from analysis.study import Picture
from hardware_profiles.files import to_json
from policies.commandline import wrapped_table

if TYPE_CHECKING:
    from rich.console import Console

METHOD = (
    "errors: median / worst of |predicted / reported - 1|; naive: mean ratio of the method's other rows to "
    "their baselines, times this row's baseline; inside: printed values in the interval that the quantities "
    "which the paper withholds leave; width: its median, high / low - 1"
)


def _errors(errors: Mapping[str, float]) -> str:
    return f"{100 * errors['median']:.1f} / {errors['worst']:.1%}"


SUMMARY = (
    Column("paper", "paper"),
    Column("method: value", "method"),
    Column("n", "predicted"),
    *(Column(name, name, _errors) for name in ("law", "simulated", "naive")),
    Column("inside", lambda line: f"{line['inside']}/{line['predicted']}" if line["predicted"] else None),
    Column("width", "width", "{:.0%}"),
    Column("flagged", "flagged"),
)
"""Columns of the lines of `summarise`."""


def _place(cell: PaperCell) -> str:
    dataset = "" if cell.dataset.startswith("mean of") else cell.dataset
    parts = (cell.method, cell.target, dataset, cell.temperature and f"T={cell.temperature}", cell.param)
    return " ".join([*(part for part in parts if part), cell.value_name])


def _assumed(row: Row) -> str | None:
    """Names of the quantities that leave an interval."""
    names = [
        known["name"]
        for known in row["known"]
        if known["source"] == "assumed" and known["low"] < known["high"]
    ]
    return ", ".join(names) or None


ROWS = (
    Column("table", lambda row: row["table"].partition(" (")[0].removesuffix(" numerical results")),
    Column("cell", "cell", _place),
    Column("re-\nported", lambda row: row["cell"].printed),
    Column("law", "predicted", "{:.4g}"),
    Column("interval", lambda row: f"{row['low']:.4g}-{row['high']:.4g}"),
    Column("in", lambda row: "flag" if row["flag"] else yes(row["inside"])),
    Column("simu-\nlated", "simulated", "{:.4g}"),
    Column("naive", "naive", "{:.4g}"),
    Column("error", "error", "{:+.1%}"),
    Column("assumed", _assumed),
)
WORDS = (0, 1, 9)
"""The columns whose texts may be broken: a number over two lines is misread."""
NEEDS = Column("identifiability", lambda row: f"{row['law']}: {row['identifiability']}")
FIGURES = ("paper", "figure", "shows", "command", "stored", "shape", "why")


def _rows(of: PredictedPaper) -> list[Row]:
    """The rows of a predicted paper, with their cells."""
    return [{**row, "cell": f.cell} for f, row in zip(of.forecasts, as_dict(of)["rows"], strict=True)]


def as_json(of: Sequence[PredictedPaper]) -> str:
    """One object for one paper, a list for several; numbers to 12 digits."""
    objects = [_rounded(as_dict(one)) for one in of]
    return to_json(objects[0] if len(objects) == 1 else objects, indent=1)


def _rounded(value: Any) -> Any:
    """Without the last digits, which differ between versions of numerical libraries."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def markdown_summary(of: Sequence[PredictedPaper]) -> str:
    """The summary as a Markdown table."""
    return markdown_of(SUMMARY, [line for one in of for line in summarise(one)], right=2)


def markdown_counts(of: Sequence[PredictedPaper]) -> str:
    """What became of every printed value, as a Markdown table."""
    rows = [(s.paper, *(str(s.counts[role]) for role in ROLES), str(len(s.cells))) for s in of]
    return markdown(("paper", *ROLES, "values"), rows, right=1)


def markdown_summaries(of: Sequence[PredictedPaper]) -> str:
    """Summary, account of all values, and how to read them."""
    return "\n\n".join([markdown_summary(of), markdown_counts(of), METHOD])


def markdown_rows(of: Sequence[PredictedPaper]) -> str:
    """Rows with their identifiability, remarks, and the summary."""
    columns = [*(replace(column, title=column.title.replace("-\n", "")) for column in ROWS[:-1]), NEEDS]
    parts = []
    for one in of:
        parts += [f"## {one.paper}", markdown_of(columns, _rows(one), right=2)]
        for title, texts in _remarks(one).items():
            parts += [f"{title.capitalize()}:", "\n".join(f"- {text}" for text in texts)]
    return "\n\n".join([*parts, "## Summary", markdown_summaries(of)])


def _remarks(of: PredictedPaper) -> dict[str, list[str]]:
    """What is said of cells, and of how many, by what they are."""
    remarks = {
        "flagged, not fitted": of.flags.values(),
        "not simulated": [f.unsimulated for f in of.forecasts if f.unsimulated],
        "no prediction targets": of.others.values(),
    }
    return {title: _counted(reasons) for title, reasons in remarks.items() if reasons}


def _counted(reasons: Iterable[str]) -> list[str]:
    return [f"{reason} ({count} values)" for reason, count in Counter(reasons).items()]


def print_study(of: PredictedPaper, console: Console) -> None:
    """Rows, what was known for them, and remarks."""
    cells = [[column.cell(row) for column in ROWS] for row in _rows(of)]
    numbers = [column for column in range(len(ROWS)) if column not in WORDS]
    titles = [column.title for column in ROWS]
    console.print(wrapped_table(titles, cells, title=of.paper, right=numbers, whole=numbers))
    needs = {"identifiability (numbers by row: --markdown, --json)": _needs(of)}
    for title, texts in (needs | _remarks(of)).items():
        console.print(title, style="bold")
        for text in texts:
            console.print(f"  {text}", highlight=False, markup=False)


def _needs(of: PredictedPaper) -> list[str]:
    """By law: which quantities were given, fitted and assumed, the latter with the widest range."""
    by_law: dict[str, dict[str, list[Known]]] = {}
    for forecast in of.forecasts:
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


def print_summary(of: Sequence[PredictedPaper], console: Console) -> None:
    """The summary of several papers."""
    lines: list[list[str] | None] = []
    for one in of:
        lines += [[column.cell(line) for column in SUMMARY] for line in summarise(one)]
        lines.append(None)
    titles = [column.title for column in SUMMARY]
    console.print(wrapped_table(titles, lines, title="summary", right=range(2, len(titles))))
    for one in of:
        counts = ", ".join(f"{number} {role}" for role, number in one.counts.items())
        console.print(f"{one.paper}: {len(one.cells)} printed values: {counts}", highlight=False)
    console.print(f"[dim]{METHOD}[/dim]")


def print_figures(console: Console) -> None:
    """The index of the papers' figures and ablations."""
    rows = []
    for entry in read_csv("figures"):
        where = entry["command"] if entry["stored"] == "-" else f"{entry['command']} -> {entry['stored']}"
        rows.append(
            (f"{entry['paper']} {entry['figure']}", entry["shows"], where, entry["shape"], entry["why"])
        )
    titles = ("figure", "shows", "command -> stored result", "shape", "why")
    console.print(wrapped_table(titles, rows, lines=True))


def markdown_figures() -> str:
    """The index of the papers' figures as a Markdown table."""
    return markdown(FIGURES, [[entry[name] for name in FIGURES] for entry in read_csv("figures")])


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


def plot(predicted: Row, folder: Path) -> Path:
    """Write `<paper>.png` of a paper, as `predicted.as_dict` gives it, into a folder; returns the file."""
    return save(picture(predicted), folder / f"{predicted['paper']}.png")


def picture(predicted: Row) -> Picture:
    """Predicted against printed values, a panel per unit."""
    groups, overall = panels(predicted["rows"]), predicted["summary"][-1]
    law = "-" if overall["law"] is None else f"{overall['law']['median']:.1%}"

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, len(groups), squeeze=False)[0]
        for place, (unit, rows) in zip(axes, groups.items(), strict=True):
            _panel(place, unit, rows)
        figure.suptitle(
            f"{predicted['paper']}: {overall['predicted']} speeds predicted, median error {law}\n"
            f"{overall['inside']} inside their interval; hollow: flagged",
            fontsize=10,
        )

    return Picture(draw, (6.2 * len(groups), 6.4))


def _panel(axes: Any, unit: str, rows: Sequence[Row]) -> None:
    for number, name in enumerate(dict.fromkeys(row["label"] for row in rows)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        mine = [row for row in rows if row["label"] == name]
        x, y, low, high = ([row[n] for row in mine] for n in ("reported", "predicted", "low", "high"))
        bars = np.maximum(0.0, [np.subtract(y, low), np.subtract(high, y)])
        axes.errorbar(x, y, yerr=bars, fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.35)
        faces = ["none" if row["flag"] else colour for row in mine]
        axes.scatter(
            x, y, s=22, marker=marker, facecolors=faces, edgecolors=colour, linewidths=0.9, label=name
        )
    values = [row[name] for row in rows for name in ("reported", "predicted")]
    low, high = 0.9 * min(values), 1.1 * max(values)
    axes.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle="--", zorder=0)
    # Intervals may be far wider than the values: they are cut, or all points would lie on one spot.
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set_xlabel(f"{unit}, reported", fontsize=9)
    axes.set_ylabel(f"{unit}, predicted by law", fontsize=9)
    axes.grid(alpha=0.3)
    # Below the axes: inside them it would hide points of papers with many methods.
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False)
