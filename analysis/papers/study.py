"""A paper in whole: forecasts, what each printed value is to them, and errors by method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from analysis.papers.cells import PAPERS, Book, Cell, load_cells
from analysis.papers.forecast import Forecast, Reasons, relative, toss

Role: TypeAlias = Literal["predicted", "baseline", "flagged", "other"]
ROLES: tuple[Role, ...] = ("predicted", "baseline", "flagged", "other")


@dataclass(frozen=True)
class Study:
    """Forecasts of a paper, and the account of its cells.

    Attributes:
        paper: Which.
        cells: All printed values.
        forecasts: Of the cells that can be predicted; flagged ones among them stay out of every summary.
        flags: Reason by row of what cannot be right.
        others: Reason by row of what is no prediction target.
    """

    paper: str
    cells: list[Cell]
    forecasts: list[Forecast]
    flags: dict[int, str]
    others: dict[int, str]

    @cached_property
    def roles(self) -> dict[int, Role]:
        """Role by row: flagged before predicted before baseline (it entered a fit) before other."""
        predicted = {f.cell.row for f in self.forecasts}
        used = {cell.row for f in self.forecasts for cell in f.used}

        def role(cell: Cell) -> Role:
            if cell.row in self.flags:
                return "flagged"
            if cell.row in predicted:
                return "predicted"
            return "baseline" if cell.row in used else "other"

        return {cell.row: role(cell) for cell in self.cells}

    @property
    def counts(self) -> dict[Role, int]:
        """Cells by role."""
        found = Counter(self.roles.values())
        return {role: found[role] for role in ROLES}

    @property
    def sound(self) -> list[Forecast]:
        """Forecasts of cells that are not flagged."""
        return [f for f in self.forecasts if f.cell.row not in self.flags]


def study(paper: str, *, simulate: bool = True, cells: list[Cell] | None = None) -> Study:
    """Predict a paper's cells.

    Args:
        paper: One of `PAPERS`.
        simulate: Whether to toss coins, too (seconds).
        cells: In place of the stored ones.

    Raises:
        ValueError: There is no such paper.
    """
    book = Book(load_cells(paper) if cells is None else cells)
    module = import_module(f"analysis.papers.{paper}")
    forecasts: list[Forecast] = module.forecasts(book)
    if simulate:
        forecasts = [replace(f, simulated=None if f.coin is None else toss(f.coin)) for f in forecasts]
    found = Study(paper, book.cells, forecasts, book.flags, {})
    others = {
        cell.row: reason_of(cell, module.REASONS) for cell in book.cells if found.roles[cell.row] == "other"
    }
    return replace(found, others=others)


def studies(name: str, *, simulate: bool = True) -> list[Study]:
    """The studies that a name stands for: a paper, or `all`."""
    return [study(paper, simulate=simulate) for paper in (PAPERS if name == "all" else (name,))]


def reason_of(cell: Cell, reasons: Reasons) -> str:
    """Why a cell is no prediction target.

    Raises:
        ValueError: Nobody has said why.
    """
    for columns, reason in reasons:
        wanted = ((k, v if isinstance(v, tuple) else (v,)) for k, v in columns.items())
        if all(getattr(cell, name) in values for name, values in wanted):
            return reason
    raise ValueError(f"{cell.paper} row {cell.row} is neither predicted nor excused")


SPEEDS = ("tok_s", "speedup", "SR")
TOTAL = "all speeds"
"""The last line leaves out what is right by definition, accuracies and tokens: a median over those would
flatter."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors without their sign.

    Attributes:
        median: Of the cells that have such a prediction.
        worst: Largest.
        cells: How many there are.
    """

    median: float
    worst: float
    cells: int


@dataclass(frozen=True, slots=True)
class Line:
    """The summary of a method.

    Attributes:
        paper: Which.
        method: As printed, and what of it was predicted.
        predicted: Cells predicted, flagged ones left out.
        law: Errors by law.
        simulated: Errors by simulation, where the simulator has the policy.
        naive: Errors of the mean ratio of the other rows.
        inside: Cells whose printed value lies in the interval.
        width: Median of high / low - 1 of the intervals.
        flagged: Cells of the method that were flagged.
    """

    paper: str
    method: str
    predicted: int
    law: Errors | None
    simulated: Errors | None
    naive: Errors | None
    inside: int
    width: float | None
    flagged: int


def label(cell: Cell) -> str:
    """What a cell is summarised under."""
    if cell.table.startswith("Construction"):
        return "A.3.1, by definition"
    method = cell.method.split(" w/o ")[0] or cell.table
    return f"{method}: {cell.value_name}"


def summarise(found: Study) -> list[Line]:
    """One line per method and kind of value, in the order of the paper's file; the last is of all speeds."""
    flagged = [label(cell) for cell in found.cells if cell.row in found.flags]
    labels = dict.fromkeys(
        label(cell)
        for cell in found.cells
        if found.roles[cell.row] == "predicted" or (cell.row in found.flags and not _prose(cell))
    )
    lines = [
        _line(found.paper, name, [f for f in found.sound if label(f.cell) == name], flagged.count(name))
        for name in labels
    ]
    rest = len(flagged) - sum(line.flagged for line in lines)
    if rest:
        lines.append(_line(found.paper, "prose and captions", [], rest))
    speeds = [f for f in found.sound if f.cell.value_name in SPEEDS]
    unsound = [c for c in found.cells if c.row in found.flags and c.value_name in SPEEDS]
    return [*lines, _line(found.paper, TOTAL, speeds, len(unsound))]


