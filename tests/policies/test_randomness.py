"""Keyed draws: same key, same draw; nothing else matters."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.randomness import keyed_generator, random_tokens

small = st.integers(min_value=0, max_value=10_000)


@given(seed=small, request=small, position=small)
def test_a_position_is_decided_once(seed: int, request: int, position: int) -> None:
    """The token of a position does not depend on where a speculation starts or how long it is."""
    long = random_tokens(seed, request, position, 5, 100)
    late = random_tokens(seed, request, position + 3, 2, 100)
    assert long[3:].tolist() == late.tolist()


def test_streams_are_independent() -> None:
    a = keyed_generator(1, "one", 2).random(1000)
    b = keyed_generator(1, "two", 2).random(1000)
    # 1000 pairs: a correlation above .13 would be four standard errors.
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.13


def test_tokens_are_uniform() -> None:
    tokens = np.concatenate([random_tokens(0, r, 0, 8, 4) for r in range(250)])
    # 2000 draws of 4 values: expected 500, standard deviation 19; five of them allowed.
    assert np.all(np.abs(np.bincount(tokens, minlength=4) - 500) < 97)
