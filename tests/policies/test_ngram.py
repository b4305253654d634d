"""Prompt lookup by hand and against the plainest search."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pld import lookup


def plainly(text: Sequence[int], lookahead: int, longest: int) -> tuple[int, ...]:
    for size in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if list(text[start : start + size]) == list(text[-size:]):
                return tuple(text[start + size : start + size + lookahead])
    return ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ([1, 2, 3, 9, 1, 2, 3], (9, 1)),  # three words decide
        ([7, 3, 5, 2, 3, 6, 2, 3], (6, 2)),  # of two words, (2, 3) occurred at 3
        ([3, 5, 3, 6, 3], (6, 3)),  # the latest of equals
        ([4, 4, 4], (4,)),  # an occurrence may overlap the ending
        ([1, 2, 3], ()),
        ([5], ()),
    ],
)
def test_by_hand(text: list[int], found: tuple[int, ...]) -> None:
    assert lookup(text, 2) == found


@given(
    st.lists(st.integers(0, 2) | st.integers(255, 257) | st.just(65_536), min_size=1, max_size=30),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_it_finds_what_a_plain_search_finds(text: list[int], lookahead: int, longest: int) -> None:
    # Numbers whose bytes, shifted, look like other numbers.
    assert lookup(text, lookahead, longest=longest) == plainly(text, lookahead, longest)
