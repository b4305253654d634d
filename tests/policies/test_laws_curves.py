"""Curves of a small recorded text, counted by hand, and the fan-outs that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from policies.curves import hit_curves
from policies.laws.fanout import exact_fanout, power_law_table
from policies.laws.ssd import outcome_weights

RANK = np.array([0, 0, 2, 0, 1, 0, 0, 0, 3, 0])


def test_curves_by_hand() -> None:
    curves = hit_curves(RANK, deepest=3)
    assert (curves.positions, curves.acceptance, curves.fanouts) == (10, 0.7, (1, 2, 3))
    # Rejected: ranks 2, 1, 3.  F = 1 catches rank 1, F = 2 rank 2 too, F = 3 all.
    assert curves.after_rejection == pytest.approx((1 / 3, 2 / 3, 1))
    # Nothing rejected: ranks 0 (7 of 10), 1, 2, 3 need 1, 2, 3, 4 guesses.
    assert curves.unconditional == pytest.approx((0.7, 0.8, 0.9))


def test_an_unrecorded_rank_is_never_cached() -> None:
    never = hit_curves(np.array([0, np.iinfo(np.int64).max, 1]), deepest=2)
    assert never.after_rejection == (0.5, 0.5)
    assert never.unconditional == pytest.approx((1 / 3, 2 / 3))


def test_nothing_rejected_means_every_guess_would_hit() -> None:
    curves = hit_curves(np.zeros(4, dtype=np.int64), deepest=2)
    assert curves.after_rejection == (1.0, 1.0) and curves.power_law is None
    with pytest.raises(ValueError, match="no recorded position"):
        hit_curves(np.array([], dtype=np.int64))


def test_the_fitted_scale_decides_the_fanout() -> None:
    """a = .6, r = .5, K = 6, B = 12: 3 3 2 1 1 1 1 with the c = .5 of the text, 5 4 3 0 0 0 0 with c = 1."""
    need = np.arange(1, 16)
    miss = 0.5 * need**-0.5
    shares = -np.diff(np.append(1.0, miss))  # P(need = F)
    rejected = np.repeat(need, np.round(shares * 400_000).astype(int))
    rejected = np.append(rejected, np.full(round(miss[-1] * 400_000), 99))
    curves = hit_curves(np.append(rejected, np.zeros(600_000, dtype=np.int64)))
    assert curves.acceptance == pytest.approx(0.6, abs=1e-4)
    assert curves.power_law is not None
    assert (curves.power_law.exponent, curves.power_law.scale) == (
        pytest.approx(0.5, abs=1e-3),
        pytest.approx(0.5, abs=1e-3),
    )
    weights = outcome_weights(0.6, 6)
    fitted = power_law_table(7, curves.power_law.exponent, curves.power_law.scale, 12)
    assert exact_fanout(weights, fitted, 12) == (3, 3, 2, 1, 1, 1, 1)
    assert exact_fanout(weights, power_law_table(7, curves.power_law.exponent, 1.0, 12), 12) == (
        5,
        4,
        3,
        0,
        0,
        0,
        0,
    )
