"""Values that policies and devices exchange: requests, views, speculations, verdicts, speculation caches.

They are frozen and may cross a process boundary.  KV caches and logits never do; a device keeps them and
finds them again by `slot`.

Shapes: B is the number of slots of the batch (its *width*), K the lookahead.  Every per-row array of a
value has length B and is indexed by slot, whether or not the row takes part; `View.slots` says which
rows do.  That keeps the arrays of successive rounds aligned when rows finish or are replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

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


def marked(width: int, slots: Collection[int]) -> BoolArray:
    """[width] mask of some slots."""
    mask = np.zeros(width, dtype=np.bool_)
    mask[list(slots)] = True
    return mask


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


@dataclass(frozen=True, slots=True)
class View:
    """The rows that an operation is about, as they stood when it was submitted.

    Attributes:
        slots: [n] slots that take part.
        requests: [n] request id of each.
        positions: [n] tokens emitted so far by each (the next one has this position).
        contexts: [n] prompt plus emitted tokens of each.
        rooms: [n] tokens that each may still emit.
        tails: the last two tokens of each (one if there is only one), oldest first; None in a world
            without token ids.
    """

    slots: IntArray
    requests: IntArray
    positions: IntArray
    contexts: IntArray
    rooms: IntArray
    tails: tuple[tuple[int, ...], ...] | None = None


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


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafted tokens awaiting verification.

    Attributes:
        lengths: [B] drafted tokens of each row (0: plain decode).
        sources: [B] `Source` of each row's tokens.
        tokens: [B, K] their ids, UNKNOWN beyond a row's length; None in a world without token ids.
            A random row's tokens are known in every world that has ids.
        has_guesses: Whether any row may have the source RANDOM or NGRAM.
        shape: F_0 ... F_(K-1) by which Saguaro sampling rescaled the distributions of the primary tokens;
            None where nothing was rescaled.
        handles: [B] opaque, of the distributions that sampled tokens were drawn from, -1 for none; None
            in a world that keeps none.
    """

    lengths: IntArray
    sources: IntArray
    tokens: IntArray | None = None
    has_guesses: bool = False
    shape: tuple[int, ...] | None = None
    handles: IntArray | None = None

    @classmethod
    def empty(cls, width: int) -> Speculation:
        """No drafted token in any of `width` rows."""
        zeros = np.zeros(width, dtype=np.int64)
        return cls(zeros, zeros)

    @classmethod
    def drafted(cls, width: int, rows: Mapping[int, tuple[Sequence[int], int]]) -> Speculation:
        """The primary draft's tokens of some of `width` rows, by slot (`Drafted`).

        A row without tokens has the source NONE.
        """
        depth = max((len(tokens) for tokens, _ in rows.values()), default=0)
        lengths = np.zeros(width, dtype=np.int64)
        table = np.full((width, depth), UNKNOWN, dtype=np.int64)
        handles = np.full(width, NO_HANDLE, dtype=np.int64)
        for slot, (tokens, handle) in rows.items():
            lengths[slot] = len(tokens)
            table[slot, : len(tokens)] = tokens
            handles[slot] = handle
        sources = np.where(lengths > 0, int(Source.PRIMARY), int(Source.NONE))
        return cls(lengths, sources, table, handles=handles if (handles != NO_HANDLE).any() else None)

    def row(self, slot: int) -> Drafted:
        """A row's drafted tokens, UNKNOWN in a world without ids."""
        length = int(self.lengths[slot])
        known = () if self.tokens is None else tuple(self.tokens[slot, :length].tolist())
        handle = NO_HANDLE if self.handles is None else int(self.handles[slot])
        return Drafted(known if len(known) == length else (UNKNOWN,) * length, handle)

    def merge(self, other: Speculation, rows: BoolArray) -> Speculation:
        """This speculation with the rows marked in `rows` [B] taken from `other`."""
        return Speculation(
            np.where(rows, other.lengths, self.lengths),
            np.where(rows, other.sources, self.sources),
            _merged(self.tokens, other.tokens, rows),
            self.has_guesses or other.has_guesses,
            self.shape or other.shape,
            _merged(self.handles, other.handles, rows),
        )


def _merged(mine: IntArray | None, theirs: IntArray | None, rows: BoolArray) -> IntArray | None:
    """[B] or [B, n] of both, -1 (unknown, none) where the one that counts has nothing."""
    given = [(each, chosen) for each, chosen in ((mine, ~rows), (theirs, rows)) if each is not None]
    if not given:
        return None
    merged = np.full([max(sizes) for sizes in zip(*(each.shape for each, _ in given), strict=True)], -1)
    for each, chosen in given:
        where: tuple[Any, ...] = (chosen, *map(slice, each.shape[1:]))
        merged[where] = each[chosen]
    return merged


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a verification, cut at the end token and at the request's limit.

    A row emits its accepted tokens and then the bonus token, unless the cut falls before it.

    Attributes:
        accepted: [B] drafted tokens accepted and emitted.
        emitted: [B] tokens emitted: `accepted + 1`, or less where the row was cut.
        ended: [B] whether the row emitted its last token.
        bonus: [B] id of the bonus token, UNKNOWN if cut off or without ids.
        tokens: per slot the emitted ids; None in a world without token ids.
    """

    accepted: IntArray
    emitted: IntArray
    ended: BoolArray
    bonus: IntArray
    tokens: tuple[tuple[int, ...], ...] | None = None


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
    accepted, emitted = np.zeros((2, width), dtype=np.int64)
    bonus = np.full(width, UNKNOWN, dtype=np.int64)
    ended = np.zeros(width, dtype=np.bool_)
    tokens: list[tuple[int, ...]] = [()] * width
    for slot, row in rows.items():
        accepted[slot], emitted[slot] = row.accepted, len(row.emitted)
        ended[slot], bonus[slot], tokens[slot] = row.ended, row.bonus, tuple(row.emitted)
    return Verdict(accepted, emitted, ended, bonus, tuple(tokens))


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

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for; False for ended rows."""
        outcomes = _outcomes(verdict)
        hits = [slot for slot, entries in self.entries.items() if outcomes[slot] in entries]
        return marked(self.width, hits) & ~verdict.ended

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits` [B]; empty for all others."""
        outcomes = _outcomes(verdict)
        chosen = {slot: self.entries[slot][outcomes[slot]] for slot in np.flatnonzero(hits).tolist()}
        return Speculation.drafted(self.width, chosen)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation; only the cache of a `Continue` has one."""
        if self.openings is None:
            raise ValueError("only the cache of a `Continue` has an opening")
        return Speculation.drafted(self.width, self.openings)


def _outcomes(verdict: Verdict) -> list[Outcome]:
    """[B]."""
    return list(zip(verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True))
