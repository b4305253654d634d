"""What the project's commands share: how they refuse, which numbers and names they take, how they print.

Every command is made by `checked_command` or `checked_group`, which check every number on the command line
at one place: floats are finite, whole numbers have a largest value with a reason (`LIMITS`).
"""

from __future__ import annotations

import codecs
import difflib
import errno
import io
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, field, fields
from functools import partial
from itertools import product
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from hardware_profiles.files import check_name, read_text
from policies.config import Knob, SettingError, shown
from policies.registry import KNOBS, POLICIES, find_policy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console
    from rich.table import Table

Request = TypeVar("Request", bound="DataclassInstance")
Command = TypeVar("Command", bound=Callable[..., Any])

HELP = {"help_option_names": ["-h", "--help"]}
WIDE = 112
LEAST_WORDS = 26
"""Columns that the words of a table's rows get before numbers are left out."""


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

    `hint` says what to do where a package is missing; a command that starts no worker refuses `BAD_INPUT`
    alone.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.Abort from error
    except kinds as error:
        raise Refusal(str(error)) from error
    except ImportError as error:
        raise Refusal(f"{error}; {hint}") from error


class Limit(NamedTuple):
    """The largest value of a whole number on a command line, and what is beyond it, for the refusal."""

    most: int
    why: str


_BATCH = Limit(4_096, "no engine serves more rows at once")
_TOKENS = Limit(1_048_576, "no published model reads a longer text")
_REPEATS = Limit(1_000, "a spread is known after far fewer")
_DRAFTED = Limit(4_096, "no round drafts, caches or looks up so much")
_WHOLE = Limit(1_000_000, "nothing here comes in such numbers")
LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("batch", "batches", "largest_batch"), _BATCH),
    **dict.fromkeys(("max_tokens", "prompt_length"), _TOKENS),
    **dict.fromkeys(("passes", "repeats", "subsets"), _REPEATS),
    **dict.fromkeys(("lookahead", "lookaheads", "fanout", "fanouts"), _DRAFTED),
    **dict.fromkeys(("kappas", "depths", "lengths", "ranks"), _DRAFTED),
    **dict.fromkeys(("prompt", "output"), _TOKENS),
    "requests": Limit(100_000, "all are kept in memory, and their mean is known after far fewer"),
    "max_devices": Limit(1_024, "every division of them into groups is tried"),
    "tokens": Limit(1_000_000_000, "all are kept in memory"),
    "seed": Limit(2**63 - 1, "a seed has 64 bits"),
}
"""By the name of the option's parameter; what is not named is at most a million, a knob `_DRAFTED`."""
LONGEST_WAIT = 10_080.0
"""Minutes between two passes, a week: a machine is not the same after it."""


def _limit(param: click.Parameter) -> Limit:
    return LIMITS.get(param.name or "", _WHOLE)


