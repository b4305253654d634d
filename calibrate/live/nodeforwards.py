"""Forwards whose caller says where tokens lie, which positions they have and what they see.

The ground of `calibrate.live.branching`, which says it for trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrate.live.kvcache import Plan
from calibrate.live.seats import Seating
from calibrate.live.slots import SlotRunner
from policies.values import BoolArray, IntArray


class NodeForwards(SlotRunner):
    """Part of a `ModelRunner`."""

    def forward_at(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """Feed tokens behind what slots hold, with positions and a mask of the caller's; nothing is held.

        Args:
            slots: [R] different slots.
            starts: [R] column of each row's first token.
            tokens: [R] n_r tokens each, of which one at least has some.
            positions: [R, n] position of each token, n = max n_r; any where a row has fewer.
            hidden: [R, n, L] the columns that a token may not look at, with L > 1.

        Returns:
            [R, n, V] logits.
        """
        self._check_slots(slots)
        seating = self._seat(slots)
        chains, count = seating.seated(tokens), positions.shape[1]
        self._check_positions(1 + int(positions.max()))
        ids = self._tensor([[*chain, *[0] * (count - len(chain))] for chain in chains])
        logits = self._call(ids, *self._laid(seating, starts, positions, hidden))
        self.fed += sum(map(len, tokens))
        return seating.back(logits)

    def adopt(
        self,
        slots: Sequence[int],
        columns: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
    ) -> None:
        """Hold from now on what lies at some columns, moved to where each slot's tokens end.

        Args:
            slots: [R] different slots.
            columns: [R] columns in the order of their tokens, not before the slot's end.
            tokens: [R] the tokens there.
        """
        ends, most = self._lengths(slots), max(map(len, columns))
        self._grow(0, max(ends) + most)  # shorter paths are padded
        targets = [list(range(end, end + most)) for end in ends]
        sources = [[*own, *to[len(own) :]] for own, to in zip(columns, targets, strict=True)]
        moved = [i for i in range(len(slots)) if sources[i] != targets[i]]
        if moved:
            self._cache.move(
                self._tensor([self._seats.row(slots[i]) for i in moved]),
                self._tensor([sources[i] for i in moved]),
                self._tensor([targets[i] for i in moved]),
            )
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)

    def _laid(
        self, seating: Seating, starts: Sequence[int], positions: IntArray, hidden: BoolArray
    ) -> tuple[Tensor, Tensor, Plan]:
        """Positions, mask and plan of a forward that begins at columns `starts` [R] of the caller's rows."""
        count, length = positions.shape[1], hidden.shape[2]
        self._grow(0, max(length, max(starts) + count))
        columns = None
        if min(starts) < max(starts):
            begins = self._tensor(seating.seated(starts))
            columns = begins[:, None] + torch.arange(count, device=self.device)
        mask = self._additive(seating.put(torch.from_numpy(hidden).to(self.device)))[:, None]
        places = seating.put(torch.from_numpy(positions).to(self.device))
        return places, mask, Plan(seating.rows, min(starts), length, columns)
