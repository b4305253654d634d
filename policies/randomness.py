"""Keyed randomness: a draw belongs to what it decides, not to the moment at which it is taken.

Every policy then meets the same luck, a position is decided once, and both worlds draw alike.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from policies.operations import IntArray

FloatArray: TypeAlias = NDArray[np.float64]


def keyed_generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """A generator that depends on nothing but its key.

    Args:
        seed: The run's seed.
        stream: Name of what is drawn, e.g. `"acceptance"`; different names are independent.
        key: Further integers, e.g. the request.
    """
    words = [seed, zlib.crc32(stream.encode()), *key]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def random_tokens(seed: int, request: int, position: int, count: int, vocabulary: int) -> IntArray:
    """[count] uniform token ids for the positions `position`, `position + 1`, ... of a request.

    The token of a position depends on that position alone, so that it is the same in both worlds and
    at every lookahead.
    """
    return np.array(
        [
            keyed_generator(seed, "random-backup", request, position + i).integers(vocabulary)
            for i in range(count)
        ],
        dtype=np.int64,
    )
