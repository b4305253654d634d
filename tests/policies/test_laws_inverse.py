"""The inverses: round trips through the laws, their errors against repeated noise, their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.laws.inverse import acceptance_from_tokens, best_sd_lookahead, fit_sd, required_hit_rate
from policies.laws.ssd import expected_tokens, sd_speedup, ssd_speedup

SWEEP = [1, 2, 3, 4, 6, 8, 12]


class TestFit:
    """Acceptance and draft cost from a sweep of lookaheads."""

    @given(a=st.floats(0.2, 0.98), t=st.floats(0.005, 0.5), t_verify=st.floats(0.8, 2.0))
    def test_round_trip(self, a: float, t: float, t_verify: float) -> None:
        fit = fit_sd(SWEEP, [sd_speedup(a, k, t, t_verify) for k in SWEEP], t_verify=t_verify)
        assert (fit.acceptance, fit.t_draft) == (pytest.approx(a, abs=1e-5), pytest.approx(t, abs=1e-5))
        assert fit.residual < 1e-6 and fit.worst < 1e-6 and fit.points == len(SWEEP)

    def test_limits(self) -> None:
        always = fit_sd(SWEEP, [sd_speedup(1.0, k, 0.1) for k in SWEEP])
        assert always.acceptance == pytest.approx(1.0, abs=1e-6)
        free = fit_sd(SWEEP, [sd_speedup(0.7, k, 0.0) for k in SWEEP])
        assert free.t_draft == pytest.approx(0.0, abs=1e-6)
        never = fit_sd(SWEEP, [sd_speedup(0.0, k, 0.1) for k in SWEEP])
        assert (never.acceptance, never.t_draft) == (
            pytest.approx(0.0, abs=1e-5),
            pytest.approx(0.1, abs=1e-4),
        )

    def test_errors_are_those_of_repeated_noise(self) -> None:
        """150 sweeps with 0.2 % noise: the spread of the fits is what a fit says, within 25 %.

        A standard deviation of 150 values is known to 6 %, so that this is 4 standard errors.
        """
        rng = np.random.default_rng(12)
        clean = np.array([sd_speedup(0.8, k, 0.06) for k in SWEEP])
        fits = [fit_sd(SWEEP, (clean * rng.normal(1.0, 0.002, len(SWEEP))).tolist()) for _ in range(150)]
        for value, error, true in (
            ("acceptance", "acceptance_error", 0.8),
            ("t_draft", "t_draft_error", 0.06),
        ):
            values = np.array([getattr(fit, value) for fit in fits])
            stated = math.sqrt(np.mean([getattr(fit, error) ** 2 for fit in fits]))
            assert values.std() == pytest.approx(stated, rel=0.25)
            assert abs(values.mean() - true) < 4.9 * values.std() / math.sqrt(150)
        assert math.sqrt(np.mean([fit.residual**2 for fit in fits])) == pytest.approx(0.002, rel=0.15)

    def test_two_lookaheads_can_have_two_answers(self) -> None:
        for k in (2, 6):
            assert sd_speedup(0.71610, k, 0.04796) == pytest.approx(sd_speedup(0.8, k, 0.1), rel=2e-3)
        assert abs(sd_speedup(0.71610, 12, 0.04796) / sd_speedup(0.8, 12, 0.1) - 1.0) > 0.02
        with pytest.raises(ValueError, match="needs three"):
            fit_sd([2, 6], [2.0333, 2.4696])

    def test_a_law_that_does_not_hold_shows(self) -> None:
        """Acceptance that falls from .9 by .06 a position: the residual is far above rounding."""
        speedups = []
        for k in SWEEP:
            reached = np.cumprod([0.9 - 0.06 * i for i in range(k)])
            speedups.append((1.0 + reached.sum()) / (k * 0.05 + 1.0))
        assert fit_sd(SWEEP, speedups).residual > 0.01

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="needs three"):
            fit_sd([4, 4, 5], [2.0, 2.1, 2.1])
        with pytest.raises(ValueError, match="speedup for each"):
            fit_sd([4, 5], [2.0])
        with pytest.raises(ValueError, match="whole"):
            fit_sd([0, 5], [2.0, 2.0])
        with pytest.raises(ValueError, match="whole"):
            fit_sd([1, 5], [2.0, math.nan])
        with pytest.raises(ValueError, match="t_verify"):
            fit_sd([1, 3, 5], [2.0, 2.0, 2.0], t_verify=0.0)


class TestAcceptance:
    """Acceptance from the engines' acceptance length."""

    @given(a=st.floats(0.0, 1.0), k=st.integers(1, 40))
    def test_round_trip(self, a: float, k: int) -> None:
        tokens = expected_tokens(a, k)
        assume(1.0 <= tokens <= k + 1.0)  # not past the border by rounding
        assert expected_tokens(acceptance_from_tokens(tokens, k), k) == pytest.approx(tokens, rel=1e-12)
        assert acceptance_from_tokens(tokens, k) == pytest.approx(a, abs=1e-9)

    def test_by_hand_and_limits(self) -> None:
        # K = 1: 1 + a; K = 3: 1 + .5 + .25 + .125
        assert acceptance_from_tokens(1.3, 1) == pytest.approx(0.3)
        assert acceptance_from_tokens(1.875, 3) == pytest.approx(0.5)
        assert acceptance_from_tokens(1.0, 5) == 0.0 and acceptance_from_tokens(6.0, 5) == 1.0
        for bad in (0.9, 6.1, math.nan):
            with pytest.raises(ValueError, match="1 to 6 tokens"):
                acceptance_from_tokens(bad, 5)
        with pytest.raises(ValueError, match="lookahead 0"):
            acceptance_from_tokens(1.0, 0)


