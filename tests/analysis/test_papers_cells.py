"""What the papers print: every value has a role, and what is flagged contradicts the paper itself."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.papers import cells as module
from analysis.papers.cells import PAPERS, Paper, PaperCell, load_cells, load_remarks, read_csv
from analysis.papers.predicted import PredictedPaper, predict_paper

SIZES = {"ssd": 170, "double": 771, "duodecoding": 178, "rasd": 223, "mirror": 334}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_value_is_fitted_predicted_flagged_or_excused(paper: str) -> None:
    found = predict_paper(paper, simulate=False)
    assert len(found.cells) == SIZES[paper] == sum(found.counts.values())
    assert [cell.row for cell in found.cells] == list(range(1, SIZES[paper] + 1))
    assert all(number > 0 for number in found.counts.values())
    # The excused ones, each with a reason, are exactly those that have no other role.
    assert set(found.others) == {row for row, role in found.roles.items() if role == "other"}
    assert all(found.others.values()) and all(found.flags.values())
    # Nothing is predicted twice.
    assert max(Counter(f.cell.row for f in found.forecasts).values()) == 1


def test_a_value_that_nobody_accounts_for_is_an_error() -> None:
    with pytest.raises(ValueError, match="nobody's row 1 is neither predicted nor excused"):
        _ = PredictedPaper("nobody's", [replace(load_cells("ssd")[0], paper="nobody's")], [], {}).others


@pytest.mark.parametrize("name", ["flags", "excuses"])
def test_every_remark_is_of_some_value(name: str) -> None:
    everything = [cell for paper in PAPERS for cell in load_cells(paper)]
    for remark in load_remarks(name):
        assert remark.reason and any(remark.matches(cell) for cell in everything), remark


@pytest.mark.parametrize("name", [*PAPERS, "flags", "excuses", "figures"])
def test_every_line_has_every_column_and_no_more(name: str) -> None:
    for entry in read_csv(name):  # a comma that nobody quoted ends up under None
        assert None not in entry and None not in entry.values()


def test_values_are_read_as_printed() -> None:
    by_name = {cell.value_name: cell for cell in load_cells("ssd")}
    assert by_name["C"].value == 47 / 147 and by_name["C"].rounding == 0.0
    assert math.isnan(by_name["engine_version"].value)
    # 54.7 is rounded to a tenth, 2.50 to a hundredth.
    plain = next(cell for cell in load_cells("ssd") if cell.printed == "54.7")
    assert plain.rounding == pytest.approx(0.05)
    speedup = next(cell for cell in load_cells("ssd") if cell.printed == "2.50")
    assert speedup.value == 2.5 and speedup.rounding == pytest.approx(0.005)


def test_a_paper_hides_what_is_flagged() -> None:
    paper = Paper(load_cells("rasd"))
    place = {"table": "Table 2", "target": "LLaMA3-8B-Instruct", "method": "REST", "dataset": "NL2SQL"}
    assert len(paper.all(**place, value_name="SR")) == 2 and paper.sound(**place, value_name="SR") == []
    with pytest.raises(ValueError, match="no usable cell"):
        paper.need(**place, temperature="0", value_name="SR")
    with pytest.raises(ValueError, match="cells match"):
        paper.one(table="Table 1")
    with pytest.raises(ValueError, match="no paper 'abacus'"):
        load_cells("abacus")


def table_1(method: str, name: str) -> dict[tuple[str, str], PaperCell]:
    paper = Paper(load_cells("double"))
    found = paper.all(table="Table 1", method=method, value_name=name)
    return {(cell.target, cell.dataset): cell for cell in found if cell.dataset != "Avg"}


@pytest.mark.parametrize(("method", "impossible"), [("Sps", 1), ("PEARL", 4)])
def test_doubles_flagged_speedups_exceed_their_best_case(method: str, impossible: int) -> None:
    paper = Paper(load_cells("double"))
    ratios = {cell.target: cell for cell in paper.all(table="Table 1", value_name="C")}
    speeds, runs = table_1(method, "speedup"), table_1(method, "M")
    beyond = set()
    for place, cell in speeds.items():
        run, ratio = runs[place], ratios[place[0]]
        # A run of M drafted tokens takes M draft steps and a verification, and yields M + 1 tokens.
        m, c = run.value + run.rounding, ratio.value + ratio.rounding
        if cell.value - cell.rounding > (m + 1.0) * c / (m + c):
            beyond.add(cell.row)
    assert len(beyond) == impossible
    assert beyond == {cell.row for cell in speeds.values() if cell.row in paper.flags}


def test_rasds_flagged_speedups_exceed_their_tokens() -> None:
    paper = Paper(load_cells("rasd"))
    for cell in paper.all(table=("Table 1", "Table 2"), value_name="SR"):
        place = {n: getattr(cell, n) for n in ("table", "target", "method", "dataset", "temperature")}
        (tokens,) = paper.all(**place, value_name="tau")
        if cell.value > tokens.value + 1.0:
            assert cell.row in paper.flags and tokens.row in paper.flags


def test_doubles_table_2_is_table_1_times_a_constant() -> None:
    first, second = table_1("DOUBLE", "speedup"), Paper(load_cells("double"))
    for cell in second.all(table="Table 2", method="DOUBLE", value_name="speedup"):
        if cell.dataset != "Avg":
            assert cell.row in second.flags
            assert cell.value / first[cell.target, cell.dataset].value == pytest.approx(0.8825, abs=0.005)


def test_the_index_of_figures_names_files_that_exist() -> None:
    root = Path(module.__file__).parents[2]
    entries = list(read_csv("figures"))
    assert {entry["paper"] for entry in entries} == set(PAPERS)
    for entry in entries:
        assert entry["shape"] in ("same", "partly", "not yet", "-") and entry["why"]
        if entry["stored"] != "-":
            assert (root / entry["stored"]).is_file(), entry
        # What is claimed to be reproduced has a command and a stored result.
        if entry["shape"] in ("same", "partly"):
            assert entry["command"] != "-" and entry["stored"] != "-"
