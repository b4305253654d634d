"""Values that policies and devices exchange: requests, views, speculations, verdicts, speculation caches.

They are frozen and may cross a process boundary.  KV caches and logits never do; a device keeps them and
finds them again by `slot`.

Shapes: B is the number of slots of the batch (its *width*), K the lookahead.  Every per-row tuple of a
speculation or a verdict has length B and is indexed by slot, whether or not the row takes part; `View.slots`
says which rows do.  That keeps those of successive rounds aligned when rows finish or are replaced.  Rows are
chosen by the set of their slots.

They are tuples and sets, not arrays: most batches have one to sixteen rows, for which numpy's operations take
longer than all else that a round consists of.  Those of every round are structs, which are made ten times
faster than frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = tuple[int, ...]
Slots: TypeAlias = frozenset[int]
"""Some rows of a batch."""
NO_SLOTS: Slots = frozenset()

UNKNOWN = -1
"""Token id of content that the world at hand does not know (coin tosses, off the recorded path)."""

NO_HANDLE = -1
"""Handle of a row whose tokens were drawn from no distribution that is kept."""


class Source(IntEnum):
    """Which distribution sigma a row's verified tokens were drawn from (design.md, section 3)."""

    NONE = 0
    """Nothing was proposed: a plain decode."""
    PRIMARY = 1
    """The draft model, drafting on the very path that is verified."""
    RANDOM = 2
    """Uniform random tokens (SSD's fast backup speculator, paper section 4.3)."""
    NGRAM = 3
    """What followed the same words earlier in the text (prompt lookup); its distribution is one-hot."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    Attributes:
        id: Identity of the request; keys all of its randomness and its rows of a trace.
        prompt_length: Tokens in the prompt, at least 1.
        limit: Most tokens to emit (`max_tokens`), at least 1.
        prompt: The prompt's token ids; None where only their number matters (simulated world).
    """

    id: int
    prompt_length: int
    limit: int
    prompt: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.prompt_length < 1 or self.limit < 1:
            raise ValueError(
                f"request {self.id}: prompt_length and limit must be at least 1, "
                f"got {self.prompt_length} and {self.limit}"
            )


class View(msgspec.Struct, frozen=True, gc=False):
    """The rows that an operation is about, as they stood when it was submitted.

    Attributes:
        slots: [n] slots that take part, rising.
        requests: [n] request id of each.
        positions: [n] tokens emitted so far by each (the next one has this position).
        contexts: [n] prompt plus emitted tokens of each.
        rooms: [n] tokens that each may still emit.
        tails: the last two tokens of each (one if there is only one), oldest first; None in a world
            without token ids.
    """

    slots: Ints
    requests: Ints
    positions: Ints
    contexts: Ints
    rooms: Ints
    tails: tuple[Ints, ...] | None = None


class Drafted(NamedTuple):
    """Tokens that continue a row's text, and the handle of the distributions they were drawn from.

    NO_HANDLE: of none.

    Distributions of successive tokens have successive handles.
    """

    tokens: tuple[int, ...] = ()
    handle: int = NO_HANDLE

    def after(self, count: int) -> Drafted:
        """All but the first `count` tokens."""
        known = self.handle != NO_HANDLE and count < len(self.tokens)
        return Drafted(self.tokens[count:], self.handle + count if known else NO_HANDLE)


class Speculation(msgspec.Struct, frozen=True, gc=False):
    """Drafted tokens awaiting verification.

    Attributes:
        lengths: [B] drafted tokens of each row (0: plain decode).
        sources: [B] `Source` of each row's tokens.
        tokens: [B] the ids of each row's tokens, UNKNOWN where they are not known; None in a world without
            token ids.  A random row's tokens are known in every world that has ids.
        has_guesses: Whether any row may have the source RANDOM or NGRAM.
        shape: F_0 ... F_(K-1) by which Saguaro sampling rescaled the distributions of the primary tokens;
            None where nothing was rescaled.
        handles: [B] opaque, of the distributions that sampled tokens were drawn from, -1 for none; None
            in a world that keeps none.
    """

    lengths: Ints
    sources: Ints
    tokens: tuple[Ints, ...] | None = None
    has_guesses: bool = False
    shape: Ints | None = None
    handles: Ints | None = None

    @classmethod
    def empty(cls, width: int) -> Speculation:
        """No drafted token in any of `width` rows."""
        return cls((0,) * width, (_NONE,) * width)

    @classmethod
    def primary(cls, width: int, lengths: Mapping[int, int], shape: Ints | None = None) -> Speculation:
        """So many of the primary draft's tokens in some of `width` rows, by slot; their ids stay unknown."""
        found, sources = [0] * width, [_NONE] * width
        for slot, length in lengths.items():
            if length:
                found[slot], sources[slot] = length, _PRIMARY
        return cls(tuple(found), tuple(sources), shape=shape)

    @classmethod
    def drafted(cls, width: int, rows: Mapping[int, tuple[Sequence[int], int]]) -> Speculation:
        """The primary draft's tokens of some of `width` rows, by slot (`Drafted`).

        A row without tokens has the source NONE.
        """
        found = [rows.get(slot, _NOTHING) for slot in range(width)]
        tokens = tuple([tuple(tokens) for tokens, _ in found])
        lengths = tuple(map(len, tokens))
        sources = tuple([_PRIMARY if length else _NONE for length in lengths])
        handles = tuple([handle for _, handle in found])
        known = any(handle != NO_HANDLE for handle in handles)
        return cls(lengths, sources, tokens, handles=handles if known else None)

    def row(self, slot: int) -> Drafted:
        """A row's drafted tokens, UNKNOWN in a world without ids."""
        length = self.lengths[slot]
        known = () if self.tokens is None else self.tokens[slot]
        handle = NO_HANDLE if self.handles is None else self.handles[slot]
        return Drafted(known if len(known) == length else (UNKNOWN,) * length, handle)

    def merge(self, other: Speculation, rows: Slots) -> Speculation:
        """This speculation with the `rows` taken from `other`."""
        if not rows or len(rows) == len(self.lengths):
            return other if rows else self
        return Speculation(
            _merged(self.lengths, other.lengths, rows),
            _merged(self.sources, other.sources, rows),
            _merged_or_none(self.tokens, other.tokens, rows, ()),
            self.has_guesses or other.has_guesses,
            self.shape or other.shape,
            _merged_or_none(self.handles, other.handles, rows, NO_HANDLE),
        )


