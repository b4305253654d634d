"""Forwards over static slots: ragged chains, branches that grow side by side, and nodes of any shape."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.engine.compiled import Feed
from calibrate.live.engine.runner import Nodes, Runner, Tokens, Tree, padded
from calibrate.live.engine.slots import Plan, SlotLayout, SlotRange, allocate
from calibrate.live.errors import AuditError

SHORT = 8
"""Chains up to this long get all their logits, also where the last ones alone are asked for: the model's head
is cheap beside what a graph saves, and graphs know no other way."""
LEAST = 2
"""Columns of the smallest cache: a size of one is a case of its own for a compiler."""


class Branches(NamedTuple):
    """What a tree is in the cache.

    Attributes:
        column: T, where the branches' tokens are kept: after the longest trunk, in every row.
        span: Where in the cache the rows lie.
        positions: [R, N] position ids of the first tokens, in the order of the cache.
        mask: [R, 1, N, T + depth * N] additive; 0 where a branch may look; rows in the order of the cache.
    """

    column: int
    span: SlotRange
    positions: Tensor
    mask: Tensor


class SlotForwards(Runner):
    """Forwards over static slots, by whatever `_call` computes.

    Args:
        model: Any decoder-only model of transformers whose layers all use full attention.
        slots: Slots to allocate.
        capacity: Tokens per slot to allocate, trees included.

    Raises:
        ModelError: The model's cache cannot be rolled back (sliding windows, recurrent layers).
    """

    def __init__(self, model: PreTrainedModel, *, slots: int = 1, capacity: int = 512) -> None:
        super().__init__(model, slots=slots, capacity=capacity)
        self._cache = allocate(self.model, slots, max(capacity, LEAST))
        self._layout = SlotLayout()

    @abstractmethod
    def _call(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, keep: int | Tensor = 0
    ) -> Tensor:
        """Feed tokens to the model, which writes and reads its cache as `plan` says.

        Args:
            ids: [R, n] tokens, in the order of the cache's rows.
            positions: [R, n].
            mask: [R or 1, 1, n, L] additive; None where plain causal attention will do.
            plan: Where keys and values go.
            keep: Compute the logits of the last so many tokens only, or of those at these offsets; 0: of all.

        Returns:
            [R, n or kept, V] logits.
        """

    def _resize(self) -> None:
        self._cache = self._cache.grown(self.slots, max(self.capacity, LEAST))

    def _fill_random(self, slots: Sequence[int], context: int) -> None:
        self._cache.fill_random([self._layout.row(slot) for slot in slots], context)

    def _chains(self, slots: Sequence[int], starts: Sequence[int], tokens: Tokens, last_only: bool) -> Tensor:
        span = self._side_by_side(slots)
        chains = span.ordered(tokens)
        counts = [len(chain) for chain in chains]
        plan, positions, mask = self._chain(span.rows, span.ordered(starts), counts)
        ids = self._tensor(padded(chains))
        if not last_only:
            logits = self._call(ids, positions, mask, plan)
        elif max(counts) <= SHORT:
            logits = _ends(self._call(ids, positions, mask, plan), counts)
        else:  # computed at no more positions than there are ends
            ends = sorted({count - 1 for count in counts})
            keep = 1 if len(ends) == 1 else self._tensor(ends)
            logits = self._call(ids, positions, mask, plan, keep=keep)
            logits = _ends(logits, [1 + ends.index(count - 1) for count in counts])
        return span.back(logits)

    def _chain(
        self, rows: slice, starts: Sequence[int], counts: Sequence[int]
    ) -> tuple[Plan, Tensor, Tensor | None]:
        """Plan, [R, n] positions and mask of chains of `counts` tokens at `starts`."""
        width, length = max(counts), max(starts) + max(counts)
        offsets = torch.arange(width, device=self.device)
        if min(starts) == max(starts):
            positions = (offsets + starts[0])[None].expand(len(starts), -1)
            # A single token sees all there is; with an empty cache the model's own causal mask will do.
            # Both keep the kernels that plain decoding uses.
            mask = None if width == 1 or starts[0] == 0 else self._causal(positions[:1], length)
            return Plan(rows, starts[0], length), positions, mask
        columns = self._tensor(starts)[:, None] + offsets
        positions = columns
        if self._most is not None and length > self._most:  # padding only; the chains are checked before
            positions = columns.clamp(max=self._most - 1)
        return Plan(rows, min(starts), length, columns), positions, self._causal(columns, length)

    def _nodes(self, slots: Sequence[int], nodes: Nodes) -> Tensor:
        span = self._side_by_side(slots)
        ids = self._tensor(padded(span.ordered(nodes.tokens)))
        return span.back(self._call(ids, *self._laid(span, nodes)))

    def _laid(self, span: SlotRange, nodes: Nodes) -> tuple[Tensor, Tensor, Plan]:
        """Positions, mask and plan of a forward over nodes."""
        starts, count, length = nodes.starts, nodes.positions.shape[1], nodes.hidden.shape[2]
        columns = None
        if min(starts) < max(starts):
            begins = self._tensor(span.ordered(starts))
            columns = begins[:, None] + torch.arange(count, device=self.device)
        mask = self._additive(span.put(torch.from_numpy(nodes.hidden).to(self.device)))[:, None]
        places = span.put(torch.from_numpy(nodes.positions).to(self.device))
        return places, mask, Plan(span.rows, min(starts), length, columns)

    def _take_over(self, slots: Sequence[int], columns: Tokens) -> None:
        ends, most = self._lengths(slots), max(map(len, columns))
        self._grow(0, max(ends) + most)  # shorter paths are padded
        targets = [list(range(end, end + most)) for end in ends]
        sources = [[*own, *to[len(own) :]] for own, to in zip(columns, targets, strict=True)]
        moved = [i for i in range(len(slots)) if sources[i] != targets[i]]
        if moved:
            self._cache.move(
                self._tensor([self._layout.row(slots[i]) for i in moved]),
                self._tensor([sources[i] for i in moved]),
                self._tensor([targets[i] for i in moved]),
            )

    def _open(self, tree: Tree) -> Branches:
        span = self._side_by_side(tree.slots)
        forks = self._tensor(padded(span.ordered(tree.forks), -1))
        # All rows keep their branches in the same columns, so that one slice of one mask serves each step.
        column = max(tree.trunks)
        return Branches(column, span, forks + 1, self._tree_mask(forks, column, tree.depth))

    def _branches(self, tree: Tree, tokens: Tensor) -> Tensor:
        branches: Branches = tree.kept
        span = branches.span
        if self._layout.moves(tree.slots) or self._range_of(tree.slots) != span:
            raise AuditError("the rows of a tree were moved before it was done")
        start = branches.column + tree.steps * tree.branches
        plan = Plan(span.rows, start, start + tree.branches)
        mask = branches.mask[..., : plan.length]
        return span.back(self._call(span.put(tokens), branches.positions + tree.steps, mask, plan))

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        """[R, 1, N, T + depth * N]: a trunk of T columns up to the forks [R, N], a branch's own tokens."""
        rows, count = forks.shape
        unseen = torch.arange(trunk, device=self.device) > forks[..., None]
        siblings = ~torch.eye(count, dtype=torch.bool, device=self.device)
        hidden = torch.cat([unseen, siblings.repeat(1, depth).expand(rows, -1, -1)], dim=-1)
        return self._additive(hidden)[:, None]

    def _feed(self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan) -> Feed:
        """The inputs of `_call` with everything spelled out."""
        rows, count = ids.shape[:2]  # hidden states in place of ids have one more
        columns = plan.columns
        if columns is None:
            columns = torch.arange(plan.start, plan.start + count, device=self.device).expand(rows, -1)
        if mask is None:
            mask = self._causal(columns, max(plan.length, LEAST))
        return Feed(ids, positions, columns, mask.expand(rows, -1, -1, -1))

    def _causal(self, columns: Tensor, length: int) -> Tensor:
        """[R, 1, n, L] additive: what a token at `columns` [R, n] may look at."""
        return self._additive(torch.arange(length, device=self.device) > columns[..., None])[:, None]

    def _additive(self, hidden: Tensor) -> Tensor:
        """Zero, or the least number where `hidden`.

        Additive rather than boolean: eager attention adds a mask, so that a boolean one would silently
        hide nothing.
        """
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(hidden, torch.finfo(self.dtype).min)

    def _side_by_side(self, slots: Sequence[int]) -> SlotRange:
        """Make the rows of some slots lie side by side."""
        for one, other in self._layout.moves(slots):
            held = [len(self._held.get(self._layout.slot(row), ())) for row in (one, other)]
            self._cache.swap(one, other, (held[0], held[1]))
            self._layout.swap(one, other)
        return self._range_of(slots)

    def _range_of(self, slots: Sequence[int]) -> SlotRange:
        """Where slots lie whose rows are side by side."""
        rows = [self._layout.row(slot) for slot in slots]
        order = tuple(sorted(range(len(rows)), key=rows.__getitem__))
        start = min(rows)
        return SlotRange(slice(start, start + len(rows)), None if order == tuple(range(len(rows))) else order)


def _ends(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """[R, 1, V] the logits [R, n, V] at the end of each row's `counts` [R] tokens."""
    if min(counts) == logits.shape[1]:
        return logits[:, -1:]
    ends = torch.tensor(counts, dtype=torch.long, device=logits.device) - 1
    return logits[torch.arange(len(counts), device=logits.device), ends][:, None]
