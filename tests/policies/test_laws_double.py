"""DOUBLE: runs up to a rejection by enumeration, pipelines against their own simulation, printed goldens."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws import double
from policies.laws.double import (
    balanced_lookahead,
    best_lookahead,
    pearl_run_length,
    pearl_speedup,
    plain_pipeline_speedup,
    psd_ceiling,
    psd_speedup_printed,
)
from policies.laws.law import broadcast
from policies.laws.ssd import expected_tokens, sd_speedup


def test_golden_of_thm3() -> None:
    """a = .8, g = C = 4: printed 2.2781, a plain pipeline 1.8561, PEARL 2.1231."""
    assert psd_speedup_printed(0.8, 4, 4.0) == pytest.approx(2.2781, abs=5e-5)
    assert plain_pipeline_speedup(0.8, 4, 4.0) == pytest.approx(1.8561, abs=5e-5)
    assert pearl_speedup(0.8, 4, 4.0) == pytest.approx(2.1231, abs=5e-5)


def test_by_hand() -> None:
    # a = .5, g = 1: k = 2 rounds of 1 and a bubble of 1/2 (C = 2) for 2 tokens
    assert plain_pipeline_speedup(0.5, 1, 2.0) == pytest.approx(2 / 2.5)
    # E[L_p] = 1 + 1.5 tokens, 2 C / (2 + 2)
    assert psd_speedup_printed(0.5, 1, 2.0) == pytest.approx(2.5 * 2 / 4)
    # a = .9, g = 1, C = 5: printed 3.63, although a round lasts a target step and yields at most a token
    assert psd_speedup_printed(0.9, 1, 5.0) == pytest.approx(3.63, abs=5e-3)
    assert plain_pipeline_speedup(0.9, 1, 5.0) == pytest.approx(0.98, abs=5e-3)


def test_limits() -> None:
    for rate in (plain_pipeline_speedup, pearl_speedup):
        assert rate(1.0, 4, 4.0) == 4.0
        assert rate(1.0, 4, 8.0) == 4.0
        assert rate(1.0 - 1e-12, 4, 4.0) == pytest.approx(4.0, abs=1e-3)
    assert psd_speedup_printed(1.0, 4, 4.0) == 4.0
    assert psd_speedup_printed(1.0 - 1e-9, 4, 4.0) == pytest.approx(4.0, abs=1e-6)
    # a -> 0: printed 1/2, PEARL 1
    assert psd_speedup_printed(0.0, 4, 4.0) == 0.5
    assert pearl_speedup(0.0, 4, 4.0) == 1.0


@given(a=st.floats(0.0, 1.0), g=st.integers(1, 20), c=st.floats(0.1, 20.0))
def test_no_pipeline_passes_the_ceiling(a: float, g: int, c: float) -> None:
    assert pearl_speedup(a, g, c) <= psd_ceiling(c) * (1 + 1e-9)
    assert plain_pipeline_speedup(a, g, c) <= psd_ceiling(c) * (1 + 1e-9)
    if c >= 1.0:
        assert psd_speedup_printed(a, g, c) <= c * (1 + 1e-9)


def test_the_printed_form_passes_its_ceiling_for_a_slow_draft() -> None:
    worst = max(psd_speedup_printed(a, 1, 0.3) for a in np.linspace(0, 1, 1001))
    assert worst / psd_ceiling(0.3) == pytest.approx(1.11, abs=5e-3)


def _pipeline(
    rng: np.random.Generator, a: float, g: int, *, preverify: bool, cycles: int
) -> tuple[float, float]:
    """Tokens and rounds of `cycles` runs: g tokens are verified per round, one more to pre-verify a block."""
    tokens = rounds = 0
    for _ in range(cycles):
        run = rng.geometric(1.0 - a) - 1  # accepted before the first rejection
        tokens += run + 1
        if preverify:
            # The first round checks token 1 while the block is drafted, each later one g more.
            rounds += 1 if run < 1 else 1 + math.ceil(run / g)
        else:
            rounds += math.ceil((run + 1) / g)
    return tokens, rounds


@pytest.mark.parametrize(("a", "g"), [(0.8, 4), (0.5, 3), (0.9, 1), (0.95, 8)])
def test_against_tossed_coins(a: float, g: int) -> None:
    """100 000 runs at g = C: about 0.3 % of standard deviation; 1.5 % is allowed."""
    rng = np.random.default_rng(3)
    tokens, rounds = _pipeline(rng, a, g, preverify=True, cycles=100_000)
    assert pearl_speedup(a, g, float(g)) == pytest.approx(tokens / rounds, rel=0.015)
    tokens, rounds = _pipeline(rng, a, g, preverify=False, cycles=100_000)
    assert plain_pipeline_speedup(a, g, float(g)) == pytest.approx(tokens / (rounds + 100_000), rel=0.015)


def test_run_length() -> None:
    # .8 / .2; with the target's own token 5 = 1 / .2, which is what a PEARL round's tokens add up to
    assert pearl_run_length(0.8, 4) == pytest.approx(4.0)
    assert pearl_run_length(0.8, 9) == pearl_run_length(0.8, 4)
    assert pearl_run_length(0.0, 4) == 0.0
    assert pearl_run_length(1.0, 4) == math.inf


def test_balanced_lookahead_rounds_up() -> None:
    assert balanced_lookahead(4.0) == 4
    assert balanced_lookahead(1.0 / 0.24) == 5
    assert balanced_lookahead(0.1 / 0.4) == 1
    # 2.1 / .3 = 7.000000000000001 is 7
    assert balanced_lookahead(2.1 / 0.3) == 7
    with pytest.raises(ValueError, match="speed_ratio"):
        balanced_lookahead(0.0)


@pytest.mark.parametrize("a", [0.3, 0.6, 0.8, 0.95, 0.99])
def test_best_lookahead_of_pearl(a: float) -> None:
    """`duo.budget`: C where it is whole; for C = 8.4 the ceiling only at .99, for 8.6 from .95 on."""
    assert best_lookahead(a, 24.0) == 24
    assert best_lookahead(a, 8.4) == (9 if a >= 0.99 else 8)
    assert best_lookahead(a, 8.6) == (9 if a >= 0.95 else 8)
    assert best_lookahead(a, 0.4) == 1


@given(a=st.floats(0.0, 1.0), c=st.floats(0.1, 30.0))
def test_best_lookahead_is_next_to_the_ratio(a: float, c: float) -> None:
    best = pearl_speedup(a, best_lookahead(a, c, longest=80), c)
    near = max(pearl_speedup(a, g, c) for g in {max(1, math.floor(c)), math.ceil(c)})
    assert best == pytest.approx(near, rel=1e-12)


def test_best_lookahead_of_another_rate() -> None:
    """Without pre-verification, a = .8, C = 24: 9; 24 is 24 % slower."""
    assert best_lookahead(0.8, 24.0, plain_pipeline_speedup) == 9
    loss = 1.0 - plain_pipeline_speedup(0.8, 24, 24.0) / plain_pipeline_speedup(0.8, 9, 24.0)
    assert loss == pytest.approx(0.24, abs=5e-3)
    assert best_lookahead(0.8, 24.0, lambda _a, g, _c: float(g), longest=5) == 5
    # A rate that does not care: the shortest.
    assert best_lookahead(0.8, 24.0, lambda _a, _g, _c: 1.0) == 1


def test_bad_input_says_what_is_wrong() -> None:
    for rate in (plain_pipeline_speedup, pearl_speedup, psd_speedup_printed):
        with pytest.raises(ValueError, match="lookahead"):
            rate(0.5, 0, 4.0)
        with pytest.raises(ValueError, match="speed_ratio"):
            rate(0.5, 1, math.nan)
    with pytest.raises(ValueError, match="speed_ratio"):
        psd_ceiling(0.0)
    with pytest.raises(ValueError, match="longest"):
        best_lookahead(0.5, 4.0, longest=0)


acceptances = st.floats(0.0, 1.0)
blocks = st.integers(1, 20)


def _round_lengths(a: Fraction, g: int) -> dict[int, Fraction]:
    """Exact law of the accepted tokens of a round, by going through every pattern of coins."""
    law = dict.fromkeys(range(g + 1), Fraction(0))
    for coins in itertools.product((True, False), repeat=g):
        accepted = coins.index(False) if False in coins else g
        law[accepted] += a ** sum(coins) * (1 - a) ** (g - sum(coins))
    return law


@pytest.mark.parametrize("a", [Fraction(0), Fraction(1, 3), Fraction(4, 5), Fraction(99, 100)])
@pytest.mark.parametrize("g", [1, 2, 5])
def test_a_run_by_exact_enumeration(a: Fraction, g: int) -> None:
    """k is 1 over the chance of a rejection; a run has k - 1 full rounds and one that rejects."""
    law = _round_lengths(a, g)
    rejects = 1 - law[g]
    k = 1 / rejects
    last = sum((n + 1) * law[n] for n in range(g)) / rejects
    assert double.rounds_per_run(float(a), g) == pytest.approx(float(k), rel=1e-12)
    assert double.run_tokens(float(a), g) == pytest.approx(float((k - 1) * (g + 1) + last), rel=1e-12)
    # In a pipeline a full round yields g tokens.
    assert double.pipeline_run_tokens(float(a), g) == pytest.approx(float((k - 1) * g + last), rel=1e-12)
    # What the printed form takes for the last round has the rejection taken out of its condition.
    excess = law[g] * ((g + 1) - last)
    printed = float((k - 1) * (g + 1) + last + excess)
    assert double.run_tokens_printed(float(a), g) == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize("a", [Fraction(0), Fraction(1, 3), Fraction(4, 5), Fraction(1)])
@pytest.mark.parametrize("g", [0, 1, 2, 5])
def test_tokens_of_a_round_by_exact_enumeration(a: Fraction, g: int) -> None:
    mean = sum((n + 1) * weight for n, weight in _round_lengths(a, g).items())
    assert expected_tokens(float(a), g) == pytest.approx(float(mean), rel=1e-12)


def test_goldens_of_thm2_and_eq11() -> None:
    """a = .8, g = 4: k = 1.693767, printed 6.830435, exact 5.693767; g = C = 4: 2.016 and 1.681."""
    assert double.rounds_per_run(0.8, 4) == pytest.approx(1.693767, abs=5e-7)
    assert double.run_tokens_printed(0.8, 4) == pytest.approx(6.830435, abs=5e-7)
    assert double.run_tokens(0.8, 4) == pytest.approx(5.693767, abs=5e-7)
    assert double.sd_run_speedup_printed(0.8, 4, 4.0) == pytest.approx(2.016, abs=5e-4)
    assert double.sd_run_speedup(0.8, 4, 4.0) == pytest.approx(1.681, abs=5e-4)


def test_how_far_the_printed_run_is_off() -> None:
    """At most 17 % at g = 1 and 21 % at g = 12, for g = 4 near a = .77; never too low."""
    a = np.linspace(0.0, 0.9999, 10_000)

    def ratio(g: int) -> np.ndarray:
        forms = double.run_tokens_printed, double.run_tokens
        printed, exact = (broadcast(form, acceptance=a, lookahead=g) for form in forms)
        return printed / exact

    for g, worst in ((1, 0.17), (12, 0.21)):
        assert ratio(g).min() >= 1.0 - 1e-12 and ratio(g).max() - 1.0 == pytest.approx(worst, abs=5e-3)
    assert a[ratio(4).argmax()] == pytest.approx(0.77, abs=0.01)


@pytest.mark.parametrize(("a", "g"), [(0.8, 4), (0.5, 2), (0.93, 8)])
def test_runs_against_tossed_coins(a: float, g: int) -> None:
    """50 000 runs; 4.9 standard errors allowed: one false alarm in a million."""
    rng = np.random.default_rng(11)
    rounds, tokens = np.zeros(50_000), np.zeros(50_000)
    running = np.ones(50_000, dtype=bool)
    while running.any():
        accepted = np.minimum(rng.geometric(1.0 - a, len(rounds)) - 1, g)
        rounds += running
        tokens += running * (accepted + 1)
        running &= accepted == g
    for sample, law in ((rounds, double.rounds_per_run(a, g)), (tokens, double.run_tokens(a, g))):
        assert abs(sample.mean() - law) < 4.9 * sample.std() / math.sqrt(len(sample))


@given(a=acceptances, g=st.integers(0, 20), c=st.floats(0.1, 50.0))
def test_sd_is_the_law_of_ssd(a: float, g: int, c: float) -> None:
    assert double.sd_run_speedup(a, g, c) == pytest.approx(sd_speedup(a, g, 1.0 / c), rel=1e-9)


def test_limits_are_values() -> None:
    assert double.rounds_per_run(1.0, 4) == math.inf and double.rounds_per_run(0.0, 4) == 1.0
    assert [double.rounds_per_run(a, 0) for a in (0.0, 0.5, 1.0)] == [math.inf] * 3
    for tokens in (double.run_tokens, double.run_tokens_printed):
        assert tokens(1.0, 4) == math.inf and tokens(0.5, 0) == math.inf and tokens(0.0, 4) == 1.0
    for speedup in (double.sd_run_speedup, double.sd_run_speedup_printed):
        assert speedup(0.5, 0, 4.0) == 1.0 and speedup(1.0, 4, 4.0) == 2.5
        assert speedup(0.0, 4, 4.0) == 0.5
    assert double.pipeline_run_tokens(1.0, 4) == math.inf == double.pipeline_run_tokens_printed(1.0, 4)
    assert double.psd_middle_bound(1.0, 4, 4.0) == 4.0
    # Next to the border as at it: nothing cancels.
    assert double.run_tokens(1.0 - 1e-12, 4) == pytest.approx(5.0 / 4e-12, rel=1e-3)


@given(a=st.floats(0.0, 0.999), g=blocks, c=st.floats(0.1, 20.0))
def test_the_printed_pipeline_is_built_from_its_parts(a: float, g: int, c: float) -> None:
    k = double.rounds_per_run(a, g)
    printed = double.pipeline_run_tokens_printed(a, g) * c / (k * g + c)
    assert printed == pytest.approx(psd_speedup_printed(a, g, c), rel=1e-9)
    exact = double.pipeline_run_tokens(a, g) / (g / c + k * max(float(g), c) / c)
    assert exact == pytest.approx(plain_pipeline_speedup(a, g, c), rel=1e-9)


@given(a=acceptances, g=blocks, c=st.floats(0.1, 20.0))
def test_eq12_is_exact_once_the_run_is(a: float, g: int, c: float) -> None:
    k, tokens = double.rounds_per_run(a, g), double.run_tokens(a, g)
    if k < 1e6:
        assert tokens - (k - 1.0) == pytest.approx(double.pipeline_run_tokens(a, g), rel=1e-6)


class TestThm3:
    """S_SD <= S_PSD <= k g C/(k g + C) <= C, link by link."""

    def test_sd_is_below_psd_only_where_sd_pays(self) -> None:
        a = np.linspace(0.0, 0.9999, 200)
        for g in range(1, 13):
            for c in np.linspace(0.3, 12.0, 40):
                sd = broadcast(double.sd_run_speedup_printed, acceptance=a, lookahead=g, speed_ratio=c)
                psd = np.array([psd_speedup_printed(x, g, c) for x in a])
                # (N - D)/(D - shift) by the proof: the same sign as S_SD - 1.
                assert (psd >= sd - 1e-12)[sd >= 1.0].all()
                assert (psd <= sd + 1e-12)[sd <= 1.0].all()

    def test_counterexample_to_the_first_link(self) -> None:
        for a in (0.003, 0.2, 0.475):
            assert psd_speedup_printed(a, 4, 3.9) < double.sd_run_speedup_printed(a, 4, 3.9)
        assert psd_speedup_printed(0.477, 4, 3.9) > double.sd_run_speedup_printed(0.477, 4, 3.9)
        # not strictly, either
        assert psd_speedup_printed(0.0, 4, 4.0) == double.sd_run_speedup_printed(0.0, 4, 4.0) == 0.5

    @given(a=st.floats(0.0, 0.999), g=blocks, c=st.floats(0.1, 20.0))
    def test_the_middle_bound_holds_iff_a_round_has_at_most_g_tokens(
        self, a: float, g: int, c: float
    ) -> None:
        tokens = expected_tokens(a, g)
        if abs(tokens - g) > 1e-6:
            holds = psd_speedup_printed(a, g, c) <= double.psd_middle_bound(a, g, c)
            assert holds == (tokens < g)

    def test_counterexample_to_the_middle_bound(self) -> None:
        assert psd_speedup_printed(0.95, 2, 3.0) == pytest.approx(2.726, abs=5e-4)
        assert double.psd_middle_bound(0.95, 2, 3.0) == pytest.approx(2.617, abs=5e-4)

    @given(a=acceptances, g=blocks, c=st.floats(0.1, 20.0))
    def test_the_middle_bound_is_below_the_ceiling(self, a: float, g: int, c: float) -> None:
        assert double.psd_middle_bound(a, g, c) <= c * (1.0 + 1e-12)


class TestEq7:
    """DOUBLE's own speedup: retrieval makes tokens cheaper for the draft."""

    def test_the_three_readings_of_gamma(self) -> None:
        """4 forwards, AMT 1, a = .95, C = 4: exact 5.04, g in tokens 5.83, mixed 9.32."""
        k = double.rounds_per_run(0.95, 8)
        exact = double.double_speedup(double.pipeline_run_tokens(0.95, 8), 0.0, k, 4, 4.0)
        assert exact == pytest.approx(5.04, abs=5e-3)
        assert exact == pytest.approx(plain_pipeline_speedup(0.95, 8, 8.0), rel=1e-12)
        printed = double.pipeline_run_tokens_printed(0.95, 8)
        assert double.double_speedup_printed(printed, 0.0, k, 8, 4.0, matched=1.0) == pytest.approx(
            5.83, abs=5e-3
        )
        assert double.double_speedup_printed(printed, 0.0, k, 4, 4.0, matched=1.0) == pytest.approx(
            9.32, abs=5e-3
        )

    @given(a=st.floats(0.0, 0.999), g=blocks, c=st.floats(0.1, 20.0))
    def test_without_retrieval_it_is_the_pipeline(self, a: float, g: int, c: float) -> None:
        k = double.rounds_per_run(a, g)
        printed = double.double_speedup_printed(double.pipeline_run_tokens_printed(a, g), 0.0, k, g, c)
        assert printed == pytest.approx(psd_speedup_printed(a, g, c), rel=1e-9)
        exact = double.double_speedup(double.pipeline_run_tokens(a, g), 0.0, k, g, c)
        assert exact == pytest.approx(plain_pipeline_speedup(a, g, c), rel=1e-9)

    def test_counterexample_to_the_ceiling(self) -> None:
        assert double.double_speedup_printed(1.0, 10.0, 1.0, 2, 2.0) == 5.5
        assert not double.double_ceiling_binds(1.0, 10.0, 1.0, 2, 2.0)

    @given(
        tokens=st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)),
        k=st.floats(1.0, 100.0),
        g=blocks,
        c=st.floats(0.1, 20.0),
    )
    def test_the_ceiling_binds_where_it_says(
        self, tokens: tuple[float, float], k: float, g: int, c: float
    ) -> None:
        for matched in (0.0, 0.7, 5.0):
            speedup = double.double_speedup_printed(*tokens, k, g, c, matched=matched)
            ceiling = c * (1.0 + matched)
            if abs(speedup - ceiling) > 1e-9 * ceiling:
                binds = double.double_ceiling_binds(*tokens, k, g, c, matched=matched)
                assert (speedup < ceiling) == binds

    def test_against_a_pipeline_with_phrases(self) -> None:
        """20 000 runs of f = 3 forwards of 1 + Poisson tokens and a bonus per run; 1 % allowed, 8 sd."""
        rng = np.random.default_rng(5)
        a, f, c = 0.9, 3, 4.0
        tokens = time = rounds = bonus = 0.0
        for _ in range(20_000):
            time += f / c  # the bubble
            while True:
                block = f + rng.poisson(0.7 * f)
                accepted = min(rng.geometric(1.0 - a) - 1, block)
                tokens, rounds, time = tokens + accepted, rounds + 1, time + max(f / c, 1.0)
                if accepted < block:
                    break
            extra = rng.poisson(1.5)
            bonus += extra
            tokens += 1
        law = double.double_speedup(tokens / 20_000, bonus / 20_000, rounds / 20_000, f, c)
        assert law == pytest.approx((tokens + bonus) / time, rel=1e-9)
        assert tokens / 20_000 == pytest.approx(double.pipeline_run_tokens(a, f), rel=0.03)

    def test_draft_length(self) -> None:
        """Mean of f phrases of one own token and a Poisson number of matched ones; 5 standard errors."""
        sample = (1 + np.random.default_rng(4).poisson(2.5, (20_000, 4))).sum(axis=1)
        assert abs(sample.mean() - double.draft_length(4, 2.5)) < 5.0 * sample.std() / math.sqrt(20_000)
        assert double.draft_length(0, 3.0) == 0.0


