"""SwiftSpec (Zhang et al. 2025): the draft grows a tree without end, on devices of its own.

Whenever the target is free, it verifies the best nodes that there are; meanwhile the draft expands the best
leaves, step by step.  A verdict makes the token that it ends with the root: what hangs below it stays, keys
and values included, and the rest goes.  If the tree does not have that token, a new one begins.  One
sequence, as in the paper: the fewest seconds per token.

How large the tree is when the target is free is up to the clock, so that a simulation takes events, and
meets live runs in distribution alone.  What is accepted is the recorded path's: a node is right if and only
if the path goes through it, whether the path is greedy or sampled, for nodes are chosen and not drawn.

Where it differs from the authors' code: nodes are ranked by their ranks among their siblings, as in
`policies.recycling`, and not by the draft's probabilities, which a recorded path does not tell off the path;
the target takes what there is and waits for one step of the draft at most; the fused kernels are the
profile's matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from policies.config import Knob, LawInputs, LawValue, PolicyConfig, PolicyInfo, SettingError
from policies.operation import RowOperation, Work
from policies.protocols import Steps, World
from policies.recycling import DEEPER
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.tokentree import ROOT, Path, TokenTree, VerifyTree, commit_trees
from policies.values import NO_HANDLE, UNKNOWN, Source

MOST_NODES = 96
"""Of a tree: a draft that is so far ahead waits."""


@dataclass(frozen=True, slots=True)
class SwiftSpecConfig(PolicyConfig):
    """Knobs of `swiftspec`."""

    policy: ClassVar[str] = "swiftspec"
    expanded: Annotated[int, Knob("Nodes that the draft expands per step.", least=1, most=32)] = 4
    children: Annotated[int, Knob("Children that each of them gets.", least=1, most=16)] = 3
    verified: Annotated[int, Knob("Most nodes verified at once.", least=1, most=64)] = 7

    @property
    def ahead(self) -> int:
        """The nodes verified."""
        return self.verified

    @property
    def draft_ahead(self) -> int:
        """The nodes expanded."""
        return MOST_NODES

    @property
    def longest_run(self) -> int:
        """A path of the nodes verified."""
        return self.verified

    def follows_path(self, sampling: Sampling) -> bool:
        """Nodes are the draft's first choices."""
        return True

    def law(self, inputs: LawInputs, batch: int) -> LawValue:
        """None is given."""
        return LawValue("none", reason="the paper gives no law for SwiftSpec")


class Growth(NamedTuple):
    """What a step of the draft is told; nodes have the numbers in which they were fed.

    Attributes:
        path: Nodes that have become text since.
        stay: Of the others those that hang below it; from now on they have the numbers 0, 1, ...
        unseen: Text behind it that was not fed; then nothing stays, and no node is fed.
        nodes: Parent and path of each node to be fed, tokens from the end of the text on.
    """

    path: tuple[int, ...]
    stay: tuple[int, ...]
    unseen: Path
    nodes: tuple[tuple[int, Path], ...]


class Grown(NamedTuple):
    """Reply of `GrowTree`: the draft's likeliest tokens after each node fed, or after the text."""

    tops: tuple[Path, ...]
    work: Work


@dataclass(frozen=True, slots=True)
class GrowTree(RowOperation, cost_class="draft", reply=Grown):
    """One step of the draft.  `inputs`: `Growth`; `part` numbers the steps of a request."""

    inputs: tuple[Growth, ...]
    children: int = 3


@dataclass(slots=True)
class _Node:
    """A token of the tree; `cost`: by which nodes are ranked, the smallest first."""

    parent: int
    token: int
    path: Path
    cost: float


