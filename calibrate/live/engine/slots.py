"""Slots of static keys and values: the buffers, which row each slot has, and what each of them holds.

A cache that concatenates copies everything it holds with every token, and its shapes never recur.  Here
there is one buffer per layer, allocated once: new keys and values are written in place, a rollback costs
nothing, and attention reads views.

Rows that finish, or that alone missed, leave gaps between the others.  Attention over rows with gaps
between them needs a copy of all that they hold, in every layer and every step; moving the few rows that lie
apart costs a part of that, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from calibrate.live.errors import AuditError, ModelError

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


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Rows of the cache that a forward is about.

    Attributes:
        rows: Their range.
        order: [R] which of the caller's slots each of them is; None where the two orders agree.
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


class SlotTexts(ABC):
    """What each slot holds, whatever keeps its keys and values.

    Args:
        model: Any decoder-only model of transformers.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.

    Attributes:
        fed: Tokens that went through the model so far, summed over rows, without padding; the measure of
            recomputation.
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

    @property
    @abstractmethod
    def slots(self) -> int:
        """Slots that there is room for."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Tokens per slot that there is room for."""

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

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """Nothing, where forwards need no compiling; 0 seconds."""
        return 0.0

    @abstractmethod
    def _grow(self, slots: int, capacity: int) -> None:
        """Make room, doubling, so that growing stays rare."""

    @staticmethod
    def _check_slots(slots: Sequence[int]) -> None:
        if not slots or len(set(slots)) != len(slots):
            raise AuditError(f"a forward needs different slots, got {list(slots)}")

    def _lengths(self, slots: Sequence[int]) -> list[int]:
        return [len(self.held(slot)) for slot in slots]

    def _check_positions(self, length: int) -> None:
        if self._most is not None and length > self._most:
            raise ModelError(f"a text of {length} tokens outgrows the model's {self._most} positions")

    @staticmethod
    def _doubled(size: int, needed: int) -> int:
        while size < needed:
            size *= 2
        return size

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def _check_forks(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> list[int]:
        """[R] tokens of the trunks, where such a tree can be opened."""
        trunks = self._lengths(slots)
        if len(slots) != len(forks) or not any(forks) or depth < 1:
            raise AuditError(f"a tree needs branches and a depth: {len(slots)} slots, {forks}, {depth}")
        for trunk, row in zip(trunks, forks, strict=True):
            if row and (min(row) < -1 or max(row) >= trunk):
                raise AuditError(f"forks {list(row)} do not lie in a trunk of {trunk} tokens")
            self._check_positions(max(row, default=-1) + 1 + depth)
        return trunks


class SlotRunner(SlotTexts):
    """A model with slots of static keys and values; what computes its forwards is a subclass's.

    Args:
        model: Any decoder-only model of transformers whose layers all use full attention.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers).
    """

    def __init__(self, model: PreTrainedModel, *, slots: int, capacity: int) -> None:
        super().__init__(model, slots=slots, capacity=capacity)
        self._cache = allocate(self.model, slots, max(capacity, 2))
        self._layout = SlotLayout()

    @property
    def slots(self) -> int:
        """Slots that there is room for."""
        return self._cache.slots

    @property
    def capacity(self) -> int:
        """Tokens per slot that there is room for."""
        return self._cache.capacity

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with random keys and values of `context` tokens, for probes."""
        self._grow(max(slots) + 1, context)
        for slot in slots:
            self.reset(slot)
            self._held[slot] = [0] * context
        self._cache.fill_random([self._layout.row(slot) for slot in slots], context)

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

    def _side_by_side(self, slots: Sequence[int]) -> SlotRange:
        """Make the rows of some slots lie side by side."""
        for one, other in self._layout.moves(slots):
            held = [len(self._held.get(self._layout.slot(row), ())) for row in (one, other)]
            self._cache.swap(one, other, (held[0], held[1]))
            self._layout.swap(one, other)
        return self._range_of(slots)

    def _range_of(self, slots: Sequence[int]) -> SlotRange:
        """Where slots lie whose rows are side by side."""
        rows = [self._layout.row(slot) for slot in slots]
        order = tuple(np.argsort(rows).tolist())
        start = min(rows)
        return SlotRange(slice(start, start + len(rows)), None if order == tuple(range(len(rows))) else order)

    def _grow(self, slots: int, capacity: int) -> None:
        """Make room, doubling, so that growing stays rare."""
        more = self._doubled(self.slots, slots), self._doubled(self.capacity, capacity)
        if more != (self.slots, self.capacity):
            self._cache = self._cache.grown(*more)
