"""No predicted value enters its own fit, and no flagged value enters any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.papers.cells import PAPERS, PaperCell, load_cells
from analysis.papers.forecast import Forecast
from analysis.papers.predicted import PredictedPaper, predict_paper

RESULTS = ("tok_s", "speedup", "SR", "tau", "M", "accuracy_EM", "TTFT_ratio_vs_SD")
"""Values of tables, which can be changed at will; set-ups (K = 5) cannot."""


@pytest.fixture(scope="module", params=PAPERS)
def found(request: pytest.FixtureRequest) -> PredictedPaper:
    return predict_paper(request.param, simulate=False)


def told(forecast: Forecast) -> tuple[object, ...]:
    """All that is predicted for a cell, without the cell."""
    return forecast.estimate, forecast.known, forecast.naive, forecast.printed, forecast.coin


def again(found: PredictedPaper, row: int, cells: list[PaperCell]) -> Forecast:
    return next(
        f for f in predict_paper(found.paper, simulate=False, cells=cells).forecasts if f.cell.row == row
    )


def changed(cell: PaperCell, factor: float) -> PaperCell:
    return replace(cell, printed=f"{cell.value * factor:.6f}")


def fits(found: PredictedPaper) -> list[Forecast]:
    """The first or the last forecast, in turn, of every fit: law, table, method."""
    groups: dict[tuple[str, ...], list[Forecast]] = {}
    for f in found.forecasts:
        groups.setdefault((f.law, f.cell.table, f.cell.method, f.cell.target), []).append(f)
    return [group[-(i % 2)] for i, group in enumerate(groups.values())]


def test_no_forecast_lists_its_own_cell_or_a_flagged_one(found: PredictedPaper) -> None:
    for forecast in found.forecasts:
        rows = {cell.row for cell in forecast.used}
        assert forecast.cell.row not in rows
        assert not rows & set(found.flags)


def test_a_perturbed_cell_leaves_its_own_prediction_alone(found: PredictedPaper) -> None:
    for forecast in fits(found):
        row = forecast.cell.row
        cells = [changed(c, 1.37) if c.row == row else c for c in found.cells]
        assert told(again(found, row, cells)) == told(forecast), forecast


def test_a_law_depends_on_no_cell_that_it_does_not_list(found: PredictedPaper) -> None:
    for forecast in fits(found)[::2]:
        kept = {cell.row for cell in forecast.used}
        cells = [
            changed(c, 1.03) if c.value_name in RESULTS and c.row not in kept else c for c in found.cells
        ]
        after = again(found, forecast.cell.row, cells)
        assert (after.estimate, after.known) == (forecast.estimate, forecast.known), forecast


def test_a_law_does_depend_on_what_it_lists(found: PredictedPaper) -> None:
    forecast = next(f for f in found.forecasts if f.used)
    kept = {cell.row for cell in forecast.used}
    cells = [changed(c, 1.03) if c.value_name in RESULTS and c.row in kept else c for c in found.cells]
    assert again(found, forecast.cell.row, cells).estimate != forecast.estimate


def test_flagged_values_can_be_anything() -> None:
    for paper in PAPERS:
        before = predict_paper(paper, simulate=False)
        cells = [
            changed(c, 1.5) if c.row in before.flags and c.value == c.value else c for c in load_cells(paper)
        ]
        after = predict_paper(paper, simulate=False, cells=cells)
        assert [told(f) for f in after.forecasts] == [told(f) for f in before.forecasts]
