"""Tree speculation (SpecInfer, Miao et al. 2024; EAGLE-2's trees): draft a tree, verify it at once, repeat.

As vanilla speculative decoding, but with several candidates per position: nobody predicts the outcome of a
verification, and the devices take turns.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.config import DECISIONS, DraftSampling, PolicyConfig, PolicyInfo, SettingError
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import (
    DraftTree,
    Path,
    TokenTree,
    TreeBudget,
    TreeDepth,
    TreeKind,
    TreePlan,
    TreeTopk,
    TreeWidths,
    check_tree_knobs,
    tree_of,
    tree_rounds,
)
from policies.values import View


@dataclass(frozen=True, slots=True)
class TreeConfig(PolicyConfig):
    """Knobs of `tree`; see `TreePlan`."""

    policy: ClassVar[str] = "tree"
    draft_sampling: DraftSampling = "sampled"
    tree_plan: TreeKind = "static"
    tree_widths: TreeWidths = TreePlan.widths
    tree_depth: TreeDepth = TreePlan.depth
    tree_topk: TreeTopk = TreePlan.topk
    tree_budget: TreeBudget = TreePlan.budget

    @property
    def plan(self) -> TreePlan:
        """What the trees look like."""
        return TreePlan(self.tree_plan, self.tree_widths, self.tree_depth, self.tree_topk, self.tree_budget)

    def check(self, sampling: Sampling) -> None:
        """Refuse knobs that change nothing with the others."""
        check_tree_knobs(self)
        if self.tree_plan == "dynamic" and sampling.draft_sampled:
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

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        drafted = yield world.draft.submit(DraftTree(view, rows.width, unseen, sampling, plan=plan))
        return [tree_of(drafted[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, draft, drafts=True)


INFO = PolicyInfo(
    config=TreeConfig,
    run=tree_speculation,
    paper="Miao et al. 2024 (SpecInfer); Li et al. 2024 (EAGLE-2's trees)",
    predicts="nobody",
    drafts="tree",
    on_miss="-",
    verifies="tree",
    order=9,
    replay=DECISIONS,
    collocated=True,
    aliases=("specinfer",),
    colour="#937860",
    variants=(
        {"tree_widths": (2, 2, 1)},
        {"tree_plan": "dynamic", "tree_depth": 4, "tree_topk": 3, "tree_budget": 12},
    ),
)
