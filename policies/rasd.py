"""RASD: a drafted tree and a retrieved one, fused and verified at once.

The draft grows a tree by confidence (EAGLE-2).  What followed the same words, in the text itself or in a
datastore, makes a second tree, of which the branches are kept whose first token is among the draft's
`prune_top` likeliest (section 3.2.2).  The trie of both (section 3.2.3) is verified in one forward,
recursively, with the residuals of SpecInfer (section 3.2.4).

Readings, where the paper leaves one open:

- P_1, by which is pruned, is the draft's law, as its symbol says; the text calls it the target's.
- Where prompt lookup finds nothing, the draft's likeliest tokens are appended and it is repeated: those are
  the nodes of the drafted tree, a level per attempt, so that no further forward of the draft is needed.
- Retrieved tokens were chosen and not drawn: their law is one-hot, also below a drafted node.
- The time of retrieval counts: it is a step of the draft's device, after the draft whose tokens it appends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from policies.config import DECISIONS, About, OnOff, PolicyConfig, PolicyInfo
from policies.operation import RowAnswers
from policies.protocols import Steps, World
from policies.rest import check_text, row_inputs
from policies.retrieval import (
    PROMPT,
    Path,
    RetrievalNodes,
    Retrieved,
    RetrieveTree,
    Search,
    SearchConfig,
)
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.tokentree import (
    ROOT,
    DraftTree,
    TokenTree,
    TreeBudget,
    TreeDepth,
    TreeDrafted,
    TreePlan,
    TreeTopk,
    VerifyTree,
    checked_plan,
    drafted_tree,
)
from policies.tree import commit_trees, fixed_tree, last_tokens
from policies.values import NO_LAW, View

ATTEMPTS = 2
"""Levels of drafted tokens that prompt lookup appends where it finds nothing."""


@dataclass(frozen=True, slots=True)
class RasdKnobs:
    """What a round of `rasd` does.

    Attributes:
        plan: Of the drafted tree; the paper's is dynamic.
        datastore: Name or path of a datastore; `prompt` for the text itself.
        search: How continuations are looked for.
        prune_top: k, how many of the draft's likeliest first tokens keep a retrieved branch; 0: all are kept.
        attempts: Levels of drafted tokens that are appended where nothing is found.
        fusion: Whether the trees are fused or verified side by side.
        sampling: How tokens are chosen.

    Raises:
        ValueError: Drawn tokens would be appended.  Where a round ends would then depend on draws of
            positions that it does not reach, which are drawn again with the same luck: no longer lossless.
    """

    plan: TreePlan = TreePlan("dynamic")  # noqa: RUF009 - frozen
    datastore: str = PROMPT
    search: Search = Search()  # noqa: RUF009 - frozen
    prune_top: int = 8
    attempts: int = ATTEMPTS
    fusion: bool = True
    sampling: Sampling = GREEDY

    def __post_init__(self) -> None:
        if self.attempts and self.plan.kind == "static" and self.sampling.draft_sampled:
            raise ValueError("drawn tokens must not decide what is looked up: no attempts, or a dynamic tree")


@dataclass(frozen=True, slots=True)
class RasdConfig(SearchConfig):
    """Knobs of `rasd`.

    Attributes:
        retrieval_attempts: Levels of drafted tokens appended where nothing is found; None: `ATTEMPTS` in
            the text, none in a datastore, which is asked once per draft phase (section 3.2.1).
        prune_top: k, how many of the draft's likeliest first tokens keep a retrieved branch; 0: all are kept.
        fusion: Whether the trees are fused or verified side by side.
        retrieval_nodes: Most nodes of a retrieved tree.
        tree_depth: Levels of the drafted tree.
        tree_topk: Its nodes expanded per level.
        tree_budget: Its nodes.
    """

    policy: ClassVar[str] = "rasd"
    retrieval_attempts: Annotated[
        int | None,
        About(
            help="Drafted levels appended where nothing is found: 2 in the text, 0 in a datastore by "
            "default.",
            least=0,
        ),
    ] = None
    prune_top: Annotated[
        int,
        About(
            help="Retrieved branches begin with one of so many of the draft's likeliest tokens; 0: with any.",
            least=0,
        ),
    ] = 8
    fusion: Annotated[OnOff, About(help="Fuse what drafted and retrieved trees share.")] = "on"
    retrieval_nodes: RetrievalNodes = 32
    tree_depth: TreeDepth = TreePlan.depth
    tree_topk: TreeTopk = TreePlan.topk
    tree_budget: TreeBudget = TreePlan.budget

    def check(self, sampling: Sampling) -> None:
        """Refuse numbers that make no tree, or no search."""
        self.rounds(sampling)

    def rounds(self, sampling: Sampling) -> RasdKnobs:
        """What a round does.

        Raises:
            SettingError: Numbers that make no tree, or no search.
        """
        attempts = self.retrieval_attempts
        if attempts is None:
            attempts = 0 if self.datastore else ATTEMPTS
        return RasdKnobs(
            plan=checked_plan("dynamic", depth=self.tree_depth, topk=self.tree_topk, budget=self.tree_budget),
            datastore=self.store,
            search=self.search_for(self.retrieval_nodes),
            prune_top=self.prune_top,
            attempts=attempts,
            fusion=self.fusion == "on",
            sampling=sampling,
        )

    @property
    def ahead(self) -> int:
        """The nodes of a drafted tree."""
        return self.tree_budget

    @property
    def content_ignored(self) -> PolicyConfig:
        """Its drafted tree, of a fixed shape."""
        return fixed_tree(self.tree_depth, self.tree_topk)


def rasd_of(world: World, rows: Rows, config: RasdConfig, sampling: Sampling = GREEDY) -> Steps:
    """RASD as it is configured."""
    return rasd(world, rows, config.rounds(sampling))


def rasd(world: World, rows: Rows, knobs: RasdKnobs) -> Steps:
    """Draft a tree, retrieve one, prune it, fuse both, verify, repeat.

    Args:
        world: Where.
        rows: What to serve, with their tokens kept.
        knobs: Settings.

    Raises:
        SettingError: A world without token ids.
    """
    check_text(rows, "rasd")
    unseen: dict[int, Path] = {}
    while rows.active:
        fresh = yield from admit(world, rows)
        view = rows.view()
        unseen |= last_tokens(rows.view(fresh))
        drafted = yield world.draft.submit(_draft(rows, view, unseen, knobs))
        found = yield world.draft.submit(_lookup(rows, view, drafted, knobs))
        trees = {slot: candidates(drafted[slot], found[slot], knobs) for slot in view.slots.tolist()}
        verify = VerifyTree(view, rows.width, tuple(trees.values()), knobs.sampling)
        verified = yield world.target.submit(verify)
        # The draft keeps the committed text alone, so that it has seen nothing of what was accepted.
        unseen |= commit_trees(world, rows, view, trees, verified)


def candidates(drafted: TreeDrafted, found: Retrieved, knobs: RasdKnobs) -> TokenTree:
    """The tree that is verified: the drafted one and what pruning leaves of the retrieved one."""
    tree, retrieved = drafted_tree(drafted), TokenTree._make(found.tree)
    if knobs.prune_top:
        retrieved = pruned(retrieved, frozenset(drafted.root_top))
    return fused(tree, retrieved) if knobs.fusion else unfused(tree, retrieved)


def _draft(rows: Rows, view: View, unseen: Mapping[int, Path], knobs: RasdKnobs) -> DraftTree:
    return DraftTree(
        view,
        rows.width,
        tuple(unseen[slot] for slot in view.slots.tolist()),
        knobs.sampling,
        plan=knobs.plan.kind,
        widths=knobs.plan.widths,
        depth=knobs.plan.depth,
        topk=knobs.plan.topk,
        budget=knobs.plan.budget,
        root_top=knobs.prune_top,
    )


def _lookup(rows: Rows, view: View, drafted: RowAnswers, knobs: RasdKnobs) -> RetrieveTree:
    levels = {slot: _levels(drafted_tree(drafted[slot]), knobs.attempts) for slot in view.slots.tolist()}
    return RetrieveTree(
        view,
        rows.width,
        row_inputs(rows, view, knobs.datastore, knobs.search, levels),
        knobs.sampling,
        datastore=knobs.datastore,
        search=knobs.search,
    )


def _levels(tree: TokenTree, count: int) -> tuple[tuple[Path, ...], ...]:
    """The token paths to the nodes of each of the tree's first `count` levels."""
    levels: list[list[Path]] = [[] for _ in range(count)]
    for node, depth in enumerate(tree.depths):
        if depth <= count:
            levels[depth - 1].append(tuple(tree.tokens[n] for n in tree.path(node)))
    return tuple(tuple(level) for level in levels if level)


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
        tuple(tree.laws[node] for node in kept),
    )