class Tree:
    """What hangs below the text of a request, and what of it the draft holds.

    Args:
        config: The knobs.
        last: Tokens of the text that the draft has not seen.
    """

    def __init__(self, config: SwiftSpecConfig, last: Path) -> None:
        self.config = config
        self.nodes: dict[int, _Node] = {}
        self.steps = 0
        self._root = ROOT  # the node that the text ends with, if it was one
        self._fed: list[int] = []  # by number
        self._added = 0
        self._text: list[tuple[int, int]] = [(ROOT, token) for token in last]  # since the last step

    def candidates(self) -> TokenTree:
        """The best nodes, parents first, to be verified."""
        ranked = sorted(self.nodes, key=lambda each: (self.nodes[each].cost, each))
        chosen = sorted(ranked[: self.config.verified])
        number = {ROOT: ROOT} | {each: i for i, each in enumerate(chosen)}
        count = len(chosen)
        return TokenTree(
            tuple(self.nodes[each].token for each in chosen),
            tuple(number[self.nodes[each].parent] for each in chosen),
            (int(Source.PRIMARY),) * count,
            (NO_HANDLE,) * count,
        )

    def growth(self, room: int) -> tuple[list[int], Growth] | None:
        """The nodes that the draft expands next ([ROOT]: the text), and what it is told; None: it rests."""
        place = {each: number for number, each in enumerate(self._fed)}
        held = next((n for n, (each, _) in enumerate(self._text) if each not in place), len(self._text))
        path = tuple(place[each] for each, _ in self._text[:held])
        unseen = tuple(token for _, token in self._text[held:])
        leaves = [e for e, node in self.nodes.items() if e not in place and len(node.path) < room]
        if not unseen and (not leaves or len(self.nodes) > MOST_NODES - self.config.children):
            return None
        leaves.sort(key=lambda each: (self.nodes[each].cost, each))
        expanded = [] if unseen else sorted(leaves[: self.config.expanded])
        stay = [each for each in self._fed if each in self.nodes]
        kept = tuple(place[each] for each in stay) if path else ()
        number = {ROOT: ROOT} | {each: i for i, each in enumerate(stay)}
        nodes = tuple((number[self.nodes[each].parent], self.nodes[each].path) for each in expanded)
        self._fed, self._text, self.steps = [*stay, *expanded], [], self.steps + 1
        return expanded or [ROOT], Growth(path, kept, unseen, nodes)

    def add(self, expanded: Sequence[int], tops: Sequence[Path]) -> None:
        """Hang children below the nodes of a step that are still there."""
        for parent, tokens in zip(expanded, tops, strict=True):
            if parent in (ROOT, self._root):  # it may have become the root in the meantime
                above = _Node(ROOT, UNKNOWN, (), 1.0)
            elif parent in self.nodes:
                above = self.nodes[parent]
            else:
                continue
            under = parent if parent in self.nodes else ROOT
            for rank, token in enumerate(tokens):
                cost = above.cost * DEEPER * (rank + 1)
                self.nodes[self._added] = _Node(under, token, (*above.path, token), cost)
                self._added += 1

    def reroot(self, emitted: Path) -> None:
        """Go on behind emitted tokens, with what hangs below them, if the tree has all of them."""
        root = ROOT
        for depth, token in enumerate(emitted):
            below = (e for e, node in self.nodes.items() if node.parent == root and node.token == token)
            root = next(below, ROOT)
            if root == ROOT:
                self._text += [(ROOT, each) for each in emitted[depth:]]
                self.nodes, self._root = {}, ROOT
                return
            self._text.append((root, token))
        kept: dict[int, _Node] = {}
        for each, node in self.nodes.items():
            if node.parent == root or node.parent in kept:
                parent = ROOT if node.parent == root else node.parent
                cost = node.cost / self.nodes[root].cost
                kept[each] = _Node(parent, node.token, node.path[len(emitted) :], cost)
        self.nodes, self._root = kept, root


def swiftspec(world: World, rows: Rows, config: SwiftSpecConfig, sampling: Sampling = GREEDY) -> Steps:
    """Verify the best nodes whenever the target is free; grow the tree whenever the draft is.

    Raises:
        SettingError: More rows than one.
    """
    if rows.width > 1:
        raise SettingError("an asynchronous tree serves one sequence: take batch 1")
    verify: Any = None
    grow: Any = None
    while rows.active:
        fresh = yield from admit(world, rows)
        if fresh:
            tree = Tree(config, (rows.view().tails or ((UNKNOWN,),))[0][-1:])
        view = rows.view()
        if verify is None and tree.nodes:
            judged, candidates = view, tree.candidates()
            verify = world.target.submit(VerifyTree(judged, rows.width, (candidates,), sampling))
        if grow is None and (step := tree.growth(view.rooms[0])) is not None:
            expanded, growth = step
            knobs: dict[str, Any] = {"part": tree.steps, "children": config.children}
            grow = world.draft.submit(GrowTree(view, rows.width, (growth,), sampling, **knobs))
        running = [each for each in (verify, grow) if each is not None]
        happened = yield running[0] | running[-1]
        if grow in happened:
            tree.add(expanded, grow.value[view.slots[0]].tops)
            grow = None
        if verify in happened:
            emitted = commit_trees(world, rows, judged, [candidates], verify.value)
            tree.reroot(emitted[judged.slots[0]])
            verify = None
            if not rows.alive and grow is not None:
                yield grow
                grow = None


INFO = PolicyInfo(
    config=SwiftSpecConfig,
    run=swiftspec,
    paper="Zhang et al. 2025 (SwiftSpec)",
    predicts="the draft's tree",
    drafts="a tree that goes on growing below what is verified",
    on_miss="a new tree",
    verifies="tree",
    order=9.5,
    clocked=True,
    colour="#1f8f8a",
    variants=({}, {"expanded": 2, "children": 2, "verified": 4}),
)
