"""Tree speculation (SpecInfer, Miao et al. 2024; EAGLE-2's trees): draft a tree, verify it at once, repeat.

As vanilla speculative decoding, but with several candidates per position: nobody predicts the outcome of a
verification, and the devices take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from policies.info import DECISIONS, PolicyInfo
from policies.knobs import KNOBS, SettingError
from policies.operations import UNKNOWN, Source, Speculation, View
from policies.protocols import Steps, World
from policies.rows import Rows, admit
from policies.rowwise import RowAnswers, verdict_of
from policies.sampling import GREEDY, Sampling
from policies.settings import Settings
from policies.tokentree import ROOT, DraftTree, TokenTree, TreePlan, TreeVerdict, VerifyTree, drafted_tree


def tree_speculation(world: World, rows: Rows, *, plan: TreePlan, sampling: Sampling = GREEDY) -> Steps:
    """Draft a tree per row, verify the trees of all rows in one forward, repeat.

    Args:
        world: Where.
        rows: The batch.
        plan: What the trees look like.
        sampling: How tokens are chosen.
    """
    unseen: dict[int, tuple[int, ...]] = {}
    while rows.active:
        fresh = yield from admit(world, rows)
        view = rows.view()
        unseen |= last_tokens(rows.view(fresh))
        asks = tuple(unseen[slot] for slot in view.slots.tolist())
        drafted = yield world.draft.submit(
            DraftTree(
                view,
                rows.width,
                asks,
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


def tree_plan(settings: Settings) -> TreePlan:
    """The plan of configured trees.

    Raises:
        SettingError: Numbers that make no tree.
    """
    try:
        return TreePlan(
            settings.option("tree_plan"),
            tuple(settings.option("tree_widths")),
            settings.option("tree_depth"),
            settings.option("tree_topk"),
            settings.option("tree_budget"),
        )
    except ValueError as error:
        raise SettingError(str(error)) from error


def _check(settings: Settings, given: Mapping[str, Any]) -> None:
    """Refuse knobs that change nothing with the others."""
    plan = tree_plan(settings)
    idle = ("tree_widths",) if plan.kind == "dynamic" else ("tree_depth", "tree_topk", "tree_budget")
    for name in idle:
        if given.get(name) not in {None, KNOBS[name].default}:
            raise SettingError(f"{name} changes nothing with tree_plan {plan.kind!r}")
    if plan.kind == "dynamic" and settings.draft_sampling == "sampled":
        raise SettingError(
            "a dynamic tree holds the draft's likeliest tokens, not drawn ones; give draft_sampling 'greedy'"
        )


def _run(world: World, rows: Rows, settings: Settings) -> Steps:
    return tree_speculation(world, rows, plan=tree_plan(settings), sampling=settings.sampling)


def nodes_ahead(settings: Settings) -> int:
    """Nodes of a setting's trees, which a cache has to hold besides the text; 0 without a tree."""
    options = dict(settings.options)
    if "tree_plan" in options:
        return tree_plan(settings).nodes
    if "tree_widths" in options:
        return TreePlan(widths=tuple(options["tree_widths"])).nodes
    return int(options.get("tree_budget", 0))


def follows_the_path(settings: Settings) -> bool:
    """Whether a path recorded by plain decoding decides every round.

    It does for static trees in greedy decoding: a node's child is accepted if and only if the target's token
    is among the draft's first choices after the text, as many as the node has children.
    """
    return settings.policy == INFO.name and settings.sampling.greedy and tree_plan(settings).kind == "static"


TREE_KNOBS = ("tree_plan", "tree_widths", "tree_depth", "tree_topk", "tree_budget")

INFO = PolicyInfo(
    name="tree",
    paper="Miao et al. 2024 (SpecInfer); Li et al. 2024 (EAGLE-2's trees)",
    predicts="nobody",
    drafts="tree",
    on_miss="-",
    verifies="tree",
    knobs=(*TREE_KNOBS, "draft_sampling"),
    run=_run,
    replay=DECISIONS,
    check=_check,
    aliases=("specinfer",),
)
