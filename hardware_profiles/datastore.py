"""Datastores: token texts with a suffix array, in which what followed the same words is looked up.

The index of REST (He et al. 2024), of RASD's second retrieval setting and of DOUBLE's warm-up layer:

    datastore = Datastore.open("datastores/stdlib")
    len(datastore)  # tokens
    datastore.lookup(text, longest=16, span=8, count=8)  # [((5, 9, 2), 31), ((5, 9, 7), 4), ...]
    datastore.prefixes(text, longest=16, span=8, nodes=32)  # [((5,), 40), ((5, 9), 38), ...]

A datastore is a folder: `tokens.npy`, the texts one after the other, each followed by a separator (an id
outside the vocabulary); `suffixes.npy`, the starts of all suffixes in lexical order; `datastore.json`, what
it is.  The arrays are mapped into memory and never unpickled, so that opening costs nothing and processes
share the pages.
"""

from __future__ import annotations

import os
import secrets
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from hardware_profiles.continuations import Continuation, IntArray, beginnings, check_search, whole
from hardware_profiles.jsonfile import read_json, to_json
from hardware_profiles.names import check_name
from hardware_profiles.store import user_directory
from hardware_profiles.suffixes import suffix_array
from hardware_profiles.trace_schema import describe_invalid

SCHEMA = "spectwin/datastore/1"
LOOKED_AT = 4096
"""Most occurrences of an ending that are looked at, evenly spread over their sorted order.  A single common
word occurs millions of times, and a lookup is part of every round."""


class DatastoreError(ValueError):
    """A datastore cannot be read or written; the message says the way out."""


@dataclass(frozen=True, slots=True)
class DatastoreMeta:
    """What a datastore is.

    Attributes:
        vocabulary: V; ids of texts are below, the separator is V itself.
        tokens: Tokens of all texts, separators included.
        documents: Texts.
        tokenizer: Name of the tokenizer, for the reader.
        sources: Where the texts come from, for the reader.
    """

    vocabulary: int
    tokens: int
    documents: int
    tokenizer: str = ""
    sources: tuple[str, ...] = ()


_META = TypeAdapter(DatastoreMeta)


