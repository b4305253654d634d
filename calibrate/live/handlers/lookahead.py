"""Lookahead decoding: n-grams verified and guessed in one forward of the target."""

from __future__ import annotations

from calibrate.live.engine.executor import Executor, handles
from calibrate.live.engine.rows import rows_of
from calibrate.live.handlers.trees import judged_trees, own_states
from policies.lookahead import LookAhead, LookaheadState
from policies.tokentree import TreeRound


@handles(LookAhead)
def look_ahead(executor: Executor, operation: LookAhead) -> list[TreeRound]:
    """Feed n-grams and window, verify the former, move the latter on by what the target says after it."""
    config, seed = operation.config, operation.sampling.seed
    states = own_states(
        executor, operation, operation.inputs, lambda p, request: LookaheadState(config, p, (seed, request))
    )
    lasts = [row.tail[-1] for row in rows_of(operation.view)]
    trees = [state.guesses(last) for state, last in zip(states, lasts, strict=True)]
    windows = [state.window() for state in states]
    verdicts, paths, logits = judged_trees(executor, operation, trees, windows)
    best = logits.argmax(dim=-1).tolist()
    rounds = []
    for i, (state, tree, window) in enumerate(zip(states, trees, windows, strict=True)):
        fed = 1 + len(tree.tokens) + len(window.tokens)
        # Of a window of one level the first column is the last committed token.
        ends = (
            [*range(fed - config.window, fed)]
            if len(state.levels) > 1
            else [0, *range(fed - config.window + 1, fed)]
        )
        state.advance(lasts[i], [best[i][end] for end in ends])
        rounds.append(TreeRound(verdicts[i], paths[i], tree, (("verify", fed),)))
    return rounds
