"""A `ModelRunner` whose forwards OpenVINO computes: on a CPU, a GPU or an NPU.

Slots, rollbacks, ragged chains, trees and audits are those of `ModelRunner`; the model's call alone is
another.  Keys and values are torch's buffers on the host, which OpenVINO reads without a copy where the
device is the CPU.

An NPU takes graphs of fixed shapes only.  Texts then always reach over the whole capacity (the mask hides
what is not there), new tokens are padded to a power of two, and there is one graph per number of rows and of
new tokens, compiled when it is first needed and kept in the cache folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.capture import TOLERANCE, Feed
from calibrate.live.errors import ModelError
from calibrate.live.kvcache import Buffers, Plan, SlotCache
from calibrate.live.openvino_devices import is_static, require_device
from calibrate.live.openvino_graph import compile_graph, find_graph, with_shapes
from calibrate.live.placement import Precision
from calibrate.live.runner import ModelRunner

HIDDEN = torch.finfo(torch.float16).min
"""Added where a token may not look; a number in every precision that a device may compute in."""
COLUMNS = 64
"""Columns of the cache are read in multiples of this, so that shapes recur from step to step."""
LEAST = 16
"""Columns of the smallest cache: the check of what was converted needs some."""
_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class OpenvinoRunner(ModelRunner):
    """Runs a model through OpenVINO; otherwise as `ModelRunner`.

    Args:
        model: In single precision, on the CPU.  It is not needed any more afterwards.
        device: As OpenVINO calls it: `CPU`, `GPU`, `NPU`.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.
        precision: Of the arithmetic; ignored by an NPU, which has half precision.
        threads: On a CPU.
        folder: Where graphs are kept; None: nowhere.
        static: Fixed shapes; None: as the device needs.

    Attributes:
        converted: Whether the model was converted now, rather than found in the folder.

    Raises:
        ModelError: OpenVINO or the device is not here, the model cannot be converted, or what was converted
            computes something else.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        device: str = "CPU",
        *,
        slots: int = 1,
        capacity: int = 512,
        precision: Precision = "fp32",
        threads: int | None = None,
        folder: Path | None = None,
        static: bool | None = None,
    ) -> None:
        require_device(device)
        super().__init__(model, slots=slots, capacity=max(capacity, LEAST))
        self.name = device
        self.static = is_static(device) if static is None else static
        self.precision: Precision = "fp16" if is_static(device) else precision
        self._threads = threads
        self._folder = folder
        self._graph, self.converted = find_graph(model, self._cache.buffers(slice(0, 1)), folder)
        self._requests: dict[tuple[int, ...], Any] = {}
        for rows, count in ((1, 1), (1, 2)) if self.static else ((1, 1), (2, 3)):
            self._check(rows, count)

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """Nothing: graphs of all shapes need no warming, those of one shape were made for the check."""
        return 0.0

    def showing(self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]) -> NoReturn:
        """Refused: the graph does not show what leaves a layer.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            "OpenVINO's graph shows no hidden states: early exits, and streams of a draft, need the backend "
            "'torch'"
        )

    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """[R, m, V] logits; writes keys and values, as the torch model would."""
        rows, count = ids.shape
        columns = plan.columns
        if columns is None:
            columns = torch.arange(plan.start, plan.start + count).expand(rows, -1)
        if mask is None:
            mask = self._causal(columns, plan.length)
        if isinstance(keep, int):
            keep = torch.arange(count - keep if keep else 0, count)
        feed = Feed(ids, positions, columns, mask.expand(rows, -1, -1, -1))
        with torch.inference_mode():
            logits, states = self._infer(feed, keep, self._cache.buffers(plan.rows))
            self._cache.set_plan(plan)
            for i, (keys, values) in enumerate(zip(states[::2], states[1::2], strict=True)):
                self._cache.update(keys, values, i)
        return logits

    def _infer(self, feed: Feed, keep: Tensor, buffers: Sequence[Buffers]) -> tuple[Tensor, list[Tensor]]:
        """[R, m, V] logits, and per layer the [R, heads, n, width] keys and values of the new tokens."""
        (rows, count), kept = feed.ids.shape, len(keep)
        capacity, length = int(buffers[0][0].shape[2]), feed.mask.shape[-1]
        width, most = (_power(count), _power(kept)) if self.static else (count, kept)
        past = capacity if self.static else min(capacity, -(-length // COLUMNS) * COLUMNS)
        inputs = [
            _padded(feed.ids, width),
            _padded(feed.positions, width),
            _widened(feed, past, width),
            torch.cat([keep, keep[-1:].expand(most - kept)]),
            *(buffer for pair in buffers for buffer in pair),
        ]
        request = self._request(rows, width, most, buffers)
        outputs = request.infer([part.numpy() for part in inputs], share_inputs=True, share_outputs=True)
        logits, *states = (torch.from_numpy(outputs[i]) for i in range(len(outputs)))
        # The request's own memory: logits are copied, keys and values are written away by the caller.
        return logits[:, :kept].clone(), [part[:, :, :count] for part in states]

    def _request(self, rows: int, count: int, kept: int, buffers: Sequence[Buffers]) -> Any:
        """What runs a shape; compiled when it is first needed."""
        shape = (rows, count, kept, int(buffers[0][0].shape[2])) if self.static else ()
        if shape not in self._requests:
            graph = with_shapes(self._graph, rows, count, kept, buffers) if self.static else self._graph
            compiled = compile_graph(
                graph, self.name, precision=self.precision, threads=self._threads, folder=self._folder
            )
            self._requests[shape] = compiled.create_infer_request()
        return self._requests[shape]

    def _check(self, rows: int, count: int) -> None:
        """Compare with the torch model, on rows of different lengths over random keys and values.

        Raises:
            ModelError: They differ by more than the precision explains.
        """
        generator = torch.Generator().manual_seed(rows * count)
        length = 11
        starts = length - count - torch.arange(rows)[:, None]
        columns = starts + torch.arange(count)
        plan = Plan(slice(0, rows), int(columns.min()), length, columns)
        ids = torch.randint(int(self.config.get_text_config().vocab_size), (rows, count), generator=generator)
        mask = self._causal(columns, length)
        found = []
        for buffer in (part for pair in self._cache.buffers(slice(0, 1)) for part in pair):
            shape = (rows, *buffer.shape[1:])
            found.append(torch.randn(shape, generator=generator))
        pairs = list(zip(found[::2], found[1::2], strict=True))
        cache = SlotCache([(keys.clone(), values.clone()) for keys, values in pairs])
        cache.set_plan(plan)
        with torch.inference_mode():
            logits, _ = self._infer(Feed(ids, columns, columns, mask), torch.arange(count), pairs)
            expected = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=columns,
                past_key_values=cache,
                use_cache=True,
            ).logits
        limit = TOLERANCE[_DTYPES[self.precision]] * float(expected.abs().max())
        if logits.shape != expected.shape or not float((logits - expected).abs().max()) <= limit:
            raise ModelError(
                f"the converted model computes something else on {self.name!r}; use the backend 'torch'"
            )


def _power(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def _padded(values: Tensor, width: int) -> Tensor:
    """[R, width] with zeros behind the [R, n] values."""
    return torch.nn.functional.pad(values, (0, width - values.shape[1])).contiguous()


def _widened(feed: Feed, past: int, width: int) -> Tensor:
    """[R, 1, width, past + width]: a mask [R, 1, n, L] over columns of the cache, with the new tokens apart.

    The n columns that are being written are hidden where they lie, since they hold nothing yet, and come
    again behind the others.  A padded token sees itself: a softmax over nothing could be no number.
    """
    mask = feed.mask
    rows, _, count, length = mask.shape
    index = feed.columns[:, None, None, :].expand(-1, 1, count, -1)
    wide = mask.new_full((rows, 1, width, past + width), HIDDEN)
    wide[:, :, :count, :length] = mask.scatter(-1, index, HIDDEN).clamp(min=HIDDEN)
    wide[:, :, :count, past : past + count] = mask.gather(-1, index).clamp(min=HIDDEN)
    spare = torch.arange(count, width)
    wide[:, :, spare, past + spare] = 0.0
    return wide
