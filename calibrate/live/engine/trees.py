"""Token trees on the engine: nodes over the trunks that slots hold, and their drafting.

Branches (`runner.Tree`) grow side by side, one token each per step.  Here every node names its parent,
which may be of an earlier step or of the same one: what verifies a whole tree in one forward, and what a
draft needs whose next step goes on from whichever nodes are best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.engine.rows import Row
from calibrate.live.engine.runner import Nodes, Runner, Tokens, padded
from calibrate.live.engine.sampling import DraftSampler, top_tokens
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsWriter
from policies.sampling import Sampling
from policies.tokentree import ROOT, TokenTree, TreePlan
from policies.values import NO_HANDLE, BoolArray, IntArray, Source


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

    def feed(self, tokens: Tokens, parents: Tokens) -> Tensor:
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
        starts = [trunk + first for trunk, first in zip(self._trunks, firsts, strict=True)]
        sight = self._sight(firsts, [len(row) for row in tokens])
        logits = self._forward(Nodes(starts, tokens, *sight))
        self._fed = self.runner.fed
        return logits

    def keep(self, paths: Tokens) -> None:
        """Hold the nodes of a path per row, and forget all others; the branching ends here.

        Args:
            paths: [R] nodes from the root on, each the child of the one before; may be empty.
        """
        self._check_alone()
        for parents, path in zip(self.parents, paths, strict=True):
            if [parents[node] for node in path] != [ROOT, *path][: len(path)]:
                raise AuditError(f"the nodes {list(path)} are no path")
        self._hold(paths)
        self._fed = -1

    def reroot(self, path: Sequence[int], stay: Sequence[int]) -> None:
        """Hold the nodes of a path, and go on with some of those below it, in a branching of one row.

        The latter have the numbers 0, 1, ... from now on; keys and values move, and are not computed again.

        Raises:
            AuditError: As of `feed`; or what stays does not hang together below the path.
        """
        self._check_alone()
        (parents,), (tokens,) = self.parents, self.tokens
        number = {path[-1] if path else ROOT: ROOT} | {node: at for at, node in enumerate(stay)}
        if [parents[node] for node in path] != [ROOT, *path][: len(path)] or any(
            parents[node] not in number for node in stay
        ):
            raise AuditError(f"of the nodes {list(path)} and {list(stay)} some have lost their parents")
        self._hold([[*path, *stay]])
        self.parents = [[number[parents[node]] for node in stay]]
        self.tokens = [[tokens[node] for node in stay]]
        self._trunks[0] += len(path)
        self.runner.rollback(self.slots[0], self._trunks[0])  # what stays lies where its nodes belong

    def _hold(self, nodes: Tokens) -> None:
        """Nodes of every row become text."""
        columns = [[trunk + node for node in own] for trunk, own in zip(self._trunks, nodes, strict=True)]
        tokens = [[fed[node] for node in own] for fed, own in zip(self.tokens, nodes, strict=True)]
        self.runner.adopt(self.slots, columns, tokens)

    def _forward(self, nodes: Nodes) -> Tensor:
        return self.runner.forward_at(self.slots, nodes)

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
        table = np.array(padded(self.parents, ROOT))
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


class TreeGrower:
    """Decides which tokens become nodes of R trees, level by level; its caller feeds them.

    A static tree has `widths[d]` children under each node of level d, the best ones, or drawn ones: then
    keyed by request, position and number among the siblings; cousins share a draw, as they share nothing
    else: at most one of their parents is accepted.  A dynamic tree (EAGLE-2) goes on from the nodes that the
    draft is most confident of, and is cut to a budget in the end.

    Args:
        plan: The shape.
        rows: [R] where the trees begin.
        sampling: How tokens are chosen; those of a dynamic tree are always the best.
        writer: Where distributions are kept; needed where tokens are drawn.
    """

    def __init__(
        self, plan: TreePlan, rows: Sequence[Row], sampling: Sampling, writer: ProbsWriter | None
    ) -> None:
        self.plan = plan
        self._static = plan.kind == "static"
        self._trees = [_GrowingTree() for _ in rows]
        self._depth = self._nodes = 0
        self._sampler: DraftSampler | None = None
        if self._static and sampling.draft_sampled:
            sizes = np.cumprod(plan.widths)
            depths = np.repeat(np.arange(len(sizes)), sizes)
            requests = np.repeat([row.request for row in rows], len(depths))
            positions = np.concatenate([row.position + depths for row in rows])
            self._sampler = DraftSampler(requests, positions, 1, sampling, writer=writer)

    def grow(self, logits: Tensor) -> bool:
        """Add a level, from the logits [R, m, V] after the nodes fed last; whether there is another one."""
        width = self.plan.widths[self._depth] if self._static else self.plan.topk
        (rows, count, size), flat = logits.shape, logits.flatten(0, 1)
        scores = [[0.0] * width] * len(flat)
        if self._sampler is not None:
            level = self._nodes + np.arange(count * width)
            texts = (self.plan.nodes * np.arange(rows)[:, None] + level).ravel()
            tokens = self._sampler.choose_siblings(flat, texts, width).view(-1, width).tolist()
        elif width > size:
            raise AuditError(f"{width} children of a node over a vocabulary of {size} tokens")
        else:
            tokens = top_tokens(flat, width)
        if not self._static:
            confidence = logits.log_softmax(dim=-1).flatten(0, 1)
            scores = confidence.gather(-1, torch.tensor(tokens, device=logits.device)).tolist()
        for i, tree in enumerate(self._trees):
            own = slice(i * count, (i + 1) * count)
            tree.add(tokens[own], scores[own])
        self._nodes += count * width
        self._depth += 1
        return self._depth <= len(self.plan.fed)

    def pending(self) -> tuple[list[list[int]], list[list[int]]]:
        """[R] tokens and [R] parents of the nodes to be fed, numbered as they are fed."""
        most = self._nodes if self._static else self.plan.topk
        chosen = [tree.expand(most) for tree in self._trees]
        return [tokens for tokens, _ in chosen], [parents for _, parents in chosen]

    def trees(self) -> list[TokenTree]:
        """[R] the trees; their distributions, if any, can be read from now on."""
        count = self.plan.nodes
        handles = [NO_HANDLE] * (count * len(self._trees)) if self._sampler is None else self._sampler.seal()
        return [tree.best(count, handles[i * count : (i + 1) * count]) for i, tree in enumerate(self._trees)]


class _GrowingTree:
    """Candidates of one tree.

    Attributes:
        tokens: Of each candidate.
        parents: Candidate that each hangs under, or ROOT.
        scores: Logarithm of the product of draft probabilities on the way.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self._fed: dict[int, int] = {ROOT: ROOT}
        self._open: Sequence[int] = [ROOT]
        self._newest = range(0)

    def add(self, ranked: Tokens, scores: Sequence[Sequence[float]]) -> None:
        """The children of the nodes that were fed last, best first."""
        first = len(self.tokens)
        for parent, tokens, own in zip(self._open, ranked, scores, strict=True):
            so_far = 0.0 if parent == ROOT else self.scores[parent]
            self.tokens.extend(tokens)
            self.parents.extend([parent] * len(tokens))
            self.scores.extend(so_far + min(score, 0.0) for score in own)
        self._newest = range(first, len(self.tokens))

    def expand(self, most: int) -> tuple[list[int], list[int]]:
        """The best candidates of the newest level: tokens, and their parents as they were fed."""
        self._open = self._best(self._newest, most)
        parents = [self._fed[self.parents[node]] for node in self._open]
        for node in self._open:
            self._fed[node] = len(self._fed) - 1
        return [self.tokens[node] for node in self._open], parents

    def best(self, most: int, handles: Sequence[int]) -> TokenTree:
        """The best candidates of all, in the order in which they came up."""
        kept = self._best(range(len(self.tokens)), most)
        number = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        return TokenTree(
            tuple(self.tokens[node] for node in kept),
            tuple(number[self.parents[node]] for node in kept),
            (int(Source.PRIMARY),) * len(kept),
            tuple(handles),
        )

    def _best(self, nodes: Sequence[int], most: int) -> Sequence[int]:
        """In order; of equal ones the earlier count more, so that a parent comes before its children."""
        if len(nodes) <= most:
            return nodes
        return sorted(sorted(nodes, key=lambda node: (-self.scores[node], node))[:most])
