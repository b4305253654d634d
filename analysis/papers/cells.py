"""Printed values of the papers, as stored in `data/*.csv`, and remarks on those that are not used."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
PAPERS = ("ssd", "double", "duodecoding", "rasd", "mirror")


@dataclass(frozen=True, slots=True)
class PaperCell:
    """One printed value, with the columns of its file.

    Attributes:
        row: Its row in the file, from 1; the identity of the cell.
        table: Table, figure or passage.
        temperature: As printed; empty where the paper does not say.
        param: Other settings, `name=value` joined by `;`.
        value_name: What the value is.
        printed: The printed digits.
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


def read_csv(name: str) -> Iterator[dict[str, str]]:
    """Rows of one of the package's data files."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def load_cells(paper: str) -> list[PaperCell]:
    """All printed values of a paper.

    Raises:
        ValueError: There is no such paper.
    """
    if paper not in PAPERS:
        raise ValueError(f"no paper {paper!r}; there are {', '.join(PAPERS)}")
    cells = []
    for number, entry in enumerate(read_csv(paper), start=1):
        columns = {k: v for k, v in entry.items() if k not in ("value", "src_line")}
        cells.append(PaperCell(row=number, printed=entry["value"], **columns))
    return cells


@dataclass(frozen=True, slots=True)
class Remark:
    """What is said of some cells.

    Attributes:
        pattern: Texts by column, one of which the cell has there.
        reason: Why the cells are not used.
    """

    pattern: dict[str, tuple[str, ...]]
    reason: str

    def matches(self, cell: PaperCell) -> bool:
        """Whether the remark is about this cell."""
        return all(getattr(cell, name) in texts for name, texts in self.pattern.items())


def load_remarks(name: str) -> list[Remark]:
    """The remarks of `flags` (what cannot be right) or of `excuses` (why a cell is no prediction target).

    An empty column matches anything, `a|b` one of both texts.
    """
    return [
        Remark({k: tuple(v.split("|")) for k, v in entry.items() if v and k != "reason"}, entry["reason"])
        for entry in read_csv(name)
    ]


def reasons_of(cells: Iterable[PaperCell], remarks: list[Remark]) -> dict[int, str]:
    """The first remark on each cell, by row; cells without any are left out."""
    return {cell.row: r.reason for cell in cells for r in reversed(remarks) if r.matches(cell)}


class Paper:
    """The cells of a paper, looked up by their columns; flagged ones cannot be used as inputs.

    Args:
        cells: All cells of the paper.

    Attributes:
        flags: Reason by row of what cannot be right.
    """

    def __init__(self, cells: list[PaperCell]) -> None:
        self.cells = cells
        self.flags = reasons_of(cells, load_remarks("flags"))
        self._with: dict[tuple[str, Any], list[PaperCell]] = defaultdict(list)
        for cell in cells:
            for column in fields(cell):
                self._with[column.name, getattr(cell, column.name)].append(cell)

    def all(self, **columns: Any) -> list[PaperCell]:
        """Cells whose columns are as given (a tuple: any of them), flagged ones included."""
        wanted = [(name, value if isinstance(value, tuple) else (value,)) for name, value in columns.items()]
        exact = (self._with.get((name, texts[0]), []) for name, texts in wanted if len(texts) == 1)
        fewest = min(exact, key=len, default=self.cells)
        return [c for c in fewest if all(getattr(c, name) in texts for name, texts in wanted)]

    def sound(self, **columns: Any) -> list[PaperCell]:
        """Cells whose columns are as given, without the flagged ones."""
        return [cell for cell in self.all(**columns) if cell.row not in self.flags]

    def one(self, **columns: Any) -> PaperCell | None:
        """The one unflagged cell of that description; None where there is none.

        Raises:
            ValueError: There are several.
        """
        cells = self.sound(**columns)
        if len(cells) > 1:
            raise ValueError(f"{len(cells)} cells match {columns}")
        return cells[0] if cells else None

    def need(self, **columns: Any) -> PaperCell:
        """The one unflagged cell of that description.

        Raises:
            ValueError: There is none, or several.
        """
        cell = self.one(**columns)
        if cell is None:
            raise ValueError(f"no usable cell matches {columns}")
        return cell

    def beside(self, cell: PaperCell, **changes: Any) -> PaperCell | None:
        """The unflagged cell at the same place of the same table but for `changes`."""
        same = ("table", "target", "dataset", "temperature", "param", "value_name")
        return self.one(**{name: getattr(cell, name) for name in same} | changes)
