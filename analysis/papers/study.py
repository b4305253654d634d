"""A paper in whole: forecasts, and what every one of its printed values is to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Literal, TypeAlias

from analysis.papers.cells import PAPERS, Book, Cell, load_cells
from analysis.papers.forecast import Forecast, Reasons
from analysis.papers.tossing import toss

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
