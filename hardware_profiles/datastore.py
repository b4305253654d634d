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

Suffixes are sorted by the library libdivsufsort (`pydivsufsort`, the extra `datastore`), in seconds for ten
million tokens; without it by prefix doubling (Manber and Myers 1993) in numpy, in minutes. Both give the
same array. What follows some words is a matrix [n, span] of continuations, sorted, so that equal ones and
equal beginnings lie side by side; a row that a text's end cuts short is filled up with `end`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.files import check_name, read_json, to_json
from hardware_profiles.records import Frozen, plain, record
from hardware_profiles.store import user_directory


def suffix_array(tokens: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """[n] start of every suffix, in lexical order of the suffixes; a beginning comes before what it begins.

    `tokens` are [n] of less than 2**31 bytes.
    """
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        return by_doubling(tokens)
    if not len(tokens):
        return np.empty(0, dtype=np.uint32)
    # Bytes in reading order sort as the tokens do; starts inside a token are left out.
    width = tokens.dtype.itemsize
    letters = np.ascontiguousarray(tokens.astype(tokens.dtype.newbyteorder(">"))).view(np.uint8)
    starts = divsufsort(letters)
    return np.asarray(starts[starts % width == 0] // width, dtype=np.uint32)


def by_doubling(tokens: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """As `suffix_array`, in numpy alone: sorted by 1, 2, 4, ... tokens until all suffixes differ."""
    count, length = len(tokens), 1
    if not count:
        return np.empty(0, dtype=np.uint32)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    while True:
        # What begins `length` tokens later is ranked already; 0 is for "nothing any more".
        later = np.zeros(count, dtype=np.int64)
        later[: max(0, count - length)] = rank[length:] + 1
        keys = rank * (count + 1) + later
        order = np.argsort(keys, kind="stable")
        steps = np.diff(keys[order]) > 0
        rank[order] = np.concatenate([[0], np.cumsum(steps)])
        if steps.all():
            return order.astype(np.uint32)
        length *= 2


IntArray: TypeAlias = NDArray[np.int64]
Continuation: TypeAlias = tuple[tuple[int, ...], int]
"""Tokens, and how many of the occurrences looked at they followed."""


def whole(follows: IntArray, end: int, most: int) -> list[Continuation]:
    """The most frequent continuations; equally frequent ones in their order.

    A row of `follows` [n, span], n at least 1, that was cut short is filled up with `end`.
    """
    starts = np.flatnonzero(_changes(follows)[:, -1])
    frequencies = np.diff(np.append(starts, len(follows)))
    something = follows[starts, 0] != end
    starts, frequencies = starts[something], frequencies[something]
    return [
        (tuple(token for token in follows[starts[i]].tolist() if token != end), int(frequencies[i]))
        for i in np.argsort(-frequencies, kind="stable")[:most]
    ]


def beginnings(follows: IntArray, end: int, most: int) -> tuple[list[Continuation], int]:
    """The most frequent beginnings, each before what it begins, and the number of distinct continuations.

    Parameters as those of `whole`.
    """
    changes = _changes(follows)
    # A beginning goes on to the next change at its own depth, so that depths lie one after the other.
    depths, rows = np.nonzero(changes.T)
    stops = np.append(rows[1:], 0)
    stops[np.append(depths[1:] != depths[:-1], True)] = len(follows)
    real = follows[rows, depths] != end
    depths, rows, frequencies = depths[real], rows[real], (stops - rows)[real]
    order = np.lexsort((rows, depths, -frequencies))[:most]
    listed = [(tuple(follows[rows[i], : depths[i] + 1].tolist()), int(frequencies[i])) for i in order]
    return listed, int((changes[:, -1] & (follows[:, 0] != end)).sum())


def _changes(follows: IntArray) -> NDArray[np.bool_]:
    """[n, span] whether the beginning up to each token differs from that of the row before."""
    changes = np.ones(follows.shape, dtype=np.bool_)
    np.logical_or.accumulate(follows[1:] != follows[:-1], axis=1, out=changes[1:])
    return changes


SCHEMA = "spectwin/datastore/1"
LOOKED_AT = 4096
"""Most occurrences of an ending that are looked at, evenly spread over their sorted order.  A single common
word occurs millions of times, and a lookup is part of every round."""


class DatastoreError(ValueError):
    """A datastore cannot be read or written; the message says the way out."""


class DatastoreMeta(Frozen, frozen=True):
    """What a datastore is.

    Attributes:
        vocabulary: V; ids of texts are below, the separator is V itself.
        tokens: Tokens of all texts, separators included.
    """

    vocabulary: int
    tokens: int
    documents: int
    tokenizer: str = ""
    sources: tuple[str, ...] = ()


class Datastore:
    """An opened datastore; read-only, and safe to share between threads.

    Args:
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

        `texts` are token ids; a continuation never crosses the end of its text.

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
        """Map a datastore's folder into memory; see `datastore_path` for names.

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
            meta = record(DatastoreMeta, stated)
            arrays = [_mapped(folder / f"{name}.npy") for name in ("tokens", "suffixes")]
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
            stated = to_json({"schema": SCHEMA, **plain(self.meta)}, indent=2)
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

        Only the last `longest` tokens of the text matter; a continuation has at most `span` tokens.

        Raises:
            ValueError: Outside the domain.
        """
        frequencies: dict[tuple[int, ...], int] = {}
        for follows in self._searched(text, longest, shortest, span, count):
            # Of the `count` most frequent ones, no more are known already than were found already.
            for tokens, frequency in whole(follows, self.meta.vocabulary, count):
                frequencies.setdefault(tokens, frequency)
            if len(frequencies) >= count:
                break
        return list(frequencies.items())[:count]

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

        `nodes` are listed at most; other parameters are those of `lookup`.

        Raises:
            ValueError: Outside the domain.
        """
        frequencies: dict[tuple[int, ...], int] = {}
        distinct = 0
        for follows in self._searched(text, longest, shortest, span, min(nodes, enough)):
            new, more = beginnings(follows, self.meta.vocabulary, nodes)
            distinct += more
            for tokens, frequency in new:
                if len(frequencies) < nodes:
                    frequencies.setdefault(tokens, frequency)
            if len(frequencies) >= nodes or distinct >= enough:
                break
        return list(frequencies.items())

    def occurrences(self, words: Sequence[int]) -> int:
        """How often these tokens stand in the texts, one after the other."""
        low, high = self._range(self._pattern(words))
        return high - low

    def _searched(
        self, text: Sequence[int], longest: int, shortest: int, span: int, count: int
    ) -> Iterator[IntArray]:
        """[n, span] what follows each ending of the text that occurs, longest ending first."""
        if not 1 <= shortest <= longest or span < 1 or count < 0:
            raise ValueError(
                "needs 1 <= shortest <= longest, span >= 1 and a count of at least 0, "
                f"got {shortest}, {longest}, {span}, {count}"
            )
        if count == 0:
            return
        ending = tuple(text[-longest:])
        # An ending occurs only if all shorter ones do.
        sizes = range(1, len(ending) + 1)
        known = bisect_left(sizes, True, key=lambda size: not self.occurrences(ending[-size:]))
        for size in range(known, shortest - 1, -1):
            yield self._follows(range(*self._range(self._pattern(ending[-size:]))), size, span)

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
