"""Acceptance and cache-hit curves of a recorded pair, all positions pooled, as the papers' laws see them.

Greedy verification of a recorded text: the target's token at a position has a *rank* under the draft,
0 where it is the draft's first choice.  After a rejection the cached set leaves out the rejected first
choice, so F guesses hit iff rank <= F; where nothing of the draft's was rejected, iff rank < F.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.laws.ssd import PowerLaw, fit_power_law
from policies.values import IntArray

DEEPEST = 15
"""Largest fan-out of a curve: with the rejected token left out, 16 recorded ranks decide 15."""


@dataclass(frozen=True, slots=True)
class HitCurves:
    """Greedy acceptance and hit rates by fan-out.

    Attributes:
        positions: Recorded positions behind them.
        acceptance: Share of positions whose token is the draft's first choice.
        fanouts: F = 1, 2, ...
        after_rejection: P(hit | F) where the draft's first choice was rejected, which the cached set
            leaves out (k < K); all ones without a rejection.
        unconditional: P(hit | F) where nothing was rejected (k = K, or after a plain decode).
        power_law: Power law fitted to `after_rejection`; None if it misses too rarely to be fitted.
    """

    positions: int
    acceptance: float
    fanouts: tuple[int, ...]
    after_rejection: tuple[float, ...]
    unconditional: tuple[float, ...]
    power_law: PowerLaw | None


def hit_curves(rank: IntArray, *, deepest: int = DEEPEST) -> HitCurves:
    """Curves up to fan-out `deepest` from the target token's rank [n] under the draft.

    Raises:
        ValueError: No position.
    """
    if len(rank) == 0:
        raise ValueError("no recorded position")
    fanouts = tuple(range(1, deepest + 1))
    rejected = rank[rank > 0]
    after = tuple(float((rejected <= fanout).mean()) if len(rejected) else 1.0 for fanout in fanouts)
    try:
        power_law = fit_power_law(fanouts, [1.0 - hit for hit in after])
    except ValueError:
        power_law = None
    return HitCurves(
        positions=len(rank),
        acceptance=float(np.mean(rank == 0)),
        fanouts=fanouts,
        after_rejection=after,
        unconditional=tuple(float((rank < fanout).mean()) for fanout in fanouts),
        power_law=power_law,
    )
