"""What the README's own install brings: everything but what runs models."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_pictures_come_with_the_main_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = {re.split(r"[<>=]", entry)[0] for entry in project["dependencies"]}
    assert "matplotlib" in main
    assert "torch" not in main
    # Scripts that ask for the extra of before go on to work.
    assert project["optional-dependencies"]["plot"] == []


def test_nobody_is_sent_to_an_extra_for_a_picture() -> None:
    folders = ("analysis", "calibrate", "hardware_profiles", "policies", "simulator", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in {".py", ".md"}
    ]
    assert [path.name for path in [*files, ROOT / "README.md"] if "spectwin[plot]" in path.read_text()] == []
