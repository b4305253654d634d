"""A causal language model over static KV slots: ragged chains, rollbacks and trees.

Only worker processes (and tests) import this module; it needs torch and transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.capture import Capture, Feed, Kind
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.kvcache import Plan, allocate
from calibrate.live.nodeforwards import NodeForwards
from calibrate.live.parts import SplitCapture, watched
from calibrate.live.placement import Mode
from calibrate.live.seats import Seating, Seats
from calibrate.live.tree import Tree

SHORT = 8
"""Chains up to this long get all their logits, also where the last ones alone are asked for: the model's head
is cheap beside what a graph saves, and graphs know no other way."""


class ModelRunner(NodeForwards):
    """Runs a model in inference mode and accounts for every token it feeds.

    A forward serves any set of slots, whatever each of them holds.  Buffers grow by doubling when a slot
    number or a text asks for it; give `slots` and `capacity` to avoid that in the middle of a run.

    Args:
        model: Any decoder-only model of transformers whose layers all use full attention.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.
        mode: `eager` calls the model as transformers does; `compiled` runs graphs of it, except where
            only the last logits of a long chain are asked for (prefill).  See `warm`.

    Attributes:
        fed: Tokens that went through the model so far, summed over rows, without padding; the measure of
            recomputation.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers), or the
            mode is `compiled` and there is no compiler.
    """

    def __init__(
        self, model: PreTrainedModel, *, slots: int = 1, capacity: int = 512, mode: Mode = "eager"
    ) -> None:
        if slots < 1 or capacity < 1:
            raise ValueError(f"slots and capacity must be at least 1, got {slots} and {capacity}")
        self.model = model.eval()
        self.config: Any = model.config
        self.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.mode = mode
        self.fed = 0
        self._held: dict[int, list[int]] = {}
        self._most: int | None = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        self._cache = allocate(self.model, slots, max(capacity, 2))
        self._seats = Seats()
        self._capture: Capture | SplitCapture | None = Capture(self.model) if mode == "compiled" else None
        self._parts: dict[int, SplitCapture] = {}

    @property
    def slots(self) -> int:
        """Slots that there is room for."""
        return self._cache.slots

    @property
    def capacity(self) -> int:
        """Tokens per slot that there is room for."""
        return self._cache.capacity

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """Compile what forwards of these shapes need, ahead of time; nothing in eager mode.

        Args:
            shapes: (rows, new tokens per row); what matters of either is only whether it is one.

        Returns:
            Seconds that compiling took, 0 for what was compiled before.

        Raises:
            ModelError: The model cannot be compiled.
        """
        if not isinstance(self._capture, Capture):
            return 0.0
        start = time.perf_counter()
        for rows, count in shapes:
            self._capture.prepare(Kind(rows == 1, count == 1), self._cache.buffers(slice(0, 1)))
        return time.perf_counter() - start

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

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
        """Feed each row's chain after what its slot holds.

        Args:
            slots: [R] different slots.
            tokens: [R] chains of n_r tokens, at least one each.
            last_only: Compute the logits of each row's last token only (prefill).

        Returns:
            [R, n, V] logits with n = max n_r, of which row r's first n_r are meant ([R, 1, V] if
            `last_only`).

        Raises:
            AuditError: A slot was never reset or is named twice, or a chain is empty.
            ModelError: A text outgrows the model's positions.
        """
        if len(slots) != len(tokens) or not all(tokens):
            raise AuditError(f"{len(slots)} slots need as many chains, none empty: {tokens}")
        self._check_slots(slots)
        seating = self._seat(slots)
        chains = seating.seated(tokens)
        starts = self._lengths(seating.seated(slots))
        counts = [len(chain) for chain in chains]
        self._check_positions(max(map(sum, zip(starts, counts, strict=True))))
        width = max(counts)
        self._grow(0, max(starts) + width)
        plan, positions, mask = self._chain(seating.rows, starts, counts)
        ids = self._tensor([[*chain, *[0] * (width - len(chain))] for chain in chains])
        if last_only and width > SHORT:
            logits = self._last(ids, positions, mask, plan, counts)
        elif last_only:
            logits = _ends(self._call(ids, positions, mask, plan), counts)
        else:
            logits = self._call(ids, positions, mask, plan)
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)
        self.fed += sum(counts)
        return seating.back(logits)

    def forward_through(
        self,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],
        layer: int,
        see: Callable[[Tensor], None],
    ) -> Tensor:
        """As `forward`, and shows `see` on the way what leaves the first `layer` layers.

        Compiled mode runs a graph for either part, since a graph says nothing on its way.

        Args:
            slots: [R].
            tokens: [R].
            layer: Layers before the look, from 1.
            see: Takes hidden states [R, n, H]; the layers after it wait until it returns.

        Returns:
            [R, n, V] logits.
        """
        seating = self._seat(slots)

        def shown(hidden: Tensor) -> None:
            see(seating.back(hidden))

        whole = self._capture
        if whole is None:
            with watched(self.model, layer, shown):
                return self.forward(slots, tokens)
        if layer not in self._parts:
            self._parts[layer] = SplitCapture(self.model, layer)
        self._capture = self._parts[layer].showing(shown)
        try:
            return self.forward(slots, tokens)
        finally:
            self._capture = whole

    def open_tree(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> Tree:
        """Prepare branches over the trunks that slots hold.

        Args:
            slots: [R] different slots.
            forks: [R] lists of N_r forks: the index of the last trunk token that a branch sees, -1 for
                none.  A row may have no branch; not all of them.
            depth: Most steps the tree will take.
        """
        self._check_slots(slots)
        trunks = self._lengths(slots)
        width = max((len(row) for row in forks), default=0)
        if len(slots) != len(forks) or not width or depth < 1:
            raise AuditError(f"a tree needs branches and a depth: {len(slots)} slots, {forks}, {depth}")
        for trunk, row in zip(trunks, forks, strict=True):
            if row and (min(row) < -1 or max(row) >= trunk):
                raise AuditError(f"forks {list(row)} do not lie in a trunk of {trunk} tokens")
            self._check_positions(max(row, default=-1) + 1 + depth)
        # All rows keep their branches in the same columns, so that one slice of one mask serves each step.
        column = max(trunks)
        self._grow(0, column + depth * width)
        seating = self._seat(slots)
        at = self._tensor([[*row, *[-1] * (width - len(row))] for row in seating.seated(forks)])
        counts = tuple(len(row) for row in forks)
        mask = self._tree_mask(at, column, depth)
        return Tree(tuple(slots), tuple(trunks), counts, column, seating, at + 1, mask)

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """Feed the next token of every branch in one forward.

        Args:
            tree: From `open_tree`.
            tokens: [R, N] ids; any id where a row has fewer branches.

        Returns:
            [R, N, V] logits.
        """
        self._audit_tree(tree)
        if (tree.steps + 1) * tree.branches > tree.mask.shape[-1] - tree.column:
            raise AuditError(f"the tree was opened for {tree.steps} steps")
        start = tree.column + tree.steps * tree.branches
        length = start + tree.branches
        plan = Plan(tree.seating.rows, start, length)
        ids = tree.seating.put(tokens)
        logits = self._call(ids, tree.positions + tree.steps, tree.mask[..., :length], plan)
        tree.steps += 1
        self.fed += sum(tree.counts)
        return tree.seating.back(logits)

    def close_tree(self, tree: Tree) -> None:
        """Forget the branches; the trunks stay."""
        self._audit_tree(tree)
        tree.closed = True

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with random keys and values of `context` tokens, for probes."""
        self._grow(max(slots) + 1, context)
        for slot in slots:
            self.reset(slot)
            self._held[slot] = [0] * context
        self._cache.fill_random([self._seats.row(slot) for slot in slots], context)

    def _chain(
        self, rows: slice, starts: Sequence[int], counts: Sequence[int]
    ) -> tuple[Plan, Tensor, Tensor | None]:
        """Plan, [R, n] positions and mask of chains of `counts` tokens at `starts`."""
        width, length = max(counts), max(starts) + max(counts)
        offsets = torch.arange(width, device=self.device)
        if min(starts) == max(starts):
            positions = (offsets + starts[0])[None].expand(len(starts), -1)
            # A single token sees all there is; with an empty cache the model's own causal mask will do.
            # Both keep the kernels that plain decoding uses.
            mask = None if width == 1 or starts[0] == 0 else self._causal(positions[:1], length)
            return Plan(rows, starts[0], length), positions, mask
        columns = self._tensor(starts)[:, None] + offsets
        positions = columns
        if self._most is not None and length > self._most:  # padding only; the chains are checked before
            positions = columns.clamp(max=self._most - 1)
        return Plan(rows, min(starts), length, columns), positions, self._causal(columns, length)

    def _causal(self, columns: Tensor, length: int) -> Tensor:
        """[R, 1, n, L] additive: what a token at `columns` [R, n] may look at."""
        return self._additive(torch.arange(length, device=self.device) > columns[..., None])[:, None]

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        """[R, 1, N, T + depth * N]: the trunk up to the fork, and a branch's own tokens.

        Args:
            forks: [R, N].
            trunk: T, columns before the branches' tokens.
            depth: Most steps.
        """
        rows, count = forks.shape
        unseen = torch.arange(trunk, device=self.device) > forks[..., None]
        siblings = ~torch.eye(count, dtype=torch.bool, device=self.device)
        hidden = torch.cat([unseen, siblings.repeat(1, depth).expand(rows, -1, -1)], dim=-1)
        return self._additive(hidden)[:, None]

    def _additive(self, hidden: Tensor) -> Tensor:
        """Zero, or the least number where `hidden`.

        Additive rather than boolean: eager attention adds a mask, so that a boolean one would silently
        hide nothing.
        """
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)

    def _last(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, counts: Sequence[int]
    ) -> Tensor:
        """[R, 1, V] logits of each row's last token, computed at no more positions than there are ends."""
        ends = sorted({count - 1 for count in counts})
        if len(ends) == 1:
            return self._call(ids, positions, mask, plan, keep=1)
        logits = self._call(ids, positions, mask, plan, keep=self._tensor(ends))
        return _ends(logits, [1 + ends.index(count - 1) for count in counts])

    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """The one place where the model is called; [R, n, V]."""
        with torch.inference_mode():
            if self._capture is not None and isinstance(keep, int) and keep == 0:
                return self._captured(self._capture, ids, positions, mask, plan)
            self._cache.set_plan(plan)
            logits: Tensor = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
            ).logits
            return logits

    def _captured(
        self, capture: Capture | SplitCapture, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan
    ) -> Tensor:
        """The same by a graph, which wants everything spelled out and contiguous."""
        rows, count = ids.shape
        columns = plan.columns
        if columns is None:
            columns = torch.arange(plan.start, plan.start + count, device=self.device).expand(rows, -1)
        length = max(plan.length, 2)  # a size of one would be a case of its own
        if mask is None:
            mask = self._causal(columns, length)
        full = mask.expand(rows, -1, -1, -1).contiguous()
        feed = Feed(ids, positions.contiguous(), columns.contiguous(), full)
        return capture.call(feed, self._cache.buffers(plan.rows))

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

    def _audit_tree(self, tree: Tree) -> None:
        trunks = self._lengths(tree.slots)
        if tree.closed or tuple(trunks) != tree.trunks:
            raise AuditError(f"a tree over trunks of {tree.trunks} tokens, closed or not these: {trunks}")
        if self._seats.moves(tree.slots) or self._seating(tree.slots) != tree.seating:
            raise AuditError("the rows of a tree were moved before it was done")

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


def _ends(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """[R, 1, V] the logits [R, n, V] at the end of each row's `counts` [R] tokens."""
    if min(counts) == logits.shape[1]:
        return logits[:, -1:]
    ends = torch.tensor(counts, dtype=torch.long, device=logits.device) - 1
    return logits[torch.arange(len(counts), device=logits.device), ends][:, None]
