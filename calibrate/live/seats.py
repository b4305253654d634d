"""Which row of the cache's buffers each slot has, so that the rows of a forward lie side by side.

Rows that finish, or that alone missed, leave gaps between the others.  Attention over rows with gaps
between them needs a copy of all that they hold, in every layer and every step; moving the few rows that
lie apart costs a part of that, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Seating:
    """Rows of the cache that a forward is about.

    Attributes:
        rows: Their range.
        order: [R] which of the caller's slots each of them is; None where the two orders agree.
    """

    rows: slice
    order: tuple[int, ...] | None = None

    def seated(self, items: Sequence[Item]) -> list[Item]:
        """[R] things of the caller's order in that of the cache."""
        return list(items) if self.order is None else [items[i] for i in self.order]

    def put(self, rows: Tensor) -> Tensor:
        """[R, ...] likewise."""
        return rows if self.order is None else rows[list(self.order)]

    def back(self, rows: Tensor) -> Tensor:
        """[R, ...] of the cache's order in the caller's."""
        return rows if self.order is None else rows[np.argsort(self.order).tolist()]


class Seats:
    """A one-to-one map of slots to rows; at first slot i has row i."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._slots: dict[int, int] = {}

    def row(self, slot: int) -> int:
        """Row of a slot."""
        return self._rows.get(slot, slot)

    def slot(self, row: int) -> int:
        """Slot of a row."""
        return self._slots.get(row, row)

    def moves(self, slots: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of rows to swap so that slots lie side by side, where most of them are already.

        Args:
            slots: Different ones.
        """
        rows = {self.row(slot) for slot in slots}
        count = len(rows)
        starts = range(max(rows) - count + 2)
        start = max(starts, key=lambda first: sum(first <= row < first + count for row in rows))
        window = range(start, start + count)
        apart = sorted(rows.difference(window))
        free = [row for row in window if row not in rows]
        return list(zip(apart, free, strict=True))

    def swap(self, one: int, other: int) -> None:
        """Exchange the slots of two rows."""
        first, second = self.slot(one), self.slot(other)
        self._slots[one], self._slots[other] = second, first
        self._rows[first], self._rows[second] = other, one
