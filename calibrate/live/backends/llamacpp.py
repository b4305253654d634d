"""llama.cpp on the CPU: forwards over slots from a GGUF file of the same weights.

A context keeps cells, one per token, and each cell knows to which sequences it belongs.  A token sees the
cells of its (first) sequence at its own position and before.  A copy of a sequence, or of its first tokens,
is therefore a note in the cells that it shares, and so is a rollback; nothing is moved.  All sequences share
one buffer (`kv_unified`): only so can a sequence share a part of another one.  Attention then reads all cells
in use, whichever rows they are of, and hides the rest.

A slot is a sequence of llama.cpp with the slot's number.  Each branch of a tree, and each leaf of a tree that
grows node by node, is a further sequence that shares the cells of its trunk; those have the highest numbers.
It takes no mask, so that a node belongs to the sequences of all leaves below it.  Where a node of an earlier
call gets several children, the first takes up the sequence that ends there, and each other one a copy of it.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.backends.installed import gguf_file, import_llamacpp
from calibrate.live.engine.runner import Nodes, Runner, Tokens, Tree
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.loading import load_model
from calibrate.live.placement import WorkerSpec, is_local_model, own_precision
from policies.values import BoolArray, IntArray

Logits: TypeAlias = NDArray[np.float32]
"""[m, V] in single precision."""
LEAST = 256
"""Cells of the smallest context; llama.cpp reads them in multiples of this."""
_SINGLE, _HALF = 0, 1
"""ggml's numbers of precisions, for keys and values."""


class LlamacppRunner(Runner):
    """Runs a GGUF file by llama.cpp, whose sequences are the slots.

    Args:
        model: The torch model of the same weights, in single precision; it tells the architecture, and what
            the file computes is compared with it.  It is not needed any more afterwards.
        file: The GGUF; may be removed afterwards.
        precision: Of the file: `fp32`, `fp16`, `q8_0` or `q4_0`.  Keys, values and attention are in single
            precision for the first, in half precision for all others.
        slots: See `Runner`.
        capacity: See `Runner`.
        threads: To compute with.

    Raises:
        ModelError: llama.cpp is not installed or cannot run the file, or the file is of another model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        file: Path,
        precision: str,
        *,
        slots: int = 1,
        capacity: int = 512,
        threads: int = 1,
    ) -> None:
        super().__init__(model, slots=slots, capacity=capacity)
        self.precision = precision
        self._context = LlamaContext(file, cells=slots * capacity, threads=threads, half=precision != "fp32")
        check_context(self._context, model, precision)
        self._sequences = Sequences(self._context)
        self._growing: dict[int, GrowingNodes] = {}

    def reset(self, slot: int) -> None:
        """See `Runner.reset`; a `ModelError` where llama.cpp has no sequence of that number."""
        self._forget_nodes(slot)
        if slot >= 0 and slot not in self._held:
            self._sequences.claim(slot)
        super().reset(slot)
        self._context.remove(slot)

    def rollback(self, slot: int, length: int) -> None:
        """See `Runner.rollback`."""
        held = len(self.held(slot))
        super().rollback(slot, length)
        self._forget_nodes(slot)
        if length < held:
            self._context.remove(slot, length)

    def close_tree(self, tree: Tree) -> None:
        """See `Runner.close_tree`."""
        super().close_tree(tree)
        self._sequences.give_back([sequence for row in tree.kept for sequence in row])

    def _resize(self) -> None:
        if self.slots * self.capacity > self._context.cells:
            self._context.grow(self.slots * self.capacity)

    def _fill_random(self, slots: Sequence[int], context: int) -> None:
        """Random tokens are fed: llama.cpp has no way to write keys and values."""
        for slot in slots if context else ():
            ids = np.random.default_rng(slot).integers(self._context.vocabulary, size=context)
            asked = np.arange(context) == context - 1  # llama.cpp wants to be asked for something
            self._context.decode(ids, np.arange(context), [[slot]] * context, asked)

    def _chains(self, slots: Sequence[int], starts: Sequence[int], tokens: Tokens, last_only: bool) -> Tensor:
        for slot in slots:
            self._forget_nodes(slot)
        real = _real(tokens)
        positions = np.array(starts)[:, None] + np.arange(real.shape[1])
        ends = real & ~np.pad(real, ((0, 0), (0, 1)))[:, 1:]
        owners = [[slot] for slot, chain in zip(slots, tokens, strict=True) for _ in chain]
        asked = ends[real] if last_only else np.ones(len(owners), dtype=bool)
        logits = self._context.decode(_joined(tokens), positions[real], owners, asked)
        return torch.from_numpy(logits)[:, None] if last_only else _spread(logits, real)

    def _nodes(self, slots: Sequence[int], nodes: Nodes) -> Tensor:
        owners: list[list[int]] = []
        for row, (slot, start, new) in enumerate(zip(slots, nodes.starts, nodes.tokens, strict=True)):
            trunk = len(self.held(slot))
            if start == trunk:
                self._forget_nodes(slot)
            growing = self._growing.setdefault(slot, GrowingNodes(slot, trunk))
            seen = ~nodes.hidden[row, : len(new)]
            owners += growing.grow(start, nodes.positions[row, : len(new)], seen, self._sequences.branch)
        real, asked = _real(nodes.tokens), np.ones(len(owners), dtype=bool)
        logits = self._context.decode(_joined(nodes.tokens), nodes.positions[real], owners, asked)
        return _spread(logits, real)

    def _take_over(self, slots: Sequence[int], columns: Tokens) -> None:
        """The slot takes part in the path's cells, all other nodes are forgotten."""
        for slot, path in zip(slots, columns, strict=True):
            if path:
                if slot not in self._growing:
                    raise AuditError(f"slot {slot} has no nodes to adopt")
                end = len(self.held(slot))
                self._context.copy(self._growing[slot].holder(path), slot, end, end + len(path))
            self._forget_nodes(slot)

    def _open(self, tree: Tree) -> list[list[int]]:
        """[R] the sequence of each branch."""
        for slot in tree.slots:
            self._forget_nodes(slot)
        self._sequences.check_room(sum(tree.counts))
        return [
            [self._sequences.branch(slot, fork + 1) for fork in row]
            for slot, row in zip(tree.slots, tree.forks, strict=True)
        ]

    def _branches(self, tree: Tree, tokens: Tensor) -> Tensor:
        real = _real(tree.forks)
        owners = [[sequence] for row in tree.kept for sequence in row]
        positions = _joined(tree.forks) + 1 + tree.steps
        asked = np.ones(len(owners), dtype=bool)
        return _spread(self._context.decode(tokens.numpy()[real], positions, owners, asked), real)

    def _forget_nodes(self, slot: int) -> None:
        nodes = self._growing.pop(slot, None)
        if nodes is not None:
            self._sequences.give_back(nodes.sequences)


