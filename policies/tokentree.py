"""Trees of candidate tokens: what they are, how a draft model writes them, how the target verifies them.

Every policy with more than one candidate per position ends here: a draft's tree, what a datastore returned,
several drafted sequences, and their fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from policies.config import Knob, SettingError, knobs_of
from policies.operation import RowOperation, Work
from policies.protocols import Event, Steps, World
from policies.rows import Rows, admit
from policies.sampling import Sampling
from policies.values import NO_HANDLE, UNKNOWN, RowVerdict, Slots, Source, Speculation, View, verdict_of

ROOT = -1
"""Parent of the nodes that follow the committed text."""
Path: TypeAlias = tuple[int, ...]
"""Token ids, one after the other."""


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
        handles: [n] of the distribution that a sampled node was drawn from; NO_HANDLE: it was chosen.
    """

    tokens: Path = ()
    parents: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    handles: tuple[int, ...] = ()

    @classmethod
    def of_paths(cls, paths: Sequence[Sequence[int]], source: Source = Source.PRIMARY) -> TokenTree:
        """The trie of some deterministic token sequences, in the order of their first appearance."""
        prefixes = dict.fromkeys(tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1))
        numbers = {prefix: node for node, prefix in enumerate(prefixes)}
        return cls(
            tuple(prefix[-1] for prefix in prefixes),
            tuple(numbers.get(prefix[:-1], ROOT) for prefix in prefixes),
            (int(source),) * len(prefixes),
            (NO_HANDLE,) * len(prefixes),
        )

    @property
    def paths(self) -> list[Path]:
        """[n] tokens on the way from the root to each node, itself included."""
        paths: list[Path] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((token,) if parent == ROOT else (*paths[parent], token))
        return paths

    def children(self, node: int) -> tuple[int, ...]:
        """Children of a node (ROOT: the first candidates), in the order in which they are tried."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)


def chain_of(tokens: Sequence[int], handle: int) -> TokenTree:
    """Drafted tokens as a tree; their distributions, if any, have successive handles."""
    count = range(len(tokens))
    kept = tuple(NO_HANDLE if handle == NO_HANDLE else handle + at for at in count)
    return TokenTree(tuple(tokens), tuple(at - 1 for at in count), (int(Source.PRIMARY),) * len(tokens), kept)


class TreeVerdict(NamedTuple):
    """Reply of `VerifyTree`: what the row emits, and the accepted nodes from the root on, before any cut."""

    verdict: RowVerdict
    path: tuple[int, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class VerifyTree(RowOperation, cost_class="verify", reply=TreeVerdict):
    """One target forward over the last committed token and all nodes of each row's tree.

    Every node sees the committed text and its own ancestors, and has the position of its depth.  The keys and
    values of the accepted path stay, those of all other nodes go.  `inputs`: a `TokenTree` per row; an empty
    one is a step of plain decoding.

    `states`: keep the hidden states of the accepted path, for heads that read them.
    """

    inputs: tuple[TokenTree, ...]
    states: bool = False


PlanKind: TypeAlias = Literal["static", "dynamic"]
MOST_NODES = 1024
"""Largest tree that may be asked for."""


@dataclass(frozen=True)
class TreePlan:
    """What a drafted tree looks like.

    A static tree has `widths[d]` children under every node of level d (Medusa's and SpecInfer's trees by
    rank).  A dynamic one is EAGLE-2's (Li et al. 2024, section 4): in each of `depth` levels the `topk` nodes
    of the newest level with the largest products of draft probabilities on their way get their `topk`
    likeliest children, and of all nodes the `budget` with the largest products are kept.  A child's product
    is never above its parent's, so that what is kept hangs together.

    Raises:
        SettingError: A number below 1, a tree of more than `MOST_NODES` nodes, or a budget that the levels
            cannot fill.
    """

    kind: PlanKind = "static"
    widths: tuple[int, ...] = (4, 2, 1)
    depth: int = 5
    topk: int = 4
    budget: int = 16

    def __post_init__(self) -> None:
        if self.kind == "static" and (not self.widths or min(self.widths) < 1):
            raise SettingError(f"tree widths must be numbers of at least 1, got {list(self.widths)}")
        if self.kind == "dynamic" and min(self.depth, self.topk, self.budget) < 1:
            raise SettingError(
                f"depth, topk and budget of a tree must be at least 1, "
                f"got {self.depth}, {self.topk} and {self.budget}"
            )
        if self.candidates > MOST_NODES:
            raise SettingError(f"a tree of {self.candidates} nodes is more than the {MOST_NODES} allowed")
        if self.kind == "dynamic" and self.budget > self.candidates:
            raise SettingError(
                f"a tree of depth {self.depth} and topk {self.topk} has {self.candidates} nodes, fewer than "
                f"its budget of {self.budget}; lower the budget or raise the others"
            )

    @property
    def candidates(self) -> int:
        """Nodes that come up while the tree is drafted; a dynamic one keeps `budget` of them."""
        if self.kind == "dynamic":
            return self.topk + (self.depth - 1) * self.topk**2
        return sum(accumulate(self.widths, mul))

    @property
    def nodes(self) -> int:
        """Nodes of the tree."""
        return self.budget if self.kind == "dynamic" else self.candidates

    @property
    def fed(self) -> tuple[int, ...]:
        """Tokens of each step `tree`; the last level's nodes go through the target alone."""
        if self.kind == "dynamic":
            return (self.topk,) * (self.depth - 1)
        return tuple(accumulate(self.widths[:-1], mul))


