"""The notebooks run from top to bottom; the validation's last part recomputes a small one live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient

from analysis.notebooks_support import figures, statements
from analysis.papers.cells import PAPERS
from analysis.show import lines_of, markdown, opinions
from analysis.studies.mirror import draw_hidden
from analysis.studies.retrieval import draw_tau

NOTEBOOKS = Path(__file__).parents[2] / "analysis"


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=4)  # type: ignore[no-untyped-call]


def run(name: str) -> Any:
    """The notebook with its outputs."""
    notebook = read(name)
    where = {"metadata": {"path": str((NOTEBOOKS / name).parent)}}
    NotebookClient(notebook, timeout=600, resources=where).execute()
    return notebook


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def text(notebook: Any) -> str:
    """Everything that it prints."""
    return "".join(output.get("text", "") for output in outputs(notebook) if output.get("name") == "stdout")


def execute(name: str) -> str:
    """Everything that a notebook prints."""
    return text(run(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_validation_notebook_runs() -> None:
    assert "rounds compared, 0 differ" in execute("validation.ipynb")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_experiments_notebook_runs() -> None:
    printed = execute("experiments.ipynb")
    for name in ("budget", "backup", "ratio", "temperature", "scale", "pareto", "drafts"):
        assert f"{name}: " in printed
    assert "speedup over plain decoding:" in printed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("paper", "cells", "pictures"),
    [
        ("ssd", 170, 4),
        ("double", 771, 4),
        ("duodecoding", 178, 3),
        ("rasd", 223, 3),
        ("mirror", 334, 3),
    ],
)
def test_the_notebook_of_a_paper_runs(paper: str, cells: int, pictures: int) -> None:
    ran = run(f"notebooks/{paper}.ipynb")
    shown = [output["data"] for output in outputs(ran) if "data" in output]
    assert sum("image/png" in data for data in shown) == pictures
    tables = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert "counterexample" in tables[0] and "all speeds" in tables[1]
    assert tables[-1] == figures(paper)
    counts, values, laws = text(ran).splitlines()
    listed = {verdict: tables[0].count(f"| {verdict} |") for verdict in ("wrong", "caveat", "holds")}
    assert counts == f"{paper}: wrong {listed['wrong']}, caveat {listed['caveat']}, holds {listed['holds']}"
    assert values.startswith(f"{paper}: {cells} cells, ")
    assert laws.startswith(f"{paper}: laws in the map: ") and not laws.endswith(": 0")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_of_the_systems_runs() -> None:
    ran = run("notebooks/systems.ipynb")
    shown = [output["data"] for output in outputs(ran) if "data" in output]
    assert sum("image/png" in data for data in shown) == 6
    tables = [data["text/markdown"] for data in shown if "text/markdown" in data]
    family, double, retrieval = tables[0], *tables[-2:]
    assert "| setting | law | coins | simulated | measured |" in family and "| double " in family
    assert "| DOUBLE |" in double and "| rasd, text |" in retrieval
    names = [line.partition(":")[0] for line in text(ran).splitlines()]
    assert names == ["family", "mirror", "double", "duodecoding", "retrieval"]


def test_pictures_take_settings_as_they_come() -> None:
    """None of one kind, one alone, or without a law: drawn all the same."""
    left, middle, right = Figure().subplots(1, 3)
    row = {"setting": "rasd T=1", "simulated_speedup_vs_ar": 1.1, "measured_speedup_vs_ar": 1.2}
    opinions(left, [row], [lines_of(row["setting"])])
    assert [len(line.get_xdata()) for line in left.get_lines()[:2]] == [1, 1]  # no law: simulated, measured
    draw_hidden(middle, [])
    entry = {"part": "methods", "category": "all", "name": "rasd, text", "simulated_tau": 2.0}
    draw_tau(right, [entry])
    assert len(right.patches) == 1


STORED = ("validation", "experiments", *(f"notebooks/{name}" for name in (*PAPERS, "systems")))


@pytest.mark.parametrize("name", STORED)
def test_a_notebook_is_stored_with_what_it_shows(name: str) -> None:
    notebook = read(f"{name}.ipynb")
    assert 6 <= len(notebook.cells) <= 20
    shown = outputs(notebook)
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in shown)
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert all(cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code")
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000  # pictures of few colours


def test_wrong_statements_come_first() -> None:
    found = [statement.verdict for statement in statements("double")]
    assert found == sorted(found, key=["wrong", "caveat", "holds"].index)
    assert {statement.id for statement in statements("duodecoding")} >= {"duo.budget", "duo.theta"}


def test_signs_do_not_break_a_table() -> None:
    found = markdown(("a", "b"), [("x|y", "b*y_<t")], right=1)
    assert found == "| a | b |\n| --- | --: |\n| x\\|y | b\\*y_&lt;t |"
