"""Reading a file: its text, its format, its measurements; and errors that name the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hardware_profiles.jsonfile import FileRefused
from hardware_profiles.jsonfile import read_text as load_text
from simulator.imports import prometheus
from simulator.imports.formats import find_format, sniff
from simulator.imports.measured import Imported, ImportRefused
from simulator.imports.text import Format

_LONGEST = 600
"""Characters of a message: it may quote what it refuses."""
_MALFORMED = (
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    RecursionError,
    ArithmeticError,
    csv.Error,
    StopIteration,
)
"""What a parser raises on a text of another shape than it expects."""


def read_text(text: str, fmt: Format) -> tuple[Imported, ...]:
    """The measurements of a text in a format.

    Raises:
        ImportRefused: Whatever is wrong with it.
    """
    try:
        return fmt.parse(text)
    except ImportRefused:
        raise
    except FileRefused as error:
        raise ImportRefused(f"expected JSON ({fmt.what}): {error}", error.line) from error
    except KeyError as error:
        raise ImportRefused(f"expected an entry {error} ({fmt.what})") from error
    except _MALFORMED as error:
        raise ImportRefused(f"not what {fmt.name} looks like ({fmt.what}): {_brief(error)}") from error


@dataclass(frozen=True, slots=True)
class Read:
    """A file that was read.

    Attributes:
        path: Of the file.
        format: What it was taken for.
        measured: Its measurements.
    """

    path: Path
    format: Format
    measured: tuple[Imported, ...]


def read_file(path: Path, *, name: str | None = None, before: Path | None = None) -> Read:
    """Read a file.

    Args:
        path: Of the file.
        name: Of its format; None to find out.
        before: An earlier page of the same counters, to be subtracted.

    Raises:
        FileRefused: It cannot be read, or is not what was expected; with its name and, where known, the line.
    """
    text = _load(path)
    with _named(path):
        fmt = sniff(text) if name is None else find_format(name)
        if before is None:
            return Read(path, fmt, read_text(text, fmt))
        if fmt.parse is not prometheus.parse_counters:
            raise ImportRefused(f"only pages of counters can be subtracted, this is {fmt.name}")
    earlier = _load(before)
    with _named(before):
        prometheus.samples_of(earlier)
    with _named(path):
        return Read(path, fmt, prometheus.parse_difference(earlier, text))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors that name the file, and the line where known."""
    try:
        yield
    except ImportRefused as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ImportRefused(f"{where}: {_brief(error)}", error.line) from error


def _load(path: Path) -> str:
    text = load_text(path)
    if not text.strip():
        raise ImportRefused(f"{path}: the file is empty")
    return text


def _brief(error: Exception) -> str:
    """What went wrong, on one line."""
    said = " ".join(str(error).split())
    return said if len(said) <= _LONGEST else said[:_LONGEST] + "..."
