"""DOUBLE's operations (`policies.double`): forwards over retrieved tokens, datastores, and guidance.

The draft confirms a retrieved token by choosing for itself: its first choice, or a draw from its own law q.
Every drafted token is then what the draft would have drafted without retrieval, with the law q; what was
retrieved only tells how many of them come out of one forward.  The draws of a position are keyed by the
round too: rejected tokens are kept and retrieved, and must not give away the luck of what is drafted later.

The target decides a position once.  Greedy: pending and retrieved tokens are one chain.  Sampled: the pending
tokens by the laws they were drawn from; then the retrieved ones, whose law is one-hot, unless the next tokens
of the draft come first (`Guide`), for which the target keeps its laws.
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
from calibrate.live.engine.rows import Row, rows_of
from calibrate.live.engine.sampling import DRAFTED, drafted_weights, draw, law
from calibrate.live.engine.verification import Proposals, cut, judge, judge_chains
from calibrate.live.errors import AuditError
from calibrate.live.handlers.trees import opened
from policies.double import (
    Ask,
    Drafted,
    Guide,
    Retrieval,
    RetrievingDraft,
    RetrievingVerify,
    Tokens,
    Verified,
)
from policies.laws.retrieval import common_prefix
from policies.operation import RowOperation, VerdictReply
from policies.retrieval import Hierarchy
from policies.sampling import keyed_uniforms
from policies.values import NO_LAW, UNKNOWN, RowVerdict, Source

STORES = "double.stores"
"""Name under which an executor keeps datastores by slot."""
OPEN = "double.open"
"""Name under which an executor keeps open positions by slot."""


@dataclass
class Store:
    """What a worker remembers of a slot's request."""

    request: int
    layers: Hierarchy


def store_of(executor: Executor, row: Row, ask: Ask, how: Retrieval) -> Hierarchy:
    """The datastore of a row, brought up to date; a new one at position 0, so that nothing leaks.

    Raises:
        AuditError: What it was told does not add up to the row's text.
    """
    stores: dict[int, Store] = executor.kept.setdefault(STORES, {})
    if row.position == 0:
        prior = opened(executor, how.datastore) if how.datastore else None
        stores[row.slot] = Store(row.request, Hierarchy(how.longest, prior=prior, keep_rejected=how.rejected))
    store = stores.get(row.slot)
    if store is None or store.request != row.request:
        raise AuditError(f"slot {row.slot} has no datastore of request {row.request}")
    layers = store.layers
    before = len(layers.text)
    layers.accept(ask.news)
    layers.reject(before + ask.agreed, ask.rejected)
    if len(layers.text) != row.context:
        raise AuditError(f"slot {row.slot} was told {len(layers.text)} tokens of a text of {row.context}")
    return layers


@dataclass
class Drafting:
    """A row while it is drafted for.

    Attributes:
        row: The row.
        layers: Its datastore.
        pending: Tokens that are continued.
        most: Tokens that may be drafted.
        unfed: Tokens that the draft has not processed; at least one.
        tokens: Drafted tokens.
        weights: The law of each, where they are drawn.
        matched: Retrieved tokens confirmed, per forward.
        found: Retrieved tokens, per forward.
        work: Steps.
    """

    row: Row
    layers: Hierarchy
    pending: Tokens
    most: int
    unfed: Tokens
    tokens: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    matched: list[int] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    work: list[tuple[str, int]] = field(default_factory=list)


