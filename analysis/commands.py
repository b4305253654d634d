"""What the commands that compare settings share: how they refuse, and where their answers go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from hardware_profiles.atomic import atomic_write
from policies.commandline import Refusal

HINT = "this runs models: pip install 'spectwin[live]'"


@contextmanager
def refusals(hint: str = HINT) -> Iterator[None]:
    """Turn what goes wrong within into one line and exit status 2, an interruption into an abort.

    Args:
        hint: What to do where a package is missing.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except (ValueError, OSError, RuntimeError) as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; {hint}") from error


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
