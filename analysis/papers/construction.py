"""SSD's four-token construction (A.3.1), in which everything follows from two laws, F and C."""

from __future__ import annotations

import numpy as np

from analysis.papers.cells import Book, Cell
from analysis.papers.forecast import Estimate, Forecast, given
from policies.laws.sampling import acceptance, hit_given_rejection, rescale, residual
from policies.laws.ssd import FloatArray

TABLE = "Construction 1 (A.3.1)"
NO_TIME = "follows from four printed numbers; no time passes"
_NOISE = 1e-12
"""Printed zeros are exact; what rounding leaves of them is not a residual."""


def construction(book: Book) -> list[Forecast]:
    """Rescaled draft, acceptance, residuals and hit rates of the construction."""
    inputs = [c for c in book.all(table=TABLE) if c.value_name in ("p_target", "p_draft", "C", "F")]
    target, draft = _law(inputs, "p_target"), _law(inputs, "p_draft")
    scale = next(c.value for c in inputs if c.value_name == "C")
    top = int(next(c.value for c in inputs if c.value_name == "F"))
    known = (given("p_target, p_draft", 4), given("F", top), given("C", scale))
    found = []
    for cell in book.all(table=TABLE):
        if cell in inputs:
            continue
        law, value = _predict(cell, target, draft, top, scale)
        estimate = Estimate(value, value, value)
        found.append(Forecast(cell, law, estimate, known, tuple(inputs), unsimulated=NO_TIME))
    return found


def _law(cells: list[Cell], name: str) -> FloatArray:
    return np.array([cell.value for cell in cells if cell.value_name == name])


def _predict(cell: Cell, target: FloatArray, draft: FloatArray, top: int, scale: float) -> tuple[str, float]:
    used = scale if cell.method == "p'_d" else 1.0
    drawn = rescale(draft, top, used)
    token = int(cell.knobs.get("token", "1")) - 1
    match cell.value_name:
        case "p_draft_saguaro":
            return "ssd.def14", float(rescale(draft, top, scale)[token])
        case "acceptance":
            return "ssd.thm1", acceptance(target, drawn)
        case "residual":
            value = float(residual(target, drawn)[token])
            return "ssd.sd", 0.0 if value < _NOISE else value
        case _:
            return "ssd.thm19", 100.0 * hit_given_rejection(target, draft, top, used)
