"""Verification of trees: which path survives, and which token comes after it.

Greedy: down from the root along the target's first choices.  Sampled: recursive rejection among the children
of each accepted node (SpecInfer, Miao et al. 2024, algorithm 2; RASD uses the same), which is lossless
for children that were drawn independently of each other, or chosen without looking at the target's luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrate.live.arena import LawReader
from calibrate.live.choice import ACCEPTED, BONUS, draw, law, one_hot, residual
from calibrate.live.engine.rows import Row
from policies.sampling import Sampling, keyed_uniforms
from policies.tokentree import ROOT, TokenTree
from policies.values import NO_LAW, BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Judged:
    """What is left of a tree.

    Attributes:
        path: Accepted nodes, from the root on.
        bonus: The token after them.
    """

    path: tuple[int, ...]
    bonus: int


def judge_greedy(logits: Tensor, trees: Sequence[TokenTree]) -> list[Judged]:
    """[R] verdicts from the logits [R, n, V] after the committed text and after each node.

    Args:
        logits: Index 0 is after the committed text, 1 + i after node i.
        trees: [R].
    """
    best: list[list[int]] = logits.argmax(dim=-1).tolist()
    return [_walk(tree, row) for tree, row in zip(trees, best, strict=True)]


def _walk(tree: TokenTree, best: Sequence[int]) -> Judged:
    path: list[int] = []
    # Of equal siblings the first one stays: it is tried first.
    edges = reversed([*enumerate(zip(tree.parents, tree.tokens, strict=True))])
    following = {edge: node for node, edge in edges}
    node = ROOT
    while (node, best[1 + node]) in following:
        node = following[node, best[1 + node]]
        path.append(node)
    return Judged(tuple(path), best[1 + node])


class TreeJudge:
    """Sampled verification of the trees of R rows, level by level and sibling by sibling.

    A candidate's luck is keyed by request, position and its number among its siblings; that of the first as
    a chain's, so that a tree without forks has a chain's outcome.

    Args:
        rows: [R] what is verified.
        trees: [R].
        sampling: How tokens are chosen.
        reader: Finds the laws of sampled candidates.
    """

    def __init__(
        self, rows: Sequence[Row], trees: Sequence[TokenTree], sampling: Sampling, reader: LawReader
    ) -> None:
        self.trees = trees
        self.sampling = sampling
        self.reader = reader
        self._requests = _array([row.request for row in rows])
        self._positions = _array([row.position for row in rows])

    def judge(self, logits: Tensor) -> list[Judged]:
        """[R] verdicts from the logits [R, n, V]; see `judge_greedy`."""
        paths: list[list[int]] = [[] for _ in self.trees]
        bonus = [0] * len(self.trees)
        going, depth = np.arange(len(self.trees)), 0
        while len(going):
            nodes = [paths[i][-1] if paths[i] else ROOT for i in going]
            p = law(logits[going.tolist(), [1 + node for node in nodes]], self.sampling)
            families = [self.trees[i].children(n) for i, n in zip(going.tolist(), nodes, strict=True)]
            chosen = self._level(p, going, families, depth)
            for i, node in zip(going.tolist(), chosen.tolist(), strict=True):
                paths[i] += [node] if node != ROOT else []
            ends = np.flatnonzero(chosen == ROOT)
            for i, token in zip(going[ends].tolist(), self._bonus(p, going, ends, depth), strict=True):
                bonus[i] = token
            going, depth = going[chosen != ROOT], depth + 1
        return [Judged(tuple(path), token) for path, token in zip(paths, bonus, strict=True)]

    def _level(self, p: Tensor, going: IntArray, families: Sequence[Sequence[int]], depth: int) -> IntArray:
        """[A] the child accepted of each row's node, ROOT for none.

        Args:
            p: [A, V] the target's laws after these nodes; every failed child leaves its residual here.
            going: [A] rows.
            families: [A] children of each node.
            depth: Accepted nodes of each row.
        """
        chosen = np.full(len(going), ROOT)
        sizes = _array([len(family) for family in families])
        for sibling in range(int(sizes.max())):
            trying = np.flatnonzero((chosen == ROOT) & (sibling < sizes))
            if not len(trying):
                break
            nodes = _array([families[i][sibling] for i in trying.tolist()])
            candidates = self._candidates(going[trying], nodes, depth)
            accepted = self._accept(p, trying, candidates, sibling)
            chosen[trying[accepted]] = nodes[accepted]
            failed = np.flatnonzero(~accepted)
            if len(failed):
                index = torch.from_numpy(trying[failed]).to(p.device)
                left = residual(p[index], self._sigma(candidates.some(failed), p))
                p[index] = left / left.sum(dim=-1, keepdim=True)
        return chosen

    def _candidates(self, rows: IntArray, nodes: IntArray, depth: int) -> _Candidates:
        trees = [self.trees[i] for i in rows]
        tokens = _array([tree.tokens[n] for tree, n in zip(trees, nodes, strict=True)])
        laws = _array([tree.laws[n] for tree, n in zip(trees, nodes, strict=True)])
        positions = self._positions[rows] + depth
        return _Candidates(self._requests[rows], positions, tokens, laws)

    def _accept(self, p: Tensor, at: IntArray, candidates: _Candidates, sibling: int) -> BoolArray:
        """[n] whether each candidate passes: strictly u * sigma(c) < p(c)."""
        key = (candidates.requests, candidates.positions)
        luck = keyed_uniforms(self.sampling.seed, ACCEPTED, *key, *((sibling,) if sibling else ()))
        masses, drawn = np.ones(len(at)), candidates.drawn
        if len(drawn):
            masses[drawn] = self.reader.masses(
                candidates.laws[drawn],
                candidates.requests[drawn],
                candidates.positions[drawn],
                candidates.tokens[drawn],
                p.shape[-1],
            )
        under_p = p[torch.from_numpy(at).to(p.device), torch.from_numpy(candidates.tokens).to(p.device)]
        passed: BoolArray = luck * masses < under_p.cpu().numpy()
        return passed

    def _sigma(self, candidates: _Candidates, p: Tensor) -> Tensor:
        """[n, V] the laws that candidates were drawn from; one-hot where they were chosen."""
        sigma = one_hot(torch.from_numpy(candidates.tokens).to(p.device), p.shape[-1])
        drawn = candidates.drawn
        if len(drawn):
            laws = torch.from_numpy(self.reader.laws(candidates.laws[drawn], p.shape[-1]))
            sigma[torch.from_numpy(drawn).to(p.device)] = laws.to(p.device)
        return sigma

    def _bonus(self, left: Tensor, going: IntArray, ends: IntArray, depth: int) -> list[int]:
        """The next token of the rows `ends` of `going`, from what is left of their laws [A, V]."""
        if not len(ends):
            return []
        rows = going[ends]
        luck = keyed_uniforms(self.sampling.seed, BONUS, self._requests[rows], self._positions[rows] + depth)
        tokens: list[int] = draw(left[torch.from_numpy(ends).to(left.device)], luck).tolist()
        return tokens


@dataclass(frozen=True, slots=True)
class _Candidates:
    """[n] tokens that are tried at their positions, and the handles of their laws."""

    requests: IntArray
    positions: IntArray
    tokens: IntArray
    laws: IntArray

    @property
    def drawn(self) -> IntArray:
        """Those that were drawn from a law."""
        return np.flatnonzero(self.laws != NO_LAW)

    def some(self, chosen: IntArray) -> _Candidates:
        return _Candidates(
            self.requests[chosen], self.positions[chosen], self.tokens[chosen], self.laws[chosen]
        )


def _array(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
