"""Forwards over slots: ragged chains, branches that grow side by side, and nodes of any shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrate.live.engine.slots import Plan, SlotRange, SlotRunner
from calibrate.live.errors import AuditError
from policies.values import BoolArray, IntArray

SHORT = 8
"""Chains up to this long get all their logits, also where the last ones alone are asked for: the model's head
is cheap beside what a graph saves, and graphs know no other way."""


@dataclass
class Tree:
    """Branches that grow from the trunks of R rows, one token each per step.

    Attributes:
        slots: [R] slots that hold the trunks.
        trunks: [R] tokens of each trunk.
        counts: [R] branches of each row; the rest up to N is padding.
        column: T, where the branches' tokens are kept: after the longest trunk, in every row.
        span: Where in the cache the rows lie.
        positions: [R, N] position ids of the next tokens, in the order of the cache.
        mask: [R, 1, N, T + depth * N] additive; 0 where a branch may look; rows in the order of the cache.
        steps: Steps taken so far.
        closed: No more steps.
    """

    slots: tuple[int, ...]
    trunks: tuple[int, ...]
    counts: tuple[int, ...]
    column: int
    span: SlotRange
    positions: Tensor
    mask: Tensor
    steps: int = 0
    closed: bool = False

    @property
    def branches(self) -> int:
        """N, most branches of a row."""
        return int(self.positions.shape[1])


class SlotForwards(SlotRunner):
    """Forwards over static slots, by whatever `_call` computes.

    A forward serves any set of slots, whatever each of them holds.  Buffers grow by doubling when a slot
    number or a text asks for it; give `slots` and `capacity` to avoid that in the middle of a run.
    """

    def forward(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], *, last_only: bool = False
    ) -> Tensor:
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
        self._check_slots(slots)
        span = self._side_by_side(slots)
        chains = span.ordered(tokens)
        starts = self._lengths(span.ordered(slots))
        counts = [len(chain) for chain in chains]
        self._check_positions(max(map(sum, zip(starts, counts, strict=True))))
        width = max(counts)
        self._grow(0, max(starts) + width)
        plan, positions, mask = self._chain(span.rows, starts, counts)
        ids = self._tensor([[*chain, *[0] * (width - len(chain))] for chain in chains])
        if last_only and width > SHORT:
            logits = self._last(ids, positions, mask, plan, counts)
        elif last_only:
            logits = _ends(self._call(ids, positions, mask, plan), counts)
        else:
            logits = self._call(ids, positions, mask, plan)
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)
        self.fed += sum(counts)
        return span.back(logits)

    def open_tree(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> Tree:
        """Prepare branches over the trunks that slots hold.

        Args:
            slots: [R] different slots.
            forks: [R] lists of N_r forks: the index of the last trunk token that a branch sees, -1 for
                none.  A row may have no branch; not all of them.
            depth: Most steps the tree will take.
        """
        self._check_slots(slots)
        trunks = self._check_forks(slots, forks, depth)
        width = max(map(len, forks))
        # All rows keep their branches in the same columns, so that one slice of one mask serves each step.
        column = max(trunks)
        self._grow(0, column + depth * width)
        span = self._side_by_side(slots)
        at = self._tensor([[*row, *[-1] * (width - len(row))] for row in span.ordered(forks)])
        counts = tuple(len(row) for row in forks)
        mask = self._tree_mask(at, column, depth)
        return Tree(tuple(slots), tuple(trunks), counts, column, span, at + 1, mask)

    def tree_forward(self, tree: Tree, tokens: Tensor) -> Tensor:
        """Feed the next token of every branch in one forward.

        Args:
            tree: From `open_tree`.
            tokens: [R, N] ids; any id where a row has fewer branches.

        Returns:
            [R, N, V] logits.
        """
        self._audit_tree(tree)
        if (tree.steps + 1) * tree.branches > tree.mask.shape[-1] - tree.column:
            raise AuditError(f"the tree was opened for {tree.steps} steps")
        start = tree.column + tree.steps * tree.branches
        length = start + tree.branches
        plan = Plan(tree.span.rows, start, length)
        ids = tree.span.put(tokens)
        logits = self._call(ids, tree.positions + tree.steps, tree.mask[..., :length], plan)
        tree.steps += 1
        self.fed += sum(tree.counts)
        return tree.span.back(logits)

    def close_tree(self, tree: Tree) -> None:
        """Forget the branches; the trunks stay."""
        self._audit_tree(tree)
        tree.closed = True

    def _tree_mask(self, forks: Tensor, trunk: int, depth: int) -> Tensor:
        """[R, 1, N, T + depth * N]: the trunk up to the fork, and a branch's own tokens.

        Args:
            forks: [R, N].
            trunk: T, columns before the branches' tokens.
            depth: Most steps.
        """
        rows, count = forks.shape
        unseen = torch.arange(trunk, device=self.device) > forks[..., None]
        siblings = ~torch.eye(count, dtype=torch.bool, device=self.device)
        hidden = torch.cat([unseen, siblings.repeat(1, depth).expand(rows, -1, -1)], dim=-1)
        return self._additive(hidden)[:, None]

    def _audit_tree(self, tree: Tree) -> None:
        trunks = self._lengths(tree.slots)
        if tree.closed or tuple(trunks) != tree.trunks:
            raise AuditError(f"a tree over trunks of {tree.trunks} tokens, closed or not these: {trunks}")
        if self._layout.moves(tree.slots) or self._range_of(tree.slots) != tree.span:
            raise AuditError("the rows of a tree were moved before it was done")

    def forward_at(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        positions: IntArray,
        hidden: BoolArray,
    ) -> Tensor:
        """Feed tokens behind what slots hold, with positions and a mask of the caller's; nothing is held.

        Args:
            slots: [R] different slots.
            starts: [R] column of each row's first token.
            tokens: [R] n_r tokens each, of which one at least has some.
            positions: [R, n] position of each token, n = max n_r; any where a row has fewer.
            hidden: [R, n, L] the columns that a token may not look at, with L > 1.

        Returns:
            [R, n, V] logits.
        """
        self._check_slots(slots)
        span = self._side_by_side(slots)
        chains, count = span.ordered(tokens), positions.shape[1]
        self._check_positions(1 + int(positions.max()))
        ids = self._tensor([[*chain, *[0] * (count - len(chain))] for chain in chains])
        logits = self._call(ids, *self._laid(span, starts, positions, hidden))
        self.fed += sum(map(len, tokens))
        return span.back(logits)

    def adopt(
        self,
        slots: Sequence[int],
        columns: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
    ) -> None:
        """Hold from now on what lies at some columns, moved to where each slot's tokens end.

        Args:
            slots: [R] different slots.
            columns: [R] columns in the order of their tokens, not before the slot's end.
            tokens: [R] the tokens there.
        """
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
        for slot, chain in zip(slots, tokens, strict=True):
            self._held[slot].extend(chain)

    def _laid(
        self, span: SlotRange, starts: Sequence[int], positions: IntArray, hidden: BoolArray
    ) -> tuple[Tensor, Tensor, Plan]:
        """Positions, mask and plan of a forward that begins at columns `starts` [R] of the caller's rows."""
        count, length = positions.shape[1], hidden.shape[2]
        self._grow(0, max(length, max(starts) + count))
        columns = None
        if min(starts) < max(starts):
            begins = self._tensor(span.ordered(starts))
            columns = begins[:, None] + torch.arange(count, device=self.device)
        mask = self._additive(span.put(torch.from_numpy(hidden).to(self.device)))[:, None]
        places = span.put(torch.from_numpy(positions).to(self.device))
        return places, mask, Plan(span.rows, min(starts), length, columns)

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

    def _last(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, plan: Plan, counts: Sequence[int]
    ) -> Tensor:
        """[R, 1, V] logits of each row's last token, computed at no more positions than there are ends."""
        ends = sorted({count - 1 for count in counts})
        if len(ends) == 1:
            return self._call(ids, positions, mask, plan, keep=1)
        logits = self._call(ids, positions, mask, plan, keep=self._tensor(ends))
        return _ends(logits, [1 + ends.index(count - 1) for count in counts])


def _ends(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """[R, 1, V] the logits [R, n, V] at the end of each row's `counts` [R] tokens."""
    if min(counts) == logits.shape[1]:
        return logits[:, -1:]
    ends = torch.tensor(counts, dtype=torch.long, device=logits.device) - 1
    return logits[torch.arange(len(counts), device=logits.device), ends][:, None]
