"""Acceptance and cache-hit curves of a recorded pair: power-law fits, and tables to optimise fan-outs on.

Greedy verification of a recorded text: the target's token at a position has a *rank* under the draft,
0 where it is the draft's first choice.  After a rejection the cached set leaves out the rejected first
choice, so F guesses hit iff rank <= F; where nothing of the draft's was rejected, iff rank < F.

Two readings of a recording, by name:

- `HitCurves` pools all positions, as the papers' laws do: one curve after a rejection, one without.
- `RoundCurves` counts rounds: one curve per number of accepted tokens, since hard positions come in
  clusters, and one for the round after a backup that is never accepted.

`hit_table` turns either into the table that `policies.laws.fanout.exact_fanout` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from policies.laws.law import FloatArray
from policies.laws.ssd import PowerLaw, fit_power_law
from policies.values import IntArray

DEEPEST = 15
"""Largest fan-out of a curve: with the rejected token left out, 16 recorded ranks decide 15."""

PRIOR_ROUNDS = 20.0
"""Rounds' worth of the pooled curve mixed into the curve of each position (see `round_curves`)."""

After: TypeAlias = Literal["primary", "backup"]


@dataclass(frozen=True, slots=True)
class HitCurves:
    """Greedy acceptance and hit rates by fan-out, all positions pooled.

    Attributes:
        positions: Recorded positions behind them.
        acceptance: Share of positions whose token is the draft's first choice.
        fanouts: F = 1, 2, ...
        after_rejection: P(hit | F) where the draft's first choice was rejected, which the cached set
            leaves out (k < K).
        unconditional: P(hit | F) where nothing was rejected (k = K, or after a plain decode).
        power_law: Power law fitted to `after_rejection`; None if it misses too rarely to be fitted.
    """

    positions: int
    acceptance: float
    fanouts: tuple[int, ...]
    after_rejection: tuple[float, ...]
    unconditional: tuple[float, ...]
    power_law: PowerLaw | None


@dataclass(frozen=True, slots=True, eq=False)
class RoundCurves:
    """Greedy hit rates by outcome and fan-out, counted over rounds of one lookahead.

    Attributes:
        rounds: [K + 1] rounds that ended with k = 0 ... K accepted tokens.
        after_primary: [K + 1, F + 1] hit rate of F = 0, 1, ... guesses where k tokens of the primary
            draft were accepted: after a rejection for k < K, with nothing rejected for k = K.
        after_backup: [F + 1] hit rate at position 0 of a round that verifies tokens which the draft did
            not choose and the target does not accept, or none: a plain decode, random tokens (apart
            from those that happen to be cached).
    """

    rounds: IntArray
    after_primary: FloatArray
    after_backup: FloatArray

    @property
    def lookahead(self) -> int:
        """K."""
        return len(self.rounds) - 1

    @property
    def weights(self) -> FloatArray:
        """[K + 1] share of rounds by accepted tokens; not iid."""
        return np.asarray(self.rounds / self.rounds.sum(), dtype=np.float64)


def rejected_curve(rank: IntArray, deepest: int = DEEPEST) -> FloatArray:
    """[deepest + 1] P(hit | F) where the draft's first choice was rejected; ranks of 0 are left out.

    All ones (but for F = 0) without a rejection.
    """
    return _curve(rank[rank > 0], deepest)


def free_curve(rank: IntArray, deepest: int = DEEPEST) -> FloatArray:
    """[deepest + 1] P(hit | F) where nothing of the draft's was rejected.

    Pass the ranks at the positions meant: all, those after a full block, those after a miss.  An n-gram
    proposal that was rejected is such a case too, if it was not the draft's own first choice.
    """
    return _curve(np.minimum(rank, deepest) + 1, deepest)


def _curve(need: IntArray, deepest: int) -> FloatArray:
    """[deepest + 1] share of positions that need at most F = 0, 1, ... guesses (each at least 1)."""
    if deepest < 1:
        raise ValueError(f"the deepest fan-out must be at least 1, got {deepest}")
    if len(need) == 0:
        return np.append(0.0, np.ones(deepest))
    counts = np.bincount(np.minimum(need, deepest + 1), minlength=deepest + 2)[: deepest + 1]
    return np.asarray(np.cumsum(counts) / len(need), dtype=np.float64)


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
    after = tuple(rejected_curve(rank, deepest)[1:].tolist())
    try:
        power_law = fit_power_law(fanouts, [1.0 - hit for hit in after])
    except ValueError:
        power_law = None
    return HitCurves(
        positions=len(rank),
        acceptance=float(np.mean(rank == 0)),
        fanouts=fanouts,
        after_rejection=after,
        unconditional=tuple(free_curve(rank, deepest)[1:].tolist()),
        power_law=power_law,
    )


