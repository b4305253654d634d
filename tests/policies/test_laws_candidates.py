"""Several candidates for one position: the law emitted, exactly, in fractions and by counting coins."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.laws.duo import first_token_probs
from policies.laws.sampling import (
    accept_probability,
    acceptance_of_candidates,
    candidates_probs,
    candidates_probs_printed,
    draw,
    reject,
    verify_candidates,
)


@st.composite
def laws(draw_: st.DrawFn, count: int = 2, most: int = 6) -> list[list[Fraction]]:
    """Laws over one small vocabulary in exact numbers; zeros are likely."""
    size = draw_(st.integers(2, most))
    drawn = []
    for _ in range(count):
        weights = draw_(st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any))
        drawn.append([Fraction(w, sum(weights)) for w in weights])
    return drawn


def _floats(law: list[Fraction]) -> list[float]:
    return [float(x) for x in law]


def _law_in_fractions(
    p: list[Fraction], candidates: tuple[int, ...], drawn: list[list[Fraction]]
) -> list[Fraction]:
    """Law emitted for given candidates: another way, by recursion over what is left of p."""
    if not candidates:
        return p
    (token, *rest), q = candidates, drawn[0]
    accept = min(Fraction(1), p[token] / q[token])
    over = [max(x - y, Fraction(0)) for x, y in zip(p, q, strict=True)]
    left = [x / sum(over) for x in over] if any(over) else p
    after = _law_in_fractions(left, tuple(rest), drawn[1:])
    return [(1 - accept) * x + accept * (token == t) for t, x in enumerate(after)]


class TestVerify:
    """`duo.verify`: exact with an update after every failure, biased without."""

    @given(law=laws(count=1), order=st.randoms())
    def test_chosen_candidates_leave_the_targets_law(self, law: list[list[Fraction]], order: object) -> None:
        p = _floats(law[0])
        tokens = list(range(len(p)))
        order.shuffle(tokens)  # type: ignore[attr-defined]
        for count in range(len(p) + 1):
            emitted = first_token_probs(p, tokens[:count])
            assert emitted == pytest.approx(p, abs=1e-15)
            mass = float(sum(law[0][t] for t in tokens[:count]))
            assert acceptance_of_candidates(p, tokens[:count]) == pytest.approx(mass, abs=1e-12)

    @given(law=laws(count=3, most=3))
    def test_drawn_candidates_leave_it_on_average(self, law: list[list[Fraction]]) -> None:
        p, *drafts = law
        total, exact = np.zeros(len(p)), [Fraction(0)] * len(p)
        for pair in itertools.product(range(len(p)), repeat=2):
            weight = drafts[0][pair[0]] * drafts[1][pair[1]]
            if weight:
                given_pair = candidates_probs(_floats(p), pair, [_floats(q) for q in drafts])
                by_hand = _law_in_fractions(p, pair, drafts)
                assert given_pair == pytest.approx(_floats(by_hand), abs=1e-12)
                total += float(weight) * given_pair
                exact = [x + weight * y for x, y in zip(exact, by_hand, strict=True)]
        assert exact == p
        assert total == pytest.approx(_floats(p), abs=1e-12)

    def test_coins_have_the_law(self) -> None:
        """Coins at the middles of a grid that holds all probabilities: an exact count."""
        p = [0.25, 0.5, 0.25]
        grid = [(i + 0.5) / 12 for i in range(12)]
        counts = Counter(verify_candidates(p, [1, 2], coins) for coins in itertools.product(grid, repeat=3))
        # token 1 with 1/2, then token 2 with half of the rest, else token 0
        assert {key: n / 12**3 for key, n in counts.items()} == {(1, 0): 0.5, (2, 1): 0.25, (0, None): 0.25}

    def test_the_printed_rule_is_biased(self) -> None:
        """With p = q the first candidate is always accepted; the error is as large as 1 - max p."""
        uniform = [0.1] * 10
        assert candidates_probs_printed(uniform, uniform, [3, 4]).tolist() == [0.0] * 3 + [1.0] + [0.0] * 6
        worst = 0.0
        rng = np.random.default_rng(2)
        for _ in range(2000):
            p, q = rng.dirichlet(np.full(5, 0.5), 2)
            emitted = candidates_probs_printed(p, q, np.argsort(-q)[:3].tolist())
            assert emitted.sum() == pytest.approx(1.0)
            worst = max(worst, float(np.abs(emitted - p).max()))
        assert worst > 0.6

    def test_edges(self) -> None:
        assert candidates_probs([1.0, 0.0], [1, 0]).tolist() == [1.0, 0.0]  # a token of probability 0 first
        assert verify_candidates([1.0, 0.0], [1], [0.0, 0.0]) == (0, None)  # nor by a coin of 0
        assert reject([0.5, 0.5], [0.5, 0.5]).tolist() == [0.5, 0.5]
        assert accept_probability([0.5, 0.5], [1.0, 0.0]).tolist() == [0.5, 1.0]
        assert [draw([0.0, 1.0, 0.0], u) for u in (0.0, 0.999)] == [1, 1]
        assert draw([0.1] * 3 + [0.0], 1.0 - 2.0**-53) == 2
        for coin in (1.0, -0.1):
            with pytest.raises(ValueError, match="coin"):
                draw([0.5, 0.5], coin)
        with pytest.raises(ValueError, match="outside the vocabulary"):
            candidates_probs([0.5, 0.5], [2])
        with pytest.raises(ValueError, match="cannot have been drawn"):
            candidates_probs([0.5, 0.5], [0], [[0.0, 1.0]])
        with pytest.raises(ValueError, match="one coin more"):
            verify_candidates([0.5, 0.5], [0], [0.5])
        with pytest.raises(ValueError, match="as many distributions"):
            candidates_probs([0.5, 0.5], [0], [])
        with pytest.raises(ValueError, match="vocabularies"):
            reject([0.5, 0.5], [1.0])
