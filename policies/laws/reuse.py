"""What Mirror-SD can reuse: candidates of the early exit, the tree below them, and how often both fail.

Two readings of where the candidates stand, by name:

- `first`: at the first position only, with the draft's continuation below each (the paper's formal text).
  A correction after an accepted token then lies below the root that is the accepted token, where the
  tree repeats the window that was just rejected: a greedy draft never finds it.
- `each`: at every position, below the drafted tokens before it (its Figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from policies.laws.matching import Tokens, matched_prefix
from policies.laws.sampling import Law, _pair, top_tokens
from policies.laws.ssd import _check_probability

Path: TypeAlias = tuple[int, ...]
Source: TypeAlias = Literal["branch", "continuation", "fresh"]


def candidates(proxy_law: Law, width: int) -> tuple[tuple[int, float], ...]:
    """M_t: the exit's `width` likeliest tokens and their log-probabilities (`mirror.eq6-8`).

    Of equally likely ones the lower id; -inf for a token of probability 0.  None at width 0.

    Raises:
        ValueError: No law, or `width` below 0.
    """
    law = np.asarray(proxy_law, dtype=np.float64)
    chosen = top_tokens(proxy_law, width)
    return tuple((int(t), math.log(law[t]) if law[t] > 0.0 else -math.inf) for t in chosen)


def rollout_tokens(width: int, lookahead: int) -> int:
    """Tokens of the branch-complete rollout: kappa g; prefixes of a branch are shared (`mirror.eq6-8`).

    Raises:
        ValueError: A negative count.
    """
    if width < 0 or lookahead < 0:
        raise ValueError(f"width and lookahead must be at least 0, got {width}, {lookahead}")
    return width * lookahead


def rollout_tokens_printed(width: int, lookahead: int) -> int:
    """The same where every prefix length r = 1 ... g is a rollout of its own, as eq. 8 is written.

    Raises:
        ValueError: A negative count.
    """
    rollout_tokens(width, lookahead)
    return width * lookahead * (lookahead + 1) // 2


def first_paths(branches: Sequence[Tokens]) -> frozenset[Path]:
    """Prefixes of a tree of the `first` reading: each branch a candidate and the draft's tokens after it."""
    return frozenset(tuple(branch[:depth]) for branch in branches for depth in range(1, len(branch) + 1))


def each_paths(draft_tokens: Tokens, candidates_by_position: Sequence[Tokens]) -> frozenset[Path]:
    """Prefixes of a tree of the `each` reading: the window's first tokens, then a candidate.

    Args:
        draft_tokens: The window, g tokens.
        candidates_by_position: [g] or [g + 1] lists; the last of g + 1 is for a window accepted in full.

    Raises:
        ValueError: More lists than positions.
    """
    if len(candidates_by_position) > len(draft_tokens) + 1:
        raise ValueError(
            f"{len(draft_tokens)} drafted tokens have at most {len(draft_tokens) + 1} candidates lists"
        )
    return frozenset(
        (*draft_tokens[:position], token)
        for position, row in enumerate(candidates_by_position)
        for token in row
    )


def can_reuse(draft_tokens: Tokens, target_tokens: Tokens, paths: frozenset[Path]) -> bool:
    """Whether the accepted prefix with its correction is a path of the tree (`mirror.reuse`).

    Where the whole window is accepted there is no correction, and the paper has no rule; with the
    target's next token given it is treated as one would be, without it this is an error.

    Args:
        draft_tokens: The window.
        target_tokens: The target's tokens, up to its correction or beyond.
        paths: Prefixes of the tree (`first_paths`, `each_paths`).

    Raises:
        ValueError: No token of the target after the accepted ones.
    """
    count = matched_prefix(draft_tokens, target_tokens)
    if len(target_tokens) <= count:
        raise ValueError("the window is accepted in full, for which reuse has no rule without the next token")
    return tuple(target_tokens[: count + 1]) in paths


def next_window_source(draft_tokens: Tokens, target_tokens: Tokens, paths: frozenset[Path]) -> Source:
    """Where the next window comes from: the paper's three cases (`mirror.reuse`).

    `branch` where the first token is corrected by a candidate, `continuation` where a later one is,
    `fresh` where it has to be drafted anew.

    Raises:
        ValueError: As in `can_reuse`.
    """
    if not can_reuse(draft_tokens, target_tokens, paths):
        return "fresh"
    return "branch" if matched_prefix(draft_tokens, target_tokens) == 0 else "continuation"


