"""The shared probability ring: the distributions of drafted tokens, in memory that two processes share.

A verification needs the exact distribution that a sampled token was drawn from.  For K tokens of each
prepared outcome these are megabytes per round, of which the target reads a few numbers: the probability of
each token it verifies, and one distribution per rejection.  So they are neither pickled nor sent; the draft
writes them to a ring of records, and a speculation carries the handle of its first one, the next ones follow.

A record knows which token of which request's position it belongs to.  A handle that was overwritten, or
that belongs to something else, is an `AuditError` and never a silently wrong distribution.

The memory has no name: nothing is left behind, however the processes end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.live.errors import AuditError, LiveError
from policies.sampling import FloatArray
from policies.values import IntArray

DEFAULT_BYTES = 16 << 30
"""Address space of a ring; memory is taken as the ring grows."""
ALIVE = 5
"""The ring holds this many times what the largest operation wrote.  A record is read at the latest while the
second next pre-speculation is being written: two of these, two redrafts, and what a wrap leaves unused."""

_ROW_BITS, _TAG_BITS = 28, 27
_ROWS, _TAGS = 1 << _ROW_BITS, 1 << _TAG_BITS
MOST_DRAFTS = 127


class Segment:
    """Anonymous shared memory of so many bytes, given to a process when it is started."""

    def __init__(self, size: int = DEFAULT_BYTES) -> None:
        self.size = size
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("spectwin-probs", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile(prefix="spectwin-probs-") as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (DupFd(self.descriptor), self.size)

    def take(self, start: int, size: int) -> None:
        """Make sure that there is memory for so many bytes; without it, a write would be a bus error.

        Raises:
            LiveError: There is not enough.
        """
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self.descriptor, start, size)
        except OSError as error:
            raise LiveError(
                f"no shared memory for {size / 1e6:.0f} MB of distributions ({error.strerror}); a "
                f"smaller fan-out, lookahead or batch needs less"
            ) from error

    def close(self) -> None:
        """Give this process's hold of it back; what is mapped stays until the process ends."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


def _attached(duplicate: Any, size: int) -> Segment:
    segment = Segment.__new__(Segment)
    segment.descriptor, segment.size = duplicate.detach(), size
    return segment


