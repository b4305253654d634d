"""The backend `torch`: a causal language model over static slots, called eagerly or compiled.

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

from calibrate.live.engine.compiled import Capture, Feed, Kind, SplitCapture, watched
from calibrate.live.engine.forwards import SlotForwards
from calibrate.live.engine.slots import Plan
from calibrate.live.loading import load_model
from calibrate.live.placement import Mode, WorkerSpec, is_local_model
from policies.values import BoolArray, IntArray


class ModelRunner(SlotForwards):
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
        span = self._side_by_side(slots)

        def shown(hidden: Tensor) -> None:
            see(span.back(hidden))

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
            part: The layers with a head, in the form of a model (`compiled.second_part`).
            slots: [R].
            starts: [R].
            states: [R, n, H] what enters the layers.
            positions: [R, n]; what lies beyond the model's last one counts as the last.
            hidden: [R, n, L].

        Returns:
            [R, n, V] logits; nothing counts as fed, since only the caller knows which states are meant.
        """
        self._check_slots(slots)
        span = self._side_by_side(slots)
        most = positions.max() if self._most is None else self._most - 1
        laid = self._laid(span, starts, positions.clip(max=most), hidden)
        model, capture = self.model, self._capture
        if capture is not None:
            if id(part) not in self._others:
                self._others[id(part)] = Capture(part, hidden=states.shape[-1])
            self._capture = self._others[id(part)]
        self.model = part
        try:
            return span.back(self._call(span.put(states), *laid))
        finally:
            self.model, self._capture = model, capture

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
        """A call by a graph, which wants everything spelled out and contiguous."""
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


def open_runner(spec: WorkerSpec) -> ModelRunner:
    """See `calibrate.live.backends.open_runner`."""
    model = load_model(
        spec.model,
        spec.precision,
        local=is_local_model(spec.model),
        device=spec.device,
        trust_remote_code=spec.trust_remote_code,
    )
    return ModelRunner(model, slots=spec.slots, capacity=spec.capacity, mode=spec.mode)
