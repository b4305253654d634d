"""Laws of SSD / Saguaro and of vanilla speculative decoding (its section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]


def _check_probability(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be a probability in 0..1, got {value:g}")


def expected_tokens(acceptance: float, lookahead: int) -> float:
    """Mean tokens of a round with its bonus token: E(a, K) = 1 + a + ... + a^K  (`double.thm1`).

    Assumes iid acceptance.  K = 0 gives 1, a = 1 gives K + 1.

    Raises:
        ValueError: `acceptance` outside 0..1 or `lookahead` below 0.
    """
    _check_probability(acceptance=acceptance)
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    return float(np.power(acceptance, np.arange(lookahead + 1)).sum())


def sd_speedup(acceptance: float, lookahead: int, t_draft: float, t_verify: float = 1.0) -> float:
    """Speedup of vanilla speculative decoding over AR: E(a, K) / (K t_draft + t_verify).

    Args:
        acceptance: iid acceptance probability a.
        lookahead: K.
        t_draft: Draft step / target step.
        t_verify: Verification of K + 1 tokens / target step; 1 in the papers.
    """
    return expected_tokens(acceptance, lookahead) / (lookahead * t_draft + t_verify)


def outcome_weights(acceptance: float, lookahead: int) -> FloatArray:
    """[K + 1] probability that exactly k drafted tokens are accepted: a^k (1 - a), and a^K at k = K.

    Raises:
        ValueError: `acceptance` outside 0..1 or `lookahead` below 0.
    """
    _check_probability(acceptance=acceptance)
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    powers = np.power(acceptance, np.arange(lookahead + 1))
    return np.append(powers[:-1] * (1.0 - acceptance), powers[-1])


def power_law_hit(
    fanout: NDArray[np.number] | Sequence[int], exponent: float, scale: float = 1.0
) -> FloatArray:
    """Hit probability of F guesses: 1 - c F^-r for F >= 1, and 0 without a guess (`ssd.def11`).

    The paper's law has c = 1, by which a single guess never hits; c is fitted (see the docs).
    """
    guesses = np.asarray(fanout, dtype=float)
    return np.where(guesses >= 1.0, 1.0 - scale * np.maximum(guesses, 1.0) ** -exponent, 0.0)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Fit of P(miss | F) = scale * F**-exponent.

    Attributes:
        exponent: r.
        scale: c.
        r_squared: Share of the variance of log P(miss) explained.
        worst: Largest |fitted - measured| hit probability over the fan-outs fitted.
        fanouts: How many were fitted.
    """

    exponent: float
    scale: float
    r_squared: float
    worst: float
    fanouts: int


def fit_power_law(fanout: Sequence[int], miss: Sequence[float]) -> PowerLaw:
    """Least-squares fit of the power law in log-log space, scale included.

    Args:
        fanout: Fan-outs F >= 1.
        miss: Measured miss probability of each; zeros carry no information on the slope and are left out.

    Raises:
        ValueError: Fewer than two fan-outs with a miss.
    """
    guesses, misses = np.asarray(fanout, dtype=float), np.asarray(miss, dtype=float)
    usable = (guesses >= 1) & (misses > 0)
    if usable.sum() < 2:
        raise ValueError("a power law needs at least two fan-outs that miss sometimes")
    x, y = np.log(guesses[usable]), np.log(misses[usable])
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - (slope * x + intercept)
    spread = float(((y - y.mean()) ** 2).sum())
    scale = float(min(1.0, np.exp(intercept)))
    fitted = 1.0 - scale * guesses[usable] ** slope
    return PowerLaw(
        exponent=float(-slope),
        scale=scale,
        r_squared=1.0 - float((residual**2).sum()) / spread if spread > 0 else 1.0,
        worst=float(np.abs(fitted - (1.0 - misses[usable])).max()),
        fanouts=int(usable.sum()),
    )


def hit_rate_primary(acceptance: float, fanout: Sequence[int], exponent: float, scale: float = 1.0) -> float:
    """p_hit,p of fan-outs F_0 ... F_K: sum_k w_k (1 - c F_k^-r)  (objective of `ssd.thm12`)."""
    weights = outcome_weights(acceptance, len(fanout) - 1)
    return float((weights * power_law_hit(fanout, exponent, scale)).sum())


def hit_rate(p_hit_primary: float, p_hit_backup: float) -> float:
    """Long-run p_hit = p_b / (1 + p_b - p_p)  (`ssd.eq1`).

    Raises:
        ValueError: p_p = 1 and p_b = 0, where the chain stays in whichever state it starts.
    """
    _check_probability(p_hit_primary=p_hit_primary, p_hit_backup=p_hit_backup)
    if p_hit_primary == 1.0 and p_hit_backup == 0.0:
        raise ValueError("p_hit_primary = 1 and p_hit_backup = 0: the hit rate depends on the first round")
    return p_hit_backup / ((1.0 - p_hit_primary) + p_hit_backup)


def ssd_speedup(
    p_hit: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    t_backup: float,
    *,
    batch: int = 1,
) -> float:
    """Speedup of SSD over AR (`ssd.thm7`); for batch > 1 the batch stalls on any miss (`ssd.cor16`).

    [p E_hit + (1 - p) E_miss] / [p^b max(1, T_p) + (1 - p^b) (X + T_b)], where X = max(1, T_p): a tree
    pass is not interruptible, so a miss waits for it too.  The paper prints X = 1, which needs the
    cache build to be aborted on a miss; both agree for T_p <= 1.

    Args:
        p_hit: Long-run hit rate per row.
        e_hit: Mean tokens of a round after a hit.
        e_miss: Mean tokens of a round after a miss.
        t_primary: T_p, time of a pre-speculation.
        t_backup: T_b, time of a backup speculation.
        batch: b.
    """
    _check_probability(p_hit=p_hit)
    tokens = p_hit * e_hit + (1.0 - p_hit) * e_miss
    all_hit = p_hit**batch
    round_time = max(1.0, t_primary)
    return tokens / (all_hit * round_time + (1.0 - all_hit) * (round_time + t_backup))