def fused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """The trie of both trees: the draft's nodes, then what is retrieved beside and below them (`rasd.fuse`).

    A retrieved node that the draft has too is the draft's, with the law that it was drawn from: two siblings
    with one token would try it twice.  Siblings drawn alike stay as they are (each draw takes its mass off
    the residual); what is retrieved below goes on from the first of them.

    Args:
        draft: Drafted nodes, chosen or drawn.
        retrieved: Chosen nodes.
    """
    found: dict[tuple[int, int], int] = {}
    for node, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True)):
        found.setdefault((parent, token), node)
    tokens, parents, sources = list(draft.tokens), list(draft.parents), list(draft.sources)
    place = {ROOT: ROOT}
    for node, token in enumerate(retrieved.tokens):
        key = (place[retrieved.parents[node]], token)
        if key not in found:
            found[key] = len(tokens)
            tokens.append(token)
            parents.append(key[0])
            sources.append(retrieved.sources[node])
        place[node] = found[key]
    laws = (*draft.laws, *(NO_LAW for _ in range(len(tokens) - len(draft.laws))))
    return TokenTree(tuple(tokens), tuple(parents), tuple(sources), laws)


def unfused(draft: TokenTree, retrieved: TokenTree) -> TokenTree:
    """`fused`, with what both trees have verified twice: the ablation of RASD's table 3.

    The copies come last and below the root, so that they are never accepted before what they are copies of:
    fusion saves tokens of the verification and changes no outcome, as the paper has it.
    """
    both, shared = fused(draft, retrieved), _shared(draft, retrieved)
    shift = len(both.tokens)
    number = {node: shift + i for i, node in enumerate(shared)}
    return TokenTree(
        (*both.tokens, *(retrieved.tokens[node] for node in shared)),
        (*both.parents, *(number.get(retrieved.parents[node], ROOT) for node in shared)),
        (*both.sources, *(retrieved.sources[node] for node in shared)),
        (*both.laws, *(retrieved.laws[node] for node in shared)),
    )


def _shared(draft: TokenTree, retrieved: TokenTree) -> list[int]:
    """Retrieved nodes whose path the draft has too."""
    paths = {tuple(draft.tokens[n] for n in draft.path(node)) for node in range(len(draft.tokens))}
    return [
        node
        for node in range(len(retrieved.tokens))
        if tuple(retrieved.tokens[n] for n in retrieved.path(node)) in paths
    ]


INFO = PolicyInfo(
    config=RasdConfig,
    run=rasd_of,
    paper="RASD",
    predicts="nobody",
    drafts="tree by confidence (EAGLE-2), fused with a retrieved one",
    on_miss="-",
    verifies="tree",
    replay=DECISIONS,
    collocated=True,
    colour="#2f8f83",
    variants=(
        {},
        {"tree_depth": 3, "tree_topk": 2, "tree_budget": 6, "retrieval_nodes": 8},
        {"prune_top": 0, "fusion": "off"},
    ),
)
