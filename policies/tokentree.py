"""Trees of candidate tokens: what they are, how a draft model writes them, how the target verifies them.

Every policy with more than one candidate per position ends here: a draft's tree, what a datastore returned,
several drafted sequences, and their fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from policies.config import About, SettingError
from policies.operation import CostClass, RowOperation, Work
from policies.values import NO_LAW, RowVerdict, Source

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
class VerifyTree(RowOperation):
    """One target forward over the last committed token and all nodes of each row's tree.

    Every node sees the committed text and its own ancestors, and has the position of its depth.  The keys and
    values of the accepted path stay, those of all other nodes go.  `inputs`: a `TokenTree` per row; an empty
    one is a step of plain decoding.
    """

    kind: ClassVar[str] = "verifytree"
    cost_class: ClassVar[CostClass] = "verify"
    reply: ClassVar[type[Any]] = TreeVerdict

    inputs: tuple[TokenTree, ...]


Plan: TypeAlias = Literal["static", "dynamic"]
PLANS: tuple[Plan, ...] = get_args(Plan)
MOST_NODES = 1024
"""Largest tree that may be asked for."""


class TreeDrafted(NamedTuple):
    """Reply of `DraftTree`.

    Attributes:
        tree: A `TokenTree`, or its fields where it was read from a file; see `drafted_tree`.
        work: One step `feed`, then one step `tree` per level but the last.
        root_top: The likeliest tokens after the committed text, best first, as many as were asked for.
    """

    tree: TokenTree
    work: Work
    root_top: tuple[int, ...] = ()


def drafted_tree(reply: TreeDrafted) -> TokenTree:
    """The tree of a reply, which a recording keeps as plain tuples."""
    return TokenTree._make(reply.tree)


@dataclass(frozen=True)
class TreePlan:
    """What a drafted tree looks like.

    A static tree has `widths[d]` children under every node of level d (Medusa's and SpecInfer's trees by
    rank).  A dynamic one is EAGLE-2's (Li et al. 2024, section 4): in each of `depth` levels the `topk` nodes
    of the newest level with the largest products of draft probabilities on their way get their `topk`
    likeliest children, and of all nodes the `budget` with the largest products are kept.  A child's product
    is never above its parent's, so that what is kept hangs together.

    Attributes:
        kind: Which of the two.
        widths: Children per level, of a static tree.
        depth: Levels of a dynamic tree.
        topk: Its nodes expanded per level, and their children.
        budget: Its nodes.

    Raises:
        ValueError: A number below 1, a tree of more than `MOST_NODES` nodes, or a budget that the levels
            cannot fill.
    """

    kind: Plan = "static"
    widths: tuple[int, ...] = (4, 2, 1)
    depth: int = 5
    topk: int = 4
    budget: int = 16

    def __post_init__(self) -> None:
        if self.kind not in PLANS:
            raise ValueError(f"unknown tree plan {self.kind!r}; choices: {', '.join(PLANS)}")
        if self.kind == "static" and (not self.widths or min(self.widths) < 1):
            raise ValueError(f"tree widths must be numbers of at least 1, got {list(self.widths)}")
        if self.kind == "dynamic" and min(self.depth, self.topk, self.budget) < 1:
            raise ValueError(
                f"depth, topk and budget of a tree must be at least 1, "
                f"got {self.depth}, {self.topk} and {self.budget}"
            )
        if self.candidates > MOST_NODES:
            raise ValueError(f"a tree of {self.candidates} nodes is more than the {MOST_NODES} allowed")
        if self.kind == "dynamic" and self.budget > self.candidates:
            raise ValueError(
                f"a tree of depth {self.depth} and topk {self.topk} has {self.candidates} nodes, fewer than "
                f"its budget of {self.budget}; lower the budget or raise the others"
            )

    @property
    def candidates(self) -> int:
        """Nodes that come up while the tree is drafted; a dynamic one keeps `budget` of them."""
        if self.kind == "dynamic":
            return self.topk + (self.depth - 1) * self.topk**2
        total, level = 0, 1
        for width in self.widths:
            level *= width
            total += level
        return total

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        return self.budget if self.kind == "dynamic" else self.candidates

    @property
    def levels(self) -> int:
        """Tokens of its longest path, at most."""
        return self.depth if self.kind == "dynamic" else len(self.widths)

    @property
    def fed(self) -> tuple[int, ...]:
        """Tokens of each step `tree`; the last level's nodes go through the target alone."""
        if self.kind == "dynamic":
            return (self.topk,) * (self.depth - 1)
        sizes, level = [], 1
        for width in self.widths[:-1]:
            level *= width
            sizes.append(level)
        return tuple(sizes)


TreeWidths: TypeAlias = Annotated[tuple[int, ...], About(help="Children per level of a static tree.")]
TreeDepth: TypeAlias = Annotated[int, About(help="Levels of a dynamic tree.", least=1)]
TreeTopk: TypeAlias = Annotated[int, About(help="Nodes expanded per level of a dynamic tree.", least=1)]
TreeBudget: TypeAlias = Annotated[int, About(help="Nodes kept of a dynamic tree.", least=1)]


def checked_plan(kind: Plan, **numbers: Any) -> TreePlan:
    """The plan of these numbers.

    Raises:
        SettingError: They make no tree.
    """
    try:
        return TreePlan(kind, **numbers)
    except ValueError as error:
        raise SettingError(str(error)) from error


@dataclass(frozen=True, slots=True)
class DraftTree(RowOperation):
    """Draft a tree per row.  `inputs`: the committed tokens that the draft has not seen, at least one.

    One forward over these tokens, then one per level but the last, over all rows and nodes of it.  What the
    draft keeps is the committed text: of the tree nothing, so that the accepted tokens are fed again with the
    next ones.

    At a temperature above 0 the children of a static tree are independent draws from the draft's law, which
    is kept for the verification, or its likeliest tokens (`Sampling.draft`); those of a dynamic one are
    always its likeliest.

    Attributes:
        plan: See `TreePlan`, as are the others.
        widths: Of a static tree.
        depth: Of a dynamic one.
        topk: Likewise.
        budget: Likewise.
        root_top: How many of the draft's likeliest first tokens to tell (RASD prunes by them).
    """

    kind: ClassVar[str] = "drafttree"
    cost_class: ClassVar[CostClass] = "draft"
    reply: ClassVar[type[Any]] = TreeDrafted

    inputs: tuple[tuple[int, ...], ...]
    plan: Plan = "static"
    widths: tuple[int, ...] = (4, 2, 1)
    depth: int = 5
    topk: int = 4
    budget: int = 16
    root_top: int = 0

    @property
    def shape(self) -> TreePlan:
        """The plan as one value."""
        return TreePlan(self.plan, self.widths, self.depth, self.topk, self.budget)
