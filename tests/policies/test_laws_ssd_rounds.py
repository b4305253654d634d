"""SSD's laws of time against simulated rounds, and the switch of backups against trying every batch size."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_laws import SIGMAS

from policies.laws.ssd import (
    expected_tokens,
    fallback_speedup,
    fallback_speedup_printed,
    fallback_speedups,
    hit_rate,
    hit_rate_after,
    hits_pay,
    miss_time,
    miss_time_printed,
    outcome_weights,
    speedup_sandwich,
    speedup_sandwich_printed,
    ssd_over_sd,
    ssd_over_sd_printed,
    ssd_speedup,
    ssd_speedup_printed,
    switch_batch,
    switch_batch_printed,
)

probability = st.floats(0.0, 1.0)
tokens = st.floats(1.0, 9.0)
time = st.floats(0.0, 4.0)


def two_processes(hits: list[bool], t_primary: float, t_backup: float, *, aborts: bool) -> float:
    """Time at which the last outcome is known: algorithm 1, each process with a clock of its own.

    Verification takes 1.  The speculator fills its cache, waits for the outcome, looks it up, and falls
    back if it is not there; one that aborts drops the cache as soon as it hears of a miss.
    """
    verifier, speculator, sent = 0.0, 0.0, 0.0
    for hit in hits:
        verifier = max(verifier, sent) + 1.0
        built = speculator + t_primary
        heard = verifier if aborts and not hit else max(built, verifier)
        speculator = heard if hit else heard + t_backup
        sent = speculator
    return speculator


@given(hits=st.lists(st.booleans(), min_size=1, max_size=30), t_p=time, t_b=time)
def test_two_processes_take_the_time_of_a_miss(hits: list[bool], t_p: float, t_b: float) -> None:
    """`ssd.alg1` literally, and with a cache build that a miss aborts, as theorem 7 counts it."""
    misses = hits.count(False)
    on_hits = (len(hits) - misses) * max(1.0, t_p)
    literal = two_processes(hits, t_p, t_b, aborts=False)
    assert literal == pytest.approx(on_hits + misses * miss_time(t_p, t_b))
    aborted = two_processes(hits, t_p, t_b, aborts=True)
    assert aborted == pytest.approx(on_hits + misses * miss_time_printed(t_p, t_b))


def toss(p_p: float, p_b: float, rounds: int, rows: int, seed: int) -> np.ndarray:
    """[rounds, rows] hits of independent rows; the first speculation is the primary's."""
    rng = np.random.default_rng(seed)
    hit = np.ones(rows, dtype=bool)
    drawn = rng.random((rounds, rows))
    hits = np.empty((rounds, rows), dtype=bool)
    for index in range(rounds):
        hit = drawn[index] < np.where(hit, p_p, p_b)
        hits[index] = hit
    return hits


def spread_of_blocks(values: np.ndarray, blocks: int = 50) -> float:
    """Standard error of the mean of a correlated series, from the means of its blocks."""
    means = [block.mean() for block in np.array_split(values, blocks)]
    return float(np.std(means, ddof=1) / math.sqrt(blocks))


@pytest.mark.parametrize("t_primary", [0.8, 1.1, 2.0])
def test_thm7_against_simulated_rounds(t_primary: float) -> None:
    """100 000 rounds, tokens drawn from their law; the two readings differ beyond T_p = 1."""
    p_p, p_b, k, a_p, a_b, t_b, rounds = 0.9, 0.6, 6, 0.8, 0.2, 0.3, 100_000
    hits = toss(p_p, p_b, rounds, 1, seed=7)[:, 0]
    rng = np.random.default_rng(8)
    emitted = np.where(
        hits,
        rng.choice(np.arange(1, k + 2), rounds, p=outcome_weights(a_p, k)),
        rng.choice(np.arange(1, k + 2), rounds, p=outcome_weights(a_b, k)),
    )
    rates = (hit_rate(p_p, p_b), expected_tokens(a_p, k), expected_tokens(a_b, k), t_primary, t_b)
    for law, aborts in ((ssd_speedup, False), (ssd_speedup_printed, True)):
        elapsed = np.where(hits, max(1.0, t_primary), t_b + (1.0 if aborts else max(1.0, t_primary)))
        law_rate = law(*rates)
        # The error of a ratio of sums is that of its linearised terms.
        error = spread_of_blocks(emitted - law_rate * elapsed) / elapsed.mean()
        assert emitted.sum() / elapsed.sum() == pytest.approx(law_rate, abs=SIGMAS * error)


