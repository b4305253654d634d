"""Tree speculation (SpecInfer, Miao et al. 2024; EAGLE-2's trees): draft a tree, verify it at once, repeat.

As vanilla speculative decoding, but with several candidates per position: nobody predicts the outcome of a
verification, and the devices take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from policies.config import DECISIONS, About, DraftSampling, PolicyConfig, PolicyInfo, SettingError, knobs_of
from policies.operation import RowAnswers
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.sampling import GREEDY, Sampling
from policies.tokentree import (
    ROOT,
    DraftTree,
    Plan,
    TokenTree,
    TreeBudget,
    TreeDepth,
    TreePlan,
    TreeTopk,
    TreeVerdict,
    TreeWidths,
    VerifyTree,
    checked_plan,
    drafted_tree,
)
from policies.values import UNKNOWN, Source, Speculation, View, verdict_of


@dataclass(frozen=True, slots=True)
class TreeConfig(PolicyConfig):
    """Knobs of `tree`.

    Attributes:
        draft_sampling: How the draft chooses.
        tree_plan: See `TreePlan`, as are the others.
        tree_widths: Children per level of a static tree.
        tree_depth: Levels of a dynamic one.
        tree_topk: Its nodes expanded per level.
        tree_budget: Its nodes.
    """

    policy: ClassVar[str] = "tree"
    draft_sampling: DraftSampling = "sampled"
    tree_plan: Annotated[
        Plan, About(help="Trees of a fixed shape by rank, or grown where the draft is confident (EAGLE-2).")
    ] = "static"
    tree_widths: TreeWidths = TreePlan.widths
    tree_depth: TreeDepth = TreePlan.depth
    tree_topk: TreeTopk = TreePlan.topk
    tree_budget: TreeBudget = TreePlan.budget

    @property
    def plan(self) -> TreePlan:
        """What the trees look like.

        Raises:
            SettingError: Numbers that make no tree.
        """
        return checked_plan(
            self.tree_plan,
            widths=self.tree_widths,
            depth=self.tree_depth,
            topk=self.tree_topk,
            budget=self.tree_budget,
        )

    def check(self, sampling: Sampling) -> None:
        """Refuse knobs that change nothing with the others."""
        dynamic = self.plan.kind == "dynamic"
        idle = ("tree_widths",) if dynamic else ("tree_depth", "tree_topk", "tree_budget")
        usual = knobs_of(TreeConfig)
        for name in idle:
            if getattr(self, name) != usual[name].default:
                raise SettingError(f"{name} changes nothing with tree_plan {self.tree_plan!r}")
        if dynamic and sampling.draft_sampled:
            raise SettingError(
                "a dynamic tree holds the draft's likeliest tokens, not drawn ones; give draft_sampling "
                "'greedy'"
            )

    @property
    def ahead(self) -> int:
        """The nodes of a tree."""
        return self.plan.nodes

    def follows_path(self, sampling: Sampling) -> bool:
        """It does for static trees in greedy decoding.

        A node's child is accepted if and only if the target's token is among the draft's first choices after
        the text, as many as the node has children.
        """
        return sampling.greedy and self.tree_plan == "static"

    @property
    def content_ignored(self) -> PolicyConfig:
        """A tree of a fixed shape in place of one grown by confidence: as deep, as wide, chains below."""
        return self if self.tree_plan == "static" else fixed_tree(self.tree_depth, self.tree_topk)


def fixed_tree(depth: int, topk: int) -> TreeConfig:
    """As deep as a tree grown by confidence, as wide at its root, chains below it."""
    return TreeConfig(tree_widths=(topk, *[1] * (depth - 1)))


def tree_speculation(world: World, rows: Rows, config: TreeConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a tree per row, verify the trees of all rows in one forward, repeat."""
    plan = config.plan
    unseen: dict[int, tuple[int, ...]] = {}
    while rows.active:
        fresh = yield from admit(world, rows)
        view = rows.view()
        unseen |= last_tokens(rows.view(fresh))
        inputs = tuple(unseen[slot] for slot in view.slots.tolist())
        drafted = yield world.draft.submit(
            DraftTree(
                view,
                rows.width,
                inputs,
                sampling,
                plan=plan.kind,
                widths=plan.widths,
                depth=plan.depth,
                topk=plan.topk,
                budget=plan.budget,
            )
        )
        trees = {slot: drafted_tree(drafted[slot]) for slot in view.slots.tolist()}
        verified = yield world.target.submit(VerifyTree(view, rows.width, tuple(trees.values()), sampling))
        unseen |= commit_trees(world, rows, view, trees, verified)


def last_tokens(view: View) -> dict[int, tuple[int, ...]]:
    """What a draft has not seen of newly prefilled rows, by slot: the prompt's last token."""
    tails = view.tails or ((UNKNOWN,),) * len(view.slots)
    return {slot: tail[-1:] for slot, tail in zip(view.slots.tolist(), tails, strict=True)}


def commit_trees(
    world: World, rows: Rows, view: View, trees: Mapping[int, TokenTree], verified: RowAnswers
) -> dict[int, tuple[int, ...]]:
    """Commit a round of trees; by slot the tokens that each row emitted.

    The round's length is the number of levels at which a candidate was tried, so that a row has accepted
    fewer tokens than that if and only if all candidates of a level failed.
    """
    slots = view.slots.tolist()
    lengths = np.zeros(rows.width, dtype=np.int64)
    lengths[view.slots] = [levels_tried(trees[slot], verified[slot]) for slot in slots]
    sources = np.full(rows.width, int(Source.NONE))
    sources[view.slots] = [(*trees[slot].sources, int(Source.NONE))[0] for slot in slots]
    verdict = verdict_of(rows.width, {slot: verified[slot].verdict for slot in slots})
    rows.commit(view, Speculation(lengths, sources), verdict, now=world.now)
    return {slot: tuple(verified[slot].verdict.emitted) for slot in slots}


def levels_tried(tree: TokenTree, found: TreeVerdict) -> int:
    """Accepted and emitted nodes, and one more level if all children of the last of them failed."""
    accepted, emitted, *_ = found.verdict
    if len(emitted) == accepted:  # cut before any failure
        return accepted
    end = found.path[-1] if found.path else ROOT
    return accepted + (end in tree.parents)


INFO = PolicyInfo(
    config=TreeConfig,
    run=tree_speculation,
    paper="Miao et al. 2024 (SpecInfer); Li et al. 2024 (EAGLE-2's trees)",
    predicts="nobody",
    drafts="tree",
    on_miss="-",
    verifies="tree",
    replay=DECISIONS,
    collocated=True,
    aliases=("specinfer",),
    colour="#937860",
    variants=(
        {"tree_widths": (2, 2, 1)},
        {"tree_plan": "dynamic", "tree_depth": 4, "tree_topk": 3, "tree_budget": 12},
    ),
)
