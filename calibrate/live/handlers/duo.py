"""DuoDecoding's operations (`policies.duo`): pending blocks, drafted sequences, and their first tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import Row, behind, proposing, rows_of
from calibrate.live.engine.sampling import DraftSampler, token_probs, top_tokens
from calibrate.live.engine.verification import TreeJudge, cut
from calibrate.live.handlers.chains import branch_steps, feed, sampler_of, unseen, verify_chains
from policies.duo import (
    DraftSequences,
    Openings,
    Sequences,
    Settled,
    SettleSequences,
    VerifyPending,
    most_sequences,
    openings,
    sequence_lengths,
    sequences_work,
)
from policies.operation import VerdictReply
from policies.sampling import Sampling
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_HANDLE, Source


@handles(VerifyPending)
def verify_pending(executor: Executor, operation: VerifyPending) -> list[VerdictReply]:
    """A verification of chains like any other."""
    rows = list(map(proposing, rows_of(operation.view), *zip(*operation.inputs, strict=True)))
    verdicts = verify_chains(executor, rows, operation.sampling, leave_open=operation.leave_open)
    return [
        VerdictReply(verdict, (("verify", 1 + len(row.tokens)),))
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


@handles(DraftSequences)
def draft_sequences(executor: Executor, operation: DraftSequences) -> list[Sequences]:
    """Draft one or more sequences past each row's block."""
    rows = map(proposing, rows_of(operation.view), operation.inputs)
    drafting = _Drafting(executor, operation, list(map(_Draft, rows)))
    first = drafting.open()
    if drafting.lookahead > 1:
        second = drafting.chain("draft")
        if not drafting.alone:
            drafting.branch(first, second)
        drafting.grow(first, second)
    return drafting.replies()


@dataclass
class _Draft:
    """What is drafted for one row.

    Attributes:
        row: Where it stands; its tokens are the pending block, which the sequences follow.
        fed: Tokens of the first step.
        opening: Handle of the distribution of the leading first token.
        texts: The sequences.
        handles: Of the distributions of each sequence's tokens after its first.
    """

    row: Row
    fed: int = 0
    opening: int = NO_HANDLE
    texts: list[list[int]] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)

    @property
    def leading(self) -> int:
        """First token of the leading sequence."""
        return self.texts[0][0]

    @property
    def position(self) -> int:
        """Position of the first token past the block."""
        return self.row.position + len(self.row.tokens)


