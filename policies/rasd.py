"""RASD: a drafted tree and a retrieved one, fused and verified at once.

The draft grows a tree by confidence (EAGLE-2).  What followed the same words, in the text itself or in a
datastore, makes a second tree, of which the branches are kept whose first token is among the draft's
`prune_top` likeliest (section 3.2.2).  The trie of both (section 3.2.3) is verified in one forward,
recursively, with the residuals of SpecInfer (section 3.2.4).

Readings, where the paper leaves one open:

- P_1, by which is pruned, is the draft's distribution, as its symbol says; the text calls it the target's.
- Where prompt lookup finds nothing, the draft's likeliest tokens are appended and it is repeated: those are
  the nodes of the drafted tree, a level per attempt, so that no further forward of the draft is needed.
- Retrieved tokens were chosen and not drawn: their distribution is one-hot, also below a drafted node.
- The time of retrieval counts: it is a step of the draft's device, after the draft whose tokens it appends.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from policies.config import DECISIONS, Knob, OnOff, PolicyConfig, PolicyInfo
from policies.protocols import Event, Steps, World
from policies.retrieval import RetrievalNodes, Retrieved, SearchConfig, check_text, retrieve_trees
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import (
    ROOT,
    DraftTree,
    Path,
    TokenTree,
    TreeBudget,
    TreeDepth,
    TreeDrafted,
    TreePlan,
    TreeTopk,
    tree_of,
    tree_rounds,
)
from policies.tree import fixed_tree
from policies.values import NO_HANDLE, View


@dataclass(frozen=True, slots=True)
class RasdConfig(SearchConfig):
    """Knobs of `rasd`."""

    policy: ClassVar[str] = "rasd"
    retrieval_attempts: Annotated[
        int | None,
        Knob(
            "Drafted levels appended where nothing is found: 2 in the text, 0 in a datastore by default.",
            least=0,
        ),
    ] = None
    prune_top: Annotated[
        int,
        Knob(
            "Retrieved branches begin with one of so many of the draft's likeliest tokens; 0: with any.",
            least=0,
        ),
    ] = 8
    fusion: Annotated[OnOff, Knob("Fuse what drafted and retrieved trees share.")] = "on"
    retrieval_nodes: RetrievalNodes = 32
    tree_depth: TreeDepth = TreePlan.depth
    tree_topk: TreeTopk = TreePlan.topk
    tree_budget: TreeBudget = TreePlan.budget

    def check(self, sampling: Sampling) -> None:
        """Refuse a search or a tree that cannot be."""
        SearchConfig.check(self, sampling)
        TreePlan("dynamic", depth=self.tree_depth, topk=self.tree_topk, budget=self.tree_budget)

    @property
    def plan(self) -> TreePlan:
        """What drafted trees look like: they grow by confidence, and their tokens are chosen.

        Drawn tokens must not decide what is looked up (`attempts`): where a round ends would then depend on
        draws of positions that it does not reach, which are drawn again with the same luck.
        """
        return TreePlan("dynamic", depth=self.tree_depth, topk=self.tree_topk, budget=self.tree_budget)

    @property
    def attempts(self) -> int:
        """Levels of drafted tokens that are appended where nothing is found.

        A datastore is asked once per draft phase (section 3.2.1).
        """
        if self.retrieval_attempts is None:
            return 0 if self.datastore else 2
        return self.retrieval_attempts

    @property
    def ahead(self) -> int:
        """The nodes of a drafted tree."""
        return self.tree_budget

    @property
    def content_ignored(self) -> PolicyConfig:
        """Its drafted tree, of a fixed shape."""
        return fixed_tree(self.tree_depth, self.tree_topk)


def rasd(world: World, rows: Rows, config: RasdConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a tree, retrieve one, prune it, fuse both, verify, repeat."""
    check_text(rows, config.policy)
    plan, prune_top, attempts = config.plan, config.prune_top, config.attempts

    def propose(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        slots = view.slots
        drafted = yield world.draft.submit(
            DraftTree(view, rows.width, unseen, sampling, plan=plan, root_top=prune_top)
        )
        levels = {slot: _levels(tree_of(drafted[slot]), attempts) for slot in slots}
        retrieved = yield world.draft.submit(retrieve_trees(rows, view, config, sampling, levels))
        return [candidates(drafted[slot], retrieved[slot], config) for slot in slots]

    return tree_rounds(world, rows, sampling, propose, drafts=True)


def candidates(drafted: TreeDrafted, retrieved: Retrieved, config: RasdConfig) -> TokenTree:
    """The tree that is verified: the drafted one and what pruning leaves of the retrieved one."""
    tree, other = tree_of(drafted), tree_of(retrieved)
    if config.prune_top:
        other = pruned(other, frozenset(drafted.root_top))
    return fused(tree, other) if config.fusion == "on" else unfused(tree, other)


def _levels(tree: TokenTree, count: int) -> tuple[tuple[Path, ...], ...]:
    """The token paths to the nodes of each of the tree's first `count` levels."""
    paths = tree.paths if count else []
    levels = (tuple(path for path in paths if len(path) == depth) for depth in range(1, count + 1))
    return tuple(level for level in levels if level)


def pruned(tree: TokenTree, first: Collection[int]) -> TokenTree:
    """The tree without the branches whose first token is not among `first` (`rasd.prune`)."""
    kept: dict[int, int] = {}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent in kept or (parent == ROOT and token in first):
            kept[node] = len(kept)
    return TokenTree(
        tuple(tree.tokens[node] for node in kept),
        tuple(kept.get(tree.parents[node], ROOT) for node in kept),
        tuple(tree.sources[node] for node in kept),
        tuple(tree.handles[node] for node in kept),
    )


def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """The trie of both trees: the draft's nodes, then what is retrieved beside and below them (`rasd.fuse`).

    A retrieved node that the draft has too is the draft's, with the distribution that it was drawn from: two
    siblings with one token would try it twice.  Siblings drawn alike stay as they are (each draw takes its
    mass off the residual); what is retrieved below goes on from the first of them.
    """
    nodes: dict[tuple[int, int], int] = {}
    for node, edge in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        nodes.setdefault(edge, node)
    added: list[int] = []  # of the retrieved nodes
    place = {ROOT: ROOT}
    parents = list(draft.parents)
    for node, token in enumerate(retrieved.tokens):
        edge = (place[retrieved.parents[node]], token)
        if edge not in nodes:
            nodes[edge] = len(parents)
            parents.append(edge[0])
            added.append(node)
        place[node] = nodes[edge]
    return _extended(draft, retrieved, added, parents)


def unfused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """`fused`, with what both trees have verified twice: the ablation of RASD's table 3.

    The copies come last and below the root, so that they are never accepted before what they are copies of:
    fusion saves tokens of the verification and changes no outcome, as the paper has it.
    """
    both, drafted = fused(draft, retrieved), set(draft.paths)
    shared = [node for node, path in enumerate(retrieved.paths) if path in drafted]
    number = {node: len(both.tokens) + i for i, node in enumerate(shared)}
    parents = [*both.parents, *(number.get(retrieved.parents[node], ROOT) for node in shared)]
    return _extended(both, retrieved, shared, parents)


def _extended(
    tree: TokenTree, other: TokenTree, nodes: Collection[int], parents: Collection[int]
) -> TokenTree:
    """A tree and some chosen nodes of another; `parents` are those of all."""
    return TokenTree(
        (*tree.tokens, *(other.tokens[node] for node in nodes)),
        tuple(parents),
        (*tree.sources, *(other.sources[node] for node in nodes)),
        (*tree.handles, *(NO_HANDLE for _ in nodes)),
    )


INFO = PolicyInfo(
    config=RasdConfig,
    run=rasd,
    paper="RASD",
    predicts="nobody",
    drafts="tree by confidence (EAGLE-2), fused with a retrieved one",
    on_miss="-",
    verifies="tree",
    order=12,
    replay=DECISIONS,
    collocated=True,
    colour="#2f8f83",
    variants=(
        {},
        {"tree_depth": 3, "tree_topk": 2, "tree_budget": 6, "retrieval_nodes": 8},
        {"prune_top": 0, "fusion": "off"},
    ),
)
