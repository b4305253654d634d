"""Laws of DuoDecoding: the draft on its own device, as long a draft as the target's step leaves time for.

Per iteration the draft continues its text while the target judges the previous draft and gives the
distribution of the first token of the current one (pre/post verification as in PEARL).  Times are in target
steps. c (`speed_ratio`) is a target step over a draft step, g (`lookahead`) the drafting budget in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from policies.laws.double import pearl_speedup
from policies.laws.law import FloatArray, law, peak
from policies.laws.sampling import candidates_probs, token_probs, top_tokens, verify_candidates


@law(t_verify="at least 0")
def iteration_time(
    lookahead: int, t_draft: float, *, t_verify: float = 1.0, t_communication: float = 0.0
) -> float:
    """Time of an iteration: max(t_verify, g t_draft) + communication  (`duo.alg1`).

    Both devices start together on the same text and exchange probabilities at the end.  `t_verify` is of the
    previous draft and one token more; 1 in the paper.
    """
    return max(t_verify, lookahead * t_draft) + t_communication


@law(lookahead="at least 1")
def duo_speedup(
    acceptance: float,
    lookahead: int,
    speed_ratio: float,
    *,
    verify_growth: float = 0.0,
    jitter_target: float = 0.0,
    jitter_draft: float = 0.0,
    t_communication: float = 0.0,
) -> float:
    """Speedup over AR of one drafted sequence: tokens per iteration over its mean time  (`duo.budget`).

    Tokens per iteration: (1 - a^g)/((1 - a)(1 - a^g + a)), g at a = 1 (`pearl_speedup` at g = c).  The
    iteration lasts E max(V, D), where verification V has mean 1 + growth g and drafting D mean g/c, both
    normal, independent, with the given coefficients of variation; and communication.
    """
    # At g = c the rate of `pearl_speedup` is 1, so it is the tokens per round.
    tokens = pearl_speedup(acceptance, lookahead, float(lookahead))
    verify, draft = 1.0 + verify_growth * lookahead, lookahead / speed_ratio
    return tokens / (_mean_max(verify, draft, verify * jitter_target, draft * jitter_draft) + t_communication)


@law()
def budget_printed(speed_ratio: float) -> float:
    """Drafting budget as printed: g = c  (`duo.budget`).

    Right for whole c in the model of `duo_speedup` with constant times.  Where c is not whole the best is
    floor(c), unless the acceptance is high (for 8.4 from .951 on, for 8.6 from .904 on ceil(c)).  It is too
    long where verification grows with g (0.5 % per token, c = 24, a = .8: best 14), with jitter (coefficient
    of variation .1: best 20), or without pre-verification (best 9, 24 % lost).  c < 1 gives less than
    a token.
    """
    return speed_ratio


@law()
def best_budget(
    acceptance: float,
    speed_ratio: float,
    *,
    verify_growth: float = 0.0,
    jitter_target: float = 0.0,
    jitter_draft: float = 0.0,
    t_communication: float = 0.0,
    largest: int = 4096,
) -> int:
    """Drafting budget of the highest `duo_speedup`, the smallest of equals (`duo.budget`, corrected).

    Tokens per iteration are concave in g and its mean time is convex, so that the rate has one peak: budgets
    are tried until it falls, from 1 to `largest`, the answer where nothing is ever rejected and each token
    helps.
    """

    def rate(lookahead: int) -> float:
        return duo_speedup(
            acceptance,
            lookahead,
            speed_ratio,
            verify_growth=verify_growth,
            jitter_target=jitter_target,
            jitter_draft=jitter_draft,
            t_communication=t_communication,
        )

    return peak(rate, range(1, largest + 1))


@dataclass(frozen=True, slots=True)
class Sequences:
    """Drafted sequences of an iteration.

    Attributes:
        theta: Probability of the two likeliest first tokens in a row.
        first_tokens: First token of each sequence, likeliest first.
    """

    theta: float
    first_tokens: tuple[int, ...]


def draft_sequences(draft_probs: ArrayLike, next_top: float) -> Sequences:
    """First tokens that open a sequence: those likelier than theta = p(1,1) p(1,2), and the likeliest.

    `duo.theta`, corrected: the strict test alone turns away even the likeliest token where the draft is sure
    of the next one (next_top = 1), so that nothing would be drafted.  The sequences share one budget.
    """
    printed = draft_sequences_printed(draft_probs, next_top)
    return (
        printed if printed.first_tokens else Sequences(printed.theta, (int(top_tokens(draft_probs, 1)[0]),))
    )


@law()
def draft_sequences_printed(draft_probs: ArrayLike, next_top: float) -> Sequences:
    """First tokens with p(r,1) > theta as printed (`duo.theta`); none where next_top = 1."""
    probs = token_probs("draft_probs", draft_probs)
    ranked = top_tokens(probs, len(probs))
    theta = float(probs[ranked[0]]) * next_top
    return Sequences(theta, tuple(int(token) for token in ranked if probs[token] > theta))


def first_token_probs(target_probs: ArrayLike, first_tokens: Sequence[int]) -> FloatArray:
    """[V] distribution of the token emitted after trying the first tokens of the sequences  (`duo.verify`).

    Each is accepted with its probability under what is left of the target's distribution, which loses it on a
    failure: exactly the target's distribution.  The printed form is `candidates_probs_printed`.
    """
    return candidates_probs(target_probs, first_tokens)


def verify_iteration(
    pending: Sequence[int],
    target_rows: Sequence[ArrayLike],
    draft_rows: Sequence[ArrayLike],
    candidates: Sequence[int],
    uniforms: Sequence[float],
) -> tuple[tuple[int, ...], int | None]:
    """Tokens that an iteration emits, and the number of the sequence that goes on  (`duo.verify`).

    First the last iteration's tokens, by speculative sampling; if all pass, the first tokens of this
    iteration's sequences, one after another.  Where one of the pending fails, or no sequence passes, the last
    token is drawn from what is left of the target's distribution, and nothing is pending.

    Args:
        pending: [P] tokens of the last iteration that were not judged.
        target_rows: [P + 1, V] the target's distribution at each of them and after them.
        draft_rows: [P, V] distribution that each of them was drawn from.
        candidates: [C] first tokens of this iteration's sequences, distinct.
        uniforms: [P + C + 1] coins in [0, 1), the last for the residual.

    Raises:
        ValueError: Shapes that do not fit.
    """
    size = len(pending)
    if not len(target_rows) == size + 1 == len(draft_rows) + 1:
        raise ValueError(
            f"{size} pending tokens need {size + 1} target rows and {size} draft rows, "
            f"got {len(target_rows)}, {len(draft_rows)}"
        )
    if len(uniforms) != size + len(candidates) + 1:
        raise ValueError(f"needs {size + len(candidates) + 1} coins, got {len(uniforms)}")
    for i, token in enumerate(pending):
        coins = (uniforms[i], uniforms[-1])
        emitted, passed = verify_candidates(target_rows[i], [token], coins, [draft_rows[i]])
        if passed is None:
            return (*pending[:i], emitted), None
    emitted, number = verify_candidates(target_rows[size], candidates, uniforms[size:])
    return (*pending, emitted), number


@law()
def ttft_ratio(ttft_duo: float, ttft_sd: float) -> float:
    """DuoDecoding's time to first token over vanilla speculative decoding's  (`duo.ttft`).

    Both relative to AR, or in one unit.  The paper's 1.35 and 1.6 times AR make .84, printed 83 %.
    """
    return ttft_duo / ttft_sd


def _mean_max(mean: float, other: float, deviation: float, other_deviation: float) -> float:
    """E max of two independent normal times (Clark 1961); the larger mean without jitter."""
    spread = math.hypot(deviation, other_deviation)
    if spread == 0.0:
        return max(mean, other)
    z = (mean - other) / spread
    below = 0.5 * math.erfc(-z / math.sqrt(2.0))
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return mean * below + other * (1.0 - below) + spread * density
