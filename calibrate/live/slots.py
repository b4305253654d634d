"""Slots of static keys and values: what each of them holds, where it lies, and what may be looked at.

The ground of all forwards (`calibrate.live.runner`, `treeforwards`, `nodeforwards`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.errors import AuditError, ModelError
from calibrate.live.kvcache import Plan, allocate
from calibrate.live.seats import Seating, Seats


class SlotRunner(ABC):
    """A model with slots; what computes its forwards is a subclass's.

    Args:
        model: Any decoder-only model of transformers whose layers all use full attention.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.

    Attributes:
        fed: Tokens that went through the model so far, summed over rows, without padding; the measure of
            recomputation.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers).
    """

    def __init__(self, model: PreTrainedModel, *, slots: int, capacity: int) -> None:
        if slots < 1 or capacity < 1:
            raise ValueError(f"slots and capacity must be at least 1, got {slots} and {capacity}")
        self.model = model.eval()
        self.config: Any = model.config
        self.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.fed = 0
        self._held: dict[int, list[int]] = {}
        self._most: int | None = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        self._cache = allocate(self.model, slots, max(capacity, 2))
        self._seats = Seats()

    @property
    def slots(self) -> int:
        """Slots that there is room for."""
        return self._cache.slots

    @property
    def capacity(self) -> int:
        """Tokens per slot that there is room for."""
        return self._cache.capacity

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        if slot < 0:
            raise AuditError(f"slots are numbered from 0, got {slot}")
        self._grow(slot + 1, 0)
        self._held[slot] = []

    def held(self, slot: int) -> list[int]:
        """Token ids whose KV a slot holds; not to be changed."""
        try:
            return self._held[slot]
        except KeyError:
            raise AuditError(f"slot {slot} was never prefilled") from None

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot; nothing is moved.

        Raises:
            AuditError: The slot holds fewer.
        """
        held = self.held(slot)
        if not 0 <= length <= len(held):
            raise AuditError(f"slot {slot} holds {len(held)} tokens, cannot roll back to {length}")
        del held[length:]

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with random keys and values of `context` tokens, for probes."""
        self._grow(max(slots) + 1, context)
        for slot in slots:
            self.reset(slot)
            self._held[slot] = [0] * context
        self._cache.fill_random([self._seats.row(slot) for slot in slots], context)

    @abstractmethod
    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """Feed tokens to the model, which writes and reads its cache as `plan` says.

        Args:
            ids: [R, n] tokens, in the order of the cache's rows.
            positions: [R, n].
            mask: [R or 1, 1, n, L] additive; None where plain causal attention will do.
            plan: Where keys and values go.
            keep: Compute the logits of the last so many tokens only, or of those at these offsets; 0: of all.

        Returns:
            [R, n or kept, V] logits.
        """

    def _causal(self, columns: Tensor, length: int) -> Tensor:
        """[R, 1, n, L] additive: what a token at `columns` [R, n] may look at."""
        return self._additive(torch.arange(length, device=self.device) > columns[..., None])[:, None]

    def _additive(self, hidden: Tensor) -> Tensor:
        """Zero, or the least number where `hidden`.

        Additive rather than boolean: eager attention adds a mask, so that a boolean one would silently
        hide nothing.
        """
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)

    def _seat(self, slots: Sequence[int]) -> Seating:
        """Make the rows of some slots lie side by side."""
        for one, other in self._seats.moves(slots):
            held = [len(self._held.get(self._seats.slot(row), ())) for row in (one, other)]
            self._cache.swap(one, other, (held[0], held[1]))
            self._seats.swap(one, other)
        return self._seating(slots)

    def _seating(self, slots: Sequence[int]) -> Seating:
        """Where slots lie whose rows are side by side."""
        rows = [self._seats.row(slot) for slot in slots]
        order = tuple(np.argsort(rows).tolist())
        start = min(rows)
        return Seating(slice(start, start + len(rows)), None if order == tuple(range(len(rows))) else order)

    @staticmethod
    def _check_slots(slots: Sequence[int]) -> None:
        if not slots or len(set(slots)) != len(slots):
            raise AuditError(f"a forward needs different slots, got {list(slots)}")

    def _lengths(self, slots: Sequence[int]) -> list[int]:
        return [len(self.held(slot)) for slot in slots]

    def _check_positions(self, length: int) -> None:
        if self._most is not None and length > self._most:
            raise ModelError(f"a text of {length} tokens outgrows the model's {self._most} positions")

    def _grow(self, slots: int, capacity: int) -> None:
        """Make room, doubling, so that growing stays rare."""
        more = self._doubled(self.slots, slots), self._doubled(self.capacity, capacity)
        if more != (self.slots, self.capacity):
            self._cache = self._cache.grown(*more)

    @staticmethod
    def _doubled(size: int, needed: int) -> int:
        while size < needed:
            size *= 2
        return size

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
