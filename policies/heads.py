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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.info import DECISIONS, PolicyInfo
from policies.knobs import SettingError
from policies.protocols import Steps, World
from policies.rows import Rows, admit_target
from policies.rowwise import Like, Rowwise
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings
from policies.tokentree import TreeDrafted, TreePlan, VerifyTree, drafted_tree
from policies.tree import commit_trees


@dataclass(frozen=True, slots=True)
class DraftHeads(Rowwise):
    """Draft a tree with the heads of the target.  `asks`: nothing, the heads read the target's own state.

    Attributes:
        widths: Children per level.
        passes: Calls of the heads, one after the other.
        cost: What each costs, in target forwards over one token.
    """

    kind: ClassVar[str] = "draftheads"
    like: ClassVar[Like] = "draft"
    reply: ClassVar[type[Any]] = TreeDrafted

    widths: tuple[int, ...] = (4, 2, 1)
    passes: int = 1
    cost: float = 0.05


def passes_of(family: str, levels: int) -> int:
    """Calls of the heads for a tree of so many levels."""
    return 1 if family == "medusa" else levels


def heads_speculation(
    world: World,
    rows: Rows,
    *,
    family: str,
    widths: tuple[int, ...],
    cost: float,
    sampling: Sampling = GREEDY,
) -> Steps:
    """Draft a tree with the target's heads, verify it, repeat; all on the target's device."""
    passes = passes_of(family, len(widths))
    while rows.active:
        yield from admit_target(world, rows)
        view = rows.view()
        nothing = ((),) * len(view.slots)
        heads = DraftHeads(view, rows.width, nothing, sampling, widths=widths, passes=passes, cost=cost)
        drafted = yield world.target.submit(heads)
        trees = {slot: drafted_tree(drafted[slot]) for slot in view.slots.tolist()}
        verified = yield world.target.submit(VerifyTree(view, rows.width, tuple(trees.values()), sampling))
        commit_trees(world, rows, view, trees, verified)


def _check(settings: Settings, _: Mapping[str, Any]) -> None:
    """Refuse widths that make no tree."""
    try:
        TreePlan(widths=tuple(settings.option("tree_widths")))
    except ValueError as error:
        raise SettingError(str(error)) from error


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    return heads_speculation(
        world,
        rows,
        family=settings.option("heads"),
        widths=tuple(settings.option("tree_widths")),
        cost=settings.option("head_cost"),
        sampling=settings.sampling,
    )


INFO = PolicyInfo(
    name="heads",
    paper="Medusa, Hydra, EAGLE-2, EAGLE-3; baselines of DOUBLE, RASD and Mirror-SD",
    predicts="nobody",
    drafts="tree, by heads on the target",
    on_miss="-",
    verifies="tree",
    knobs=("heads", "tree_widths", "head_cost"),
    run=_run,
    replay=DECISIONS,
    needs_draft=False,
    worlds=("simulated",),
    check=_check,
)
