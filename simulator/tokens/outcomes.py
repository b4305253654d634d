"""Outcomes of verifying tokens drawn from one distribution: how many are accepted, what a hit then takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policies.values import BoolArray, IntArray

NEVER = np.iinfo(np.int64).max // 4
"""A fan-out that no budget reaches."""


class Outcomes(NamedTuple):
    """What verifying tokens of one distribution leads to, at each of n positions.

    A drafted token's distribution may depend on its depth, its place in the speculation (Saguaro's F_k).

    Attributes:
        run: [n] how many consecutive tokens from each position on are accepted when a speculation starts
            there, within the request.
        need: [G, n] fan-out needed for a hit where a token of each of G distributions was rejected and left
            out of the cached set: the target's token is the `need`-th choice of those that are left.
        proposal_at: [K] which of the G distributions a token at each depth was drawn from; None for one only.
    """

    run: IntArray
    need: IntArray
    proposal_at: IntArray | None = None

    def need_after(self, accepted: IntArray, at: IntArray) -> IntArray:
        """[r] fan-out needed where the token after `accepted` [r] ones was rejected at position `at` [r].

        Where nothing was rejected the answer has no meaning.
        """
        if self.proposal_at is None:
            same: IntArray = self.need[0][at]
            return same
        which = self.proposal_at[np.minimum(accepted, len(self.proposal_at) - 1)]
        needs: IntArray = self.need[which, at]
        return needs


def accepted_runs(accept: BoolArray, ends: IntArray | None = None) -> IntArray:
    """[n] number of consecutive True from each position on, e.g. T T F T -> 2 1 0 1.

    `ends` [n] say where the request of each position ends, past which no run goes; None for one request.
    """
    positions = np.arange(len(accept))
    stops = np.where(accept, len(accept) if ends is None else ends, positions)
    # A run stops at the nearest stop at or after it: a minimum, taken from the back.
    runs: IntArray = np.minimum.accumulate(stops[::-1])[::-1] - positions
    return runs


def shaped_runs(accepts: tuple[BoolArray, ...], proposal_at: IntArray, ends: IntArray) -> IntArray:
    """[n] accepted run from each position on where the distribution changes with the depth, at most K.

    Args:
        accepts: G arrays [n]: whether a token of each distribution is accepted at each position.
        proposal_at: [K] number of the distribution of each depth.
        ends: [n] where the request of each position ends.
    """
    positions = np.arange(len(ends))
    going = np.ones(len(ends), dtype=np.bool_)
    runs = np.zeros(len(ends), dtype=np.int64)
    for depth, proposal in enumerate(proposal_at):
        at = positions + depth
        going &= at < ends
        going &= accepts[proposal][np.minimum(at, len(ends) - 1)]
        runs += going
    return runs
