"""Mirror-SD's operations (`policies.mirror`): the verification with an early result, rollouts, and windows
that the draft's streams write in fewer passes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.additions import ModelExits, load_exits
from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import Row, proposing, rows_of
from calibrate.live.engine.sampling import BONUS, draw, token_probs, top_tokens
from calibrate.live.engine.streams import ModelStreams, StreamBranching, Text, Writing, load_streams
from calibrate.live.errors import ModelError
from calibrate.live.handlers.chains import grow, judged, matched, rewound
from calibrate.live.wire import StepTime
from policies.mirror import (
    Branch,
    Candidates,
    EarlyVerify,
    Rolled,
    Rollout,
    StreamDraft,
    StreamRolled,
    StreamRollout,
    StreamWindow,
    forks,
    passes,
)
from policies.operation import VerdictReply, Work
from policies.sampling import keyed_uniforms
from policies.tokentree import ROOT
from policies.values import Outcome, RowVerdict

EXITS = "exits"
"""Name under which an executor keeps its model's early exits."""
STREAMS = "streams"
"""Name under which an executor keeps its model's streams."""


def exits_of(executor: Executor) -> ModelExits:
    """The early exits of the executor's model, loaded on first use."""
    return executor.once(EXITS, lambda: load_exits(executor.runner.model))


class Exit:
    """Looks at a forward on its way, and says early what an exit takes for the next tokens.

    Of each row so many tokens are fed as `counts` [R] says.

    Attributes:
        began: When the exit layer was done.
        ended: When the early result was out; the layers after the exit run from then on.
    """

    def __init__(self, executor: Executor, operation: EarlyVerify, counts: Sequence[int]) -> None:
        self.exits = exits_of(executor)
        self.name = operation.exit
        self.layer = self.exits.layer(self.name)
        share = self.layer / self.exits.layers
        self.early, self.late = f"early:{share:.4g}", f"late:{1.0 - share:.4g}"
        self.kappa = operation.kappa
        self.counts = [1] * len(counts) if operation.candidates == "first" else list(counts)
        self.began = self.ended = 0.0
        self._executor = executor

    def see(self, hidden: Tensor) -> None:
        """Send the candidates of each row at the positions that count, from hidden states [R, n, H]."""
        self.began = time.perf_counter()
        table = self.exits.logits(self.name, hidden[:, : max(self.counts)])
        flat = torch.cat([table[i, :count] for i, count in enumerate(self.counts)])
        ranked = iter(top_tokens(flat, self.kappa))
        self._executor.say_early(
            [Candidates(tuple(tuple(next(ranked)) for _ in range(count))) for count in self.counts]
        )
        self.ended = time.perf_counter()


@handles(EarlyVerify)
def verify_early(executor: Executor, operation: EarlyVerify) -> list[VerdictReply]:
    """One forward with an early result."""
    rows = list(map(proposing, rows_of(operation.view), *zip(*operation.inputs, strict=True)))
    chains = rewound(executor, rows)
    exit_ = Exit(executor, operation, [len(chain) for chain in chains])
    start, fed = time.perf_counter(), executor.runner.fed
    slots = [row.slot for row in rows]
    with executor.runner.showing(slots, exit_.layer, exit_.see):
        logits = executor.runner.forward(slots, chains)
    verdicts = outcomes_of(executor, operation, rows, logits)
    # The forward is noted as its three pieces; what was fed is counted once.
    shape = len(chains), max(map(len, chains))
    executor.steps += [
        StepTime(exit_.early, start, exit_.began, executor.runner.fed - fed, *shape),
        StepTime("exit", exit_.began, exit_.ended, 0, *shape),
        StepTime(exit_.late, exit_.ended, time.perf_counter(), 0, *shape),
    ]
    return [
        VerdictReply(verdict, ((exit_.early, len(chain)), ("exit", 0), (exit_.late, 0)))
        for verdict, chain in zip(verdicts, chains, strict=True)
    ]


def outcomes_of(
    executor: Executor, operation: EarlyVerify, rows: Sequence[Row], logits: Tensor
) -> list[RowVerdict]:
    """[R] outcomes, by the rule that is asked for, from the target's logits [R, n, V]."""
    if operation.sampling.greedy:
        return matched(executor, rows, logits.argmax(dim=-1).tolist())
    p = token_probs(logits, operation.sampling)
    if operation.rule == "matching":
        return matched(executor, rows, own_draws(rows, p, operation.sampling.seed))
    return judged(executor, rows, operation.sampling, p)[1]


def own_draws(rows: Sequence[Row], p: Tensor, seed: int) -> list[list[int]]:
    """[R, n] the target's own token at every position, drawn from its distributions p [R, n, V].

    Keyed by request and position, and by nothing that the draft draws from: so the token at a position is
    from p whatever was drafted there.
    """
    count = p.shape[1]
    requests = np.array([row.request for row in rows], dtype=np.int64)[:, None]
    positions = np.array([row.position for row in rows], dtype=np.int64)[:, None] + np.arange(count)
    uniforms = keyed_uniforms(seed, BONUS, requests, positions)
    drawn: list[list[int]] = draw(p.flatten(0, 1), uniforms.reshape(-1)).view(len(rows), count).tolist()
    return drawn