def _prose(cell: Cell) -> bool:
    return not cell.table.startswith("Table")


def _line(paper: str, method: str, forecasts: Sequence[Forecast], flagged: int) -> Line:
    # A band around 0 has no relative width.
    widths = [f.estimate.high / f.estimate.low - 1.0 for f in forecasts if f.estimate.low > 0.0]
    return Line(
        paper=paper,
        method=method,
        predicted=len(forecasts),
        law=_errors([f.error for f in forecasts]),
        simulated=_errors(
            [relative(f.simulated, f.cell.value) for f in forecasts if f.simulated is not None]
        ),
        naive=_errors([relative(f.naive, f.cell.value) for f in forecasts if f.naive is not None]),
        inside=sum(f.inside for f in forecasts),
        width=float(np.median(widths)) if widths else None,
        flagged=flagged,
    )


def _errors(values: Sequence[float]) -> Errors | None:
    if not values:
        return None
    sizes = np.abs(values)
    return Errors(float(np.median(sizes)), float(sizes.max()), len(values))


def as_dict(found: Study) -> dict[str, Any]:
    """A study as one JSON object."""
    roles = found.roles
    return {
        "paper": found.paper,
        "counts": {"cells": len(found.cells), **found.counts},
        "summary": [asdict(line) for line in summarise(found)],
        "rows": [_row(f, found.flags.get(f.cell.row)) for f in found.forecasts],
        "baselines": [row for row, role in roles.items() if role == "baseline"],
        "flagged": [
            {
                "row": cell.row,
                "table": cell.table,
                "method": cell.method,
                "where": cell.where,
                "value_name": cell.value_name,
                "printed": cell.printed,
                "reason": found.flags[cell.row],
            }
            for cell in found.cells
            if cell.row in found.flags
        ],
        "not_targets": {
            reason: [row for row, why in found.others.items() if why == reason]
            for reason in dict.fromkeys(found.others.values())
        },
    }


def _row(forecast: Forecast, flag: str | None) -> dict[str, Any]:
    cell, estimate = forecast.cell, forecast.estimate
    return {
        "row": cell.row,
        "table": cell.table,
        "method": cell.method,
        "where": cell.where,
        "value_name": cell.value_name,
        "label": label(cell),
        "unit": cell.unit,
        "reported": cell.value,
        "law": forecast.law,
        "predicted": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "inside": forecast.inside,
        "error": forecast.error,
        "simulated": forecast.simulated,
        "not_simulated": forecast.unsimulated or None,
        "naive": forecast.naive,
        "as_printed": forecast.printed,
        "known": [asdict(known) for known in forecast.known],
        "identifiability": forecast.identifiability,
        "used": [used.row for used in forecast.used],
        "flag": flag,
    }
