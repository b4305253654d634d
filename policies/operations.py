"""What a policy asks of a device, and what it gets back.

Requests and answers are frozen values: they may cross a process boundary.  KV caches and logits
never do; a device keeps them and finds them again by `slot`.

Shapes: B is the number of slots of the batch (its *width*), K the lookahead.  Every per-row array of a
value has length B and is indexed by slot, whether or not the row takes part; `View.slots` says which
rows do.  That keeps the arrays of successive rounds aligned when rows finish or are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.sampling import GREEDY, Sampling

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

UNKNOWN = -1
"""Token id of content that the world at hand does not know (coin tosses, off the recorded path)."""


NO_LAW = -1
"""Handle of a row whose tokens were drawn from no law that is kept."""


class Source(IntEnum):
    """Which law sigma a row's verified tokens were drawn from (design.md, section 3)."""

    NONE = 0
    """Nothing was proposed: a plain decode."""
    PRIMARY = 1
    """The draft model, drafting on the very path that is verified."""
    RANDOM = 2
    """Uniform random tokens (SSD's fast backup speculator, paper section 4.3)."""
    NGRAM = 3
    """What followed the same words earlier in the text (prompt lookup); its law is one-hot."""


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


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafted tokens awaiting verification.

    Attributes:
        lengths: [B] drafted tokens of each row (0: plain decode).
        sources: [B] `Source` of each row's tokens.
        tokens: [B, K] their ids, UNKNOWN beyond a row's length; None in a world without token ids.
            A random row's tokens are known in every world that has ids.
        has_guesses: Whether any row may have the source RANDOM or NGRAM.
        shape: F_0 ... F_(K-1) by which Saguaro sampling rescaled the laws of the primary tokens; None
            where nothing was rescaled.
        laws: [B] opaque handles of the laws that sampled tokens were drawn from, -1 for none; None in a
            world that keeps none.
    """

    lengths: IntArray
    sources: IntArray
    tokens: IntArray | None = None
    has_guesses: bool = False
    shape: tuple[int, ...] | None = None
    laws: IntArray | None = None

    @classmethod
    def empty(cls, width: int) -> Speculation:
        """No drafted token in any of `width` rows."""
        zeros = np.zeros(width, dtype=np.int64)
        return cls(zeros, zeros)

    @classmethod
    def drafted(cls, width: int, rows: Mapping[int, tuple[Sequence[int], int]]) -> Speculation:
        """The primary draft's tokens of some of `width` rows.

        Args:
            width: B.
            rows: Slot to drafted tokens and the handle of the laws they were drawn from (NO_LAW: of none);
                a row without tokens has the source NONE.
        """
        depth = max((len(tokens) for tokens, _ in rows.values()), default=0)
        lengths = np.zeros(width, dtype=np.int64)
        table = np.full((width, depth), UNKNOWN, dtype=np.int64)
        laws = np.full(width, NO_LAW, dtype=np.int64)
        for slot, (tokens, law) in rows.items():
            lengths[slot] = len(tokens)
            table[slot, : len(tokens)] = tokens
            laws[slot] = law
        sources = np.where(lengths > 0, int(Source.PRIMARY), int(Source.NONE))
        return cls(lengths, sources, table, laws=laws if (laws != NO_LAW).any() else None)

    def merge(self, other: Speculation, rows: BoolArray) -> Speculation:
        """This speculation with the rows marked in `rows` [B] taken from `other`."""
        return Speculation(
            np.where(rows, other.lengths, self.lengths),
            np.where(rows, other.sources, self.sources),
            _merge_tokens(self.tokens, other.tokens, rows),
            self.has_guesses or other.has_guesses,
            self.shape or other.shape,
            _merge_laws(self.laws, other.laws, rows),
        )

    def without(self, rows: BoolArray) -> Speculation:
        """This speculation with nothing drafted in the rows marked in `rows` [B]."""
        return self.merge(Speculation.empty(len(rows)), rows)


def _merge_laws(mine: IntArray | None, theirs: IntArray | None, rows: BoolArray) -> IntArray | None:
    if mine is None and theirs is None:
        return None
    none = np.full(len(rows), NO_LAW, dtype=np.int64)
    return np.where(rows, none if theirs is None else theirs, none if mine is None else mine)


def _merge_tokens(mine: IntArray | None, theirs: IntArray | None, rows: BoolArray) -> IntArray | None:
    if mine is None and theirs is None:
        return None
    depth = max(0 if t is None else t.shape[1] for t in (mine, theirs))
    merged = np.full((len(rows), depth), UNKNOWN, dtype=np.int64)
    for tokens, chosen in ((mine, ~rows), (theirs, rows)):
        if tokens is not None:
            merged[chosen, : tokens.shape[1]] = tokens[chosen]
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


@dataclass(frozen=True, slots=True)
class Prefill:
    """Fill the KV cache with the prompt but its last token.  Answer: None.

    The last prompt token is fed by the first verification, so that every emitted token comes out of
    a round and all rounds look alike.

    Attributes:
        view: The new rows.
        prompts: Their prompts; None in a world without token ids.
    """

    view: View
    prompts: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Verify:
    """One target forward over `1 + speculation.lengths` new tokens per row.  Answer: `Verdict`.

    The prefix is never recomputed: the KV cache holds all committed tokens but the last.  With an
    empty speculation this is one step of plain decoding.

    Attributes:
        view: Rows to verify.
        speculation: What was drafted for them.
        sampling: How tokens are chosen.
        leave_open: Do not choose the bonus token of rows whose drafted tokens were all accepted; a
            `Settle` will.  Their verdict counts the accepted tokens alone.
    """

    view: View
    speculation: Speculation
    sampling: Sampling = GREEDY
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class Settle:
    """Verify one token more where a `Verify` left the bonus open.  Answer: the completed `Verdict`.

    No forward: the target still has the law of the open position.  The proposed token becomes the bonus
    if it is accepted, else the bonus comes from the residual (sampled PEARL's check of the first token
    past a block).

    Attributes:
        view: The rows as in the verification.
        verdict: Its outcome.
        speculation: What it verified.
        proposal: One token per row.
        sampling: As in the verification.
    """

    view: View
    verdict: Verdict
    speculation: Speculation
    proposal: Speculation
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft `lookahead` tokens autoregressively from the committed text.  Answer: `Speculation`.

    May be stopped at a step boundary; the answer then holds the tokens drafted so far.

    Attributes:
        view: Rows to draft for.
        lookahead: Tokens per row, at least 1.
        unseen: [B] committed tokens of each row that the draft has not processed yet (at least 1,
            the last token itself; 2 after all of a chain was accepted).
        sampling: How tokens are chosen.
        shape: F_0 ... F_(K-1) for Saguaro sampling; None to draw from q itself.
    """

    view: View
    lookahead: int
    unseen: IntArray
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prespeculate:
    """Draft a speculation for the likely outcomes of verifying `speculation` (SSD, definitions 2-6, 10).

    One *glue* forward over the last committed token and the speculation ranks the candidates for the
    verified token after each number k of accepted tokens; `lookahead` tree steps then continue the
    `fanout[k]` best of each, the rejected token left out.  Answer: `Cache`.  Interruptible only if it
    announces its outcomes; what was stopped answers with incomplete speculations.

    Attributes:
        view: Rows to prepare for.
        speculation: What is being verified meanwhile.
        lookahead: Tokens per cached speculation.
        fanout: `lookahead + 1` numbers F_k of cached outcomes with k tokens accepted, for rows that
            verify the primary draft's tokens.
        fanout_backup: The same for rows that verify a backup's tokens or nothing; None: as `fanout`.  A
            row that verifies nothing has the single position k = 0 and gets F_0 outcomes.
        sampling: How tokens are chosen.
        shape: F_0 ... F_(K-1) for Saguaro sampling of the cached speculations; None to draw from q.
        keep_rejected: Whether the cached set is the draft's top F_k as it stands (proof of Theorem 15)
            instead of leaving out the rejected token (the paper's A.3.1).
        part: (i, n): prepare every n-th outcome from the i-th on, the share of one of n draft devices.
        announce: Whether the task's mark fires after the glue step, with a `Cache` of the outcomes alone.
    """

    view: View
    speculation: Speculation
    lookahead: int
    fanout: tuple[int, ...]
    fanout_backup: tuple[int, ...] | None = None
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None
    keep_rejected: bool = False
    part: tuple[int, int] = (0, 1)
    announce: bool = False

    def fanout_of(self, slot: int) -> tuple[int, ...]:
        """The fan-outs that apply to the row in `slot`."""
        primary = int(self.speculation.sources[slot]) == Source.PRIMARY
        return self.fanout if primary or self.fanout_backup is None else self.fanout_backup


@dataclass(frozen=True, slots=True)
class Continue:
    """Draft on past `speculation`, on the bet that all of it will be accepted (PEARL).  Answer: `Cache`.

    The cache holds one outcome: everything accepted and the bonus token equal to the first of the
    `lookahead` newly drafted tokens; its speculation is the remaining `lookahead - 1`.

    Attributes:
        view: Rows to draft for.
        speculation: What is being verified meanwhile.
        lookahead: Tokens to draft, at least 1.
        sampling: How tokens are chosen.
    """

    view: View
    speculation: Speculation
    lookahead: int
    sampling: Sampling = GREEDY


Operation: TypeAlias = Prefill | Verify | Settle | Draft | Prespeculate | Continue


def operation_name(operation: object) -> str:
    """Name of an operation in timelines and logs: its kind, or its class name in lower case."""
    kind: str = getattr(operation, "kind", "")
    return kind or type(operation).__name__.lower()
