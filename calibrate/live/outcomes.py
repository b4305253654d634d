"""Pure decisions about tokens: what a verification emits, and which outcomes are prepared for.

No torch here, so that each rule can be read and tested on lists of integers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from calibrate.live.errors import AuditError
from policies.values import UNKNOWN, Outcome, RowVerdict


def judge(drafted: Sequence[int], best: Sequence[int], room: int, end_tokens: Collection[int]) -> RowVerdict:
    """Greedy verification of a chain, cut at the first end token and at the limit.

    Args:
        drafted: [m] tokens under verification.
        best: [m + 1] the target's argmax after the committed text and after each drafted token.
        room: Tokens that may still be emitted, at least 1.
        end_tokens: Ids that end a request.
    """
    if len(best) != len(drafted) + 1:
        raise AuditError(f"{len(drafted)} drafted tokens, {len(best)} judgements")
    agreed = 0
    while agreed < len(drafted) and drafted[agreed] == best[agreed]:
        agreed += 1
    return cut(drafted[:agreed], best[agreed], room, end_tokens)


def cut(accepted: Sequence[int], bonus: int | None, room: int, end_tokens: Collection[int]) -> RowVerdict:
    """What a row emits, cut at the first end token and at the limit.

    Args:
        accepted: The accepted tokens.
        bonus: The bonus token; None if it is left open, and then the row emits the accepted ones alone.
        room: Tokens that may still be emitted, at least 1.
        end_tokens: Ids that end a request.
    """
    if room < 1:
        raise AuditError(f"a row without room for a token (room {room}) is verified")
    whole = tuple(accepted) if bonus is None else (*accepted, bonus)
    emitted = whole[:room]
    ended = len(emitted) == room
    for i, token in enumerate(emitted):
        if token in end_tokens:
            emitted, ended = emitted[: i + 1], True
            break
    return RowVerdict(
        accepted=min(len(accepted), len(emitted)),
        emitted=emitted,
        ended=ended,
        bonus=UNKNOWN if bonus is None or len(emitted) < len(whole) else bonus,
    )


def prepared_outcomes(
    ranked: Sequence[Sequence[int]],
    drafted: Sequence[int],
    fanout: Sequence[int],
    *,
    keep_rejected: bool = False,
    part: tuple[int, int] = (0, 1),
) -> list[Outcome]:
    """Outcomes to prepare for: after k accepted tokens the best `fanout[k]`, the rejected one left out.

    Args:
        ranked: [m + 1] the draft's candidates after k accepted tokens, best first; at least
            `fanout[k] + 1` of them where k < m and the vocabulary has as many.
        drafted: [m] tokens under verification; after k < m accepted ones, `drafted[k]` was rejected.
        fanout: F_k for k = 0 ... m at least.
        keep_rejected: Do not leave the rejected one out.
        part: (i, n): of all these every n-th from the i-th on.
    """
    if len(ranked) != len(drafted) + 1 or len(fanout) < len(ranked):
        raise AuditError(f"{len(drafted)} drafted, {len(ranked)} ranked positions, {len(fanout)} fan-outs")
    outcomes: list[Outcome] = []
    for k, candidates in enumerate(ranked):
        rejected = drafted[k] if k < len(drafted) and not keep_rejected else None
        others = [token for token in candidates if token != rejected]
        outcomes += [(k, token) for token in others[: fanout[k]]]
    first, every = part
    return outcomes[first::every]


def agreement(held: Sequence[int], context: int, tail: tuple[int, ...], ahead: tuple[int, ...] = ()) -> int:
    """Length of the longest prefix of `held` that agrees with the committed text and `ahead`.

    The worker knows the end of the committed text only; what lies before it was fed from verified
    tokens.  At least one token is always left to feed, since its logits are what is wanted.

    Args:
        held: Token ids whose KV is in the cache.
        context: Length of the committed text.
        tail: Its last one or two tokens.
        ahead: Tokens that follow it.

    Raises:
        AuditError: The cache misses tokens from before the tail.
    """
    start = context - len(tail)
    if not tail or start < 0 or len(held) < start:
        raise AuditError(f"cache of {len(held)} tokens cannot continue a text of {context} ending in {tail}")
    keep = start
    for token in (*tail, *ahead)[:-1]:
        if keep == len(held) or held[keep] != token:
            break
        keep += 1
    return keep
