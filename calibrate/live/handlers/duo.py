"""DuoDecoding's operations (`policies.duo`): pending blocks, drafted sequences, and their first tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import Row, proposing, rows_of
from calibrate.live.engine.sampling import (
    ACCEPTED,
    BONUS,
    DraftSampler,
    draw,
    law,
    one_hot,
    residual,
    top_tokens,
)
from calibrate.live.engine.verification import agreement, cut
from calibrate.live.handlers.chains import sampler_of, verify_chains
from policies.duo import (
    NO_SEQUENCE,
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
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.values import NO_LAW, IntArray


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
    drafting = _Drafting(executor, operation)
    drafts = list(map(_Draft, rows_of(operation.view), operation.inputs))
    first = drafting.open(drafts)
    if drafting.lookahead > 1:
        second = drafting.chain("draft", drafts, [(draft.leading,) for draft in drafts])
        if not drafting.alone:
            drafting.branch(drafts, first, second)
        drafting.grow(drafts, first, second)
    replies = [drafting.reply(draft) for draft in drafts]
    executor.audit_fed(sum(tokens for reply in replies for _, tokens in reply.work), "DraftSequences")
    return replies


@dataclass
class _Draft:
    """What is drafted for one row.

    Attributes:
        row: Where it stands.
        block: Drafted tokens, which the sequences follow.
        fed: tuple[int, ...] of the first step.
        opening: Handle of the law of the leading first token.
        texts: The sequences.
        laws: Handles of the laws of each sequence's tokens after its first.
    """

    row: Row
    block: tuple[int, ...]
    fed: int = 0
    opening: int = NO_LAW
    texts: list[list[int]] = field(default_factory=list)
    laws: list[int] = field(default_factory=list)

    @property
    def leading(self) -> int:
        """First token of the leading sequence."""
        return self.texts[0][0]

    @property
    def position(self) -> int:
        """Position of the first token past the block."""
        return self.row.position + len(self.block)


class _Drafting:
    """The steps of one operation.

    Args:
        executor: Where.
        operation: What is asked for.

    Attributes:
        lookahead: K.
        wanted: Sequences; 0: by the threshold.
        alone: Whether no row ever has more than one; then it stays in the cache, as a chain.
    """

    def __init__(self, executor: Executor, operation: DraftSequences) -> None:
        self.executor = executor
        self.runner = executor.runner
        self.sampling = operation.sampling
        self.lookahead = operation.lookahead
        self.wanted = operation.sequences
        self.alone = most_sequences(self.lookahead, self.wanted) == 1

    def open(self, drafts: Sequence[_Draft]) -> Tensor:
        """Feed what is unseen and choose each leading first token; [R, V] logits it was chosen by."""
        feeds = [self._unseen(draft) for draft in drafts]
        first = self.chain("feed", drafts, feeds)
        sampler = self._sampler([(draft.row.request, draft.position) for draft in drafts], 1)
        for draft, token in zip(drafts, sampler.choose(first).tolist(), strict=True):
            draft.texts = [[token]]
        for draft, handle, feed in zip(drafts, sampler.seal(), feeds, strict=True):
            draft.opening, draft.laws, draft.fed = handle, [NO_LAW], len(feed)
        return first

    def branch(self, drafts: Sequence[_Draft], first: Tensor, second: Tensor) -> None:
        """Open the other sequences.

        Args:
            drafts: [R] rows with their leading first token.
            first: [R, V] logits at the first position.
            second: [R, V] logits after the leading first token.
        """
        most = most_sequences(self.lookahead, self.wanted)
        ranked = top_tokens(first, most)
        # Of greedy decoding the law is one-hot; what the draft believes is its softmax.
        belief = Sampling(temperature=1.0) if self.sampling.greedy else self.sampling
        now, then = law(first, belief), law(second, belief)
        for i, draft in enumerate(drafts):
            theta = None if self.wanted else float(now[i, draft.leading] * then[i].max())
            masses = now[i, ranked[i]].tolist()
            opened = openings(ranked[i], masses, draft.leading, theta, most)
            draft.texts += [[token] for token in opened[1:]]

    def grow(self, drafts: Sequence[_Draft], first: Tensor, second: Tensor) -> None:
        """The leading second tokens, then a token for every sequence per step until the budgets are used up.

        Every sequence draws at each step, so that its laws lie one after another.  The first draw of those
        that were just opened is of their first tokens, which are chosen: it is not looked at, and their laws
        begin with the next.
        """
        logits, keys = [], []
        for i, draft in enumerate(drafts):
            logits += [second[i], *[first[i]] * (len(draft.texts) - 1)]
            own = [draft.position + 1, *[draft.position] * (len(draft.texts) - 1)]
            keys += [(draft.row.request, position) for position in own]
        lengths = [sequence_lengths(self.lookahead, len(draft.texts))[0] for draft in drafts]
        sampler = self._sampler(keys, max(lengths) - 1)
        column = iter(sampler.choose(torch.stack(logits)).tolist())
        for draft in drafts:
            draft.texts[0].append(next(column))
            for _ in draft.texts[1:]:
                next(column)
        if self.alone:
            for _ in range(max(lengths) - 2):
                logits_now = self.chain("draft", drafts, [(draft.texts[0][-1],) for draft in drafts])
                for draft, token in zip(drafts, sampler.choose(logits_now).tolist(), strict=True):
                    draft.texts[0].append(token)
        elif max(lengths) > 2:
            self._grow_tree(drafts, [length - 2 for length in lengths], sampler)
        handles = iter(sampler.seal())
        for draft in drafts:
            own_handles = [next(handles) for _ in draft.texts]
            draft.laws = [h + (number > 0) if h != NO_LAW else h for number, h in enumerate(own_handles)]

    def _grow_tree(self, drafts: Sequence[_Draft], depths: Sequence[int], sampler: DraftSampler) -> None:
        """`depths` [R] steps for each row, all sequences at once."""
        slots = [draft.row.slot for draft in drafts]
        ends = [len(self.runner.held(slot)) - 1 for slot in slots]
        # The leading first token is in the cache, and the other sequences do not see it.
        forks = [[end, *[end - 1] * (len(d.texts) - 1)] for end, d in zip(ends, drafts, strict=True)]
        tree = self.runner.open_tree(slots, forks, max(depths))
        width = max(len(draft.texts) for draft in drafts)
        counts = np.array([len(draft.texts) for draft in drafts])
        real = torch.from_numpy(np.arange(width) < counts[:, None]).to(self.runner.device)
        for step in range(max(depths)):
            # A row whose budget is used up is padding from here on.
            going = [depth > step for depth in depths]
            tree.counts = tuple(len(d.texts) if on else 0 for d, on in zip(drafts, going, strict=True))
            start, fed = time.perf_counter(), self.runner.fed
            logits = self.runner.tree_forward(tree, self._last_tokens(drafts, width))[real]
            column = iter(sampler.choose(logits).tolist())
            self.executor.stamp("tree", start, fed, [range(count) for count in tree.counts])
            for draft, on in zip(drafts, going, strict=True):
                for text in draft.texts:
                    token = next(column)
                    if on:
                        text.append(token)
        self.runner.close_tree(tree)

    def _last_tokens(self, drafts: Sequence[_Draft], width: int) -> Tensor:
        """[R, N] last token of every sequence; 0 where a row has fewer."""
        last = [[text[-1] for text in draft.texts] for draft in drafts]
        padded = [[*row, *[0] * (width - len(row))] for row in last]
        return torch.tensor(padded, dtype=torch.long, device=self.runner.device)

    def chain(self, name: str, drafts: Sequence[_Draft], chains: Sequence[Sequence[int]]) -> Tensor:
        """One stamped forward; [R, V] logits after each chain."""
        start, fed = time.perf_counter(), self.runner.fed
        logits = self.runner.forward([draft.row.slot for draft in drafts], chains, last_only=True)[:, 0]
        logits[0, 0].item()  # the stamp is of done work, also where kernels run asynchronously
        self.executor.stamp(name, start, fed, chains)
        return logits

    def reply(self, draft: _Draft) -> Sequences:
        """What a row gets back."""
        return Sequences(
            tuple(map(tuple, draft.texts)),
            draft.opening,
            tuple(draft.laws),
            sequences_work(draft.fed, self.lookahead, len(draft.texts), alone=self.alone),
        )

    def _unseen(self, draft: _Draft) -> tuple[int, ...]:
        """What the cache lacks of the committed text and the block; rolls back what is not of them."""
        row = draft.row
        keep = agreement(self.runner.held(row.slot), row.context, row.tail, draft.block)
        self.runner.rollback(row.slot, keep)
        return (*row.tail, *draft.block)[keep - (row.context - len(row.tail)) :]

    def _sampler(self, keys: Sequence[tuple[int, int]], depth: int) -> DraftSampler:
        return sampler_of(self.executor, keys, depth, self.sampling)


@handles(SettleSequences)
def settle_sequences(executor: Executor, operation: SettleSequences) -> list[Settled]:
    """Try candidates one after the other by the open positions' probabilities."""
    rows = [
        row._replace(position=row.position + opened.accepted, room=row.room - opened.accepted)
        for row, opened in zip(rows_of(operation.view), operation.inputs, strict=True)
    ]
    p = executor.open_laws(rows)
    chosen, tokens = try_candidates(executor, p, rows, operation.inputs, operation.sampling.seed)
    return [
        Settled(cut((), token, row.room, executor.end_token_ids), number, ())
        for row, number, token in zip(rows, chosen, tokens, strict=True)
    ]


