"""The laws against hand-computed values, limits and the goldens of the papers' statements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.double import pearl_speedup
from policies.laws.ssd import (
    expected_tokens,
    fit_power_law,
    hit_rate,
    hit_rate_primary,
    outcome_weights,
    power_law_hit,
    sd_speedup,
    ssd_speedup,
)

probability = st.floats(min_value=0.0, max_value=1.0)


def test_expected_tokens_by_hand() -> None:
    # 1 + .5 + .25 + .125
    assert expected_tokens(0.5, 3) == 1.875
    assert expected_tokens(0.0, 7) == 1.0
    assert expected_tokens(1.0, 7) == 8.0
    assert expected_tokens(0.3, 0) == 1.0


@given(a=probability, k=st.integers(0, 20))
def test_weights_are_a_law_with_the_mean_of_e(a: float, k: int) -> None:
    weights = outcome_weights(a, k)
    assert weights.sum() == pytest.approx(1.0)
    assert (weights * np.arange(1, k + 2)).sum() == pytest.approx(expected_tokens(a, k))


def test_sd_speedup_by_hand() -> None:
    # 1.875 tokens in 3 x .1 + 1
    assert sd_speedup(0.5, 3, 0.1) == pytest.approx(1.875 / 1.3)
    assert sd_speedup(0.5, 3, 0.1, t_verify=1.7) == pytest.approx(1.875 / 2.0)


def test_golden_of_thm7() -> None:
    """p_p = .9, p_b = .6, K = 6, a_p = .8, a_b = .2, T_p = .8, T_b = 0 gives 3.565504."""
    p = hit_rate(0.9, 0.6)
    speedup = ssd_speedup(p, expected_tokens(0.8, 6), expected_tokens(0.2, 6), 0.8, 0.0)
    assert speedup == pytest.approx(3.565504, abs=1e-6)


def test_golden_of_cor16() -> None:
    """p_p = .9, p_b = .6, E = 4 / 1.2, T_b = .3, b = 4 gives 3.1633."""
    assert ssd_speedup(hit_rate(0.9, 0.6), 4.0, 1.2, 1.0, 0.3, batch=4) == pytest.approx(3.1633, abs=5e-5)


def test_a_miss_waits_for_the_tree() -> None:
    # T_p = 2: the printed law would give (1 - p) (1 + T_b); here every round lasts 2.
    assert ssd_speedup(0.5, 3.0, 1.0, 2.0, 0.0) == pytest.approx(2.0 / 2.0)


def test_hit_rate_edges() -> None:
    assert hit_rate(0.9, 0.0) == 0.0
    assert hit_rate(1.0, 0.3) == 1.0
    assert hit_rate(0.0, 1.0) == 0.5
    with pytest.raises(ValueError, match="first round"):
        hit_rate(1.0, 0.0)


def test_golden_of_thm12() -> None:
    """a = .8, r = 1, K = 4: the integer optimum 4 4 3 3 6 has value 0.764933."""
    assert hit_rate_primary(0.8, (4, 4, 3, 3, 6), 1.0) == pytest.approx(0.764933, abs=1e-6)


def test_no_guess_no_hit() -> None:
    assert power_law_hit([0, 1, 2], 1.0).tolist() == [0.0, 0.0, 0.5]
    assert power_law_hit([1], 1.0, 0.4).tolist() == [0.6]


def test_fit_recovers_its_law_and_says_how_well() -> None:
    fanout = np.arange(1, 16)
    exact = fit_power_law(list(fanout), list(0.7 * fanout**-0.6))
    assert (exact.exponent, exact.scale) == (pytest.approx(0.6), pytest.approx(0.7))
    assert exact.r_squared == pytest.approx(1.0) and exact.worst < 1e-12
    bent = fit_power_law(list(fanout), list(np.exp(-0.3 * fanout)))
    assert bent.r_squared < 0.95
    with pytest.raises(ValueError, match="at least two"):
        fit_power_law([1, 2], [0.5, 0.0])


def test_golden_of_pearl() -> None:
    """a = .8, g = C = 4: S_PEARL = 2.1231."""
    assert pearl_speedup(0.8, 4, 4.0) == pytest.approx(2.1231, abs=5e-5)
    assert pearl_speedup(1.0, 4, 8.0) == pytest.approx(4.0)
    assert pearl_speedup(0.0, 4, 4.0) == pytest.approx(1.0)
    # The draft is the slower device: a block of 8 lasts 2 target steps.
    assert pearl_speedup(1.0, 8, 4.0) == pytest.approx(4.0)
