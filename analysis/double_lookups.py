"""How long DOUBLE's lookups take, by the size of the prior."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hardware_profiles.datastore import Datastore, datastore_path
from hardware_profiles.trace import Trace
from policies.retrieval import Hierarchy

LOOKUPS = 400
"""Most lookups that a retrieval time is the median of."""


@dataclass(frozen=True, slots=True)
class RetrievalTime:
    """How long looking words up takes.

    Attributes:
        datastore: The prior; empty for none.
        tokens: Its tokens.
        median_s: Seconds of a lookup, over all layers.
        most_s: The longest one.
        found: Share of lookups that retrieved something.
        longest: Longest ending looked up.
    """

    datastore: str
    tokens: int
    median_s: float
    most_s: float
    found: float
    longest: int


def retrieval_time(
    name: str, trace: Trace, *, longest: int = 3, span: int = 10, lookups: int = LOOKUPS
) -> RetrievalTime:
    """Time lookups after the words of recorded texts, as a request that emits them would do them.

    Args:
        name: Of the prior; empty for none.
        trace: Recorded texts.
        longest: Longest ending.
        span: Tokens retrieved.
        lookups: Most lookups.
    """
    prior = Datastore.open(datastore_path(name)) if name else None
    seconds: list[float] = []
    found = 0
    for request, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False):
        layers = Hierarchy(longest, prior=prior)
        layers.accept(request.prompt)
        for token in trace.token[a:b].tolist():
            start = time.perf_counter()
            retrieved = layers.retrieve((), span)
            seconds.append(time.perf_counter() - start)
            found += bool(retrieved)
            layers.accept((token,))
            if len(seconds) == lookups:
                break
        if len(seconds) == lookups:
            break
    tokens = 0 if prior is None else len(prior)
    median, most = float(np.median(seconds)), max(seconds)
    return RetrievalTime(name, tokens, median, most, found / len(seconds), longest)