TreeKind: TypeAlias = Annotated[
    PlanKind, Knob("Trees of a fixed shape by rank, or grown where the draft is confident (EAGLE-2).")
]
TreeWidths: TypeAlias = Annotated[tuple[int, ...], Knob("Children per level of a static tree.")]
TreeDepth: TypeAlias = Annotated[int, Knob("Levels of a dynamic tree.", least=1)]
TreeTopk: TypeAlias = Annotated[int, Knob("Nodes expanded per level of a dynamic tree.", least=1)]
TreeBudget: TypeAlias = Annotated[int, Knob("Nodes kept of a dynamic tree.", least=1)]


def check_tree_knobs(config: Any) -> None:
    """Refuse knobs of a tree's shape, of a config with a `plan`, that change nothing with the others.

    Raises:
        SettingError: One does, or they make no tree.
    """
    kind, usual = config.plan.kind, knobs_of(type(config))
    idle = ("tree_widths",) if kind == "dynamic" else ("tree_depth", "tree_topk", "tree_budget")
    for name in idle:
        if getattr(config, name) != usual[name].default:
            raise SettingError(f"{name} changes nothing with tree_plan {kind!r}")


class TreeDrafted(NamedTuple):
    """Reply of `DraftTree`.

    Attributes:
        tree: A `TokenTree`, or its fields where it was read from a file; see `tree_of`.
        work: One step `feed`, then one step `tree` per level but the last.
        root_top: The likeliest tokens after the committed text, best first, as many as were asked for.
    """

    tree: TokenTree
    work: Work
    root_top: tuple[int, ...] = ()


def tree_of(reply: Any) -> TokenTree:
    """The tree of a reply, which a recording keeps as plain tuples."""
    return TokenTree._make(reply.tree)