def _planned(operation: Rollout) -> tuple[list[Row], list[tuple[Outcome, ...]]]:
    """Rows with their windows, and the outcomes to continue."""
    rows = [
        row._replace(tokens=plan.window.tokens)
        for row, plan in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    return rows, list(map(forks, operation.inputs))


def _branches(own: Sequence[Outcome], texts: Sequence[tuple[Sequence[int], int]]) -> tuple[Branch, ...]:
    """A row's branches, from what was drafted after each outcome with the handle of its distributions."""
    return tuple(
        Branch(k, (token, *text), handle) for (k, token), (text, handle) in zip(own, texts, strict=True)
    )


@handles(Rollout)
def roll_out(executor: Executor, operation: Rollout) -> list[Rolled]:
    """A glue step, then all branches side by side."""
    (rows, outcomes), depth = _planned(operation), operation.lookahead
    chains = rewound(executor, rows)
    with executor.step("glue", chains):
        logits = executor.runner.forward([row.slot for row in rows], chains)
        logits[0, 0, 0].item()  # the stamp is of done work
    grown = grow(executor, rows, outcomes, depth, operation.sampling)
    return [
        Rolled(_branches(own, texts), (("glue", len(chain)), *[("tree", len(own))] * (depth if own else 0)))
        for own, texts, chain in zip(outcomes, grown, chains, strict=True)
    ]


def streams_of(executor: Executor) -> ModelStreams:
    """The streams of the executor's model, loaded on first use."""
    return executor.once(STREAMS, lambda: load_streams(executor.runner.model))


def nodes_of(executor: Executor, rows: Sequence[Row]) -> StreamBranching:
    """Nodes over what the rows' slots hold."""
    return StreamBranching(executor.runner, [row.slot for row in rows], streams_of(executor))


@handles(StreamDraft)
def draft(executor: Executor, operation: StreamDraft) -> list[StreamWindow]:
    """Windows in fewer passes than tokens."""
    rows = rows_of(operation.view)
    rewound(executor, rows)
    texts = [Text(i, ROOT, row.tail[-1], row.request, row.position) for i, row in enumerate(rows)]
    nodes = nodes_of(executor, rows)
    handles, works = write(executor, operation, nodes, texts, "draft")
    return [
        StreamWindow(tuple(text.written), handle, tuple(text.emitted), work)
        for text, handle, work in zip(texts, handles, works, strict=True)
    ]


@handles(StreamRollout)
def roll_out_by_streams(executor: Executor, operation: StreamRollout) -> list[StreamRolled]:
    """As `roll_out`, in fewer passes."""
    rows, outcomes = _planned(operation)
    chains = rewound(executor, rows)
    nodes = nodes_of(executor, rows)
    with executor.step("glue", chains):
        nodes.feed(chains, [range(ROOT, len(chain) - 1) for chain in chains])[0, 0, 0].item()
    texts = [
        # Node k is the k-th drafted token; the candidate itself has the position after it.
        Text(i, k, token, row.request, row.position + k + 1)
        for i, (row, own) in enumerate(zip(rows, outcomes, strict=True))
        for k, token in own
    ]
    handles, works = write(executor, operation, nodes, texts, "tree")
    nodes.keep([range(len(chain)) for chain in chains])
    written = iter(zip(texts, handles, strict=True))
    replies = []
    for own, chain, work in zip(outcomes, chains, works, strict=True):
        mine = [next(written) for _ in own]
        branches = _branches(own, [(text.written, handle) for text, handle in mine])
        emitted = tuple(tuple(text.emitted) for text, _ in mine)
        replies.append(StreamRolled(branches, emitted, (("glue", len(chain)), *work)))
    return replies


def write(
    executor: Executor,
    operation: StreamDraft | StreamRollout,
    nodes: StreamBranching,
    texts: Sequence[Text],
    name: str,
) -> tuple[list[int], list[Work]]:
    """Stamped passes until all texts, which hang on `nodes`, are written.

    A pass's first step is called `name`, its streams `name:s`.

    Returns:
        Handle of each text's distributions; the passes of each row.
    """
    streams, own = operation.streams, streams_of(executor)
    if streams > own.streams:
        raise ModelError(
            f"the draft has {own.streams} streams, {streams} were asked for; use `--streams {own.streams}`, "
            "or train more of them with `calibrate pair streams --streams`"
        )
    writing = Writing(
        texts,
        len(operation.view.slots),
        lookahead=operation.lookahead,
        streams=streams,
        sampling=operation.sampling,
        writer=executor.writer,
    )
    while writing.growing:
        first = [len(row) for row in nodes.tokens]
        tokens, parents = writing.pending(first)
        asking = writing.asking()
        with executor.step(name, tokens):
            tips = writing.write(first, nodes.feed(tokens, parents))
        asked = [len(row) * streams for row, streams in zip(tokens, asking, strict=True)]
        for counts, row, count in zip(writing.counts, tokens, asked, strict=True):
            if row:
                counts.append((len(row), count))
        if any(asked):
            with executor.step(f"{name}:{own.share:.4g}", [range(n) for n in asked]):
                writing.take(tips, nodes.propose(max(asking), asked))
    return writing.seal(), [passes(name, own.share, counts) for counts in writing.counts]
