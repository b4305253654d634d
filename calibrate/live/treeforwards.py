"""Forwards of branches that grow side by side over the trunks that slots hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrate.live.errors import AuditError
from calibrate.live.kvcache import Plan
from calibrate.live.slots import SlotRunner
from calibrate.live.tree import Tree


class TreeForwards(SlotRunner):
    """Part of a `ModelRunner`."""

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
        seating = self._seat(slots)
        at = self._tensor([[*row, *[-1] * (width - len(row))] for row in seating.seated(forks)])
        counts = tuple(len(row) for row in forks)
        mask = self._tree_mask(at, column, depth)
        return Tree(tuple(slots), tuple(trunks), counts, column, seating, at + 1, mask)

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
        plan = Plan(tree.seating.rows, start, length)
        ids = tree.seating.put(tokens)
        logits = self._call(ids, tree.positions + tree.steps, tree.mask[..., :length], plan)
        tree.steps += 1
        self.fed += sum(tree.counts)
        return tree.seating.back(logits)

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

    def _check_forks(self, slots: Sequence[int], forks: Sequence[Sequence[int]], depth: int) -> list[int]:
        """[R] tokens of the trunks, where such a tree can be opened."""
        trunks = self._lengths(slots)
        if len(slots) != len(forks) or not any(forks) or depth < 1:
            raise AuditError(f"a tree needs branches and a depth: {len(slots)} slots, {forks}, {depth}")
        for trunk, row in zip(trunks, forks, strict=True):
            if row and (min(row) < -1 or max(row) >= trunk):
                raise AuditError(f"forks {list(row)} do not lie in a trunk of {trunk} tokens")
            self._check_positions(max(row, default=-1) + 1 + depth)
        return trunks

    def _audit_tree(self, tree: Tree) -> None:
        trunks = self._lengths(tree.slots)
        if tree.closed or tuple(trunks) != tree.trunks:
            raise AuditError(f"a tree over trunks of {tree.trunks} tokens, closed or not these: {trunks}")
        if self._seats.moves(tree.slots) or self._seating(tree.slots) != tree.seating:
            raise AuditError("the rows of a tree were moved before it was done")
