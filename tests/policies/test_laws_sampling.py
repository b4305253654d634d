"""Sampled tokens: Saguaro sampling in fractions and by counting coins; candidates for one position."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_laws import SIGMAS, law

from policies.laws.duo import first_token_probs
from policies.laws.sampling import (
    Cached,
    accept_probability,
    acceptance,
    acceptance_of_candidates,
    candidates_probs,
    candidates_probs_printed,
    draw,
    hit_given_rejection,
    hit_given_rejection_fixed,
    hit_rate_sampled,
    reject,
    rescale,
    residual,
    round_weights,
    top_tokens,
    verify_candidates,
)

TARGET_19, DRAFT_19, SCALE_19 = (0.48, 0.48, 0.02, 0.02), (0.49, 0.49, 0.01, 0.01), 47 / 147
COUNTER_TARGET, COUNTER_DRAFT = (0.30, 0.30, 0.11, 0.29), (0.40, 0.40, 0.10, 0.10)


def test_top_tokens_of_equals_take_the_lower_id() -> None:
    assert top_tokens([0.1, 0.4, 0.1, 0.4], 3).tolist() == [1, 3, 0]
    assert top_tokens([0.1, 0.9], 9).tolist() == [1, 0]
    assert top_tokens([0.1, 0.9], 0).tolist() == []


def test_rescale_by_hand() -> None:
    # (.4 .3 .2 .1) with the first two halved: .2 .15 .2 .1, sum .65
    expected = [0.2 / 0.65, 0.15 / 0.65, 0.2 / 0.65, 0.1 / 0.65]
    assert rescale([0.4, 0.3, 0.2, 0.1], 2, 0.5) == pytest.approx(expected)
    assert rescale([0.4, 0.3, 0.2, 0.1], 2, 0.0) == pytest.approx([0, 0, 2 / 3, 1 / 3])
    assert rescale([0.4, 0.6], 2, 0.3) == pytest.approx([0.4, 0.6])
    assert rescale([0.4, 0.6], 1, 1.0) == pytest.approx([0.4, 0.6])
    assert rescale([0.4, 0.6], 0, 0.0) == pytest.approx([0.4, 0.6])
    with pytest.raises(ValueError, match="leaves nothing to draw"):
        rescale([0.4, 0.6, 0.0], 2, 0.0)


@given(p=law(), q=law())
def test_acceptance_is_one_less_half_the_distance(p: np.ndarray, q: np.ndarray) -> None:
    """`ssd.thm1`, with the half that the paper's proof leaves out."""
    assert acceptance(p, q) == pytest.approx(1.0 - 0.5 * np.abs(p - q).sum(), abs=1e-12)


@given(p=law(), q=law())
def test_what_is_emitted_has_the_law_of_the_target(p: np.ndarray, q: np.ndarray) -> None:
    """`ssd.sd`: accepted tokens and residual together are p, exactly."""
    assume(acceptance(p, q) < 1.0 - 1e-9)
    emitted = np.minimum(p, q) + (1.0 - acceptance(p, q)) * residual(p, q)
    assert emitted == pytest.approx(p, abs=1e-12)
    assert (residual(p, q)[q > p] == 0).all()


def test_thm19_in_fractions() -> None:
    """C = 47/147 turns p_d into (.47 .47 .03 .03): acceptance stays 49/50, the hit rate goes 1/2 -> 1."""
    scaled = [Fraction(49, 100) * Fraction(47, 147)] * 2 + [Fraction(1, 100)] * 2
    exact = [value / sum(scaled) for value in scaled]
    assert exact == [Fraction(47, 100)] * 2 + [Fraction(3, 100)] * 2
    drawn = rescale(DRAFT_19, 2, SCALE_19)
    assert drawn == pytest.approx([float(value) for value in exact], abs=1e-15)

    assert acceptance(TARGET_19, DRAFT_19) == pytest.approx(49 / 50, abs=1e-15)
    assert acceptance(TARGET_19, drawn) == pytest.approx(49 / 50, abs=1e-15)
    assert residual(TARGET_19, DRAFT_19) == pytest.approx([0, 0, 0.5, 0.5])
    assert residual(TARGET_19, drawn) == pytest.approx([0.5, 0.5, 0, 0])

    assert hit_given_rejection(TARGET_19, DRAFT_19, 2, 1.0) == pytest.approx(1 / 2, abs=1e-12)
    assert hit_given_rejection(TARGET_19, DRAFT_19, 2, SCALE_19) == pytest.approx(1.0, abs=1e-12)
    assert hit_given_rejection_fixed(TARGET_19, DRAFT_19, 2, 1.0) == pytest.approx(0.0, abs=1e-12)
    assert hit_given_rejection_fixed(TARGET_19, DRAFT_19, 2, SCALE_19) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("lookahead", [0, 1, 5])
