"""Pipelines against their own simulation, the printed form against its goldens, and the best lookahead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.double import (
    balanced_lookahead,
    best_lookahead,
    pearl_run_length,
    pearl_speedup,
    plain_pipeline_speedup,
    psd_ceiling,
    psd_speedup_printed,
)


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
