"""SpecBranch's drafting: branches behind the pending block, and how sure the draft was of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import proposing, rows_of
from calibrate.live.engine.sampling import DraftSampler, token_probs, top_tokens
from calibrate.live.handlers.chains import branch_steps, drafted, feed, sampler_of, unseen
from calibrate.live.handlers.gated import confidence
from policies.duo import openings
from policies.sampling import Sampling
from policies.specbranch import SURE, Branches, DraftBranches, branch_count
from policies.values import Drafted


class ConfidentSampler(DraftSampler):
    """Notes how sure the draft was of each token, in thousandths; `noted` is [steps][N]."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.noted: list[list[int]] = []

    def choose(self, logits: Tensor) -> Tensor:
        """See `DraftSampler.choose`."""
        self.noted.append((SURE * confidence(logits, "confidence")).round().long().tolist())
        return super().choose(logits)


@handles(DraftBranches)
def draft_branches(executor: Executor, operation: DraftBranches) -> list[Branches]:
    """Feed what is unseen, open branches where the draft is in doubt, and grow them side by side."""
    rows = list(map(proposing, rows_of(operation.view), operation.inputs))
    sampling, depth = operation.sampling, operation.lookahead - 1
    feeds, slots = [unseen(executor, row) for row in rows], [row.slot for row in rows]
    logits = feed(executor, "feed", slots, feeds)
    keys = [(row.request, row.position + len(row.tokens)) for row in rows]
    first = sampler_of(executor, keys, 1, sampling)
    leading, ranked = first.choose(logits).tolist(), top_tokens(logits, operation.branches)
    # Of greedy decoding the distribution is one-hot; what the draft believes is its softmax.
    q = token_probs(logits, Sampling(temperature=1.0) if sampling.greedy else sampling)
    counts = [branch_count(operation.branches, float(q[i, token])) for i, token in enumerate(leading)]
    opened = [
        openings(ranked[i], q[i, ranked[i]].tolist(), leading[i], None, count)
        for i, count in enumerate(counts)
    ]
    if depth:
        grown = iter(_grown(executor, operation, keys, opened, depth))
    else:
        grown = iter([(Drafted(), ())] * sum(counts))
    replies = []
    for own, fed, handle in zip(opened, feeds, first.seal(), strict=True):
        texts = [next(grown) for _ in own]
        replies.append(
            Branches(
                tuple((token, *text.tokens) for token, (text, _) in zip(own, texts, strict=True)),
                handle,
                tuple(text.handle for text, _ in texts),
                (("feed", len(fed)), *(("tree", len(own)),) * depth),
                tuple(sure for _, sure in texts),
            )
        )
    return replies


def _grown(
    executor: Executor,
    operation: DraftBranches,
    keys: Sequence[tuple[int, int]],
    opened: Sequence[tuple[int, ...]],
    depth: int,
) -> list[tuple[Drafted, tuple[int, ...]]]:
    """What is drafted behind the first tokens `opened` [R] of the branches, and how sure the draft was."""
    places = [(request, behind + 1) for (request, behind), own in zip(keys, opened, strict=True) for _ in own]
    requests, positions = zip(*places, strict=True)
    sampler = ConfidentSampler(requests, positions, depth, operation.sampling, writer=executor.writer)
    slots = operation.view.slots
    forks = [
        [len(executor.runner.held(slot)) - 1] * len(own) for slot, own in zip(slots, opened, strict=True)
    ]
    depths, first = [depth] * len(slots), list(map(list, opened))
    columns = list(branch_steps(executor, slots, forks, first, sampler=sampler, depths=depths))
    return list(zip(drafted(columns, sampler), zip(*sampler.noted, strict=True), strict=True))
