"""Operations on chains: prefill, verification, drafting, and SSD's pre-speculation of a chain's outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.heads import keeping_states, target_states
from calibrate.live.engine.rows import Row, behind, open_rows, rows_of
from calibrate.live.engine.runner import padded
from calibrate.live.engine.sampling import DraftSampler, token_probs, top_tokens
from calibrate.live.engine.verification import (
    Proposals,
    agreement,
    cut,
    judge,
    judge_chains,
    prepared_outcomes,
)
from calibrate.live.errors import AuditError
from policies.operation import Continue, Draft, Prefill, Prespeculate, Settle, Verify
from policies.sampling import Sampling
from policies.values import Drafted, Outcome, Prepared, RowVerdict


@handles(Prefill)
def prefill(executor: Executor, operation: Prefill) -> list[None]:
    """Feed all of each prompt but its last token, which the first verification feeds."""
    slots, prompts = operation.view.slots, operation.prompts or ()
    held = operation.starts or (0,) * len(slots)
    if new := [slot for slot, start in zip(slots, held, strict=True) if start == 0]:
        executor.begin(new)
        if operation.states:
            target_states(executor).begin(new)
    chains = {slot: prompt[:-1] for slot, prompt in zip(slots, prompts, strict=False) if len(prompt) > 1}
    if chains:
        whole = [range(len(chain)) for chain in chains.values()]
        with keeping_states(executor, operation.states, list(chains), whole):
            feed(executor, "prefill", list(chains), list(chains.values()))
    return [None] * len(slots)


def feed(executor: Executor, name: str, slots: Sequence[int], chains: Sequence[Sequence[int]]) -> Tensor:
    """One stamped step that selects nothing; [R, V] logits after each chain."""
    with executor.step(name, chains):
        logits = executor.runner.forward(slots, chains, last_only=True)[:, 0]
        logits[0, 0].item()  # the stamp is of done work, also where kernels run asynchronously
    return logits


@handles(Verify)
def verify(executor: Executor, operation: Verify) -> list[RowVerdict]:
    """Judge every row's chain in one forward."""
    rows = rows_of(operation.view, operation.speculation)
    return verify_chains(executor, rows, operation.sampling, leave_open=operation.leave_open)


def verify_chains(
    executor: Executor, rows: Sequence[Row], sampling: Sampling, *, leave_open: bool
) -> list[RowVerdict]:
    """[R] outcomes of verifying each row's `tokens` after its committed text.

    `leave_open`: the bonus token of rows that accept everything is left to be settled.
    """
    chains = rewound(executor, rows)
    with executor.step("verify", chains):
        logits = executor.runner.forward([row.slot for row in rows], chains)
        if sampling.greedy and not leave_open:
            verdicts = matched(executor, rows, logits.argmax(dim=-1).tolist())
        else:
            p = token_probs(logits, sampling)
            runs, verdicts, still_open = judged(executor, rows, sampling, p, leave_open=leave_open)
            for i in still_open:
                executor.leave_open(behind(rows[i], runs[i]), p[i, runs[i]].clone())
    executor.audit_fed(sum(map(len, chains)), "Verify")
    return verdicts


