"""Retrieval drafting and the target's guidance: against string search, plain decoding and exact laws."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.double import (
    Guided,
    guide,
    guide_sampled,
    guide_sampled_printed,
    postverify_printed,
    preverify_printed,
    step,
)
from policies.laws.retrieval import (
    lookup,
    retrieval_draft,
    retrieval_draft_printed,
    retrieval_forward,
    retrieve,
)

words = st.lists(st.integers(0, 2), min_size=1, max_size=14)
texts = st.lists(words, max_size=4)


def _string(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def _search(text: Sequence[int], datastore: Sequence[Sequence[int]], longest: int, span: int) -> str | None:
    """What `lookup` finds, by searching strings from the right."""
    for size in range(min(longest, len(text)), 0, -1):
        for stored in reversed(datastore):
            # One character must follow, so the search ends before the last one.
            at = _string(stored)[:-1].rfind(_string(text[-size:]))
            if at >= 0:
                return _string(stored)[at + size : at + size + span]
    return None


@given(text=words, datastore=texts, longest=st.integers(1, 5), span=st.integers(0, 6))
def test_lookup_against_string_search(
    text: list[int], datastore: list[list[int]], longest: int, span: int
) -> None:
    found = lookup(text, datastore, longest, span)
    assert _string(found) == (_search(text, datastore, longest, span) or "")


class TestRetrievalForward:
    """`double.eq2` and `double.eq5`: an automaton's continuation is the model's."""

    @staticmethod
    def _continuation(text: Sequence[int], count: int) -> list[int]:
        """Greedy tokens of a model that looks at two tokens; it falls into a loop, as texts do."""
        tokens = list(text)
        for _ in range(count):
            tokens.append((tokens[-1] * 2 + (tokens[-2] if len(tokens) > 1 else 0) + 1) % 5)
        return tokens[len(text) :]

    def test_by_hand(self) -> None:
        # 1 2 occurred before and 3 4 1 followed; the model goes on with 3 4 9.
        assert retrieval_forward([1, 2, 3, 4, 1, 2], [3, 4, 9, 9], 2, 3) == (3, 4, 9)
        # no match: a plain step
        assert retrieval_forward([1, 2, 3], [7, 8], 2, 3) == (7,)
        assert retrieval_forward([1, 1], [1, 1, 1], 2, 0) == (1,)

    @given(text=words, longest=st.integers(1, 4), span=st.integers(0, 6))
    def test_output_is_that_of_plain_decoding(self, text: list[int], longest: int, span: int) -> None:
        grown = list(text)
        while len(grown) < len(text) + 30:
            path = self._continuation(grown, span + 1)
            phrase = retrieval_forward(grown, path, longest, span)
            assert 1 <= len(phrase) <= span + 1
            grown += phrase
        plain = [*text, *self._continuation(text, len(grown) - len(text))]
        assert grown == plain

    @given(text=words, forwards=st.integers(0, 5))
    def test_iterated(self, text: list[int], forwards: int) -> None:
        path = self._continuation(text, 40)
        phrases = retrieval_draft(text, path, 3, 4, forwards)
        assert len(phrases) == forwards and all(phrases)
        drafted = [token for phrase in phrases for token in phrase]
        assert drafted == path[: len(drafted)]

    def test_the_printed_form_stands_still(self) -> None:
        """Without the own token a draft that matches nothing drafts nothing, for ever."""
        assert retrieval_draft_printed([1, 2, 3], [4, 5, 6, 7], 3, 2, 50) == ((),) * 50
        assert retrieval_draft([1, 2, 3], [4, 5, 6, 7], 3, 2, 3) == ((4,), (5,), (6,))
        # With matches both go on, the printed one a token per phrase behind.
        assert retrieval_draft_printed([1, 2, 1], [2, 1, 2, 1], 1, 2, 2) == ((2, 1), (2, 1))
        assert retrieval_draft([1, 2, 1], [2, 1, 2, 1], 1, 2, 2) == ((2, 1, 2), (1,))

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="path is empty"):
            retrieval_forward([1], [], 1, 1)
        with pytest.raises(ValueError, match="longest"):
            lookup([1], [[1]], 0, 1)
        with pytest.raises(ValueError, match="lookahead"):
            retrieval_draft([1], [1], 1, 1, -1)


class TestCache:
    """`double.alg3`."""

    def test_priorities(self) -> None:
        layers = {"warm_up": [[1, 2, 10]], "dynamic": [[1, 2, 20]], "rejected": [[1, 2, 30]]}
        assert retrieve([0, 1, 2], 2, 1, **layers) == (10,)
        assert retrieve([0, 1, 2], 2, 1, dynamic=layers["dynamic"], rejected=layers["rejected"]) == (20,)
        assert retrieve([0, 1, 2], 2, 1, rejected=layers["rejected"]) == (30,)
        # Longest first: three words among the rejected before two among the warm-up texts.
        assert retrieve([0, 1, 2], 3, 1, warm_up=[[1, 2, 10]], rejected=[[0, 1, 2, 30]]) == (30,)
        # Prompt lookup last, in the text itself.
        assert retrieve([1, 2, 5, 1, 2], 2, 2) == (5, 1)
        assert retrieve([1, 2, 3], 2, 2) == ()

    @given(
        text=words,
        layers=st.tuples(texts, texts, texts),
        longest=st.integers(1, 4),
        span=st.integers(1, 5),
    )
    def test_against_string_search(
        self, text: list[int], layers: tuple[list[list[int]], ...], longest: int, span: int
    ) -> None:
        candidates = [
            (size, layer)
            for size in range(min(longest, len(text)), 0, -1)
            for layer in layers
            if _search(text[-size:], layer, size, span) is not None
            and any(_string(text[-size:]) in _string(stored)[:-1] for stored in layer)
        ]
        if candidates:
            size, layer = candidates[0]
            expected = _search(text[-size:], layer, size, span)
        else:
            expected = _search(text, [text], longest, span)
        found = retrieve(text, longest, span, warm_up=layers[0], dynamic=layers[1], rejected=layers[2])
        assert _string(found) == (expected or "")


class TestGuidance:
    """`double.eq6` and the steps of `double.alg1` and `double.alg2`, greedy."""

    def test_the_figure(self) -> None:
        """Corrections and extensions as in the paper's figure 4."""
        assert guide([6, 7, 8], [6, 17, 18, 19]) == Guided((6, 17, 18, 19), 1, (), "correction")
        assert guide([6, 7], [6, 7, 8, 9]) == Guided((6, 7, 8, 9), 2, (), "extension")
        assert guide([6, 7, 8], [6, 7]) == Guided((6, 7), 2, (8,), "pending")
        assert guide([6, 7], [6, 7]) == Guided((6, 7), 2, (), "extension")
        assert guide([], [6, 7]) == Guided((6, 7), 0, (), "extension")
        with pytest.raises(ValueError, match="own token"):
            guide([1], [])

    @given(draft=st.lists(st.integers(0, 1), max_size=8), size=st.integers(1, 6), seed=st.integers(0, 99))
    def test_only_the_targets_path_is_committed(self, draft: list[int], size: int, seed: int) -> None:
        path = np.random.default_rng(seed).integers(0, 2, 20).tolist()
        guided = guide(draft, path[:size])
        assert list(guided.committed) == path[: len(guided.committed)] and guided.committed
        assert [*guided.committed[: guided.accepted], *guided.pending] in (draft, draft[: guided.accepted])

    @given(seed=st.integers(0, 10_000))
    def test_steps_emit_the_plain_text(self, seed: int) -> None:
        """Drafts that are right for a while, guidance of any length: every step commits, nothing is wrong."""
        rng = np.random.default_rng(seed)
        path = rng.integers(0, 3, 80).tolist()
        text, pending, mode = [], (), "pre-verify"
        while len(text) < 40:
            begin = len(text)
            assert (mode == "post-verify") == bool(pending)
            answers = path[begin : begin + len(pending)]
            after = begin + len(pending)
            drafted = [int(t if rng.random() < 0.7 else 0) for t in path[after : after + rng.integers(1, 7)]]
            own = path[after : after + rng.integers(1, 5)]
            result, mode = step(pending, answers, drafted, own)
            assert result.committed
            text += result.committed
            pending = result.pending
            assert text == path[: len(text)]

    def test_a_wrong_pending_token_ends_the_step(self) -> None:
        result, mode = step([1, 2, 3], [1, 9, 9], [4, 5], [7])
        assert (result, mode) == (Guided((1, 9), 1, (), "correction"), "pre-verify")
        with pytest.raises(ValueError, match="as many answers"):
            step([1], [], [2], [2])

    def test_the_printed_pre_verification_stands_still(self) -> None:
        """n counts the accepted: with the first token wrong Y_p[:0] is appended, at every step."""
        assert preverify_printed([5, 6], [7, 8, 9]) == ()
        assert guide([5, 6], [7, 8, 9]).committed == (7, 8, 9)
        # All n_p accepted: X_q is appended whole, of which one token was judged.
        assert preverify_printed([7, 6], [7]) == (7, 6)
        assert guide([7, 6], [7]).pending == (6,)
        with pytest.raises(ValueError, match="own token"):
            preverify_printed([1], [])

    @given(seed=st.integers(0, 10_000))
    def test_the_printed_post_verification_trusts_the_first_token(self, seed: int) -> None:
        """Right where the first pending token is; otherwise that token stays in the text."""
        rng = np.random.default_rng(seed)
        path = rng.integers(0, 3, 30).tolist()
        size, drafted = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        pending = [int(t if rng.random() < 0.7 else (t + 1) % 3) for t in path[:size]]
        own = path[size : size + int(rng.integers(1, 6))]
        draft = [int(t if rng.random() < 0.7 else (t + 1) % 3) for t in path[size : size + drafted]]
        printed = postverify_printed(pending, path[:size], draft, own)
        result, _ = step(pending, path[:size], draft, own)
        if pending[0] == path[0]:
            assert printed == (*result.committed, *result.pending)
        else:
            assert printed[0] == pending[0] != result.committed[0]

    def test_post_verification_needs_something_pending(self) -> None:
        with pytest.raises(ValueError, match="pending"):
            postverify_printed([], [], [1], [1])


