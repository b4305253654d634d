"""A causal language model over static KV slots: ragged chains, rollbacks and trees.

Only worker processes (and tests) import this module; it needs torch and transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.capture import Capture, Feed, Kind
from calibrate.live.errors import AuditError
from calibrate.live.kvcache import Plan
from calibrate.live.nodeforwards import NodeForwards
from calibrate.live.parts import SplitCapture, watched
from calibrate.live.placement import Mode
from calibrate.live.treeforwards import TreeForwards
from policies.values import BoolArray, IntArray

SHORT = 8
"""Chains up to this long get all their logits, also where the last ones alone are asked for: the model's head
is cheap beside what a graph saves, and graphs know no other way."""


class ModelRunner(TreeForwards, NodeForwards):
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
        super().__init__(model, slots=slots, capacity=capacity)
        self.mode = mode
        self._capture: Capture | SplitCapture | None = Capture(self.model) if mode == "compiled" else None
        self._parts: dict[int, SplitCapture] = {}
        self._others: dict[int, Capture] = {}

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
        with self.showing(slots, layer, see):
            return self.forward(slots, tokens)

    @contextmanager
    def showing(self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]) -> Iterator[None]:
        """Within the block, forwards of some slots show `see` what leaves the first `layer` layers.

        Args:
            slots: [R].
            layer: Layers before the look, from 1.
            see: As in `forward_through`.
        """
        seating = self._seat(slots)

        def shown(hidden: Tensor) -> None:
            see(seating.back(hidden))

        whole = self._capture
        if whole is None:
            with watched(self.model, layer, shown):
                yield
            return
        if layer not in self._parts:
            self._parts[layer] = SplitCapture(self.model, layer)
        self._capture = self._parts[layer].showing(shown)
        try:
            yield
        finally:
            self._capture = whole

    def forward_states(
        self,
        part: Any,
        slots: Sequence[int],
        starts: Sequence[int],
        states: Tensor,
        *,
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """As `forward_at`, through other layers over the same keys and values; hidden states enter them.

        Args:
            part: The layers with a head, in the form of a model (`calibrate.live.parts.second_part`).
            slots: [R].
            starts: [R].
            states: [R, n, H] what enters the layers.
            positions: [R, n]; what lies beyond the model's last one counts as the last.
            hidden: [R, n, L].

        Returns:
            [R, n, V] logits; nothing counts as fed, since only the caller knows which states are meant.
        """
        self._check_slots(slots)
        seating = self._seat(slots)
        most = positions.max() if self._most is None else self._most - 1
        laid = self._laid(seating, starts, positions.clip(max=most), hidden)
        model, capture = self.model, self._capture
        if capture is not None:
            if id(part) not in self._others:
                self._others[id(part)] = Capture(part, hidden=states.shape[-1])
            self._capture = self._others[id(part)]
        self.model = part
        try:
            return seating.back(self._call(seating.put(states), *laid))
        finally:
            self.model, self._capture = model, capture

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
        rows, count = ids.shape[:2]  # hidden states in place of ids have one more
        columns = plan.columns
        if columns is None:
            columns = torch.arange(plan.start, plan.start + count, device=self.device).expand(rows, -1)
        length = max(plan.length, 2)  # a size of one would be a case of its own
        if mask is None:
            mask = self._causal(columns, length)
        full = mask.expand(rows, -1, -1, -1).contiguous()
        feed = Feed(ids, positions.contiguous(), columns.contiguous(), full)
        return capture.call(feed, self._cache.buffers(plan.rows))


def _ends(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """[R, 1, V] the logits [R, n, V] at the end of each row's `counts` [R] tokens."""
    if min(counts) == logits.shape[1]:
        return logits[:, -1:]
    ends = torch.tensor(counts, dtype=torch.long, device=logits.device) - 1
    return logits[torch.arange(len(counts), device=logits.device), ends][:, None]