def rewound(executor: Executor, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """[R] the last committed token and the drafted ones; the cache is rolled back to what comes before."""
    for row in rows:
        executor.rewind(row)
    return [(row.tail[-1], *row.tokens) for row in rows]


def matched(executor: Executor, rows: Sequence[Row], own: Sequence[Sequence[int]]) -> list[RowVerdict]:
    """[R] outcomes of accepting what equals the target's own tokens [R, n] (`mirror.eq3`, `mirror.eq11`)."""
    return [
        judge(row.tokens, tokens[: len(row.tokens) + 1], row.room, executor.end_token_ids)
        for row, tokens in zip(rows, own, strict=True)
    ]


def judged(
    executor: Executor, rows: Sequence[Row], sampling: Sampling, p: Tensor, *, leave_open: bool = False
) -> tuple[list[int], list[RowVerdict], list[int]]:
    """Sampled verification of each row's `tokens` by the target's distributions p [R, n, V].

    Returns:
        [R] accepted tokens; [R] outcomes; the rows that accepted everything and whose end was left open.
    """
    proposals = Proposals(rows, sampling, p.shape[-1], executor.reader)
    runs, following = judge_chains(p, proposals, np.full(len(rows), leave_open))
    verdicts = [
        cut(row.tokens[:run], bonus, row.room, executor.end_token_ids)
        for row, run, bonus in zip(rows, runs, following, strict=True)
    ]
    still_open = [i for i, bonus in enumerate(following) if bonus is None and not verdicts[i].ended]
    return runs, verdicts, still_open


@handles(Settle)
def settle(executor: Executor, operation: Settle) -> list[RowVerdict]:
    """Decide the positions that a verification left open; no forward, for their probabilities were kept."""
    rows = open_rows(operation)
    if not rows:
        return []
    p = torch.stack([executor.left_open(row) for row in rows])[:, None]
    proposals = Proposals(rows, operation.sampling, p.shape[-1], executor.reader)
    _, following = judge_chains(p, proposals, proposals.lengths > 0)
    return [
        cut((), row.tokens[0] if bonus is None else bonus, row.room, executor.end_token_ids)
        for row, bonus in zip(rows, following, strict=True)
    ]


@handles(Draft)
def draft(executor: Executor, operation: Draft) -> list[Drafted]:
    """Draft past each row's committed text; fewer tokens if stopped."""
    rows = rows_of(operation.view)
    counts = [operation.unseen[row.slot] for row in rows]
    return _extend(executor, operation, rows, counts, shape=operation.shape, stoppable=True)


@handles(Continue)
def go_on(executor: Executor, operation: Continue) -> list[Drafted]:
    """Draft past the tokens under verification, the last of which is all that is unseen after a round."""
    rows = rows_of(operation.view, operation.speculation)
    return _extend(executor, operation, rows, [1] * len(rows))


def unseen(executor: Executor, row: Row) -> tuple[int, ...]:
    """What the cache lacks of the committed text and the drafted tokens; it forgets what is not of them."""
    keep = agreement(executor.runner.held(row.slot), row.context, row.tail, row.tokens)
    executor.runner.rollback(row.slot, keep)
    return (*row.tail, *row.tokens)[keep - (row.context - len(row.tail)) :]


def _extend(
    executor: Executor,
    operation: Draft | Continue,
    rows: Sequence[Row],
    counts: Sequence[int],
    *,
    shape: tuple[int, ...] | None = None,
    stoppable: bool = False,
) -> list[Drafted]:
    """Feed what is unseen, then draft; `operation.lookahead` tokens per row in all, fewer if stopped.

    Raises:
        AuditError: More or fewer tokens of a row are unseen than the policy said (`counts`).
    """
    feeds = [unseen(executor, row) for row in rows]
    for fed, count in zip(feeds, counts, strict=True):
        if len(fed) != count:
            kind = type(operation).__name__
            raise AuditError(f"{kind} was told of {count} unseen tokens but has to feed {len(fed)}")
    if stoppable and executor.stopped():
        return [Drafted(())] * len(rows)
    slots = [row.slot for row in rows]
    keys = [(row.request, row.position + len(row.tokens)) for row in rows]
    sampler = sampler_of(executor, keys, operation.lookahead, operation.sampling, shape)
    columns: list[list[int]] = []
    chains: Sequence[Sequence[int]] = feeds
    while len(columns) < sampler.depth and not (columns and stoppable and executor.stopped()):
        with executor.step("draft" if columns else "feed", chains):
            logits = executor.runner.forward(slots, chains, last_only=True)[:, 0]
            columns.append(sampler.choose(logits).tolist())
        chains = [(token,) for token in columns[-1]]
    return drafted(columns, sampler)


def sampler_of(
    executor: Executor,
    keys: Sequence[tuple[int, int]],
    depth: int,
    sampling: Sampling,
    shape: tuple[int, ...] | None = None,
) -> DraftSampler:
    """What chooses `depth` tokens of each text from the positions `keys` (request, position) on."""
    requests, positions = [request for request, _ in keys], [position for _, position in keys]
    return DraftSampler(requests, positions, depth, sampling, shape=shape, writer=executor.writer)


def drafted(columns: Sequence[Sequence[int]], sampler: DraftSampler) -> list[Drafted]:
    """The tokens of each text, from those of each step."""
    texts = zip(zip(*columns, strict=True), sampler.seal(), strict=True)
    return [Drafted(tokens, handle) for tokens, handle in texts]


@handles(Prespeculate)
def prespeculate(executor: Executor, operation: Prespeculate) -> list[Prepared]:
    """A glue step finds the outcomes that each row's fan-outs ask for, then a tree continues them."""
    rows = rows_of(operation.view, operation.speculation)
    chains = rewound(executor, rows)
    outcomes = glue(executor, operation, rows, chains)
    if operation.early:
        executor.say_early([Prepared(tuple((o, Drafted()) for o in own)) for own in outcomes])
    depth, shape, stoppable = operation.lookahead, operation.shape, operation.early
    grown = grow(executor, rows, outcomes, depth, operation.sampling, shape=shape, stoppable=stoppable)
    if operation.early:  # then it may have been stopped
        depth = sum(step.name == "tree" for step in executor.steps)
    executor.audit_fed(sum(map(len, chains)) + depth * sum(map(len, outcomes)), "Prespeculate")
    return [Prepared(tuple(zip(own, texts, strict=True))) for own, texts in zip(outcomes, grown, strict=True)]


def glue(
    executor: Executor, operation: Prespeculate, rows: Sequence[Row], chains: Sequence[tuple[int, ...]]
) -> list[list[Outcome]]:
    """[R] outcomes to prepare for, chosen in one stamped step over `chains` (see `rewound`)."""
    counts, fanouts = [len(chain) for chain in chains], [operation.fanout_of(row.slot) for row in rows]
    with executor.step("glue", chains):
        logits = executor.runner.forward([row.slot for row in rows], chains)
        flat = torch.cat([logits[i, :count] for i, count in enumerate(counts)])
        # One more than the fan-out, since the rejected token is left out.
        most = 1 + max(max(fanout[:n]) for fanout, n in zip(fanouts, counts, strict=True))
        ranked = iter(top_tokens(flat, most))
        return [
            prepared_outcomes(
                [next(ranked) for _ in range(count)],
                row.tokens,
                fanout,
                keep_rejected=operation.keep_rejected,
                part=operation.part,
            )
            for row, count, fanout in zip(rows, counts, fanouts, strict=True)
        ]


def grow(
    executor: Executor,
    rows: Sequence[Row],
    outcomes: Sequence[Sequence[Outcome]],
    depth: int,
    sampling: Sampling,
    *,
    shape: tuple[int, ...] | None = None,
    stoppable: bool = False,
) -> list[list[Drafted]]:
    """[R] the speculation of each of a row's outcomes: all continued by `depth` tokens at once."""
    grown = [(row, own) for row, own in zip(rows, outcomes, strict=True) if own]
    if not grown:
        return [[] for _ in rows]
    # The verified token of an outcome has the position after its k accepted ones; what is drafted, the next.
    keys = [(row.request, row.position + k + 1) for row, own in grown for k, _ in own]
    sampler = sampler_of(executor, keys, depth, sampling, shape)
    # After k accepted tokens the last trunk token seen is the k-th drafted one.
    forks = [[row.context - 1 + k for k, _ in own] for row, own in grown]
    first = [[bonus for _, bonus in own] for _, own in grown]
    slots, depths = [row.slot for row, _ in grown], [depth] * len(grown)
    steps = branch_steps(executor, slots, forks, first, sampler=sampler, depths=depths, stoppable=stoppable)
    columns = list(steps)
    if len(columns) < depth:  # nobody will ask for these
        return [[Drafted()] * len(own) for own in outcomes]
    texts = iter(drafted(columns, sampler))
    return [[next(texts) for _ in own] for own in outcomes]


def branch_steps(
    executor: Executor,
    slots: Sequence[int],
    forks: Sequence[Sequence[int]],
    first: Sequence[Sequence[int]],
    *,
    sampler: DraftSampler,
    depths: Sequence[int],
    name: str = "tree",
    stoppable: bool = False,
) -> Iterator[list[int]]:
    """Grow branches side by side; yields the next token of every branch, row after row, step by step.

    Args:
        executor: Whose model.
        slots: [R] slots that hold the trunks.
        forks: [R] lists of forks; see `Runner.open_tree`.
        first: [R] the token that each branch begins with.
        sampler: What chooses the next ones.
        depths: [R] steps of each row, after which its branches are padding.
        name: Of the stamped steps.
        stoppable: Whether to end early where that is asked for.
    """
    tree = executor.runner.open_tree(slots, forks, max(depths))
    tokens = torch.tensor(padded(first), device=executor.runner.device)
    counts, real = list(map(len, forks)), None  # all are
    if min(counts) < max(counts):
        columns = torch.arange(max(counts), device=tokens.device)
        real = columns < torch.tensor(counts, device=tokens.device)[:, None]
    for step in range(max(depths)):
        if stoppable and executor.stopped():
            break
        tree.counts = tuple(count if step < most else 0 for count, most in zip(counts, depths, strict=True))
        with executor.step(name, [range(count) for count in tree.counts]):
            logits = executor.runner.tree_forward(tree, tokens)
            chosen = sampler.choose(logits.flatten(0, 1) if real is None else logits[real])
            if real is None:
                tokens = chosen.view(tokens.shape)
            else:
                tokens[real] = chosen
            column: list[int] = chosen.tolist()  # as in `feed`
        yield column
    executor.runner.close_tree(tree)
