"""Drafting by streams (`policies.mirror`) on a worker: windows and rollouts in fewer passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.live.errors import ModelError
from calibrate.live.messages import Row, RowwiseRows
from calibrate.live.streaming import Nodes, StreamBranching, Text, Writing
from calibrate.live.streams import ModelStreams, load_streams
from policies.mirror import Branch, Plan, StreamRolled, StreamWindow, Window, forks, passes
from policies.rowwise import Work
from policies.tokentree import ROOT

if TYPE_CHECKING:
    from calibrate.live.executor import Executor

KEPT = "streams"
"""Name under which an executor keeps its model's streams."""


def streams_of(executor: Executor) -> ModelStreams:
    """The streams of the executor's model, loaded on first use."""
    return executor.once(KEPT, lambda: load_streams(executor.runner.model))


def nodes_of(executor: Executor, rows: Sequence[Row]) -> Nodes:
    """Nodes over what the rows' slots hold."""
    return StreamBranching(executor.runner, [row.slot for row in rows], streams_of(executor))


def draft(executor: Executor, message: RowwiseRows) -> tuple[StreamWindow, ...]:
    """Handler of `policies.mirror.StreamDraft`."""
    rows = message.rows
    for row in rows:
        executor.rewind(row)
    texts = [Text(i, ROOT, row.tail[-1], row.request, row.position) for i, row in enumerate(rows)]
    writing = _writing(executor, message, texts)
    grow(executor, nodes_of(executor, rows), writing, "draft")
    works = _works(executor, writing, "draft")
    executor.audit_fed(sum(tokens for work in works for _, tokens in work), "StreamDraft")
    return tuple(
        StreamWindow(tuple(text.written), law, tuple(text.emitted), work)
        for text, law, work in zip(texts, writing.seal(), works, strict=True)
    )


def roll_out(executor: Executor, message: RowwiseRows) -> tuple[StreamRolled, ...]:
    """Handler of `policies.mirror.StreamRollout`: a glue step, then all branches side by side."""
    plans = [Plan(Window._make(ask[0]), ask[1]) for ask in message.asks]
    rows = [row._replace(tokens=plan.window.tokens) for row, plan in zip(message.rows, plans, strict=True)]
    for row in rows:
        executor.rewind(row)
    chains = [(row.tail[-1], *row.tokens) for row in rows]
    nodes = nodes_of(executor, rows)
    start, fed = time.perf_counter(), executor.runner.fed
    glue = nodes.feed(chains, [range(ROOT, len(chain) - 1) for chain in chains])
    glue[0, 0, 0].item()  # the stamp is of done work
    executor.stamp("glue", start, fed, chains)
    outcomes = [forks(plan) for plan in plans]
    texts = [
        # Node k is the k-th drafted token; the candidate itself has the position after it.
        Text(i, k, token, row.request, row.position + k + 1)
        for i, (row, found) in enumerate(zip(rows, outcomes, strict=True))
        for k, token in found
    ]
    writing = _writing(executor, message, texts)
    grow(executor, nodes, writing, "tree")
    nodes.keep([range(len(chain)) for chain in chains])
    works = _works(executor, writing, "tree")
    grown = sum(tokens for work in works for _, tokens in work)
    executor.audit_fed(sum(map(len, chains)) + grown, "StreamRollout")
    return _rolled(outcomes, chains, writing, works)


def _rolled(
    outcomes: Sequence[Sequence[tuple[int, int]]],
    chains: Sequence[Sequence[int]],
    writing: Writing,
    works: Sequence[Work],
) -> tuple[StreamRolled, ...]:
    written = iter(zip(writing.texts, writing.seal(), strict=True))
    replies = []
    for found, chain, work in zip(outcomes, chains, works, strict=True):
        grown = [next(written) for _ in found]
        branches = tuple(
            tuple(Branch(k, (token, *text.written), law))
            for (k, token), (text, law) in zip(found, grown, strict=True)
        )
        emitted = tuple(tuple(text.emitted) for text, _ in grown)
        replies.append(StreamRolled(branches, emitted, (("glue", len(chain)), *work)))
    return tuple(replies)


def grow(executor: Executor, nodes: Nodes, writing: Writing, name: str) -> None:
    """Stamped passes until all texts are written.

    Args:
        executor: Stamps.
        nodes: What the texts hang on.
        writing: The texts.
        name: Of a pass's first step; `name:s` are its streams.
    """
    runner = executor.runner
    while writing.growing:
        first = [len(row) for row in nodes.tokens]
        tokens, parents = writing.pending(first)
        asking = writing.asking()
        start, fed = time.perf_counter(), runner.fed
        tips = writing.write(first, nodes.feed(tokens, parents))
        executor.stamp(name, start, fed, tokens)
        asked = [len(row) * streams for row, streams in zip(tokens, asking, strict=True)]
        for own, row, streams in zip(writing.counts, tokens, asked, strict=True):
            if row:
                own.append((len(row), streams))
        if any(asked):
            start, fed = time.perf_counter(), runner.fed
            writing.take(tips, nodes.propose(max(asking), asked))
            executor.stamp(f"{name}:{streams_of(executor).share:.4g}", start, fed, [range(n) for n in asked])


def _writing(executor: Executor, message: RowwiseRows, texts: Sequence[Text]) -> Writing:
    streams, there = int(message.option("streams")), streams_of(executor).streams
    if streams > there:
        raise ModelError(
            f"the draft has {there} streams, {streams} were asked for; use `--streams {there}`, or train "
            "more of them with `calibrate pair streams --streams`"
        )
    return Writing(
        texts,
        len(message.rows),
        lookahead=int(message.option("lookahead")),
        streams=streams,
        sampling=message.sampling,
        writer=executor.writer,
    )


def _works(executor: Executor, writing: Writing, name: str) -> list[Work]:
    share = streams_of(executor).share
    return [passes(name, share, counts) for counts in writing.counts]