EIGHTH = Fraction(1, 8)
DRAFT = (4 * EIGHTH, 2 * EIGHTH, 2 * EIGHTH)
TARGET = (
    (2 * EIGHTH, 3 * EIGHTH, 3 * EIGHTH),
    (1 * EIGHTH, 2 * EIGHTH, 5 * EIGHTH),
    (4 * EIGHTH, 3 * EIGHTH, 1 * EIGHTH),
)
"""p/q and the residuals are multiples of 1/4, so that coins at the middles of quarters give exact laws."""
QUARTERS = (0.125, 0.375, 0.625, 0.875)


def _chains(length: int, last: int = 0) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Continuations of the target after token `last`, with their probabilities."""
    for tokens in itertools.product(range(3), repeat=length):
        weight = Fraction(1)
        for before, token in zip((last, *tokens), tokens, strict=False):
            weight *= TARGET[before][token]
        yield tokens, weight


def _law_of_two(rule: Callable[..., Guided], guided: int) -> dict[tuple[int, ...], Fraction]:
    """Exact law of the first two tokens; what is not committed is decoded plainly."""
    law: Counter[tuple[int, ...]] = Counter()
    draft_rows = [np.array([float(x) for x in DRAFT])] * 2
    coins = list(itertools.product(QUARTERS, repeat=3))
    for tokens, weight in _chains(guided):
        laws = [np.array([float(x) for x in TARGET[t]]) for t in (0, *tokens[:-1])]
        for drafted in itertools.product(range(3), repeat=2):
            share = weight * DRAFT[drafted[0]] * DRAFT[drafted[1]] / len(coins)
            outcomes = Counter(rule(drafted, tokens, laws, draft_rows, c).committed[:2] for c in coins)
            for emitted, times in outcomes.items():
                for rest, chance in _chains(2 - len(emitted), emitted[-1]):
                    law[*emitted, *rest] += share * times * chance
    return law


@pytest.mark.parametrize("guided", [1, 2, 3])
def test_sampled_guidance_has_exactly_the_targets_law(guided: int) -> None:
    """In rational arithmetic: every guidance, draft and coin."""
    assert _law_of_two(guide_sampled, guided) == dict(_chains(2))


def test_printed_guidance_is_biased_when_sampling() -> None:
    law = _law_of_two(guide_sampled_printed, 3)
    first = [sum(w for tokens, w in law.items() if tokens[0] == token) for token in range(3)]
    # min(p, q) + P(rejected) p: p = (2 3 3)/8, q = (4 2 2)/8, P(rejected) = 1/4
    assert first == [Fraction(2, 8) + Fraction(2, 32), Fraction(2, 8) + Fraction(3, 32), Fraction(11, 32)]
    half, tenth = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    emitted = Counter(
        guide_sampled_printed([x], [y], [tenth], [half], [(i + 0.5) / 10, 0.0]).committed[0]
        for x in (0, 1)
        for y in [0] * 9 + [1]
        for i in range(10)
    )
    assert emitted[0] / emitted.total() == pytest.approx(0.86)


def test_sampled_guidance_beside_the_path() -> None:
    """An accepted token that is not the target's own takes the condition from the rest of the guidance."""
    half = np.array([0.5, 0.5])
    beside = guide_sampled([0], [1, 1], [half, half], [half], [0.9, 0.0])
    assert beside == Guided((0,), 1, (), "extension")
    on_it = guide_sampled([1], [1, 0], [half, half], [half], [0.9, 0.0])
    assert on_it == Guided((1, 0), 1, (), "extension")
    # A token that the target never emits is not accepted even by a coin of 0.
    never = guide_sampled([0], [1], [np.array([0.0, 1.0])], [half], [0.0, 0.0])
    assert never == Guided((1,), 0, (), "correction")


def test_sampled_guidance_refuses_what_does_not_fit() -> None:
    law = np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="distribution for each"):
        guide_sampled([0], [], [], [law], [0.5, 0.5])
    with pytest.raises(ValueError, match="one coin more"):
        guide_sampled([0], [1], [law], [law], [0.5])
    with pytest.raises(ValueError, match="sum to 1"):
        guide_sampled([0], [1], [law * 2], [law], [0.5, 0.5])
    with pytest.raises(ValueError, match="one vocabulary"):
        guide_sampled([2], [1], [law], [law], [0.5, 0.5])
    with pytest.raises(ValueError, match="one vocabulary"):
        guide_sampled([0], [1], [law], [np.array([0.2, 0.3, 0.5])], [0.5, 0.5])
