"""Curves, weights and tables of a small recorded text, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.curves import free_curve, hit_curves, hit_table, rejected_curve, round_curves, round_starts
from policies.laws.fanout import exact_fanout, expected_hit, power_law_table
from policies.laws.ssd import outcome_weights

RANK = np.array([0, 0, 2, 0, 1, 0, 0, 0, 3, 0])
RUN = np.array([2, 1, 0, 1, 0, 3, 2, 1, 0, 1])
"""K = 2: rounds begin at 0 (2 accepted, bonus at 2), 3 (1, bonus at 4), 5 (2, bonus at 7); then 8 (0, bonus
at 8), and 9, which reaches the end."""


def _runs(rank: np.ndarray) -> np.ndarray:
    stops = np.where(rank == 0, len(rank), np.arange(len(rank)))
    return np.minimum.accumulate(stops[::-1])[::-1] - np.arange(len(rank))


def test_the_runs_of_the_example() -> None:
    assert _runs(RANK).tolist() == RUN.tolist()


def test_curves_by_hand() -> None:
    # Rejected: ranks 2, 1, 3.  F = 1 catches rank 1, F = 2 rank 2 too, F = 3 all.
    assert rejected_curve(RANK, 3).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    # Nothing rejected: ranks 0 (7 of 10), 1, 2, 3 need 1, 2, 3, 4 guesses.
    assert free_curve(RANK, 3).tolist() == pytest.approx([0, 0.7, 0.8, 0.9])
    curves = hit_curves(RANK, deepest=3)
    assert (curves.positions, curves.acceptance, curves.fanouts) == (10, 0.7, (1, 2, 3))
    assert curves.after_rejection == pytest.approx((1 / 3, 2 / 3, 1))
    assert curves.unconditional == pytest.approx((0.7, 0.8, 0.9))


def test_an_unrecorded_rank_is_never_cached() -> None:
    never = np.array([0, np.iinfo(np.int64).max, 1])
    assert rejected_curve(never, 2).tolist() == [0, 0.5, 0.5]
    assert free_curve(never, 2).tolist() == pytest.approx([0, 1 / 3, 2 / 3])


def test_nothing_rejected_means_every_guess_would_hit() -> None:
    curves = hit_curves(np.zeros(4, dtype=np.int64), deepest=2)
    assert curves.after_rejection == (1.0, 1.0) and curves.power_law is None
    with pytest.raises(ValueError, match="no recorded position"):
        hit_curves(np.array([], dtype=np.int64))


def test_rounds_begin_after_the_bonus_token() -> None:
    assert round_starts(RUN, 2).tolist() == [0, 3, 5, 8]
    # A plain decode at each position but the last, which ends the text.
    assert round_starts(RUN, 0).tolist() == list(range(9))
    # Two requests of 5: the round at 3 accepts 1 and ends the first with its bonus at 4.
    # In the second, 5 and its bonus at 7; 8; 9 reaches the end.
    assert round_starts(RUN, 2, np.array([0, 5, 10])).tolist() == [0, 5, 8]


@given(ranks=st.lists(st.integers(0, 3), min_size=1, max_size=60), k=st.integers(0, 6))
def test_a_round_begins_where_the_last_one_ended(ranks: list[int], k: int) -> None:
    run = _runs(np.array(ranks))
    starts = round_starts(run, k)
    steps = np.minimum(run[starts], k) + 1
    assert (np.diff(starts) == steps[:-1]).all()


def test_iid_text_has_iid_weights() -> None:
    """20 000 positions at a = .8: about 4 700 rounds, so 0.03 is 4 standard deviations of a share."""
    rank = (np.random.default_rng(2).random(20_000) > 0.8).astype(np.int64)
    run = _runs(rank)
    weights = round_curves(rank, run, 5, deepest=3).weights
    assert weights == pytest.approx(outcome_weights(0.8, 5), abs=0.03)


def test_round_curves_by_hand() -> None:
    """Bonus ranks: k = 0 at 8 rank 3; k = 1 at 4 rank 1; k = 2 at 2 and 7 ranks 2 and 0."""
    curves = round_curves(RANK, RUN, 2, deepest=3, prior=0)
    assert curves.rounds.tolist() == [1, 1, 2] and curves.lookahead == 2
    assert curves.weights.tolist() == [0.25, 0.25, 0.5]
    assert curves.after_primary.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0.5, 0.5, 1]]
    # Rounds begin at ranks 0, 0, 0, 3.
    assert curves.after_backup.tolist() == [0, 0.75, 0.75, 0.75]


def test_few_rounds_lean_on_the_pooled_curve() -> None:
    curves = round_curves(RANK, RUN, 2, deepest=3, prior=2)
    # k = 0: one round (0 0 1) and two of the pooled (1/3 2/3 1)
    assert curves.after_primary[0].tolist() == pytest.approx([0, 2 / 9, 4 / 9, 1])
    # k = 2: two rounds (.5 .5 1) and two of the pooled (.7 .8 .9)
    assert curves.after_primary[2].tolist() == pytest.approx([0, 0.6, 0.65, 0.95])
    # An outcome that never happened has the pooled curve, even without a prior.
    always = round_curves(
        np.array([0, 0, 0, 0, 0, 1, 0]), np.array([5, 4, 3, 2, 1, 0, 1]), 1, deepest=2, prior=0
    )
    assert always.rounds.tolist() == [0, 3]
    assert always.after_primary[0].tolist() == [0, 1, 1]


def test_tables_of_pooled_curves() -> None:
    curves = hit_curves(RANK, deepest=3)
    rejected, free = [0, 1 / 3, 2 / 3, 1], [0, 0.7, 0.8, 0.9]
    table = hit_table(curves, 2)
    assert [row.tolist() for row in table] == [
        pytest.approx(rejected),
        pytest.approx(rejected),
        pytest.approx(free),
    ]
    assert hit_table(curves, 2, 1).shape == (3, 2)
    # Plain decoding has one position, at which nothing was rejected, and so has a random backup's 0.
    assert hit_table(curves, 0).tolist() == [pytest.approx(free)]
    assert hit_table(curves, 2, after="backup")[0].tolist() == pytest.approx(free)


def test_tables_of_rounds() -> None:
    curves = round_curves(RANK, RUN, 2, deepest=3, prior=0)
    assert (hit_table(curves, 2) == curves.after_primary).all()
    assert hit_table(curves, 0, 2, after="backup").tolist() == [[0, 0.75, 0.75]]
    with pytest.raises(ValueError, match="lookahead of 2, not 3"):
        hit_table(curves, 3)


def test_a_fanout_beyond_the_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="up to 3, not 4"):
        hit_table(hit_curves(RANK, deepest=3), 2, 4)
    with pytest.raises(ValueError, match="deepest"):
        rejected_curve(RANK, 0)
    with pytest.raises(ValueError, match="9 ranks but 10 runs"):
        round_curves(RANK[:9], RUN, 2)
    with pytest.raises(ValueError, match="no recorded round"):
        round_curves(RANK[:1], RUN[:1], 2)
    with pytest.raises(ValueError, match="negative, got -1"):
        round_starts(np.array([2, -1]), 2)


def test_optimised_on_a_recording() -> None:
    """Gains .25 (0 0 1), .25 (1 1 1) and .5 (.5 .5 1) at k = 0, 1, 2: of 4 guesses 1 at k = 1, 3 at k = 2."""
    curves = round_curves(RANK, RUN, 2, deepest=3, prior=0)
    table = hit_table(curves, 2)
    fanout = exact_fanout(curves.weights, table, 4)
    assert fanout == (0, 1, 3)
    # .25 + .5, and with 7 guesses all
    assert expected_hit(curves.weights, table, fanout) == 0.75
    assert exact_fanout(curves.weights, table, 9) == (3, 1, 3)


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
