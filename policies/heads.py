"""Drafting heads on the target itself: Medusa, Hydra, EAGLE-2 and EAGLE-3.

A head reads the target's last hidden state and proposes a tree, which is then verified like any other; all
on the target's device.

| family | passes per round | trained here |
|---|---|---|
| medusa | 1 | yes: all heads read the same hidden state (Cai et al. 2024) |
| hydra | one per level | yes: each head reads the tokens before its own (Ankner et al. 2024) |
| eagle2 | one per level | yes: one decoder layer, autoregressive (Li et al. 2024, 2025) |
| eagle3 | one per level | no: reads three layers of the target |

Live, `medusa`, `hydra` and `eagle2` run with the heads that lie beside the target's weights (`calibrate pair
medusa`, `hydra`, `eagle`); what was accepted is recorded and replayed.  In a world of coins or of an engine's
histogram any family runs: what is accepted comes from there, and what a pass costs is a knob.

Nodes are a head's likeliest tokens, none is drawn: a verification at temperature above 0 accepts a node with
its probability under the target, which is lossless (`TokenTree`).  Where this differs from the authors' code:
Medusa's there has a hand-picked sparse tree and, at temperature above 0, typical acceptance, which is not
lossless; Hydra++ has deeper heads and a layer that passes over the text; EAGLE's takes the head's vocabulary
to be a part of the target's.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from policies.config import DECISIONS, Knob, PolicyConfig, PolicyInfo
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import (
    Path,
    TokenTree,
    TreeBudget,
    TreeDepth,
    TreeDrafted,
    TreeKind,
    TreePlan,
    TreeTopk,
    TreeWidths,
    check_tree_knobs,
    tree_of,
    tree_rounds,
)
from policies.values import View

HeadFamily: TypeAlias = Literal["medusa", "hydra", "eagle2", "eagle3"]
USUAL = TreePlan()
"""The tree where no other is asked for."""


@dataclass(frozen=True, slots=True)
class DraftHeads(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a tree with the heads of the target.  `inputs`: nothing, the heads read the target's own state.

    The reply's steps are `head:s`, s being the share of the target's weights that a pass reads.  The first
    one of a request feeds an EAGLE head the prompt, later ones what was accepted since.

    Attributes:
        heads: Their family.
        plan: What the trees look like.
        cost: What a pass costs in a world of coins, in target forwards over one token.
    """

    heads: HeadFamily = "eagle2"
    plan: TreePlan = USUAL
    cost: float = 0.05

    @property
    def passes(self) -> int:
        """Calls of the heads for a tree, one after the other."""
        return 1 if self.heads == "medusa" else 1 + len(self.plan.fed)


@dataclass(frozen=True, slots=True)
class HeadsConfig(PolicyConfig):
    """Knobs of `heads`."""

    policy: ClassVar[str] = "heads"
    heads: Annotated[HeadFamily, Knob("Kind of heads that draft on the target.")] = "eagle2"
    head_cost: Annotated[
        float,
        Knob("A pass of the heads, in target forwards over one token (worlds of coins).", least=0.0),
    ] = 0.05
    tree_plan: TreeKind = "static"
    tree_widths: TreeWidths = TreePlan.widths
    tree_depth: TreeDepth = TreePlan.depth
    tree_topk: TreeTopk = TreePlan.topk
    tree_budget: TreeBudget = TreePlan.budget

    def check(self, sampling: Sampling) -> None:
        """Refuse widths that make no tree, and knobs that change nothing."""
        check_tree_knobs(self)

    @property
    def plan(self) -> TreePlan:
        """What the trees look like."""
        return TreePlan(self.tree_plan, self.tree_widths, self.tree_depth, self.tree_topk, self.tree_budget)

    @property
    def ahead(self) -> int:
        """The nodes of a tree."""
        return self.plan.nodes


def heads_speculation(world: World, rows: Rows, config: HeadsConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a tree with the target's heads, verify it, repeat; all on the target's device."""
    heads, plan, cost = config.heads, config.plan, config.head_cost

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        nothing = ((),) * len(unseen)
        asked = DraftHeads(view, rows.width, nothing, sampling, heads=heads, plan=plan, cost=cost)
        drafted = yield world.target.submit(asked)
        return [tree_of(drafted[slot]) for slot in view.slots]

    return tree_rounds(world, rows, sampling, draft, states=True)


INFO = PolicyInfo(
    config=HeadsConfig,
    run=heads_speculation,
    paper="Medusa, Hydra, EAGLE-2, EAGLE-3; baselines of DOUBLE, RASD and Mirror-SD",
    predicts="nobody",
    drafts="tree, by heads on the target",
    on_miss="-",
    verifies="tree",
    order=10,
    replay=DECISIONS,
    needs_draft=False,
    collocated=True,
    aliases=("eagle", "eagle2", "eagle3", "mtp", "nextn", "medusa", "hydra"),
    implied={
        **{name: {"heads": name} for name in ("eagle2", "eagle3", "medusa", "hydra")},
        # A module per drafted token, one after the other, in a chain.
        **{name: {"heads": "eagle3", "tree_widths": (1, 1, 1)} for name in ("mtp", "nextn")},
    },
    variants=({"heads": "medusa"}, {"heads": "hydra"}, {"tree_plan": "dynamic"}),
)
