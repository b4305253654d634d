"""How Mirror-SD accepts a window, and how a streaming draft fills it.

Two operators of acceptance: token matching, which the paper's equations say, accepts a sampled token with
probability sum p q; speculative sampling, which its text says, with sum min(p, q), never less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from policies.laws.sampling import Law, _pair
from policies.laws.ssd import FloatArray

Tokens: TypeAlias = Sequence[int]


def matched_prefix(draft_tokens: Tokens, target_tokens: Tokens) -> int:
    """A_t, length of the longest prefix on which both agree (`mirror.eq3`, `mirror.eq11`).

    Token j of the target is the one it gives after the accepted tokens before it, y_(<t+j) (the paper's
    index, t + j - 1, leaves the last of them out).

    Args:
        draft_tokens: The window.
        target_tokens: The target's tokens at the same positions, at least up to the first disagreement.

    Raises:
        ValueError: The target's tokens end before the window without a disagreement.
    """
    for count, (drafted, wanted) in enumerate(zip(draft_tokens, target_tokens, strict=False)):
        if drafted != wanted:
            return count
    if len(target_tokens) < len(draft_tokens):
        raise ValueError("target_tokens end before the first disagreement and before the window")
    return len(draft_tokens)


def matching_acceptance(target_law: Law, draft_law: Law) -> float:
    """P(both sample the same token) = sum p q: acceptance of token matching (`mirror.eq3`).

    At most sum min(p, q), that of speculative sampling; equal iff both laws are one-hot or share nothing.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    target, draft = _pair(target_law, draft_law)
    return float((target * draft).sum())


def match_probability(joint: FloatArray | Sequence[Sequence[float]]) -> float:
    """P(A >= 1) of a first token from the joint law of draft and target: its diagonal (`mirror.eq12-13`).

    Args:
        joint: [V, V] probability of each pair, draft by row.

    Raises:
        ValueError: No square table of probabilities that sum to 1.
    """
    return min(1.0, float(np.trace(_joint(joint))))


def match_probability_printed(joint: FloatArray | Sequence[Sequence[float]]) -> float:
    """The same from the marginals alone, which is all that eq. 12 asks to be equal: sum p q.

    Right only where draft and target tokens are independent given the context.

    Raises:
        ValueError: As in `match_probability`.
    """
    table = _joint(joint)
    return float(table.sum(axis=1) @ table.sum(axis=0))


def streaming_steps(lookahead: int, emissions: Sequence[int]) -> int:
    """J, internal steps until g tokens have been emitted (`mirror.ss`); 0 for no tokens.

    Args:
        lookahead: g.
        emissions: eta_j >= 1, at least as many as needed.

    Raises:
        ValueError: An emission below 1, or too few of them.
    """
    if lookahead < 0 or any(eta < 1 for eta in emissions):
        raise ValueError("every internal step emits a token: emissions must be at least 1")
    if lookahead == 0:
        return 0
    reached = np.cumsum(np.asarray(emissions, dtype=np.int64))
    if len(reached) == 0 or reached[-1] < lookahead:
        raise ValueError(f"the emissions sum to less than the window of {lookahead} tokens")
    return int(np.searchsorted(reached, lookahead)) + 1


def streaming_bound(lookahead: int, emissions: Sequence[int]) -> int:
    """Largest J can be: ceil(g / min eta) <= g (corrected `mirror.J`), over the steps that were needed.

    Args:
        lookahead: g.
        emissions: As in `streaming_steps`.

    Raises:
        ValueError: As in `streaming_steps`.
    """
    steps = streaming_steps(lookahead, emissions)
    return math.ceil(lookahead / min(emissions[:steps])) if steps else 0


def streaming_bound_printed(lookahead: int, emissions: Sequence[int]) -> int:
    """ceil(g / mean eta), the printed bound of J (`mirror.J`): in truth J >= g / mean eta.

    Args:
        lookahead: g.
        emissions: As in `streaming_steps`.

    Raises:
        ValueError: As in `streaming_steps`.
    """
    steps = streaming_steps(lookahead, emissions)
    return -(-lookahead * steps // sum(emissions[:steps])) if steps else 0


def _joint(joint: FloatArray | Sequence[Sequence[float]]) -> FloatArray:
    table = np.asarray(joint, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"joint must be a square table, got shape {table.shape}")
    if not ((table >= 0.0).all() and abs(float(table.sum()) - 1.0) <= 1e-6):
        raise ValueError(f"joint must be probabilities that sum to 1, got sum {table.sum():g}")
    return table
