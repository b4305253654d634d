"""Fan-outs by equal gains of a further guess, and where that is the optimum (`ssd.thm18`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.laws.fanout import _check_budget, _check_table
from policies.laws.ssd import FloatArray


def greedy_fanout(
    weights: FloatArray | Sequence[float], hit: FloatArray | Sequence[Sequence[float]], budget: int
) -> tuple[int, ...]:
    """Fan-outs [P] by the rule of `ssd.thm18` in whole guesses: the next guess goes where it gains most.

    It ends where the gains of all positions are as equal as whole guesses allow, which is the theorem's
    stationarity.  That is the optimum iff every curve is concave (`concavity_gap` 0), and elsewhere it may
    be nothing: where a first guess gains 0, as under the paper's own power law, it stops at once.

    Args:
        weights: [P] probability of each position.
        hit: [P, Fmax + 1] hit probability by fan-out; hit[:, 0] = 0.
        budget: Most guesses in all.

    Raises:
        ValueError: As in `exact_fanout`.
    """
    _check_budget(budget)
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


def concavity_gap(hit: FloatArray | Sequence[Sequence[float]]) -> float:
    """By how much a further guess may gain more than the one before it; 0 if all curves are concave.

    Where it is 0 the condition of `ssd.thm18` is sufficient, else it is only necessary.

    Args:
        hit: [P, Fmax + 1] hit probability by fan-out; hit[:, 0] = 0.

    Raises:
        ValueError: As in `exact_fanout`.
    """
    table = np.asarray(hit, dtype=np.float64)
    _, table = _check_table(np.ones(len(table)), table)
    return float(max(0.0, np.diff(table, n=2, axis=1).max(initial=0.0)))
