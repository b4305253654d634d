"""Laws of DuoDecoding: the draft on its own device, as long a draft as the target's step leaves time for.

Per iteration the draft continues its text while the target judges the previous draft and gives the law of
the first token of the current one (pre/post verification as in PEARL).  Times are in target steps.
c (`speed_ratio`) is a target step over a draft step, g (`lookahead`) the drafting budget in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from policies.laws.candidates import candidates_law, token_law, verify_candidates
from policies.laws.double import pearl_speedup
from policies.laws.sampling import top_tokens
from policies.laws.ssd import FloatArray, _check_probability


def iteration_time(
    lookahead: int,
    t_draft: float,
    *,
    t_verify: float = 1.0,
    t_communication: float = 0.0,
) -> float:
    """Time of an iteration: max(t_verify, g t_draft) + communication  (`duo.alg1`).

    Both devices start together on the same text and exchange probabilities at the end.

    Args:
        lookahead: g >= 0, draft steps.
        t_draft: A draft step.
        t_verify: Verification of the previous draft and one token more; 1 in the paper.
        t_communication: Exchange of the probabilities.

    Raises:
        ValueError: Outside the domain.
    """
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    _check_time(t_draft=t_draft, t_verify=t_verify, t_communication=t_communication)
    return max(t_verify, lookahead * t_draft) + t_communication


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

    Args:
        acceptance: iid acceptance a.
        lookahead: g >= 1.
        speed_ratio: c > 0.
        verify_growth: What a drafted token adds to the verification, in target steps.
        jitter_target: Coefficient of variation of a verification's time.
        jitter_draft: Coefficient of variation of the time of a whole draft.
        t_communication: Added to every iteration.

    Raises:
        ValueError: Outside the domain.
    """
    # At g = c the pace of `pearl_speedup` is 1, so it is the tokens per round.
    tokens = pearl_speedup(acceptance, lookahead, float(lookahead))
    if not 0.0 < speed_ratio < math.inf:
        raise ValueError(f"speed_ratio must be above 0, got {speed_ratio:g}")
    _check_time(
        verify_growth=verify_growth,
        jitter_target=jitter_target,
        jitter_draft=jitter_draft,
        t_communication=t_communication,
    )
    verify, draft = 1.0 + verify_growth * lookahead, lookahead / speed_ratio
    return tokens / (_mean_max(verify, draft, verify * jitter_target, draft * jitter_draft) + t_communication)


