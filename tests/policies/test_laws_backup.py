"""The switch of backups against trying every batch size, and how often the printed formula is wrong."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies.laws.ssd import (
    fallback_speedups,
    hit_rate,
    switch_batch,
    switch_batch_printed,
)


def _switch(b_star: float) -> float:
    """Integer batch size of a switch."""
    return b_star if b_star == math.inf else max(1, math.ceil(b_star))


def switch_batch_brute(
    p_hit_primary: float, p_hit_backup: float, e_hit: float, e_miss: float, t_primary: float
) -> int | None:
    """Smallest batch size whose fast backup is at least as fast as the slow one; None up to 1024.

    From there on the fast one stays ahead, since its speedup does not depend on the batch while the slow
    one's falls.
    """
    for batch in range(1, 1025):
        slow, fast = fallback_speedups(p_hit_primary, p_hit_backup, e_hit, e_miss, t_primary, batch=batch)
        if fast >= slow * (1.0 - 1e-12):
            return batch
    return None


def test_golden_of_thm17() -> None:
    """p_p = .9, p_b = .2, E = 4 / 1, T_p = .6: b* = 7.70, printed 2.00 (with p_f) or 1.38 (with p_p)."""
    assert hit_rate(0.9, 0.2) == pytest.approx(2 / 3)
    assert switch_batch(0.9, 0.2, 4.0, 1.0, 0.6) == pytest.approx(7.70, abs=5e-3)
    assert switch_batch_printed(2 / 3, 4.0, 1.0, 0.6) == pytest.approx(2.00, abs=5e-3)
    assert switch_batch_printed(0.9, 4.0, 1.0, 0.6) == pytest.approx(1.38, abs=5e-3)
    assert switch_batch_brute(0.9, 0.2, 4.0, 1.0, 0.6) == 8


def test_golden_by_hand() -> None:
    # p_f = 2/3, D = 2/3 4 + 1/3 = 3; slow: 4 / (1.6 - .6 .9^b); equal where .9^b = (1.6 - 4/3) / .6 = 4/9
    assert switch_batch(0.9, 0.2, 4.0, 1.0, 0.6) == pytest.approx(math.log(4 / 9) / math.log(0.9))
    slow, fast = fallback_speedups(0.9, 0.2, 4.0, 1.0, 0.6, batch=1)
    assert (slow, fast) == (pytest.approx(4 / (1.6 - 0.54)), pytest.approx(3.0))


def test_slow_and_fast_are_equal_at_the_switch() -> None:
    # .9^2 = .81 is to be the argument: E_hit / D = 1 + .19 T_p with D = 3 and T_p = 1 -> E_hit = 3.57
    p_fast = hit_rate(0.9, 0.2)
    e_miss = (3.0 - p_fast * 3.57) / (1.0 - p_fast)
    assert switch_batch(0.9, 0.2, 3.57, e_miss, 1.0) == pytest.approx(2.0)
    slow, fast = fallback_speedups(0.9, 0.2, 3.57, e_miss, 1.0, batch=2)
    assert slow == pytest.approx(fast)


def test_a_long_tree_pass() -> None:
    """A common p_hit of .6, E = 6 / 1, T_p = 1.5: printed .79, but the switch is at 2."""
    assert switch_batch_printed(0.6, 6.0, 1.0, 1.5) == pytest.approx(0.79, abs=5e-3)
    # A round lasts 1.5 either way: .6^b = 1 - (6 - 4) / 4 = .5
    assert switch_batch(0.6, 0.6, 6.0, 1.0, 1.5) == pytest.approx(math.log(0.5) / math.log(0.6))
    assert switch_batch_brute(0.6, 0.6, 6.0, 1.0, 1.5) == 2


GRID = list(
    itertools.product(
        (0.5, 0.7, 0.8, 0.9, 0.95), (0.1, 0.3, 0.5, 0.7), (3.0, 4.0, 5.0), (1.0, 1.6), (0.23, 0.47, 0.91)
    )
)


def test_the_printed_formula_is_often_wrong() -> None:
    """Of 360 settings with T_p < 1 ours is right in all, the printed one wrong in half or more."""
    wrong = {"ours": 0, "p_fast": 0, "p_primary": 0}
    lost = 0.0
    for p_p, p_b, e_hit, e_miss, t in GRID:
        brute = switch_batch_brute(p_p, p_b, e_hit, e_miss, t) or math.inf
        wrong["ours"] += _switch(switch_batch(p_p, p_b, e_hit, e_miss, t)) != brute
        wrong["p_fast"] += _switch(switch_batch_printed(hit_rate(p_p, p_b), e_hit, e_miss, t)) != brute
        printed = _switch(switch_batch_printed(p_p, e_hit, e_miss, t))
        wrong["p_primary"] += printed != brute
        if printed < brute:
            slow, fast = fallback_speedups(p_p, p_b, e_hit, e_miss, t, batch=int(printed))
            lost = max(lost, 1.0 - fast / slow)
    assert len(GRID) == 360
    assert wrong == {"ours": 0, "p_fast": 174, "p_primary": 248}
    assert lost == pytest.approx(0.457, abs=5e-4)  # at .7, .1, 5 / 1, T_p = .47: 4 instead of never


@given(
    p=st.floats(0.05, 0.95),
    e_hit=st.floats(1.0, 9.0),
    e_miss=st.floats(1.0, 9.0),
    t=st.floats(0.05, 1.0),
)
def test_with_one_common_rate_both_are_the_same(p: float, e_hit: float, e_miss: float, t: float) -> None:
    # eq1 gives p_f = p if p_hit,b = p = p_hit,p
    assume(hit_rate(p, p) == p)
    assert switch_batch(p, p, e_hit, e_miss, t) == switch_batch_printed(p, e_hit, e_miss, t)


@given(
    p_p=st.floats(0.0, 0.97),
    p_b=st.floats(0.0, 1.0),
    e_hit=st.floats(1.0, 9.0),
    e_miss=st.floats(1.0, 9.0),
    t=st.floats(0.01, 3.0),
)
def test_ours_is_what_trying_finds(p_p: float, p_b: float, e_hit: float, e_miss: float, t: float) -> None:
    b_star = switch_batch(p_p, p_b, e_hit, e_miss, t)
    # Leave out ties, where rounding decides: a whole b*, or one backup ahead for ever by next to nothing.
    assume(b_star == math.inf or abs(b_star - round(b_star)) > 1e-6)
    slow, fast = fallback_speedups(p_p, p_b, e_hit, e_miss, t, batch=1024)
    assume(abs(slow - fast) > 1e-9)
    assert (switch_batch_brute(p_p, p_b, e_hit, e_miss, t) or math.inf) == _switch(b_star)


def test_edges() -> None:
    # Argument 1 + 1/.2 - 6/(.2 * 1.5) = -14: the slow backup is better in every batch.
    assert switch_batch(0.1, 0.1, 6.0, 1.0, 0.2) == math.inf
    assert switch_batch_brute(0.1, 0.1, 6.0, 1.0, 0.2) is None
    # Argument 1 + 1/.5 - 3/(.5 * 2) = 0: the fast one catches up in the limit only.
    assert switch_batch(0.8, 0.1, 3.0, 1.5, 0.5) == math.inf
    # Equal tokens: a free backup is as good.
    assert switch_batch(0.8, 0.5, 3.0, 3.0, 0.4) == 0.0
    # A fast backup that is better, too.
    assert switch_batch(0.8, 0.5, 2.0, 3.0, 0.4) < 0.0
    # No misses: no difference.
    assert switch_batch(1.0, 0.0, 4.0, 1.0, 0.5) == 0.0
    assert switch_batch_brute(1.0, 0.0, 4.0, 1.0, 0.5) == 1
    assert switch_batch_printed(1.0, 4.0, 1.0, 0.5) == 0.0
    # Only misses: slow 4 / 1.5 against D = 3 (p_f = .5 / 1.5 = 1/3: 4/3 + 2/3 2.5) ...
    assert switch_batch(0.0, 0.5, 4.0, 2.5, 0.5) == 0.0
    assert switch_batch_brute(0.0, 0.5, 4.0, 2.5, 0.5) == 1
    # ... or against D = 2.
    assert switch_batch(0.0, 0.5, 4.0, 1.0, 0.5) == math.inf
    # A slow backup that costs nothing.
    assert switch_batch(0.8, 0.5, 4.0, 1.0, 0.0) == math.inf
    assert switch_batch(0.8, 0.5, 2.0, 3.0, 0.0) == -math.inf
    assert switch_batch(0.8, 0.5, 3.0, 3.0, 0.0) == 0.0
    assert switch_batch(0.8, 0.5, 4.0, 1.0, 1e-310) == math.inf


def test_bad_input_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="p_hit_primary"):
        switch_batch(1.1, 0.5, 4.0, 1.0, 0.5)
    with pytest.raises(ValueError, match="e_miss must be above 0"):
        switch_batch(0.9, 0.5, 4.0, 0.0, 0.5)
    with pytest.raises(ValueError, match="t_primary"):
        switch_batch_printed(0.9, 4.0, 1.0, -0.5)
    with pytest.raises(ValueError, match="batch"):
        fallback_speedups(0.9, 0.5, 4.0, 1.0, 0.5, batch=0)
