"""Branches that grow over the trunks that slots hold."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrate.live.seats import Seating


@dataclass
class Tree:
    """Branches that grow from the trunks of R rows, one token each per step.

    Attributes:
        slots: [R] slots that hold the trunks.
        trunks: [R] tokens of each trunk.
        counts: [R] branches of each row; the rest up to N is padding.
        column: T, where the branches' tokens are kept: after the longest trunk, in every row.
        seating: Where in the cache the rows lie.
        positions: [R, N] position ids of the next tokens, in the order of the cache.
        mask: [R, 1, N, T + depth * N] additive; 0 where a branch may look; likewise.
        steps: Steps taken so far.
        closed: No more steps.
    """

    slots: tuple[int, ...]
    trunks: tuple[int, ...]
    counts: tuple[int, ...]
    column: int
    seating: Seating
    positions: Tensor
    mask: Tensor
    steps: int = 0
    closed: bool = False

    @property
    def branches(self) -> int:
        """N, most branches of a row."""
        return int(self.positions.shape[1])
