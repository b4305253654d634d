"""The `calibrate` command: refusals, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import calibrate.machine
from calibrate.cli import main
from calibrate.machine import Machine


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, without asking torch."""
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: Machine("Some CPU", (0, 1), ()))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--hw", "a100x8"], ["not 'a100x8'", "2 CPU cores", "no accelerator", "cpu2-x20"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl", "calibration, heldout"]),
        (["--placement", "anywhere"], ["unknown placement", "split"]),
        (["--placement", "shared:99"], ["core 99 is not available"]),
        (["--target", "./no-such-model"], ["no-such-model", "does not exist"]),
        (["--target", "pair:x99"], ["pair:x99", "pair:x20"]),
        (["--temperature", "-1"], ["temperature"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, arguments: list[str], messages: list[str]) -> None:
    result = run(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert all(message in result.stderr for message in messages), result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples() -> None:
    assert "calibrate --quick" in run("--help").stdout
