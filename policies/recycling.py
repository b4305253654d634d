"""Token Recycling (Luo et al. 2025): the target's own top choices, kept per token, make the next tree.

A matrix holds, for each token, the k likeliest tokens that the target saw after its last occurrence,
accepted or not.  A tree is read off it breadth first from the last committed token, and what the target
says after every node of that tree goes into the matrix.

Where it differs from the authors' code: the tree's shape follows a rule in place of a list of 80 nodes that
was searched for (`ranks_of`); each request begins with a matrix of its own, from the pairs of its prompt,
in place of the one that earlier requests left; of several occurrences in one forward the accepted one is
kept, else the last.  Nodes are chosen, not drawn, at every temperature (`TokenTree`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import Annotated, ClassVar

from policies.ar import ArConfig
from policies.config import DECISIONS, Knob, PolicyConfig, PolicyInfo
from policies.operation import RowOperation
from policies.protocols import Steps, World
from policies.retrieval import check_text
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import MOST_NODES, Path, TokenTree, TreeRound, target_rounds
from policies.values import Source, View

DEEPER = 1.5
"""A level more counts as so many times the rank: about the authors' tree of 80 nodes and six levels."""


@dataclass(frozen=True, slots=True)
class RecyclingConfig(PolicyConfig):
    """Knobs of `recycling`."""

    policy: ClassVar[str] = "recycling"
    recycled_nodes: Annotated[int, Knob("Nodes of a recycled tree.", least=1, most=MOST_NODES)] = 8
    recycled_top: Annotated[int, Knob("k, successors kept per token.", least=1, most=64)] = 8

    @property
    def ahead(self) -> int:
        """The nodes of a tree."""
        return self.recycled_nodes

    @property
    def content_ignored(self) -> PolicyConfig:
        """Plain decoding."""
        return ArConfig()


@dataclass(frozen=True, slots=True)
class Recycle(RowOperation, cost_class="verify", reply=TreeRound):
    """Verify a tree read off the matrix, and recycle what was said.  `inputs`: as `LookAhead`."""

    inputs: tuple[Path, ...]
    config: RecyclingConfig = RecyclingConfig()


@lru_cache(maxsize=64)
def ranks_of(nodes: int, top: int) -> tuple[Path, ...]:
    """The ranks on the way to each node of the tree, parents first.

    The `nodes` paths with the smallest product of (rank + 1), a level more counting `DEEPER`.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path]] = [(1.0, (0,))]
    while len(found) < nodes and waiting:
        cost, path = heappop(waiting)
        found.append(path)
        heappush(waiting, (cost * DEEPER, (*path, 0)))
        if path[-1] + 1 < top:
            heappush(waiting, (cost * (path[-1] + 2) / (path[-1] + 1), (*path[:-1], path[-1] + 1)))
    return tuple(sorted(found, key=lambda path: (len(path), path)))


class Matrix:
    """The likeliest successors of every token of a request, best first."""

    def __init__(self, config: RecyclingConfig, prompt: Path) -> None:
        self.config = config
        self.after: dict[int, Path] = {}
        for token, follows in pairwise(prompt):
            others = [each for each in self.after.get(token, ()) if each != follows]
            self.after[token] = (follows, *others)[: config.recycled_top]

    def tree(self, last: int) -> TokenTree:
        """The tree after a token, breadth first."""
        paths: dict[Path, Path] = {(): ()}
        for ranks in ranks_of(self.config.recycled_nodes, self.config.recycled_top):
            above = paths.get(ranks[:-1])
            if above is not None:
                known = self.after.get(above[-1] if above else last, ())
                if ranks[-1] < len(known):
                    paths[ranks] = (*above, known[ranks[-1]])
        return TokenTree.of_paths([*paths.values()], Source.NGRAM)

    def recycle(self, tokens: Sequence[int], tops: Sequence[Sequence[int]], order: Iterable[int]) -> None:
        """Keep what was said after some fed tokens: `tops` [n, k], the later in `order` over the earlier."""
        for node in order:
            self.after[tokens[node]] = tuple(tops[node])


def recycling(world: World, rows: Rows, config: RecyclingConfig, sampling: Sampling = GREEDY) -> Steps:
    """Read a tree off the matrix, verify it, recycle, repeat; there is no draft."""
    check_text(rows, config.policy)

    def operation(view: View, prompts: tuple[Path, ...]) -> Recycle:
        return Recycle(view, rows.width, prompts, sampling, config=config)

    return target_rounds(world, rows, operation)


INFO = PolicyInfo(
    config=RecyclingConfig,
    run=recycling,
    paper="Luo et al. 2025 (Token Recycling)",
    predicts="nobody",
    drafts="a tree of what the target found likely after each token",
    on_miss="-",
    verifies="tree",
    order=4.4,
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    aliases=("token-recycling",),
    colour="#6a8f3c",
    variants=({"recycled_nodes": 24}, {"recycled_top": 3}),
)