@given(p=probability, e_hit=tokens, e_miss=tokens, t_p=time, t_b=time)
def test_both_forms_of_thm7_agree_up_to_one(
    p: float, e_hit: float, e_miss: float, t_p: float, t_b: float
) -> None:
    ours, printed = (law(p, e_hit, e_miss, t_p, t_b) for law in (ssd_speedup, ssd_speedup_printed))
    assert ours <= printed * (1 + 1e-12)
    if t_p <= 1.0:
        assert ours == pytest.approx(printed)


@given(p=st.floats(0.0, 0.99), e_hit=tokens, e_miss=tokens, t_p=time, t_b=time)
def test_when_a_higher_hit_rate_is_faster(
    p: float, e_hit: float, e_miss: float, t_p: float, t_b: float
) -> None:
    """What theorem 18 takes for granted: slope of theorem 7 in p."""
    low, high = (ssd_speedup(rate, e_hit, e_miss, t_p, t_b) for rate in (p, p + 0.01))
    if abs(high - low) > 1e-9:
        assert hits_pay(e_hit, e_miss, t_p, t_b) == (high > low)
    # A miss that yields as much without a wait: hits are worth nothing.
    assert not hits_pay(e_hit, e_hit, t_p, 0.0)


def test_how_much_the_printed_form_promises() -> None:
    """At p = .7 and T_b = 0: 3 % (T_p = 1.1) and 18 % (T_p = 2, where it is 1 / .85)."""
    over = [ssd_speedup_printed(0.7, 3, 1, t, 0) / ssd_speedup(0.7, 3, 1, t, 0) - 1 for t in (1.1, 2.0)]
    assert over == [pytest.approx(0.028, abs=5e-4), pytest.approx(2 / 1.7 - 1)]


def test_edges_of_thm7() -> None:
    assert ssd_speedup(1.0, 4.0, 1.0, 1.6, 9.0) == 2.5
    assert ssd_speedup(0.0, 4.0, 1.5, 0.5, 0.5) == 1.0
    # A round in the limit of large batches: nobody hits together unless everybody always does.
    assert ssd_speedup(0.9, 4.0, 1.0, 0.5, 0.5, batch=math.inf) == pytest.approx(3.7 / 1.5)
    assert ssd_speedup(1.0, 4.0, 1.0, 0.5, 0.5, batch=math.inf) == 4.0
    for bad, why in (
        ((1.1, 4, 1, 1, 0), "p_hit"), ((0.5, 0.5, 1, 1, 0), "e_hit"), ((0.5, 4, 1, -1, 0), "t_primary"),
        ((0.5, 4, 1, 1, math.inf), "t_backup"), ((0.5, 4, math.nan, 1, 0), "e_miss"),
    ):  # fmt: skip
        for law in (ssd_speedup, ssd_speedup_printed):
            with pytest.raises(ValueError, match=why):
                law(*bad)
    with pytest.raises(ValueError, match="batch"):
        ssd_speedup(0.5, 4, 1, 1, 0, batch=0)


@given(p_p=probability, p_b=probability, rounds=st.integers(0, 40))
def test_hit_rate_after_against_matrix_powers(p_p: float, p_b: float, rounds: int) -> None:
    """`ssd.eq1`: the two-state chain stepped by its matrix, and the sum as the paper writes it."""
    state = np.array([p_p, 1.0 - p_p])
    step = np.array([[p_p, 1.0 - p_p], [p_b, 1.0 - p_b]])
    after = state @ np.linalg.matrix_power(step, rounds)
    assert hit_rate_after(p_p, p_b, rounds) == pytest.approx(after[0], abs=1e-9)
    r = p_p - p_b
    assume(abs(r) < 0.999)
    printed = p_p * r**rounds + p_b * (1 - r**rounds) / (1 - r)
    assert hit_rate_after(p_p, p_b, rounds) == pytest.approx(printed, abs=1e-9)


@given(p_p=st.floats(0.0, 0.98), p_b=st.floats(0.02, 1.0))
def test_the_long_run_is_the_chain_s_own_law(p_p: float, p_b: float) -> None:
    p = hit_rate_after(p_p, p_b)
    assert p == pytest.approx(p * p_p + (1 - p) * p_b)


