"""Lookahead by the rows of a step."""

from __future__ import annotations

import pytest

from serving.lookahead import LookaheadByBatch, parse_lookaheads
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
    ["", "4", "2:4", "1:4,1:2", "1:-1", "1:x", "[[1, 7, 4], [9, 31, 2]]", "[[1, 2]]", "[1]", "[" * 200],
)
def test_bad_tables(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_lookaheads(text)
