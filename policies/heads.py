"""Drafting heads on the target itself: Medusa, Hydra, EAGLE-2 and EAGLE-3, in the simulated world only.

Their heads are trained per target, and none is shipped here.  What they do to a run is simple to state: a
tree that costs some small share of target forwards, on the target's own device, and is then verified like
any other.  What is accepted comes from coins or from a histogram of published acceptance; what a pass of the
heads costs, as a share of a target forward over one token, is given.

| family | passes per round | |
|---|---|---|
| medusa | 1 | all heads read the same hidden state (Cai et al. 2024) |
| hydra | one per level | each head reads the token before (Ankner et al. 2024) |
| eagle2, eagle3 | one per level | one decoder layer, autoregressive (Li et al. 2024, 2025) |

EAGLE's trees follow the confidence of the head; here they have a static shape, whose widths are a knob.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from policies.config import DECISIONS, Knob, PolicyConfig, PolicyInfo
from policies.operation import RowOperation
from policies.protocols import Event, Steps, World
from policies.rows import Rows
from policies.sampling import GREEDY, Sampling
from policies.tokentree import Path, TokenTree, TreeDrafted, TreePlan, TreeWidths, tree_of, tree_rounds
from policies.values import View


@dataclass(frozen=True, slots=True)
class DraftHeads(RowOperation, cost_class="draft", reply=TreeDrafted):
    """Draft a tree with the heads of the target.  `inputs`: nothing, the heads read the target's own state.

    Attributes:
        widths: Children per level.
        passes: Calls of the heads, one after the other.
        cost: What each costs, in target forwards over one token.
    """

    widths: tuple[int, ...] = (4, 2, 1)
    passes: int = 1
    cost: float = 0.05


@dataclass(frozen=True, slots=True)
class HeadsConfig(PolicyConfig):
    """Knobs of `heads`."""

    policy: ClassVar[str] = "heads"
    heads: Annotated[
        Literal["medusa", "hydra", "eagle2", "eagle3"], Knob("Kind of heads that draft on the target.")
    ] = "eagle2"
    head_cost: Annotated[
        float, Knob("A pass of the heads, in target forwards over one token.", least=0.0)
    ] = 0.05
    tree_widths: TreeWidths = TreePlan.widths

    def check(self, sampling: Sampling) -> None:
        """Refuse widths that make no tree."""
        TreePlan(widths=self.tree_widths)

    @property
    def ahead(self) -> int:
        """The nodes of a tree."""
        return TreePlan(widths=self.tree_widths).nodes

    @property
    def passes(self) -> int:
        """Calls of the heads for a tree."""
        return 1 if self.heads == "medusa" else len(self.tree_widths)


def heads_speculation(world: World, rows: Rows, config: HeadsConfig, sampling: Sampling = GREEDY) -> Steps:
    """Draft a tree with the target's heads, verify it, repeat; all on the target's device."""
    widths, passes, cost = config.tree_widths, config.passes, config.head_cost

    def draft(view: View, unseen: tuple[Path, ...]) -> Generator[Event, Any, list[TokenTree]]:
        nothing = ((),) * len(unseen)
        heads = DraftHeads(view, rows.width, nothing, sampling, widths=widths, passes=passes, cost=cost)
        drafted = yield world.target.submit(heads)
        return [tree_of(drafted[slot]) for slot in view.slots.tolist()]

    return tree_rounds(world, rows, sampling, draft)


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
    worlds=("simulated",),
    aliases=("eagle", "eagle2", "eagle3", "mtp", "nextn", "medusa", "hydra"),
    implied={
        **{name: {"heads": name} for name in ("eagle2", "eagle3", "medusa", "hydra")},
        # A module per drafted token, one after the other, in a chain.
        **{name: {"heads": "eagle3", "tree_widths": (1, 1, 1)} for name in ("mtp", "nextn")},
    },
)
