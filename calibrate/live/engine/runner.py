"""What a backend gives the engine: a model over slots, and where it can, a look between layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.errors import AuditError, ModelError
from policies.values import BoolArray, IntArray

Tokens = Sequence[Sequence[int]]
"""Token ids of R rows, n_r each."""


@dataclass
class Tree:
    """Branches that grow from the trunks of R rows, one token each per step; see `Runner.open_tree`.

    Attributes:
        slots: [R] slots that hold the trunks.
        trunks: [R] tokens of each trunk.
        forks: [R] lists of forks.
        counts: [R] branches of each row that count as fed; the rest up to N is padding.
        depth: Most steps.
        kept: What the backend keeps of it.
        steps: Steps taken so far.
        closed: No more steps.
    """

    slots: tuple[int, ...]
    trunks: tuple[int, ...]
    forks: Tokens
    counts: tuple[int, ...]
    depth: int
    kept: Any = None
    steps: int = 0
    closed: bool = False

    @property
    def branches(self) -> int:
        """N, most branches of a row."""
        return max(map(len, self.forks))


class Nodes(NamedTuple):
    """Tokens of R rows with positions and a mask of their own, to be fed behind what slots hold.

    Attributes:
        starts: [R] column of each row's first token.
        tokens: [R] n_r tokens each, of which one at least has some.
        positions: [R, n] position of each token, n = max n_r; any where a row has fewer.
        hidden: [R, n, L] the columns that a token may not look at, with L > 1.
    """

    starts: Sequence[int]
    tokens: Tokens
    positions: IntArray
    hidden: BoolArray

    @property
    def columns(self) -> int:
        """Columns that they need."""
        return max(self.hidden.shape[2], max(self.starts) + self.positions.shape[1])


class Runner(ABC):
    """A causal language model over slots: ragged chains, rollbacks, branches, and nodes of any shape.

    It knows which tokens each slot holds and checks what is asked for; a backend computes.  A forward serves
    any set of slots, whatever each of them holds.  Memory grows by doubling when a slot number or a text asks
    for it; `slots` and `capacity` avoid that in the middle of a run.  `forwards.SlotForwards` does most of it
    for a backend whose keys and values are static buffers of torch.

    Args:
        model: Any decoder-only model of transformers.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.

    Attributes:
        model: The torch model, on `meta` where the backend has weights of its own.
        device: Where logits lie.
        fed: Tokens that went through the model so far, summed over rows, without padding; the measure of
            recomputation.
    """

    def __init__(self, model: PreTrainedModel, *, slots: int = 1, capacity: int = 512) -> None:
        if slots < 1 or capacity < 1:
            raise ValueError(f"slots and capacity must be at least 1, got {slots} and {capacity}")
        self.model: Any = model.eval()
        self.config: Any = model.config
        self.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.slots, self.capacity = slots, capacity
        self.fed = 0
        self._held: dict[int, list[int]] = {}
        self._most: int | None = getattr(self.config.get_text_config(), "max_position_embeddings", None)

    # -- what slots hold ----------------------------------------------------------------------------------

    def reset(self, slot: int) -> None:
        """Forget what a slot holds."""
        if slot < 0:
            raise AuditError(f"slots are numbered from 0, got {slot}")
        self._grow(slot + 1, 0)
        self._held[slot] = []

    def held(self, slot: int) -> list[int]:
        """Token ids whose keys and values a slot holds; not to be changed."""
        try:
            return self._held[slot]
        except KeyError:
            raise AuditError(f"slot {slot} was never prefilled") from None

    def rollback(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of a slot; nothing is moved.

        Raises:
            AuditError: The slot holds fewer.
        """
        held = self.held(slot)
        if not 0 <= length <= len(held):
            raise AuditError(f"slot {slot} holds {len(held)} tokens, cannot roll back to {length}")
        del held[length:]

    def install_synthetic(self, slots: Sequence[int], context: int) -> None:
        """Fill slots with random keys and values of `context` tokens, for probes; nothing counts as fed."""
        self._grow(max(slots) + 1, context)
        for slot in slots:
            self.reset(slot)
            self._held[slot] = [0] * context
        self._fill_random(slots, context)

    # -- forwards -----------------------------------------------------------------------------------------

    def warm(self, shapes: Sequence[tuple[int, int]]) -> float:
        """Compile what forwards of (rows, new tokens per row) need, ahead of time; the seconds that it took.

        Raises:
            ModelError: The model cannot be compiled.
        """
        return 0.0

    def forward(self, slots: Sequence[int], tokens: Tokens, *, last_only: bool = False) -> Tensor:
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
        _check_different(slots)
        starts, counts = self._lengths(slots), [len(chain) for chain in tokens]
        self._check_positions(max(map(sum, zip(starts, counts, strict=True))))
        self._grow(0, max(starts) + max(counts))
        logits = self._chains(slots, starts, tokens, last_only)
        self._hold(slots, tokens)
        self.fed += sum(counts)
        return logits

    def forward_at(self, slots: Sequence[int], nodes: Nodes) -> Tensor:
        """Feed tokens behind what different slots hold, with positions and a mask of the caller's.

        Nothing is held from it.

        Returns:
            [R, n, V] logits.

        Raises:
            ModelError: The backend has no such mask (llama.cpp shows the whole trunk and a path of nodes).
        """
        _check_different(slots)
        self._check_positions(1 + int(nodes.positions.max()))
        self._grow(0, nodes.columns)
        logits = self._nodes(slots, nodes)
        self.fed += sum(map(len, nodes.tokens))
        return logits

    def adopt(self, slots: Sequence[int], columns: Tokens, tokens: Tokens) -> None:
        """Hold from now on what lies at some columns, moved to where each slot's tokens end.

        Args:
            slots: [R] different slots.
            columns: [R] columns in the order of their tokens, not before the slot's end.
            tokens: [R] the tokens there.
        """
        self._take_over(slots, columns)
        self._hold(slots, tokens)

    def open_tree(self, slots: Sequence[int], forks: Tokens, depth: int) -> Tree:
        """Prepare branches over the trunks that slots hold.

        Args:
            slots: [R] different slots.
            forks: [R] lists of N_r forks: the index of the last trunk token that a branch sees, -1 for
                none.  A row may have no branch; not all of them.
            depth: Most steps the tree will take.

        Raises:
            AuditError: A fork does not lie in its trunk.
            ModelError: A branch outgrows the model's positions, or the backend cannot have so many.
        """
        _check_different(slots)
        trunks = self._lengths(slots)
        if len(slots) != len(forks) or not any(forks) or depth < 1:
            raise AuditError(f"a tree needs branches and a depth: {len(slots)} slots, {forks}, {depth}")
        for trunk, row in zip(trunks, forks, strict=True):
            if row and (min(row) < -1 or max(row) >= trunk):
                raise AuditError(f"forks {list(row)} do not lie in a trunk of {trunk} tokens")
            self._check_positions(max(row, default=-1) + 1 + depth)
        tree = Tree(tuple(slots), tuple(trunks), forks, tuple(map(len, forks)), depth)
        self._grow(0, max(trunks) + depth * tree.branches)
        tree.kept = self._open(tree)
        return tree

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """[R, N, V] logits after the next token of every branch, fed in one forward.

        Args:
            tree: From `open_tree`.
            tokens: [R, N] ids; any id where a row has fewer branches.
        """
        self._audit_tree(tree)
        if tree.steps >= tree.depth:
            raise AuditError(f"the tree was opened for {tree.depth} steps")
        logits = self._branches(tree, tokens)
        tree.steps += 1
        self.fed += sum(tree.counts)
        return logits

    def close_tree(self, tree: Tree) -> None:
        """Forget the branches; the trunks stay."""
        self._audit_tree(tree)
        tree.closed = True

    # -- between layers -----------------------------------------------------------------------------------

    def showing(
        self, slots: Sequence[int], layer: int, see: Callable[[Tensor], None]
    ) -> AbstractContextManager[None]:
        """Within the block, forwards of some slots show `see` what leaves the first `layer` layers.

        Args:
            slots: [R].
            layer: From 1.
            see: Takes hidden states [R, n, H]; the layers after it wait until it returns.

        Raises:
            ModelError: The backend shows no hidden states.
        """
        raise self._blind()

    def forward_states(self, part: Any, slots: Sequence[int], states: Tensor, nodes: Nodes) -> Tensor:
        """[R, n, V] logits as of `forward_at`, through other layers over the same keys and values.

        `part` is these layers with a head, in the form of a model (`compiled.second_part`), and `states`
        [R, n, H] enter it in place of tokens.  Positions beyond the model's last one count as that.  Nothing
        counts as fed: only the caller knows which states are meant.

        Raises:
            ModelError: The backend takes no hidden states.
        """
        _check_different(slots)
        self._grow(0, nodes.columns)
        return self._states(part, slots, states, nodes)

    def _blind(self) -> ModelError:
        return ModelError(
            f"{type(self).__name__} shows no hidden states: early exits, and streams of a draft, need the "
            "backend 'torch'"
        )

    # -- what a backend does; arguments are checked, and there is room ------------------------------------

    @abstractmethod
    def _resize(self) -> None:
        """Make room for `slots` and `capacity`, which have grown."""

    @abstractmethod
    def _fill_random(self, slots: Sequence[int], context: int) -> None:
        """Random keys and values in the first `context` columns of some slots."""

    @abstractmethod
    def _chains(self, slots: Sequence[int], starts: Sequence[int], tokens: Tokens, last_only: bool) -> Tensor:
        """See `forward`; `starts` [R] tokens that each slot holds."""

    @abstractmethod
    def _nodes(self, slots: Sequence[int], nodes: Nodes) -> Tensor:
        """See `forward_at`."""

    def _states(self, part: Any, slots: Sequence[int], states: Tensor, nodes: Nodes) -> Tensor:
        """See `forward_states`."""
        raise self._blind()

    @abstractmethod
    def _take_over(self, slots: Sequence[int], columns: Tokens) -> None:
        """See `adopt`."""

    @abstractmethod
    def _open(self, tree: Tree) -> Any:
        """See `open_tree`; what the tree shall keep."""

    @abstractmethod
    def _branches(self, tree: Tree, tokens: Tensor) -> Tensor:
        """See `tree_forward`."""

    # -- checks and small help ----------------------------------------------------------------------------

    def _grow(self, slots: int, capacity: int) -> None:
        more = _doubled(self.slots, slots), _doubled(self.capacity, capacity)
        if more != (self.slots, self.capacity):
            self.slots, self.capacity = more
            self._resize()

    def _hold(self, slots: Sequence[int], tokens: Tokens) -> None:
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)

    def _lengths(self, slots: Sequence[int]) -> list[int]:
        return [len(self.held(slot)) for slot in slots]

    def _check_positions(self, length: int) -> None:
        if self._most is not None and length > self._most:
            raise ModelError(f"a text of {length} tokens outgrows the model's {self._most} positions")

    def _audit_tree(self, tree: Tree) -> None:
        trunks = self._lengths(tree.slots)
        if tree.closed or tuple(trunks) != tree.trunks:
            raise AuditError(f"a tree over trunks of {tree.trunks} tokens, closed or not these: {trunks}")

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


def padded(rows: Tokens, filler: int = 0) -> list[list[int]]:
    """[R, n] the rows, filled up to the length of the longest one."""
    width = max(map(len, rows))
    return [[*row, *[filler] * (width - len(row))] for row in rows]


def _check_different(slots: Sequence[int]) -> None:
    if not slots or len(set(slots)) != len(slots):
        raise AuditError(f"a forward needs different slots, got {list(slots)}")


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
