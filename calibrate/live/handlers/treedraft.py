"""Drafting of token trees by a draft model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from calibrate.live.branching import Branching
from calibrate.live.choice import top_tokens
from calibrate.live.errors import AuditError
from calibrate.live.treegrowth import Dynamic, Static
from policies.tokentree import TokenTree, TreeDrafted, TreePlan

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import Row, RowwiseRows, Tokens


def draft_trees(executor: Executor, message: RowwiseRows) -> tuple[TreeDrafted, ...]:
    """Handler of `policies.tokentree.DraftTree`."""
    plan = TreePlan(*(message.option(name) for name in ("plan", "widths", "depth", "topk", "budget")))
    rows, runner = message.rows, executor.runner
    for row, unseen in zip(rows, message.asks, strict=True):
        _rewind(executor, row, unseen)
    if plan.kind == "dynamic":
        grower: Static | Dynamic = Dynamic(plan, len(rows))
    else:
        grower = Static(plan, rows, message.sampling, executor.writer)
    slots = [row.slot for row in rows]
    start, fed = time.perf_counter(), runner.fed
    first = runner.forward(slots, message.asks, last_only=True)
    told = message.option("root_top")
    tops = top_tokens(first[:, 0], told) if told else [[] for _ in rows]
    more = grower.grow(first)
    executor.stamp("feed", start, fed, message.asks)
    branching = Branching(runner, slots)
    while more:
        start, fed = time.perf_counter(), runner.fed
        tokens, parents = grower.pending()
        more = grower.grow(branching.feed(tokens, parents))
        executor.stamp("tree", start, fed, tokens)
    executor.audit_fed(sum(map(len, message.asks)) + len(rows) * sum(plan.fed), "DraftTree")
    return tuple(
        TreeDrafted(
            TokenTree._make(tree), (("feed", len(unseen)), *(("tree", n) for n in plan.fed)), tuple(top)
        )
        for tree, unseen, top in zip(grower.trees(), message.asks, tops, strict=True)
    )


def _rewind(executor: Executor, row: Row, unseen: Tokens) -> None:
    """Roll back to the committed text without its unseen end; nothing else may be missing."""
    held, keep = executor.runner.held(row.slot), row.context - len(unseen)
    before = row.tail[: max(0, len(row.tail) - len(unseen))]
    if not unseen or keep < 0 or tuple(unseen[-len(row.tail) :]) != row.tail[-len(unseen) :]:
        raise AuditError(f"a text of {row.context} tokens ends in {row.tail}, not in {unseen} (DraftTree)")
    if len(held) < keep or tuple(held[keep - len(before) : keep]) != before:
        raise AuditError(f"slot {row.slot} misses more than the {len(unseen)} unseen tokens (DraftTree)")
    executor.runner.rollback(row.slot, keep)