def budget_printed(speed_ratio: float) -> float:
    """Drafting budget as printed: g = c  (`duo.budget`).

    Right for whole c in the model of `duo_speedup` with constant times.  Where c is not whole the best is
    floor(c), unless the acceptance is high (for 8.4 from .951 on, for 8.6 from .904 on ceil(c)).  It is too
    long where verification grows with g (0.5 % per token, c = 24, a = .8: best 14), with jitter (coefficient
    of variation .1: best 20), or without pre-verification (best 9, 24 % lost).  c < 1 gives less than
    a token.

    Raises:
        ValueError: `speed_ratio` not above 0.
    """
    if not 0.0 < speed_ratio < math.inf:
        raise ValueError(f"speed_ratio must be above 0, got {speed_ratio:g}")
    return speed_ratio


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
    are tried until it falls.

    Args:
        acceptance: iid acceptance a.
        speed_ratio: c > 0.
        verify_growth: As in `duo_speedup`.
        jitter_target: As in `duo_speedup`.
        jitter_draft: As in `duo_speedup`.
        t_communication: As in `duo_speedup`.
        largest: Largest budget tried; the answer where nothing is ever rejected and each token helps.

    Returns:
        At least 1.

    Raises:
        ValueError: Outside the domain.
    """
    if largest < 1:
        raise ValueError(f"largest must be at least 1, got {largest}")
    best, best_rate = 1, 0.0
    for lookahead in range(1, largest + 1):
        rate = duo_speedup(
            acceptance,
            lookahead,
            speed_ratio,
            verify_growth=verify_growth,
            jitter_target=jitter_target,
            jitter_draft=jitter_draft,
            t_communication=t_communication,
        )
        if rate > best_rate * (1.0 + 1e-14):  # not by rounding
            best, best_rate = lookahead, rate
        elif rate < best_rate * (1.0 - 1e-12):
            break
    return best


@dataclass(frozen=True, slots=True)
class Sequences:
    """Drafted sequences of an iteration.

    Attributes:
        theta: Probability of the two likeliest first tokens in a row.
        first_tokens: First token of each sequence, likeliest first.
    """

    theta: float
    first_tokens: tuple[int, ...]


def draft_sequences(draft_law: ArrayLike, next_top: float) -> Sequences:
    """First tokens that open a sequence: those likelier than theta = p(1,1) p(1,2), and the likeliest.

    `duo.theta`, corrected: the strict test alone turns away even the likeliest token where the draft is sure
    of the next one (next_top = 1), so that nothing would be drafted.  The sequences share one budget.

    Args:
        draft_law: [V] draft's law at the first position.
        next_top: p(1,2), the draft's highest probability at the second position, after its likeliest first.

    Raises:
        ValueError: Outside the domain.
    """
    law = token_law("draft_law", draft_law)
    printed = draft_sequences_printed(law, next_top)
    return printed if printed.first_tokens else Sequences(printed.theta, (int(top_tokens(law, 1)[0]),))


def draft_sequences_printed(draft_law: ArrayLike, next_top: float) -> Sequences:
    """First tokens with p(r,1) > theta as printed (`duo.theta`); none where next_top = 1.

    Args:
        draft_law: [V] draft's law at the first position.
        next_top: p(1,2).

    Raises:
        ValueError: Outside the domain.
    """
    law = token_law("draft_law", draft_law)
    _check_probability(next_top=next_top)
    ranked = top_tokens(law, len(law))
    theta = float(law[ranked[0]]) * next_top
    return Sequences(theta, tuple(int(token) for token in ranked if law[token] > theta))


def first_token_law(target_law: ArrayLike, first_tokens: Sequence[int]) -> FloatArray:
    """[V] law of the token emitted after trying the first tokens of the sequences  (`duo.verify`).

    Each is accepted with its probability under what is left of the target's law, which loses it on a
    failure: exactly the target's law.  The printed form is `candidates_law_printed`.

    Args:
        target_law: [V] p.
        first_tokens: Of the sequences, in order.

    Raises:
        ValueError: Outside the domain.
    """
    return candidates_law(target_law, first_tokens)


def verify_iteration(
    pending: Sequence[int],
    target_laws: Sequence[ArrayLike],
    draft_laws: Sequence[ArrayLike],
    candidates: Sequence[int],
    uniforms: Sequence[float],
) -> tuple[tuple[int, ...], int | None]:
    """Tokens that an iteration emits, and the number of the sequence that goes on  (`duo.verify`).

    First the last iteration's tokens, by speculative sampling; if all pass, the first tokens of this
    iteration's sequences, one after another.  Where one of the pending fails, or no sequence passes, the last
    token is drawn from what is left of the target's law, and nothing is pending.

    Args:
        pending: Tokens of the last iteration that were not judged.
        target_laws: [len(pending) + 1, V] the target's law at each of them and after them.
        draft_laws: [len(pending), V] law that each of them was drawn from.
        candidates: First tokens of this iteration's sequences, distinct.
        uniforms: [len(pending) + len(candidates) + 1] coins in [0, 1), the last for the residual.

    Raises:
        ValueError: Shapes that do not fit.
    """
    size = len(pending)
    if not len(target_laws) == size + 1 == len(draft_laws) + 1:
        raise ValueError(
            f"{size} pending tokens need {size + 1} target laws and {size} draft laws, "
            f"got {len(target_laws)}, {len(draft_laws)}"
        )
    if len(uniforms) != size + len(candidates) + 1:
        raise ValueError(f"needs {size + len(candidates) + 1} coins, got {len(uniforms)}")
    for i, token in enumerate(pending):
        coins = (uniforms[i], uniforms[-1])
        emitted, passed = verify_candidates(target_laws[i], [token], coins, [draft_laws[i]])
        if passed is None:
            return (*pending[:i], emitted), None
    emitted, number = verify_candidates(target_laws[size], candidates, uniforms[size:])
    return (*pending, emitted), number


def ttft_ratio(ttft_duo: float, ttft_sd: float) -> float:
    """DuoDecoding's time to first token over vanilla speculative decoding's  (`duo.ttft`).

    Both relative to AR, or in one unit.  The paper's 1.35 and 1.6 times AR make .84, printed 83 %.

    Args:
        ttft_duo: Of DuoDecoding.
        ttft_sd: Of vanilla speculative decoding.

    Raises:
        ValueError: A time that is not above 0.
    """
    for name, value in (("ttft_duo", ttft_duo), ("ttft_sd", ttft_sd)):
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {value:g}")
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


def _check_time(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0, got {value:g}")
