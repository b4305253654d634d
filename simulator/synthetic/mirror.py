"""Mirror-SD in the world of the papers' laws: coins in place of tokens.

Acceptance is iid, and a candidate set of kappa tokens holds the target's token with the probability that the
hit curve gives a fan-out of kappa; the drafted token counts as none of them, since it needs no rollout.  With
candidates at the first position alone only a correction there can be among them.  Tokens have one made-up id,
so that what is prepared for is what matches.

A stream's proposal is right with one stated probability, independently of all else; a pass of a streaming
draft is a call of the model like any other, and the streams in it cost nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

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
    passes,
)
from policies.operation import Prespeculate, VerdictReply
from policies.sampling import keyed_uniforms
from policies.values import NO_HANDLE, UNKNOWN, Drafted, RowVerdict
from simulator.synthetic import chains_of, rows_of, synthesises, verified
from simulator.tokens.model import TokenModel

TOKEN = 0
"""The only token there is."""
COIN = "stream-proposal"
"""Stream of randomness (`policies.sampling`) that decides whether a proposal is right."""


@synthesises(EarlyVerify)
def verify_early(operation: EarlyVerify, tokens: TokenModel) -> list[VerdictReply]:
    """Replies of `EarlyVerify`."""
    lengths = [len(Drafted._make(ask).tokens) for ask in operation.inputs]
    verdict = verified(operation, lengths, tokens)
    share = float(Fraction(operation.exit))
    replies = []
    for slot, length in zip(operation.view.slots, lengths, strict=True):
        accepted, emitted = verdict.accepted[slot], verdict.emitted[slot]
        bonus = TOKEN if emitted > accepted else UNKNOWN
        row = RowVerdict(accepted, (TOKEN,) * emitted, slot in verdict.ended, bonus)
        work = ((f"early:{share:g}", 1 + length), ("exit", 0), (f"late:{1.0 - share:g}", 0))
        replies.append(VerdictReply(row, work))
    return replies


@synthesises(EarlyVerify, early=True)
def candidates(operation: EarlyVerify, tokens: TokenModel) -> list[Candidates]:
    """Early results of `EarlyVerify`: that there are candidates, not which."""
    return [Candidates(())] * len(operation.inputs)


@synthesises(Rollout)
def roll_out(operation: Rollout, tokens: TokenModel) -> list[Rolled]:
    """Replies of `Rollout`: the branch that the target will take, if there is one, and the work of all."""
    lengths = [len(Drafted._make(ask[0]).tokens) for ask in operation.inputs]
    verdict = verified(operation, lengths, tokens)
    later = 0 if operation.candidates == "first" else operation.kappa
    prepared = Prespeculate(
        operation.view,
        chains_of(operation, lengths),
        operation.lookahead,
        (operation.kappa, *[later] * max(lengths)),
        sampling=operation.sampling,
    )
    hits = tokens.hits(operation.view, prepared, verdict)
    replies = []
    for slot, length in zip(operation.view.slots, lengths, strict=True):
        branch = Branch(verdict.accepted[slot], (TOKEN,) * (1 + operation.lookahead))
        positions = 1 if operation.candidates == "first" else 1 + length
        work = (("glue", 1 + length), *[("tree", positions * operation.kappa)] * operation.lookahead)
        replies.append(Rolled((branch,) if slot in hits else (), work))
    return replies


@synthesises(StreamDraft)
def draft_by_streams(operation: StreamDraft, tokens: TokenModel) -> list[StreamWindow]:
    """Replies of `StreamDraft`."""
    replies = []
    for _, request, position, _, _ in rows_of(operation):
        emitted = _emitted(operation, request, position, branch=0)
        counts = _passes([emitted], operation.lookahead, operation.streams)
        window = (TOKEN,) * operation.lookahead
        replies.append(StreamWindow(window, NO_HANDLE, emitted, passes("draft", 0.0, counts)))
    return replies


@synthesises(StreamRollout)
def roll_out_by_streams(operation: StreamRollout, tokens: TokenModel) -> list[StreamRolled]:
    """Replies of `StreamRollout`: as `roll_out`, in fewer steps."""
    replies = []
    rolled = roll_out(operation, tokens)
    for (_, request, position, _, ask), found in zip(rows_of(operation), rolled, strict=True):
        glue = 1 + len(Drafted._make(ask[0]).tokens)
        branches = operation.kappa * (1 if operation.candidates == "first" else glue)
        emitted = tuple(_emitted(operation, request, position, branch) for branch in range(branches))
        counts = _passes(emitted, operation.lookahead, operation.streams)
        work = (("glue", glue), *passes("tree", 0.0, counts))
        replies.append(StreamRolled(found.branches, emitted, work))
    return replies


def _emitted(
    operation: StreamDraft | StreamRollout, request: int, position: int, branch: int
) -> tuple[int, ...]:
    """Tokens that each pass writes: one, and as many proposals as are right before the first wrong one.

    A proposal's coin belongs to its branch and place, so that it is tossed once however often it is proposed;
    the first pass has no proposals.
    """
    places = np.arange(operation.lookahead)
    uniforms = keyed_uniforms(operation.sampling.seed, COIN, request, position, branch, places)
    right: list[bool] = (uniforms < operation.acceptance).tolist()
    found, done = [1], 1
    while done < operation.lookahead:
        most = min(operation.streams, operation.lookahead - done - 1)
        run = next((i for i in range(most) if not right[done + i]), most)
        found.append(run + 1)
        done += run + 1
    return tuple(found)


def _passes(emitted: Sequence[Sequence[int]], lookahead: int, streams: int) -> list[tuple[int, int]]:
    """(tokens, streams) of each pass over texts that wrote so many tokens in each of their passes."""
    counts = [0] * max(map(len, emitted))
    for own in emitted:
        done = 0
        for i, written in enumerate(own):
            proposed = min(streams, lookahead - done - 1) if i else 0
            counts[i] += 1 + proposed
            done += written
    return [(count, 0) for count in counts]
