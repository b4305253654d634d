"""Printed values of the papers, as stored in `data/*.csv`."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
PAPERS = ("ssd", "double", "duodecoding", "rasd", "mirror")


@dataclass(frozen=True, slots=True)
class Cell:
    """One printed value.

    Attributes:
        row: Its row in the file, from 1; the identity of the cell.
        paper: Which paper.
        table: Table, figure or passage.
        target: Target model.
        draft: Draft model.
        hardware: As printed.
        method: As printed.
        dataset: As printed.
        temperature: As printed; empty where the paper does not say.
        batch: As printed.
        param: Other settings, `name=value` joined by `;`.
        value_name: What the value is.
        printed: The printed digits.
        unit: Of the value.
        note: Remarks of whoever took it down.
        qualifier: `eq`, `approx`, `lt`, `gt`, `upto`, `range_lo` or `range_hi`.
    """

    row: int
    paper: str
    table: str
    target: str
    draft: str
    hardware: str
    method: str
    dataset: str
    temperature: str
    batch: str
    param: str
    value_name: str
    printed: str
    unit: str
    note: str
    qualifier: str

    @property
    def value(self) -> float:
        """The number; NaN for a version string."""
        try:
            return float(Fraction(self.printed))
        except ValueError:
            return math.nan

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit; 0 for exact fractions."""
        if "/" in self.printed or "e" in self.printed:
            return 0.0
        return float(0.5 * 10.0 ** -len(self.printed.partition(".")[2]))

    @property
    def knobs(self) -> dict[str, str]:
        """`param` by name."""
        parts = (part.partition("=") for part in self.param.split(";") if "=" in part)
        return {name: value for name, _, value in parts}

    @property
    def where(self) -> str:
        """What tells it from other cells of its table, for people."""
        said = (self.target, self.dataset, self.temperature and f"T={self.temperature}", self.param)
        return " ".join(part for part in said if part)


def load_cells(paper: str) -> list[Cell]:
    """All printed values of a paper.

    Raises:
        ValueError: There is no such paper.
    """
    if paper not in PAPERS:
        raise ValueError(f"no paper {paper!r}; there are {', '.join(PAPERS)}")
    return [_cell(number, entry) for number, entry in enumerate(read_csv(paper), start=1)]


def _cell(number: int, entry: dict[str, str]) -> Cell:
    kept = {k: v for k, v in entry.items() if k not in ("value", "src_line")}
    return Cell(row=number, printed=entry["value"], **kept)


def read_csv(name: str) -> Iterator[dict[str, str]]:
    """Rows of one of the package's data files."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


@dataclass(frozen=True, slots=True)
class Flag:
    """Cells that cannot be right, and why; an empty pattern matches anything.

    Attributes:
        pattern: Column to required text.
        reason: Why it is not used.
    """

    pattern: dict[str, str]
    reason: str

    def matches(self, cell: Cell) -> bool:
        """Whether the flag is about this cell."""
        return all(getattr(cell, name) == text for name, text in self.pattern.items())


def load_flags() -> list[Flag]:
    """The flags of `data/flags.csv`."""
    return [
        Flag({k: v for k, v in entry.items() if k != "reason" and v}, entry["reason"])
        for entry in read_csv("flags")
    ]


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


class Book:
    """The cells of a paper, looked up by their columns; flagged ones cannot be used as inputs.

    Args:
        cells: All cells of the paper.
    """

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells
        self._by_table: dict[str, list[Cell]] = {}
        for cell in cells:
            self._by_table.setdefault(cell.table, []).append(cell)
        flags = load_flags()
        self.flags = {
            cell.row: flag.reason for cell in cells for flag in reversed(flags) if flag.matches(cell)
        }

    def all(self, **columns: Any) -> list[Cell]:
        """Cells whose columns are as given (a tuple: any of them), flagged ones included."""
        tables = columns.pop("table", None)
        if tables is None:
            cells = self.cells
        else:
            cells = [c for name in _several(tables) for c in self._by_table.get(name, ())]
        for name, value in columns.items():
            wanted = _several(value)
            cells = [c for c in cells if getattr(c, name) in wanted]
        return cells

    def sound(self, **columns: Any) -> list[Cell]:
        """The same without the flagged ones."""
        return [cell for cell in self.all(**columns) if cell.row not in self.flags]

    def one(self, **columns: Any) -> Cell | None:
        """The one unflagged cell of that description; None where there is none.

        Raises:
            ValueError: There are several.
        """
        found = self.sound(**columns)
        if len(found) > 1:
            raise ValueError(f"{len(found)} cells match {columns}")
        return found[0] if found else None

    def need(self, **columns: Any) -> Cell:
        """The one unflagged cell of that description.

        Raises:
            ValueError: There is none, or several.
        """
        cell = self.one(**columns)
        if cell is None:
            raise ValueError(f"no usable cell matches {columns}")
        return cell

    def beside(self, cell: Cell, **changes: Any) -> Cell | None:
        """The unflagged cell at the same place of the same table but for `changes`."""
        same = ("table", "target", "dataset", "temperature", "param", "value_name")
        return self.one(**{name: getattr(cell, name) for name in same} | changes)