def test_edges_of_eq1() -> None:
    assert hit_rate_after(1.0, 0.0) == hit_rate_after(1.0, 0.0, 5) == 1.0
    assert hit_rate_after(0.9, 0.0) == 0.0
    # It swings 0 1 0 1 ... and is 1/2 on average.
    assert [hit_rate_after(0.0, 1.0, t) for t in range(4)] == [0.0, 1.0, 0.0, 1.0]
    assert hit_rate_after(0.0, 1.0) == 0.5
    for bad in (-1, 0.5, math.nan):
        with pytest.raises(ValueError, match="rounds"):
            hit_rate_after(0.5, 0.5, bad)


@given(p=probability, t_sd=time, cost=st.floats(1.0, 5.0), e=tokens)
def test_ssd_over_sd_from_both_rates(p: float, t_sd: float, cost: float, e: float) -> None:
    """`ssd.cor8`: theorem 7 with T_p = T_b = c T_SD over SD's own speedup E / (1 + T_SD)."""
    sd = e / (1.0 + t_sd)
    assert ssd_over_sd(p, t_sd, cost) == pytest.approx(ssd_speedup(p, e, e, cost * t_sd, cost * t_sd) / sd)
    printed = ssd_speedup_printed(p, e, e, t_sd, t_sd) / sd
    assert ssd_over_sd_printed(p, t_sd) == pytest.approx(printed)
    assert printed >= 1.0 - 1e-12


def test_cor8_on_a_grid() -> None:
    """Printed: at least 1, and above iff p > 0 and T > 0.  Without aborting it needs p >= (T - 1) / T."""
    for p, t in itertools.product(np.linspace(0, 1, 41), np.linspace(0, 4, 41)):
        printed = ssd_over_sd_printed(p, t)
        assert printed >= 1.0 - 1e-12
        assert (printed > 1.0 + 1e-9) == (p > 0 and t > 0)
        if abs(p * t - (t - 1)) > 1e-9:
            assert (ssd_over_sd(p, t) < 1.0 - 1e-12) == (p * t < t - 1)
    # Branches that take twice as long: 1.5 / (1 + .7); three times, T_p = 1.5: 1.5 / (1.5 + .1 1.5)
    assert ssd_over_sd(0.3, 0.5, 2.0) == pytest.approx(1.5 / 1.7)
    assert ssd_over_sd(0.9, 0.5, 3.0) == pytest.approx(1.5 / 1.65)
    with pytest.raises(ValueError, match="branch_cost"):
        ssd_over_sd(0.5, 0.5, 0.9)


@given(p=probability, e_hit=tokens, e_miss=tokens, e_sd=tokens, t_sd=time, t_p=st.floats(0, 1), t_b=time)
def test_sandwich_holds_and_the_printed_one_breaks(
    *, p: float, e_hit: float, e_miss: float, e_sd: float, t_sd: float, t_p: float, t_b: float
) -> None:
    ratio = ssd_speedup(p, e_hit, e_miss, t_p, t_b) / (e_sd / (1.0 + t_sd))
    lower, upper = speedup_sandwich(p, e_hit, e_miss, e_sd, t_sd, t_backup=t_b)
    assert lower * (1 - 1e-12) <= ratio <= upper * (1 + 1e-12)
    # Both are reached: the lower one where a miss yields one token, the upper one where hits are no better.
    assert ssd_speedup(p, e_hit, 1.0, t_p, t_b) / (e_sd / (1.0 + t_sd)) == pytest.approx(lower)
    level = speedup_sandwich(p, e_hit, e_hit, e_sd, t_sd, t_backup=t_b)[1]
    assert ssd_speedup(p, e_hit, e_hit, t_p, t_b) / (e_sd / (1.0 + t_sd)) == pytest.approx(level)
    printed = speedup_sandwich_printed(p, e_hit, e_sd, t_sd)
    if t_b == 0.0:
        assert printed[0] <= ratio * (1 + 1e-12)
    if e_hit >= e_miss:
        assert ratio <= printed[1] * (1 + 1e-12)