def test_arrays_broadcast() -> None:
    a, g = np.linspace(0.0, 0.9, 4)[:, None], np.arange(1, 6)
    table = broadcast(double.run_tokens, acceptance=a, lookahead=g)
    assert np.shape(table) == (4, 5)
    assert table[2][3] == pytest.approx(double.run_tokens(0.6, 4))
    assert isinstance(double.run_tokens(0.5, 2), float)


def test_out_of_domain_says_what_is_wrong() -> None:
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="acceptance"):
            double.run_tokens(bad, 4)
    with pytest.raises(ValueError, match="lookahead"):
        double.run_tokens_printed(0.5, -1)
    with pytest.raises(ValueError, match="lookahead must be at least 1"):
        double.pipeline_run_tokens(0.5, 0)
    with pytest.raises(ValueError, match="lookahead must be at least 1"):
        double.psd_middle_bound(0.5, 0, 4.0)
    with pytest.raises(ValueError, match="speed_ratio"):
        double.sd_run_speedup(0.5, 4, 0.0)
    with pytest.raises(ValueError, match="run_rounds"):
        double.double_speedup(1.0, 0.0, 0.5, 4, 4.0)
    with pytest.raises(ValueError, match="run_drafted"):
        double.double_speedup_printed(-1.0, 0.0, 1.0, 4, 4.0)
    with pytest.raises(ValueError, match="matched"):
        double.draft_length(4, -1.0)
