"""Texts that engines write: entries read with their lines, and how a format is told and registered.

A parser reads a whole text; or, registered with a shape (`rows`), one of its entries at a time: lines of
JSON, of a table, or of a log.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hardware_profiles.files import FileRefused, parse_json
from simulator.imports.measured import Imported, ImportRefused, at_line

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_STATED = re.compile(r"([#A-Za-z][^:,]{0,60}?): (\d[\d.]*)")


def number(value: object, name: str, line: int | None = None) -> float:
    """A finite number of at least 0, or a clear error.

    Raises:
        ImportRefused: Anything else.
    """
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if isinstance(value, bool) or not math.isfinite(found) or found < 0.0:
        raise ImportRefused(f"{name}: expected a number of at least 0, got {value!r:.80}", line)
    return found


def count(value: object, name: str, line: int | None = None) -> int:
    """A whole number of at least 0, also as `6.5e+06`; as `number`."""
    found = number(value, name, line)
    if found != int(found) or found >= 2**63:
        raise ImportRefused(f"{name}: expected a whole number of at most 64 bits, got {value!r:.80}", line)
    return int(found)


class Row(dict[str, Any]):
    """An entry of a source, its values by name; what is asked of it is named, with the line, if refused.

    Attributes:
        line: 1-based; None where it is not known.
    """

    def __init__(self, values: Mapping[str, Any], line: int | None = None) -> None:
        if not isinstance(values, Mapping):
            raise TypeError(f"expected named values, got {values!r:.80}")
        super().__init__(values)
        self.line = line

    def number(self, name: str) -> float:
        """A finite number of at least 0."""
        return number(self.get(name), name, self.line)

    def count(self, name: str) -> int:
        """A whole number of at least 0."""
        return count(self.get(name), name, self.line)

    def counts(self, name: str, said: str = "") -> list[int]:
        """A list of whole numbers, called `said` where it is refused."""
        values, said = self.get(name), said or name
        if not isinstance(values, list):
            raise ImportRefused(f"{said}: expected a list of whole numbers, got {values!r}", self.line)
        return [count(value, f"{said}[{i}]", self.line) for i, value in enumerate(values)]

    def optional(self, name: str) -> float | None:
        """A number that may be absent or null."""
        return None if self.get(name) is None else self.number(name)

    def whole(self, name: str) -> int | None:
        """A whole number that may be absent or null."""
        return None if self.get(name) is None else self.count(name)

    def seconds(self, name: str) -> float | None:
        """Milliseconds, in seconds; None if absent or null."""
        found = self.optional(name)
        return None if found is None else found / 1e3

    def listed(self, name: str, per: float = 1.0) -> list[float]:
        """Numbers in a text, with commas or blanks between them, each divided by `per` (100: percent)."""
        parts = (part.strip() for part in self[name].split("," if "," in self[name] else None))
        return [number(part.rstrip("%"), name, self.line) / per for part in parts if part]

    def serving(
        self,
        rate: str = "output_throughput",
        token_ms: str = "mean_tpot_ms",
        first_ms: str = "mean_ttft_ms",
    ) -> dict[str, Any]:
        """What a benchmark of a server states by these names, as attributes of `Imported`."""
        return {
            "tokens_per_second": self.optional(rate),
            "time_per_token_s": self.seconds(token_ms),
            "time_to_first_token_s": self.seconds(first_ms),
        }


Rows = Callable[[str], Iterator[Row]]
"""The entries of a text."""


def json_lines(text: str) -> Iterator[Row]:
    """The JSON object in every line that is not empty.

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
        yield Row(found, at)


def lines_of(text: str, key: str) -> Iterator[int]:
    """Lines at which a JSON text has an entry of that name, in its order."""
    wanted = f'"{key}"'
    return (at for at, line in enumerate(text.splitlines(), 1) for _ in range(line.count(wanted)))


def csv_rows(text: str) -> Iterator[Row]:
    """The rows of a CSV table with a header."""
    for at, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        yield Row(row, at)


def markdown_rows(column: str) -> Rows:
    """The rows of every Markdown table that has a column."""

    def rows(text: str) -> Iterator[Row]:
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
                yield Row(dict(zip(header, cells, strict=True)), at)
        if not seen:
            raise ImportRefused(f"expected a Markdown table with a column {column!r}")

    return rows


def log_lines(*patterns: str) -> Rows:
    """The lines of a log where the first pattern is found: the groups that all patterns name, by name."""
    compiled = [re.compile(pattern) for pattern in patterns]

    def rows(text: str) -> Iterator[Row]:
        for at, line in enumerate(text.splitlines(), 1):
            found = [pattern.search(line) for pattern in compiled]
            if found[0]:
                yield Row({k: v for match in found if match for k, v in match.groupdict().items()}, at)

    return rows


def stated(text: str, line: int | None = None) -> Row:
    """Every `name: number` of a text."""
    return Row(dict(_STATED.findall(text)), line)


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
        try:
            read = float(value)  # a gauge may be NaN
        except ValueError:
            read = number(value, name, at)
        found.append(Sample(name, dict(_LABEL.findall(labels or "")), read, at))
    return found


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is to be recognised."""

    raw: str
    whole: Any  # the JSON value it is; None if it is none
    first: dict[str, Any]  # the JSON object in its first line; empty if there is none

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
    """One format."""

    name: str  # for `--format`; also the source of what was measured, unless its parser says another
    engine: str  # whose numbers they are, unless its parser says so; empty where it always does
    what: str  # where such a file comes from, for people
    fits: Test  # whether a text looks like it
    parse: Callable[[str], tuple[Imported, ...]]
    pools: bool = False  # whether measurements of one file are windows of one run, to be added up


REGISTERED: dict[str, Format] = {}
"""Formats by name; `formats` imports all parsers and says in which order formats are tried."""


def reads(
    name: str,
    engine: str,
    what: str,
    *tests: Test,
    rows: Rows | None = None,
    empty: str = "",
    pools: bool = False,
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a parser of the texts that pass all of the tests; the rest as in `Format`.

    With `rows` the parser takes one row and returns one measurement, and a text without rows is refused with
    `empty`, if that is given; else it takes the text and returns one measurement or several.
    """

    def register(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def whole(text: str) -> tuple[Imported, ...]:
            if rows is None:
                found = parse(text)
                return (found,) if isinstance(found, Imported) else tuple(found)
            measured = []
            for row in rows(text):
                with at_line(row.line):
                    measured.append(parse(row))
            if empty and not measured:
                raise ImportRefused(empty)
            return tuple(measured)

        REGISTERED[name] = Format(name, engine, what, both(*tests), whole, pools)
        return parse

    return register
