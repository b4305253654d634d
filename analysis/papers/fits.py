"""Parameters of laws from printed speeds: bisection for one unknown, least squares for two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from policies.laws.double import pearl_speedup
from policies.laws.ssd import FloatArray, expected_tokens

_STEPS = 80
_GRID, _REFINEMENTS = 100, 4


def _bisect(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function takes a value, or the end of the interval nearest to it."""
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return 0.5 * (low + high)


@cache
def acceptance_of_tokens(tokens: float, lookahead: int) -> float:
    """The iid acceptance a with E(a, K) = tokens; 0 or 1 where no a gives so few or so many."""
    return _bisect(lambda a: expected_tokens(a, lookahead), tokens, 0.0, 1.0)


def acceptance_of_pearl(speedup: float, lookahead: int, speed_ratio: float) -> float:
    """The iid acceptance by which PEARL's law gives this speedup."""
    return _bisect(lambda a: pearl_speedup(a, lookahead, speed_ratio), speedup, 0.0, 1.0)


def chain(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a, c) of the SD law E(a, K) / (1 + c K) nearest to points (K, speedup), c >= 0.

    Least squares of law / point - 1, inverted: for a given a that is linear in c, so that only a has to be
    searched for.  The residual has several minima where the points hardly tell the two apart, hence a grid
    that is refined and no descent.
    """
    depths = np.array([depth for depth, _ in points])
    speeds = np.array([speed for _, speed in points])

    def fit(accepted: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Squared residuals and costs by acceptance."""
        tokens = np.cumsum(accepted[:, None] ** np.arange(depths.max() + 1), axis=1)[:, depths]
        excess = speeds / tokens
        slope = excess * depths
        costs = np.maximum(0.0, ((1.0 - excess) * slope).sum(axis=1) / (slope**2).sum(axis=1))
        return ((excess + costs[:, None] * slope - 1.0) ** 2).sum(axis=1), costs

    low, high = 0.0, 1.0
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID + 1)
        best = int(np.argmin(fit(grid)[0]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(_GRID, best + 1)])
    acceptance = 0.5 * (low + high)
    return acceptance, float(fit(np.array([acceptance]))[1][0])
