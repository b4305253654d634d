"""DuoDecoding: rates against tossed coins, budgets against trying, verification against exact laws."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.laws.double import pearl_speedup, plain_pipeline_speedup
from policies.laws.duo import (
    best_budget,
    budget_printed,
    draft_sequences,
    draft_sequences_printed,
    duo_speedup,
    iteration_time,
    ttft_ratio,
    verify_iteration,
)


def test_iteration_time_by_hand() -> None:
    assert iteration_time(8, 0.125) == 1.0
    assert iteration_time(10, 0.125, t_communication=0.1) == pytest.approx(1.35)
    assert iteration_time(0, 0.125, t_verify=1.2) == 1.2
    with pytest.raises(ValueError, match="lookahead"):
        iteration_time(-1, 0.1)
    with pytest.raises(ValueError, match="t_draft"):
        iteration_time(1, math.nan)


def test_iterations_on_two_clocks() -> None:
    """Both devices start together, the draft steps one by one, and both wait for the exchange."""
    for lookahead, t_draft, t_verify, link in (
        (24, 0.05, 1.0, 0.02),
        (8, 0.05, 1.0, 0.0),
        (3, 0.5, 0.7, 0.1),
    ):
        start, iterations = 0.0, 50
        for _ in range(iterations):
            draft, target = start, start + t_verify
            for _ in range(lookahead):
                draft += t_draft
            start = (draft if draft > target else target) + link
        law = iteration_time(lookahead, t_draft, t_verify=t_verify, t_communication=link)
        assert start / iterations == pytest.approx(law, rel=1e-12)


def _iterations(rng: np.random.Generator, a: float, g: int, count: int) -> int:
    """Tokens of `count` iterations, played token by token.

    Pending tokens are those of the last draft but its first, which was judged with them; a draft is lost if
    anything before it was rejected.
    """
    tokens = pending = 0
    for _ in range(count):
        accepted = min(rng.geometric(1.0 - a) - 1, pending + 1)  # the pending and the new draft's first
        if accepted == pending + 1:
            tokens += accepted
            pending = g - 1
        else:
            tokens += accepted + 1
            pending = 0
    return tokens


@pytest.mark.parametrize(("a", "g", "c"), [(0.8, 6, 8.0), (0.5, 1, 3.0), (0.95, 12, 8.0)])
@pytest.mark.parametrize("growth", [0.01, 0.1])
def test_rate_against_tossed_coins(a: float, g: int, c: float, growth: float) -> None:
    """60 000 iterations, jitter in both devices: about 0.4 % of standard deviation; 2 % allowed.

    The mean time by itself is known better: 4.9 standard errors of it are allowed.
    """
    rng, count = np.random.default_rng(8), 60_000
    noise = {"verify_growth": growth, "jitter_target": 0.25, "jitter_draft": 0.2}
    verify = rng.normal(1.0 + growth * g, 0.25 * (1.0 + growth * g), count)
    draft = rng.normal(g / c, 0.2 * g / c, count)
    times = np.maximum(verify, draft) + 0.05
    law = duo_speedup(a, g, c, **noise, t_communication=0.05)
    assert law == pytest.approx(_iterations(rng, a, g, count) / times.sum(), rel=0.02)
    mean = pearl_speedup(a, g, float(g)) / law
    assert abs(times.mean() - mean) < 4.9 * times.std() / math.sqrt(count)


@given(a=st.floats(0.0, 1.0), g=st.integers(1, 30), c=st.floats(0.1, 30.0))
def test_without_jitter_it_is_pearl(a: float, g: int, c: float) -> None:
    assert duo_speedup(a, g, c) == pytest.approx(pearl_speedup(a, g, c), rel=1e-12)
    by_time = pearl_speedup(a, g, float(g)) / iteration_time(g, 1.0 / c)
    assert duo_speedup(a, g, c) == pytest.approx(by_time, rel=1e-12)


class TestBudget:
    """`duo.budget`: the cost ratio is right for constant times, and too long otherwise."""

    @pytest.mark.parametrize("a", [0.3, 0.6, 0.8, 0.95, 0.99])
    def test_whole_ratios(self, a: float) -> None:
        assert best_budget(a, 24.0) == 24 == budget_printed(24.0)
        assert best_budget(a, 8.4) == (9 if a >= 0.99 else 8)
        assert best_budget(a, 8.6) == (9 if a >= 0.95 else 8)
        assert best_budget(a, 0.5) == 1

    @pytest.mark.parametrize(("c", "border"), [(8.2, 0.9801), (8.4, 0.9507), (8.6, 0.9039), (8.8, 0.8188)])
    def test_from_where_on_rounding_up_is_better(self, c: float, border: float) -> None:
        assert best_budget(border - 2e-3, c) == 8
        assert best_budget(border + 2e-3, c) == 9

    def test_where_verification_grows(self) -> None:
        """0.5 % per token, c = 24, a = .8: best 14; 24 loses 2.7 %."""
        assert best_budget(0.8, 24.0, verify_growth=0.005) == 14
        rates = [duo_speedup(0.8, g, 24.0, verify_growth=0.005) for g in (24, 14)]
        assert 1.0 - rates[0] / rates[1] == pytest.approx(0.027, abs=5e-4)

    @pytest.mark.parametrize("device", ["jitter_target", "jitter_draft"])
    def test_with_jitter(self, device: str) -> None:
        """A coefficient of variation of .1 in one device, c = 24, a = .8: best 20; 24 loses 3.4 %."""
        noise = {device: 0.1}
        assert best_budget(0.8, 24.0, **noise) == 20
        rates = [duo_speedup(0.8, g, 24.0, **noise) for g in (24, 20)]
        assert 1.0 - rates[0] / rates[1] == pytest.approx(0.034, abs=1e-3)

    def test_without_pre_verification(self) -> None:
        loss = 1.0 - plain_pipeline_speedup(0.8, 24, 24.0) / plain_pipeline_speedup(0.8, 9, 24.0)
        assert loss == pytest.approx(0.24, abs=5e-3)

    def test_one_token_beside_the_best(self) -> None:
        """c = 24, a = .8 to .95: 3 to 4 % lost at 25, 0.05 to 1.3 % at 23."""
        for a in (0.8, 0.9, 0.95):
            at = duo_speedup(a, 24, 24.0)
            assert 0.028 < 1.0 - duo_speedup(a, 25, 24.0) / at < 0.04
            assert 0.0005 < 1.0 - duo_speedup(a, 23, 24.0) / at < 0.013

    @given(
        a=st.floats(0.0, 0.98),
        c=st.floats(0.2, 20.0),
        growth=st.floats(0.0, 0.1),
        jitter=st.floats(0.0, 0.3),
        link=st.floats(0.0, 2.0),
    )
    def test_ours_is_what_trying_finds(
        self, a: float, c: float, growth: float, jitter: float, link: float
    ) -> None:
        setting = {"verify_growth": growth, "jitter_target": jitter, "t_communication": link}
        best = duo_speedup(a, best_budget(a, c, **setting), c, **setting)
        assert best >= max(duo_speedup(a, g, c, **setting) for g in range(1, 300)) * (1.0 - 1e-12)

    def test_nothing_rejected_and_a_price_per_exchange(self) -> None:
        assert best_budget(1.0, 4.0, t_communication=1.0, largest=50) == 50
        assert best_budget(1.0, 4.0) == 4

    def test_bad_input(self) -> None:
        for function in (budget_printed, lambda c: best_budget(0.5, c), lambda c: duo_speedup(0.5, 1, c)):
            with pytest.raises(ValueError, match="speed_ratio"):
                function(0.0)
        with pytest.raises(ValueError, match="verify_growth"):
            duo_speedup(0.5, 1, 4.0, verify_growth=-0.1)
        with pytest.raises(ValueError, match="largest"):
            best_budget(0.5, 4.0, largest=0)


class TestTheta:
    """`duo.theta`."""

    def test_by_hand(self) -> None:
        # .5 * .4 = .2: .5 and .3 are above it, .2 is not
        assert draft_sequences([0.3, 0.5, 0.2], 0.4).first_tokens == (1, 0)
        assert draft_sequences([0.3, 0.5, 0.2], 0.4).theta == pytest.approx(0.2)
        assert draft_sequences([0.3, 0.5, 0.2], 0.0).first_tokens == (1, 0, 2)
        # Sure of both: the printed test is .5 > .5, and 1 > 1 for a one-hot law.
        for law in ([0.3, 0.5, 0.2], [0.0, 1.0, 0.0]):
            assert draft_sequences_printed(law, 1.0).first_tokens == ()
            assert draft_sequences(law, 1.0).first_tokens == (1,)
        # Equally likely tokens by id
        assert draft_sequences([0.25] * 4, 0.9).first_tokens == (0, 1, 2, 3)

    @given(
        weights=st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any),
        next_top=st.fractions(0, 1, max_denominator=9),
    )
    def test_against_counting(self, weights: list[int], next_top: Fraction) -> None:
        law = [Fraction(w, sum(weights)) for w in weights]
        theta = max(law) * next_top
        assume(theta not in law or next_top in (0, 1))  # floating point would decide other ties
        above = {token for token, x in enumerate(law) if x > theta}
        printed = draft_sequences_printed([float(x) for x in law], float(next_top)).first_tokens
        assert set(printed) == above
        kept = draft_sequences([float(x) for x in law], float(next_top)).first_tokens
        assert kept == (printed or (law.index(max(law)),))

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="next_top"):
            draft_sequences([0.5, 0.5], 1.5)
        with pytest.raises(ValueError, match="sum to 1"):
            draft_sequences([0.5, 0.4], 0.5)


class TestIteration:
    """`duo.verify`, pending tokens and all."""

    def test_a_whole_iteration_has_the_targets_law(self) -> None:
        """One pending token and two sequences, all coins of a grid: the law of the first two tokens."""
        target = {None: [0.25, 0.75], 0: [0.5, 0.5], 1: [0.25, 0.75]}
        q, grid = [0.5, 0.5], [(i + 0.5) / 4 for i in range(4)]
        law: Counter[tuple[int, ...]] = Counter()
        for x, coins in itertools.product((0, 1), itertools.product(grid, repeat=4)):
            emitted, number = verify_iteration([x], [target[None], target[x]], [q], [1, 0], coins)
            assert (number is None) or emitted == (x, (1, 0)[number])
            for last in (0, 1):
                chance = target[emitted[0]][last] if len(emitted) == 1 else float(emitted[1] == last)
                law[emitted[0], last] += 0.5 * chance / 4**4
        exact = {(x, y): target[None][x] * target[x][y] for x in (0, 1) for y in (0, 1)}
        assert dict(law) == pytest.approx(exact)

    def test_an_iteration_refuses_what_does_not_fit(self) -> None:
        with pytest.raises(ValueError, match="target rows"):
            verify_iteration([0], [[0.5, 0.5]], [[0.5, 0.5]], [], [0.5, 0.5])
        with pytest.raises(ValueError, match="coins"):
            verify_iteration([], [[0.5, 0.5]], [], [0], [0.5])


def test_ttft() -> None:
    """1.3 to 1.4 times AR against 1.5 to 1.7: between .76 and .93, and .84 in the middle; printed 83 %."""
    assert ttft_ratio(1.35, 1.6) == pytest.approx(0.84, abs=5e-3)
    assert ttft_ratio(1.3, 1.7) < 0.83 < ttft_ratio(1.4, 1.5)
    with pytest.raises(ValueError, match="ttft_sd"):
        ttft_ratio(1.0, 0.0)