_PRIMARY, _NONE = int(Source.PRIMARY), int(Source.NONE)
_NOTHING = Drafted()
_Each = TypeVar("_Each")


def _merged(mine: tuple[_Each, ...], theirs: tuple[_Each, ...], rows: Slots) -> tuple[_Each, ...]:
    """[B] of both."""
    chosen = list(mine)
    for slot in rows:
        chosen[slot] = theirs[slot]
    return tuple(chosen)


def _merged_or_none(
    mine: tuple[_Each, ...] | None, theirs: tuple[_Each, ...] | None, rows: Slots, nothing: _Each
) -> tuple[_Each, ...] | None:
    """[B] of both, `nothing` where the one that counts has none."""
    if mine is None and theirs is None:
        return None
    width = len(mine or theirs or ())
    return _merged(mine or (nothing,) * width, theirs or (nothing,) * width, rows)


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Outcome of a verification, cut at the end token and at the request's limit.

    A row emits its accepted tokens and then the bonus token, unless the cut falls before it.

    Attributes:
        accepted: [B] drafted tokens accepted and emitted.
        emitted: [B] tokens emitted: `accepted + 1`, or less where the row was cut.
        ended: Rows that emitted their last token.
        bonus: [B] id of the bonus token, UNKNOWN if cut off or without ids.
        tokens: per slot the emitted ids; None in a world without token ids.
    """

    accepted: Ints
    emitted: Ints
    ended: Slots
    bonus: Ints
    tokens: tuple[Ints, ...] | None = None


class RowVerdict(NamedTuple):
    """A row's verification after the cuts at the end token and the limit; see `Verdict`.

    `emitted` are ids, the bonus token among them.
    """

    accepted: int
    emitted: tuple[int, ...]
    ended: bool
    bonus: int = UNKNOWN


def verdict_of(width: int, rows: Mapping[int, RowVerdict]) -> Verdict:
    """The batch's verdict, from those of its rows by slot."""
    found = [rows.get(slot, _UNDECIDED) for slot in range(width)]
    return Verdict(
        tuple([row.accepted for row in found]),
        tuple([len(row.emitted) for row in found]),
        frozenset(slot for slot, row in rows.items() if row.ended),
        tuple([row.bonus for row in found]),
        tuple([tuple(row.emitted) for row in found]),
    )


_UNDECIDED = RowVerdict(0, (), ended=False)


def joined(first: RowVerdict, then: RowVerdict, room: int) -> RowVerdict:
    """A verification that left its end open, and what settled it, as one.

    `room`: tokens that the row might emit when the round began; a recording may have been given more.
    """
    whole = RowVerdict(
        first.accepted + then.accepted, (*first.emitted, *then.emitted), then.ended, then.bonus
    )
    return cut_to(whole, room)


def cut_to(verdict: RowVerdict, room: int) -> RowVerdict:
    """A verdict with no more tokens than there is room for, with which the row ends."""
    if len(verdict.emitted) < room:
        return verdict
    emitted = verdict.emitted[:room]
    bonus = verdict.bonus if len(emitted) == len(verdict.emitted) else UNKNOWN
    return RowVerdict(min(verdict.accepted, len(emitted)), emitted, True, bonus)


Outcome: TypeAlias = tuple[int, int]
"""Number of accepted tokens and the bonus token."""


class Prepared(NamedTuple):
    """A row's speculations by outcome, in the order (accepted, rank of the bonus token)."""

    entries: tuple[tuple[Outcome, Drafted], ...]


class OutcomeCache:
    """Speculation cache of one round that knows its tokens (see `policies.protocols.Cache`).

    Args:
        width: Slots of the batch.
        entries: Per slot that took part, drafted tokens by outcome.
        openings: Per slot the first token past what is verified; of a cache with one outcome per row.
    """

    def __init__(
        self,
        width: int,
        entries: Mapping[int, Mapping[Outcome, Drafted]],
        openings: Mapping[int, Drafted] | None = None,
    ) -> None:
        self.width = width
        self.entries = entries
        self.openings = openings

    def lookup(self, verdict: Verdict) -> Slots:
        """The rows whose outcome was prepared for, ended ones left out."""
        going_on = [(slot, entries) for slot, entries in self.entries.items() if slot not in verdict.ended]
        return frozenset(slot for slot, entries in going_on if _outcome(verdict, slot) in entries)

    def take(self, verdict: Verdict, hits: Slots) -> Speculation:
        """The prepared speculation of the rows in `hits`; empty for all others."""
        chosen = {slot: self.entries[slot][_outcome(verdict, slot)] for slot in hits}
        return Speculation.drafted(self.width, chosen)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation; only the cache of a `Continue` has one."""
        if self.openings is None:
            raise ValueError("only the cache of a `Continue` has an opening")
        return Speculation.drafted(self.width, self.openings)


def _outcome(verdict: Verdict, slot: int) -> Outcome:
    return verdict.accepted[slot], verdict.bonus[slot]
