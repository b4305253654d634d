"""Fan-outs: how to spread a budget of guesses over the outcomes of a round (`ssd.thm12`, `ssd.thm18`).

The paper's closed form is the optimum of a relaxed problem in which less than one guess may hit with
negative probability.  Where the budget is small it puts less than one guess on unlikely positions, and
then it is better to leave some of them empty (often by far: see `tests/policies/test_laws_fanout.py`).
So there are three answers here: the closed form as printed (`geometric_fanout`), the exact real optimum
under a power law (`relaxed_optimum`), and the exact integer optimum under any hit curves
(`exact_fanout`), which is the one to use.

A *position* is a number k = 0 ... K of accepted tokens, its *weight* the probability of that outcome,
its fan-out F_k the number of outcomes with k accepted tokens that are prepared (`ssd.def10`).  `weights` are
[P] and need not sum to 1; `hit` is [P, Fmax + 1], the hit probability of F = 0 ... Fmax guesses at each
position, with hit[:, 0] = 0.  Shapes that do not fit and values outside 0..1 are a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.laws.law import FloatArray, law
from policies.laws.ssd import outcome_weights, power_law_hit

RESOLUTION = 2**40
"""`exact_fanout` counts hit probability in units of the largest possible one / RESOLUTION."""

_ROUNDING = 1e-9

Weights: TypeAlias = FloatArray | Sequence[float]
HitTable: TypeAlias = FloatArray | Sequence[Sequence[float]]


@law()
def uniform_fanout(budget: int, positions: int) -> tuple[int, ...]:
    """Spread `budget` guesses as evenly as possible; the remainder goes to the first positions."""
    if positions < 1:
        raise ValueError(f"positions must be at least 1, got {positions}")
    each, rest = divmod(budget, positions)
    return tuple(each + (k < rest) for k in range(positions))


@law(exponent="at least 0")
def geometric_fanout(acceptance: float, exponent: float, lookahead: int, budget: float) -> FloatArray:
    """[K + 1] real fan-outs of the closed form as printed (`ssd.thm12`): F_k proportional to w_k^(1/(1+r)).

    That is F_k = F_0 a^(k/(1+r)) for k < K and F_K = F_0 a^(K/(1+r)) (1 - a)^(-1/(1+r)), summing to the
    budget.  Optimal only where every F_k is well above 1 (from about twice the budget at which all reach
    1); else see `relaxed_optimum`.  A scale c of the power law that all positions share changes nothing.

    The limits, where the printed form is 0/0 or 0 * inf: a = 0 puts all on k = 0, a = 1 all on k = K,
    K = 0 has one position only, r = 0 gives F proportional to w.
    """
    shares = outcome_weights(acceptance, lookahead) ** (1.0 / (1.0 + exponent))
    return np.asarray(budget * shares / shares.sum(), dtype=np.float64)


@law()
def round_fanout(real: FloatArray | Sequence[float], budget: int) -> tuple[int, ...]:
    """Round real fan-outs [P], summing to the budget, to integers of the same sum by largest remainder.

    Ties go to the first.  Costs hit probability (0.03 on average, up to 0.6, over the cases in the docs);
    `exact_fanout` does not.
    """
    fanout = _vector("fan-outs", real)
    if abs(float(fanout.sum()) - budget) > 1e-6:
        raise ValueError(f"the fan-outs sum to {fanout.sum():g}, not to the budget {budget}")
    whole = np.floor(fanout + _ROUNDING)
    remainder = np.round(fanout - whole, 9)  # equal remainders differ in their last bits only
    first = np.argsort(-remainder, kind="stable")[: budget - int(whole.sum())]
    whole[first] += 1
    return tuple(int(f) for f in whole)


@law(exponent="at least 0")
def relaxed_optimum(weights: Weights, exponent: float, scale: float, budget: float) -> FloatArray:
    """[P] real fan-outs that maximise sum_k w_k hit(F_k), hit(F) = 1 - c F^-r for F >= 1 and 0 below.

    Repairs `ssd.thm12`: the m likeliest positions get F_k = max(1, lambda w_k^(1/(1+r))), the others
    nothing, and the best m wins (the smallest of equals).  Exact, since of two positions with the same
    fan-out the likelier one gains more.  With c = 1 the first guess gains nothing, and the maximum with
    1 never binds at the best m.  A budget below 1 pays for no guess: zeros.
    """
    w = _vector("weights", weights)
    roots = w ** (1.0 / (1.0 + exponent))
    order = np.argsort(-w, kind="stable")
    best, best_value = np.zeros_like(w), -1.0
    for m in range(1, min(int(np.count_nonzero(w)), math.floor(budget)) + 1):
        chosen = order[:m]
        fanout = _fill(roots[chosen], budget)
        value = float((w[chosen] * (1.0 - scale * fanout**-exponent)).sum())
        if value > best_value + 1e-12:
            best, best_value = np.zeros_like(w), value
            best[chosen] = fanout
    return best


def _fill(roots: FloatArray, budget: float) -> FloatArray:
    """max(1, lambda roots) summing to the budget, for falling roots [m] with m <= budget."""
    for free in range(len(roots), 0, -1):
        level = (budget - (len(roots) - free)) / roots[:free].sum()
        if level * roots[free - 1] >= 1.0 or free == 1:
            break
    fanout = np.ones_like(roots)
    fanout[:free] = level * roots[:free]
    return fanout


@law(exponent="at least 0")
def power_law_table(positions: int, exponent: float, scale: float, deepest: int) -> FloatArray:
    """[P, deepest + 1] hit curves that all follow one power law (`ssd.def11`), for `exact_fanout`."""
    if positions < 1 or deepest < 0:
        raise ValueError(f"needs positions >= 1 and deepest >= 0, got {positions}, {deepest}")
    return np.tile(power_law_hit(np.arange(deepest + 1), exponent, scale), (positions, 1))


@law()
def exact_fanout(weights: Weights, hit: HitTable, budget: int) -> tuple[int, ...]:
    """Fan-outs [P] of the highest hit probability at no more than `budget` guesses: the exact optimum.

    A dynamic program over (position, budget), so the curves need be neither concave nor rising
    (`ssd.thm18` asks for concave ones).  Of equally good fan-outs the one with the fewest guesses
    wins, then the one with more of them on earlier positions.  Fan-outs count as equally good if their
    hit probabilities agree to about 1e-12 P, by which the result is the same on every machine.
    """
    w, table = _check_table(weights, hit)
    deepest = min(table.shape[1] - 1, budget)
    budget = min(budget, deepest * len(w))
    gains = w[:, None] * table[:, : deepest + 1]
    most = float(gains.max(axis=1).sum())
    if most <= 0.0:
        return (0,) * len(w)
    # Whole numbers make ties exact; a guess costs 1 where a unit of hit probability is worth budget + 1.
    units = np.rint(gains / most * RESOLUTION).astype(np.int64)
    worth = units * (budget + 1) - np.arange(deepest + 1)
    values = _best_values(worth, budget)
    fanout, left = [], budget
    for k, row in enumerate(worth):
        reach = min(deepest, left)
        totals = row[: reach + 1] + values[k + 1, left - reach : left + 1][::-1]
        fanout.append(reach - int(np.argmax(totals[::-1])))  # the last, largest, of equals
        left -= fanout[-1]
    return tuple(fanout)


def _best_values(worth: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """[P + 1, budget + 1] best worth of positions k ... P - 1 with at most b guesses."""
    positions, width = worth.shape
    values = np.zeros((positions + 1, budget + 1), dtype=np.int64)
    never = np.full(width - 1, np.iinfo(np.int64).min // 2)
    for k in range(positions - 1, -1, -1):
        padded = np.concatenate([never, values[k + 1]])
        remaining = np.lib.stride_tricks.sliding_window_view(padded, width)  # [b, Fmax - F]
        values[k] = (remaining + worth[k, ::-1]).max(axis=1)
    return values


def expected_hit(weights: Weights, hit: HitTable, fanout: Sequence[int]) -> float:
    """Hit probability sum_k w_k hit_k(F_k) of fan-outs F_0 ... F_(P-1)  (objective of `ssd.thm18`)."""
    w, table = _check_table(weights, hit)
    if len(fanout) != len(w):
        raise ValueError(f"{len(fanout)} fan-outs for {len(w)} positions")
    if any(not 0 <= f < table.shape[1] for f in fanout):
        raise ValueError(f"fan-outs {tuple(fanout)} outside 0..{table.shape[1] - 1}, which the table covers")
    return float((w * table[np.arange(len(w)), list(fanout)]).sum())


def stationary_gap(weights: Weights, slopes: FloatArray | Sequence[float]) -> float:
    """How far real fan-outs are from the condition of `ssd.thm18`: max - min of w_k dp_k/dF at F_k.

    `slopes` are [P], of each position's hit curve at its fan-out.  Zero is what the theorem asks for.  It
    makes an optimum only where every hit curve is concave; otherwise even a zero gap may be far from the
    optimum, and an optimum at the border has a gap.
    """
    w, gain = _vector("weights", weights), np.asarray(slopes, dtype=np.float64)
    if gain.shape != w.shape:
        raise ValueError(f"{gain.shape} slopes for {w.shape} weights")
    return float(np.ptp(w * gain))


@law()
def greedy_fanout(weights: Weights, hit: HitTable, budget: int) -> tuple[int, ...]:
    """Fan-outs [P] by the rule of `ssd.thm18` in whole guesses: the next guess goes where it gains most.

    It ends where the gains of all positions are as equal as whole guesses allow, which is the theorem's
    stationarity.  That is the optimum iff every curve is concave (`concavity_gap` 0), and elsewhere it may
    be nothing: where a first guess gains 0, as under the paper's own power law, it stops at once.
    """
    w, table = _check_table(weights, hit)
    gains = np.pad(w[:, None] * np.diff(table, axis=1), ((0, 0), (0, 1)))
    fanout = np.zeros(len(w), dtype=np.int64)
    for _ in range(budget):
        following = gains[np.arange(len(w)), fanout]
        best = int(np.argmax(following))
        if following[best] <= 0.0:
            break
        fanout[best] += 1
    return tuple(int(f) for f in fanout)


def concavity_gap(hit: HitTable) -> float:
    """By how much a further guess may gain more than the one before it; 0 if all curves are concave.

    Where it is 0 the condition of `ssd.thm18` is sufficient, else it is only necessary.
    """
    table = np.asarray(hit, dtype=np.float64)
    _, table = _check_table(np.ones(len(table)), table)
    return float(max(0.0, np.diff(table, n=2, axis=1).max(initial=0.0)))


# The statements, from an acceptance and one hit curve for all positions


@law(exponent="at least 0")
def best_fanout(
    acceptance: float, exponent: float, lookahead: int, budget: int, scale: float = 1.0
) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate in whole guesses under a power law (`ssd.thm12`): `exact_fanout`.

    In real numbers, with a hit only from one guess on, it is `relaxed_optimum`.
    """
    table = power_law_table(lookahead + 1, exponent, scale, budget)
    return exact_fanout(outcome_weights(acceptance, lookahead), table, budget)


