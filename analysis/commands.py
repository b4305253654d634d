"""Where the answers of commands that compare settings go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from hardware_profiles.files import atomic_write


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes.

    Attributes:
        out: File of the JSON object; None: none.
        as_json_: Whether the object is printed, in place of tables.
    """

    out: Path | None
    as_json_: bool


def deliver(text: str, output: Output, *, show: Callable[[], None]) -> None:
    """Write a JSON object to `--out`, if asked for, and print it (`--json`) or tables for people.

    Args:
        text: The object.
        output: Where it goes.
        show: Prints the tables.
    """
    if output.out:
        output.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(output.out) as file:
            file.write(text.rstrip("\n") + "\n")
    if output.as_json_:
        click.echo(text)
    else:
        show()
