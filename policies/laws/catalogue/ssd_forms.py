"""Forms of SSD's statements that lead arguments, as one types them, to the laws."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policies.laws import backup, fanout, gains, sampling, ssd
from policies.laws.ssd import FloatArray

Vector = Sequence[float]


def emitted(target_law: Vector, draft_law: Vector) -> FloatArray:
    """[V] law of the token emitted, accepted or from the residual: `sampling.emitted_law`."""
    return sampling.emitted_law(target_law, draft_law)


def accepted(target_law: Vector, draft_law: Vector) -> float:
    """Sum of min(p_t, p_d) = 1 - |p_t - p_d|_1 / 2: `sampling.acceptance`."""
    return sampling.acceptance(target_law, draft_law)


def accepted_printed(target_law: Vector, draft_law: Vector) -> float:
    """1 - |p_t - p_d|_1, as A.3.1 prints it: `sampling.acceptance_printed`."""
    return sampling.acceptance_printed(target_law, draft_law)


def hit_curve(fanout: Vector, exponent: float, scale: float = 1.0) -> FloatArray:
    """1 - c F^-r, and 0 without a guess: `ssd.power_law_hit`.

    Raises:
        ValueError: Outside the domain.
    """
    ssd._check_probability(scale=scale)
    if not 0.0 < exponent < math.inf or any(f < 0 for f in fanout):
        raise ValueError(f"the power law needs exponent > 0 and fan-outs >= 0, got {exponent:g}, {fanout}")
    return ssd.power_law_hit([int(f) for f in fanout], exponent, scale)


def best_fanout(
    acceptance: float, exponent: float, lookahead: int, budget: int, scale: float = 1.0
) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate in whole guesses under a power law: `fanout.exact_fanout`.

    In real numbers, with a hit only from one guess on, it is `fanout.relaxed_optimum`.
    """
    weights = ssd.outcome_weights(acceptance, lookahead)
    table = fanout.power_law_table(lookahead + 1, exponent, scale, budget)
    return fanout.exact_fanout(weights, table, budget)


def best_fanout_of_curve(
    acceptance: float, lookahead: int, hit_curve: Vector, budget: int
) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate under any curve, the same at all positions: `fanout.exact_fanout`."""
    weights = ssd.outcome_weights(acceptance, lookahead)
    return fanout.exact_fanout(weights, [hit_curve] * (lookahead + 1), budget)


def equal_gain_fanout(acceptance: float, lookahead: int, hit_curve: Vector, budget: int) -> tuple[int, ...]:
    """Fan-outs at which the next guess gains the same everywhere: `gains.greedy_fanout`."""
    weights = ssd.outcome_weights(acceptance, lookahead)
    return gains.greedy_fanout(weights, [hit_curve] * (lookahead + 1), budget)


def saguaro(draft_law: Vector, top: int, saguaro_scale: float) -> FloatArray:
    """[V] the draft's law with its F likeliest tokens scaled by C: `sampling.rescale`."""
    return sampling.rescale(draft_law, top, saguaro_scale)


def hit_after_rejection(target_law: Vector, draft_law: Vector, top: int, saguaro_scale: float) -> float:
    """P(hit | rejection), the rejected token left out of the cache: `sampling.hit_given_rejection`."""
    return sampling.hit_given_rejection(target_law, draft_law, top, saguaro_scale)


def hit_after_rejection_printed(
    target_law: Vector, draft_law: Vector, top: int, saguaro_scale: float
) -> float:
    """P(hit | rejection), the top F cached in any case: `sampling.hit_given_rejection_fixed`."""
    return sampling.hit_given_rejection_fixed(target_law, draft_law, top, saguaro_scale)


def hit_rate_of_round(
    target_law: Vector, draft_law: Vector, top: int, lookahead: int, saguaro_scale: float
) -> float:
    """p_hit,p of a sampled round, the rejected token left out: `sampling.hit_rate_sampled`."""
    widths = (top,) * (lookahead + 1)
    return sampling.hit_rate_sampled(target_law, draft_law, widths, saguaro_scale)


def switch_printed(
    p_hit_primary: float, p_hit_backup: float, e_hit: float, e_miss: float, t_primary: float
) -> float:
    """b* as printed, with the fast backup's hit rate for its one p_hit: `backup.switch_batch_printed`."""
    p_fast = ssd.hit_rate_after(p_hit_primary, p_hit_backup)
    return backup.switch_batch_printed(p_fast, e_hit, e_miss, t_primary)
