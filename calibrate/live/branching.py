"""Nodes of any shape that grow over the trunks that slots hold.

A `runner.Tree` has branches that grow side by side, one token each per step.  Here every node names its
parent, which may be of an earlier step or of the same one: what verifies a whole tree in one forward, and
what a draft needs whose next step goes on from whichever nodes are best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from calibrate.live.errors import AuditError
from calibrate.live.runner import ModelRunner
from policies.tokentree import ROOT
from policies.values import BoolArray, IntArray


class Branching:
    """Nodes over the trunks of R rows; a row's nodes are numbered in the order in which they are fed.

    Node i of a row with a trunk of T tokens is kept in column T + i.  It has the position that it would have
    in a text, T plus the number of its ancestors, and sees the trunk, its ancestors and itself.  Nothing is
    held until `keep`; a branching that is let go of leaves no trace.

    Args:
        runner: The model.
        slots: [R] different slots.
    """

    def __init__(self, runner: ModelRunner, slots: Sequence[int]) -> None:
        self.runner = runner
        self.slots = tuple(slots)
        self.tokens: list[list[int]] = [[] for _ in slots]
        self.parents: list[list[int]] = [[] for _ in slots]
        self._trunks = [len(runner.held(slot)) for slot in slots]
        self._fed = runner.fed

    def feed(self, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Tensor:
        """Feed further nodes of every row in one forward.

        Args:
            tokens: [R] n_r tokens each; a row may have none, not all of them.
            parents: [R] the number of each node's parent, ROOT for the trunk's last token.

        Returns:
            [R, n, V] logits with n = max n_r, of which row r's first n_r are meant.

        Raises:
            AuditError: No node at all, a parent that does not come before its child, or a model that was used
                for something else since the last step, which may have moved the rows.
        """
        if not any(tokens) or [len(row) for row in tokens] != [len(row) for row in parents]:
            raise AuditError(f"nodes need a token and a parent each: {tokens}, {parents}")
        self._check_alone()
        firsts = [len(row) for row in self.parents]
        for first, mine, new in zip(firsts, self.parents, parents, strict=True):
            for offset, parent in enumerate(new):
                if not ROOT <= parent < first + offset:
                    raise AuditError(f"node {first + offset} cannot have the parent {parent}")
            mine.extend(new)
        for kept, added in zip(self.tokens, tokens, strict=True):
            kept.extend(added)
        positions, hidden = self._sight(firsts, [len(row) for row in tokens])
        starts = [trunk + first for trunk, first in zip(self._trunks, firsts, strict=True)]
        logits = self._forward(starts, tokens, positions, hidden)
        self._fed = self.runner.fed
        return logits

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Hold the nodes of a path per row, and forget all others; the branching ends here.

        Args:
            paths: [R] nodes from the root on, each the child of the one before; may be empty.
        """
        self._check_alone()
        for parents, path in zip(self.parents, paths, strict=True):
            if [parents[node] for node in path] != [ROOT, *path][: len(path)]:
                raise AuditError(f"the nodes {list(path)} are no path")
        columns = [[trunk + node for node in path] for trunk, path in zip(self._trunks, paths, strict=True)]
        tokens = [[own[node] for node in path] for own, path in zip(self.tokens, paths, strict=True)]
        self.runner.adopt(self.slots, columns, tokens)
        self._fed = -1

    def _forward(
        self, starts: Sequence[int], tokens: Sequence[Sequence[int]], positions: IntArray, hidden: BoolArray
    ) -> Tensor:
        """[R, n, V] logits of further nodes; see `NodeForwards.forward_at`."""
        return self.runner.forward_at(self.slots, starts, tokens, positions, hidden)

    def _sight(self, firsts: Sequence[int], counts: Sequence[int]) -> tuple[IntArray, BoolArray]:
        """[R, n] positions of the nodes from `firsts` on, and [R, n, L] the columns hidden from them."""
        trunks, width = np.array(self._trunks)[:, None], max(counts)
        offsets = np.arange(width)
        columns = trunks + np.array(firsts)[:, None] + offsets
        # Two columns at least: a size of one is a case of its own for a compiler.
        length = max(2, int(columns.max()) + 1)
        hidden = np.arange(length) >= trunks[:, :, None].repeat(width, axis=1)
        row, at = np.indices(columns.shape)
        hidden[row, at, columns] = False  # padding, too, sees something: a softmax of nothing is no number
        most = max(map(len, self.parents))
        table = np.array([[*own, *[ROOT] * (most - len(own))] for own in self.parents])
        depths = np.zeros(columns.shape, dtype=np.int64)
        nodes = np.where(offsets < np.array(counts)[:, None], columns - trunks, ROOT)
        # Up from every node to its root, all at once.
        while (there := nodes != ROOT).any():
            rows, ats = np.nonzero(there)
            hidden[rows, ats, trunks[rows, 0] + nodes[rows, ats]] = False
            depths += there
            nodes[rows, ats] = table[rows, nodes[rows, ats]]
        return np.maximum(trunks + depths - 1, 0), hidden

    def _check_alone(self) -> None:
        trunks = [len(self.runner.held(slot)) for slot in self.slots]
        if self.runner.fed != self._fed or trunks != self._trunks:
            raise AuditError("the model was used for something else while nodes were growing")
