"""The `simulate` command, called in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from simulator.cli import main


def simulated(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict[str, Any]:
    """Its JSON object."""
    result = simulated(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found