def round_starts(run_lengths: IntArray, lookahead: int, offsets: IntArray | None = None) -> IntArray:
    """Positions at which rounds of a greedy chain of `lookahead` tokens begin, in a recorded text.

    A round that begins at i commits min(run[i], K) tokens and the bonus token.  Rounds that reach the
    end of their request are left out: nothing is looked up after them.

    Args:
        run_lengths: [n] consecutive positions from each on that the draft gets right.
        lookahead: K; 0 for plain decoding.
        offsets: [R + 1] first position of each request, and n; one request by default.

    Raises:
        ValueError: `lookahead` or a run below 0.
    """
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    if (run_lengths < 0).any():
        raise ValueError(f"a run cannot be negative, got {run_lengths.min()}")
    steps = (np.minimum(run_lengths, lookahead) + 1).tolist()
    bounds = [0, len(steps)] if offsets is None else offsets.tolist()
    starts: list[int] = []
    for first, end in pairwise(bounds):
        here = first
        while here < end and here + steps[here] < end:
            starts.append(here)
            here += steps[here]
    return np.array(starts, dtype=np.int64)


def round_curves(
    rank: IntArray,
    run_lengths: IntArray,
    lookahead: int,
    *,
    offsets: IntArray | None = None,
    deepest: int = DEEPEST,
    prior: float = PRIOR_ROUNDS,
) -> RoundCurves:
    """Hit rates per number of accepted tokens, and their weights, from the rounds of a recorded text.

    A position that few rounds end at has a noisy curve, which an optimiser would exploit; so each curve
    is mixed with the pooled one of its kind: (n own + prior pooled) / (n + prior), n its rounds.

    Args:
        rank: [n] rank of the target's token under the draft.
        run_lengths: [n] consecutive positions from each on that the draft gets right.
        lookahead: K.
        offsets: [R + 1] first position of each request, and n; one request by default.
        deepest: Largest fan-out.
        prior: Rounds' worth of the pooled curve; 0 for the plain shares.

    Raises:
        ValueError: No complete round, arrays of different lengths, or a setting outside its domain.
    """
    if len(rank) != len(run_lengths):
        raise ValueError(f"{len(rank)} ranks but {len(run_lengths)} runs")
    if prior < 0:
        raise ValueError(f"the prior must be at least 0 rounds, got {prior:g}")
    starts = round_starts(run_lengths, lookahead, offsets)
    if len(starts) == 0:
        raise ValueError("no recorded round")
    accepted = np.minimum(run_lengths[starts], lookahead)
    rounds = np.bincount(accepted, minlength=lookahead + 1).astype(np.int64)
    bonus = rank[starts + accepted]
    pooled = rejected_curve(rank, deepest)
    rows = [
        _mix(rejected_curve(bonus[accepted == k], deepest), pooled, rounds[k], prior)
        for k in range(lookahead)
    ]
    last = free_curve(bonus[accepted == lookahead], deepest)
    rows.append(_mix(last, free_curve(rank, deepest), rounds[lookahead], prior))
    return RoundCurves(
        rounds=rounds, after_primary=np.array(rows), after_backup=free_curve(rank[starts], deepest)
    )


def _mix(own: FloatArray, pooled: FloatArray, rounds: int, prior: float) -> FloatArray:
    """Mean of two curves, weighted by rounds; the pooled one if there is neither round nor prior."""
    return pooled if rounds == 0 else (rounds * own + prior * pooled) / (rounds + prior)


def hit_table(
    curves: HitCurves | RoundCurves,
    lookahead: int,
    deepest: int | None = None,
    *,
    after: After = "primary",
) -> FloatArray:
    """[K + 1, F + 1] hit rate of F = 0 ... `deepest` guesses after k accepted tokens, for `exact_fanout`.

    Args:
        curves: Pooled curves, or those of rounds with this lookahead.
        lookahead: K; 0 for a plain decode, whose one position has nothing rejected.
        deepest: Largest fan-out; all that the curves cover by default.
        after: What the round verified: `primary`, K tokens of the draft model; `backup`, tokens that the
            draft model did not choose (random, n-gram), none of which was the draft's to be rejected.

    Raises:
        ValueError: A fan-out or lookahead that the curves do not cover.
    """
    if lookahead < 0:
        raise ValueError(f"lookahead must be at least 0, got {lookahead}")
    if isinstance(curves, RoundCurves):
        rows = _round_rows(curves, lookahead, after)
    else:
        rejected, free = _with_zero(curves.after_rejection), _with_zero(curves.unconditional)
        rows = np.array([rejected if after == "primary" else free] * lookahead + [free])
    covered = rows.shape[1] - 1
    if deepest is None:
        deepest = covered
    if not 0 <= deepest <= covered:
        raise ValueError(f"the recorded ranks decide fan-outs up to {covered}, not {deepest}")
    return rows[:, : deepest + 1]


def _round_rows(curves: RoundCurves, lookahead: int, after: After) -> FloatArray:
    if after == "backup":
        return np.tile(curves.after_backup, (lookahead + 1, 1))
    if lookahead != curves.lookahead:
        raise ValueError(
            f"these curves are of rounds with a lookahead of {curves.lookahead}, not {lookahead}"
        )
    return curves.after_primary


def _with_zero(hits: Sequence[float]) -> FloatArray:
    """Curve from F = 0 on: without a guess there is no hit."""
    return np.array([0.0, *hits])
