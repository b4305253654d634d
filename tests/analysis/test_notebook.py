"""The notebooks run from top to bottom; the validation's last part recomputes a small one live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from analysis.notebooks_support import figures, statements, table
from analysis.papers.cells import PAPERS

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
    ("paper", "cells", "in_map", "pictures"),
    [
        ("ssd", 170, True, 4),
        ("double", 771, True, 4),
        ("duodecoding", 178, True, 3),
        ("rasd", 223, False, 3),
        ("mirror", 334, False, 3),
    ],
)
def test_the_notebook_of_a_paper_runs(paper: str, cells: int, in_map: bool, pictures: int) -> None:
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
    assert laws.startswith(f"{paper}: laws in the map: ") and laws.endswith(": 0") is not in_map


@pytest.mark.parametrize("paper", PAPERS)
def test_the_notebook_of_a_paper_is_stored_without_outputs(paper: str) -> None:
    notebook = read(f"notebooks/{paper}.ipynb")
    assert 6 <= len(notebook.cells) <= 12
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_wrong_statements_come_first() -> None:
    found = [statement.verdict for statement in statements("double")]
    assert found == sorted(found, key=["wrong", "caveat", "holds"].index)
    assert {statement.id for statement in statements("duodecoding")} >= {"duo.budget", "duo.theta"}


def test_signs_do_not_break_a_table() -> None:
    found = table(("a", "b"), [("x|y", "b*y_<t")], right=1)
    assert found == "| a | b |\n| --- | --: |\n| x\\|y | b\\*y_&lt;t |"
