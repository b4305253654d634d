"""Between a policy's operations and a worker's messages; and the live speculation cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from calibrate.live.messages import (
    ContinueRows,
    Drafted,
    DraftRows,
    Echo,
    Message,
    Outcome,
    PrefillRows,
    Prepared,
    PrespeculateRows,
    Probe,
    Reply,
    Row,
    RowwiseRows,
    SettleRows,
    Tokens,
    Verified,
    VerifyRows,
)
from policies.operations import (
    NO_LAW,
    UNKNOWN,
    BoolArray,
    Continue,
    Draft,
    IntArray,
    Operation,
    Prefill,
    Prespeculate,
    Settle,
    Speculation,
    Verdict,
    Verify,
    View,
)
from policies.rowwise import RowAnswers, Rowwise

Submission: TypeAlias = Operation | Rowwise | Probe | Echo
"""What a live device takes: the policies' operations, and calibration's own."""

Entries: TypeAlias = Mapping[int, Mapping[Outcome, Drafted]]
"""Per slot the prepared speculation of each outcome."""

NOTHING = Drafted(())


class LiveCache:
    """Speculation cache of one round: per slot a map from (accepted, bonus) to drafted tokens.

    Args:
        width: Slots of the batch.
        entries: The map of each slot that took part.
        openings: Per slot the first token past what is verified; of a cache with one outcome per row.
    """

    def __init__(self, width: int, entries: Entries, openings: Mapping[int, Drafted] | None = None) -> None:
        self.width = width
        self.entries = entries
        self.openings = openings

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for; False for ended rows."""
        hits = np.zeros(self.width, dtype=np.bool_)
        outcomes = list(zip(verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True))
        for slot, entries in self.entries.items():
            hits[slot] = not verdict.ended[slot] and outcomes[slot] in entries
        return hits

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits` [B]; empty for all others."""
        outcomes = list(zip(verdict.accepted.tolist(), verdict.bonus.tolist(), strict=True))
        chosen = {slot: self.entries[slot][outcomes[slot]] for slot in np.flatnonzero(hits).tolist()}
        return primary_speculation(self.width, chosen)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation.

        Raises:
            ValueError: This cache holds more than one outcome per row.
        """
        if self.openings is None:
            raise ValueError("only the cache of a `Continue` has an opening")
        return primary_speculation(self.width, self.openings)


def primary_speculation(width: int, rows: Mapping[int, Drafted]) -> Speculation:
    """A speculation with these drafted tokens per slot; a row without any has source NONE."""
    return Speculation.drafted(width, rows)


def encode(submission: Submission) -> Message:
    """The message for a submission: plain integers, copied now, whatever the policy does later.

    Raises:
        ValueError: An operation about no row, or without token ids.
    """
    match submission:
        case Probe() | Echo():
            return submission
        case Prefill(view=view, prompts=prompts):
            if prompts is None:
                raise ValueError("a live device needs the prompts; use Rows(..., keep_tokens=True)")
            return PrefillRows(_integers(view.slots.tolist()), tuple(map(_integers, prompts)))
        case Verify():
            rows = _rows(submission.view, submission.speculation)
            return VerifyRows(rows, submission.sampling, submission.leave_open)
        case Settle():
            return SettleRows(_open_rows(submission), submission.sampling)
        case Draft(view=view, lookahead=lookahead):
            unseen = _integers(submission.unseen[view.slots].tolist())
            return DraftRows(_rows(view), int(lookahead), unseen, submission.sampling, submission.shape)
        case Prespeculate(view=view, speculation=speculation, lookahead=lookahead):
            return PrespeculateRows(
                _rows(view, speculation),
                int(lookahead),
                tuple(_integers(submission.fanout_of(slot)) for slot in view.slots.tolist()),
                submission.sampling,
                submission.shape,
                submission.keep_rejected,
                submission.part,
                submission.announce,
            )
        case Continue(view=view, speculation=speculation, lookahead=lookahead):
            return ContinueRows(_rows(view, speculation), int(lookahead), submission.sampling)
        case Rowwise():
            options = tuple(submission.options.items())
            return RowwiseRows(
                submission.kind,
                _rows(submission.view),
                submission.asks,
                options,
                submission.sampling,
                submission.announce,
            )


def decode(submission: Submission, reply: Reply) -> object:
    """The protocol's answer to `submission`: None, `Verdict`, `Speculation`, `LiveCache`, or `reply`."""
    if isinstance(submission, Probe | Echo | Prefill):
        return reply
    assert isinstance(reply, tuple)
    slots: list[int] = submission.view.slots.tolist()
    match submission:
        case Verify():
            return _verdict(width_of(submission), slots, cast("tuple[Verified, ...]", reply))
        case Settle():
            return _settled(submission, cast("tuple[Verified, ...]", reply))
        case Draft():
            drafted = cast("tuple[Drafted, ...]", reply)
            return primary_speculation(width_of(submission), dict(zip(slots, drafted, strict=True)))
        case Prespeculate():
            prepared = cast("tuple[Prepared, ...]", reply)
            entries = {slot: dict(row.entries) for slot, row in zip(slots, prepared, strict=True)}
            return LiveCache(width_of(submission), entries)
        case Continue():
            return _continued(submission, slots, cast("tuple[Drafted, ...]", reply))
        case Rowwise():
            return RowAnswers(submission.width, dict(zip(slots, reply, strict=True)))


def width_of(operation: Verify | Settle | Draft | Prespeculate | Continue) -> int:
    """B, slots of the batch that an operation belongs to."""
    per_row = operation.unseen if isinstance(operation, Draft) else operation.speculation.lengths
    return len(per_row)


def _verdict(width: int, slots: Sequence[int], verified: Sequence[Verified]) -> Verdict:
    accepted, emitted = np.zeros((2, width), dtype=np.int64)
    bonus = np.full(width, UNKNOWN, dtype=np.int64)
    ended = np.zeros(width, dtype=np.bool_)
    tokens: list[Tokens] = [()] * width
    for slot, row in zip(slots, verified, strict=True):
        accepted[slot] = row.accepted
        emitted[slot] = len(row.emitted)
        ended[slot] = row.ended
        bonus[slot] = row.bonus
        tokens[slot] = row.emitted
    return Verdict(accepted, emitted, ended, bonus, tuple(tokens))


def _still_open(settle: Settle) -> IntArray:
    """Indices, within the view, of the rows whose bonus token is open.

    A row that emitted no bonus token has either ended or is open.
    """
    verdict, slots = settle.verdict, settle.view.slots
    return np.flatnonzero(~verdict.ended[slots] & (verdict.bonus[slots] == UNKNOWN))


def _open_rows(settle: Settle) -> tuple[Row, ...]:
    view, verdict = settle.view, settle.verdict
    rows = []
    for i in _still_open(settle).tolist():
        slot = int(view.slots[i])
        accepted = int(verdict.accepted[slot])
        row = Row(
            slot=slot,
            request=int(view.requests[i]),
            position=int(view.positions[i]) + accepted,
            context=int(view.contexts[i]) + accepted,
            tail=(),
            room=int(view.rooms[i]) - accepted,
        )
        rows.append(_with_proposal(row, settle.proposal))
    return tuple(rows)


def _settled(settle: Settle, verified: Sequence[Verified]) -> Verdict:
    """The verdict with the bonus tokens of its open rows."""
    verdict = settle.verdict
    emitted, ended, bonus = verdict.emitted.copy(), verdict.ended.copy(), verdict.bonus.copy()
    tokens = list(verdict.tokens or [()] * len(emitted))
    for i, row in zip(_still_open(settle).tolist(), verified, strict=True):
        slot = int(settle.view.slots[i])
        emitted[slot] += len(row.emitted)
        ended[slot] = row.ended
        bonus[slot] = row.bonus
        tokens[slot] = (*tokens[slot], *row.emitted)
    return Verdict(verdict.accepted, emitted, ended, bonus, tuple(tokens))


def _continued(operation: Continue, slots: Sequence[int], drafted: Sequence[Drafted]) -> LiveCache:
    """One outcome per row: all accepted, and the first drafted token after them."""
    entries: dict[int, dict[Outcome, Drafted]] = {}
    openings = {}
    for slot, (tokens, law) in zip(slots, drafted, strict=True):
        outcome = (int(operation.speculation.lengths[slot]), tokens[0])
        # Laws lie one after another, and the opening's is the first.
        rest = NO_LAW if law == NO_LAW or len(tokens) == 1 else law + 1
        entries[slot] = {outcome: Drafted(tokens[1:], rest)}
        openings[slot] = Drafted(tokens[:1], law)
    return LiveCache(len(operation.speculation.lengths), entries, openings)


def _rows(view: View, speculation: Speculation | None = None) -> tuple[Row, ...]:
    """A view's rows, with what is verified meanwhile."""
    if view.tails is None:
        raise ValueError("a live device needs token ids; use Rows(..., keep_tokens=True)")
    if not len(view.slots):
        raise ValueError("an operation needs at least one row")
    rows = map(
        Row,
        view.slots.tolist(),
        view.requests.tolist(),
        view.positions.tolist(),
        view.contexts.tolist(),
        map(_integers, view.tails),
        view.rooms.tolist(),
    )
    return tuple(rows if speculation is None else (_with_proposal(row, speculation) for row in rows))


def _with_proposal(row: Row, speculation: Speculation) -> Row:
    """The row with what is proposed for it."""
    return row._replace(
        tokens=_drafted(speculation, row.slot),
        source=int(speculation.sources[row.slot]),
        law=NO_LAW if speculation.laws is None else int(speculation.laws[row.slot]),
    )


def _drafted(speculation: Speculation, slot: int) -> Tokens:
    length = int(speculation.lengths[slot])
    if length == 0:
        return ()
    if speculation.tokens is None:
        raise ValueError(f"slot {slot} has {length} drafted tokens without ids; a live device needs them")
    drafted: Tokens = tuple(speculation.tokens[slot, :length].tolist())
    if min(drafted) < 0:
        raise ValueError(f"slot {slot} has drafted tokens of unknown id: {drafted}")
    return drafted


def _integers(tokens: Sequence[int]) -> Tokens:
    """Plain ints: numpy's would be pickled at ten times the size."""
    return tuple(map(int, tokens))