class _Records:
    """Numpy views of a segment's records over V tokens; the memory is mapped into this process."""

    def __init__(self, segment: Segment, vocabulary: int) -> None:
        fields = [("handle", "<i8"), ("total", "<f8"), ("owner", "<i8", 3), ("weights", "<f4", vocabulary)]
        record = np.dtype(fields + [("spare", "<f4")] * (vocabulary % 2))
        self.vocabulary, self.stride = vocabulary, record.itemsize
        self.count = min(segment.size // self.stride, _ROWS)
        table = np.ndarray((self.count,), record, mmap.mmap(segment.descriptor, segment.size))
        self.handles, self.totals, self.owners, self.weights = (table[name] for name, *_ in fields)


class ProbsWriter:
    """The end of a draft, whose number among the drafts is in every handle, of memory of its own."""

    def __init__(self, segment: Segment, number: int = 0) -> None:
        if not 0 <= number < MOST_DRAFTS:
            raise ValueError(
                f"at most {MOST_DRAFTS} drafts can share their distributions, got number {number}"
            )
        self.segment = segment
        self.number = number
        self._records: _Records | None = None
        self._limit = 0
        self._next = 0
        self._tag = 0

    def reserve(self, blocks: int, depth: int, vocabulary: int) -> Block:
        """Room for the distributions of `blocks` speculations of `depth` tokens.

        Raises:
            LiveError: The ring cannot hold that many, or there is no memory.
        """
        if self._records is None:
            self._records = _Records(self.segment, vocabulary)
        if self._records.vocabulary != vocabulary:
            raise AuditError(
                f"distributions over {vocabulary} tokens in a ring for {self._records.vocabulary}"
            )
        count = blocks * depth
        self._grow(self._records, ALIVE * count)
        if self._next + count > self._limit:
            self._next = 0
        start, self._next = self._next, self._next + count
        self._tag = (self._tag + 1) % _TAGS
        base = ((self.number << _TAG_BITS | self._tag) << _ROW_BITS) | start
        return Block(self._records, base, start, (blocks, depth))

    def _grow(self, records: _Records, wanted: int) -> None:
        if wanted <= self._limit:
            return
        if wanted > records.count:
            raise LiveError(
                f"{wanted} distributions over {records.vocabulary} tokens do not fit into "
                f"{self.segment.size / 1e9:.0f} GB of shared memory; use a smaller fan-out, "
                f"lookahead or batch, or more `ring_bytes`"
            )
        self.segment.take(self._limit * records.stride, (wanted - self._limit) * records.stride)
        self._limit = wanted


class Block:
    """Records of the speculations of one operation, [blocks, depth]; written step by step, then sealed."""

    def __init__(self, records: _Records, base: int, start: int, shape: tuple[int, int]) -> None:
        self._records, self._base, self._depth = records, base, shape[1]
        self._rows = slice(start, start + shape[0] * shape[1])
        records.handles[self._rows] = -1  # a reader of what was here before shall notice

    def write(
        self,
        places: int | tuple[IntArray, IntArray],
        weights: NDArray[np.float32],
        totals: FloatArray,
        owners: tuple[IntArray, IntArray, IntArray],
    ) -> None:
        """Write the distributions of n tokens.

        Args:
            places: [n] each: the token's speculation, and its index within it; an index: of all speculations.
            weights: [n, V], not normalised.
            totals: [n] their sums.
            owners: [n] each: request, position and the token drawn.
        """
        if isinstance(places, int):
            rows: Any = slice(self._rows.start + places, self._rows.stop, self._depth)
        else:
            rows = self._rows.start + places[0] * self._depth + places[1]
        self._records.weights[rows] = weights
        self._records.totals[rows] = totals
        self._records.owners[rows] = np.stack(owners, axis=-1)

    def seal(self) -> list[int]:
        """[blocks] the handle of each speculation, from now on valid."""
        handles = self._base + np.arange(self._rows.stop - self._rows.start)
        self._records.handles[self._rows] = handles
        firsts: list[int] = handles[:: self._depth].tolist()
        return firsts


class ProbsReader:
    """The target's end, of the memory of all drafts, in the order of their numbers."""

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self.segments = tuple(segments)
        self._records: dict[int, _Records] = {}

    def masses(
        self, handles: IntArray, requests: IntArray, positions: IntArray, tokens: IntArray, vocabulary: int
    ) -> FloatArray:
        """[n] probability of each drafted token over V ids under the distribution that it was drawn from.

        A handle is that of the token's own distribution: a speculation's, plus the token's index in it.

        Raises:
            AuditError: A distribution is not there any more, or is another token's.
        """
        masses = np.empty(len(handles))
        for mine, records, rows in self._by_draft(handles, vocabulary):
            masses[mine] = records.weights[rows, tokens[mine]] / records.totals[rows]
            self._check_owner(records, rows, (requests[mine], positions[mine], tokens[mine]))
            self._check_alive(records, rows, handles[mine])
        return masses

    def probs(self, handles: IntArray, vocabulary: int) -> FloatArray:
        """[n, V] the distributions themselves, normalised; an `AuditError` if one is not there any more."""
        probs = np.empty((len(handles), vocabulary))
        for mine, records, rows in self._by_draft(handles, vocabulary):
            probs[mine] = records.weights[rows] / records.totals[rows, None]
            self._check_alive(records, rows, handles[mine])
        return probs

    def _by_draft(self, handles: IntArray, vocabulary: int) -> Iterator[tuple[IntArray, _Records, IntArray]]:
        """Per draft: which of the handles are its, its records, and their rows."""
        if len(handles) and handles.min() < 0:
            raise AuditError("a sampled token came without the distribution that it was drawn from")
        numbers = handles >> (_ROW_BITS + _TAG_BITS)
        for number in np.unique(numbers).tolist():
            if number >= len(self.segments):
                raise AuditError(f"a distribution of draft {number}, of which this worker was told nothing")
            if number not in self._records:
                self._records[number] = _Records(self.segments[number], vocabulary)
            records = self._records[number]
            mine = np.flatnonzero(numbers == number)
            rows = handles[mine] & (_ROWS - 1)
            if rows.max() >= records.count:
                raise AuditError(
                    f"the distribution of handle {int(handles[mine].max())} lies outside its ring"
                )
            yield mine, records, rows

    @staticmethod
    def _check_owner(records: _Records, rows: IntArray, claimed: tuple[IntArray, ...]) -> None:
        owners, claims = records.owners[rows], np.stack(claimed, axis=-1)
        if (wrong := (owners != claims).any(axis=-1)).any():
            at = int(wrong.argmax())
            raise AuditError(
                f"(request, position, token) {tuple(claims[at].tolist())} came with the distribution of "
                f"{tuple(owners[at].tolist())}"
            )

    @staticmethod
    def _check_alive(records: _Records, rows: IntArray, handles: IntArray) -> None:
        """After reading, so that an overwriting at the same time is noticed too."""
        stale = records.handles[rows] != handles
        if stale.any():
            raise AuditError(f"the distributions of handles {handles[stale].tolist()} were overwritten")
