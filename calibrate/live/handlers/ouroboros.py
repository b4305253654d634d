"""Ouroboros: drafts lengthened by phrases, verified, and what the target says kept as phrases."""

from __future__ import annotations

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import rows_of
from calibrate.live.handlers.trees import judged_trees, own_states
from policies.ouroboros import PhrasePool, VerifyPhrases
from policies.tokentree import TokenTree, TreeRound


@handles(VerifyPhrases)
def verify_phrases(executor: Executor, operation: VerifyPhrases) -> list[TreeRound]:
    """Verify each row's draft with the phrases below it; drafts and texts feed the pool."""
    prompts = [asked.prompt for asked in operation.inputs]
    pools = own_states(
        executor, operation, prompts, lambda p, _: PhrasePool(operation.length, operation.phrases, p)
    )
    drafts = [TokenTree._make(asked.tree) for asked in operation.inputs]
    trees = [pool.lengthened(draft) for pool, draft in zip(pools, drafts, strict=True)]
    verdicts, paths, logits = judged_trees(executor, operation, trees)
    best, rounds = logits.argmax(dim=-1).tolist(), []
    for i, (row, pool, draft, tree) in enumerate(
        zip(rows_of(operation.view), pools, drafts, trees, strict=True)
    ):
        pool.agree((row.tail[-1], *draft.tokens), best[i])
        pool.said(verdicts[i].emitted)
        rounds.append(TreeRound(verdicts[i], paths[i], tree, (("verify", 1 + len(tree.tokens)),)))
    return rounds
