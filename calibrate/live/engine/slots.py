"""Static keys and values of slots: the buffers of a model's layers, and which row of them each slot has.

A cache that concatenates copies everything it holds with every token, and its shapes never recur.  Here
there is one buffer per layer, allocated once: new keys and values are written in place, a rollback costs
nothing, and attention reads views.

Rows that finish, or that alone missed, leave gaps between the others.  Attention over rows with gaps
between them needs a copy of all that they hold, in every layer and every step; moving the few rows that lie
apart costs a part of that, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from calibrate.live.errors import ModelError

Buffers: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of a layer, [slots, heads, capacity, width] each; widths may differ."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the next forward writes, and how much it reads.

    Attributes:
        rows: Range of the R rows; it is read without a copy.
        start: Column of the first new token where all rows share it, else of the shortest row.
        length: L, columns that attention reads, the new ones among them.
        columns: [R, n] column of each new token; None where row r's begin at `start`, one after another.
    """

    rows: slice
    start: int
    length: int
    columns: Tensor | None = None


class SlotLayer(DynamicLayer):
    """Keys and values of one layer; writes and reads as the shared plan says."""

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self.keys, self.values = buffers
        self.dtype, self.device = self.keys.dtype, self.keys.device
        self.is_initialized = True
        self.plan = Plan(slice(0, 1), 0, 0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Buffers:
        """Write [R, heads, n, width] of each; [R, heads, L, width] views that the rows may look at."""
        return (_store(self.keys, key_states, self.plan), _store(self.values, value_states, self.plan))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that attention reads, and the first of them; asked by models that make their mask."""
        return self.plan.length, 0

    def get_seq_length(self) -> int:
        """Column of the first new token."""
        return self.plan.start


def _store(buffer: Tensor, states: Tensor, plan: Plan) -> Tensor:
    rows = buffer[plan.rows]
    if plan.columns is None:
        rows[:, :, plan.start : plan.start + states.shape[2]] = states
    else:
        own = torch.arange(states.shape[0], device=states.device)[:, None]
        rows.transpose(1, 2)[own, plan.columns] = states.transpose(1, 2)
    return rows[:, :, : plan.length]


class SlotCache(Cache):
    """All layers, of some buffers each; `past_key_values` of a model."""

    def __init__(self, buffers: Sequence[Buffers], plan: Plan | None = None) -> None:
        super().__init__(layers=[SlotLayer(pair) for pair in buffers])
        if plan is not None:
            self.set_plan(plan)

    def set_plan(self, plan: Plan) -> None:
        """Tell all layers what the next forward does."""
        for layer in self.layers:
            layer.plan = plan

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Buffers:
        """As `SlotLayer.update`; overrides a parent that also looks after offloading."""
        views: Buffers = self.layers[layer_idx].update(key_states, value_states)
        return views

    def buffers(self, rows: slice) -> list[Buffers]:
        """Views of the keys and values of some rows."""
        return [(layer.keys[rows], layer.values[rows]) for layer in self.layers]

    def _parts(self) -> Iterator[Tensor]:
        return (part for layer in self.layers for part in (layer.keys, layer.values))

    @torch.inference_mode()
    def swap(self, one: int, other: int, columns: tuple[int, int]) -> None:
        """Exchange what two rows hold, in their first so many columns each."""
        for buffer in self._parts():
            mine = buffer[one, :, : columns[0]].clone()
            buffer[one, :, : columns[1]] = buffer[other, :, : columns[1]]
            buffer[other, :, : columns[0]] = mine

    @torch.inference_mode()
    def move(self, rows: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy columns `sources` [R, n] of rows [R] to their columns `targets` [R, n], all at once."""
        own = rows[:, None]
        for buffer in self._parts():
            by_column = buffer.transpose(1, 2)
            by_column[own, targets] = by_column[own, sources]

    @torch.inference_mode()
    def grown(self, slots: int, capacity: int) -> SlotCache:
        """A cache of this larger size that holds the same."""

        def copy(buffer: Tensor) -> Tensor:
            larger = _empty(buffer, slots, capacity)
            larger[: buffer.shape[0], :, : buffer.shape[2]] = buffer
            return larger

        return SlotCache([(copy(layer.keys), copy(layer.values)) for layer in self.layers])

    @torch.inference_mode()
    def fill_random(self, rows: Sequence[int], context: int) -> None:
        """Random keys and values in the first `context` columns of some rows, for probes."""
        for buffer in self._parts():
            shape = (len(rows), buffer.shape[1], context, buffer.shape[3])
            buffer[list(rows), :, :context] = torch.randn(shape, dtype=buffer.dtype, device=buffer.device)


def allocate(model: PreTrainedModel, slots: int, capacity: int) -> SlotCache:
    """An empty cache of the shapes that a model's layers use.

    Zeros rather than uninitialised memory: what a mask hides is still multiplied by a weight of zero,
    and zero times a NaN is a NaN.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers), or its
            attention does not take a mask of one's own.
    """
    cache = DynamicCache(config=model.config)
    kinds = {type(layer) for layer in cache.layers}
    if not kinds <= {DynamicLayer}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ModelError(f"a live run needs a cache that can be cropped; this model's layers: {names}")
    attention = getattr(model.config, "_attn_implementation", None)
    if attention not in {"sdpa", "eager"}:
        raise ModelError(f"a live run needs attention by `sdpa` or `eager`, this model's is {attention!r}")
    with torch.inference_mode():
        # A real call tells the shapes, whatever the model.
        ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
        model(input_ids=ids, past_key_values=cache, use_cache=True)
        pairs = [(layer.keys, layer.values) for layer in cache.layers]
        return SlotCache(
            [(_empty(keys, slots, capacity), _empty(values, slots, capacity)) for keys, values in pairs]
        )


def _empty(states: Tensor, slots: int, capacity: int) -> Tensor:
    return states.new_zeros((slots, states.shape[1], capacity, states.shape[3]))


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Rows of the cache that a forward is about; `order` [R] is which of the caller's slots each of them is.

    It is None where the two orders agree.
    """

    rows: slice
    order: tuple[int, ...] | None = None

    def ordered(self, items: Sequence[Item]) -> list[Item]:
        """[R] things of the caller's order in that of the cache."""
        return list(items) if self.order is None else [items[i] for i in self.order]

    def put(self, rows: Tensor) -> Tensor:
        """[R, ...] rows of a tensor, in the order of the cache."""
        return rows if self.order is None else rows[list(self.order)]

    def back(self, rows: Tensor) -> Tensor:
        """[R, ...] of the cache's order in the caller's."""
        return rows if self.order is None else rows[np.argsort(self.order).tolist()]


class SlotLayout:
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
        """Pairs of rows to swap so that different slots lie side by side, where most of them are already."""
        rows = {self.row(slot) for slot in slots}
        count = len(rows)
        starts = range(max(rows) - count + 2)
        start = max(starts, key=lambda first: sum(first <= row < first + count for row in rows))
        window = range(start, start + count)
        outside = sorted(rows.difference(window))
        free = [row for row in window if row not in rows]
        return list(zip(outside, free, strict=True))

    def swap(self, one: int, other: int) -> None:
        """Exchange the slots of two rows."""
        first, second = self.slot(one), self.slot(other)
        self._slots[one], self._slots[other] = second, first
        self._rows[first], self._rows[second] = other, one
