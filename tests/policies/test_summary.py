"""Metrics of hand-written rounds."""

from __future__ import annotations

import numpy as np
import pytest

from policies.rows import Rows
from policies.summary import Summary, count_rounds, mean_summary, summarise
from policies.values import NO_SLOTS, Request, Source, Speculation, Verdict

PRIMARY = int(Source.PRIMARY)


def summary_of(rounds: list[tuple[int, int, bool | None]], *, runs_on: bool = False) -> Summary:
    """One request; each round is (drafted, accepted, hit) and takes a second."""
    rows = Rows([Request(0, 1, 999)], 1)
    rows.log.runs_on = runs_on
    rows.admit(0.0)
    for now, (length, accepted, hit) in enumerate(rounds, start=1):
        drafted = Speculation((length,), (PRIMARY if length else 0,))
        verdict = Verdict((accepted,), (accepted + 1,), NO_SLOTS, (-1,))
        hits = None if hit is None else frozenset({0} if hit else ())
        rows.commit(rows.view(), drafted, verdict, hits=hits, now=float(now))
    return summarise(rows.log, total_s=float(len(rounds)), busy_s={}, overlap_s=0.0)


def test_run_length_of_chains() -> None:
    # Accepted 2 + 4 + 1 = 7; rejections in the first and the last round: 7 / 2.
    assert summary_of([(4, 2, None), (4, 4, None), (4, 1, None)]).run_length == pytest.approx(3.5)


def test_a_miss_after_all_was_accepted_is_no_rejection_of_a_drafted_token() -> None:
    # SSD: accepted 4 + 4 + 0; only the last chain was broken.
    assert summary_of([(4, 4, True), (4, 4, False), (4, 0, False)]).run_length == pytest.approx(8.0)


def test_pearl_runs_go_on_past_a_block() -> None:
    # Pre-verify succeeds (the block's first token, 1), then 3 accepted and on (4), then 3 accepted and the
    # next block's first token rejected (3), then a pre-verify that fails: 8 accepted, 2 rejections.
    rounds = [(0, 0, True), (3, 3, True), (3, 3, False), (0, 0, False)]
    assert summary_of(rounds, runs_on=True).run_length == pytest.approx(4.0)


def test_no_rejection_no_run_length() -> None:
    assert summary_of([(2, 2, None)]).run_length is None


def test_the_first_token_comes_with_the_first_round() -> None:
    assert summary_of([(2, 2, None), (2, 2, None)]).time_to_first_token_s == pytest.approx(1.0)


def test_rounds_that_were_several_times_are_counted_so_often() -> None:
    rng = np.random.default_rng(0)
    length = rng.integers(0, 4, 50)
    accepted = np.minimum(length, rng.integers(0, 4, 50))
    table = {
        "source": np.where(length > 0, PRIMARY, 0),
        "length": length,
        "accepted": accepted,
        "emitted": accepted + rng.integers(0, 2, 50),
        "hit": rng.integers(-1, 2, 50),
    }
    times = rng.integers(1, 4, 50)
    repeated = {name: np.repeat(column, times) for name, column in table.items()}
    for runs_on in (False, True):
        whole = count_rounds(repeated, runs_on=runs_on)
        assert count_rounds(table, runs_on=runs_on, times=times) == whole


def test_mean_of_runs_by_hand() -> None:
    # Emitted 3 + 5 tokens in 2 s; 1 + 1 + 1 in 3 s.
    lucky, unlucky = summary_of([(4, 2, None), (4, 4, None)]), summary_of([(4, 0, None)] * 3)
    mean = mean_summary([lucky, unlucky])
    assert (mean.tokens, mean.rounds, mean.seconds) == (5.5, 2.5, 2.5)
    assert mean.tokens_per_second == pytest.approx(11 / 5)  # not the mean of 4 and 1
    assert mean.accepted_per_round == pytest.approx(6 / 5)
    # 6 of 7 positions and 0 of 3; a run without rejections has a run length of its own, or none.
    assert mean.acceptance_rate == pytest.approx((6 / 7 + 0) / 2)
    assert mean.run_length == pytest.approx((6 / 1 + 0 / 3) / 2)
    assert mean.cache_hit_rate is None
    assert mean_summary([lucky]) is lucky


@pytest.mark.parametrize("pending", [1, 3, 1024])
def test_a_log_is_the_same_however_many_rounds_it_writes_at_once(
    monkeypatch: pytest.MonkeyPatch, pending: int
) -> None:
    monkeypatch.setattr("policies.rows.PENDING", pending)
    rows = Rows([Request(7, 1, 9), Request(8, 1, 9)], 2)
    both = rows.admit(0.0)
    found = Speculation((2, 1), (PRIMARY, 3)), Verdict((2, 0), (3, 1), NO_SLOTS, (5, -1))
    rows.commit(rows.view(), *found, hits=frozenset({0}), now=1.0)
    # The second row alone, then the first one, which ends.
    rows.commit(rows.view(frozenset({1})), *found, now=2.0)
    last = Speculation((2, 0), (PRIMARY, 0)), Verdict((2, 0), (3, 0), frozenset({0}), (6, -1))
    rows.commit(rows.view(both - {1}), *last, hits=NO_SLOTS, now=3.0)
    table = {name: column.tolist() for name, column in rows.log.table().items()}
    assert table["request"] == [7, 8, 8, 7]
    assert table["length"] == [2, 1, 1, 2]
    assert table["source"] == [PRIMARY, 3, 3, PRIMARY]
    assert table["accepted"] == [2, 0, 0, 2]
    assert table["emitted"] == [3, 1, 1, 3]
    assert table["bonus"] == [5, -1, -1, 6]
    assert table["hit"] == [1, 0, -1, -1]
