"""Evaluating a statement with arguments as one types them: `lookahead=1:12`, `fanout=4,4,3`.

A law gets each value by its parameter's kind in the glossary.  A range makes a sweep, of which there may
be one.  Every refusal is a `ValueError` of one line that says what to type instead.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from policies.laws.catalogue import Statement, apply, did_you_mean, parameters
from policies.laws.glossary import FORMERLY, GLOSSARY

LONGEST = 100_000
"""Most points of a sweep."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Values of the one parameter that is varied."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement evaluates to.

    Attributes:
        statement: Which.
        arguments: As given, a sweep as the tuple of its values.
        sweep: What was varied; None for a single point.
        value: Of the corrected form; a list in the order of the sweep.
        printed: Of the printed form where there is another one, else None, and where it has no value.
        refusal: Why the printed form has no value (somewhere); None where it has.
    """

    statement: Statement
    arguments: dict[str, Any]
    sweep: Sweep | None
    value: Any
    printed: Any = None
    refusal: str | None = None


def answer(statement: Statement, typed: Iterable[str]) -> Answer:
    """Both forms of a statement at the arguments typed.

    Args:
        statement: Which.
        typed: `name=value` each.

    Raises:
        ValueError: An argument that is malformed, unknown or missing, or outside the law's domain.
    """
    arguments = _read(statement, typed)
    sweeps = [value for value in arguments.values() if isinstance(value, Sweep)]
    if len(sweeps) > 1:
        raise ValueError(f"one sweep at a time: give {sweeps[1].name} a single value")
    sweep = sweeps[0] if sweeps else None
    points = [{**arguments, sweep.name: value} for value in sweep.values] if sweep else [arguments]
    values = [_value(statement.corrected, point, sweep) for point in points]
    printed, refusal = _printed(statement, points, sweep)
    if sweep:
        return Answer(statement, arguments | {sweep.name: sweep.values}, sweep, values, printed, refusal)
    return Answer(statement, arguments, None, values[0], printed and printed[0], refusal)


def command(statement: Statement) -> str:
    """The statement's example as a line for the shell."""
    return shlex.join(["laws", "eval", statement.id, *statement.example.split()])


def _printed(
    statement: Statement, points: Sequence[dict[str, Any]], sweep: Sweep | None
) -> tuple[list[Any] | None, str | None]:
    """Values of the printed form, None where it has none, and why."""
    if statement.printed is None:
        return None, None
    if missing := _missing(statement.printed, points[0]):
        return None, f"it also needs {', '.join(missing)}"
    values, refusal = [], None
    for point in points:
        try:
            values.append(_value(statement.printed, point, sweep))
        except ValueError as error:
            values.append(None)
            refusal = refusal or str(error)
    return values, refusal


def _value(function: Callable[..., Any], point: dict[str, Any], sweep: Sweep | None) -> Any:
    at = f" (at {sweep.name}={point[sweep.name]:g})" if sweep else ""
    try:
        with np.errstate(all="ignore"):  # what overflows is infinite, and nan is refused below
            return plain(apply(function, point))
    except ValueError as error:
        raise ValueError(f"{error}{at}") from error
    except (ArithmeticError, IndexError) as error:
        raise ValueError(f"outside the domain, which `laws show` states: {error}{at}") from error


def plain(value: Any) -> Any:
    """A law's result as numbers, text, lists and dictionaries: what JSON knows, but for inf.

    Raises:
        FloatingPointError: Some number of it is not a number.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in asdict(value).items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        raise FloatingPointError("no value")
    return value


def finite(value: Any) -> Any:
    """A plain value with `inf` and `-inf` as text, since JSON has no such numbers."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _read(statement: Statement, typed: Iterable[str]) -> dict[str, Any]:
    known = statement.parameters
    arguments: dict[str, Any] = {}
    for item in typed:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ValueError(
                f"{item!r} is no argument: type name=value, such as {statement.example.split()[0]}"
            )
        name = FORMERLY.get(name, name)
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"{statement.id} has no parameter {name!r}{hint}; it takes {', '.join(known)}")
        if name in arguments:
            raise ValueError(f"{name} is given twice")
        arguments[name] = _argument(name, text)
    if missing := _missing(statement.corrected, arguments):
        example = f"for example `{command(statement)}`"
        raise ValueError(f"{statement.id} also needs {', '.join(missing)}; {example}")
    return arguments


def _missing(law: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """Parameters that must be given and are not."""
    return [name for name, needed in parameters(law).items() if needed and name not in given]


def _argument(name: str, text: str) -> Any:
    kind = GLOSSARY[name].kind
    if kind == "matrix":
        return tuple(_numbers(name, row) for row in text.split(";")) if text else ()
    if kind == "vector":
        return _numbers(name, text)
    if ":" in text:
        return Sweep(name, _range(name, text, whole=kind == "integer"))
    return _number(name, text, whole=kind == "integer")


def _numbers(name: str, text: str) -> tuple[float, ...]:
    whole = GLOSSARY[name].domain.startswith("whole")
    numbers: list[float] = []
    for part in text.split(","):
        if ":" in part:
            numbers += _range(name, part, whole=whole)
        elif part.strip():
            numbers.append(_number(name, part, whole=whole))
    return tuple(numbers)


def _number(name: str, text: str, *, whole: bool = False) -> float:
    """`3`, `0.5`, `47/147`, `inf`; whole numbers stay whole."""
    try:
        number: float = _exact(text.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(
            f"{name}={text!r} is no number; type 0.5, 1/2, inf, a range 1:12 or 0.1:0.9:0.1, or a list 4,4,3"
        ) from error
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got nan")
    if not whole:
        return number
    if math.isinf(number) and "inf" in GLOSSARY[name].domain:
        return number
    if math.isinf(number) or number != int(number):
        raise ValueError(f"{name} is a whole number, got {text}")
    return int(number)


def _exact(text: str) -> float:
    if "/" in text:
        return float(Fraction(text))
    try:
        return int(text)
    except ValueError:
        return float(text)


def _range(name: str, text: str, *, whole: bool) -> tuple[float, ...]:
    """`1:12` (whole numbers, both ends included) or `0.1:0.9:0.1`."""
    parts = [_number(name, part, whole=whole) for part in text.split(":")]
    if len(parts) not in (2, 3) or any(math.isinf(part) for part in parts):
        raise ValueError(f"{name}={text} is no range: type first:last or first:last:step")
    first, last = parts[:2]
    if len(parts) == 2 and not (isinstance(first, int) and isinstance(last, int)):
        raise ValueError(f"{name}={text} needs a step, as in {name}={text}:0.1")
    step = parts[2] if len(parts) == 3 else 1
    if step <= 0 or last < first:
        raise ValueError(f"{name}={text} is empty: a range goes up, by a step above 0")
    count = math.floor((last - first) / step + 1e-9) + 1
    if count > LONGEST:
        raise ValueError(f"{name}={text} has {count} points, more than {LONGEST}")
    if all(isinstance(part, int) for part in (first, last, step)):
        return tuple(first + index * step for index in range(count))
    # Rounded, so that 0.1:0.9:0.1 holds 0.3 and not 0.30000000000000004.
    return tuple(round(first + index * step, 12) for index in range(count))