@dataclass(frozen=True, slots=True)
class DraftTree(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a tree per row.  `inputs`: the committed tokens that the draft has not seen, at least one.

    One forward over these tokens, then one per level but the last, over all rows and nodes of it.  What the
    draft keeps is the committed text: of the tree nothing, so that the accepted tokens are fed again with the
    next ones.

    At a temperature above 0 the children of a static tree are independent draws from its distribution, which
    is kept for the verification, or its likeliest tokens (`Sampling.draft`); those of a dynamic one are
    always its likeliest.

    Attributes:
        plan: What the trees look like.
        root_top: How many of the draft's likeliest first tokens to tell (RASD prunes by them).
    """

    inputs: tuple[Path, ...]
    plan: TreePlan = TreePlan()
    root_top: int = 0


class TreeRound(NamedTuple):
    """Reply of an operation that makes a tree of what the target said earlier, and verifies it at once.

    Attributes:
        verdict: As of `TreeVerdict`, like `path` and `work`.
        tree: What was verified, deterministic.
    """

    verdict: RowVerdict
    path: tuple[int, ...]
    tree: TokenTree
    work: Work


Ask: TypeAlias = Callable[[View, tuple[Path, ...], tuple[Path, ...]], Generator[Event, Any, RowOperation]]
"""(rows, prompts of those that begin, what a draft has not seen of each) to steps that return an operation
with `TreeRound` replies."""


def own_rounds(world: World, rows: Rows, ask: Ask, *, drafts: bool = False) -> Steps:
    """Rounds of a target that adds to the trees itself, or makes them.

    Args:
        world: Where.
        rows: What to serve; their tokens have to be known.
        ask: Makes the operation of a round.
        drafts: Whether a draft model reads the prompts.
    """
    unseen: dict[int, Path] = {}
    while rows.active:
        yield from admit(world, rows, drafts=drafts)
        view = rows.view()
        begun = zip(view.requests, view.positions, strict=True)
        prompts = tuple(() if position else rows.text(request) for request, position in begun)
        unseen |= {slot: prompt[-1:] for slot, prompt in zip(view.slots, prompts, strict=True) if prompt}
        operation = yield from ask(view, prompts, tuple(unseen[slot] for slot in view.slots))
        replies = yield world.target.submit(operation)
        trees = [tree_of(replies[slot]) for slot in view.slots]
        unseen |= commit_trees(world, rows, view, trees, replies)


def target_rounds(world: World, rows: Rows, operation: Callable[[View, tuple[Path, ...]], Any]) -> Steps:
    """`own_rounds` without a draft: `operation` of (rows, prompts of those that begin) is a round's."""

    def ask(view: View, prompts: tuple[Path, ...], _: Any) -> Generator[Event, Any, Any]:
        yield from ()
        return operation(view, prompts)

    return own_rounds(world, rows, ask)


Propose: TypeAlias = Callable[[View, tuple[Path, ...]], Generator[Event, Any, list[TokenTree]]]
"""(rows, what the draft has not seen of each) to steps that return the rows' trees."""


def tree_rounds(
    world: World,
    rows: Rows,
    sampling: Sampling,
    propose: Propose,
    *,
    drafts: bool = False,
    states: bool = False,
) -> Steps:
    """Rounds that verify a tree per row, all rows in one forward.

    Args:
        world: Where.
        rows: What to serve.
        sampling: How tokens are chosen.
        propose: Makes the trees of a round.
        drafts: Whether a draft model reads the prompts.
        states: Whether heads of the target read its hidden states.
    """
    unseen: dict[int, Path] = {}
    while rows.active:
        fresh = yield from admit(world, rows, drafts=drafts, states=states)
        new, view = rows.view(fresh), rows.view()
        # Of newly prefilled rows a draft has not seen the prompt's last token.
        tails = new.tails or ((UNKNOWN,),) * len(new.slots)
        unseen |= {slot: tail[-1:] for slot, tail in zip(new.slots, tails, strict=True)}
        trees = yield from propose(view, tuple(unseen[slot] for slot in view.slots))
        verify = VerifyTree(view, rows.width, tuple(trees), sampling, states=states)
        replies = yield world.target.submit(verify)
        # A draft keeps the committed text alone, so that it has seen nothing of what was accepted.
        unseen |= commit_trees(world, rows, view, trees, replies)


def commit_trees(
    world: World,
    rows: Rows,
    view: View,
    trees: Sequence[TokenTree],
    replies: Mapping[int, TreeVerdict | TreeRound],
    *,
    hits: Slots | None = None,
) -> dict[int, Path]:
    """Commit a round of trees; by slot the tokens that each row emitted.  `hits` as of `Rows.commit`.

    The round's length is the number of levels at which a candidate was tried, so that a row has accepted
    fewer tokens than that if and only if all candidates of a level failed.
    """
    lengths, sources = [0] * rows.width, [int(Source.NONE)] * rows.width
    for slot, tree in zip(view.slots, trees, strict=True):
        lengths[slot] = levels_tried(tree, replies[slot])
        sources[slot] = int(tree.sources[0] if tree.sources else Source.NONE)
    verdicts = {slot: replies[slot].verdict for slot in view.slots}
    verified = Speculation(tuple(lengths), tuple(sources))
    rows.commit(view, verified, verdict_of(rows.width, verdicts), hits=hits, now=world.now)
    return {slot: verdict.emitted for slot, verdict in verdicts.items()}


def levels_tried(tree: TokenTree, reply: TreeVerdict | TreeRound) -> int:
    """Accepted and emitted nodes, and one more level if all children of the last of them failed."""
    accepted, emitted, *_ = reply.verdict
    if len(emitted) == accepted:  # cut before any failure
        return accepted
    end = reply.path[-1] if reply.path else ROOT
    return accepted + (end in tree.parents)
