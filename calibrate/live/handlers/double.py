"""DOUBLE's operations (`policies.double`): forwards over retrieved tokens, datastores, and guidance.

The draft confirms a retrieved token by choosing for itself: its first choice, or a draw from its own
distribution q.  Every drafted token is then what the draft would have drafted without retrieval, with the
distribution q; what was retrieved only tells how many of them come out of one forward.  The draws of a
position are keyed by the round too: rejected tokens are kept and retrieved, and must not give away the luck
of what is drafted later.

The target decides a position once.  Greedy: pending and retrieved tokens are one chain.  Sampled: the pending
tokens by the distributions they were drawn from; then the retrieved ones, whose distribution is one-hot,
unless the next tokens of the draft come first (`Guide`), for which the target keeps its distributions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import Row, behind, proposing, rows_of
from calibrate.live.engine.sampling import DraftSampler, token_probs
from calibrate.live.errors import AuditError
from calibrate.live.handlers.chains import judged, matched, sampler_of
from calibrate.live.handlers.trees import opened
from policies.double import (
    Ask,
    Guide,
    Retrieval,
    RetrievalDrafted,
    RetrievingDraft,
    RetrievingVerify,
    Tokens,
    Verified,
)
from policies.laws.retrieval import common_prefix
from policies.operation import RowOperation, VerdictReply
from policies.retrieval import Hierarchy
from policies.values import NO_HANDLE, RowVerdict, Source

STORES = "double.stores"
"""Name under which an executor keeps, by slot, the request and what it may retrieve."""


def store_of(executor: Executor, row: Row, ask: Ask, how: Retrieval) -> Hierarchy:
    """The datastore of a row, brought up to date; a new one at position 0, so that nothing leaks.

    Raises:
        AuditError: What it was told does not add up to the row's text.
    """
    stores: dict[int, tuple[int, Hierarchy]] = executor.kept.setdefault(STORES, {})
    if row.position == 0:
        prior = opened(executor, how.datastore) if how.datastore else None
        stores[row.slot] = row.request, Hierarchy(how.longest, prior=prior, keep_rejected=how.rejected)
    request, layers = stores.get(row.slot, (None, None))
    if layers is None or request != row.request:
        raise AuditError(f"slot {row.slot} has no datastore of request {row.request}")
    before = len(layers.text)
    layers.accept(ask.news)
    layers.reject(before + ask.agreed, ask.rejected)
    if len(layers.text) != row.context:
        raise AuditError(f"slot {row.slot} was told {len(layers.text)} tokens of a text of {row.context}")
    return layers


def _retrieved_step(executor: Executor, start: float, rows: int) -> None:
    """Note a step that looked words up for some rows, and called no model."""
    executor.stamp("retrieve", start, executor.runner.fed, [()] * rows)


@dataclass
class Drafting:
    """A row while it is drafted for.

    Attributes:
        row: The row; its tokens are the pending ones, which are continued.
        most: Tokens that may be drafted.
        unfed: Tokens that the draft has not processed; at least one.
        matched: Retrieved tokens confirmed, per forward.
        found: Retrieved tokens, per forward.
    """

    row: Row
    layers: Hierarchy
    most: int
    unfed: Tokens
    tokens: list[int] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    retrieved: list[int] = field(default_factory=list)
    work: list[tuple[str, int]] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Tokens that it still lacks."""
        return self.most - len(self.tokens)


