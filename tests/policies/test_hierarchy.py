"""DOUBLE's datastore: priorities by hand, and against the statement of algorithm 3 on plain lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.retrieval import occurrences, retrieve
from policies.retrieval import Hierarchy, Index


class Texts:
    """A prior of plain texts; of several occurrences the last counts."""

    def __init__(self, *texts: Sequence[int]) -> None:
        self.texts = texts

    def lookup(
        self, text: Sequence[int], *, longest: int, span: int, count: int, shortest: int = 1
    ) -> list[tuple[tuple[int, ...], int]]:
        assert longest == shortest == len(text), "one size at a time: layers take turns at each size"
        found = list(occurrences(text, self.texts))[-count:]
        return [(tuple(self.texts[number][at : at + span]), 1) for number, at in found]


def of(
    prompt: Sequence[int], *rejected: tuple[int, Sequence[int]], prior: Texts | None = None, longest: int = 3
) -> Hierarchy:
    layers = Hierarchy(longest, prior=prior)
    layers.accept(prompt)
    for at, tokens in rejected:
        layers.reject(at, tokens)
    return layers


def test_the_prior_comes_before_the_text() -> None:
    # 1 2 is followed by 3 in the text, by 4 5 in the prior.
    assert of((1, 2, 3, 1, 2), prior=Texts((1, 2, 4, 5))).retrieve((), 2) == (4, 5)
    assert of((1, 2, 3, 1, 2)).retrieve((), 2) == (3, 1)


def test_the_text_comes_before_what_was_rejected() -> None:
    # 9 was rejected after 1 2, where the text knows 3; 3 1 2 is found among the rejected ones alone.
    assert of((1, 2, 3, 1, 2), (5, (9,)), longest=2).retrieve((), 1) == (3,)
    assert of((1, 2, 3, 1, 2), (5, (9,)), longest=3).retrieve((), 1) == (9,)


def test_a_longer_match_of_a_later_layer_comes_first() -> None:
    # 7 2 occurs among the rejected tokens only, 2 in all layers.
    layers = of((1, 2, 3, 7), (4, (2, 9)), prior=Texts((2, 8)))
    assert layers.retrieve((2,), 1) == (9,)
    assert of((1, 2, 3, 7), prior=Texts((2, 8))).retrieve((2,), 1) == (8,)


def test_prompt_lookup_comes_last() -> None:
    # 5 6 was drafted twice after the text, which does not know it.
    assert of((1, 2, 3)).retrieve((5, 6, 4, 5, 6), 2) == (4, 5)
    assert of((1, 2, 3)).retrieve((5,), 2) == ()


def test_the_latest_occurrence_counts_and_an_ending_is_none() -> None:
    assert of((1, 2, 1, 3, 1)).retrieve((), 1) == (3,)
    assert of((4, 1)).retrieve((), 1) == ()


def test_rejected_tokens_can_be_left_out() -> None:
    layers = Hierarchy(3, keep_rejected=False)
    layers.accept((1, 2))
    layers.reject(2, (9, 8))
    assert layers.retrieve((), 2) == ()


def test_only_the_prior_is_shared_by_requests() -> None:
    prior = Texts((6, 7))
    of((1, 2, 3), (3, (9, 8)), prior=prior)
    layers = of((1,), prior=prior)
    assert layers.retrieve((), 2) == ()  # 2 3 in the request before
    assert layers.retrieve((3,), 2) == ()  # 9 8 was rejected after 3 there
    assert layers.retrieve((6,), 2) == (7,)


def test_no_span_retrieves_nothing() -> None:
    assert of((1, 2, 1)).retrieve((), 0) == ()


def test_an_index_needs_a_length() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Index(0)


words = st.lists(st.integers(0, 2), min_size=1, max_size=12)
filled = st.builds(
    dict,
    prior=st.lists(words, max_size=3),
    prompt=words,
    blocks=st.lists(words, max_size=3),
    rejected=st.lists(st.tuples(st.integers(0, 20), words), max_size=3),
)


@given(filled=filled, ahead=st.lists(st.integers(0, 2), max_size=4), longest=st.integers(1, 4))
def test_it_retrieves_what_algorithm_3_does(filled: dict[str, Any], ahead: list[int], longest: int) -> None:
    layers = Hierarchy(longest, prior=Texts(*filled["prior"]))
    for block in (filled["prompt"], *filled["blocks"]):
        layers.accept(block)
    text = [token for block in (filled["prompt"], *filled["blocks"]) for token in block]
    chains = []
    for where, tokens in filled["rejected"]:
        at = min(where, len(text))
        layers.reject(at, tokens)
        chains.append((*text[max(0, at - longest) : at], *tokens))
    for span in range(4):
        expected = retrieve(
            (*text, *ahead), longest, span, warm_up=filled["prior"], dynamic=[text], rejected=chains
        )
        assert layers.retrieve(tuple(ahead), span) == expected
