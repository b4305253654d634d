"""DuoDecoding, and SpecBranch whose rounds are the same, by coins: the law's world.

Ids are ranks: the target's token at a position is called 0 if the coin accepts the draft's first choice
there, else r if it is the draft's r-th choice of the others (the hit curve's need).  A drafted sequence
begins with its own number, so that the policy finds the sequence that goes on as it does with real ids.

Coins know no doubt that differs from token to token, so the threshold sees their means (`mean_sequences`),
and the number of sequences is the same in every round.
"""

from __future__ import annotations

from policies.duo import (
    NO_SEQUENCE,
    DraftSequences,
    Openings,
    Sequences,
    Settled,
    SettleSequences,
    VerifyPending,
    mean_sequences,
    most_sequences,
    sequence_lengths,
    sequences_work,
)
from policies.operation import VerdictReply
from policies.specbranch import SURE, Branches, DraftBranches, branch_count
from policies.values import NO_HANDLE, UNKNOWN, Drafted, RowVerdict
from simulator.synthetic import rows_of, synthesises, verified
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER


@synthesises(VerifyPending)
def verify_pending(operation: VerifyPending, tokens: TokenModel) -> list[VerdictReply]:
    """Coins for `VerifyPending`."""
    lengths = [len(Drafted._make(ask).tokens) for ask in operation.inputs]
    verdict = verified(operation, lengths, tokens, leave_open=operation.leave_open)
    replies = []
    for slot, request, position, _, ask in rows_of(operation):
        block = Drafted._make(ask).tokens
        accepted, emitted = verdict.accepted[slot], verdict.emitted[slot]
        bonus = _rank(tokens, request, position + accepted) if emitted > accepted else UNKNOWN
        ids = (*block[:accepted], bonus)[:emitted]
        row = RowVerdict(accepted, ids, slot in verdict.ended, bonus)
        replies.append(VerdictReply(row, (("verify", 1 + len(block)),)))
    return replies


@synthesises(DraftSequences)
def draft_sequences(operation: DraftSequences, tokens: TokenModel) -> list[Sequences]:
    """Coins for `DraftSequences`."""
    lookahead, wanted = operation.lookahead, operation.sequences
    most = most_sequences(lookahead, wanted)
    count = most if wanted else _mean_count(tokens, most)
    lengths = sequence_lengths(lookahead, count)
    ids = tuple((number, *((0,) * (length - 1))) for number, length in enumerate(lengths))
    alone = most == 1
    return [
        Sequences(
            ids,
            NO_HANDLE,
            (NO_HANDLE,) * count,
            # With one sequence all but the last token is in the draft's cache, else the block is fed again.
            sequences_work(1 if alone else max(1, len(block)), lookahead, count, alone=alone),
        )
        for block in operation.inputs
    ]


@synthesises(SettleSequences)
def settle_sequences(operation: SettleSequences, tokens: TokenModel) -> list[Settled]:
    """Coins for `SettleSequences`."""
    replies = []
    for _, request, position, room, ask in rows_of(operation):
        wanted = Openings._make(ask)
        rank = _rank(tokens, request, position + wanted.accepted)
        number = rank if rank < len(wanted.tokens) else NO_SEQUENCE
        verdict = RowVerdict(0, (rank,), room == wanted.accepted + 1, rank)
        replies.append(Settled(verdict, number, ()))
    return replies


def _mean_count(tokens: TokenModel, most: int) -> int:
    if tokens.power_law is None:
        return 1
    acceptance = float((tokens.run > 0).mean())
    return mean_sequences(acceptance, tokens.power_law.exponent, tokens.power_law.scale, most)


def _rank(tokens: TokenModel, request: int, position: int) -> int:
    """0 if the draft's first choice is the target's token, else its number among the others."""
    at = int(tokens.starts[request]) + position
    return 0 if tokens.run[at] > 0 else int(min(tokens.need_rejected[at], NEVER))


@synthesises(DraftBranches)
def draft_branches(operation: DraftBranches, tokens: TokenModel) -> list[Branches]:
    """Coins for `DraftBranches`: the draft is as sure of every token as it is right on average."""
    acceptance, depth = float((tokens.run > 0).mean()), operation.lookahead - 1
    count = branch_count(operation.branches, acceptance)
    return [
        Branches(
            tuple((number, *(0,) * depth) for number in range(count)),
            NO_HANDLE,
            (NO_HANDLE,) * count,
            (("feed", max(1, len(block))), *(("tree", count),) * depth),
            ((round(SURE * acceptance),) * depth,) * count,
        )
        for block in operation.inputs
    ]
