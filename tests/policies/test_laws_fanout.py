"""Fan-outs against exhaustive search, the goldens of theorem 12 and the cases where it fails."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.laws.fanout import (
    exact_fanout,
    expected_hit,
    geometric_fanout,
    power_law_table,
    relaxed_optimum,
    round_fanout,
    stationary_gap,
    uniform_fanout,
)
from policies.laws.ssd import hit_rate_primary, outcome_weights, power_law_hit

probability = st.floats(0.0, 1.0)


def test_uniform_gives_the_remainder_to_the_first() -> None:
    assert uniform_fanout(7, 3) == (3, 2, 2)
    assert uniform_fanout(2, 4) == (1, 1, 0, 0)
    assert uniform_fanout(0, 2) == (0, 0)


@given(budget=st.integers(0, 200), positions=st.integers(1, 20))
def test_uniform_is_even(budget: int, positions: int) -> None:
    fanout = uniform_fanout(budget, positions)
    assert len(fanout) == positions and sum(fanout) == budget and max(fanout) - min(fanout) <= 1


def test_goldens_of_thm12() -> None:
    real = geometric_fanout(0.8, 1.0, 4, 20)
    assert real == pytest.approx([4.131333, 3.695177, 3.305066, 2.956141, 5.912283], abs=1e-6)
    weights = outcome_weights(0.8, 4)
    assert (weights * (1.0 - 1.0 / real)).sum() == pytest.approx(0.765642, abs=1e-6)
    # The budget is large enough for the closed form to be the real optimum.
    assert relaxed_optimum(weights, 1.0, 1.0, 20) == pytest.approx(real)

    real = geometric_fanout(0.8, 0.5, 5, 32)
    golden = [6.170762, 5.317802, 4.582742, 3.949288, 3.403393, 8.576013]
    assert real == pytest.approx(golden, abs=1e-6)
    weights = outcome_weights(0.8, 5)
    assert (weights * (1.0 - real**-0.5)).sum() == pytest.approx(0.582485, abs=1e-6)
    assert relaxed_optimum(weights, 0.5, 1.0, 32) == pytest.approx(real)


def test_integer_goldens_of_thm12() -> None:
    weights, hit = outcome_weights(0.8, 4), power_law_table(5, 1.0, 1.0, 20)
    assert exact_fanout(weights, hit, 20) == (4, 4, 3, 3, 6)
    assert expected_hit(weights, hit, (4, 4, 3, 3, 6)) == pytest.approx(0.764933, abs=1e-6)
    assert hit_rate_primary(0.8, (4, 4, 3, 3, 6), 1.0) == pytest.approx(0.764933, abs=1e-6)

    weights, hit = outcome_weights(0.8, 5), power_law_table(6, 0.5, 1.0, 32)
    assert exact_fanout(weights, hit, 32) == (6, 5, 5, 4, 3, 9)
    assert expected_hit(weights, hit, (6, 5, 5, 4, 3, 9)) == pytest.approx(0.581830, abs=1e-6)


@given(a=st.floats(0.01, 0.99), r=st.floats(0.05, 3.0), k=st.integers(1, 12), budget=st.integers(1, 100))
def test_geometric_is_the_printed_form(a: float, r: float, k: int, budget: int) -> None:
    root = 1.0 / (1.0 + r)
    last = a ** (k * root) * (1.0 - a) ** -root
    first = budget / (last + (1.0 - a ** (k * root)) / (1.0 - a**root))
    printed = [first * a ** (j * root) for j in range(k)] + [first * last]
    assert geometric_fanout(a, r, k, budget) == pytest.approx(printed, rel=1e-9)


def test_edges_of_the_printed_form() -> None:
    assert geometric_fanout(0.0, 1.0, 3, 8).tolist() == [8, 0, 0, 0]
    assert geometric_fanout(1.0, 1.0, 3, 8).tolist() == [0, 0, 0, 8]
    assert geometric_fanout(0.7, 1.0, 0, 8).tolist() == [8]
    # r -> 0: proportional to the weights .5 .25 .25
    assert geometric_fanout(0.5, 0.0, 2, 8).tolist() == [4, 2, 2]
    # F_K / F_(K-1) = (a / (1 - a))^(1/(1+r)): 3 at a = .9, r = 1
    real = geometric_fanout(0.9, 1.0, 4, 20)
    assert real[4] / real[3] == pytest.approx(3.0)


def test_largest_remainder() -> None:
    assert round_fanout([1.4, 2.7, 0.9], 5) == (1, 3, 1)
    assert round_fanout([1.5, 1.5, 1.0], 4) == (2, 1, 1)
    # 2.9999999999 is a 3 that lost its last bits, and takes no unit from the 1.5
    assert round_fanout([2.9999999999, 1.5, 1.5], 6) == (3, 2, 1)
    # .5 and .5 but for rounding: the first
    assert round_fanout([0.5, 0.5 + 1e-12], 1) == (1, 0)
    with pytest.raises(ValueError, match="sum to 3"):
        round_fanout([1.0, 2.0], 4)


def test_where_the_closed_form_fails() -> None:
    """a = .6, r = .5, K = 6, B = 12: it gives .3335 and, rounded, .3125; leaving positions empty .403."""
    weights, hit = outcome_weights(0.6, 6), power_law_table(7, 0.5, 1.0, 12)
    printed = geometric_fanout(0.6, 0.5, 6, 12)
    assert (printed < 1).sum() == 3
    assert (weights * power_law_hit(printed, 0.5)).sum() == pytest.approx(0.3335, abs=5e-5)
    assert expected_hit(weights, hit, round_fanout(printed, 12)) == pytest.approx(0.3125, abs=5e-5)
    best = relaxed_optimum(weights, 0.5, 1.0, 12)
    assert best == pytest.approx([5.41, 3.85, 2.74, 0, 0, 0, 0], abs=5e-3)
    assert (weights * power_law_hit(best, 0.5)).sum() == pytest.approx(0.403, abs=5e-4)
    whole = exact_fanout(weights, hit, 12)
    assert whole == (5, 4, 3, 0, 0, 0, 0)
    assert expected_hit(weights, hit, whole) == pytest.approx(0.402, abs=5e-4)


def test_the_scale_decides_how_many_positions_are_served() -> None:
    weights = outcome_weights(0.6, 6)
    assert exact_fanout(weights, power_law_table(7, 0.5, 0.5, 12), 12) == (3, 3, 2, 1, 1, 1, 1)
    # At c = .5 a single guess gains .5, so all seven positions get at least one.
    assert (relaxed_optimum(weights, 0.5, 0.5, 12) >= 1.0).all()


def _exhaustive(weights: np.ndarray, hit: np.ndarray, budget: int) -> float:
    choices = itertools.product(range(hit.shape[1]), repeat=len(weights))
    return max(expected_hit(weights, hit, f) for f in choices if sum(f) <= budget)


@settings(max_examples=60)
@given(data=st.data(), positions=st.integers(1, 4), deepest=st.integers(0, 4), budget=st.integers(0, 9))
def test_exact_is_the_best_of_all(data: st.DataObject, positions: int, deepest: int, budget: int) -> None:
    """Any curves: neither concave nor rising."""
    row = st.lists(probability, min_size=deepest, max_size=deepest)
    hit = np.array([[0.0, *data.draw(row)] for _ in range(positions)])
    weights = np.array(data.draw(st.lists(probability, min_size=positions, max_size=positions)))
    fanout = exact_fanout(weights, hit, budget)
    assert len(fanout) == positions and sum(fanout) <= budget
    assert expected_hit(weights, hit, fanout) == pytest.approx(_exhaustive(weights, hit, budget), abs=1e-10)


@given(a=probability, r=st.floats(0.1, 3.0), c=probability, k=st.integers(0, 8), budget=st.integers(1, 40))
def test_whole_guesses_cannot_beat_real_ones(a: float, r: float, c: float, k: int, budget: int) -> None:
    weights, hit = outcome_weights(a, k), power_law_table(k + 1, r, c, budget)
    real = relaxed_optimum(weights, r, c, budget)
    assert real.sum() == pytest.approx(budget)
    assert ((real == 0) | (real >= 1 - 1e-9)).all()
    best = (weights * np.where(real > 0, 1 - c * np.maximum(real, 1) ** -r, 0)).sum()
    whole = expected_hit(weights, hit, exact_fanout(weights, hit, budget))
    for other in (round_fanout(geometric_fanout(a, r, k, budget), budget), uniform_fanout(budget, k + 1)):
        assert expected_hit(weights, hit, other) <= whole + 1e-10
    assert whole <= best + 1e-9


@settings(max_examples=40)
@given(a=st.floats(0.1, 0.9), r=st.floats(0.2, 2.0), c=st.floats(0.2, 1.0), budget=st.floats(1.0, 20.0))
def test_relaxed_is_the_best_of_all_subsets(a: float, r: float, c: float, budget: float) -> None:
    """Against random real fan-outs on every subset of positions (K = 3)."""
    weights = outcome_weights(a, 3)
    fanout = relaxed_optimum(weights, r, c, budget)
    best = (weights * np.where(fanout > 0, 1 - c * np.maximum(fanout, 1) ** -r, 0)).sum()
    rng = np.random.default_rng(5)
    for subset in itertools.product((0, 1), repeat=4):
        if sum(subset):
            shares = rng.dirichlet(np.ones(sum(subset)), size=50) * budget
            tried = np.zeros((50, 4))
            tried[:, np.flatnonzero(subset)] = shares
            assert ((weights * power_law_hit(tried, r, c)).sum(axis=1) <= best + 1e-9).all()


def test_ties_go_to_fewer_guesses_then_to_earlier_positions() -> None:
    steps = [[0.0, 0.5, 0.5, 0.5]] * 3
    assert exact_fanout([1 / 3] * 3, steps, 9) == (1, 1, 1)
    assert exact_fanout([1 / 3] * 3, steps, 2) == (1, 1, 0)
    # .1 (.3 + .3 + .3) in any order of adding: equal but for the last bit
    line = [[0.0, 0.1, 0.2, 0.3]] * 4
    assert exact_fanout([0.1] * 4, line, 5) == (3, 2, 0, 0)
    assert exact_fanout([0.0, 0.0], [[0.0, 1.0]] * 2, 3) == (0, 0)
    assert exact_fanout([0.5, 0.5], [[0.0], [0.0]], 3) == (0, 0)


def test_a_budget_beyond_the_table_is_left_over() -> None:
    assert exact_fanout([0.5, 0.5], [[0.0, 0.4, 0.6]] * 2, 100) == (2, 2)


def test_large_problems_have_their_optimum() -> None:
    """K = 64, B = 512."""
    weights, hit = outcome_weights(0.9, 64), power_law_table(65, 0.5, 0.6, 512)
    fanout = exact_fanout(weights, hit, 512)
    assert sum(fanout) == 512
    # Optimal for rising concave curves: no guess gains more elsewhere.
    gain = weights[:, None] * np.diff(hit, axis=1)
    last = min(gain[k, f - 1] for k, f in enumerate(fanout) if f > 0)
    assert all(gain[k, f] <= last + 1e-12 for k, f in enumerate(fanout))


def test_stationary_is_not_optimal_where_curves_are_not_concave() -> None:
    """hit = F^3 / (F^3 + 8), a = .7, K = 2, B = 3: stationary at .099, but .378 with all at one position."""
    weights = outcome_weights(0.7, 2)  # .3 .21 .49

    def hit(fanout: np.ndarray) -> np.ndarray:
        return fanout**3 / (fanout**3 + 8)

    def slope(fanout: np.ndarray) -> np.ndarray:
        return 24 * fanout**2 / (fanout**3 + 8) ** 2

    # Newton's method on w_k p'(F_k) = lambda, sum F_k = 3, from an even start.
    point = np.array([1.0, 1.0, 1.0, 1.0])
    for _ in range(50):
        f, level = point[:3], point[3]
        wrong = np.append(weights * slope(f) - level, f.sum() - 3)
        bend = weights * (slope(f + 1e-6) - slope(f - 1e-6)) / 2e-6
        jacobian = np.block([[np.diag(bend), -np.ones((3, 1))], [np.ones((1, 3)), np.zeros((1, 1))]])
        point = point - np.linalg.solve(jacobian, wrong)
    stationary = point[:3]
    assert stationary_gap(weights, slope(stationary)) < 1e-12
    assert (weights * hit(stationary)).sum() == pytest.approx(0.099, abs=5e-4)
    # .49 * 27 / 35 = .378
    table = np.tile(hit(np.arange(4.0)), (3, 1))
    assert exact_fanout(weights, table, 3) == (0, 0, 3)
    assert expected_hit(weights, table, (0, 0, 3)) == pytest.approx(0.378)


def test_the_closed_form_is_stationary() -> None:
    real = geometric_fanout(0.8, 1.0, 4, 20)
    assert stationary_gap(outcome_weights(0.8, 4), real**-2.0) < 1e-15
    assert stationary_gap([0.5, 0.5], [0.1, 0.3]) == pytest.approx(0.1)


def test_a_backup_that_is_never_accepted_needs_position_0_only() -> None:
    assert exact_fanout(outcome_weights(0.0, 3), power_law_table(4, 1.0, 1.0, 9), 9) == (9, 0, 0, 0)


def test_bad_input_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="without a guess"):
        exact_fanout([1.0], [[0.1, 0.2]], 1)
    with pytest.raises(ValueError, match=r"lie in 0\.\.1"):
        exact_fanout([1.0], [[0.0, float("nan")]], 1)
    with pytest.raises(ValueError, match=r"\[2, Fmax \+ 1\]"):
        exact_fanout([0.5, 0.5], [[0.0, 0.2]], 1)
    with pytest.raises(ValueError, match="at least 0"):
        exact_fanout([-0.5], [[0.0, 0.2]], 1)
    with pytest.raises(ValueError, match="budget"):
        uniform_fanout(-1, 2)
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        expected_hit([1.0], [[0.0, 0.2]], (2,))
    with pytest.raises(ValueError, match="exponent"):
        geometric_fanout(0.5, -1.0, 2, 4)
    with pytest.raises(ValueError, match="scale"):
        relaxed_optimum([1.0], 1.0, 1.5, 4)
    assert relaxed_optimum([1.0], 1.0, 1.0, 0.5).tolist() == [0.0]
