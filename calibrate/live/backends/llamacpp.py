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
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.backends.installed import gguf_file, import_llamacpp
from calibrate.live.backends.llamacpp_context import LlamaContext, check_context
from calibrate.live.engine.forwards import Tree
from calibrate.live.engine.slots import SlotRange, SlotTexts
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.loading import load_model
from calibrate.live.placement import WorkerSpec, is_local_model, own_precision
from policies.values import BoolArray, IntArray


@dataclass
class BranchTree(Tree):
    """A tree whose branches are sequences.

    Attributes:
        depth: Most steps.
        sequences: [R] those of each row's branches.
    """

    depth: int = 1
    sequences: tuple[tuple[int, ...], ...] = ()


class LlamacppRunner(SlotTexts):
    """Runs a GGUF file by llama.cpp, whose sequences are the slots.

    Args:
        model: The torch model of the same weights, in single precision; it tells the architecture, and what
            the file computes is compared with it.  It is not needed any more afterwards.
        file: The GGUF; may be removed afterwards.
        precision: Of the file: `fp32`, `fp16`, `q8_0` or `q4_0`.  Keys, values and attention are in single
            precision for the first, in half precision for all others.
        slots: Slots to allocate.
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
        self._size = (slots, capacity)
        self._context = LlamaContext(file, cells=slots * capacity, threads=threads, half=precision != "fp32")
        check_context(self._context, model, precision)
        self._sequences = Sequences(self._context)
        self._nodes: dict[int, Nodes] = {}

    @property
    def slots(self) -> int:
        """Slots that there is room for."""
        return self._size[0]

    @property
    def capacity(self) -> int:
        """Tokens per slot that there is room for."""
        return self._size[1]

    def reset(self, slot: int) -> None:
        """Forget what a slot holds.

        Raises:
            ModelError: llama.cpp has no sequence of that number.
        """
        self._forget_nodes(slot)
        if slot >= 0 and slot not in self._held:
            self._sequences.claim(slot)
        super().reset(slot)
        self._context.remove(slot)

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot; nothing is moved."""
        held = len(self.held(slot))
        super().rollback(slot, length)
        self._forget_nodes(slot)
        if length < held:
            self._context.remove(slot, length)

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
        """As `SlotForwards.forward`."""
        if len(slots) != len(tokens) or not all(tokens):
            raise AuditError(f"{len(slots)} slots need as many chains, none empty: {tokens}")
        self._check_slots(slots)
        starts, counts = self._lengths(slots), [len(chain) for chain in tokens]
        self._check_positions(max(map(sum, zip(starts, counts, strict=True))))
        self._grow(0, max(starts) + max(counts))
        for slot in slots:
            self._forget_nodes(slot)
        real = np.arange(max(counts)) < np.array(counts)[:, None]
        positions = (np.array(starts)[:, None] + np.arange(max(counts)))[real]
        owners = [[slot] for slot, count in zip(slots, counts, strict=True) for _ in range(count)]
        ids = np.concatenate([np.array(chain) for chain in tokens])
        wanted = np.ones(len(ids), dtype=bool)
        if last_only:
            wanted[:] = False
            wanted[np.cumsum(counts) - 1] = True
        logits = self._context.decode(ids, positions, owners, wanted)
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)
        self.fed += sum(counts)
        return torch.from_numpy(logits)[:, None] if last_only else _padded(logits, real)

    def open_tree(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> Tree:
        """As `SlotForwards.open_tree`.

        Raises:
            ModelError: There are fewer sequences than branches.
        """
        self._check_slots(slots)
        trunks = self._check_forks(slots, forks, depth)
        width = max(len(row) for row in forks)
        self._grow(0, max(trunks) + depth * width)
        for slot in slots:
            self._forget_nodes(slot)
        self._sequences.check_room(sum(map(len, forks)))
        sequences = [
            tuple(self._sequences.branch(slot, fork + 1) for fork in row)
            for slot, row in zip(slots, forks, strict=True)
        ]
        at = self._tensor([[*row, *[-1] * (width - len(row))] for row in forks])
        return BranchTree(
            slots=tuple(slots),
            trunks=tuple(trunks),
            counts=tuple(len(row) for row in forks),
            column=max(trunks),
            span=SlotRange(slice(0, len(slots))),
            positions=at + 1,
            mask=torch.empty(0),
            depth=depth,
            sequences=tuple(sequences),
        )

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """As `SlotForwards.tree_forward`."""
        assert isinstance(tree, BranchTree), "from `open_tree`"
        self._audit_tree(tree)
        if tree.steps >= tree.depth:
            raise AuditError(f"the tree was opened for {tree.steps} steps")
        real = np.arange(tree.branches) < np.array(tree.counts)[:, None]
        owners = [[sequence] for row in tree.sequences for sequence in row]
        positions = tree.positions.numpy()[real] + tree.steps
        wanted = np.ones(len(owners), dtype=bool)
        logits = self._context.decode(tokens.numpy()[real], positions, owners, wanted)
        tree.steps += 1
        self.fed += len(owners)
        return _padded(logits, real)

    def close_tree(self, tree: Tree) -> None:
        """Forget the branches; the trunks stay."""
        assert isinstance(tree, BranchTree), "from `open_tree`"
        self._audit_tree(tree)
        tree.closed = True
        self._sequences.give_back([sequence for row in tree.sequences for sequence in row])

    def forward_at(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """As `SlotForwards.forward_at`, for tokens that see the whole trunk and a path of nodes behind it.

        Raises:
            ModelError: Another mask, which llama.cpp has no way to say, or too few sequences.
        """
        self._check_slots(slots)
        self._check_positions(1 + int(positions.max()))
        self._grow(0, max(hidden.shape[2], max(starts) + positions.shape[1]))
        owners: list[list[int]] = []
        for row, (slot, start) in enumerate(zip(slots, starts, strict=True)):
            trunk = len(self.held(slot))
            if start == trunk:
                self._forget_nodes(slot)
            nodes = self._nodes.setdefault(slot, Nodes(slot, trunk))
            count = len(tokens[row])
            seen = ~hidden[row, :count]
            owners += grow_nodes(nodes, start, positions[row, :count], seen, self._sequences.branch)
        real = np.arange(positions.shape[1]) < np.array([len(row) for row in tokens])[:, None]
        ids = np.array([token for row in tokens for token in row])
        logits = self._context.decode(ids, positions[real], owners, np.ones(len(ids), dtype=bool))
        self.fed += len(ids)
        return _padded(logits, real)

    def adopt(
        self, slots: Sequence[int], columns: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]
    ) -> None:
        """As `SlotForwards.adopt`: the slot takes part in the path's cells, all other nodes are forgotten."""
        for slot, path, chain in zip(slots, columns, tokens, strict=True):
            nodes = self._nodes.get(slot)
            if path:
                if nodes is None:
                    raise AuditError(f"slot {slot} has no nodes to adopt")
                end = len(self.held(slot))
                self._context.copy(nodes.holder(path), slot, end, end + len(path))
            self._forget_nodes(slot)
            self._held[slot].extend(chain)

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with `context` random tokens each, for probes; they are fed, but not counted."""
        self._grow(max(slots) + 1, context)
        for slot in slots:
            self.reset(slot)
            self._held[slot] = [0] * context
            if context:
                ids = np.random.default_rng(slot).integers(self._context.vocabulary, size=context)
                nobody = np.zeros(context, dtype=bool)
                nobody[-1] = True  # llama.cpp wants to be asked for something
                self._context.decode(ids, np.arange(context), [[slot]] * context, nobody)

    def _forget_nodes(self, slot: int) -> None:
        nodes = self._nodes.pop(slot, None)
        if nodes is not None:
            self._sequences.give_back(nodes.sequences)

    def _grow(self, slots: int, capacity: int) -> None:
        more = self._doubled(self.slots, slots), self._doubled(self.capacity, capacity)
        if more != self._size:
            self._size = more
            if more[0] * more[1] > self._context.cells:
                self._context.grow(more[0] * more[1])

    def _audit_tree(self, tree: Tree) -> None:
        trunks = self._lengths(tree.slots)
        if tree.closed or tuple(trunks) != tree.trunks:
            raise AuditError(f"a tree over trunks of {tree.trunks} tokens, closed or not these: {trunks}")


def _padded(logits: NDArray[np.float32], real: BoolArray) -> Tensor:
    """[R, n, V] from the [m, V] of those that are `real` [R, n], in order; zeros elsewhere."""
    if real.all():
        return torch.from_numpy(logits).view(*real.shape, -1)
    padded = torch.zeros((*real.shape, logits.shape[-1]))
    padded[torch.from_numpy(real)] = torch.from_numpy(logits)
    return padded


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
        found = []
        while node >= self.trunk:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def holder(self, path: Sequence[int]) -> int:
        """The sequence that holds a path from the trunk on.

        Raises:
            AuditError: It is none.
        """
        if path[-1] not in self.parents or self.path(path[-1]) != list(path):
            raise AuditError(f"the columns {list(path)} of slot {self.slot} are no path from its trunk on")
        return self.holders[path[-1]]


def grow_nodes(
    nodes: Nodes,
    start: int,
    positions: IntArray,
    seen: BoolArray,
    branch: Branch,
) -> list[list[int]]:
    """Add nodes in the columns from `start` on.

    Args:
        nodes: To which.
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
    if start != nodes.trunk + len(nodes.parents):
        raise AuditError(f"slot {nodes.slot} has {len(nodes.parents)} nodes, the next is not at {start}")
    new = range(start, start + len(positions))
    for node, position, row in zip(new, positions.tolist(), seen, strict=True):
        _add(nodes, node, position, np.flatnonzero(row).tolist())
    inner = {nodes.parents[node] for node in new}
    owners: dict[int, list[int]] = {node: [] for node in new}
    for leaf in (node for node in new if node not in inner):
        sequence = _sequence_of(nodes, leaf, start, branch)
        for node in nodes.path(leaf):
            if node >= start:
                owners[node].append(sequence)
                nodes.holders[node] = sequence
    return list(owners.values())


def _add(nodes: Nodes, node: int, position: int, columns: list[int]) -> None:
    """Note a node that sees some columns, itself among them."""
    path = columns[nodes.trunk :]
    parent = path[-2] if len(path) > 1 else nodes.trunk - 1
    whole = columns[: nodes.trunk] == list(range(nodes.trunk)) and path[-1:] == [node]
    if not whole or nodes.path(parent) != path[:-1] or position != nodes.trunk + len(path) - 1:
        raise ModelError(
            f"node {node} of slot {nodes.slot} sees {columns} from position {position}: llama.cpp can only "
            "show the whole trunk and the path to the node"
        )
    nodes.parents[node] = parent


def _sequence_of(nodes: Nodes, leaf: int, start: int, branch: Branch) -> int:
    """The sequence that a new leaf ends: one that ended at its last old ancestor, or a copy."""
    old = [node for node in nodes.path(leaf) if node < start]
    ended = next((s for s, tip in nodes.tips.items() if old and tip == old[-1]), None)
    if ended is None:
        ended = branch(nodes.holders[old[-1]] if old else nodes.slot, nodes.trunk + len(old))
    nodes.tips[ended] = leaf
    return ended


def open_runner(spec: WorkerSpec) -> LlamacppRunner:
    """From a GGUF in the user's cache, made where it is not there; of a hub's model, made each time."""
    import_llamacpp()  # refused before anything is written
    from calibrate.live.backends.gguf import export_gguf

    local, precision = is_local_model(spec.model), own_precision(spec.backend)
    assert precision is not None, "checked by the spec"
    model = load_model(spec.model, local=local, trust_remote_code=spec.trust_remote_code)
    with tempfile.TemporaryDirectory() as temporary:
        file = gguf_file(spec.model, precision) if local else Path(temporary) / "model.gguf"
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
