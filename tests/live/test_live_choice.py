"""Laws and draws, each against a plain computation of the same on lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrate.live.engine.sampling import (
    accepted_run,
    best_mask,
    cut_top_p,
    draw,
    one_hot,
    rescale,
    residual,
    token_probs,
)
from policies.laws import sampling as laws
from policies.sampling import Sampling

LOGITS = torch.randn((40, 13), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LEVEL = torch.tensor([[2.0, 1.0, 2.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]])


def plain_top_p(probabilities: list[float], top_p: float) -> list[float]:
    """The definition, word by word."""
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p:
            break
        kept.append(token)
        mass += probabilities[token]
    return [p / mass if token in kept else 0.0 for token, p in enumerate(probabilities)]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.8, 0.999, 1.0])
def test_laws_are_cut_softmaxes(temperature: float, top_p: float) -> None:
    found = token_probs(LOGITS.float(), Sampling(temperature, top_p))
    assert found.dtype == torch.float64
    weights = np.exp(LOGITS.float().double().numpy() / temperature)
    for row, expected in zip(found.tolist(), weights / weights.sum(axis=1, keepdims=True), strict=True):
        assert row == pytest.approx(plain_top_p(expected.tolist(), top_p), abs=1e-12)


def test_top_p_of_a_large_vocabulary() -> None:
    """Whether the first look at the most likely tokens suffices or not."""
    for spread in (0.1, 1.0, 3.0):
        logits = spread * torch.randn((5, 600), generator=torch.Generator().manual_seed(3)).round(decimals=1)
        plain = torch.softmax(logits.double(), dim=-1)
        for top_p in (0.2, 0.7, 0.99):
            found = cut_top_p(plain, top_p)
            for row, expected in zip(found.tolist(), plain.tolist(), strict=True):
                assert row == pytest.approx(plain_top_p(expected, top_p), abs=1e-12)


def test_of_equals_the_lower_ids_are_kept() -> None:
    even = torch.full((1, 4), 0.25, dtype=torch.float64)
    assert cut_top_p(even, 0.5).tolist() == [[0.5, 0.5, 0.0, 0.0]]
    assert cut_top_p(even, 0.51)[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert best_mask(LEVEL, 2).tolist() == [
        [True, False, True, False, False],
        [True, True, False, False, False],
    ]
    assert best_mask(LEVEL, 9).all()


def test_greedy_laws_are_sure() -> None:
    found = token_probs(LEVEL, Sampling())
    assert found.tolist() == [[1.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]]
    assert one_hot(torch.tensor([2]), 3).tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize("top", [0, 1, 5, 13, 20])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_rescaled_laws_are_the_papers(top: int, scale: float) -> None:
    plain = token_probs(LOGITS, Sampling(1.0))
    found = rescale(plain, LOGITS, top, scale)
    found /= found.sum(dim=-1, keepdim=True)
    for row, q in zip(found.numpy(), plain.numpy(), strict=True):
        if scale == 0.0 and top >= 13:  # nothing would be left
            assert row == pytest.approx(q)
        else:
            assert row == pytest.approx(laws.rescale(q, top, scale))


def test_draws_follow_the_weights_and_never_a_zero() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 5.0, 0.0], dtype=torch.float64)
    uniforms = (np.arange(8000) + 0.5) / 8000
    counts = np.bincount(draw(weights.expand(8000, -1), uniforms).numpy(), minlength=6)
    assert counts.tolist() == [0, 2000, 0, 1000, 5000, 0]
    edges = np.array([0.0, 1.0 - 2.0**-53])
    for scale in (1.0, 0.3, 1e-30, 7e20):
        assert draw(scale * weights.expand(2, -1), edges).tolist() == [1, 4]


def test_acceptance_stops_at_the_first_rejection() -> None:
    p = np.array([[0.5, 0.1, 0.9], [0.2, 0.2, 0.2]])
    sigma = np.array([[0.5, 0.2, 0.1], [0.4, 0.1, 0.1]])
    middle = np.full((2, 3), 0.5)
    assert accepted_run(p, sigma, middle - 0.01, np.array([3, 3])).tolist() == [3, 3]
    # u < p / sigma, strictly
    assert accepted_run(p, sigma, middle, np.array([3, 3])).tolist() == [1, 0]
    assert accepted_run(p, sigma, middle * 0, np.array([2, 0])).tolist() == [2, 0]
    nothing = np.zeros((1, 3))
    assert accepted_run(nothing, sigma[:1], nothing, np.array([3])).tolist() == [0]


def test_the_residual_is_what_p_has_more() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], dtype=torch.float64)
    sigma = torch.tensor([[0.1, 0.5, 0.4], [0.5, 0.3, 0.2]], dtype=torch.float64)
    left = residual(p, sigma)
    assert left[0].tolist() == pytest.approx([0.4, 0.0, 0.0])
    assert left[1].tolist() == p[1].tolist()  # p = sigma: never needed but by rounding


@given(
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(0, 6),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_of_tied_tokens_the_first_are_rescaled(levels: list[int], top: int, scale: float) -> None:
    logits = torch.tensor([levels], dtype=torch.float32)  # few levels, so that many tokens tie
    weights = torch.exp(logits)
    wanted = torch.where(best_mask(logits, top), weights * scale, weights) if top else weights
    found = rescale(weights, logits, top, scale)
    assert torch.equal(found, wanted if wanted.any() else weights)
