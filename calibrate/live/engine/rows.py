"""Rows of an operation as its handler sees them."""

from __future__ import annotations

from typing import NamedTuple

from policies.operation import Settle
from policies.values import NO_HANDLE, Source, Speculation, View


class Row(NamedTuple):
    """One row of an operation.

    Attributes:
        slot: Where its keys and values are.
        request: Its request, which keys its randomness.
        position: Tokens emitted so far.
        context: Length of the committed text.
        tail: Its last one or two tokens, by which a handler checks that its cache belongs to it.
        room: Tokens that may still be emitted.
        tokens: Drafted tokens under verification.
        source: `Source` of these tokens.
        handle: Of the probabilities they were drawn from.
    """

    slot: int
    request: int
    position: int
    context: int
    tail: tuple[int, ...]
    room: int = 1
    tokens: tuple[int, ...] = ()
    source: int = int(Source.PRIMARY)
    handle: int = NO_HANDLE


def rows_of(view: View, speculation: Speculation | None = None) -> list[Row]:
    """A view's rows, with what is verified meanwhile."""
    assert view.tails is not None, "checked when it was sent"
    rows = map(Row, view.slots, view.requests, view.positions, view.contexts, view.tails, view.rooms)
    return list(rows) if speculation is None else [_with_proposal(row, speculation) for row in rows]


def open_rows(settle: Settle) -> list[Row]:
    """The open rows of a verification: `position` and `context` are those of the open position."""
    rows, accepted = rows_of(settle.view), settle.verdict.accepted
    opened = [rows[i] for i in settle.open_rows]
    return [_with_proposal(behind(row, accepted[row.slot]), settle.proposal) for row in opened]


def behind(row: Row, accepted: int) -> Row:
    """The row after so many of its tokens were accepted."""
    return row._replace(
        position=row.position + accepted, context=row.context + accepted, room=row.room - accepted
    )


def proposing(row: Row, tokens: tuple[int, ...], handle: int = NO_HANDLE) -> Row:
    """The row with the primary draft's tokens, if there are any."""
    return row._replace(tokens=tokens, handle=handle, source=int(Source.PRIMARY if tokens else Source.NONE))


def _with_proposal(row: Row, speculation: Speculation) -> Row:
    """The row with what is proposed for it."""
    tokens, handle = speculation.row(row.slot)
    return row._replace(tokens=tokens, source=speculation.sources[row.slot], handle=handle)
