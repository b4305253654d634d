"""How many passes a streaming draft takes for a window, where proposals are right independently.

In each pass the draft writes one token, and as many of the proposals of the pass before as are right before
the first wrong one.  S streams propose at most S tokens, and never the last one of the window, since that
would save no pass; nothing is proposed for the first pass.
"""

from __future__ import annotations

import numpy as np

from policies.laws.ssd import FloatArray, _check_probability


def passes_law(lookahead: int, streams: int, acceptance: float) -> FloatArray:
    """[g + 1] P(J = j), passes for a window of g tokens, j = 0 ... g (`mirror.ss` with random emissions).

    Args:
        lookahead: g, at least 1.
        streams: S; 0: every pass writes one token.
        acceptance: a, of a proposal.

    Raises:
        ValueError: Outside the domain.
    """
    _check_probability(acceptance=acceptance)
    if lookahead < 1 or streams < 0:
        raise ValueError(f"needs lookahead >= 1 and streams >= 0, got {lookahead}, {streams}")
    # [left][j] probability of j further passes for so many tokens left, none of which was proposed yet.
    laws = [np.eye(1, lookahead + 1)[0]]
    for left in range(1, lookahead):
        most = min(streams, left - 1)
        law = np.zeros(lookahead + 1)
        for right in range(most + 1):
            chance = acceptance**right * (1.0 if right == most else 1.0 - acceptance)
            law[1:] += chance * laws[left - 1 - right][:-1]
        laws.append(law)
    first: FloatArray = np.roll(laws[lookahead - 1], 1)
    return first


def mean_passes(lookahead: int, streams: int, acceptance: float, windows: int = 1) -> float:
    """E[J] of the slowest of some independent windows, which are written side by side (`mirror.ss`).

    Args:
        lookahead: g.
        streams: S.
        acceptance: a.
        windows: How many.

    Raises:
        ValueError: Outside the domain.
    """
    if windows < 1:
        raise ValueError(f"needs at least one window, got {windows}")
    below = np.cumsum(passes_law(lookahead, streams, acceptance))
    return float((1.0 - np.minimum(below, 1.0) ** windows).sum())
