"""A tiny sampled recording by hand, views and speculations for a single row of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chains import Chain, trace_of

from policies.sampling import Sampling
from policies.values import Source, Speculation, View
from simulator.tokens import TokenModel, coin

SAMPLED = Sampling(temperature=1.0)

# Four tokens, of which the draft's three likeliest are listed; the draft ranks them 0 1 2 3 everywhere.
#   after 0: q .5 .3 .15 .05, p .2 .4 .3 .1      after 1: q .4 .3 .2 .1, p .3 .15 .5 .05
#   after 2: q .7 .1 .1 .1,   p .1 .1 .1 .7      after 3: as after 2
# The text is 1 2 3: ranks 1, 2 and 3, the last one not listed.
BY_HAND = Chain(
    p=np.array([[0.2, 0.4, 0.3, 0.1], [0.3, 0.15, 0.5, 0.05], [0.1, 0.1, 0.1, 0.7], [0.1, 0.1, 0.1, 0.7]]),
    q=np.array([[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]]),
)
TEXT = trace_of(BY_HAND, np.array([0, 1, 2]), np.array([1, 2, 3]), length=3, ranks=3)
GREEDY_TEXT = replace(TEXT, meta=TEXT.meta.but(sampling={"temperature": 0.0}))

VIEW = View((0,), (0,), (0,), (5,), (3,))


def drafted(length: int, source: Source, *tokens: int) -> Speculation:
    return Speculation((length,), (int(source),), (tokens,) if tokens else None, source > Source.PRIMARY)


def coins() -> TokenModel:
    return coin(0.5, exponent=1.0, requests=1, length=9, prompt_length=1, seed=0)


def near(expected: list[float]) -> Any:
    return pytest.approx(expected, abs=1e-6)
