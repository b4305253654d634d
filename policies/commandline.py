"""What the project's commands share: how they refuse, read lists, and print tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from policies.knobs import KNOBS, Knob, SettingError
from policies.registry import POLICIES

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
WIDE = 112


class Refusal(click.ClickException):
    """Bad input: one line on stderr, exit status 2."""

    exit_code = 2


BAD_INPUT = (ValueError, OSError)
RUNS_MODELS = "this runs models: pip install 'spectwin[live]'"
INCOMPLETE = "a package of the main install is missing: pip install spectwin"


@contextmanager
def refusals(
    hint: str = RUNS_MODELS, kinds: tuple[type[Exception], ...] = (*BAD_INPUT, RuntimeError)
) -> Iterator[None]:
    """Turn what goes wrong within into one line and exit status 2, an interruption into an abort.

    Args:
        hint: What to do where a package is missing.
        kinds: What counts as refused; a command that starts no worker has `BAD_INPUT`.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except kinds as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; {hint}") from error


def split_list(_: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """`a, b` as `["a", "b"]` (a click callback); a list of nothing only where that is the default."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts and value != parameter.default:
        raise click.BadParameter(f"{value!r} names nothing")
    return parts


def split_integers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`3` or `4,3,2` as a tuple of integers (a click callback); None stays None."""
    if value is None:
        return None
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a number or a comma-separated list of them") from error


def split_counts(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """As `split_integers`, each at least 1."""
    counts = split_integers(context, parameter, value)
    for count in counts or ():
        if count < 1:
            raise click.BadParameter(f"must be at least 1, got {count}")
    return counts


def split_numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """`0,0.7` as a tuple of numbers (a click callback)."""
    try:
        return tuple(float(part) for part in value.split(","))
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


def parse_setting(text: str) -> tuple[str, dict[str, Any]]:
    """A policy and its knobs from a text such as `saguaro lookahead=4 fanout=3,2,2,2,1`.

    Raises:
        SettingError: Not of that form.
    """
    name, *pairs = text.split() or [""]
    knobs = {}
    for pair in pairs:
        knob, equals, value = pair.partition("=")
        if not equals or knob not in KNOBS:
            raise SettingError(f"{pair!r} is no knob=value; e.g. --setting 'pearl lookahead=3'")
        try:
            knobs[knob] = _READ.get(KNOBS[knob].kind, str)(value)
        except ValueError as error:
            raise SettingError(f"{knob} takes numbers, got {value!r}") from error
    return name, knobs


_READ: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "integers": lambda text: tuple(int(part) for part in text.split(",")),
}


def knob_options(*, exclude: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """A decorator that gives a click command an option for every knob of every policy."""
    return with_options([_option(knob) for name, knob in KNOBS.items() if name not in exclude])


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """A decorator that gives a click command options that several have, in their order.

    Args:
        options: As `click.option` makes them.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _option(knob: Knob) -> Callable[[Command], Command]:
    having = [info.name for info in POLICIES.values() if knob.name in info.knobs]
    default = "" if knob.default is None else f"  [{', '.join(having)}; default: {_shown(knob.default)}]"
    details: dict[str, Any] = {"help": knob.help + (default or f"  [{', '.join(having)}]")}
    if knob.kind == "integers":
        details |= {"metavar": "F,...", "callback": split_integers}
    elif knob.kind == "name":
        details |= {"type": click.Choice(knob.choices)}
    else:
        details |= {"type": {"integer": int, "number": float, "text": str}[knob.kind]}
    return click.option("--" + knob.name.replace("_", "-"), **details)


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def wide_console() -> Console:
    """A console for tables: as wide as the terminal, or `WIDE` columns in a log or a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    return console
