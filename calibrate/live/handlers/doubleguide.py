"""DOUBLE's target in forwards: verification past the pending tokens, and the guidance of the draft.

A position is decided once.  Greedy: pending and retrieved tokens are one chain.  Sampled: the pending tokens
by the laws they were drawn from; then the retrieved ones, whose law is one-hot, unless the draft's next
tokens come first (`Guide`), for which the target keeps its laws.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrate.live.choice import law
from calibrate.live.errors import AuditError
from calibrate.live.handlers.double import stamp_retrieval, store_of
from calibrate.live.messages import Row
from calibrate.live.outcomes import cut, judge
from calibrate.live.verification import Proposals, judge_chains
from policies.double import Guided, Retrieval, Tokens, Verified
from policies.laws.retrieval import common_prefix
from policies.operations import NO_LAW, Source
from policies.rowwise import RowVerdict

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import RowwiseRows

OPEN = "double.open"
"""Name under which an executor keeps open positions by slot."""


class OpenEnd(NamedTuple):
    """Positions that a verification left undecided.

    Attributes:
        row: Where they begin.
        retrieved: r, the tokens that the forward went along.
        laws: [len(r) + 1, V] the target's laws after each of r_1 ... r_i.
    """

    row: Row
    retrieved: Tokens
    laws: Tensor


def verify(executor: Executor, message: RowwiseRows) -> tuple[Verified, ...]:
    """Handler of `RetrievingVerify`."""
    how: Retrieval = message.option("retrieval")
    rows, start = message.rows, time.perf_counter()
    found: list[Tokens] = []
    for row, ask in zip(rows, message.asks, strict=True):
        executor.rewind(row)
        span = min(how.span, row.room - len(ask.pending) - 1)
        found.append(store_of(executor, row, ask, how).retrieve(ask.pending, span))
    stamp_retrieval(executor, start, len(rows))
    chains = [
        (row.tail[-1], *ask.pending, *ahead)
        for row, ask, ahead in zip(rows, message.asks, found, strict=True)
    ]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([row.slot for row in rows], chains)
    pending = [
        row._replace(tokens=ask.pending, source=int(Source.PRIMARY), law=ask.law)
        for row, ask in zip(rows, message.asks, strict=True)
    ]
    if message.sampling.greedy:
        verdicts = _first_choices(executor, pending, found, logits)
    else:
        p = law(logits, message.sampling)
        verdicts = _draws(executor, message, pending, found, p, leave_open=message.option("leave_open"))
    executor.stamp("verify", start, fed, chains)
    executor.audit_fed(sum(map(len, chains)), "RetrievingVerify")
    return tuple(
        Verified(verdict, len(ahead), is_open, (("retrieve", 0), ("verify", len(chain))))
        for (verdict, is_open), ahead, chain in zip(verdicts, found, chains, strict=True)
    )


def _first_choices(
    executor: Executor, rows: Sequence[Row], found: Sequence[Tokens], logits: Tensor
) -> list[tuple[RowVerdict, bool]]:
    """Greedy: pending and retrieved tokens are one chain."""
    verdicts = []
    for row, ahead, best in zip(rows, found, logits.argmax(dim=-1).tolist(), strict=True):
        chain = (*row.tokens, *ahead)
        all_of_it = judge(chain, best[: len(chain) + 1], row.room, executor.end_token_ids)
        accepted = min(all_of_it.accepted, len(row.tokens))
        verdicts.append((RowVerdict(accepted, *all_of_it[1:]), False))
    return verdicts


def _draws(
    executor: Executor,
    message: RowwiseRows,
    rows: Sequence[Row],
    found: Sequence[Tokens],
    p: Tensor,
    *,
    leave_open: bool,
) -> list[tuple[RowVerdict, bool]]:
    """Sampled: the pending tokens by the laws they were drawn from, then (or never) the retrieved ones."""
    runs, following = _judged(executor, message, rows, p, open_ends=True)
    verdicts = [
        RowVerdict(*cut(row.tokens[:run], bonus, row.room, executor.end_token_ids))
        for row, run, bonus in zip(rows, runs, following, strict=True)
    ]
    ends = {
        i: OpenEnd(_behind(row, run), found[i], p[i, run : run + len(found[i]) + 1].clone())
        for i, (row, run) in enumerate(zip(rows, runs, strict=True))
        if following[i] is None and not verdicts[i].ended
    }
    if leave_open:
        executor.kept[OPEN] = {end.row.slot: end for end in ends.values()}
        return [(verdict, i in ends) for i, verdict in enumerate(verdicts)]
    return [(verdict, False) for verdict in _extended(executor, message, verdicts, ends)]


def guide(executor: Executor, message: RowwiseRows) -> tuple[Guided, ...]:
    """Handler of `Guide`."""
    start = time.perf_counter()
    kept: dict[int, OpenEnd] = executor.kept.get(OPEN, {})
    ends, drafts = [], []
    for row, (tokens, handle, behind) in zip(message.rows, message.asks, strict=True):
        end, wanted = kept.pop(row.slot, None), (row.request, row.position + behind)
        if end is None or (end.row.request, end.row.position) != wanted:
            raise AuditError(f"slot {row.slot} has no open position {wanted[1]} of request {wanted[0]}")
        # X_q is judged as far as the target has laws for it: along r, and one token beside or behind it.
        judged = tokens[: common_prefix(tokens, end.retrieved) + 1]
        ends.append(end)
        drafts.append(end.row._replace(tokens=judged, source=int(Source.PRIMARY), law=handle))
    verdicts = _guidance(executor, message, ends, drafts, [len(ask[0]) for ask in message.asks])
    executor.stamp("guide", start, executor.runner.fed, [()] * len(ends))
    return tuple(Guided(verdict, (("guide", 0),)) for verdict in verdicts)


def _guidance(
    executor: Executor,
    message: RowwiseRows,
    ends: Sequence[OpenEnd],
    drafts: Sequence[Row],
    lengths: Sequence[int],
) -> list[RowVerdict]:
    runs, following = _judged(executor, message, drafts, _padded([e.laws for e in ends]), open_ends=True)
    verdicts: list[RowVerdict] = []
    extended: dict[int, OpenEnd] = {}
    for i, (end, row, run, bonus) in enumerate(zip(ends, drafts, runs, following, strict=True)):
        verdicts.append(RowVerdict(*cut(row.tokens[:run], bonus, row.room, executor.end_token_ids)))
        on_path = row.tokens == end.retrieved[: len(row.tokens)]
        if bonus is None and not verdicts[i].ended and on_path and len(row.tokens) == lengths[i]:
            extended[i] = OpenEnd(_behind(row, run), end.retrieved[run:], end.laws[run:])
    return _extended(executor, message, verdicts, extended)


def _extended(
    executor: Executor, message: RowwiseRows, verdicts: Sequence[RowVerdict], ends: Mapping[int, OpenEnd]
) -> list[RowVerdict]:
    """The verdicts, those at the keys of `ends` followed by what is retrieved behind them."""
    found = list(verdicts)
    if ends:
        for i, rest in zip(ends, _retrieved(executor, message, list(ends.values())), strict=True):
            before = verdicts[i]
            emitted = (*before.emitted, *rest.emitted)
            found[i] = RowVerdict(before.accepted, emitted, rest.ended, rest.bonus)
    return found


def _retrieved(executor: Executor, message: RowwiseRows, ends: Sequence[OpenEnd]) -> list[RowVerdict]:
    """Decide open positions by the retrieved tokens, whose law is one-hot, and the target's own token."""
    rows = [end.row._replace(tokens=end.retrieved, source=int(Source.NGRAM), law=NO_LAW) for end in ends]
    runs, following = _judged(executor, message, rows, _padded([e.laws for e in ends]), open_ends=False)
    return [
        RowVerdict(*cut(row.tokens[:run], bonus, row.room, executor.end_token_ids))
        for row, run, bonus in zip(rows, runs, following, strict=True)
    ]


def _judged(
    executor: Executor, message: RowwiseRows, rows: Sequence[Row], p: Tensor, *, open_ends: bool
) -> tuple[list[int], list[int | None]]:
    proposals = Proposals(rows, message.sampling, p.shape[-1], executor.reader)
    return judge_chains(p, proposals, np.full(len(rows), open_ends))


def _behind(row: Row, run: int) -> Row:
    """A row after `run` of its tokens were accepted."""
    return row._replace(
        position=row.position + run, context=row.context + run, room=row.room - run, tokens=(), law=NO_LAW
    )


def _padded(laws: Sequence[Tensor]) -> Tensor:
    """[R, n, V] of laws [n_r, V]."""
    width = max(map(len, laws))
    return torch.stack([pad(each, (0, 0, 0, width - len(each))) for each in laws])
