"""The commands: they start without torch, and say how they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibrate.pair.cli import pair


@pytest.mark.parametrize("module", ["calibrate.pair.cli", "calibrate.pair.embed"])
def test_importing_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("command", [[], ["build"], ["embed"], ["gguf"], ["report"], ["steps"]])
def test_help_has_examples(command: list[str]) -> None:
    result = CliRunner().invoke(pair, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"pair {' '.join(command)}".strip() in result.output


def test_a_shape_that_is_none_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(pair, ["embed", "huge", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "'huge' is no shape" in result.output
    assert not (tmp_path / "out").exists()
