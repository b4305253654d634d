"""What the project's commands share: how they refuse, read lists, and print tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

HELP = {"help_option_names": ["-h", "--help"]}
WIDE = 112


class Refusal(click.ClickException):
    """Bad input: one line on stderr, exit status 2."""

    exit_code = 2


def split_list(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    """`a, b` as `["a", "b"]` (a click callback)."""
    return [part.strip() for part in value.split(",") if part.strip()]


def split_integers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`3` or `4,3,2` as a tuple of integers (a click callback); None stays None."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number or a comma-separated list of them") from error


def integer_or_auto(_: click.Context, __: click.Parameter, value: str | None) -> int | Literal["auto"] | None:
    """`4` as a number, `auto` as it is (a click callback); None stays None."""
    if value is None or value == "auto":
        return value  # type: ignore[return-value]
    try:
        return int(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number nor 'auto'") from error


def wide_console() -> Console:
    """A console for tables: as wide as the terminal, or `WIDE` columns in a log or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    return console
