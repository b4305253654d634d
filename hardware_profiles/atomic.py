"""Writes that are seen whole or not at all: used by everything in the project that writes a file."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, overload

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, the user's share of it, or the largest file is full."""


@overload
def atomic_write(path: str | os.PathLike[str]) -> AbstractContextManager[TextIO]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], *, binary: Literal[False]
) -> AbstractContextManager[TextIO]: ...
@overload
def atomic_write(
    path: str | os.PathLike[str], *, binary: Literal[True]
) -> AbstractContextManager[BinaryIO]: ...
def atomic_write(path: str | os.PathLike[str], *, binary: bool = False) -> AbstractContextManager[IO[Any]]:
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
    return _replacing(Path(path), binary)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in what the system says of a write that found no room: it does not do so itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise


@contextmanager
def _replacing(path: Path, binary: bool) -> Iterator[IO[Any]]:
    final = path.resolve()
    if final.exists() and not final.is_file():
        raise OSError(f"{path}: exists and is not a regular file")
    final.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, since a rename is atomic within one file system only.  Not `tempfile`: its
    # files are private to the user (mode 0600) and the final file would inherit that.
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), _create(temporary, binary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name on an empty file
        temporary.replace(final)
    except BaseException:  # also on Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def _create(path: Path, binary: bool) -> IO[Any]:
    return path.open("xb") if binary else path.open("x", encoding="utf-8", newline="\n")
