"""The laws the other way round: from what was measured, or is wanted, to what it takes.

Fits say how sure they are, and a wish that cannot be met says what can.  The papers' modules have more:
`ssd.fit_power_law` (hit curve), `duo.best_budget` and `double.best_lookahead` (pipelines).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from policies.laws.law import FloatArray, law, peak
from policies.laws.ssd import expected_tokens, sd_speedup, ssd_speedup


@dataclass(frozen=True, slots=True)
class SpeculativeFit:
    """Acceptance and draft cost by which the law of speculative decoding fits a sweep best.

    Attributes:
        acceptance: a.
        t_draft: A draft step, in target steps.
        acceptance_error: Standard error of a; inf where the sweep does not determine it.
        t_draft_error: Standard error of t_draft; inf where the sweep does not determine it.
        residual: Root mean square of fitted / measured - 1, over the degrees of freedom that are left.
        worst: Largest |fitted / measured - 1|.
        points: Settings fitted.
    """

    acceptance: float
    t_draft: float
    acceptance_error: float
    t_draft_error: float
    residual: float
    worst: float
    points: int


@law(lookahead="", speedup="")
def fit_sd(lookahead: Sequence[int], speedup: Sequence[float], *, t_verify: float = 1.0) -> SpeculativeFit:
    """Fit E(a, K)/(K t_draft + t_verify) to speedups over a sweep of K, by least squares of their ratios.

    Standard errors come from the Jacobian and the scatter about the fit, which takes the law for true; a
    residual well above the measurements' own noise says that it is not (acceptance that falls with depth,
    verification that costs more the more it verifies).  They describe the surroundings of the fit: a
    high acceptance with a dear draft and a lower one with a cheap draft look alike over a short sweep.

    Args:
        lookahead: K >= 1 of each setting, at least three different ones.  Two would not do, even without
            noise: a = .8 with t_draft = .1 and a = .716 with .048 agree at K = 2 and at K = 6.
        speedup: Over plain decoding, above 0, of each.
        t_verify: Time of a verification in target steps, the same at every K.

    Raises:
        ValueError: Too few settings, or values outside the domain.
    """
    from scipy.optimize import least_squares

    drafted, measured = _sweep(lookahead, speedup)

    def misfit(parameters: FloatArray) -> FloatArray:
        return np.asarray(_sd_curve(parameters, drafted, t_verify) / measured - 1.0, dtype=np.float64)

    starts = ((0.3, 0.1), (0.6, 0.02), (0.8, 0.2), (0.95, 0.05))  # the valley bends: several starts
    fits = [
        least_squares(misfit, start, bounds=([0.0, 0.0], [1.0, np.inf]), xtol=1e-14, ftol=1e-14, gtol=1e-14)
        for start in starts
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    variance = 2.0 * float(best.cost) / (len(drafted) - 2)
    errors = _standard_errors(best.jac, variance)
    return SpeculativeFit(
        acceptance=float(best.x[0]),
        t_draft=float(best.x[1]),
        acceptance_error=errors[0],
        t_draft_error=errors[1],
        residual=math.sqrt(variance),
        worst=float(np.abs(best.fun).max()),
        points=len(drafted),
    )


def acceptance_from_tokens(tokens_per_round: float, lookahead: int) -> float:
    """Acceptance a at which a round has the given mean tokens: E(a, K) = tokens  (`double.thm1`).

    1 token gives 0, K + 1 give 1.  iid acceptance is an assumption: with a real draft it is the value by
    which rounds of this K come out right, and no other K's.  Refuses K below 1, and tokens outside
    1 ... K + 1, the target's own counted.
    """
    if lookahead < 1:
        raise ValueError(f"without drafted tokens nothing is known of the acceptance: lookahead {lookahead}")
    if not 1.0 <= tokens_per_round <= lookahead + 1.0:
        raise ValueError(
            f"a round of {lookahead} drafted tokens has 1 to {lookahead + 1} tokens, got {tokens_per_round:g}"
        )
    if tokens_per_round == 1.0:
        return 0.0
    if tokens_per_round == lookahead + 1.0:
        return 1.0
    return _root(lambda a: expected_tokens(a, lookahead) - tokens_per_round)


@law()
def required_hit_rate(
    speedup: float, e_hit: float, e_miss: float, t_primary: float, t_backup: float, *, batch: int = 1
) -> float:
    """Smallest hit rate at which SSD reaches a speedup over AR  (`ssd.thm7`, `ssd.cor16`; corrected forms).

    Needs the speedup to rise with the hit rate: E_hit >= E_miss, as a backup that beats the primary's tokens
    would make a miss worth having.  0 where even no hit at all suffices; the error for a speedup out of reach
    says what is in reach.
    """
    if not e_hit >= e_miss:
        raise ValueError(f"assumes e_hit >= e_miss: hits must pay, got {e_hit:g}, {e_miss:g}")

    def reached(p_hit: float) -> float:
        return ssd_speedup(p_hit, e_hit, e_miss, t_primary, t_backup, batch=batch)

    never, always = reached(0.0), reached(1.0)
    if speedup > always:
        raise ValueError(
            f"a speedup of {speedup:g} is out of reach: hit rates of 0 to 1 give {never:.4g} to {always:.4g}"
        )
    if speedup <= never:
        return 0.0
    return _root(lambda p: reached(p) - speedup)


@law(longest="at least 0")
def best_sd_lookahead(
    acceptance: float, t_draft: float, *, t_verify: float = 1.0, longest: int = 1024
) -> int:
    """Lookahead K >= 0 of the highest `sd_speedup`, the smallest of equals; 0 where drafting does not pay.

    Plain decoding (K = 0) has speedup 1, whatever `t_verify`.  From K = 1 on tokens are concave and the time
    is linear in K, so that the rate has one peak.  `longest` is the largest K tried, the answer where each
    token helps (a = 1 with t_verify > 0).
    """

    def rate(lookahead: int) -> float:
        return sd_speedup(acceptance, lookahead, t_draft, t_verify)

    best = peak(rate, range(1, longest + 1))
    return best if best and rate(best) > 1.0 + 1e-14 else 0


def _sd_curve(parameters: FloatArray, lookahead: FloatArray, t_verify: float) -> FloatArray:
    a, t_draft = float(parameters[0]), float(parameters[1])
    tokens = np.power(a, np.arange(lookahead.max() + 1.0)).cumsum()[lookahead.astype(int)]
    return np.asarray(tokens / (lookahead * t_draft + t_verify), dtype=np.float64)


def _root(function: Callable[[float], float]) -> float:
    """The root in 0..1 of a function that changes sign there."""
    from scipy.optimize import brentq  # which takes longer to import than all else here

    return float(brentq(lambda x: function(float(x)), 0.0, 1.0, xtol=1e-15))


def _sweep(lookahead: Sequence[int], speedup: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    drafted = np.asarray(lookahead, dtype=np.float64)
    measured = np.asarray(speedup, dtype=np.float64)
    if drafted.ndim != 1 or drafted.shape != measured.shape:
        raise ValueError(f"needs a speedup for each lookahead, got {measured.shape}, {drafted.shape}")
    if not (
        (drafted >= 1.0) & (drafted == np.floor(drafted)) & (measured > 0.0) & np.isfinite(measured)
    ).all():
        raise ValueError("lookaheads must be whole and at least 1, speedups finite and above 0")
    if len(set(drafted.tolist())) < 3:
        raise ValueError("two lookaheads can fit two pairs of acceptance and draft cost: needs three of them")
    return drafted, measured


def _standard_errors(jacobian: FloatArray, variance: float) -> tuple[float, float]:
    """Root of the diagonal of variance (J'J)^-1; inf where the sweep leaves a direction open."""
    normal = jacobian.T @ jacobian
    if np.linalg.cond(normal) > 1e14:
        return math.inf, math.inf
    spread = np.sqrt(variance * np.diag(np.linalg.inv(normal)))
    return float(spread[0]), float(spread[1])