def try_candidates(
    executor: Executor, p: Tensor, rows: Sequence[Row], asked: Sequence[Openings], seed: int
) -> tuple[list[int], list[int]]:
    """Number of the accepted candidate of each row (NO_SEQUENCE: none), and the token emitted.

    A candidate is accepted with min(1, p / sigma), sigma one-hot for a chosen one; a failure leaves
    (p - sigma)+, normalised, to the next (`duo.verify`, recursive rejection sampling).

    Args:
        executor: Knows the laws of drawn candidates.
        p: [R, V] the target's laws.
        rows: [R] the open positions.
        asked: [R] candidates.
        seed: Of the run.
    """
    requests = np.array([row.request for row in rows], dtype=np.int64)
    positions = np.array([row.position for row in rows], dtype=np.int64)
    numbers = np.full(len(rows), NO_SEQUENCE, dtype=np.int64)
    emitted = np.zeros(len(rows), dtype=np.int64)
    for number in range(max(len(each.tokens) for each in asked)):
        trying = np.array(
            [i for i, each in enumerate(asked) if numbers[i] == NO_SEQUENCE and number < len(each.tokens)],
            dtype=np.int64,
        )
        if not len(trying):
            break
        candidates = np.array([asked[i].tokens[number] for i in trying], dtype=np.int64)
        handles = np.array([asked[i].law if number == 0 else NO_LAW for i in trying], dtype=np.int64)
        keys = (requests[trying], positions[trying])
        sigma = _laws_of(executor, handles, candidates, keys, p.shape[-1])
        own = torch.from_numpy(trying).to(p.device)
        left = p[own]
        at = np.arange(len(trying))
        under_p = left.cpu().numpy()[at, candidates]
        uniforms = keyed_uniforms(seed, ACCEPTED, *keys, number)
        passed = uniforms * sigma[at, candidates] < under_p
        numbers[trying[passed]], emitted[trying[passed]] = number, candidates[passed]
        rest = residual(left, torch.from_numpy(sigma).to(p.device))
        p = p.index_copy(0, own, rest / rest.sum(dim=-1, keepdim=True))
    drawn = draw(p, keyed_uniforms(seed, BONUS, requests, positions)).cpu().numpy()
    tokens: list[int] = np.where(numbers == NO_SEQUENCE, drawn, emitted).tolist()
    return numbers.tolist(), tokens


def _laws_of(
    executor: Executor,
    handles: IntArray,
    candidates: IntArray,
    keys: tuple[IntArray, IntArray],
    vocabulary: int,
) -> FloatArray:
    """[n, V] sigma of each candidate."""
    sigma: FloatArray = one_hot(torch.from_numpy(candidates), vocabulary).numpy()
    drawn = np.flatnonzero(handles != NO_LAW)
    if len(drawn):
        requests, positions = (key[drawn] for key in keys)
        # Asked for its own sake: it raises if a law is another token's.
        executor.reader.masses(handles[drawn], requests, positions, candidates[drawn], vocabulary)
        sigma[drawn] = executor.reader.laws(handles[drawn], vocabulary)
    return sigma