def test_where_the_printed_sandwich_breaks() -> None:
    # E_miss = 8, E_hit = 1, p = 0: 8 times the upper bound.
    ratio = ssd_speedup(0.0, 1.0, 8.0, 0.5, 0.0)
    assert ratio == pytest.approx(8 * speedup_sandwich_printed(0.0, 1.0, 1.0, 0.0)[1])
    # T_b = 1: 2 / 1.5 is below .5 * 3.
    ratio = ssd_speedup(0.5, 3.0, 1.0, 0.5, 1.0)
    assert ratio == pytest.approx(4 / 3) and speedup_sandwich_printed(0.5, 3.0, 1.0, 0.0)[0] == 1.5
    # Both bounds meet the ratio at p = 1.
    assert speedup_sandwich_printed(1.0, 3.0, 2.0, 0.5) == (2.25, 2.25)
    with pytest.raises(ValueError, match="e_sd"):
        speedup_sandwich(0.5, 3.0, 1.0, 0.5, 0.0)


@pytest.mark.parametrize("batch", [1, 2, 4, 16])
@pytest.mark.parametrize("t_primary", [0.5, 1.5])
def test_cor16_against_rows_in_lock_step(batch: int, t_primary: float) -> None:
    """40 000 rounds after 200 to settle: any row's miss makes all of them wait for the backup."""
    p_p, p_b, e_hit, e_miss, t_b = 0.9, 0.6, 4.0, 1.2, 0.3
    hits = toss(p_p, p_b, 40_200, batch, seed=100 + batch)[200:]
    emitted = np.where(hits, e_hit, e_miss).mean(axis=1)
    law = ssd_speedup(hit_rate(p_p, p_b), e_hit, e_miss, t_primary, t_b, batch=batch)
    elapsed = max(1.0, t_primary) + np.where(hits.all(axis=1), 0.0, t_b)
    error = spread_of_blocks(emitted - law * elapsed) / elapsed.mean()
    assert emitted.sum() / elapsed.sum() == pytest.approx(law, abs=SIGMAS * error)


def test_cor16_needs_rows_that_miss_apart() -> None:
    """Eight rows that all miss together stall as one row does: 3.36, where the law of eight has 2.66."""
    hits = toss(0.9, 0.6, 40_200, 1, seed=9)[200:, 0]
    together, apart = (ssd_speedup(hit_rate(0.9, 0.6), 4.0, 1.2, 1.0, 0.5, batch=b) for b in (1, 8))
    emitted, elapsed = np.where(hits, 4.0, 1.2), np.where(hits, 1.0, 1.5)
    error = spread_of_blocks(emitted - together * elapsed) / elapsed.mean()
    assert emitted.sum() / elapsed.sum() == pytest.approx(together, abs=SIGMAS * error)
    # p = 6/7: 3.6 / (1 + .5 / 7) and 3.6 / (1 + .5 (1 - (6/7)^8))
    assert (together, apart) == (pytest.approx(3.36), pytest.approx(2.65816, abs=5e-6))


@given(
    p_p=st.floats(0.0, 0.97), p_b=probability, e_hit=tokens, e_miss=tokens, t=st.floats(0.01, 3.0),
    batch=st.integers(1, 60),
)  # fmt: skip
def test_the_policy_takes_the_faster_backup(
    *, p_p: float, p_b: float, e_hit: float, e_miss: float, t: float, batch: int
) -> None:
    """`ssd.pol.fallback` is the better of the two with the corrected b*, not always with the printed one."""
    assume(abs(switch_batch(p_p, p_b, e_hit, e_miss, t) - batch) > 1e-6)
    best = max(fallback_speedups(p_p, p_b, e_hit, e_miss, t, batch=batch))
    assert fallback_speedup(p_p, p_b, e_hit, e_miss, t, batch=batch) == pytest.approx(best, rel=1e-9)
    assert fallback_speedup_printed(p_p, p_b, e_hit, e_miss, t, batch=batch) <= best * (1 + 1e-12)


def test_what_the_printed_switch_costs() -> None:
    """p_p = .9, p_b = .2, E = 4 / 1, T_p = .6, b = 2: slow 4 / (1 + .19 .6), fast 3."""
    setting = (0.9, 0.2, 4.0, 1.0, 0.6)
    assert fallback_speedup(*setting, batch=2) == pytest.approx(4 / 1.114)
    assert fallback_speedup_printed(*setting, batch=2) == pytest.approx(3.0)


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