def test_hit_rate_of_thm19(lookahead: int) -> None:
    """.98^K .96 + (1 - .98^K) h: K = 1 .9508 -> .9608, K = 5 .915804 -> .963843; K = 0 .96 -> .96."""
    full = Fraction(49, 50) ** lookahead
    plain = full * Fraction(24, 25) + (1 - full) * Fraction(1, 2)
    scaled = full * Fraction(24, 25) + (1 - full)
    fanout = (2,) * (lookahead + 1)
    assert hit_rate_sampled(TARGET_19, DRAFT_19, fanout, 1.0) == pytest.approx(float(plain), abs=1e-12)
    assert hit_rate_sampled(TARGET_19, DRAFT_19, fanout, SCALE_19) == pytest.approx(float(scaled), abs=1e-12)
    if lookahead:
        before, after = {1: (0.9508, 0.9608), 5: (0.915804, 0.963843)}[lookahead]
        assert (float(plain), float(scaled)) == (
            pytest.approx(before, abs=1e-6),
            pytest.approx(after, abs=1e-6),
        )


def test_where_thm15_fails() -> None:
    """With the cache of thm19 the hit rate falls as C falls, then rises; nor does acceptance fall."""
    hits = [hit_given_rejection(COUNTER_TARGET, COUNTER_DRAFT, 2, c) for c in (1.0, 0.95, 0.9, 0.8, 0.5, 0.3)]
    assert hits == pytest.approx([0.050, 0.030, 0.007, 0.0, 0.0, 0.465], abs=5e-4)
    # C = 1: u = (0 0 .01 .19), s = .2, R_S = .2, g is the third token: 0 + 1 * .01 / .2
    assert hits[0] == pytest.approx(0.05)
    accepted = [acceptance(COUNTER_TARGET, rescale(COUNTER_DRAFT, 2, c)) for c in (1.0, 0.3)]
    assert accepted == pytest.approx([0.80, 0.883], abs=5e-4)


def test_a_rejected_token_makes_room_only_if_it_was_cached() -> None:
    """Rejected: token 0 .3, 1 .05, 4 .1 of .45; F = 1 caches token 0, and 2 (residual .1 of .45) next."""
    p, q = (0.1, 0.1, 0.3, 0.4, 0.1), (0.4, 0.15, 0.2, 0.05, 0.2)
    assert hit_given_rejection(p, q, 1, 1.0) == pytest.approx(0.3 / 0.45 * 0.1 / 0.45)
    assert hit_given_rejection_fixed(p, q, 1, 1.0) == 0.0


@given(p=law(), q=law(), fanout=st.integers(1, 5), one=st.floats(0.01, 1.0), other=st.floats(0.01, 1.0))
def test_thm15_holds_for_the_fixed_cache(
    p: np.ndarray, q: np.ndarray, fanout: int, one: float, other: float
) -> None:
    """The hit rate given a rejection never rises with C; where nothing is rejected there is none."""
    low, high = sorted((one, other))
    for c in (low, high):
        assume(acceptance(p, rescale(q, fanout, c)) < 1.0 - 1e-9)
    rate = [hit_given_rejection_fixed(p, q, fanout, c) for c in (low, high)]
    assert rate[0] >= rate[1] - 1e-6


@given(p=law(), q=law(), fanout=st.integers(1, 4), k=st.integers(0, 4), low=st.floats(0.01, 1.0))
def test_thm15_holds_for_the_whole_round_with_the_fixed_cache(
    p: np.ndarray, q: np.ndarray, fanout: int, k: int, low: float
) -> None:
    rate = [hit_rate_sampled(p, q, (fanout,) * (k + 1), c, cached="fixed") for c in (low, 1.0)]
    assert rate[0] >= rate[1] - 1e-9


@given(p=law(), q=law(), fanout=st.integers(0, 6), c=st.floats(0.01, 1.0))
def test_leaving_out_the_rejected_token_never_hurts(
    p: np.ndarray, q: np.ndarray, fanout: int, c: float
) -> None:
    """It makes room for one more; with F + 1 >= V every outcome is cached."""
    hit = hit_given_rejection(p, q, fanout, c)
    assert 0.0 <= hit <= 1.0
    assert hit >= hit_given_rejection_fixed(p, q, fanout, c) - 1e-9
    if fanout >= 5:
        assert hit == pytest.approx(1.0)


@given(p=law(), q=law(), fanout=st.lists(st.integers(0, 5), min_size=1, max_size=5), c=st.floats(0.01, 1.0))
def test_round_weights_are_a_law(p: np.ndarray, q: np.ndarray, fanout: list[int], c: float) -> None:
    weights = round_weights(p, q, fanout, c)
    assert weights.shape == (len(fanout),) and weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


