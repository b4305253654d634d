"""What the README's own install brings: everything but what runs models."""

from __future__ import annotations

import re
import subprocess
import sys
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


def test_commands_start_with_the_main_install_alone() -> None:
    """Whatever an extra alone would bring is made impossible to import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [re.split(r"[<>=]", entry)[0] for name in ("live", "fast", "openvino") for entry in extras[name]]
    scripts = [target.partition(":")[0] for target in project["scripts"].values()]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({named!r}))\n"
        f"import importlib; [importlib.import_module(name) for name in {scripts!r}]\n"
        "from analysis.__main__ import main; main(['list'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NOT_NEEDED = [
    *("joblib", "matplotlib", "numba", "pyarrow", "rich", "scipy", "simpy", "torch"),
    *("analysis", "calibrate", "serving", "policies.mirror", "hardware_profiles.composed"),
    *("simulator.sweep", "simulator.traffic_report", "simulator.world"),
]


def test_a_cold_simulation_imports_what_it_needs_alone() -> None:
    """Each of these takes longer to import than a shipped profile's default answer takes to compute."""
    code = (
        "import sys\nfrom simulator.cli import main\n"
        "main(['--policy', 'saguaro', '--batch', '2', '--requests', '2', '--json'], standalone_mode=False)\n"
        f"print(sorted(set({NOT_NEEDED!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
