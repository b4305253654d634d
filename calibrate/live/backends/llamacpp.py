"""llama.cpp on the CPU: forwards over slots from a GGUF file of the same weights.

A slot is a sequence of llama.cpp with the slot's number.  Each branch of a tree, and each leaf of a tree that
grows node by node, is a further sequence that shares the cells of its trunk; those have the highest numbers.

llama.cpp takes no mask.  A token belongs to sequences and sees what its sequence holds; so a node belongs to
the sequences of all leaves below it.  Where a node of an earlier call gets several children, the first takes
up the sequence that ends there, and each other one a copy of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.backends.installed import gguf_file, import_llamacpp
from calibrate.live.backends.llamacpp_context import LlamaContext, Logits, check_context
from calibrate.live.engine.runner import Runner, Tokens, Tree
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.loading import load_model
from calibrate.live.placement import WorkerSpec, is_local_model, own_precision
from policies.values import BoolArray, IntArray


class LlamacppRunner(Runner):
    """Runs a GGUF file by llama.cpp, whose sequences are the slots.

    Args:
        model: The torch model of the same weights, in single precision; it tells the architecture, and what
            the file computes is compared with it.  It is not needed any more afterwards.
        file: The GGUF; may be removed afterwards.
        precision: Of the file: `fp32`, `fp16`, `q8_0` or `q4_0`.  Keys, values and attention are in single
            precision for the first, in half precision for all others.
        slots: Slots to allocate; llama.cpp has a sequence for each of so many at most.
        capacity: Tokens per slot to allocate, trees included.
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
        self._nodes_of: dict[int, Nodes] = {}

    def reset(self, slot: int) -> None:
        """See `Runner.reset`.

        Raises:
            ModelError: llama.cpp has no sequence of that number.
        """
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

    def _nodes(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Tokens,
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        owners: list[list[int]] = []
        for row, (slot, start, new) in enumerate(zip(slots, starts, tokens, strict=True)):
            trunk = len(self.held(slot))
            if start == trunk:
                self._forget_nodes(slot)
            nodes = self._nodes_of.setdefault(slot, Nodes(slot, trunk))
            seen = ~hidden[row, : len(new)]
            owners += nodes.grow(start, positions[row, : len(new)], seen, self._sequences.branch)
        real = _real(tokens)
        asked = np.ones(len(owners), dtype=bool)
        return _spread(self._context.decode(_joined(tokens), positions[real], owners, asked), real)

    def _take_over(self, slots: Sequence[int], columns: Tokens) -> None:
        """The slot takes part in the path's cells, all other nodes are forgotten."""
        for slot, path in zip(slots, columns, strict=True):
            if path:
                if slot not in self._nodes_of:
                    raise AuditError(f"slot {slot} has no nodes to adopt")
                end = len(self.held(slot))
                self._context.copy(self._nodes_of[slot].holder(path), slot, end, end + len(path))
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
        nodes = self._nodes_of.pop(slot, None)
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
    """Slots have the sequences of their own numbers; branches take the highest ones that nobody uses.

    Args:
        context: Where they are kept.

    Attributes:
        free: What nobody uses.
    """

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self.free = list(range(context.sequences))

    def claim(self, slot: int) -> None:
        """Take the sequence of a slot's number, for good.

        Raises:
            ModelError: There is none, or a branch has it.
        """
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
        """Refuse more sequences than nobody uses.

        Raises:
            ModelError: There are not so many.
        """
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
class Nodes:
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
        """The sequence that holds a path from the trunk on.

        Raises:
            AuditError: It is none.
        """
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