class _Drafting:
    """The steps of one operation, for all rows at once.

    Attributes:
        wanted: Sequences; 0: by the threshold.
        alone: Whether no row ever has more than one; then it stays in the cache, as a chain.
    """

    def __init__(self, executor: Executor, operation: DraftSequences, drafts: Sequence[_Draft]) -> None:
        self.executor = executor
        self.drafts = drafts
        self.slots = [draft.row.slot for draft in drafts]
        self.sampling = operation.sampling
        self.lookahead = operation.lookahead
        self.wanted = operation.sequences
        self.alone = most_sequences(self.lookahead, self.wanted) == 1

    def chain(self, name: str) -> Tensor:
        """One stamped forward over the newest token of each leading sequence; [R, V] logits after it."""
        return feed(self.executor, name, self.slots, [(draft.texts[0][-1],) for draft in self.drafts])

    def open(self) -> Tensor:
        """Feed what is unseen and choose each leading first token; [R, V] logits it was chosen by."""
        feeds = [unseen(self.executor, draft.row) for draft in self.drafts]
        first = feed(self.executor, "feed", self.slots, feeds)
        sampler = self._sampler([(draft.row.request, draft.position) for draft in self.drafts], 1)
        tokens = sampler.choose(first).tolist()
        for draft, token, handle, own in zip(self.drafts, tokens, sampler.seal(), feeds, strict=True):
            draft.texts, draft.opening, draft.handles, draft.fed = [[token]], handle, [NO_HANDLE], len(own)
        return first

    def branch(self, first: Tensor, second: Tensor) -> None:
        """Open the other sequences, by logits [R, V] at the first position and after the leading token."""
        most = most_sequences(self.lookahead, self.wanted)
        ranked = top_tokens(first, most)
        # Of greedy decoding the distribution is one-hot; what the draft believes is its softmax.
        belief = Sampling(temperature=1.0) if self.sampling.greedy else self.sampling
        now, then = token_probs(first, belief), token_probs(second, belief)
        for i, draft in enumerate(self.drafts):
            theta = None if self.wanted else float(now[i, draft.leading] * then[i].max())
            opened = openings(ranked[i], now[i, ranked[i]].tolist(), draft.leading, theta, most)
            draft.texts += [[token] for token in opened[1:]]

    def grow(self, first: Tensor, second: Tensor) -> None:
        """The leading second tokens, then a token for every sequence per step until the budgets are used up.

        Every sequence draws at each step, so that its distributions lie one after another.  The first draw of
        those that were just opened is of their first tokens, which are chosen: it is not looked at, and their
        distributions begin with the next.
        """
        logits, keys = [], []
        for i, draft in enumerate(self.drafts):
            others = len(draft.texts) - 1
            logits += [second[i], *[first[i]] * others]
            positions = [draft.position + 1, *[draft.position] * others]
            keys += [(draft.row.request, position) for position in positions]
        lengths = [sequence_lengths(self.lookahead, len(draft.texts))[0] for draft in self.drafts]
        sampler = self._sampler(keys, max(lengths) - 1)
        column = iter(sampler.choose(torch.stack(logits)).tolist())
        for draft in self.drafts:
            leading, *_ = [next(column) for _ in draft.texts]
            draft.texts[0].append(leading)
        if self.alone:
            for _ in range(max(lengths) - 2):
                column = iter(sampler.choose(self.chain("draft")).tolist())
                for draft in self.drafts:
                    draft.texts[0].append(next(column))
        elif max(lengths) > 2:
            self._grow_tree([length - 2 for length in lengths], sampler)
        handles = iter(sampler.seal())
        for draft in self.drafts:
            own = [next(handles) for _ in draft.texts]
            draft.handles = [h if h == NO_HANDLE else h + (number > 0) for number, h in enumerate(own)]

    def _grow_tree(self, depths: Sequence[int], sampler: DraftSampler) -> None:
        """`depths` [R] steps for each row, all sequences at once."""
        ends = [len(self.executor.runner.held(slot)) - 1 for slot in self.slots]
        # The leading first token is in the cache, and the other sequences do not see it.
        forks = [[end, *[end - 1] * (len(d.texts) - 1)] for end, d in zip(ends, self.drafts, strict=True)]
        last = [[text[-1] for text in draft.texts] for draft in self.drafts]
        texts = [(text, depth) for d, depth in zip(self.drafts, depths, strict=True) for text in d.texts]
        columns = branch_steps(self.executor, self.slots, forks, last, sampler=sampler, depths=depths)
        for step, column in enumerate(columns):
            for (text, depth), token in zip(texts, column, strict=True):
                if step < depth:  # else the row's budget is used up
                    text.append(token)

    def replies(self) -> list[Sequences]:
        """What the rows get back."""
        return [
            Sequences(
                tuple(map(tuple, draft.texts)),
                draft.opening,
                tuple(draft.handles),
                sequences_work(draft.fed, self.lookahead, len(draft.texts), alone=self.alone),
            )
            for draft in self.drafts
        ]

    def _sampler(self, keys: Sequence[tuple[int, int]], depth: int) -> DraftSampler:
        return sampler_of(self.executor, keys, depth, self.sampling)


@handles(SettleSequences)
def settle_sequences(executor: Executor, operation: SettleSequences) -> list[Settled]:
    """Try candidates one after the other by the open positions' probabilities."""
    rows = [
        behind(row, opened.accepted)
        for row, opened in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    p = torch.stack([executor.left_open(row) for row in rows])
    chosen, tokens = try_candidates(executor, p, rows, operation.inputs, operation.sampling)
    return [
        Settled(cut((), token, row.room, executor.end_token_ids), number, ())
        for row, number, token in zip(rows, chosen, tokens, strict=True)
    ]


def try_candidates(
    executor: Executor, p: Tensor, rows: Sequence[Row], asked: Sequence[Openings], sampling: Sampling
) -> tuple[list[int], list[int]]:
    """Number of the accepted candidate of each row (NO_SEQUENCE: none), and the token emitted.

    Candidates are tried, by the target's distributions p [R, V], as the children of a tree's root
    (`duo.verify`), whose nodes are numbered as they are; none is `ROOT` there, the same number.
    """
    trees = []
    for _, tokens, handle in asked:
        others = len(tokens) - 1
        parents, sources = (ROOT,) * (1 + others), (int(Source.PRIMARY),) * (1 + others)
        trees.append(TokenTree(tokens, parents, sources, (handle, *(NO_HANDLE,) * others)))
    judge = TreeJudge(rows, trees, sampling, executor.reader)
    chosen, ends = judge.step(p, np.arange(len(rows)), [ROOT] * len(rows), 0)
    numbers: list[int] = chosen.tolist()
    return numbers, [ends[i] if i in ends else asked[i].tokens[n] for i, n in enumerate(numbers)]