def _real(rows: Tokens) -> BoolArray:
    """[R, n] whether a row has an n-th entry."""
    counts = np.array([len(row) for row in rows])
    real: BoolArray = np.arange(counts.max()) < counts[:, None]
    return real


def _joined(rows: Tokens) -> IntArray:
    """All rows' entries, one row after the other."""
    return np.array([entry for row in rows for entry in row], dtype=np.int64)


def _spread(logits: Logits, real: BoolArray) -> Tensor:
    """[R, n, V] from the [m, V] of those that are `real` [R, n], in order; zeros elsewhere."""
    if real.all():
        return torch.from_numpy(logits).view(*real.shape, -1)
    spread = torch.zeros((*real.shape, logits.shape[-1]))
    spread[torch.from_numpy(real)] = torch.from_numpy(logits)
    return spread


class Sequences:
    """Slots have the sequences of their own numbers; branches take the highest ones that are `free`."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self.free = list(range(context.sequences))

    def claim(self, slot: int) -> None:
        """Take the sequence of a slot's number, for good; a `ModelError` if it is not free."""
        if slot not in self.free:
            raise ModelError(f"llama.cpp keeps {self._context.sequences} sequences, none for slot {slot}")
        self.free.remove(slot)

    def branch(self, source: int, length: int) -> int:
        """A sequence that begins with the first `length` tokens of another one."""
        self.check_room(1)
        branch = self.free.pop()
        self._context.copy(source, branch, 0, length)
        return branch

    def check_room(self, count: int) -> None:
        """Refuse more sequences than are free (`ModelError`)."""
        if count > len(self.free):
            raise ModelError(
                f"llama.cpp keeps {self._context.sequences} sequences, {count} more are asked for and "
                f"{len(self.free)} are free: use fewer rows at once, or fewer branches (--fanout)"
            )

    def give_back(self, branches: Sequence[int]) -> None:
        """Forget branches."""
        for branch in branches:
            self._context.remove(branch)
        self.free.extend(reversed(branches))


Branch: TypeAlias = Callable[[int, int], int]
"""Makes a sequence that begins as another one does: its number, and so many tokens of it."""


