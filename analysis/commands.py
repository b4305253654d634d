"""Where the answers of commands that compare settings go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from hardware_profiles.files import atomic_write


def deliver(text: str, options: Mapping[str, Any], *, show: Callable[[], None]) -> None:
    """Write a JSON object to `--out`, if asked for, and print it (`--json`) or tables for people.

    Args:
        text: The object.
        options: Of the command: `out` and `as_json_`.
        show: Prints the tables.
    """
    if options["out"]:
        options["out"].parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(options["out"]) as file:
            file.write(text.rstrip("\n") + "\n")
    if options["as_json_"]:
        click.echo(text)
    else:
        show()
