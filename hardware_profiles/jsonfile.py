"""The way in and out of files: bounded reads of regular files, and JSON without NaN or infinity.

JSON knows neither NaN nor infinity, but Python's `json` reads and writes both unless told otherwise.  All
JSON of the project is read by `parse_json` or `read_json` and written by `to_json` or `write_json`.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from hardware_profiles.atomic import atomic_write

LARGEST_BYTES = 256 * 1024 * 1024
"""Files above this are refused: results and excerpts are small, whole server logs may not be."""
DEEPEST = 100
"""Most levels of a JSON value: no format read here has more than ten."""

_STDIN = ("-", "/dev/stdin")
# What a text must hold for `_check` to find something; searching is much faster than visiting every value.
_SUSPECT = re.compile(r"NaN|Infinity|\d{19}|[eE]\+?\d{3}|\\u[dD][89a-fA-F]")


class FileRefused(ValueError):
    """A file cannot be read, or is not what it should be.

    Attributes:
        line: 1-based line of the fault; None where the whole text is meant.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def check_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> None:
    """Refuse what is no regular file (a folder, a device or a FIFO, which may never end), or too large.

    Raises:
        FileRefused: Naming the file.
    """
    try:
        found = Path(path).stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileRefused(f"{_short(path)}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise FileRefused(f"{path}: is no regular file; write what it says to one first")
    if most_bytes is not None and found.st_size > most_bytes:
        raise FileRefused(f"{path}: larger than {most_bytes >> 20} MiB; give the lines that matter")


def read_bytes(path: str | os.PathLike[str], most_bytes: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file, or of standard input for `-`.

    Raises:
        FileRefused: It cannot be read, is no regular file, or is larger than `most_bytes`.
    """
    if os.fspath(path) in _STDIN:
        content = sys.stdin.buffer.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise FileRefused(f"standard input: more than {most_bytes >> 20} MiB; give the lines that matter")
        return content
    check_regular(path, most_bytes)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror or error}") from error


def read_text(path: str | os.PathLike[str], most_bytes: int = LARGEST_BYTES) -> str:
    """`read_bytes` as UTF-8 text.

    Raises:
        FileRefused: As `read_bytes`, or it is no UTF-8.
    """
    try:
        return read_bytes(path, most_bytes).decode()
    except UnicodeDecodeError as error:
        raise FileRefused(f"{path}: expected text in UTF-8: {error.reason} at byte {error.start}") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text: no NaN or infinity, no whole number beyond 64 bits, `DEEPEST` levels at most.

    Raises:
        FileRefused: It is none; the message names the field where one is at fault, but no file.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileRefused(f"is not JSON: {error.msg}, column {error.colno}", error.lineno) from error
    except UnicodeDecodeError as error:
        raise FileRefused(f"expected text in UTF-8: {error.reason} at byte {error.start}") from error
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        raise FileRefused(f"is not JSON: {why}") from error
    if text.count("[") + text.count("{") > DEEPEST or _SUSPECT.search(text):
        for where, found in _values(value):
            _check(where, found)
    return value


def read_json(path: str | os.PathLike[str], most_bytes: int = LARGEST_BYTES) -> Any:
    """The value of a JSON file; see `parse_json`.

    Raises:
        FileRefused: Naming the file, and the line or field where one is at fault.
    """
    text = read_text(path, most_bytes)
    try:
        return parse_json(text)
    except FileRefused as error:
        line = f":{error.line}" if error.line else ""
        raise FileRefused(f"{path}{line}: {error}", error.line) from error


def to_json(
    value: Any,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    sort_keys: bool = False,
    separators: tuple[str, str] | None = None,
    default: Any = None,
) -> str:
    """The JSON text of a value; parameters as those of `json.dumps`.

    Raises:
        ValueError: A number in it is NaN or infinite; the message names its field.
    """
    try:
        return json.dumps(
            value,
            indent=indent,
            ensure_ascii=ensure_ascii,
            sort_keys=sort_keys,
            separators=separators,
            default=default,
            allow_nan=False,
        )
    except ValueError:
        for where, found in _values(value):
            if isinstance(found, float) and not math.isfinite(found):
                raise ValueError(f"{where or 'the result'} is {found}, which JSON cannot hold") from None
        raise


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 2) -> None:
    """Write a value as a JSON file, which appears complete or not at all.

    Raises:
        ValueError: As `to_json`.
        OSError: The file system refuses.
    """
    text = to_json(value, indent=indent)
    with atomic_write(path) as file:
        file.write(text + "\n")


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value with its dotted path, depth first, without recursion."""
    waiting: list[tuple[str, int, Any]] = [("", 0, value)]
    while waiting:
        where, depth, here = waiting.pop()
        if depth > DEEPEST:
            _refuse(where, f"nested more than {DEEPEST} levels deep")
        yield where, here
        inner = f"{where}." if where else ""
        if isinstance(here, dict):
            for key in here:
                yield f"{inner}{_short(key)}", key
            waiting += [(f"{inner}{_short(key)}", depth + 1, each) for key, each in here.items()]
        elif isinstance(here, list | tuple):
            waiting += [(f"{inner}{i}", depth + 1, each) for i, each in enumerate(here)]


def _check(where: str, found: Any) -> None:
    if isinstance(found, float) and not math.isfinite(found):
        _refuse(where, f"must be a finite number, got {found}")
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        _refuse(where, "is a whole number beyond 64 bits")
    if isinstance(found, str) and not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:
            _refuse(where.encode(errors="replace").decode(), "holds half a character (a lone surrogate)")


def _refuse(where: str, problem: str) -> NoReturn:
    raise FileRefused(f"{_short(where)}: {problem}" if where else problem)


def _short(text: object, most: int = 120) -> str:
    """A text that fits into a message."""
    found = str(text)
    return found if len(found) <= most else found[:most] + "..."
