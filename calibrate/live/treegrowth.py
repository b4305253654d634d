"""Drafting of trees: which tokens become nodes, level by level, for all rows at once.

A grower is asked for the next level's nodes until there are none; its caller feeds them to the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.arena import LawWriter
from calibrate.live.choice import DRAFTED, drafted_weights, draw, top_tokens
from calibrate.live.engine.rows import Row
from calibrate.live.errors import AuditError
from policies.sampling import Sampling, keyed_uniforms
from policies.tokentree import ROOT, TokenTree, TreePlan
from policies.values import NO_LAW, Source


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
        self, plan: TreePlan, rows: Sequence[Row], sampling: Sampling, writer: LawWriter | None
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
        depths = TokenTree(tuple(self.tokens[0]), tuple(self.parents[0])).depths
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
