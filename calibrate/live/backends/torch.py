"""The backend `torch`: a causal language model over static slots, called eagerly or compiled.

Only worker processes (and tests) import this module; it needs torch and transformers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.engine.compiled import Capture, Feed, Kind, SplitCapture, some_layers, watched
from calibrate.live.engine.forwards import SlotForwards
from calibrate.live.engine.runner import Nodes
from calibrate.live.engine.slots import Plan
from calibrate.live.loading import load_model
from calibrate.live.placement import Mode, WorkerSpec


class ModelRunner(SlotForwards):
    """A model of transformers, called as it is or by graphs of it; see `SlotForwards`.

    Args:
        model: Any decoder-only model whose layers all use full attention; for a look between layers, a
            Llama-like one.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.
        mode: `eager` calls the model as transformers does; `compiled` runs graphs of it, except where
            only the last logits of a long chain are asked for (prefill).  See `warm`.

    Raises:
        ModelError: The model's cache cannot be rolled back, or the mode is `compiled` without a compiler.
    """

    def __init__(
        self, model: PreTrainedModel, *, slots: int = 1, capacity: int = 512, mode: Mode = "eager"
    ) -> None:
        super().__init__(model, slots=slots, capacity=capacity)
        self.mode = mode
        self._capture: Capture | SplitCapture | None = Capture(self.model) if mode == "compiled" else None
        self._split: dict[int, SplitCapture] = {}
        self._parts: dict[int, Capture] = {}
        self._some: dict[tuple[int, ...], tuple[Any, Capture | None]] = {}

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """See `Runner.warm`; what matters of either size is only whether it is one."""
        if not isinstance(self._capture, Capture):
            return 0.0
        start = time.perf_counter()
        for rows, count in shapes:
            self._capture.prepare(Kind(rows == 1, count == 1), self._cache.buffers(slice(0, 1)))
        return time.perf_counter() - start

    @contextmanager
    def showing(self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]) -> Iterator[None]:
        """See `Runner.showing`; compiled mode runs a graph for either part, since a graph says nothing."""
        span = self._side_by_side(slots)

        def shown(hidden: Tensor) -> None:
            see(span.back(hidden))

        if self._capture is None:
            with watched(self.model, layer, shown):
                yield
            return
        if layer not in self._split:
            self._split[layer] = SplitCapture(self.model, layer)
        self._split[layer].see = shown
        with self._running(self.model, self._split[layer]):
            yield

    def _states(self, part: Any, slots: Sequence[int], states: Tensor, nodes: Nodes) -> Tensor:
        span = self._side_by_side(slots)
        most = nodes.positions.max() if self._most is None else self._most - 1
        laid = self._laid(span, nodes._replace(positions=nodes.positions.clip(max=most)))
        capture = self._capture
        if capture is not None:
            if id(part) not in self._parts:
                self._parts[id(part)] = Capture(part, hidden=states.shape[-1])
            capture = self._parts[id(part)]
        with self._running(part, capture):
            return span.back(self._call(span.put(states), *laid))

    @contextmanager
    def through(self, kept: tuple[int, ...]) -> Iterator[None]:
        """Within the block, forwards of a Llama-like model go through some of its layers alone."""
        if kept not in self._some:
            part = some_layers(self.model, kept)
            self._some[kept] = part, None if self._capture is None else Capture(part)
        with self._running(*self._some[kept]):
            yield

    @contextmanager
    def _running(self, model: Any, capture: Capture | SplitCapture | None) -> Iterator[None]:
        """Within the block, calls are of another model."""
        before = self.model, self._capture
        self.model, self._capture = model, capture
        try:
            yield
        finally:
            self.model, self._capture = before

    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """The one place where the model is called; [R, n, V]."""
        with torch.inference_mode():
            if self._capture is not None and isinstance(keep, int) and keep == 0:
                feed = Feed(*(part.contiguous() for part in self._feed(ids, positions, mask, plan)))
                return self._capture.call(feed, self._cache.buffers(plan.rows))
            self._cache.set_plan(plan)
            split = self._capture
            # What no graph computes is shown all the same.
            shown = (
                watched(self.model, split.layer, split.see)
                if isinstance(split, SplitCapture)
                else nullcontext()
            )
            with shown:
                logits: Tensor = self.model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=self._cache,
                    use_cache=True,
                    logits_to_keep=keep,
                ).logits
            return logits


def open_runner(spec: WorkerSpec) -> ModelRunner:
    """See `calibrate.live.backends.open_runner`."""
    model = load_model(
        spec.model, spec.precision, device=spec.device, trust_remote_code=spec.trust_remote_code
    )
    return ModelRunner(model, slots=spec.slots, capacity=spec.capacity, mode=spec.mode)
