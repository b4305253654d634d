"""A paper in whole: forecasts, what each printed value is to them, and errors by method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from analysis.papers.cells import PAPERS, Paper, PaperCell, load_cells, load_remarks, reasons_of
from analysis.papers.forecast import Forecast, relative, toss
from analysis.results import Row
from analysis.stats import grouped

CellRole: TypeAlias = Literal["predicted", "baseline", "flagged", "other"]
ROLES: tuple[CellRole, ...] = ("predicted", "baseline", "flagged", "other")
SPEEDS = ("tok_s", "speedup", "SR")
TOTAL = "all speeds"
"""The last line of a summary leaves out what is right by definition, accuracies and tokens: a median over
those would flatter."""


@dataclass(frozen=True)
class PredictedPaper:
    """Forecasts of a paper, and the account of its cells.

    Attributes:
        paper: Which.
        cells: All printed values.
        forecasts: Of the cells that can be predicted; flagged ones among them stay out of every summary.
        flags: Reason by row of what cannot be right.
    """

    paper: str
    cells: list[PaperCell]
    forecasts: list[Forecast]
    flags: dict[int, str]

    @cached_property
    def roles(self) -> dict[int, CellRole]:
        """Role by row: flagged before predicted before baseline (it entered a fit) before other."""
        roles: dict[int, CellRole] = {cell.row: "other" for cell in self.cells}
        roles |= {cell.row: "baseline" for f in self.forecasts for cell in f.used}
        roles |= {f.cell.row: "predicted" for f in self.forecasts}
        return roles | dict.fromkeys(self.flags, "flagged")

    @property
    def counts(self) -> dict[CellRole, int]:
        """Cells by role."""
        counts = Counter(self.roles.values())
        return {role: counts[role] for role in ROLES}

    @property
    def sound(self) -> list[Forecast]:
        """Forecasts of cells that are not flagged."""
        return [f for f in self.forecasts if f.cell.row not in self.flags]

    @cached_property
    def others(self) -> dict[int, str]:
        """Reason by row of what is no prediction target.

        Raises:
            ValueError: Nobody has said why.
        """
        cells = [cell for cell in self.cells if self.roles[cell.row] == "other"]
        reasons = reasons_of(cells, load_remarks("excuses"))
        for cell in cells:
            if cell.row not in reasons:
                raise ValueError(f"{cell.paper} row {cell.row} is neither predicted nor excused")
        return reasons


def predict_paper(
    paper: str, *, simulate: bool = True, cells: list[PaperCell] | None = None
) -> PredictedPaper:
    """Predict a paper's cells, the stored ones or those given; to toss coins, too, takes seconds.

    Raises:
        ValueError: There is no such paper.
    """
    printed = Paper(load_cells(paper) if cells is None else cells)
    forecasts: list[Forecast] = import_module(f"analysis.papers.{paper}").forecasts(printed)
    if simulate:
        forecasts = [replace(f, simulated=None if f.coin is None else toss(f.coin)) for f in forecasts]
    return PredictedPaper(paper, printed.cells, forecasts, printed.flags)


def predict_papers(name: str, *, simulate: bool = True) -> list[PredictedPaper]:
    """The papers that a name stands for, predicted: one, or `all`."""
    return [predict_paper(paper, simulate=simulate) for paper in (PAPERS if name == "all" else (name,))]


def label(cell: PaperCell) -> str:
    """What a cell is summarised under."""
    if cell.table.startswith("Construction"):
        return "A.3.1, by definition"
    method = cell.method.split(" w/o ")[0] or cell.table
    return f"{method}: {cell.value_name}"


def summarise(of: PredictedPaper) -> list[Row]:
    """One line per method and kind of value, in the order of the paper's file; the last is of all speeds.

    Columns: `paper`; `method`, and what of it was predicted; `predicted` cells, flagged ones left out; the
    errors of `law`, `simulated` and `naive` guess (`median` and `worst` without sign, of how many `cells`);
    cells whose printed value lies `inside` the interval; the median `width`, high / low - 1, of the
    intervals; `flagged` cells of the method.
    """
    flagged = [label(cell) for cell in of.cells if cell.row in of.flags]
    labels = dict.fromkeys(
        label(cell)
        for cell in of.cells
        if of.roles[cell.row] == "predicted" or (cell.row in of.flags and cell.table.startswith("Table"))
    )
    lines = [
        _line(of.paper, name, [f for f in of.sound if label(f.cell) == name], flagged.count(name))
        for name in labels
    ]
    if rest := len(flagged) - sum(line["flagged"] for line in lines):
        lines.append(_line(of.paper, "prose and captions", [], rest))
    speeds = [f for f in of.sound if f.cell.value_name in SPEEDS]
    unsound = [c for c in of.cells if c.row in of.flags and c.value_name in SPEEDS]
    return [*lines, _line(of.paper, TOTAL, speeds, len(unsound))]


def _line(paper: str, method: str, forecasts: Sequence[Forecast], flagged: int) -> Row:
    # A band around 0 has no relative width.
    widths = [f.estimate.high / f.estimate.low - 1.0 for f in forecasts if f.estimate.low > 0.0]
    return {
        "paper": paper,
        "method": method,
        "predicted": len(forecasts),
        "law": _errors([(f.estimate.value, f.cell) for f in forecasts]),
        "simulated": _errors([(f.simulated, f.cell) for f in forecasts]),
        "naive": _errors([(f.naive, f.cell) for f in forecasts]),
        "inside": sum(f.inside for f in forecasts),
        "width": float(np.median(widths)) if widths else None,
        "flagged": flagged,
    }


def _errors(pairs: Sequence[tuple[float | None, PaperCell]]) -> Row | None:
    sizes = [abs(relative(predicted, cell.value)) for predicted, cell in pairs if predicted is not None]
    if not sizes:
        return None
    return {"median": float(np.median(sizes)), "worst": max(sizes), "cells": len(sizes)}


def as_dict(of: PredictedPaper) -> Row:
    """A predicted paper as one JSON object."""
    return {
        "paper": of.paper,
        "counts": {"cells": len(of.cells), **of.counts},
        "summary": summarise(of),
        "rows": [_row(f, of.flags.get(f.cell.row)) for f in of.forecasts],
        "baselines": [row for row, role in of.roles.items() if role == "baseline"],
        "flagged": [
            {**_place(cell), "printed": cell.printed, "reason": of.flags[cell.row]}
            for cell in of.cells
            if cell.row in of.flags
        ],
        "not_targets": grouped(of.others, lambda row: of.others[row]),
    }


def _place(cell: PaperCell) -> Row:
    names = ("row", "table", "method", "where", "value_name")
    return {name: getattr(cell, name) for name in names}


def _row(forecast: Forecast, flag: str | None) -> dict[str, Any]:
    cell = forecast.cell
    return {
        **_place(cell),
        "label": label(cell),
        "unit": cell.unit,
        "reported": cell.value,
        "law": forecast.law,
        "predicted": forecast.estimate.value,
        "low": forecast.estimate.low,
        "high": forecast.estimate.high,
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