def overlap_mass(target_law: Law, proxy_law: Law, width: int) -> float:
    """Omega_kappa, the target's mass on the exit's `width` likeliest tokens (`mirror.eq9`).

    Never falls as `width` grows; 0 at 0, 1 at V.

    Raises:
        ValueError: Not two laws over one vocabulary, or `width` below 0.
    """
    target, proxy = _pair(target_law, proxy_law)
    return min(1.0, float(target[top_tokens(proxy, width)].sum()))


def overlap_floor(target_law: Law, proxy_law: Law, width: int) -> float:
    """max(0, q(S*) - 2 kappa eps), which Omega never falls below (`mirror.prop2`).

    S* are the target's own `width` likeliest tokens, eps the largest difference of both laws.  Omega
    itself need not rise as eps falls.

    Raises:
        ValueError: As in `overlap_mass`.
    """
    target, proxy = _pair(target_law, proxy_law)
    best = overlap_mass(target, target, width)
    return max(0.0, best - 2.0 * width * float(np.abs(target - proxy).max()))


def overlap_limit(target_law: Law, width: int) -> float:
    """q(S*), which Omega reaches at a perfect exit; the printed `mirror.prop2` has it rise to that.

    Raises:
        ValueError: No law, or `width` below 0.
    """
    return overlap_mass(target_law, target_law, width)


def top_set_is_fixed(target_law: Law, proxy_law: Law, width: int) -> bool:
    """Whether eps < gap/2, by which both have the same `width` likeliest tokens (`mirror.prop2`).

    The gap is between the target's kappa-th and next probability; with none next the set is the vocabulary.

    Raises:
        ValueError: As in `overlap_mass`.
    """
    target, proxy = _pair(target_law, proxy_law)
    ranked = np.sort(target)[::-1]
    if width <= 0 or width >= len(ranked):
        return True
    return bool(np.abs(target - proxy).max() < (ranked[width - 1] - ranked[width]) / 2.0)


def fallback(acceptance: float, overlap: float, lookahead: int) -> float:
    """FF per step with candidates at each position: (1 - Omega)(1 + a + ... + a^(g-1)) (`mirror.prop1`).

    iid positions: the drafted token is right with a, one outside the candidates is right with 1 - Omega.
    A window accepted in full counts as no fallback.  The corollary FF <= 1 - Omega holds for g = 1 only.

    Args:
        acceptance: a, at most Omega: the drafted token is one of the candidates.
        overlap: Omega.
        lookahead: g.

    Raises:
        ValueError: Outside the domain.
    """
    _check_overlap(acceptance, overlap, lookahead)
    return min(1.0, (1.0 - overlap) * float(np.power(acceptance, np.arange(lookahead)).sum()))


def fallback_first(acceptance: float, overlap: float, lookahead: int) -> float:
    """FF per step with candidates at the first position only: 1 - Omega + a - a^g (`mirror.prop1`).

    Every correction after an accepted token falls back, so that FF does not vanish as kappa grows to V.

    Args:
        acceptance: As in `fallback`.
        overlap: As in `fallback`.
        lookahead: As in `fallback`; 0 and 1 leave no later correction.

    Raises:
        ValueError: Outside the domain.
    """
    _check_overlap(acceptance, overlap, lookahead)
    if lookahead == 0:
        return 0.0
    return min(1.0, 1.0 - overlap + acceptance - acceptance**lookahead)


def fallback_given_correction(acceptance: float, overlap: float) -> float:
    """FF of steps that have a correction, candidates at each position: (1 - Omega)/(1 - a) (`mirror.prop1`).

    At a = 1 there are no corrections; 0.

    Raises:
        ValueError: Outside the domain.
    """
    _check_overlap(acceptance, overlap, 1)
    return min(1.0, (1.0 - overlap) / (1.0 - acceptance)) if acceptance < 1.0 else 0.0


def fallback_bound_printed(overlap: float) -> float:
    """1 - Omega, the printed corollary's bound of FF (`mirror.prop1`); true for windows of one token only.

    Raises:
        ValueError: `overlap` outside 0..1.
    """
    _check_probability(overlap=overlap)
    return 1.0 - overlap


def _check_overlap(acceptance: float, overlap: float, lookahead: int) -> None:
    _check_probability(acceptance=acceptance, overlap=overlap)
    if acceptance > overlap + 1e-12:
        raise ValueError(
            f"a drafted token is one of the candidates: acceptance {acceptance:g} exceeds overlap {overlap:g}"
        )
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
