"""OpenVINO on a CPU, a GPU or an NPU: a model as a graph, and forwards over slots by it.

Keys and values stay outside the graph, in torch's buffers on the host (`engine.slots`), which OpenVINO
reads without a copy where the device is the CPU: the graph reads those of the text so far, and hands out
those of the new tokens.  A rollback then costs nothing, as with torch; with OpenVINO's own stateful models
it would be a copy of the state.

Inputs of a graph, in order: ids [R, n], positions [R, n], mask [R, 1, n, P + n] (additive: P columns of the
buffers, then the new tokens), keep [m] (which of the n tokens get logits), and per layer keys and values
[R, heads, capacity, width] with capacity at least P.  Outputs: logits [R, m, V], and per layer keys and
values [R, heads, n, width] of the new tokens.

An NPU takes graphs of fixed shapes only.  Texts then always reach over the whole capacity (the mask hides
what is not there), new tokens are padded to a power of two, and there is one graph per number of rows and of
new tokens, compiled when it is first needed and kept in the cache folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from calibrate.journal import fingerprint
from calibrate.live.backends.installed import cache_of, import_openvino, is_static, require_device
from calibrate.live.engine.compiled import Feed, call_model, example, is_near
from calibrate.live.engine.forwards import SlotForwards
from calibrate.live.engine.slots import Buffers, Plan
from calibrate.live.errors import ModelError
from calibrate.live.loading import DTYPES, load_model
from calibrate.live.placement import Precision, WorkerSpec, is_local_model
from calibrate.shipped import made_once

HIDDEN = torch.finfo(torch.float16).min
"""Added where a token may not look; a number in every precision that a device may compute in."""
COLUMNS = 64
"""Columns of the cache are read in multiples of this, so that shapes recur from step to step."""
LEAST = 16
"""Columns of the smallest cache: the check of what was converted needs some."""
GRAPH = "model.xml"
"""File of a graph that is kept."""
_VERSION = 1
"""Of the graphs that are kept."""
_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


class OpenvinoRunner(SlotForwards):
    """Runs a model through OpenVINO, over static slots on the host.

    Args:
        model: In single precision, on the CPU.  It is not needed any more afterwards.
        device: As OpenVINO calls it: `CPU`, `GPU`, `NPU`.
        slots: See `Runner`.
        capacity: See `Runner`.
        precision: Of the arithmetic; ignored by an NPU, which has half precision.
        threads: On a CPU.
        folder: Where graphs are kept; None: nowhere.
        static: Fixed shapes; None: as the device needs.

    Attributes:
        converted: Whether the model was converted now, rather than read from the folder.

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

    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """[R, m, V] logits; writes keys and values, as the torch model would."""
        count = ids.shape[1]
        if isinstance(keep, int):
            keep = torch.arange(count - keep if keep else 0, count)
        feed = self._feed(ids, positions, mask, plan)
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
        """Compare with the torch model, on rows of different lengths over random keys and values."""
        own = self._cache.buffers(slice(0, 1))
        feed, buffers = example(self.model, (rows, count, 11, int(own[0][0].shape[2])), own)
        copies = [(keys.clone(), values.clone()) for keys, values in buffers]
        with torch.inference_mode():
            logits, _ = self._infer(feed, torch.arange(count), buffers)
            expected = call_model(self.model, feed, copies)
        if not is_near(logits, expected, DTYPES[self.precision]):
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


class _Past(DynamicLayer):
    """One layer's keys and values while the model is traced: what was, and behind it what is new."""

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self.keys, self.values = buffers
        self.is_initialized = True
        self.new: tuple[Tensor, ...] = ()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Buffers:
        """[R, heads, P + n, width] of both."""
        self.new = (key_states, value_states)
        both: Buffers = super().update(key_states, value_states)
        return both


