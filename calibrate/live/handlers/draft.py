"""What workers do for `Draft` and `Continue`: feed what is unseen, then a token of every row per forward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.live.drafting import Pen
from calibrate.live.errors import AuditError
from calibrate.live.messages import ContinueRows, Drafted, DraftRows, PrespeculateRows, Row, Tokens
from calibrate.live.outcomes import agreement

if TYPE_CHECKING:
    from calibrate.live.executor import Executor


def draft(executor: Executor, message: DraftRows) -> tuple[Drafted, ...]:
    """Draft past each row's committed text; fewer tokens if stopped."""
    rows, runner = message.rows, executor.runner
    keeps = [agreement(runner.held(row.slot), row.context, row.tail) for row in rows]
    for row, keep, unseen in zip(rows, keeps, message.unseen, strict=True):
        if row.context - keep != unseen:
            raise AuditError(f"Draft was told of {unseen} unseen tokens but has to feed {row.context - keep}")
    if executor.stopped():
        return tuple(Drafted(()) for _ in rows)
    for row, keep in zip(rows, keeps, strict=True):
        runner.rollback(row.slot, keep)
    feeds = [row.tail[-unseen:] for row, unseen in zip(rows, message.unseen, strict=True)]
    pen = pen_of(executor, message, [(row.request, row.position) for row in rows])
    return _extend(executor, rows, feeds, pen, stoppable=True)


def go_on(executor: Executor, message: ContinueRows) -> tuple[Drafted, ...]:
    """`Continue`: draft past the tokens under verification."""
    feeds: list[Tokens] = []
    for row in message.rows:
        keep = agreement(executor.runner.held(row.slot), row.context, row.tail, row.tokens)
        feeds.append((*row.tail, *row.tokens)[keep - (row.context - len(row.tail)) :])
        if len(feeds[-1]) != 1:
            raise AuditError(f"Continue has to feed {len(feeds[-1])} tokens; after a round it is always 1")
        executor.runner.rollback(row.slot, keep)
    keys = [(row.request, row.position + len(row.tokens)) for row in message.rows]
    return _extend(executor, message.rows, feeds, pen_of(executor, message, keys), stoppable=False)


def _extend(
    executor: Executor, rows: Sequence[Row], feeds: Sequence[Tokens], pen: Pen, *, stoppable: bool
) -> tuple[Drafted, ...]:
    """Feed tokens, then draft; `pen.depth` tokens per row in all, fewer if stopped."""
    slots = [row.slot for row in rows]
    columns: list[list[int]] = []
    chains: Sequence[Sequence[int]] = feeds
    while len(columns) < pen.depth and not (columns and stoppable and executor.stopped()):
        start, fed = time.perf_counter(), executor.runner.fed
        logits = executor.runner.forward(slots, chains, last_only=True)[:, 0]
        columns.append(pen.choose(logits).tolist())
        executor.stamp("draft" if len(columns) > 1 else "feed", start, fed, chains)
        chains = [(token,) for token in columns[-1]]
    return drafted(columns, pen)


def pen_of(
    executor: Executor,
    message: DraftRows | ContinueRows | PrespeculateRows,
    keys: Sequence[tuple[int, int]],
) -> Pen:
    """What chooses tokens from the positions `keys` (request, position) on."""
    return Pen(
        [request for request, _ in keys],
        [position for _, position in keys],
        message.lookahead,
        message.sampling,
        shape=None if isinstance(message, ContinueRows) else message.shape,
        writer=executor.writer,
    )


def drafted(columns: Sequence[Sequence[int]], pen: Pen) -> tuple[Drafted, ...]:
    """The tokens of each text, from those of each step."""
    return tuple(
        Drafted(tokens, handle) for tokens, handle in zip(zip(*columns, strict=True), pen.seal(), strict=True)
    )
