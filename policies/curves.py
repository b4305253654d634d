"""Acceptance and cache-hit curves of a recorded pair, and how well the power law fits them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.laws.ssd import PowerLaw, fit_power_law
from policies.operations import IntArray

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
            leaves out (k < K).
        unconditional: P(hit | F) where nothing was rejected (k = K, or after a plain decode).
        law: Power law fitted to `after_rejection`; None if it misses too rarely to be fitted.
    """

    positions: int
    acceptance: float
    fanouts: tuple[int, ...]
    after_rejection: tuple[float, ...]
    unconditional: tuple[float, ...]
    law: PowerLaw | None


def hit_curves(rank: IntArray, *, deepest: int = DEEPEST) -> HitCurves:
    """Curves from the target token's rank [n] under the draft.

    Args:
        rank: 0 where the draft's first choice is the target's token.
        deepest: Largest fan-out.

    Raises:
        ValueError: No position.
    """
    if len(rank) == 0:
        raise ValueError("no recorded position")
    fanouts = tuple(range(1, deepest + 1))
    rejected = rank[rank > 0]
    after = tuple(float(np.mean(rejected <= f)) if len(rejected) else 1.0 for f in fanouts)
    try:
        law = fit_power_law(fanouts, [1.0 - hit for hit in after])
    except ValueError:
        law = None
    return HitCurves(
        positions=len(rank),
        acceptance=float(np.mean(rank == 0)),
        fanouts=fanouts,
        after_rejection=after,
        unconditional=tuple(float(np.mean(rank < f)) for f in fanouts),
        law=law,
    )