class Finite(click.FloatRange):
    """A finite number on the command line; `click.FLOAT` takes `nan` and `inf`."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As every click type."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


class Whole(click.IntRange):
    """A whole number on the command line, with a largest value and its reason."""

    name = "integer"

    def __init__(self, least: int | None, limit: Limit) -> None:
        super().__init__(min=least)
        self.limit = limit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As every click type."""
        number = super().convert(value, param, ctx)
        if number > self.limit.most:
            self.fail(f"at most {self.limit.most:,}: {self.limit.why}", param, ctx)
        if number < -(2**63):
            self.fail("a whole number of at most 64 bits", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None else super()._describe_range()


class Name(click.ParamType):  # type: ignore[type-arg]  # older clicks have no argument there
    """A name of which files are made (`hardware_profiles.files`)."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As every click type."""
        try:
            return check_name(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


NAME = Name()


def _checked(param: click.Parameter) -> click.ParamType[Any]:
    """The type of a parameter, with its numbers bounded."""
    kind = param.type
    if isinstance(kind, click.FloatRange) and not isinstance(kind, Finite):
        return Finite(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)
    if isinstance(kind, click.IntRange) and not isinstance(kind, Whole):
        least = None if kind.min is None else int(kind.min)
        return Whole(least, _limit(param)) if kind.max is None else kind
    if kind is click.FLOAT:
        return Finite()
    return Whole(None, _limit(param)) if kind is click.INT else kind


SINGULAR = {
    "--policies": "--policy",
    "--batches": "--batch",
    "--lookaheads": "--lookahead",
    "--contexts": "--context",
    "--acceptances": "--acceptance",
}


class CheckedCommand(click.Command):
    """A command whose numbers are checked, whose output fits its terminal, and whose output's end is told.

    Args:
        headings: Names of options by the heading that help lists them below; what is under none comes last,
            and knobs of policies by `--help-policy` alone.
        later: Options that are made when the command line names what is none of the others, or asks for help:
            making those of all policies takes longer than many a simulation.
    """

    def __init__(
        self,
        *args: Any,
        headings: Callable[[], Mapping[str, Sequence[str]]] = dict,
        later: Callable[[], Sequence[Any]] = tuple,
        **kwargs: Any,
    ) -> None:
        self._lean, self._later = False, later
        super().__init__(*args, **kwargs)
        self.headings = headings
        if not isinstance(self, click.Group) and all("--config" not in param.opts for param in self._params):
            self._params.append(_config_option())
        self._check(self._params)

    def _check(self, params: Iterable[click.Parameter]) -> None:
        taken = {name for param in self._params for name in param.opts}
        for param in params:
            param.type = _checked(param)
            # What is a list here is one value there: either name is taken everywhere.
            more = [SINGULAR[name] for name in param.opts if SINGULAR.get(name, name) not in taken]
            param.opts = [*more, *param.opts]

    @property  # an attribute of click's
    def params(self) -> list[click.Parameter]:
        """All parameters; while a command line is read that names none of those of `later`, the others."""
        if self._lean or self._later is tuple:
            return self._params
        make, self._later = self._later, tuple
        made: list[click.Parameter] = with_options(make())(click.Command(None)).params
        self._params[-1:-1] = made  # before --config
        self._check(made)
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, without making what is not needed."""
        known = {name for param in self._params for name in (*param.opts, *param.secondary_opts)} - {
            "--config"
        }
        self._lean = all(arg.partition("=")[0] in known for arg in args if arg.startswith("-"))
        try:
            return super().parse_args(ctx, args)
        finally:
            self._lean = False

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but below the headings where there are any."""
        headings = self.headings()
        if not headings:
            super().format_options(ctx, formatter)
            return
        named = {name for names in headings.values() for name in names}
        hidden = set(KNOBS) - named
        params = {param.name: param for param in self.get_params(ctx) if param.name not in hidden}
        rest = {"Further options": [name for name in params if name not in named]}
        for heading, names in {**headings, **rest}.items():
            records = [params[name].get_help_record(ctx) for name in names if name in params]
            with formatter.section(heading):
                formatter.write_dl([record for record in records if record is not None])
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program; a full disk or a name too long for a file is one line and exit status 2."""
        fit_terminal()
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except OSError as error:
            _let_go(sys.stdout)
            if error.errno != errno.EPIPE:
                what = f"{_short(str(error.filename))}: " if error.filename else "cannot write the output: "
                click.echo(f"Error: {what}{error.strerror or error}", err=True)
            sys.exit(1 if error.errno == errno.EPIPE else Refusal.exit_code)


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_from_config,
        help="TOML file with options by name: for every command, or in a table of the command's name.",
    )


def _from_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take options that are not typed from a file (a click callback).

    Raises:
        Refusal: It is no TOML, or the command's own table names no option of it.
    """
    if path is None:
        return
    import tomllib

    try:
        content = tomllib.loads(read_text(path))
    except (ValueError, OSError) as error:
        raise Refusal(f"{path}: {error}") from error
    params = {opt.lstrip("-").replace("-", "_"): p for p in context.command.params for opt in p.opts}
    names = dict.fromkeys(name for name in (context.info_name, context.command.name) if name)
    own = [(key, value) for name in names for key, value in _table(content.get(name), path, name)]
    shared = [(key, value) for key, value in content.items() if not isinstance(value, dict)]
    if strange := [key for key, _ in own if key.replace("-", "_") not in params]:
        near = difflib.get_close_matches(strange[0].replace("-", "_"), params, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise Refusal(f"{path}: {context.info_name} has no option {strange[0]!r}{hint}")
    if idle := [key for key, _ in shared if key.replace("-", "_") not in params]:
        click.echo(f"note: {path}: not options of {context.info_name}: {', '.join(idle)}", err=True)
    taken = {params[n]: value for key, value in (*shared, *own) if (n := key.replace("-", "_")) in params}
    context.default_map = {
        param.name: _as_typed(param, value) for param, value in taken.items() if param.name
    }


def _table(value: Any, path: Path, name: str) -> Iterable[tuple[str, Any]]:
    if value is not None and not isinstance(value, dict):
        raise Refusal(f"{path}: {name}: expected a table [{name}]")
    return (value or {}).items()


def _as_typed(param: click.Parameter, value: Any) -> Any:
    """A value of a TOML file as it would be typed: `[1, 8]` as `1,8`."""
    if isinstance(value, list) and not param.multiple:
        return ",".join(map(str, value))
    return value if isinstance(value, bool | list) else str(value)


class CheckedGroup(CheckedCommand, click.Group):
    """A group of commands, with the same checks."""

    command_class = CheckedCommand
    group_class = type


def checked_command(
    name: str | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], CheckedCommand]:
    """`click.command` with the checks of all commands."""
    return click.command(name, cls=CheckedCommand, **attributes)


def checked_group(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], CheckedGroup]:
    """`click.group` with the checks of all commands."""
    return click.group(name, cls=CheckedGroup, **attributes)


def fit_terminal() -> None:
    """Let what a terminal or a log cannot show be written in ASCII, in place of an error."""
    codecs.register_error(_PLAIN, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not (stream.encoding or "").lower().startswith("utf"):
            stream.reconfigure(errors=_PLAIN)


_PLAIN = "spectwin-plain"
_ASCII = {"±": "+-", "×": "x", "·": "-", "…": ".", "†": "*", "–": "-", "—": "-", "•": "*", "→": "->"}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _let_go(stream: Any) -> None:
    """Forget what could not be written, or the interpreter complains of it once more at its end."""
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
    except (OSError, ValueError):  # no file, as under a test's runner
        return


def split_list(_: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """`a, b` as `["a", "b"]` (a click callback); a list of nothing only where that is the default."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts and value != parameter.default:
        raise click.BadParameter(f"{value!r} names nothing")
    return parts


def split_words(
    context: click.Context, parameter: click.Parameter, value: str, *, names: Collection[str] = ()
) -> tuple[str, ...]:
    """As `split_list`, a tuple, and of these names alone if there are any."""
    words = tuple(split_list(context, parameter, value))
    if unknown := [word for word in words if names and word not in names]:
        raise click.BadParameter(f"there is no {unknown[0]!r}; choices: {', '.join(names)}")
    return words


def _split(text: str, read: Callable[[str], Any]) -> list[Any]:
    try:
        return [read(part) for part in _listed(text)]
    except ValueError as error:
        raise click.BadParameter(
            f"{_short(text)!r} is not a number or a comma-separated list of them"
        ) from error


def split_integers(
    context: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """`3` or `4,1-3` as a tuple of integers (a click callback); None stays None, none only by default."""
    if value is None:
        return None
    whole = Whole(None, _limit(param))
    parts = [] if value == param.default == "" else _split(value, int)
    return tuple(whole.convert(each, param, context) for each in parts)


def split_counts(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """As `split_integers`, each at least 1."""
    counts = split_integers(context, parameter, value)
    for count in counts or ():
        if count < 1:
            raise click.BadParameter(f"must be at least 1, got {count}")
    return counts


def split_numbers(context: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    """`0,0.7` as a tuple of finite numbers (a click callback); none only where that is the default."""
    parts = [] if value == param.default == "" else _split(value, float)
    return tuple(Finite().convert(each, param, context) for each in parts)


def integer_or_auto(
    context: click.Context, param: click.Parameter, value: str | None
) -> int | Literal["auto"] | None:
    """`4` as a number, `auto` as it is (a click callback); None stays None."""
    if value is None or value == "auto":
        return value  # type: ignore[return-value]
    try:
        number = int(value)
    except ValueError as error:
        raise click.BadParameter(f"{_short(value)!r} is neither a number nor 'auto'") from error
    return int(Whole(None, _limit(param)).convert(number, param, context))


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "..."


def parse_setting(text: str) -> tuple[str, dict[str, Any]]:
    """A policy and its knobs from a text such as `saguaro lookahead=4 fanout=3,2,2,2,1`."""
    name, *pairs = text.split() or [""]
    knobs = {}
    for pair in pairs:
        knob, equals, value = pair.partition("=")
        if not equals or knob not in KNOBS:
            raise SettingError(f"{pair!r} is no knob=value; e.g. --setting 'pearl lookahead=3'")
        try:
            knobs[knob] = _READ.get(KNOBS[knob].kind, str)(value)
        except ValueError as error:
            raise SettingError(f"{knob} takes numbers, got {_short(value)!r}") from error
        numbers = knobs[knob] if isinstance(knobs[knob], tuple) else (knobs[knob],)
        limit = LIMITS.get(knob, _DRAFTED)
        if any(isinstance(number, int) and number > limit.most for number in numbers):
            raise SettingError(f"{knob} is at most {limit.most:,}: {limit.why}")
    return name, knobs


_READ: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "number": float,
    "integers": lambda text: tuple(int(part) for part in text.split(",")),
}


POSITIVE = click.IntRange(min=1)


def option(default: Any, text: str, **details: Any) -> Any:
    """A field of a request, a dataclass, that is an option of the command line (`click_options`).

    Args:
        default: Of the field and the option.
        text: Help.
        details: Of `click.option`, e.g. `type=POSITIVE`; else the field's type decides.  `spelled`:
            how the command line calls it; `names`: of which a list of words takes any.
    """
    return field(default=default, metadata=about(text, **details))


def about(text: str, **details: Any) -> dict[str, Any]:
    """The metadata of such a field; ruff takes `option` only where it sees that a field's type is frozen."""
    return {"help": text, **details}


def click_options(
    request: type[DataclassInstance], *, without: Collection[str] = ()
) -> list[Callable[[Command], Command]]:
    """The command-line options of a request, in the order of its fields; tuples are lists with commas.

    `without` are fields that the command at hand does not look at.
    """
    hints, options = get_type_hints(request), []
    for each in fields(request):
        if "help" in each.metadata and each.name not in without:
            default = None if each.default is MISSING else each.default
            options.append(_click_option(each.name, hints[each.name], default, **each.metadata))
    return options


def _click_option(name: str, hint: Any, default: Any = None, **details: Any) -> Callable[[Command], Command]:
    """The option of a type, as far as its details do not say otherwise."""
    details = {"default": default, **details}
    spelled = details.pop("spelled", ("--" + name.replace("_", "-"),))
    if get_origin(hint) in {UnionType, Union}:  # the second with a literal in it
        hint, *others = (kind for kind in get_args(hint) if kind is not NoneType)
        hint = Any if others else hint  # of several types; the details say how it is read
    if get_origin(hint) is tuple and not details.get("multiple"):
        words = partial(split_words, names=details.pop("names", ()))
        split: dict[Any, Any] = {int: split_integers, float: split_numbers, str: words}
        details = {"callback": split[get_args(hint)[0]], **details}
        if default is not None:
            details["default"] = ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in default)
    elif get_origin(hint) is Literal:
        details = {"type": click.Choice(get_args(hint)), **details}
    elif hint is bool:
        details["is_flag"] = True
    elif hint in {int, float}:
        details = {"type": hint, **details}
    visible = hint is not bool and details["default"] not in (None, "", ()) and "multiple" not in details
    return click.option(*spelled, name, **{"show_default": visible, **details})


class Several(tuple[Any, ...]):
    """Values of an option that was given more than one (`Listed`)."""

    __slots__ = ()


class Listed(click.Option):
    """An option of one value that also takes several, `1,8,32` or `1-8`: each is read as it is alone."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As every click option; `Several` where several values are given."""
        read = super().process_value
        if not isinstance(value, str) or len(parts := _listed(value)) < 2 or Path(value).is_file():
            return read(ctx, value)
        return Several(dict.fromkeys(read(ctx, part) for part in parts))


MOST_LISTED = 1_000
"""Values of an option."""


def _listed(text: str) -> list[str]:
    """`1-3,8` as 1, 2, 3 and 8, in words."""
    parts: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            if not 0 <= int(last) - int(first) < MOST_LISTED:
                raise click.BadParameter(
                    f"{_short(part)!r} goes from less to more, over {MOST_LISTED:,} at most"
                )
            parts += map(str, range(int(first), int(last) + 1))
        else:
            parts.append(part.strip())
    return parts


def combinations(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options once for each choice among the values of those that have `Several`, the last fastest."""
    axes = {name: value for name, value in options.items() if isinstance(value, Several)}
    return [{**options, **dict(zip(axes, at, strict=True))} for at in product(*axes.values())]


def typed(kind: type[Request], options: Mapping[str, Any], **more: Any) -> Request:
    """What a command is asked, as one frozen value: click's options by the names of its fields.

    `more` are fields that are no options, or stand in their place.
    """
    return kind(**({each.name: options[each.name] for each in fields(kind) if each.name in options} | more))


def knob_options(
    *, exclude: tuple[str, ...] = (), cls: type[click.Option] = click.Option
) -> list[Callable[[Command], Command]]:
    """The options of a click command for every knob of every policy, and for help on them.

    `cls`: of options that take one value.
    """
    knobs = [_knob_option(knob, cls) for name, knob in KNOBS.items() if name not in exclude]
    return [*knobs, _HELP_POLICY]


def _help_policy(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Print what a policy is and its knobs, and leave (a click callback)."""
    if name is None:
        return
    try:
        info = find_policy(name)
    except SettingError as error:
        raise Refusal(str(error)) from error
    formatter = ctx.make_formatter()
    formatter.write_text(f"{info.name}: {info.paper}")
    facts = {"Predicts": info.predicts, "Drafts": info.drafts, "On a miss": info.on_miss}
    with formatter.section("What it does"):
        formatter.write_dl(list({**facts, "Verifies": info.verifies}.items()))
    params = [param for param in ctx.command.get_params(ctx) if param.name in info.knobs]
    records = [record for param in params if (record := param.get_help_record(ctx)) is not None]
    with formatter.section("Knobs"):
        formatter.write_dl(records or [("none", "what runs and on what decides")])
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()


_HELP_POLICY = click.option(
    "--help-policy",
    metavar="NAME",
    is_eager=True,
    expose_value=False,
    callback=_help_policy,
    help="Show what a policy does and its knobs, and leave.",
)


def with_options(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """A decorator that gives a click command options (`click.option`) that several have, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_HINTS: dict[str, Any] = {"integer": int, "number": float, "text": str, "integers": tuple[int, ...]}


def _knob_option(knob: Knob, cls: type[click.Option]) -> Callable[[Command], Command]:
    having = ", ".join(info.name for info in POLICIES.values() if knob.name in info.knobs)
    default = "" if knob.default is None else f"; default: {shown(knob.default)}"
    details: dict[str, Any] = {"help": f"{knob.help}  [{having}{default}]"}
    if knob.kind == "integers":
        details["metavar"] = "F,..."
    else:
        details["cls"] = cls
    if knob.kind == "name":
        return _click_option(knob.name, str, type=click.Choice(knob.choices), **details)
    if knob.kind == "integer":
        details["type"] = Whole(None, _DRAFTED)
    return _click_option(knob.name, _HINTS[knob.kind], **details)


@contextmanager
def progress_bar(name: str, count: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on a terminal, moved by how many are done; elsewhere none."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=count, label=name, file=sys.stderr) as bar:
        yield lambda done: bar.update(done - bar.pos)


def wide_console(*, stderr: bool = False) -> Console:
    """The one console: as wide as the terminal; in a log or a pipe as `COLUMNS` says, else `WIDE`.

    Progress goes to standard error.
    """
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = WIDE
    return console


def fitted_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int | None = None,
    *,
    drop: Sequence[str | tuple[str, ...]] = (),
    left: Sequence[str] = (),
    title: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> Table:
    """A table that fits by having fewer columns: values are shown whole or not at all.

    The first column holds words, which may go over several lines; the others do not break.

    Args:
        titles: Heads of the columns; `\\n` breaks one.
        rows: Cells, as many as titles.
        width: Columns of the terminal; by default those of `wide_console`.
        drop: Titles of the columns that go where there is no room, the first ones first; those of a tuple
            go together.
        left: Titles of further columns that are aligned to the left.
        title: Of the table.
        notes: What is said below the table, by the title of the column that it explains; what was dropped
            is said there too.
    """
    from rich.table import Table

    width = width or wide_console().width
    columns = list(zip(titles, *rows, strict=True))  # two may have the same title
    needed = [max(map(_widest, column)) for column in columns]
    needed[0] = min(needed[0], LEAST_WORDS)
    gone: list[str] = []
    for group in drop:
        left_over = [size + 2 for name, size in zip(titles, needed, strict=True) if name not in gone]
        if sum(left_over) + 1 <= width:  # a space and a line each, and a last line
            break
        gone += [group] if isinstance(group, str) else group
    names, *cells = zip(*(column for column in columns if column[0] not in gone), strict=True)
    table = Table(title=title, title_justify="left", header_style="bold", padding=(0, 0, 0, 1))
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        justify: Literal["left", "right"] = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="fold")
    for row in cells:
        table.add_row(*row)
    missing = ", ".join(name.replace("/\n", "/").replace("\n", " ") for name in titles if name in gone)
    said = [text for name, text in (notes or {}).items() if name in names]
    table.caption = "; ".join([*said, *([f"no room for: {missing}"] if missing else [])]) or None
    table.caption_justify = "left"
    return table


def wrapped_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str] | None],
    *,
    title: str | None = None,
    right: Collection[int] = (),
    whole: Collection[int] = (),
    lines: bool = False,
) -> Table:
    """A table of texts, which go over several lines where there is no room.

    Args:
        titles: Heads of the columns.
        rows: Cells, as many as titles; None ends a section.
        title: Of the table.
        right: Numbers of the columns that are aligned to the right.
        whole: Numbers of the columns whose cells do not break.
        lines: Whether there is a line between all rows.
    """
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", header_style="bold", padding=(0, 0, 0, 1), show_lines=lines
    )
    for number, name in enumerate(titles):
        justify: Literal["left", "right"] = "right" if number in right else "left"
        table.add_column(name, justify=justify, no_wrap=number in whole, overflow="fold")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    return table


def _widest(text: str) -> int:
    """Columns that the longest line of a cell takes."""
    from rich.text import Text

    return max(Text.from_markup(line).cell_len for line in text.split("\n"))