class TestHitRate:
    """Hit rate that a speedup needs."""

    @given(
        p=st.floats(0.0, 1.0),
        e_miss=st.floats(1.0, 4.0),
        gain=st.floats(0.1, 6.0),
        times=st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 2.0)),
        batch=st.integers(1, 8),
    )
    def test_round_trip(
        self, p: float, e_miss: float, gain: float, times: tuple[float, float], batch: int
    ) -> None:
        speedup = ssd_speedup(p, e_miss + gain, e_miss, *times, batch=batch)
        assume(speedup <= ssd_speedup(1.0, e_miss + gain, e_miss, *times, batch=batch))
        found = required_hit_rate(speedup, e_miss + gain, e_miss, *times, batch=batch)
        assert found == pytest.approx(p, abs=1e-9)

    def test_by_hand(self) -> None:
        # (4 p + 1 - p) / 1 = 2.5
        assert required_hit_rate(2.5, 4.0, 1.0, 0.8, 0.0) == pytest.approx(0.5)
        # (4 p + 1 - p) / (p + (1 - p) 2) = 2: 1 + 3 p = 4 - 2 p
        assert required_hit_rate(2.0, 4.0, 1.0, 0.8, 1.0) == pytest.approx(0.6)
        assert required_hit_rate(0.5, 4.0, 1.0, 0.8, 0.0) == 0.0
        assert required_hit_rate(4.0, 4.0, 1.0, 0.8, 1.0) == pytest.approx(1.0)

    def test_out_of_reach_says_what_is_in_reach(self) -> None:
        with pytest.raises(ValueError, match=r"hit rates of 0 to 1 give 0\.5 to 2"):
            required_hit_rate(2.5, 4.0, 1.0, 2.0, 0.0)
        with pytest.raises(ValueError, match="hits must pay"):
            required_hit_rate(2.0, 1.0, 2.0, 1.0, 0.0)
        with pytest.raises(ValueError, match="batch"):
            required_hit_rate(2.0, 2.0, 1.0, 1.0, 0.0, batch=0)


class TestBestLookahead:
    """The lookahead of the highest rate of vanilla speculative decoding."""

    @given(a=st.floats(0.0, 0.98), t=st.floats(0.001, 1.0), t_verify=st.floats(0.5, 3.0))
    def test_ours_is_what_trying_finds(self, a: float, t: float, t_verify: float) -> None:
        best = best_sd_lookahead(a, t, t_verify=t_verify)
        rates = [1.0, *(sd_speedup(a, k, t, t_verify) for k in range(1, 400))]
        assert rates[best] >= max(rates) * (1.0 - 1e-12)

    def test_limits(self) -> None:
        assert best_sd_lookahead(0.0, 0.1) == 0
        assert best_sd_lookahead(0.3, 0.5) == 0  # 1.3 tokens in 1.5 steps
        assert best_sd_lookahead(1.0, 0.1, longest=30) == 30
        # Dearer verification is paid once: a longer draft, or none at all.
        assert best_sd_lookahead(0.8, 0.1) < best_sd_lookahead(0.8, 0.1, t_verify=1.5)
        assert best_sd_lookahead(0.5, 0.1, t_verify=2.0) == 0
        with pytest.raises(ValueError, match="t_draft"):
            best_sd_lookahead(0.5, -0.1)
        with pytest.raises(ValueError, match="acceptance"):
            best_sd_lookahead(1.5, 0.1)
