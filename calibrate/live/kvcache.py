"""Static keys and values: one buffer per layer, allocated once, a slot per request.

A cache that concatenates copies everything it holds with every token, and its shapes never recur.
Here new keys and values are written in place, a rollback costs nothing, and attention reads views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from calibrate.live.errors import ModelError

Buffers: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of a layer, [slots, heads, capacity, width] each; widths may differ."""


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


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer; writes and reads as the shared plan says."""

    is_sliding = False
    is_croppable = True

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self.keys, self.values = buffers
        self.dtype, self.device = self.keys.dtype, self.keys.device
        self.is_initialized = True
        self.plan = Plan(slice(0, 1), 0, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: buffers are there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Buffers:
        """Write [R, heads, n, width] keys and values; return those that the rows may look at.

        Returns:
            [R, heads, L, width] views.
        """
        plan = self.plan
        return (_store(self.keys, key_states, plan), _store(self.values, value_states, plan))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that attention reads, and the first of them; asked by models that make their mask."""
        return self.plan.length, 0

    def get_seq_length(self) -> int:
        """Column of the first new token."""
        return self.plan.start

    def get_max_length(self) -> int:
        """Capacity."""
        return int(self.keys.shape[2])


def _store(buffer: Tensor, states: Tensor, plan: Plan) -> Tensor:
    rows = buffer[plan.rows]
    if plan.columns is None:
        rows[:, :, plan.start : plan.start + states.shape[2]] = states
    else:
        own = torch.arange(states.shape[0], device=states.device)[:, None]
        rows.transpose(1, 2)[own, plan.columns] = states.transpose(1, 2)
    return rows[:, :, : plan.length]


class SlotCache(Cache):
    """All layers; `past_key_values` of a model.

    Args:
        buffers: Per layer.
    """

    def __init__(self, buffers: Sequence[Buffers]) -> None:
        super().__init__(layers=[SlotLayer(pair) for pair in buffers])

    @property
    def slots(self) -> int:
        """Number of slots."""
        return int(self.layers[0].keys.shape[0])

    @property
    def capacity(self) -> int:
        """Columns of a slot."""
        return int(self.layers[0].keys.shape[2])

    def set_plan(self, plan: Plan) -> None:
        """Tell all layers what the next forward does."""
        for layer in self.layers:
            layer.plan = plan

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Buffers:
        """As `SlotLayer.update`; overrides a parent that also looks after offloading."""
        found: Buffers = self.layers[layer_idx].update(key_states, value_states)
        return found

    def buffers(self, rows: slice) -> list[Buffers]:
        """Views of the keys and values of some rows."""
        return [(layer.keys[rows], layer.values[rows]) for layer in self.layers]

    def swap(self, one: int, other: int, columns: tuple[int, int]) -> None:
        """Exchange what two rows hold, in their first so many columns each."""
        with torch.inference_mode():
            for buffer in (part for layer in self.layers for part in (layer.keys, layer.values)):
                mine = buffer[one, :, : columns[0]].clone()
                buffer[one, :, : columns[1]] = buffer[other, :, : columns[1]]
                buffer[other, :, : columns[0]] = mine

    def move(self, rows: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy columns of rows to other columns of the same rows, all at once.

        Args:
            rows: [R].
            sources: [R, n] columns to copy from.
            targets: [R, n] columns to copy to, different ones within a row.
        """
        own = rows[:, None]
        with torch.inference_mode():
            for buffer in (part for layer in self.layers for part in (layer.keys, layer.values)):
                by_column = buffer.transpose(1, 2)
                by_column[own, targets] = by_column[own, sources]

    def grown(self, slots: int, capacity: int) -> SlotCache:
        """A cache of at least this size that holds the same; itself if it is large enough."""
        if slots <= self.slots and capacity <= self.capacity:
            return self
        size = (max(slots, self.slots), max(capacity, self.capacity))
        with torch.inference_mode():
            return SlotCache(
                [(_copy(layer.keys, *size), _copy(layer.values, *size)) for layer in self.layers]
            )

    def fill_random(self, rows: Sequence[int], context: int) -> None:
        """Random keys and values in the first `context` columns of some rows, for probes."""
        with torch.inference_mode():
            for buffer in (part for layer in self.layers for part in (layer.keys, layer.values)):
                shape = (len(rows), buffer.shape[1], context, buffer.shape[3])
                buffer[list(rows), :, :context] = torch.randn(shape, dtype=buffer.dtype, device=buffer.device)


def _copy(buffer: Tensor, slots: int, capacity: int) -> Tensor:
    grown = buffer.new_zeros((slots, buffer.shape[1], capacity, buffer.shape[3]))
    grown[: buffer.shape[0], :, : buffer.shape[2]] = buffer
    return grown


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
        shapes = [(layer.keys, layer.values) for layer in cache.layers]
        return SlotCache(
            [(_empty(keys, slots, capacity), _empty(values, slots, capacity)) for keys, values in shapes]
        )


def _empty(states: Tensor, slots: int, capacity: int) -> Tensor:
    return states.new_zeros((slots, states.shape[1], capacity, states.shape[3]))
