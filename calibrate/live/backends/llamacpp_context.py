"""llama.cpp's sequences of keys and values behind a few calls on arrays, and the check of what they compute.

A context keeps cells, one per token, and each cell knows to which sequences it belongs.  A token sees the
cells of its (first) sequence at its own position and before.  A copy of a sequence, or of its first tokens,
is therefore a note in the cells that it shares, and so is a rollback; nothing is moved.

All sequences share one buffer (`kv_unified`): only so can a sequence share a part of another one.  Attention
then reads all cells in use, whichever rows they are of, and hides the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from calibrate.live.backends.installed import import_llamacpp
from calibrate.live.errors import ModelError
from policies.values import BoolArray, IntArray

Logits: TypeAlias = NDArray[np.float32]
"""[m, V] in single precision."""
LEAST = 256
"""Cells of the smallest context; llama.cpp reads them in multiples of this."""
_SINGLE, _HALF = 0, 1
"""ggml's numbers of precisions, for keys and values."""


class LlamaContext:
    """A model of a GGUF file on the CPU, and the keys and values of its sequences.

    Args:
        file: The GGUF; it may be removed afterwards.
        cells: Tokens to have room for, of all sequences together; a cell that sequences share counts once.
        threads: To compute with.
        half: Keys and values in half precision, and fused attention, which rounds to it, as is llama.cpp's
            default; else both in single precision.

    Attributes:
        vocabulary: V.
        sequences: How many sequences there can be, numbered from 0.
        cells: Room for so many tokens.

    Raises:
        ModelError: llama.cpp is not installed, or cannot run the file.
    """

    def __init__(self, file: Path, *, cells: int, threads: int, half: bool) -> None:
        self._library = library = import_llamacpp()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_mmap = False
        self._model = library.llama_model_load_from_file(str(file).encode(), parameters)
        if not self._model:
            raise ModelError(f"llama.cpp cannot load {file}; use the backend 'torch'")
        self.vocabulary = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model)))
        self.sequences = int(library.llama_max_parallel_sequences())
        self._threads = threads
        self._kind = _HALF if half else _SINGLE
        self._context: Any = None
        self.cells = 0
        self.grow(max(cells, LEAST))

    def grow(self, cells: int) -> None:
        """Make room for so many tokens; all sequences stay as they are."""
        library, before = self._library, self._context
        parameters = library.llama_context_default_params()
        parameters.n_ctx = cells
        parameters.n_batch = cells
        parameters.n_seq_max = self.sequences
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.type_k = parameters.type_v = self._kind
        if self._kind == _SINGLE:
            parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = True
        parameters.no_perf = True
        context = library.llama_init_from_model(self._model, parameters)
        if not context:
            raise ModelError(f"llama.cpp has no room for {cells} tokens")
        if before is not None:
            self._carry_over(before, context)
            library.llama_free(before)
        self._context = context
        self._memory = library.llama_get_memory(context)
        self.cells = int(library.llama_n_ctx(context))

    def decode(
        self, tokens: IntArray, positions: IntArray, sequences: Sequence[Sequence[int]], wanted: BoolArray
    ) -> Logits:
        """Feed tokens in one call.

        Args:
            tokens: [n] ids.
            positions: [n] each sequence's go on from where it ends.
            sequences: [n] those that each token belongs to, at least one.
            wanted: [n] whose logits are asked for.

        Returns:
            [m, V] logits of the wanted ones in order; a copy.

        Raises:
            ModelError: There is no room, or llama.cpp failed.
        """
        sizes = np.array([len(each) for each in sequences], dtype=np.int32)
        members = np.array([one for each in sequences for one in each], dtype=np.int32)
        # C's array of arrays: where each token's sequences begin.
        starts = members.ctypes.data + members.itemsize * (np.cumsum(sizes) - sizes).astype(np.uint64)
        batch = self._library.llama_batch()
        batch.n_tokens = len(tokens)
        parts: dict[str, NDArray[Any]] = {
            "token": tokens.astype(np.int32),
            "pos": positions.astype(np.int32),
            "n_seq_id": sizes,
            "seq_id": starts,
            "logits": wanted.astype(np.int8),
        }
        for name, array in parts.items():
            setattr(batch, name, ctypes.cast(array.ctypes.data, type(getattr(batch, name))))
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise ModelError(f"llama.cpp could not feed {len(tokens)} tokens (status {status})")
        pointer = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(int(wanted.sum()), self.vocabulary)).copy()

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let a sequence have the tokens of another one, at positions from `start` up to before `stop`."""
        if start < stop:
            self._library.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def remove(self, sequence: int, start: int = 0) -> None:
        """Forget a sequence's tokens from a position on; cells of no sequence are free."""
        self._library.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def close(self) -> None:
        """Free the library's memory; the context is of no more use."""
        if self._context:
            self._library.llama_free(self._context)
            self._context = None
        if self._model:
            self._library.llama_model_free(self._model)
            self._model = None

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self.close()

    def _carry_over(self, before: Any, after: Any) -> None:
        """Copy all sequences of a context to another one."""
        library = self._library
        size = int(library.llama_state_get_size(before))
        state = (ctypes.c_uint8 * size)()
        written = library.llama_state_get_data(before, state, size)
        if not written or library.llama_state_set_data(after, state, written) != written:
            raise ModelError("llama.cpp could not move its keys and values to a larger buffer")


TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "q8_0": 5e-2, "q4_0": 5e-1}
"""Root mean square of the difference to the torch model's logits, relative to that of the logits.  One of
two rotations mixed up makes it about 1."""
_LENGTH = 24
"""Tokens of the text that is compared."""


def check_context(context: LlamaContext, model: PreTrainedModel, precision: str) -> None:
    """Compare the logits of a random text; the context is empty before and afterwards.

    Args:
        context: Of the file.
        model: In single precision, on the CPU.
        precision: Of the file.

    Raises:
        ModelError: They differ by more than the precision explains.
    """
    config: Any = model.config.get_text_config()
    count = min(_LENGTH, getattr(config, "max_position_embeddings", None) or _LENGTH)
    ids = torch.randint(config.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    error = float("inf")
    if context.vocabulary == config.vocab_size:
        everything = np.ones(count, dtype=bool)
        logits = torch.from_numpy(context.decode(ids.numpy(), np.arange(count), [[0]] * count, everything))
        context.remove(0)
        with torch.inference_mode():
            expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        # What a row's logits have in common means nothing.
        logits, expected = (each - each.mean(dim=-1, keepdim=True) for each in (logits, expected))
        error = float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    if not error <= TOLERANCE[precision]:
        raise ModelError(
            f"the GGUF computes something else than its model at {precision!r}; use another precision, or "
            "the backend 'torch'"
        )
