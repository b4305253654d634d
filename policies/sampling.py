"""How tokens are chosen: the distributions that they come from, and their randomness.

Randomness is keyed: a draw belongs to what it decides, not to the moment at which it is taken.  Every policy
then meets the same luck, a position is decided once, and both worlds draw alike.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

DraftMode: TypeAlias = Literal["sampled", "greedy"]
DRAFT_MODES: tuple[DraftMode, ...] = get_args(DraftMode)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling setting of a run.

    Both laws are softmax(logits / temperature), cut to the smallest set of most likely tokens whose mass
    reaches `top_p` and renormalised: p of the target, q of the draft.  A drafted token comes from sigma:
    q itself, or q with its top F_k tokens multiplied by `scale` and renormalised (Saguaro sampling,
    `ssd.def13-14`), or the draft's first choice (`draft="greedy"`, what vLLM does by default).

    Attributes:
        temperature: 0 decodes greedily; the other fields but `seed` then change nothing.
        top_p: Mass kept, in (0, 1].
        draft: How the draft chooses its tokens at a temperature above 0.
        scale: Saguaro's C in [0, 1]; 1 is plain sampling.
        seed: Keys every draw.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    draft: DraftMode = "sampled"
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0, got {self.temperature:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p:g}")
        if not 0.0 <= self.scale <= 1.0:
            raise ValueError(f"the scale C must be between 0 and 1, got {self.scale:g}")
        if self.draft not in DRAFT_MODES:
            raise ValueError(f"unknown draft mode {self.draft!r}; modes: {', '.join(DRAFT_MODES)}")

    @property
    def greedy(self) -> bool:
        """Whether the target decodes greedily."""
        return self.temperature == 0.0

    @property
    def draft_sampled(self) -> bool:
        """Whether drafted tokens are random, so that verification needs the law they were drawn from."""
        return not self.greedy and self.draft == "sampled"


GREEDY = Sampling()
"""Greedy decoding by both models."""


FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]


def keyed_generator(seed: int, stream: str, *key: int) -> np.random.Generator:
    """A generator that depends on nothing but its key; different names of a `stream` are independent."""
    words = [seed, zlib.crc32(stream.encode()), *key]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def keyed_uniforms(seed: int, stream: str, *key: int | IntArray) -> FloatArray:
    """Uniforms in [0, 1), one per key, each a function of its key alone.

    A counter-based hash (splitmix64's finaliser over the words of the key): a thousand times cheaper than
    a generator per draw, which the live engine could not afford within a round.  The key is integers or
    arrays of them, broadcast against each other, e.g. request and position.
    """
    words = np.broadcast_arrays(*[np.asarray(k, dtype=np.int64) for k in key])
    with np.errstate(over="ignore"):
        state = _mix(np.full(words[0].shape, zlib.crc32(stream.encode()), dtype=np.uint64))
        for word in (np.int64(seed), *words):
            state = _mix(state ^ _mix(np.asarray(word).astype(np.uint64) + _GOLDEN))
    uniforms: FloatArray = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    return words ^ (words >> np.uint64(31))


def random_tokens(seed: int, request: int, position: int, count: int, vocabulary: int) -> tuple[int, ...]:
    """`count` uniform token ids for the positions `position`, `position + 1`, ... of a request.

    The token of a position depends on that position alone, so that it is the same in both worlds and
    at every lookahead.
    """
    uniforms = keyed_uniforms(seed, "random-backup", request, position + np.arange(count))
    return tuple(int(token) for token in uniforms * vocabulary)
