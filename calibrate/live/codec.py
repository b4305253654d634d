"""Between a policy's operations and a worker's messages; and the live speculation cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from calibrate.live.messages import (
    ContinueRow,
    DraftRow,
    Echo,
    Message,
    Outcome,
    PrefillRow,
    Prepared,
    PrespeculateRow,
    Probe,
    Reply,
    Tokens,
    Verified,
    VerifyRow,
)
from policies.operations import (
    UNKNOWN,
    BoolArray,
    Continue,
    Draft,
    Operation,
    Prefill,
    Prespeculate,
    Source,
    Speculation,
    Verdict,
    Verify,
    View,
)

Submission: TypeAlias = Operation | Probe | Echo
"""What a live device takes: the policies' operations, and calibration's own."""


class LiveCache:
    """Speculation cache of one round: per slot a map from (accepted, bonus) to drafted tokens.

    Args:
        width: Slots of the batch.
        entries: The map of each slot that took part.
    """

    def __init__(self, width: int, entries: Mapping[int, Mapping[Outcome, Tokens]]) -> None:
        self.width = width
        self.entries = entries

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for; False for ended rows."""
        return np.array(
            [
                not verdict.ended[slot] and _outcome(verdict, slot) in self.entries.get(slot, {})
                for slot in range(self.width)
            ],
            dtype=np.bool_,
        )

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits` [B]; empty for all others."""
        chosen = {
            int(slot): self.entries[int(slot)][_outcome(verdict, int(slot))] for slot in np.flatnonzero(hits)
        }
        return primary_speculation(self.width, chosen)


def _outcome(verdict: Verdict, slot: int) -> Outcome:
    return int(verdict.accepted[slot]), int(verdict.bonus[slot])


def primary_speculation(width: int, rows: Mapping[int, Tokens]) -> Speculation:
    """A speculation with these drafted tokens per slot; a row without any has source NONE."""
    depth = max((len(tokens) for tokens in rows.values()), default=0)
    lengths = np.zeros(width, dtype=np.int64)
    tokens = np.full((width, depth), UNKNOWN, dtype=np.int64)
    for slot, drafted in rows.items():
        lengths[slot] = len(drafted)
        tokens[slot, : len(drafted)] = drafted
    sources = np.where(lengths > 0, int(Source.PRIMARY), int(Source.NONE))
    return Speculation(lengths, sources, tokens)


def encode(submission: Submission) -> Message:
    """The message for a submission: plain integers, copied now, whatever the policy does later.

    Raises:
        ValueError: A batch wider than one row, or an operation without token ids.
    """
    match submission:
        case Probe() | Echo():
            return submission
        case Prefill(view=view, prompts=prompts):
            if prompts is None:
                raise ValueError("a live device needs the prompts; use Rows(..., keep_tokens=True)")
            return PrefillRow(_single_slot(view), _integers(prompts[0]))
        case Verify(view=view, speculation=speculation):
            slot, context, tail = _place(view, width_of(submission))
            room = int(view.rooms[0])
            return VerifyRow(slot, context, tail, _drafted(speculation, slot), room)
        case Draft(view=view, lookahead=lookahead, unseen=unseen):
            slot, context, tail = _place(view, width_of(submission))
            return DraftRow(slot, context, tail, int(lookahead), int(unseen[slot]))
        case Prespeculate(view=view, speculation=speculation, lookahead=lookahead, fanout=fanout):
            slot, context, tail = _place(view, width_of(submission))
            drafted = _drafted(speculation, slot)
            return PrespeculateRow(slot, context, tail, drafted, int(lookahead), _integers(fanout))
        case Continue(view=view, speculation=speculation, lookahead=lookahead):
            slot, context, tail = _place(view, width_of(submission))
            return ContinueRow(slot, context, tail, _drafted(speculation, slot), int(lookahead))


def decode(submission: Submission, reply: Reply) -> object:
    """The protocol's answer to `submission`: None, `Verdict`, `Speculation`, `LiveCache`, or `reply`."""
    if isinstance(submission, Probe | Echo | Prefill):
        return reply
    slot, width = int(submission.view.slots[0]), width_of(submission)
    if isinstance(submission, Verify):
        assert isinstance(reply, Verified)
        return _verdict(width, slot, reply)
    if isinstance(submission, Draft):
        assert isinstance(reply, tuple)
        return primary_speculation(width, {slot: reply})
    assert isinstance(reply, Prepared)
    return LiveCache(width, {slot: dict(reply.entries)})


def width_of(operation: Verify | Draft | Prespeculate | Continue) -> int:
    """B, slots of the batch that an operation belongs to."""
    per_row = operation.unseen if isinstance(operation, Draft) else operation.speculation.lengths
    return len(per_row)


def _verdict(width: int, slot: int, verified: Verified) -> Verdict:
    accepted, emitted = np.zeros((2, width), dtype=np.int64)
    bonus = np.full(width, UNKNOWN, dtype=np.int64)
    ended = np.zeros(width, dtype=np.bool_)
    accepted[slot] = verified.accepted
    emitted[slot] = len(verified.emitted)
    ended[slot] = verified.ended
    bonus[slot] = verified.bonus
    tokens = tuple(verified.emitted if i == slot else () for i in range(width))
    return Verdict(accepted, emitted, ended, bonus, tokens)


def _single_slot(view: View) -> int:
    if len(view.slots) != 1:
        raise ValueError(f"a live run has batch 1 for now; the operation is about {len(view.slots)} rows")
    return int(view.slots[0])


def _place(view: View, width: int) -> tuple[int, int, Tokens]:
    """Slot, committed length and end of the committed text of the only row."""
    if width != 1:
        raise ValueError(f"a live run has batch 1 for now, got a batch of width {width}")
    slot = _single_slot(view)
    if view.tails is None:
        raise ValueError("a live device needs token ids; use Rows(..., keep_tokens=True)")
    return slot, int(view.contexts[0]), _integers(view.tails[0])


def _drafted(speculation: Speculation, slot: int) -> Tokens:
    length = int(speculation.lengths[slot])
    if length == 0:
        return ()
    if speculation.tokens is None:
        raise ValueError(f"slot {slot} has {length} drafted tokens without ids; a live device needs them")
    drafted = _integers(tuple(speculation.tokens[slot, :length].tolist()))
    if min(drafted) < 0:
        raise ValueError(f"slot {slot} has drafted tokens of unknown id: {drafted}")
    return drafted


def _integers(tokens: tuple[int, ...]) -> Tokens:
    """Plain ints: numpy's would be pickled at ten times the size."""
    return tuple(int(token) for token in tokens)
