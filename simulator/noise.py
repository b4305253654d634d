"""Keyed noise on durations: the n-th factor of a name is the same in every run with the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from policies.sampling import FloatArray, keyed_generator

BLOCK = 1024
STRATA = 16
"""Of whole operations, which vary by a quarter: a run of a hundred of them then takes its mean within a per
cent, where independent factors would be off by two or three."""
Transform: TypeAlias = Callable[[FloatArray], FloatArray]
"""Factors of mean 1 from uniforms in [0, 1)."""


class KeyedNoise:
    """Factors on durations, by name and ordinal number.

    Args:
        seed: Keys them.
        strata: So many in a row come from as many equal parts of their distribution; 1: all are independent.
    """

    def __init__(self, seed: int, *, strata: int = 1) -> None:
        self.seed = seed
        self.strata = strata
        self._blocks: dict[str, tuple[FloatArray, int]] = {}

    def factor(self, name: str, transform: Transform) -> float:
        """The next factor of a name; the transform of a name is always the same."""
        block, used = self._blocks.get(name, (np.zeros(0), 0))
        if used % BLOCK == 0:
            block = transform(
                _uniforms(keyed_generator(self.seed, f"latency-{name}", used // BLOCK), self.strata)
            )
        self._blocks[name] = (block, used + 1)
        return float(block[used % BLOCK])


def _uniforms(random: np.random.Generator, strata: int) -> FloatArray:
    """[BLOCK] uniforms in [0, 1), every `strata` of them one in each of as many parts."""
    if strata == 1:
        return random.random(BLOCK)
    parts = random.permuted(np.tile(np.arange(strata), (BLOCK // strata, 1)), axis=1).ravel()
    found: FloatArray = (parts + random.random(BLOCK)) / strata
    return found
