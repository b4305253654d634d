"""A causal language model as an OpenVINO graph: conversion, cache folder, compilation for a device.

Keys and values stay outside the graph, in the buffers of `calibrate.live.kvcache`: the graph reads those of
the text so far, and hands out those of the new tokens.  A rollback then costs nothing, as with torch; with
OpenVINO's own stateful models it would be a copy of the state.

Inputs, in order: ids [R, n], positions [R, n], mask [R, 1, n, P + n] (additive: P columns of the buffers,
then the new tokens), keep [m] (which of the n tokens get logits), and per layer keys and values
[R, heads, capacity, width] with capacity at least P.  Outputs: logits [R, m, V], and per layer keys and
values [R, heads, n, width] of the new tokens.

Only workers, recorders and tests import this module; openvino itself is imported in its functions.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from calibrate.journal import fingerprint
from calibrate.live.errors import ModelError
from calibrate.live.kvcache import Buffers
from calibrate.live.openvino_devices import import_openvino, is_static
from calibrate.live.placement import Precision
from calibrate.pair.embed import cache_folder
from hardware_profiles.jsonfile import to_json

_VERSION = 1
_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


class _Past(CacheLayerMixin):
    """One layer's keys and values while the model is traced: what was, and behind it what is new."""

    is_sliding = False

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self.keys, self.values = buffers
        self.dtype, self.device = self.keys.dtype, self.keys.device
        self.is_initialized = True
        self.new: tuple[Tensor, ...] = ()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Buffers:
        """[R, heads, P + n, width] of both."""
        self.new = (key_states, value_states)
        return torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that attention reads, and the first of them."""
        return int(self.keys.shape[2]) + query_length, 0

    def get_seq_length(self) -> int:
        """P."""
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        """None."""
        return -1


class _Pasts(Cache):
    """All layers."""

    def __init__(self, buffers: Sequence[Buffers]) -> None:
        super().__init__(layers=[_Past(pair) for pair in buffers])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Buffers:
        """As `_Past.update`."""
        found: Buffers = self.layers[layer_idx].update(key_states, value_states)
        return found


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
        cache = _Pasts(list(zip(read[::2], read[1::2], strict=True)))
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
    """An `openvino.Model` of all shapes.

    Args:
        model: In evaluation mode, single precision, on the CPU.
        buffers: Per layer, any; tells heads and widths.

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
    parts = [_VERSION, fingerprint(model), openvino.__version__, torch.__version__, transformers.__version__]
    key = hashlib.sha256(to_json(parts, default=str).encode()).hexdigest()[:16]
    return cache_folder().parent / "openvino" / key


def find_graph(model: PreTrainedModel, buffers: Sequence[Buffers], folder: Path | None) -> tuple[Any, bool]:
    """The graph of a model, read from `folder` if it is there, else converted (and kept there).

    Returns:
        The graph, and whether it was converted just now.
    """
    openvino = import_openvino()
    if folder is None:
        return convert(model, buffers), True
    file = folder / "model.xml"
    converted = not file.is_file()
    if converted:
        _save(openvino, convert(model, buffers), folder)
    return openvino.Core().read_model(file), converted


def _save(openvino: Any, graph: Any, folder: Path) -> None:
    """Write a graph whole or not at all; the first of several writers wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        openvino.save_model(graph, partial / "model.xml", compress_to_fp16=False)
        partial.rename(folder)
    except OSError:
        if not (folder / "model.xml").is_file():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def compile_graph(
    graph: Any, device: str, *, precision: Precision, threads: int | None = None, folder: Path | None = None
) -> Any:
    """Compile for a device.

    Args:
        graph: From `find_graph`, with the shapes that it shall have.
        device: As OpenVINO calls it.
        precision: Of the arithmetic; an NPU has half precision only, whatever is said.
        threads: On a CPU.
        folder: Where compiled graphs are kept between processes.

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
