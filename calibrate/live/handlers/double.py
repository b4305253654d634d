"""DOUBLE's draft in forwards, and the datastores of its workers (`doubleguide` has its target).

The draft confirms a retrieved token by choosing for itself: its first choice, or a draw from its own law q.
Every drafted token is then what the draft would have drafted without retrieval, with the law q; what was
retrieved only tells how many of them come out of one forward.  The draws of a position are keyed by the
round too: rejected tokens are kept and retrieved, and must not give away the luck of what is drafted later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calibrate.live.choice import DRAFTED, drafted_weights, draw
from calibrate.live.errors import AuditError
from calibrate.live.handlers.retrieval import opened
from calibrate.live.messages import Row
from policies.double import Ask, Drafted, Retrieval, Tokens
from policies.laws.retrieval import common_prefix
from policies.operations import NO_LAW, UNKNOWN
from policies.retrieval import Hierarchy
from policies.sampling import keyed_uniforms

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import RowwiseRows

STORES = "double.stores"
"""Name under which an executor keeps datastores by slot."""


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


def draft(executor: Executor, message: RowwiseRows) -> tuple[Drafted, ...]:
    """Handler of `RetrievingDraft`."""
    how: Retrieval = message.option("retrieval")
    rows = [_begin(executor, row, ask, how) for row, ask in zip(message.rows, message.asks, strict=True)]
    planned = 0
    for _ in range(message.option("lookahead")):
        going = [each for each in rows if len(each.tokens) < each.most]
        if not going:
            break
        planned += _retrieval_forward(executor, message, going, how)
    executor.audit_fed(planned, "RetrievingDraft")
    handles = _keep_laws(executor, rows) if message.sampling.draft_sampled else [NO_LAW] * len(rows)
    return tuple(
        Drafted(tuple(r.tokens), handle, tuple(r.matched), tuple(r.found), tuple(r.work))
        for r, handle in zip(rows, handles, strict=True)
    )


def _begin(executor: Executor, row: Row, ask: Ask, how: Retrieval) -> Drafting:
    layers = store_of(executor, row, ask, how)
    text = (*layers.text, *ask.pending)
    keep = min(common_prefix(executor.runner.held(row.slot), text), len(text) - 1)
    executor.runner.rollback(row.slot, keep)
    return Drafting(row, layers, ask.pending, row.room - len(ask.pending), text[keep:])


def _retrieval_forward(
    executor: Executor, message: RowwiseRows, rows: Sequence[Drafting], how: Retrieval
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
    chosen, weights = _choose(message, rows, found, flat)
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
    message: RowwiseRows, rows: Sequence[Drafting], found: Sequence[Tokens], logits: Tensor
) -> tuple[list[int], Tensor | None]:
    """The draft's own token before and after each retrieved one [n, V], and the weights it was drawn by."""
    sampling = message.sampling
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