class _Step(torch.nn.Module):
    """The forward that is converted; inputs and outputs as in the module's docstring."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, keep: Tensor, *flat: Tensor
    ) -> tuple[Tensor, ...]:
        past = mask.shape[-1] - ids.shape[1]
        read = [buffer[:, :, :past] for buffer in flat]
        cache = Cache(layers=[_Past(pair) for pair in zip(read[::2], read[1::2], strict=True)])
        logits = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return (logits, *(part for layer in cache.layers for part in layer.new))


def convert(model: PreTrainedModel, buffers: Sequence[Buffers]) -> Any:
    """An `openvino.Model` of all shapes, of one in single precision on the CPU, for heads as of `buffers`.

    Raises:
        ModelError: It cannot be converted.
    """
    openvino = import_openvino()
    if model.dtype != torch.float32:
        raise ModelError(f"OpenVINO models are converted from single precision, this one is {model.dtype}")
    rows, count, past, capacity = 3, 5, 7, 11  # sizes that differ, so that no dimension is taken for another
    example = (
        torch.zeros((rows, count), dtype=torch.long),
        torch.arange(past, past + count).repeat(rows, 1),
        torch.zeros((rows, 1, count, past + count)),
        torch.arange(2),
        *(torch.zeros((rows, b.shape[1], capacity, b.shape[3])) for pair in buffers for b in pair),
    )
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the tracer, on branches that do not depend on the sizes
            return openvino.convert_model(_Step(model), example_input=example)
    except Exception as error:
        raise ModelError(f"OpenVINO cannot convert this model; use the backend 'torch'. {error}") from error


def graph_folder(model: str) -> Path:
    """Where the graph of a model and what devices make of it are kept, in the user's cache."""
    import transformers

    openvino = import_openvino()
    versions = [openvino.__version__, torch.__version__, transformers.__version__]
    return cache_of("openvino", [_VERSION, fingerprint(model), *versions])


def find_graph(model: PreTrainedModel, buffers: Sequence[Buffers], folder: Path | None) -> tuple[Any, bool]:
    """The graph of a model, from `folder`, else converted and kept there; and whether it was converted."""
    openvino = import_openvino()
    if folder is None:
        return convert(model, buffers), True
    converted = not (folder / GRAPH).is_file()

    def make(partial: Path) -> None:
        openvino.save_model(convert(model, buffers), partial / GRAPH, compress_to_fp16=False)

    return openvino.Core().read_model(made_once(folder, make, proof=GRAPH) / GRAPH), converted


def compile_graph(
    graph: Any, device: str, *, precision: Precision, threads: int | None = None, folder: Path | None = None
) -> Any:
    """Compile a graph for a device, with arguments as of `OpenvinoRunner`.

    Raises:
        ModelError: The device is not there, or cannot run the graph.
    """
    openvino = import_openvino()
    core = openvino.Core()
    options: dict[str, Any] = {}
    if not is_static(device):
        # A CPU with bf16 units would take them without being asked.
        options["INFERENCE_PRECISION_HINT"] = _HINTS[precision]
    if device == "CPU" and threads is not None:
        # The process is pinned to its cores already, before any thread began.
        options |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
    if folder is not None:
        options["CACHE_DIR"] = str(folder / "compiled")
    try:
        with _one_at_a_time(folder):
            return core.compile_model(graph, device, options)
    except RuntimeError as error:
        raise ModelError(f"OpenVINO cannot run this model on {device!r}: {error}") from error


@contextmanager
def _one_at_a_time(folder: Path | None) -> Iterator[None]:
    """Two processes that keep the same compiled graph at once take its file from under each other."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "compiling").open("ab") as file:
        with suppress(ImportError):  # not a POSIX system
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def with_shapes(graph: Any, rows: int, count: int, kept: int, buffers: Sequence[Buffers]) -> Any:
    """A copy of a graph for one shape: R, n and m as given, and P the whole capacity of `buffers`."""
    fixed = graph.clone()
    capacity = int(buffers[0][0].shape[2])
    sizes = [[rows, count], [rows, count], [rows, 1, count, capacity + count], [kept]]
    sizes += [[rows, b.shape[1], capacity, b.shape[3]] for pair in buffers for b in pair]
    fixed.reshape(dict(zip(fixed.inputs, sizes, strict=True)))
    return fixed


def open_runner(spec: WorkerSpec) -> OpenvinoRunner:
    """See `calibrate.live.backends.open_runner`."""
    return OpenvinoRunner(
        load_model(spec.model, trust_remote_code=spec.trust_remote_code),
        spec.backend.partition(":")[2],
        slots=spec.slots,
        capacity=spec.capacity,
        precision=spec.precision,
        threads=len(spec.cores),
        folder=graph_folder(spec.model) if is_local_model(spec.model) else None,
    )
