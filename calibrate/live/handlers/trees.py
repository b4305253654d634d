"""Verification of token trees by the target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from calibrate.live.branching import Branching
from calibrate.live.outcomes import cut
from calibrate.live.treejudge import TreeJudge, judge_greedy
from policies.rowwise import RowVerdict
from policies.tokentree import ROOT, TokenTree, TreeVerdict

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import RowwiseRows


def verify_trees(executor: Executor, message: RowwiseRows) -> tuple[TreeVerdict, ...]:
    """Handler of `policies.tokentree.VerifyTree`."""
    rows, trees = message.rows, [TokenTree._make(ask) for ask in message.asks]
    for row in rows:
        executor.rewind(row)
    # The last committed token is node 0, from which the trees grow.
    tokens = [(row.tail[-1], *tree.tokens) for row, tree in zip(rows, trees, strict=True)]
    parents = [(ROOT, *(1 + parent for parent in tree.parents)) for tree in trees]
    start, fed = time.perf_counter(), executor.runner.fed
    branching = Branching(executor.runner, [row.slot for row in rows])
    logits = branching.feed(tokens, parents)
    if message.sampling.greedy:
        judged = judge_greedy(logits, trees)
    else:
        judged = TreeJudge(rows, trees, message.sampling, executor.reader).judge(logits)
    branching.keep([(0, *(1 + node for node in found.path)) for found in judged])
    executor.stamp("verify", start, fed, tokens)
    executor.audit_fed(sum(map(len, tokens)), "VerifyTree")
    replies = []
    for row, tree, found in zip(rows, trees, judged, strict=True):
        verified = cut([tree.tokens[n] for n in found.path], found.bonus, row.room, executor.end_token_ids)
        work = (("verify", 1 + len(tree.tokens)),)
        replies.append(TreeVerdict(RowVerdict(*verified), found.path, work))
    return tuple(replies)
