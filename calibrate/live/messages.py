"""What crosses the pipe between a device and its worker: integers, strings and tuples of them.

A message is about some rows of a batch.  Each names its slot and its committed length (`context`), and
`tail` is the end of its committed text, so that a worker can check that its cache belongs to it.  KV caches
and logits stay in the worker; laws of sampled tokens travel through shared memory (`arena`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from policies.operations import NO_LAW, Source
from policies.sampling import GREEDY, Sampling

Tokens: TypeAlias = tuple[int, ...]
Outcome: TypeAlias = tuple[int, int]
"""Number of accepted tokens and the bonus token."""


class Row(NamedTuple):
    """One row of an operation.  A named tuple, since it is pickled several times per round.

    Attributes:
        slot: Where its KV cache is.
        request: Its request, which keys its randomness.
        position: Tokens emitted so far.
        context: Length of the committed text.
        tail: Its last one or two tokens.
        room: Tokens that may still be emitted.
        tokens: Drafted tokens under verification.
        source: `Source` of these tokens.
        law: Handle of the laws they were drawn from.
    """

    slot: int
    request: int
    position: int
    context: int
    tail: Tokens
    room: int = 1
    tokens: Tokens = ()
    source: int = int(Source.PRIMARY)
    law: int = NO_LAW


class Drafted(NamedTuple):
    """Tokens that continue a text, and the handle of the laws they were drawn from (NO_LAW: of none)."""

    tokens: Tokens
    law: int = NO_LAW


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Reset slots and feed each its prompt but the last token.  Reply: None."""

    slots: tuple[int, ...]
    prompts: tuple[Tokens, ...]


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """Verify each row's `tokens` after its committed text.  Reply: a `Verified` per row.

    Attributes:
        rows: What to verify.
        sampling: How tokens are chosen.
        leave_open: Leave the bonus token of rows that accept everything to a `SettleRows`.
    """

    rows: tuple[Row, ...]
    sampling: Sampling = GREEDY
    leave_open: bool = False


@dataclass(frozen=True, slots=True)
class SettleRows:
    """Choose the bonus token that a `VerifyRows` left open.  Reply: a `Verified` of that token per row.

    Attributes:
        rows: The open rows; `position` and `context` are those of the open position, `tokens` holds the
            proposed token, if there is one.
        sampling: As in the verification.
    """

    rows: tuple[Row, ...]
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Draft `lookahead` tokens per row.  Reply: a `Drafted` per row.

    Attributes:
        rows: What to draft for.
        lookahead: Tokens per row.
        unseen: Per row the policy's claim of how many tokens have to be fed; it is audited.
        sampling: How tokens are chosen.
        shape: F_0, F_1, ... for Saguaro sampling.
    """

    rows: tuple[Row, ...]
    lookahead: int
    unseen: tuple[int, ...]
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PrespeculateRows:
    """Glue and tree over the outcomes of verifying each row's `tokens`.  Reply: a `Prepared` per row.

    Attributes:
        rows: What to prepare for.
        lookahead: Tokens per cached speculation.
        fanouts: Per row F_0, F_1, ...
        sampling: How tokens are chosen.
        shape: F_0, F_1, ... for Saguaro sampling.
        keep_rejected: Whether the rejected token may be among the outcomes.
        part: (i, n): every n-th outcome of a row from the i-th on.
        announce: Send the outcomes ahead, before the first tree step; then the tree can be stopped.
    """

    rows: tuple[Row, ...]
    lookahead: int
    fanouts: tuple[tuple[int, ...], ...]
    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None
    keep_rejected: bool = False
    part: tuple[int, int] = (0, 1)
    announce: bool = False


@dataclass(frozen=True, slots=True)
class ContinueRows:
    """Draft `lookahead` tokens past each row's `tokens`.  Reply: a `Drafted` per row."""

    rows: tuple[Row, ...]
    lookahead: int
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class RowwiseRows:
    """A `policies.rowwise.Rowwise` operation; its handler is found by `kind`.  Reply: one per row.

    Attributes:
        kind: Name of the operation.
        rows: Where each row stands.
        asks: What each asks for.
        options: What holds for all rows, by name.
        sampling: How tokens are chosen.
        announce: Whether something is said on the way.
    """

    kind: str
    rows: tuple[Row, ...]
    asks: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()
    sampling: Sampling = GREEDY
    announce: bool = False

    def option(self, name: str) -> Any:
        """What holds for all rows under this name."""
        return dict(self.options)[name]


@dataclass(frozen=True, slots=True)
class Probe:
    """Calibration only: time a forward of a given shape on synthetic KV.  Answer: `ProbeResult`.

    Runs the model call, mask and token selection of the real operations.  Stoppable between repeats.

    Attributes:
        kind: `forward`, new tokens in a chain (a draft step, a verification, a glue step); `tree`, one
            step of `branches` branches; `prefill`, `new_tokens` of a prompt, which select no token.
        batch: Rows, each with a cache of its own.
        new_tokens: Tokens fed per row; unused by `tree`.
        context: Tokens in each cache before (for `tree`: trunk plus what the branches drafted so far).
        branches: Branches per row, each fed one token by a tree step.
        top: Candidates to rank per position as a glue step does; 0: argmax as all others do.
        repeats: Timed repetitions.
        warmup: Untimed ones before them.
    """

    kind: Literal["forward", "tree", "prefill"] = "forward"
    batch: int = 1
    new_tokens: int = 1
    context: int = 0
    branches: int = 1
    top: int = 0
    repeats: int = 1
    warmup: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.new_tokens, self.branches, self.repeats) < 1:
            raise ValueError(f"batch, new_tokens, branches and repeats must be at least 1: {self}")
        if min(self.context, self.top, self.warmup) < 0:
            raise ValueError(f"context, top and warmup must not be negative: {self}")


@dataclass(frozen=True, slots=True)
class Echo:
    """Calibration only: send `payload` back, to time a message.  Answer: the payload."""

    payload: Tokens = ()


Message: TypeAlias = (
    PrefillRows
    | VerifyRows
    | SettleRows
    | DraftRows
    | PrespeculateRows
    | ContinueRows
    | RowwiseRows
    | Probe
    | Echo
)


class Verified(NamedTuple):
    """Outcome of a row's verification after the cuts; see `policies.operations.Verdict`."""

    accepted: int
    emitted: Tokens
    ended: bool
    bonus: int


class Prepared(NamedTuple):
    """Speculations by outcome, in the order (accepted, rank of the bonus token)."""

    entries: tuple[tuple[Outcome, Drafted], ...]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Seconds of each timed repetition, in order."""

    durations_s: tuple[float, ...]


Reply: TypeAlias = (
    tuple[Verified, ...]
    | tuple[Drafted, ...]
    | tuple[Prepared, ...]
    | tuple[Any, ...]
    | ProbeResult
    | Tokens
    | None
)


class Step(NamedTuple):
    """One model call of an operation with its selection of tokens, by the worker's clock.

    Attributes:
        name: `prefill`, `verify`, `feed`, `draft`, `glue`, `tree` or `probe`.
        start: Worker's `perf_counter`, seconds.
        end: Likewise.
        tokens: New tokens that went through the model, summed over rows, padding not counted.
        rows: Rows that took part.
        width: Most new tokens of a row; in a tree step, most branches.
    """

    name: str
    start: float
    end: float
    tokens: int
    rows: int = 1
    width: int = 1
