"""The finished pieces of a calibration, kept so that a killed run goes on where it was.

One append-only file per set of inputs: a line per piece, `<crc32> <json>`, written and synced when the
piece is done.  What a kill cuts short is the last line; a line whose checksum does not fit is dropped and
its piece is done again.  Pieces that are there are never measured a second time, so that a resumed
calibration ends with the numbers that an uninterrupted one would have had.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from hardware_profiles.files import naming, parse_json, to_json

Json: TypeAlias = Any
"""What `json` reads and writes."""

_HEADER = "inputs"
_LOCK = "lock"


class JournalError(RuntimeError):
    """The journal cannot be used; the message says why and what to do."""


class Journal:
    """Finished pieces by key.  Use it in a `with` statement: a second process is refused meanwhile.

    The folder is locked, not the file: `fresh` and `discard` remove what others keep in it.  Without a path
    the pieces are in memory only; what they depend on is kept as the file's first line.

    Raises:
        JournalError: Another process has a journal in that folder.
    """

    def __init__(
        self,
        path: Path | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self.path = path
        self.resumed: dict[str, int] = {}
        """Pieces found at the start, by stage (the first part of their key)."""
        self._pieces: dict[str, Json] = {}
        self._file: BinaryIO | None = None
        self._lock: BinaryIO | None = None
        if path is not None:
            self._lock = _lock(path.parent)
            for old in path.parent.glob("*.jsonl") if fresh else ():
                old.unlink()
            self._file = path.open("ab")
            self._load(path)
        if not self.has(_HEADER):
            self.put(dict(inputs or {}), _HEADER)

    def has(self, *key: str | int | float) -> bool:
        """Whether a piece is there."""
        return _name(key) in self._pieces

    def get(self, *key: str | int | float) -> Json:
        """A piece that is there.

        Raises:
            KeyError: It is not.
        """
        return self._pieces[_name(key)]

    def put(self, value: Json, *key: str | int | float) -> None:
        """Keep a finished piece; it is on the disk when this returns."""
        self._pieces[_name(key)] = value
        if self._file is not None:
            assert self.path is not None
            with naming(self.path):
                self._file.write(_line(key, value))
                self._file.flush()
                os.fsync(self._file.fileno())

    def once(self, make: Callable[[], Json], *key: str | int | float) -> Json:
        """The piece `key`, made now if it is not there."""
        if not self.has(*key):
            self.put(make(), *key)
        return self.get(*key)

    def stage(self, name: str) -> list[Json]:
        """All pieces whose key begins with `name`, in the order in which they were kept."""
        return [value for key, value in self._pieces.items() if parse_json(key)[0] == name]

    def close(self) -> None:
        """Let go of the file; it stays."""
        for file in (self._file, self._lock):
            if file is not None:
                with contextlib.suppress(OSError):  # what could not be written was told when it was put
                    file.close()
        self._file = self._lock = None

    def discard(self) -> None:
        """Remove the file's folder: the calibration is complete."""
        if self.path is not None:  # while nobody else can be in it
            shutil.rmtree(self.path.parent, ignore_errors=True)
        self.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, path: Path) -> None:
        text = path.read_bytes()
        end = text.rfind(b"\n") + 1
        assert self._file is not None
        self._file.truncate(end)  # what is appended to half a line would be lost with it
        for line in text[:end].split(b"\n"):
            entry = _parse(line)
            if entry is not None:
                key, value = entry
                self._pieces[_name(key)] = value
                if key[0] != _HEADER:
                    self.resumed[str(key[0])] = self.resumed.get(str(key[0]), 0) + 1


def open_journal(folder: Path, inputs: Mapping[str, Json], *, fresh: bool = False) -> Journal:
    """The journal of a calibration with these inputs, in a folder that is removed once it is complete.

    Other inputs have a file of their own: what was measured for them is not used, and is lost only when a
    calibration of this name completes, or is begun `fresh`.

    Raises:
        JournalError: Another process has a journal there, of these inputs or of others.
    """
    digest = hashlib.sha256(to_json(inputs, sort_keys=True).encode()).hexdigest()[:16]
    return Journal(folder / f"{digest}.jsonl", inputs, fresh=fresh)


def other_inputs(journal: Journal) -> list[str]:
    """Names of the inputs in which other unfinished work in the same folder differs; empty without such."""
    if journal.path is None:
        return []
    mine, names = journal.get(_HEADER), set()
    for path in journal.path.parent.glob("*.jsonl"):
        with path.open("rb") as file:
            entry = _parse(file.readline().rstrip(b"\n"))
        if path != journal.path and entry is not None and entry[0] == [_HEADER]:
            theirs = entry[1]
            names |= {name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}
    return sorted(names)


def pack(array: np.ndarray) -> Json:
    """An array as JSON, bit by bit."""
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": raw}


def unpack(packed: Json) -> np.ndarray:
    """The array that was packed."""
    flat = np.frombuffer(base64.b64decode(packed["data"]), dtype=packed["dtype"])
    return flat.reshape(packed["shape"]).copy()


def _name(key: tuple[str | int | float, ...] | list[Any]) -> str:
    return to_json(list(key))


def _line(key: tuple[str | int | float, ...] | list[Any], value: Json) -> bytes:
    text = to_json([list(key), value], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> tuple[list[Any], Json] | None:
    """Key and value of a line; None for an empty, cut or damaged one."""
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        key, value = parse_json(text)
    except ValueError:
        return None
    return key, value


def _lock(folder: Path) -> BinaryIO:
    """Refuse a second process.  The kernel lets go of the lock when its process ends, however it ends."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("ab")
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise JournalError(
                f"another calibration of that name is running: {folder} is in use; wait for it, or give this "
                "one another --name"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat((folder / _LOCK).stat(), os.fstat(file.fileno())):
                return file
        file.close()  # its last holder removed the folder in between


SAMPLE_BYTES = 1 << 20
"""Read at both ends of a file, and in its middle."""


def fingerprint(model: str) -> list[list[str | int]]:
    """[name, bytes, hash of samples] of every file of a model's folder, or of its configuration alone where
    that is given; the bare name of a hub model.
    """
    folder = Path(model)
    if folder.is_file():
        return [_of_file(folder)]
    if not folder.is_dir():
        return [[model, 0, ""]]
    return [_of_file(path) for path in sorted(folder.iterdir()) if path.is_file()]


def _of_file(path: Path) -> list[str | int]:
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for start in sorted({0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)}):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return [path.name, size, digest.hexdigest()[:16]]
