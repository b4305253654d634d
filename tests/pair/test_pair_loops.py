"""Loops, on sequences made by hand."""

from __future__ import annotations

import pytest

from calibrate.pair.writing import (
    Loop,
    find_loops,
    loop_tokens,
    repeated_ngrams,
    repetition_mask,
    tail_loop,
    until_end,
)

FREE = list(range(1000, 1040))  # forty tokens, none twice


@pytest.mark.parametrize("period", [1, 2, 5, 8, 12, 32])
def test_a_phrase_that_repeats_to_the_end_is_a_loop(period: int) -> None:
    phrase = list(range(period))
    repeats = max(3, -(-24 // period))
    text = FREE + phrase * repeats
    assert tail_loop(text) == Loop(len(FREE), len(text), period)


def test_the_last_repeat_may_be_cut_short() -> None:
    phrase = list(range(10))
    assert tail_loop(FREE + phrase * 3 + phrase[:4]) == Loop(40, 74, 10)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("nothing repeats", FREE),
        ("twice is not a loop", FREE + list(range(20)) * 2),
        ("too short to matter", FREE + [1, 2] * 8),
        ("the period is too long", list(range(33)) * 4),
        ("it got out of the loop", [1, 2] * 20 + FREE),
        ("a table advances", [t for i in range(20) for t in (1, 2, 100 + i, 3)]),
        ("empty", []),
    ],
)
def test_what_is_no_loop_at_the_tail(why: str, text: list[int]) -> None:
    assert tail_loop(text) is None, why


def test_a_loop_in_the_middle_counts_its_tokens() -> None:
    text = FREE + [7, 8, 9] * 10 + list(range(2000, 2030))
    assert tail_loop(text) is None
    assert loop_tokens(text) == 30


def test_two_loops_after_each_other() -> None:
    loops = find_loops([1] * 30 + [2] * 30)
    assert [loop for loop in loops if loop.period == 1] == [Loop(0, 30, 1), Loop(30, 60, 1)]


def test_the_first_appearance_of_the_phrase_is_not_penalised() -> None:
    mask = repetition_mask(FREE + [1, 2, 3] * 10)
    assert mask == [False] * 43 + [True] * 27


def test_repeated_ngrams_are_counted_from_their_second_appearance() -> None:
    assert repeated_ngrams([1, 2, 3, 4, 9, 1, 2, 3, 4]) == (1, 6)
    assert repeated_ngrams([1, 2, 3]) == (0, 0)


def test_a_long_ngram_is_penalised_when_it_comes_again() -> None:
    phrase = list(range(9))
    mask = repetition_mask([*phrase, 50, 51, *phrase, 52])
    assert mask == [False] * 18 + [True, True, False]


def test_output_stops_at_the_end_token() -> None:
    assert until_end([5, 6, 0, 0, 0], 0) == [5, 6]
    assert until_end([5, 6], 0) == [5, 6]
