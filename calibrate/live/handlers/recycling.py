"""Token Recycling: a tree off the matrix is verified, and what the target says after its nodes goes back."""

from __future__ import annotations

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import rows_of
from calibrate.live.engine.sampling import top_tokens
from calibrate.live.handlers.trees import judged_trees, own_states
from policies.recycling import Matrix, Recycle
from policies.tokentree import TreeRound


@handles(Recycle)
def recycle(executor: Executor, operation: Recycle) -> list[TreeRound]:
    """Verify the tree of each row's matrix, then keep the target's top choices after every fed token."""
    config = operation.config
    states = own_states(executor, operation, operation.inputs, lambda prompt, _: Matrix(config, prompt))
    lasts = [row.tail[-1] for row in rows_of(operation.view)]
    trees = [state.tree(last) for state, last in zip(states, lasts, strict=True)]
    verdicts, paths, logits = judged_trees(executor, operation, trees)
    tops = top_tokens(logits.flatten(0, 1), min(config.recycled_top, logits.shape[-1]))
    rounds, width = [], logits.shape[1]
    for i, (state, tree) in enumerate(zip(states, trees, strict=True)):
        fed, kept = 1 + len(tree.tokens), (0, *(1 + node for node in paths[i]))
        state.recycle((lasts[i], *tree.tokens), tops[i * width :][:fed], (*range(fed), *kept))
        rounds.append(TreeRound(verdicts[i], paths[i], tree, (("verify", fed),)))
    return rounds
