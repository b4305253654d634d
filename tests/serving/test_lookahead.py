"""Lookahead by the rows of a step."""

from __future__ import annotations

import pytest

from serving.lookahead import (
    Acceptances,
    AdaptiveVerification,
    GoodputLookahead,
    LookaheadByBatch,
    parse_lookaheads,
)
from serving.traffic import TrafficError


def test_both_ways_of_writing_it() -> None:
    table = parse_lookaheads("1:4,8:2,32:0")
    assert table == parse_lookaheads("[[1, 7, 4], [8, 31, 2], [32, 64, 0]]")
    assert [table.of(rows) for rows in (0, 1, 7, 8, 31, 32, 500)] == [4, 4, 4, 2, 2, 0, 0]
    assert table.as_vllm(64) == [[1, 7, 4], [8, 31, 2], [32, 64, 0]]
    assert table.as_vllm(16) == [[1, 7, 4], [8, 16, 2]]
    assert LookaheadByBatch((1,), (3,)).as_vllm(9) == [[1, 9, 3]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "2:4",
        "1:4,1:2",
        "1:-1",
        "1:x",
        "[[1, 7, 4], [9, 31, 2]]",
        "[[1, 2]]",
        "[1]",
        "[[1, 9, 5, 99, 4]]",
        "[[1, 9, 0, 9, 4], [1, 9, 20, 99, 2]]",
        "[" * 200,
    ],
)
def test_bad_tables(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_lookaheads(text)


def test_by_batch_and_context() -> None:
    """vllm#48627: off at many short contexts, on at many long ones; three numbers hold for every context."""
    text = "[[1, 64, 3], [65, 256, 0, 767, 0], [65, 256, 768, 1048576, 3]]"
    table = parse_lookaheads(text)
    assert (table.rows, table.contexts, table.lookaheads) == ((1, 65), (0, 768), (3, 3, 0, 3))
    assert [table.of(rows, rows * context) for rows, context in ((64, 0), (65, 767), (65, 768))] == [3, 0, 3]
    again = table.as_vllm(256)
    assert again[2:] == [[65, 256, 0, 767, 0], [65, 256, 768, 1048576, 3]]
    assert parse_lookaheads(str(again)) == table
    assert parse_lookaheads(text.replace("256, 0,", "256, 1,")) == table


def test_acceptance_of_a_row() -> None:
    """Of 3 verified and 1 accepted two were looked at: the third is hidden behind the second."""
    seen = Acceptances()
    seen.learn(7, verified=3, accepted=1)
    # Overall (4 * 0.7 + 1) / 6 = 0.6333; the row: weight 0.9 + 1, hits 0.9: (0.9 + 4 * 0.6333) / 5.9.
    assert seen.of(7) == pytest.approx((0.9 + 4 * 3.8 / 6) / 5.9)
    assert seen.of(8) == pytest.approx(3.8 / 6)


def test_goodput_chooses_one_k() -> None:
    """Acceptance 0.7 in the prior: 1, 1.7, 2.19, 2.533 tokens a row for K = 0 to 3.

    Steps of 1 + 0.2 K + 0.05 tokens: with one row 1.05, 1.3, 1.55, 1.8 s, so that 1.413 at K = 2
    wins over 1.308 and 1.407; with ten rows 1.5, 2.2, 2.9, 3.6: 6.67, 7.73, 7.55, so that K = 1 does.
    """
    chooser = GoodputLookahead(3, lambda rows, tokens, context, k: 1.0 + 0.2 * k + 0.05 * tokens)
    assert chooser.choose([0], 100) == (2, 2)
    assert chooser.choose(list(range(10)), 1000) == (1, 1)
    for _ in range(50):
        chooser.learn(0, verified=2, accepted=0)
    assert chooser.choose([0], 100) == (0, 0)


def test_slots_are_ranked_by_survival() -> None:
    """Rows that accept 0.9 and 0.3: slots of 0.9, 0.81, 0.729, 0.3, 0.09, 0.027, in that order.

    A step takes 1 s and 0.15 for each token: 2 / 1.3 = 1.54, 2.9 / 1.45 = 2.0, 3.71 / 1.6 = 2.32,
    4.44 / 1.75 = 2.54, then 4.74 / 1.9 = 2.49: three slots, all of the first row.
    """
    chooser = AdaptiveVerification(3, lambda rows, tokens, context, k: 1.0 + 0.15 * tokens)
    chooser.rows.known = {4: [1e9, 0.9e9], 5: [1e9, 0.3e9]}
    assert chooser.choose([4, 5], 100) == (3, {4: 3, 5: 0})
    free = AdaptiveVerification(3, lambda rows, tokens, context, k: 1.0)
    assert free.choose([4, 5], 100) == (3, {4: 3, 5: 3})
    assert free.choose([], 0) == (3, {})
