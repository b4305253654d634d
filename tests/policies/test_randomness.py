"""Keyed draws: same key, same draw; nothing else matters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.sampling import keyed_generator, keyed_uniforms, random_tokens

small = st.integers(min_value=0, max_value=10_000)


@given(seed=small, request=small, position=small)
def test_a_position_is_decided_once(seed: int, request: int, position: int) -> None:
    """The token of a position does not depend on where a speculation starts or how long it is."""
    long = random_tokens(seed, request, position, 5, 100)
    late = random_tokens(seed, request, position + 3, 2, 100)
    assert long[3:] == late


def test_streams_are_independent() -> None:
    a = keyed_generator(1, "one", 2).random(1000)
    b = keyed_generator(1, "two", 2).random(1000)
    # 1000 pairs: a correlation above .13 would be four standard errors.
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.13


def test_tokens_are_uniform() -> None:
    tokens = np.concatenate([random_tokens(0, r, 0, 8, 4) for r in range(250)])
    # 2000 draws of 4 values: expected 500, standard deviation 19; five of them allowed.
    assert np.all(np.abs(np.bincount(tokens, minlength=4) - 500) < 97)


@given(seed=small, request=small, position=small)
def test_a_uniform_depends_on_its_key_alone(seed: int, request: int, position: int) -> None:
    """Alone or among others, as a scalar or in an array: the same key gives the same number."""
    alone = float(keyed_uniforms(seed, "accept", request, position))
    positions = np.arange(position, position + 4)
    among = keyed_uniforms(seed, "accept", np.full(4, request), positions)
    assert alone == among[0]
    assert len(set(among.tolist())) == 4
    assert alone != float(keyed_uniforms(seed, "bonus", request, position))
    assert alone != float(keyed_uniforms(seed + 1, "accept", request, position))


def test_uniforms_are_uniform_and_uncorrelated_along_every_key() -> None:
    grid = keyed_uniforms(5, "accept", np.arange(300)[:, None], np.arange(300)[None, :])
    # 90 000 draws in 20 bins: chi-square with 19 degrees of freedom exceeds 43.8 in 0.1 % of cases.
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    assert ((counts - 4500.0) ** 2 / 4500.0).sum() < 43.8
    # The standard error of a correlation of 89 700 pairs is .0033; four of them allowed.
    for one, other in ((grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.0134
    by_seed = [keyed_uniforms(seed, "accept", np.arange(90_000)) for seed in (1, 2)]
    assert abs(np.corrcoef(*by_seed)[0, 1]) < 0.0134
