"""Laws of DOUBLE and PEARL: rates of pipelines that draft the next block while they verify this one.

g (`lookahead`) is the drafted tokens per block, C (`speed_ratio`) the target step over the draft step.
DOUBLE's other statements: tokens and rounds of a run in `policies.laws.runs`, drafting by retrieval in
`policies.laws.retrieval`, what the target's guidance commits in `policies.laws.guidance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from policies.laws.ssd import _check_probability, expected_tokens


def pearl_speedup(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """Speedup over AR of a pre/post-verifying pipeline: the exact rate S_PEARL under `double.thm3`.

    (1 - a^g) / ((1 - a)(1 - a^g + a)) * C / max(g, C), and g C / max(g, C) at a = 1.  The printed
    S_PSD is another form, off by +19 % to -50 % for such a pipeline.

    Args:
        acceptance: iid acceptance a.
        lookahead: g, drafted tokens per block.
        speed_ratio: C, target step / draft step.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(acceptance, lookahead, speed_ratio)
    pace = speed_ratio / max(float(lookahead), speed_ratio)
    if acceptance == 1.0:
        return lookahead * pace
    full = acceptance**lookahead
    return (1.0 - full) / ((1.0 - acceptance) * (1.0 - full + acceptance)) * pace


def plain_pipeline_speedup(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """Speedup over AR of a pipeline without pre-verification: S_plain under `double.thm3`.

    Between two rejections it emits 1/(1 - a) tokens in k = 1/(1 - a^g) rounds of max(g, C) draft steps
    and one bubble, in which a block is drafted while the target waits:
    1/(1 - a) / (g/C + k max(g, C)/C); g C / max(g, C) at a = 1.

    Args:
        acceptance: iid acceptance a.
        lookahead: g, drafted tokens per block.
        speed_ratio: C, target step / draft step.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(acceptance, lookahead, speed_ratio)
    round_time = max(float(lookahead), speed_ratio) / speed_ratio
    if acceptance == 1.0:
        return lookahead / round_time
    rounds = 1.0 / (1.0 - acceptance**lookahead)
    return 1.0 / (1.0 - acceptance) / (lookahead / speed_ratio + rounds * round_time)


def psd_speedup_printed(acceptance: float, lookahead: int, speed_ratio: float) -> float:
    """S_PSD as printed (`double.thm3`), for comparison only: E[L_p] C / (k g + C).

    k = 1/(1 - a^g) rounds and E[L_p] = (k - 1) g + E(a, g) tokens per run.  It overcounts tokens (the
    last round of a run is conditioned on its rejection) and, for g < C, forgets that a round lasts at
    least a target step.  Use `plain_pipeline_speedup` or `pearl_speedup`.

    Args:
        acceptance: iid acceptance a.
        lookahead: g, drafted tokens per block.
        speed_ratio: C, target step / draft step.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(acceptance, lookahead, speed_ratio)
    if acceptance == 1.0:
        return speed_ratio
    rounds = 1.0 / (1.0 - acceptance**lookahead)
    tokens = (rounds - 1.0) * lookahead + expected_tokens(acceptance, lookahead)
    return tokens * speed_ratio / (rounds * lookahead + speed_ratio)


def psd_ceiling(speed_ratio: float) -> float:
    """Ceiling C of the speedup of a draft/verify pipeline without retrieval (`double.thm3`).

    However good the draft is, a token costs a draft step.  It binds `pearl_speedup` and
    `plain_pipeline_speedup` everywhere; `psd_speedup_printed` exceeds it for C < 1.

    Raises:
        ValueError: `speed_ratio` not above 0.
    """
    if not 0.0 < speed_ratio < math.inf:
        raise ValueError(f"speed_ratio must be above 0, got {speed_ratio:g}")
    return speed_ratio


def pearl_run_length(acceptance: float, lookahead: int) -> float:
    """Accepted drafted tokens between two rejections (`run_length`; PEARL's and DOUBLE's M): a/(1 - a).

    With iid acceptance it is the same for every lookahead: a run goes on over the ends of blocks, and
    each of its tokens is accepted with a.  The target's own token that ends the run is not counted;
    with it there are 1/(1 - a).  Infinite at a = 1, where only the end of the text ends a run.

    Args:
        acceptance: iid acceptance a.
        lookahead: g; without effect.

    Raises:
        ValueError: Outside the domain.
    """
    _check_domain(acceptance, lookahead, 1.0)
    return math.inf if acceptance == 1.0 else acceptance / (1.0 - acceptance)


def balanced_lookahead(target_s: float, draft_s: float) -> int:
    """Lookahead at which drafting a block takes as long as verifying one: ceil(C)  (`double.gamma`).

    PEARL's and DOUBLE's choice.  DuoDecoding's is C itself (`duo.budget`).  By `pearl_speedup` the best
    is floor(C) or ceil(C): where C is not whole, floor unless the acceptance is high; `best_lookahead`
    decides.  Rounding up keeps the draft busy at the price of a target that waits for it.

    Args:
        target_s: Seconds of a target step.
        draft_s: Seconds of a draft step.

    Returns:
        At least 1, also where the draft is the slower model.

    Raises:
        ValueError: A time that is not above 0.
    """
    for name, seconds in (("target_s", target_s), ("draft_s", draft_s)):
        if not 0.0 < seconds < math.inf:
            raise ValueError(f"{name} must be above 0, got {seconds:g}")
    ratio = target_s / draft_s
    return max(1, math.ceil(ratio * (1.0 - 1e-9)))  # 2.1 / .3 is a little above 7


def best_lookahead(
    acceptance: float,
    speed_ratio: float,
    rate_function: Callable[[float, int, float], float] = pearl_speedup,
    *,
    longest: int | None = None,
) -> int:
    """The lookahead of the highest rate, the smallest of equals.

    For `pearl_speedup` it is floor(C) or ceil(C) (at least 1): its tokens per round rise with g and are
    concave, so that up to C a longer block is better and beyond C a shorter one.  (Where a^g is lost in
    rounding, longer blocks gain nothing and a shorter one is returned.)

    Args:
        acceptance: iid acceptance a.
        speed_ratio: C, target step / draft step.
        rate_function: Rate by (acceptance, lookahead, speed_ratio).
        longest: Largest lookahead tried; 2 ceil(C) by default.

    Raises:
        ValueError: Outside the domain of the rate, or `longest` below 1.
    """
    psd_ceiling(speed_ratio)
    most = 2 * math.ceil(speed_ratio) if longest is None else longest
    if most < 1:
        raise ValueError(f"longest must be at least 1, got {most}")
    best, best_rate = 1, rate_function(acceptance, 1, speed_ratio)
    for lookahead in range(2, most + 1):
        rate = rate_function(acceptance, lookahead, speed_ratio)
        if rate > best_rate * (1.0 + 1e-14):  # not by rounding
            best, best_rate = lookahead, rate
    return best


def _check_domain(acceptance: float, lookahead: int, speed_ratio: float) -> None:
    _check_probability(acceptance=acceptance)
    if lookahead < 1 or not speed_ratio > 0:
        raise ValueError(f"needs lookahead >= 1 and speed_ratio > 0, got {lookahead}, {speed_ratio:g}")
