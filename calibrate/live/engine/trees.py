"""Token trees on the engine: nodes over the trunks that slots hold, and their drafting.

Branches (`forwards.Tree`) grow side by side, one token each per step.  Here every node names its parent,
which may be of an earlier step or of the same one: what verifies a whole tree in one forward, and what a
draft needs whose next step goes on from whichever nodes are best.

Drafting decides which tokens become nodes, level by level, for all rows at once: a grower is asked for the
next level's nodes until there are none; its caller feeds them to the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.rows import Row
from calibrate.live.engine.runner import Runner
from calibrate.live.engine.sampling import (
    DRAFTED,
    drafted_weights,
    draw,
    top_tokens,
)
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsWriter
from policies.sampling import Sampling, keyed_uniforms
from policies.tokentree import ROOT, TokenTree, TreePlan
from policies.values import NO_LAW, BoolArray, IntArray, Source


class Branching:
    """Nodes over the trunks of R rows; a row's nodes are numbered in the order in which they are fed.

    Node i of a row with a trunk of T tokens is kept in column T + i.  It has the position that it would have
    in a text, T plus the number of its ancestors, and sees the trunk, its ancestors and itself.  Nothing is
    held until `keep`; a branching that is let go of leaves no trace.

    Args:
        runner: The model.
        slots: [R] different slots.
    """

    def __init__(self, runner: Runner, slots: Sequence[int]) -> None:
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


class Static:
    """Trees of a fixed shape: `widths[d]` children under each node of level d, the best or drawn ones.

    A draw is keyed by request, position and number among the siblings; cousins share it, as they share
    nothing else: at most one of their parents is accepted.

    Args:
        plan: The shape.
        rows: [R] where the trees begin.
        sampling: How tokens are chosen.
        writer: Where laws are kept; needed where tokens are drawn.
    """

    def __init__(
        self, plan: TreePlan, rows: Sequence[Row], sampling: Sampling, writer: ProbsWriter | None
    ) -> None:
        if sampling.draft_sampled and writer is None:
            raise AuditError("this worker drafts at random but was given no memory for its laws")
        self.plan = plan
        self.rows = rows
        self.sampling = sampling
        self.tokens: list[list[int]] = [[] for _ in rows]
        self.parents: list[list[int]] = [[] for _ in rows]
        self._writer = writer
        self._level: range = range(ROOT, ROOT + 1)
        self._depth = 0
        self._laws: list[tuple[Tensor, int]] = []

    def grow(self, logits: Tensor) -> bool:
        """Add a level, from the logits [R, m, V] after the last one's nodes; whether there is another one."""
        width = self.plan.widths[self._depth]
        table = self._drawn(logits, width) if self.sampling.draft_sampled else self._best(logits, width)
        first = len(self.tokens[0])
        for mine, parents, level in zip(self.tokens, self.parents, table, strict=True):
            for parent, children in zip(self._level, level, strict=True):
                mine.extend(children)
                parents.extend([parent] * len(children))
        self._level = range(first, len(self.tokens[0]))
        self._depth += 1
        return self._depth < len(self.plan.widths)

    def pending(self) -> tuple[list[list[int]], list[list[int]]]:
        """[R] tokens and [R] parents of the newest level, to be fed; nodes are numbered as they are fed."""
        newest = slice(self._level.start, self._level.stop)
        return [row[newest] for row in self.tokens], [row[newest] for row in self.parents]

    def trees(self) -> list[TokenTree]:
        """[R] the trees; their laws, if any, can be read from now on."""
        handles = iter(self._seal())
        return [
            TokenTree(
                tuple(tokens),
                tuple(parents),
                (int(Source.PRIMARY),) * len(tokens),
                tuple(next(handles) for _ in tokens),
            )
            for tokens, parents in zip(self.tokens, self.parents, strict=True)
        ]

    def _best(self, logits: Tensor, width: int) -> list[list[list[int]]]:
        """[R][m][width]."""
        ranked = top_tokens(logits.flatten(0, 1), width)
        if len(ranked[0]) < width:
            raise AuditError(f"{width} children of a node over a vocabulary of {logits.shape[-1]} tokens")
        count = logits.shape[1]
        return [ranked[i * count : (i + 1) * count] for i in range(logits.shape[0])]

    def _drawn(self, logits: Tensor, width: int) -> list[list[list[int]]]:
        """[R][m][width]; keeps the laws."""
        rows, count, size = logits.shape
        weights = drafted_weights(logits.flatten(0, 1), self.sampling)
        self._laws.append((weights.view(rows, count, size), width))
        requests = np.array([row.request for row in self.rows])[:, None, None]
        positions = np.array([row.position + self._depth for row in self.rows])[:, None, None]
        luck = keyed_uniforms(self.sampling.seed, DRAFTED, requests, positions, np.arange(width))
        # The first child meets the luck that a chain's token would meet.
        luck[..., 0] = keyed_uniforms(self.sampling.seed, DRAFTED, requests, positions)[..., 0]
        luck = luck.repeat(count, axis=1).reshape(-1)
        tokens = draw(weights.repeat_interleave(width, dim=0), luck)
        table: list[list[list[int]]] = tokens.view(rows, count, width).tolist()
        return table

    def _seal(self) -> list[int]:
        """Handles of all nodes, row after row."""
        count = sum(map(len, self.tokens))
        if not self._laws:
            return [NO_LAW] * count
        assert self._writer is not None, "checked at the start"
        # [R, n, V] the law of every node: its parent's, once per child.
        laws = torch.cat([weights.repeat_interleave(width, dim=1) for weights, width in self._laws], dim=1)
        flat = laws.flatten(0, 1)
        depths = [len(path) for path in TokenTree(tuple(self.tokens[0]), tuple(self.parents[0])).paths]
        owners = (
            np.repeat([row.request for row in self.rows], len(depths)),
            np.concatenate([row.position - 1 + np.array(depths) for row in self.rows]),
            np.concatenate([np.array(row) for row in self.tokens]),
        )
        block = self._writer.reserve(count, 1, flat.shape[-1])
        totals = flat.sum(dim=-1, dtype=torch.float64)
        block.write(0, flat.cpu().numpy(), totals.cpu().numpy(), owners)
        return block.seal()


