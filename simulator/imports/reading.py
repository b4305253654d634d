"""Reading a file: its text, its format, its measurements; and errors that name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from simulator.imports import prometheus
from simulator.imports.formats import find_format, sniff
from simulator.imports.measured import Imported, ImportRefused
from simulator.imports.text import Format

LARGEST_BYTES = 256 * 1024 * 1024
"""Files above this are refused: excerpts and result files are small, whole server logs may not be."""


def read_text(text: str, fmt: Format) -> tuple[Imported, ...]:
    """The measurements of a text in a format.

    Raises:
        ImportRefused: Whatever is wrong with it.
    """
    try:
        return fmt.parse(text)
    except json.JSONDecodeError as error:
        raise ImportRefused(f"expected JSON ({fmt.what}): {error.msg}", error.lineno) from error
    except KeyError as error:
        raise ImportRefused(f"expected an entry {error} ({fmt.what})") from error
    except (TypeError, AttributeError, IndexError, ValueError, RecursionError, ArithmeticError) as error:
        if isinstance(error, ImportRefused):
            raise
        raise ImportRefused(f"not what {fmt.name} looks like ({fmt.what}): {error}") from error


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
        ImportRefused: With the file's name, the line where known, and what was expected.
        OSError: It cannot be read.
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
        raise ImportRefused(f"{where}: {error}") from error


def _load(path: Path) -> str:
    if path.stat().st_size > LARGEST_BYTES:
        raise ImportRefused(f"{path}: larger than {LARGEST_BYTES >> 20} MiB; give the lines that matter")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ImportRefused(
            f"{path}: expected text in UTF-8: {error.reason} at byte {error.start}"
        ) from error
    if not text.strip():
        raise ImportRefused(f"{path}: the file is empty")
    return text