@handles(RetrievingDraft)
def draft(executor: Executor, operation: RetrievingDraft) -> list[Drafted]:
    """Retrieval forwards until every row has its tokens, or as many as it may emit."""
    how = operation.retrieval
    rows = [
        _begin(executor, row, ask, how)
        for row, ask in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    planned = 0
    for _ in range(operation.lookahead):
        going = [each for each in rows if len(each.tokens) < each.most]
        if not going:
            break
        planned += _retrieval_forward(executor, operation, going, how)
    executor.audit_fed(planned, "RetrievingDraft")
    kept = _keep_laws(executor, rows) if operation.sampling.draft_sampled else [NO_LAW] * len(rows)
    return [
        Drafted(tuple(r.tokens), handle, tuple(r.matched), tuple(r.found), tuple(r.work))
        for r, handle in zip(rows, kept, strict=True)
    ]


def _begin(executor: Executor, row: Row, ask: Ask, how: Retrieval) -> Drafting:
    layers = store_of(executor, row, ask, how)
    text = (*layers.text, *ask.pending)
    keep = min(common_prefix(executor.runner.held(row.slot), text), len(text) - 1)
    executor.runner.rollback(row.slot, keep)
    return Drafting(row, layers, ask.pending, row.room - len(ask.pending), text[keep:])


def _retrieval_forward(
    executor: Executor, operation: RetrievingDraft, rows: Sequence[Drafting], how: Retrieval
) -> int:
    """One forward of every row over its unfed tokens and what is retrieved after them; tokens fed."""
    start = time.perf_counter()
    found = [
        each.layers.retrieve((*each.pending, *each.tokens), min(how.span, each.most - len(each.tokens) - 1))
        for each in rows
    ]
    stamp_retrieval(executor, start, len(rows))
    chains = [(*each.unfed, *ahead) for each, ahead in zip(rows, found, strict=True)]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([each.row.slot for each in rows], chains)
    ends = [len(each.unfed) - 1 for each in rows]
    flat = torch.cat([logits[i, end : len(c)] for i, (end, c) in enumerate(zip(ends, chains, strict=True))])
    chosen, weights = _choose(operation, rows, found, flat)
    executor.stamp("draft", start, fed, chains)
    at = 0
    for each, ahead, chain in zip(rows, found, chains, strict=True):
        own = chosen[at : at + len(ahead) + 1]
        matched = common_prefix(ahead, own)
        if weights is not None:
            each.weights += weights[at : at + matched + 1]
        at += len(own)
        each.tokens += own[: matched + 1]
        each.matched.append(matched)
        each.found.append(len(ahead))
        each.work += [("retrieve", 0), ("draft", len(chain))]
        each.unfed = (own[matched],)
        held = len(executor.runner.held(each.row.slot))
        executor.runner.rollback(each.row.slot, held - (len(ahead) - matched))
    return sum(map(len, chains))


def _choose(
    operation: RetrievingDraft, rows: Sequence[Drafting], found: Sequence[Tokens], logits: Tensor
) -> tuple[list[int], Tensor | None]:
    """The draft's own token before and after each retrieved one [n, V], and the weights it was drawn by."""
    sampling = operation.sampling
    if not sampling.draft_sampled:
        best: list[int] = logits.argmax(dim=-1).tolist()
        return best, None
    weights = drafted_weights(logits, sampling)
    keys = [
        (each.row.request, each.row.position + len(each.pending) + len(each.tokens) + i, each.row.position)
        for each, ahead in zip(rows, found, strict=True)
        for i in range(len(ahead) + 1)
    ]
    requests, positions, rounds = np.array(keys, dtype=np.int64).T
    uniforms = keyed_uniforms(sampling.seed, DRAFTED, requests, positions, rounds)
    drawn: list[int] = draw(weights, uniforms).tolist()
    return drawn, weights


def _keep_laws(executor: Executor, rows: Sequence[Drafting]) -> list[int]:
    """[R] handle of the law of each row's first token, written to where the target finds them."""
    depth = max(len(each.tokens) for each in rows)
    if depth == 0:
        return [NO_LAW] * len(rows)
    if executor.writer is None:
        raise AuditError("this worker drafts at random but was given no memory for its laws")
    some = next(each.weights[0] for each in rows if each.weights)
    block = executor.writer.reserve(len(rows), depth, len(some))
    for step in range(depth):
        there = [step < len(each.tokens) for each in rows]
        laws = torch.stack([each.weights[step] if ok else some for each, ok in zip(rows, there, strict=True)])
        owners = np.array(
            [
                (each.row.request, each.row.position + len(each.pending) + step, each.tokens[step])
                if ok
                else (UNKNOWN, UNKNOWN, UNKNOWN)
                for each, ok in zip(rows, there, strict=True)
            ],
            dtype=np.int64,
        ).T
        totals = laws.sum(dim=-1, dtype=torch.float64).cpu().numpy()
        block.write(step, laws.cpu().numpy(), totals, (owners[0], owners[1], owners[2]))
    return [h if each.tokens else NO_LAW for h, each in zip(block.seal(), rows, strict=True)]


def stamp_retrieval(executor: Executor, start: float, rows: int) -> None:
    """Note a step that looked words up for some rows, and called no model."""
    executor.stamp("retrieve", start, executor.runner.fed, [()] * rows)


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


@handles(RetrievingVerify)
def verify(executor: Executor, operation: RetrievingVerify) -> list[Verified]:
    """One forward over the pending tokens and what is retrieved after them."""
    how, rows, start = operation.retrieval, rows_of(operation.view), time.perf_counter()
    found: list[Tokens] = []
    for row, ask in zip(rows, operation.inputs, strict=True):
        executor.rewind(row)
        span = min(how.span, row.room - len(ask.pending) - 1)
        found.append(store_of(executor, row, ask, how).retrieve(ask.pending, span))
    stamp_retrieval(executor, start, len(rows))
    chains = [
        (row.tail[-1], *ask.pending, *ahead)
        for row, ask, ahead in zip(rows, operation.inputs, found, strict=True)
    ]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([row.slot for row in rows], chains)
    pending = [
        row._replace(tokens=ask.pending, source=int(Source.PRIMARY), law=ask.law)
        for row, ask in zip(rows, operation.inputs, strict=True)
    ]
    if operation.sampling.greedy:
        verdicts = _first_choices(executor, pending, found, logits)
    else:
        p = law(logits, operation.sampling)
        verdicts = _draws(executor, operation, pending, found, p, leave_open=operation.leave_open)
    executor.stamp("verify", start, fed, chains)
    executor.audit_fed(sum(map(len, chains)), "RetrievingVerify")
    return [
        Verified(verdict, len(ahead), is_open, (("retrieve", 0), ("verify", len(chain))))
        for (verdict, is_open), ahead, chain in zip(verdicts, found, chains, strict=True)
    ]


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
    operation: RowOperation,
    rows: Sequence[Row],
    found: Sequence[Tokens],
    p: Tensor,
    *,
    leave_open: bool,
) -> list[tuple[RowVerdict, bool]]:
    """Sampled: the pending tokens by the laws they were drawn from, then (or never) the retrieved ones."""
    runs, following = _judged(executor, operation, rows, p, open_ends=True)
    verdicts = [
        cut(row.tokens[:run], bonus, row.room, executor.end_token_ids)
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
    return [(verdict, False) for verdict in _extended(executor, operation, verdicts, ends)]


@handles(Guide)
def guide(executor: Executor, operation: Guide) -> list[VerdictReply]:
    """Decide open positions by the draft's next tokens, and then by the retrieved ones."""
    start = time.perf_counter()
    kept: dict[int, OpenEnd] = executor.kept.get(OPEN, {})
    ends, drafts = [], []
    for row, (tokens, handle, behind) in zip(rows_of(operation.view), operation.inputs, strict=True):
        end, wanted = kept.pop(row.slot, None), (row.request, row.position + behind)
        if end is None or (end.row.request, end.row.position) != wanted:
            raise AuditError(f"slot {row.slot} has no open position {wanted[1]} of request {wanted[0]}")
        # X_q is judged as far as the target has laws for it: along r, and one token beside or behind it.
        judged = tokens[: common_prefix(tokens, end.retrieved) + 1]
        ends.append(end)
        drafts.append(end.row._replace(tokens=judged, source=int(Source.PRIMARY), law=handle))
    verdicts = _guidance(executor, operation, ends, drafts, [len(ask[0]) for ask in operation.inputs])
    executor.stamp("guide", start, executor.runner.fed, [()] * len(ends))
    return [VerdictReply(verdict, (("guide", 0),)) for verdict in verdicts]


def _guidance(
    executor: Executor,
    operation: RowOperation,
    ends: Sequence[OpenEnd],
    drafts: Sequence[Row],
    lengths: Sequence[int],
) -> list[RowVerdict]:
    runs, following = _judged(executor, operation, drafts, _padded([e.laws for e in ends]), open_ends=True)
    verdicts: list[RowVerdict] = []
    extended: dict[int, OpenEnd] = {}
    for i, (end, row, run, bonus) in enumerate(zip(ends, drafts, runs, following, strict=True)):
        verdicts.append(cut(row.tokens[:run], bonus, row.room, executor.end_token_ids))
        on_path = row.tokens == end.retrieved[: len(row.tokens)]
        if bonus is None and not verdicts[i].ended and on_path and len(row.tokens) == lengths[i]:
            extended[i] = OpenEnd(_behind(row, run), end.retrieved[run:], end.laws[run:])
    return _extended(executor, operation, verdicts, extended)


def _extended(
    executor: Executor, operation: RowOperation, verdicts: Sequence[RowVerdict], ends: Mapping[int, OpenEnd]
) -> list[RowVerdict]:
    """The verdicts, those at the keys of `ends` followed by what is retrieved behind them."""
    found = list(verdicts)
    if ends:
        for i, rest in zip(ends, _retrieved(executor, operation, list(ends.values())), strict=True):
            before = verdicts[i]
            emitted = (*before.emitted, *rest.emitted)
            found[i] = RowVerdict(before.accepted, emitted, rest.ended, rest.bonus)
    return found


def _retrieved(executor: Executor, operation: RowOperation, ends: Sequence[OpenEnd]) -> list[RowVerdict]:
    """Decide open positions by the retrieved tokens, whose law is one-hot, and the target's own token."""
    rows = [end.row._replace(tokens=end.retrieved, source=int(Source.NGRAM), law=NO_LAW) for end in ends]
    runs, following = _judged(executor, operation, rows, _padded([e.laws for e in ends]), open_ends=False)
    return [
        cut(row.tokens[:run], bonus, row.room, executor.end_token_ids)
        for row, run, bonus in zip(rows, runs, following, strict=True)
    ]


def _judged(
    executor: Executor, operation: RowOperation, rows: Sequence[Row], p: Tensor, *, open_ends: bool
) -> tuple[list[int], list[int | None]]:
    proposals = Proposals(rows, operation.sampling, p.shape[-1], executor.reader)
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
