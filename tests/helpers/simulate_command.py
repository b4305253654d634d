"""The `simulate` command, called in this process; on a pair with recordings where no hardware is named."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from simulator.cli import main
from simulator.request import RECORDED_PROFILE

HARDWARE = {"--hw", "--target-time", "--draft-time", "--target", "--draft"}


def simulated(*arguments: str) -> Result:
    named = {argument.partition("=")[0] for argument in arguments} & HARDWARE
    return as_typed(*arguments, *([] if named else ["--hw", RECORDED_PROFILE]))


def as_typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    """Its JSON object."""
    result = simulated(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