class Datastore:
    """An opened datastore; read-only, and safe to share between threads.

    Args:
        meta: What it is.
        tokens: [n] unsigned, big-endian: then bytes sort as tokens do.
        suffixes: [m] starts of the suffixes, in lexical order; those that begin at a separator left out.
    """

    def __init__(
        self, meta: DatastoreMeta, tokens: NDArray[np.unsignedinteger], suffixes: NDArray[np.uint32]
    ) -> None:
        self.meta = meta
        self._tokens = tokens
        self._suffixes = suffixes
        # Yields Python's own integers, which is what a search mostly waits for.
        self._starts = memoryview(suffixes)  # type: ignore[arg-type]
        self._letters = memoryview(tokens.view(np.uint8))  # type: ignore[arg-type]
        self._width = tokens.dtype.itemsize

    @classmethod
    def of_texts(
        cls,
        texts: Sequence[Sequence[int]],
        vocabulary: int,
        *,
        tokenizer: str = "",
        sources: Sequence[str] = (),
    ) -> Datastore:
        """A datastore in memory; `write` keeps it.

        Args:
            texts: Token ids; a continuation never crosses the end of its text.
            vocabulary: V.
            tokenizer: See `DatastoreMeta`.
            sources: See `DatastoreMeta`.

        Raises:
            DatastoreError: An id outside the vocabulary.
        """
        kind = ">u2" if vocabulary < 1 << 16 else ">u4"
        parts = [np.asarray(text, dtype=np.int64) for text in texts if len(text)]
        if any(part.min() < 0 or part.max() >= vocabulary for part in parts):
            raise DatastoreError(f"a text has ids outside the vocabulary of {vocabulary}: another tokenizer?")
        end = np.array([vocabulary])
        flat = np.concatenate([piece for part in parts for piece in (part, end)] or [end]).astype(kind)
        starts = suffix_array(flat)
        suffixes = starts[flat[starts] != vocabulary]
        meta = DatastoreMeta(vocabulary, len(flat), len(parts), tokenizer, tuple(sources))
        return cls(meta, flat, suffixes)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Datastore:
        """Map a datastore's folder into memory.

        Args:
            path: The folder; see `datastore_path` for names.

        Raises:
            DatastoreError: There is none, or its parts do not fit together.
        """
        folder = Path(path)
        if not (folder / "datastore.json").is_file():
            raise DatastoreError(f"{path}: no such datastore; make one with `calibrate datastore build`")
        try:
            stated = read_json(folder / "datastore.json")
            if not isinstance(stated, dict) or stated.pop("schema", None) != SCHEMA:
                raise DatastoreError(f"{path}: is no datastore of schema {SCHEMA!r}")
            meta = _META.validate_python({**stated, "sources": tuple(stated["sources"])})
            arrays = [_mapped(folder / f"{name}.npy") for name in ("tokens", "suffixes")]
        except ValidationError as error:
            raise DatastoreError(f"{path}: damaged datastore: {describe_invalid(error)}") from error
        except (OSError, TypeError, KeyError, ValueError) as error:
            raise DatastoreError(f"{path}: damaged datastore: {error}") from error
        if len(arrays[0]) != meta.tokens or len(arrays[1]) > meta.tokens:
            raise DatastoreError(f"{path}: damaged datastore: its parts differ in length")
        return cls(meta, *arrays)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the folder, which appears complete or not at all; an older datastore there is replaced.

        Raises:
            DatastoreError: There is something else at `path`.
        """
        folder = Path(path).resolve()
        if folder.exists() and not (folder / "datastore.json").is_file():
            raise DatastoreError(f"{path}: exists and is no datastore")
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh, old = (folder.with_name(f".{folder.name}.{secrets.token_hex(4)}") for _ in range(2))
        try:
            fresh.mkdir()
            np.save(fresh / "tokens.npy", self._tokens, allow_pickle=False)
            np.save(fresh / "suffixes.npy", self._suffixes, allow_pickle=False)
            stated = to_json({"schema": SCHEMA, **asdict(self.meta)}, indent=2)
            (fresh / "datastore.json").write_text(stated + "\n", encoding="utf-8")
            if folder.exists():
                folder.rename(old)
            fresh.rename(folder)
        finally:
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)

    def __len__(self) -> int:
        return self.meta.tokens

    def lookup(
        self, text: Sequence[int], *, longest: int, span: int, count: int, shortest: int = 1
    ) -> list[Continuation]:
        """Distinct continuations of the text's endings: longest ending first, then the most frequent.

        Endings of `longest` tokens are looked for, then shorter ones down to `shortest`, until there are
        `count` continuations (RASD, algorithm 1, with endings of i tokens in all).  At the end of a stored
        text a continuation is shorter than `span`; where nothing follows there is none.  Equally frequent
        ones come in lexical order.

        Args:
            text: Tokens so far; only its last `longest` matter.
            longest: Longest ending.
            span: Most tokens of a continuation.
            count: Most continuations.
            shortest: Shortest ending, at least 1.

        Raises:
            ValueError: Outside the domain.
        """
        check_search(longest, shortest, span, count)
        found: dict[tuple[int, ...], int] = {}
        for size, (low, high) in self._matches(tuple(text[-longest:]), shortest):
            if len(found) >= count:
                break
            # Of the `count` most frequent ones, no more are known already than were found already.
            follows = self._follows(range(low, high), size, span)
            for tokens, frequency in whole(follows, self.meta.vocabulary, count):
                found.setdefault(tokens, frequency)
        return list(found.items())[:count]

    def prefixes(
        self,
        text: Sequence[int],
        *,
        longest: int,
        span: int,
        nodes: int,
        enough: int = 1,
        shortest: int = 1,
    ) -> list[Continuation]:
        """The nodes of a tree of continuations: their most frequent beginnings, and how often they occurred.

        What filters REST's tree, whose continuations are many and mostly occur once.  The longest ending that
        anything follows comes first; shorter ones fill the tree up until `enough` distinct continuations
        were found.  A beginning of a listed one is listed before it.

        Args:
            text: As in `lookup`.
            longest: As in `lookup`.
            span: As in `lookup`.
            nodes: Most beginnings.
            enough: Distinct continuations after which shorter endings are left out.
            shortest: As in `lookup`.

        Raises:
            ValueError: Outside the domain.
        """
        check_search(longest, shortest, span, min(nodes, enough))
        found: dict[tuple[int, ...], int] = {}
        distinct = 0
        for size, (low, high) in self._matches(tuple(text[-longest:]), shortest):
            if len(found) >= nodes or distinct >= enough:
                break
            follows = self._follows(range(low, high), size, span)
            new, more = beginnings(follows, self.meta.vocabulary, nodes)
            distinct += more
            for tokens, frequency in new:
                if len(found) < nodes:
                    found.setdefault(tokens, frequency)
        return list(found.items())

    def occurrences(self, words: Sequence[int]) -> int:
        """How often these tokens stand in the texts, one after the other."""
        low, high = self._range(self._pattern(words))
        return high - low

    def _matches(self, ending: tuple[int, ...], shortest: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """(size, range of suffixes) of every ending that occurs, longest first."""
        # An ending occurs only if all shorter ones do.
        sizes = range(1, len(ending) + 1)
        longest = bisect_left(sizes, True, key=lambda size: not self.occurrences(ending[-size:]))
        for size in range(longest, shortest - 1, -1):
            yield size, self._range(self._pattern(ending[-size:]))

    def _pattern(self, words: Sequence[int]) -> bytes:
        if any(not 0 <= word < self.meta.vocabulary for word in words):
            return b""
        return np.asarray(words, dtype=self._tokens.dtype).tobytes()

    def _range(self, pattern: bytes) -> tuple[int, int]:
        """Suffixes that begin with these bytes: [low, high) of the array; none for no bytes."""
        if not pattern:
            return 0, 0
        letters, width, size = self._letters, self._width, len(pattern)

        def beginning(start: int) -> bytes:
            at = width * start
            return bytes(letters[at : at + size])

        low = bisect_left(self._starts, pattern, key=beginning)
        high = bisect_right(self._starts, pattern, lo=low, key=beginning)
        return low, high

    def _follows(self, matches: range, size: int, span: int) -> IntArray:
        """[n, span] what follows the first `size` tokens of suffixes, ends beyond the end of a text.

        Suffixes are sorted, so that equal continuations and equal beginnings lie side by side.
        """
        count = min(len(matches), LOOKED_AT)
        chosen = matches.start + np.arange(count) * len(matches) // count
        at = self._suffixes[chosen].astype(np.int64) + size
        places = np.minimum(at[:, None] + np.arange(span), len(self._tokens) - 1)  # the last one is an end
        follows: IntArray = self._tokens[places].astype(np.int64)
        end = self.meta.vocabulary
        follows[np.logical_or.accumulate(follows == end, axis=1)] = end
        return follows


def datastore_path(name_or_path: str | os.PathLike[str]) -> Path:
    """Folder of a datastore: the user's own of a name (`stdlib`), or a path, which has a separator in it."""
    text = os.fspath(name_or_path)
    if Path(text).name != text:
        return Path(text)
    try:
        return user_directory() / "datastores" / check_name(text)
    except ValueError as error:
        raise DatastoreError(str(error)) from error


def _mapped(path: Path) -> NDArray[Any]:
    array = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    if array.ndim != 1 or array.dtype.kind != "u":
        raise DatastoreError(f"{path}: not a list of unsigned integers")
    return array
