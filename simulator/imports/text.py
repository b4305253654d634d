"""Texts that engines write: how a format is told and registered, and the shapes that many of them share."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hardware_profiles.files import FileRefused, parse_json
from simulator.imports.measured import Imported, ImportRefused, number

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is to be recognised.

    Attributes:
        raw: All of it.
        whole: The JSON value it is; None if it is none.
        first: The JSON object in its first line; empty if there is none.
    """

    raw: str
    whole: Any
    first: dict[str, Any]

    @classmethod
    def of(cls, raw: str) -> Text:
        """Look at a text."""
        first = _json(raw.strip().partition("\n")[0])
        return cls(raw, _json(raw), first if isinstance(first, dict) else {})


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except FileRefused:
        return None


Test = Callable[[Text], bool]
"""Whether a text looks like a format."""


def is_object(text: Text) -> bool:
    """The text is a JSON object."""
    return isinstance(text.whole, dict)


def says(*words: str) -> Test:
    """The text has all of the words."""
    return lambda text: all(word in text.raw for word in words)


def has(*paths: str) -> Test:
    """The text is a JSON object with an entry at each dotted path."""

    def at(value: Any, path: str) -> bool:
        for key in path.split("."):
            if not isinstance(value, dict) or key not in value:
                return False
            value = value[key]
        return True

    return lambda text: all(at(text.whole, path) for path in paths)


def begins(*keys: str) -> Test:
    """The first line is a JSON object with all of the keys."""
    return lambda text: all(key in text.first for key in keys)


def both(*tests: Test) -> Test:
    """All of the tests are passed."""
    return lambda text: all(test(text) for test in tests)


def either(*tests: Test) -> Test:
    """One of the tests is passed."""
    return lambda text: any(test(text) for test in tests)


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: For `--format`; also the source of what was measured, unless its parser says another.
        engine: Whose numbers they are, unless its parser says so; empty where it always does.
        what: Where such a file comes from, for people.
        fits: Whether a text looks like it.
        parse: The measurements of a text.
        pools: Whether several measurements of a file are windows of one run, to be added up.
    """

    name: str
    engine: str
    what: str
    fits: Test
    parse: Callable[[str], tuple[Imported, ...]]
    pools: bool = False


REGISTERED: dict[str, Format] = {}
"""Formats by name; `formats` imports all parsers and says in which order formats are tried."""
Parser = Callable[[str], tuple[Imported, ...]]


def reads(name: str, engine: str, what: str, *tests: Test, pools: bool = False) -> Callable[[Parser], Parser]:
    """Register a parser of the texts that pass all of the tests; the rest as in `Format`."""

    def register(parse: Parser) -> Parser:
        REGISTERED[name] = Format(name, engine, what, both(*tests), parse, pools)
        return parse

    return register


def json_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of every line of a text that is not empty.

    Raises:
        ImportRefused: A line that holds no JSON object.
    """
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except FileRefused as error:
            raise ImportRefused(f"expected a JSON object per line: {error}", at) from error
        if not isinstance(found, dict):
            raise ImportRefused("expected a JSON object per line", at)
        yield at, found


def lines_of(text: str, key: str) -> list[int]:
    """Lines at which a JSON text has an entry of that name, in its order."""
    wanted = f'"{key}"'
    return [at for at, line in enumerate(text.splitlines(), 1) for _ in range(line.count(wanted))]


def csv_rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row by column) of a CSV table with a header."""
    yield from enumerate(csv.DictReader(io.StringIO(text)), 2)


def markdown_rows(text: str, column: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of every Markdown table that has a column."""
    header: list[str] = []
    seen = False
    for at, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header, seen = cells, seen or column in cells
        elif set("".join(cells)) <= set("-:"):
            continue
        elif len(cells) != len(header):
            raise ImportRefused(f"expected {len(header)} columns, got {len(cells)}", at)
        elif column in header:
            yield at, dict(zip(header, cells, strict=True))
    if not seen:
        raise ImportRefused(f"expected a Markdown table with a column {column!r}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


def samples_of(text: str) -> list[Sample]:
    """All samples of a page in Prometheus' text format.

    Raises:
        ImportRefused: A line that is neither a sample nor a comment.
    """
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _SAMPLE.match(stripped)
        if match is None:
            raise ImportRefused(f"expected `name{{labels}} value`, got {stripped[:60]!r}", at)
        name, labels, value = match.groups()
        found.append(Sample(name, dict(_LABEL.findall(labels or "")), _value(value, name, at), at))
    return found


def _value(text: str, name: str, line: int) -> float:
    if text in {"NaN", "+Inf", "-Inf"}:
        return float(text.replace("Inf", "inf"))
    try:
        return float(text)
    except ValueError:
        return number(text, name, line)