def _verify_round(
    rng: np.random.Generator,
    laws: tuple[np.ndarray, np.ndarray],
    fanout: tuple[int, ...],
    scale: float,
    cached: Cached,
) -> tuple[int, bool]:
    """One round as a speculator and a verifier do it: accepted tokens, and whether the bonus is cached."""
    p, q = laws
    rejected = None
    accepted = 0
    for width in fanout[:-1]:
        drawn = rescale(q, width, scale)
        token = rng.choice(len(q), p=drawn)
        if rng.random() * drawn[token] >= p[token]:
            rejected = token
            break
        accepted += 1
    if rejected is None:
        bonus = rng.choice(len(p), p=p)
    else:
        over = np.maximum(p - drawn, 0.0)
        bonus = rng.choice(len(p), p=over / over.sum())
    ranked = sorted(range(len(q)), key=lambda token: (-q[token], token))
    if cached == "without_rejected" and rejected is not None:
        ranked.remove(rejected)
    return accepted, bonus in ranked[: fanout[accepted]]


@pytest.mark.parametrize("cached", ["without_rejected", "fixed"])
@pytest.mark.parametrize(
    ("p", "q", "fanout", "scale"),
    [
        (COUNTER_TARGET, COUNTER_DRAFT, (2, 2, 2), 1.0),
        (COUNTER_TARGET, COUNTER_DRAFT, (2, 1, 3), 0.3),
        (TARGET_19, DRAFT_19, (2, 2), SCALE_19),
        ((0.1, 0.2, 0.3, 0.2, 0.2), (0.35, 0.05, 0.25, 0.25, 0.1), (3, 1, 0, 2), 0.6),
        ((0.1, 0.1, 0.3, 0.4, 0.1), (0.4, 0.15, 0.2, 0.05, 0.2), (1, 2, 1), 0.9),
    ],
)
def test_against_tossed_coins(
    p: tuple[float, ...], q: tuple[float, ...], fanout: tuple[int, ...], scale: float, cached: Cached
) -> None:
    """20 000 rounds of the real thing: hit rate and outcome weights within 4.9 standard deviations."""
    rng, rounds = np.random.default_rng(11), 20_000
    laws = np.array(p), np.array(q)
    tossed = [_verify_round(rng, laws, fanout, scale, cached) for _ in range(rounds)]
    expected = hit_rate_sampled(p, q, fanout, scale, cached=cached)
    spread = math.sqrt(max(expected * (1 - expected), 1 / rounds) / rounds)
    assert np.mean([hit for _, hit in tossed]) == pytest.approx(expected, abs=SIGMAS * spread)
    shares = np.bincount([k for k, _ in tossed], minlength=len(fanout)) / rounds
    for share, weight in zip(shares, round_weights(p, q, fanout, scale), strict=True):
        spread = math.sqrt(max(weight * (1 - weight), 1 / rounds) / rounds)
        assert share == pytest.approx(weight, abs=SIGMAS * spread)


def test_edges() -> None:
    same = (0.5, 0.3, 0.2)
    assert acceptance(same, same) == pytest.approx(1.0)
    assert hit_given_rejection(same, same, 1, 1.0) == 1.0
    assert hit_given_rejection_fixed(same, same, 1, 1.0) == 1.0
    with pytest.raises(ValueError, match="no residual"):
        residual(same, same)
    # Everything accepted: .5 of the target's mass is on the first token.
    assert hit_rate_sampled(same, same, (1, 1), 1.0) == pytest.approx(0.5)
    # Nothing in common: always rejected, and the residual is the target.
    assert acceptance([1.0, 0.0], [0.0, 1.0]) == 0.0
    # Only token 1 is drawn and it is rejected; it makes room for token 0.
    assert hit_given_rejection([1.0, 0.0], [0.0, 1.0], 1, 1.0) == 1.0
    assert hit_given_rejection_fixed([1.0, 0.0], [0.0, 1.0], 1, 1.0) == 0.0


def test_bad_input_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        acceptance([0.5, 0.4], [0.5, 0.5])
    with pytest.raises(ValueError, match="different vocabularies"):
        acceptance([1.0], [0.5, 0.5])
    with pytest.raises(ValueError, match="scale"):
        rescale([0.5, 0.5], 1, 1.5)
    with pytest.raises(ValueError, match="at least 0"):
        rescale([0.5, 0.5], -1, 0.5)
    with pytest.raises(ValueError, match="at least one position"):
        hit_rate_sampled([1.0], [1.0], (), 1.0)
    with pytest.raises(ValueError, match="cached must be one of"):
        hit_rate_sampled([1.0], [1.0], (1,), 1.0, cached="top")  # type: ignore[arg-type]


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
