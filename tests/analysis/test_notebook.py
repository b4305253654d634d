"""The notebooks run from top to bottom; the validation's last part recomputes a small one live."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "analysis"


def execute(name: str) -> str:
    """Everything that a notebook prints."""
    path = NOTEBOOKS / name
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


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
def test_the_papers_notebook_runs() -> None:
    printed = execute("papers.ipynb")
    for name in ("ssd", "double", "duodecoding", "rasd", "mirror"):
        assert f"{name}: " in printed
    assert "RASD(PLD): tau: law" in printed
