"""Laws of SSD / Saguaro and of vanilla speculative decoding (its section 2.1)."""

from __future__ import annotations

import math
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


def power_law_hit_printed(fanout: Sequence[float] | FloatArray, exponent: float) -> FloatArray:
    """Hit probability of F guesses as printed: 1 - F^-r  (`ssd.def11`); a single guess never hits.

    Args:
        fanout: F >= 1; the law is for natural numbers, and below 1 it would be negative.
        exponent: r above 0.

    Raises:
        ValueError: Outside the domain.
    """
    guesses = np.asarray(fanout, dtype=float)
    if not (guesses >= 1.0).all():
        raise ValueError("the printed power law needs F >= 1 everywhere: below 1 it is negative or undefined")
    if not exponent > 0.0:
        raise ValueError(f"the power law needs an exponent above 0, got {exponent:g}")
    return np.asarray(1.0 - guesses**-exponent, dtype=np.float64)


def hit_rate(p_hit_primary: float, p_hit_backup: float) -> float:
    """Long-run p_hit = p_b / (1 + p_b - p_p)  (`ssd.eq1`).

    Raises:
        ValueError: p_p = 1 and p_b = 0, where the chain stays in whichever state it starts.
    """
    _check_probability(p_hit_primary=p_hit_primary, p_hit_backup=p_hit_backup)
    if p_hit_primary == 1.0 and p_hit_backup == 0.0:
        raise ValueError("p_hit_primary = 1 and p_hit_backup = 0: the hit rate depends on the first round")
    return p_hit_backup / ((1.0 - p_hit_primary) + p_hit_backup)


def hit_rate_after(p_hit_primary: float, p_hit_backup: float, rounds: float = math.inf) -> float:
    """p_hit of the round `rounds` after the first, whose speculation was the primary's (`ssd.eq1`).

    p(T) = p_hit + (p_p - p_hit) r^T with r = p_p - p_b, which is the paper's sum written without its 0/0
    at r = 1.  p(0) = p_p.  Over infinitely many rounds it is the time average: for p_p = 0, p_b = 1 the
    chain swings between both states and its average is 1/2; for p_p = 1 every round hits.

    Args:
        p_hit_primary: p_p.
        p_hit_backup: p_b.
        rounds: T, or inf for the long run.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(p_hit_primary=p_hit_primary, p_hit_backup=p_hit_backup)
    if not rounds >= 0 or (rounds != math.inf and rounds != int(rounds)):
        raise ValueError(f"rounds must be 0, 1, 2, ... or inf, got {rounds:g}")
    if p_hit_primary == 1.0:  # it began with a hit, and a hit is followed by another
        return 1.0
    long_run = hit_rate(p_hit_primary, p_hit_backup)
    if rounds == math.inf:
        return long_run
    decay = (p_hit_primary - p_hit_backup) ** int(rounds)
    return min(1.0, max(0.0, long_run + (p_hit_primary - long_run) * decay))


def miss_time(t_primary: float, t_backup: float) -> float:
    """Time of a round that misses: max(1, T_p) + T_b  (`ssd.alg1` read literally).

    The speculator fills its whole cache before it looks at the outcome, so a miss waits for the longer of
    verification and pre-speculation, and for the backup after it.

    Args:
        t_primary: T_p, in target steps.
        t_backup: T_b, in target steps.

    Raises:
        ValueError: A time that is negative or infinite.
    """
    _check_times(t_primary=t_primary, t_backup=t_backup)
    return max(1.0, t_primary) + t_backup


def miss_time_printed(t_primary: float, t_backup: float) -> float:
    """Time of a round that misses as `ssd.thm7` counts it: 1 + T_b, the cache build being cut short.

    Args:
        t_primary: T_p; without effect.
        t_backup: T_b, in target steps.

    Raises:
        ValueError: A time that is negative or infinite.
    """
    _check_times(t_primary=t_primary, t_backup=t_backup)
    return 1.0 + t_backup


def ssd_speedup(
    p_hit: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    t_backup: float,
    *,
    batch: float = 1,
) -> float:
    """Speedup of SSD over AR (`ssd.thm7`); for batch > 1 the batch stalls on any miss (`ssd.cor16`).

    [p E_hit + (1 - p) E_miss] / [p^b max(1, T_p) + (1 - p^b) (X + T_b)], where X = max(1, T_p): a tree
    pass is not interruptible, so a miss waits for it too.  The paper prints X = 1, which needs the
    cache build to be aborted on a miss; both agree for T_p <= 1.

    It is the long-run rate, tokens over time, of independent rows: not the mean over short outputs of
    their own rates, and too low where rows miss together.

    Args:
        p_hit: Long-run hit rate per row.
        e_hit: Mean tokens of a round after a hit.
        e_miss: Mean tokens of a round after a miss.
        t_primary: T_p, time of a pre-speculation.
        t_backup: T_b, time of a backup speculation.
        batch: b, inf for the limit in which every round stalls unless p = 1.

    Raises:
        ValueError: Outside the domain.
    """
    tokens, all_hit = _tokens_and_all_hit(p_hit, e_hit, e_miss, batch)
    round_time = miss_time(t_primary, 0.0)
    return tokens / (all_hit * round_time + (1.0 - all_hit) * (round_time + _time(t_backup=t_backup)))


def ssd_speedup_printed(
    p_hit: float,
    e_hit: float,
    e_miss: float,
    t_primary: float,
    t_backup: float,
    *,
    batch: float = 1,
) -> float:
    """Speedup of SSD over AR as printed (`ssd.thm7`, `ssd.cor16`): a miss takes 1 + T_b whatever T_p is.

    The same as `ssd_speedup` for T_p <= 1.  Beyond, only for an engine that aborts the cache build on a
    miss; without that it is too high, at p = .7 and T_b = 0 by 3 % (T_p = 1.1) to 18 % (T_p = 2).

    Args:
        p_hit: As in `ssd_speedup`.
        e_hit: As in `ssd_speedup`.
        e_miss: As in `ssd_speedup`.
        t_primary: As in `ssd_speedup`.
        t_backup: As in `ssd_speedup`.
        batch: As in `ssd_speedup`.

    Raises:
        ValueError: Outside the domain.
    """
    tokens, all_hit = _tokens_and_all_hit(p_hit, e_hit, e_miss, batch)
    after_miss = miss_time_printed(t_primary, t_backup)
    return tokens / (all_hit * max(1.0, t_primary) + (1.0 - all_hit) * after_miss)


def _tokens_and_all_hit(p_hit: float, e_hit: float, e_miss: float, batch: float) -> tuple[float, float]:
    """Mean tokens of a round per row, and the probability that no row of the batch misses."""
    _check_probability(p_hit=p_hit)
    _check_tokens(e_hit=e_hit, e_miss=e_miss)
    if not batch >= 1:
        raise ValueError(f"batch must be at least 1, got {batch:g}")
    return p_hit * e_hit + (1.0 - p_hit) * e_miss, p_hit**batch


def _check_tokens(**values: float) -> None:
    for name, value in values.items():
        if not 1.0 - 1e-9 <= value < math.inf:
            raise ValueError(f"every round emits a token: {name} must be at least 1, got {value:g}")


def _check_times(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ValueError(f"a time is at least 0 and finite: got {name} = {value:g}")


def _time(**value: float) -> float:
    """The one time given, checked."""
    _check_times(**value)
    return next(iter(value.values()))