class Dynamic:
    """EAGLE-2's trees: grown from the nodes that the draft is most confident of, then cut to a budget.

    Args:
        plan: Depth, width and budget.
        rows: How many trees.
    """

    def __init__(self, plan: TreePlan, rows: int) -> None:
        self.plan = plan
        self._crowns = [_Crown(plan) for _ in range(rows)]
        self._depth = 0

    def grow(self, logits: Tensor) -> bool:
        """Add a level of candidates, from the logits [R, m, V] after the nodes fed last; whether to go on."""
        top = min(self.plan.topk, logits.shape[-1])
        if top < self.plan.topk:
            raise AuditError(f"{self.plan.topk} children of a node over {logits.shape[-1]} tokens")
        count = logits.shape[1]
        ranked = top_tokens(logits.flatten(0, 1), top)
        confidence = logits.log_softmax(dim=-1).flatten(0, 1)
        scores = confidence.gather(-1, torch.tensor(ranked, device=logits.device)).tolist()
        for i, crown in enumerate(self._crowns):
            own = slice(i * count, (i + 1) * count)
            crown.add(ranked[own], scores[own])
        self._depth += 1
        return self._depth < self.plan.depth

    def pending(self) -> tuple[list[list[int]], list[list[int]]]:
        """[R] tokens and [R] parents of the nodes to be fed, numbered as they are fed."""
        chosen = [crown.expand() for crown in self._crowns]
        return [tokens for tokens, _ in chosen], [parents for _, parents in chosen]

    def trees(self) -> list[TokenTree]:
        """[R] the best nodes of each."""
        return [crown.tree() for crown in self._crowns]


class _Crown:
    """Candidates of one growing tree.

    Attributes:
        tokens: Of each candidate.
        parents: Candidate that each hangs under, or ROOT.
        scores: Logarithm of the product of draft probabilities on the way.
    """

    def __init__(self, plan: TreePlan) -> None:
        self.plan = plan
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._fed: dict[int, int] = {ROOT: ROOT}
        self._open = [ROOT]
        self._newest = range(0)

    def add(self, ranked: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        """The children of the nodes that were fed last, best first."""
        first = len(self.tokens)
        for parent, tokens, own in zip(self._open, ranked, scores, strict=True):
            so_far = 0.0 if parent == ROOT else self.scores[parent]
            self.tokens.extend(tokens)
            self.parents.extend([parent] * len(tokens))
            self.scores.extend(so_far + min(score, 0.0) for score in own)
        self._newest = range(first, len(self.tokens))

    def expand(self) -> tuple[list[int], list[int]]:
        """The best candidates of the newest level: tokens, and their parents as they were fed."""
        self._open = sorted(self._best(self._newest)[: self.plan.topk])
        parents = [self._fed[self.parents[node]] for node in self._open]
        for node in self._open:
            self._fed[node] = len(self._fed) - 1
        return [self.tokens[node] for node in self._open], parents

    def tree(self) -> TokenTree:
        """The best candidates of all, in the order in which they came up."""
        kept = sorted(self._best(range(len(self.tokens)))[: self.plan.budget])
        number = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        return TokenTree(
            tuple(self.tokens[node] for node in kept),
            tuple(number[self.parents[node]] for node in kept),
            (int(Source.PRIMARY),) * len(kept),
            (NO_LAW,) * len(kept),
        )

    def _best(self, nodes: Sequence[int]) -> list[int]:
        """By score; of equal ones the earlier first, so that a parent comes before its children."""
        return sorted(nodes, key=lambda node: (-self.scores[node], node))
