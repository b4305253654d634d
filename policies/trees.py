"""Trees of candidate tokens, and their verification in one target forward.

Every policy with more than one candidate per position ends here: a draft's tree, what a datastore returned,
several drafted sequences, and their fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from policies.operations import NO_LAW, Source
from policies.rowwise import Like, RowVerdict, Rowwise, Work

ROOT = -1
"""Parent of the nodes that follow the committed text."""


class TokenTree(NamedTuple):
    """Candidates in the order in which they are tried; a node comes after its parent.

    Sampled verification tries the children of a node one after the other (recursive rejection sampling, as in
    SpecInfer): child c drawn from sigma is accepted with probability min(1, p(c) / sigma(c)), else p becomes
    (p - sigma)+ normalised and the next child is tried.  A deterministic child (the draft's top-k, a
    retrieval) has a one-hot sigma, so that it is accepted with p(c), and c is left out after a rejection.
    That is lossless for any number of children that were drawn independently of each other.

    Attributes:
        tokens: [n] ids.
        parents: [n] index of each node's parent, ROOT for none; below the node's own index.
        sources: [n] `Source` of each.
        laws: [n] handle of the law that a sampled node was drawn from; NO_LAW: it was chosen, not drawn.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    laws: tuple[int, ...] = ()

    @classmethod
    def of_paths(cls, paths: Sequence[Sequence[int]], source: Source = Source.PRIMARY) -> TokenTree:
        """The trie of some deterministic token sequences, in the order of their first appearance."""
        nodes: dict[tuple[int, ...], int] = {}
        tokens: list[int] = []
        parents: list[int] = []
        for path in paths:
            for depth in range(1, len(path) + 1):
                prefix = tuple(path[:depth])
                if prefix not in nodes:
                    nodes[prefix] = len(tokens)
                    tokens.append(prefix[-1])
                    parents.append(nodes.get(prefix[:-1], ROOT))
        count = len(tokens)
        return cls(tuple(tokens), tuple(parents), (int(source),) * count, (NO_LAW,) * count)

    @property
    def depths(self) -> tuple[int, ...]:
        """[n] tokens on the way from the root to each node, itself included."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent == ROOT else found[parent] + 1)
        return tuple(found)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root to `node`, itself included."""
        way = []
        while node != ROOT:
            way.append(node)
            node = self.parents[node]
        return tuple(reversed(way))

    def children(self, node: int) -> tuple[int, ...]:
        """Children of a node (ROOT: the first candidates), in the order in which they are tried."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)


class TreeVerdict(NamedTuple):
    """Reply of `VerifyTree`.

    Attributes:
        verdict: What the row emits.
        path: Accepted nodes, from the root on, before any cut.
        work: Steps.
    """

    verdict: RowVerdict
    path: tuple[int, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class VerifyTree(Rowwise):
    """One target forward over the last committed token and all nodes of each row's tree.

    Every node sees the committed text and its own ancestors, and has the position of its depth.  The keys and
    values of the accepted path stay, those of all other nodes go.  `asks`: a `TokenTree` per row; an empty
    one is a step of plain decoding.
    """

    kind: ClassVar[str] = "verifytree"
    like: ClassVar[Like] = "verify"
    reply: ClassVar[type[Any]] = TreeVerdict