@handles(RetrievingDraft)
def draft(executor: Executor, operation: RetrievingDraft) -> list[RetrievalDrafted]:
    """Retrieval forwards until every row has its tokens, or as many as it may emit."""
    how = operation.retrieval
    rows = [
        _begin(executor, row, ask, how)
        for row, ask in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    depth = min(max(each.most for each in rows), operation.lookahead * (how.span + 1))
    keys = [(each.row.request, each.row.position + len(each.row.tokens)) for each in rows]
    sampler = sampler_of(executor, keys, depth, operation.sampling)
    for _ in range(operation.lookahead):
        going = [i for i, each in enumerate(rows) if each.left > 0]
        if not going:
            break
        _retrieval_forward(executor, how, rows, going, sampler)
    kept = [handle if r.tokens else NO_HANDLE for r, handle in zip(rows, sampler.seal(), strict=True)]
    return [
        RetrievalDrafted(tuple(r.tokens), handle, tuple(r.matched), tuple(r.retrieved), tuple(r.work))
        for r, handle in zip(rows, kept, strict=True)
    ]


def _begin(executor: Executor, row: Row, ask: Ask, how: Retrieval) -> Drafting:
    layers = store_of(executor, row, ask, how)
    text = (*layers.text, *ask.pending)
    keep = min(common_prefix(executor.runner.held(row.slot), text), len(text) - 1)
    executor.runner.rollback(row.slot, keep)
    return Drafting(row._replace(tokens=ask.pending), layers, row.room - len(ask.pending), text[keep:])


def _retrieval_forward(
    executor: Executor,
    how: Retrieval,
    drafts: Sequence[Drafting],
    going: Sequence[int],
    sampler: DraftSampler,
) -> None:
    """One forward of some rows over their unfed tokens and what is retrieved after them."""
    start, rows = time.perf_counter(), [drafts[i] for i in going]
    retrieved = [
        each.layers.retrieve((*each.row.tokens, *each.tokens), min(how.span, each.left - 1)) for each in rows
    ]
    _retrieved_step(executor, start, len(rows))
    chains = [(*each.unfed, *ahead) for each, ahead in zip(rows, retrieved, strict=True)]
    with executor.step("draft", chains):
        logits = executor.runner.forward([each.row.slot for each in rows], chains)
        flat = [
            logits[i, len(each.unfed) - 1 : len(chain)]
            for i, (each, chain) in enumerate(zip(rows, chains, strict=True))
        ]
        chosen = iter(_choose(sampler, drafts, going, retrieved, torch.cat(flat)))
    for each, ahead, chain in zip(rows, retrieved, chains, strict=True):
        own = [next(chosen) for _ in range(len(ahead) + 1)]
        confirmed = common_prefix(ahead, own)
        each.tokens += own[: confirmed + 1]
        each.matched.append(confirmed)
        each.retrieved.append(len(ahead))
        each.work += [("retrieve", 0), ("draft", len(chain))]
        each.unfed = (own[confirmed],)
        held = len(executor.runner.held(each.row.slot))
        executor.runner.rollback(each.row.slot, held - (len(ahead) - confirmed))


def _choose(
    sampler: DraftSampler,
    drafts: Sequence[Drafting],
    going: Sequence[int],
    retrieved: Sequence[Tokens],
    logits: Tensor,
) -> list[int]:
    """The draft's own token before and after each retrieved one, of the logits [n, V] of some rows."""
    places = [
        (i, len(drafts[i].tokens) + offset, drafts[i].row.position)
        for i, ahead in zip(going, retrieved, strict=True)
        for offset in range(len(ahead) + 1)
    ]
    texts, offsets, rounds = np.array(places, dtype=np.int64).T
    chosen: list[int] = sampler.choose_at(logits, texts, offsets, rounds).tolist()
    return chosen


class OpenEnd(NamedTuple):
    """Positions that a verification left undecided, from `row` on.

    Attributes:
        retrieved: r, the tokens that the forward went along.
        probs: [len(r) + 1, V] the target's distributions after each of r_1 ... r_i.
    """

    row: Row
    retrieved: Tokens
    probs: Tensor

    @classmethod
    def after(cls, run: int, row: Row, retrieved: Tokens, probs: Tensor) -> OpenEnd:
        """What is open behind `run` accepted tokens of a row."""
        left = behind(row, run)._replace(tokens=(), handle=NO_HANDLE)
        return cls(left, retrieved, probs)


@handles(RetrievingVerify)
def verify(executor: Executor, operation: RetrievingVerify) -> list[Verified]:
    """One forward over the pending tokens and what is retrieved after them."""
    how, sampling, start = operation.retrieval, operation.sampling, time.perf_counter()
    rows, retrieved = [], []
    for row, ask in zip(rows_of(operation.view), operation.inputs, strict=True):
        executor.rewind(row)
        span = min(how.span, row.room - len(ask.pending) - 1)
        retrieved.append(store_of(executor, row, ask, how).retrieve(ask.pending, span))
        rows.append(proposing(row, ask.pending, ask.handle))
    _retrieved_step(executor, start, len(rows))
    chains = [(row.tail[-1], *row.tokens, *ahead) for row, ahead in zip(rows, retrieved, strict=True)]
    ends: dict[int, OpenEnd] = {}
    with executor.step("verify", chains):
        logits = executor.runner.forward([row.slot for row in rows], chains)
        if sampling.greedy:  # pending and retrieved tokens are one chain
            whole = [row._replace(tokens=chain[1:]) for row, chain in zip(rows, chains, strict=True)]
            verdicts = [
                verdict._replace(accepted=min(verdict.accepted, len(row.tokens)))
                for row, verdict in zip(
                    rows, matched(executor, whole, logits.argmax(dim=-1).tolist()), strict=True
                )
            ]
        else:
            p = token_probs(logits, sampling)
            runs, verdicts, still_open = judged(executor, rows, sampling, p, leave_open=True)
            for i in still_open:
                probs = p[i, runs[i] : runs[i] + len(retrieved[i]) + 1].clone()
                ends[i] = OpenEnd.after(runs[i], rows[i], retrieved[i], probs)
            if operation.leave_open:
                for end in ends.values():
                    executor.leave_open(end.row, end)
            else:
                verdicts, ends = _extended(executor, operation, verdicts, ends), {}
    return [
        Verified(verdict, len(retrieved[i]), i in ends, (("retrieve", 0), ("verify", len(chains[i]))))
        for i, verdict in enumerate(verdicts)
    ]


@handles(Guide)
def guide(executor: Executor, operation: Guide) -> list[VerdictReply]:
    """Decide open positions by the draft's next tokens, and then by the retrieved ones."""
    with executor.step("guide", [()] * len(operation.inputs)):
        ends, drafts = [], []
        for row, (tokens, handle, behind) in zip(rows_of(operation.view), operation.inputs, strict=True):
            end: OpenEnd = executor.left_open(row._replace(position=row.position + behind))
            # X_q is judged as far as p is known for it: along r, and one token beside or behind it.
            known = tokens[: common_prefix(tokens, end.retrieved) + 1]
            ends.append(end)
            drafts.append(end.row._replace(tokens=known, source=int(Source.PRIMARY), handle=handle))
        verdicts = _guidance(executor, operation, ends, drafts, [len(ask.tokens) for ask in operation.inputs])
    return [VerdictReply(verdict, (("guide", 0),)) for verdict in verdicts]


def _guidance(
    executor: Executor,
    operation: RowOperation,
    ends: Sequence[OpenEnd],
    drafts: Sequence[Row],
    lengths: Sequence[int],
) -> list[RowVerdict]:
    """Outcomes by X_q as far as it is known, `drafts`, and by what was retrieved where all X_q lies on it."""
    p = _padded([end.probs for end in ends])
    runs, verdicts, still_open = judged(executor, drafts, operation.sampling, p, leave_open=True)
    extended = {}
    for i in still_open:
        tokens, end, run = drafts[i].tokens, ends[i], runs[i]
        if tokens == end.retrieved[: len(tokens)] and len(tokens) == lengths[i]:
            extended[i] = OpenEnd.after(run, drafts[i], end.retrieved[run:], end.probs[run:])
    return _extended(executor, operation, verdicts, extended)


def _extended(
    executor: Executor, operation: RowOperation, verdicts: Sequence[RowVerdict], ends: Mapping[int, OpenEnd]
) -> list[RowVerdict]:
    """The verdicts, those at the keys of `ends` followed by what is retrieved behind them."""
    whole = list(verdicts)
    if ends:
        for i, rest in zip(ends, _retrieved(executor, operation, list(ends.values())), strict=True):
            emitted = (*whole[i].emitted, *rest.emitted)
            whole[i] = RowVerdict(whole[i].accepted, emitted, rest.ended, rest.bonus)
    return whole


def _retrieved(executor: Executor, operation: RowOperation, ends: Sequence[OpenEnd]) -> list[RowVerdict]:
    """Decide open positions by the retrieved tokens, whose sigma is one-hot, and the target's own token."""
    rows = [
        end.row._replace(tokens=end.retrieved, source=int(Source.NGRAM), handle=NO_HANDLE) for end in ends
    ]
    return judged(executor, rows, operation.sampling, _padded([end.probs for end in ends]))[1]


def _padded(probs: Sequence[Tensor]) -> Tensor:
    """[R, n, V] of distributions [n_r, V]."""
    width = max(map(len, probs))
    return torch.stack([pad(each, (0, 0, 0, width - len(each))) for each in probs])