@dataclass
class GrowingNodes:
    """The nodes behind what a slot holds; a node is named by its column.

    Attributes:
        slot: Whose.
        trunk: T, tokens that the slot holds.
        parents: Of each node; T - 1 where it hangs on the trunk.
        holders: A sequence that holds each node.
        tips: The node at which each sequence ends.
    """

    slot: int
    trunk: int
    parents: dict[int, int] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    tips: dict[int, int] = field(default_factory=dict)

    @property
    def sequences(self) -> list[int]:
        """All that its nodes are in."""
        return list(self.tips)

    def path(self, node: int) -> list[int]:
        """From the trunk to a node, itself included."""
        nodes = []
        while node >= self.trunk:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def holder(self, path: Sequence[int]) -> int:
        """The sequence that holds a path from the trunk on; an `AuditError` if it is none."""
        if path[-1] not in self.parents or self.path(path[-1]) != list(path):
            raise AuditError(f"the columns {list(path)} of slot {self.slot} are no path from its trunk on")
        return self.holders[path[-1]]

    def grow(self, start: int, positions: IntArray, seen: BoolArray, branch: Branch) -> list[list[int]]:
        """Add nodes in the columns from `start` on.

        Args:
            start: T plus the number of nodes there are.
            positions: [n] of each new node.
            seen: [n, L] columns that each new node sees.
            branch: Makes further sequences.

        Returns:
            [n] sequences that each new node belongs to.

        Raises:
            AuditError: The columns do not follow on those there are.
            ModelError: A node does not see the whole trunk and one path.
        """
        if start != self.trunk + len(self.parents):
            raise AuditError(f"slot {self.slot} has {len(self.parents)} nodes, the next is not at {start}")
        new = range(start, start + len(positions))
        for node, position, row in zip(new, positions.tolist(), seen, strict=True):
            self._add(node, position, np.flatnonzero(row).tolist())
        inner = {self.parents[node] for node in new}
        owners: dict[int, list[int]] = {node: [] for node in new}
        for leaf in (node for node in new if node not in inner):
            path = self.path(leaf)
            sequence = self._sequence_of([node for node in path if node < start], branch)
            self.tips[sequence] = leaf
            for node in path:
                if node >= start:
                    owners[node].append(sequence)
                    self.holders[node] = sequence
        return list(owners.values())

    def _add(self, node: int, position: int, columns: list[int]) -> None:
        """Note a node that sees some columns, itself among them."""
        path = columns[self.trunk :]
        parent = path[-2] if len(path) > 1 else self.trunk - 1
        whole = columns[: self.trunk] == list(range(self.trunk)) and path[-1:] == [node]
        if not whole or self.path(parent) != path[:-1] or position != self.trunk + len(path) - 1:
            raise ModelError(
                f"node {node} of slot {self.slot} sees {columns} from position {position}: llama.cpp can "
                "only show the whole trunk and the path to the node"
            )
        self.parents[node] = parent

    def _sequence_of(self, old: Sequence[int], branch: Branch) -> int:
        """The sequence of a new leaf behind a path of old nodes: one that ended there, or a copy."""
        for sequence, tip in self.tips.items():
            if old and tip == old[-1]:
                return sequence
        return branch(self.holders[old[-1]] if old else self.slot, self.trunk + len(old))


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
        sequences: How many there can be, numbered from 0.

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
        """[m, V] logits of the tokens that are `wanted` [n], of those fed in one call; a copy.

        Args:
            tokens: [n] ids.
            positions: [n] each sequence's go on from where it ends.
            sequences: [n] those that each token belongs to, at least one.
            wanted: [n].

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
    """Compare the logits of a random text with those of the model, in single precision on the CPU.

    The context is empty before and afterwards.

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


def open_runner(spec: WorkerSpec) -> LlamacppRunner:
    """From a GGUF in the user's cache, made where it is not there; of a hub's model, made each time."""
    import_llamacpp()  # refused before anything is written
    from calibrate.live.backends.gguf import export_gguf

    precision = own_precision(spec.backend)
    assert precision is not None, "checked by the spec"
    model = load_model(spec.model, trust_remote_code=spec.trust_remote_code)
    with tempfile.TemporaryDirectory() as temporary:
        kept = is_local_model(spec.model)
        file = gguf_file(spec.model, precision) if kept else Path(temporary) / "model.gguf"
        if not file.is_file():
            export_gguf(model, file, precision)
        return LlamacppRunner(
            model,
            file,
            precision,
            slots=spec.slots,
            capacity=spec.capacity,
            threads=len(spec.cores),
        )
