"""What an import costs, and that the layers hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_PARTY = {"analysis", "simulator", "calibrate", "policies", "hardware_profiles"}


def imported(path: Path) -> set[str]:
    """Names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_slow_packages_are_imported_on_first_use_only() -> None:
    code = (
        "import sys, hardware_profiles.store, hardware_profiles.trace, hardware_profiles.surface\n"
        "print(sorted({'scipy', 'pyarrow', 'pandas', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("path", sorted((ROOT / "hardware_profiles").glob("*.py")), ids=lambda p: p.stem)
def test_the_lowest_layer_imports_nothing_of_the_project(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path)} & FIRST_PARTY <= {"hardware_profiles"}


COMMAND = {"cli", "report"}
"""Modules of the laws that are a command like any other."""


@pytest.mark.parametrize("path", sorted((ROOT / "policies" / "laws").glob("*.py")), ids=lambda p: p.stem)
def test_laws_import_nothing_of_the_project_but_laws(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0] in FIRST_PARTY}
    shared = {"policies.commandline", "hardware_profiles.files"} if path.stem in {"cli", "report"} else set()
    assert all(f"{name}.".startswith("policies.laws.") for name in ours - shared), ours
