"""SwiftSpec's draft: steps that expand a tree whose keys and values stay between operations."""

from __future__ import annotations

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import rows_of
from calibrate.live.engine.sampling import top_tokens
from calibrate.live.engine.trees import Branching
from calibrate.live.errors import AuditError
from calibrate.live.handlers.chains import feed
from policies.swiftspec import Grown, GrowTree


@handles(GrowTree)
def grow_tree(executor: Executor, operation: GrowTree) -> list[Grown]:
    """Move the root to where the text ends, then feed what is unseen of it, or the nodes to be expanded.

    Raises:
        AuditError: The text is another one than what is held after that.
    """
    (row,), (asked,) = rows_of(operation.view), operation.inputs
    slots, runner = [row.slot], executor.runner
    trees = executor.once("trees of swiftspec", dict[int, Branching])
    if asked.path:
        trees[row.slot].reroot(asked.path, asked.stay)
    if asked.unseen:
        logits, name, count = feed(executor, "feed", slots, [asked.unseen]), "feed", len(asked.unseen)
        trees[row.slot] = Branching(runner, slots)
        tops = top_tokens(logits, operation.children)
    else:
        tokens, name, count = [[path[-1] for _, path in asked.nodes]], "tree", len(asked.nodes)
        with executor.step("tree", tokens):
            logits = trees[row.slot].feed(tokens, [[parent for parent, _ in asked.nodes]])[0]
            tops = top_tokens(logits, operation.children)
    held = runner.held(row.slot)
    if len(held) != row.context or tuple(held[-len(row.tail) :]) != row.tail:
        raise AuditError(f"slot {row.slot} holds {len(held)} tokens of a text of {row.context} (GrowTree)")
    return [Grown(tuple(map(tuple, tops)), ((name, count),))]
