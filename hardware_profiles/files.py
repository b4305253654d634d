"""The way in and out of files: bounded reads, writes that are seen whole or not at all, JSON, names.

JSON knows neither NaN nor infinity, but Python's `json` reads and writes both unless told otherwise.  All
JSON of the project is read by `parse_json` or `read_json` and written by `to_json` or `write_json`; all
files are written through `atomic_write`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, TextIO, overload

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, the user's share of it, or the largest file is full."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in what the system says of a write that found no room: it does not do so itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


@overload
def atomic_write(
    path: str | os.PathLike[str], *, binary: Literal[False] = False
) -> AbstractContextManager[TextIO]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], *, binary: Literal[True]
) -> AbstractContextManager[BinaryIO]: ...
@contextmanager
def atomic_write(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[Any]:
    """Open a file that takes the place of `path` when the block ends without an exception.

    A reader sees the old file (or none) until then, and the new one, complete, after it.  If the block
    raises, `path` is untouched and nothing is left behind.  Missing folders are made: a measurement of
    an hour should not be lost for the want of one.

    Args:
        path: File to write; a symbolic link is followed.
        binary: Open for bytes; otherwise for UTF-8 text with Unix line ends on every system.

    Raises:
        OSError: `path` exists and is not a regular file (a folder, a device), or the file system refuses.
    """
    final = Path(path).resolve()
    if final.exists() and not final.is_file():
        raise OSError(f"{path}: exists and is not a regular file")
    final.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic within one file system only.  Not `tempfile`: its
    # files are private to the user (mode 0600) and the final file would inherit that.
    temporary = final.with_name(f".{final.name}.{os.urandom(4).hex()}.tmp")
    text: dict[str, Any] = {} if binary else {"encoding": "utf-8", "newline": "\n"}
    try:
        with naming(Path(path)), temporary.open("xb" if binary else "x", **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name on an empty file
        temporary.replace(final)
    except BaseException:  # also on Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


LARGEST_BYTES = 256 * 1024 * 1024
"""Files above this are refused: results and excerpts are small, whole server logs may not be."""
DEEPEST = 100
"""Most levels of a JSON value: no format read here has more than ten."""

_STDIN = ("-", "/dev/stdin")
# What a text must hold for `_check` to find something; searching is much faster than visiting every value.
_SUSPECT = re.compile(r"NaN|Infinity|\d{19}|[eE]\+?\d{3}|\\u[dD][89a-fA-F]")


_EXPONENT = re.compile(r"[eE]\+?\d{3}")


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
        status = Path(path).stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileRefused(f"{_short(path)}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused(f"{path}: is no regular file; write what it says to one first")
    if most_bytes is not None and status.st_size > most_bytes:
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


def read_text(path: str | os.PathLike[str]) -> str:
    """`read_bytes` as UTF-8 text.

    Raises:
        FileRefused: As `read_bytes`, or it is no UTF-8.
    """
    try:
        return read_bytes(path).decode()
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
    if _SUSPECT.search(text) or (text.count("[") + text.count("{") > DEEPEST and _deep(value)):
        for where, inner in _values(value):
            _check(where, inner)
    return value


def _deep(value: Any) -> bool:
    """Whether `_values` would refuse a value for its depth: without visiting what lies in no other."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for group in inner for each in group if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _long_suspect(text: str) -> bool:
    """Whether `_SUSPECT` may be found in a text: ten times as fast as a search in a long one."""
    import numpy as np

    if any(word in text for word in ("NaN", "Infinity", "\\u")) or _EXPONENT.search(text):
        return True
    letters = np.frombuffer(text.encode(), dtype=np.uint8)
    digits = (letters >= ord("0")) & (letters <= ord("9"))
    for step in (1, 2, 4, 8):  # where 2, 4, 8 and 16 in a row begin
        digits = digits[:-step] & digits[step:]
    return bool(digits.any())


def parse_jsons(texts: Sequence[str]) -> list[Any]:
    """The values of many JSON texts, at once where all of them are what they should be; see `parse_json`.

    Raises:
        FileRefused: One of them is none.
    """
    whole = f"[{','.join(texts)}]"
    deep = any(text.count("[") + text.count("{") > DEEPEST for text in texts)
    if not deep and not _long_suspect(whole):
        with suppress(ValueError, RecursionError):  # said below, of the text that is at fault
            values = json.loads(whole)
            if len(values) == len(texts):
                return list(values)
    return [parse_json(text) for text in texts]


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value of a JSON file; see `parse_json`.

    Raises:
        FileRefused: Naming the file, and the line or field where one is at fault.
    """
    text = read_text(path)
    try:
        return parse_json(text)
    except FileRefused as error:
        line = f":{error.line}" if error.line else ""
        raise FileRefused(f"{path}{line}: {error}", error.line) from error


def to_json(value: Any, **options: Any) -> str:
    """The JSON text of a value; options as those of `json.dumps`.

    Raises:
        ValueError: A number in it is NaN or infinite; the message names its field.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        for where, inner in _values(value):
            if isinstance(inner, float) and not math.isfinite(inner):
                raise ValueError(f"{where or 'the result'} is {inner}, which JSON cannot hold") from None
        raise


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as a JSON file, which appears complete or not at all.

    Raises:
        ValueError: As `to_json`.
        OSError: The file system refuses.
    """
    text = to_json(value, indent=2)
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


def _check(where: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(where, f"must be a finite number, got {value}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        _refuse(where, "is a whole number beyond 64 bits")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(where.encode(errors="replace").decode(), "holds half a character (a lone surrogate)")


def _refuse(where: str, problem: str) -> NoReturn:
    raise FileRefused(f"{_short(where)}: {problem}" if where else problem)


def _short(value: object) -> str:
    """A text that fits into a message."""
    text = str(value)
    return text if len(text) <= 120 else text[:120] + "..."


LONGEST_NAME = 100
"""Characters of a name: what is put together of several still is a file's name."""
_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")


def check_name(name: str) -> str:
    """A name as it is, if it can be no path: letters, digits, dot, dash, underscore and plus, no leading dot.

    The plus stands in shipped names of two machines (`h100x4+1`).

    Raises:
        ValueError: It is none.
    """
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        shown = name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "..."
        raise ValueError(
            f"{shown!r} is no name: at most {LONGEST_NAME} letters, digits, dots, dashes, underscores and "
            "pluses, the first no dot"
        )
    return name