def best_fanout_of_curve(
    acceptance: float, lookahead: int, hit_curve: Sequence[float], budget: int
) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate under any curve, the same at all positions: `exact_fanout`."""
    return exact_fanout(outcome_weights(acceptance, lookahead), [hit_curve] * (lookahead + 1), budget)


def equal_gain_fanout(
    acceptance: float, lookahead: int, hit_curve: Sequence[float], budget: int
) -> tuple[int, ...]:
    """Fan-outs at which the next guess gains the same everywhere (`ssd.thm18`): `greedy_fanout`."""
    return greedy_fanout(outcome_weights(acceptance, lookahead), [hit_curve] * (lookahead + 1), budget)


def _vector(name: str, values: FloatArray | Sequence[float]) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"the {name} must be a list of at least one number, got shape {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0.0).all()):
        raise ValueError(f"the {name} must be finite and at least 0, got {array.tolist()}")
    return array


def _check_table(weights: Weights, hit: HitTable) -> tuple[FloatArray, FloatArray]:
    w, table = _vector("weights", weights), np.asarray(hit, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != len(w) or table.shape[1] < 1:
        raise ValueError(f"hit must be [{len(w)}, Fmax + 1] for {len(w)} weights, got {table.shape}")
    if not ((table >= 0.0) & (table <= 1.0)).all():  # false for NaN too
        raise ValueError("hit probabilities must lie in 0..1")
    if (table[:, 0] != 0.0).any():
        raise ValueError("hit[:, 0] must be 0: without a guess there is no hit")
    return w, table
