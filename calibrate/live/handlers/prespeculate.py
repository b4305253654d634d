"""What workers do for `Prespeculate`: a glue step finds the outcomes, then a tree continues them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrate.live.choice import top_tokens
from calibrate.live.drafting import Pen
from calibrate.live.handlers.draft import drafted, pen_of
from calibrate.live.messages import Drafted, Outcome, Prepared, PrespeculateRows
from calibrate.live.outcomes import prepared_outcomes
from calibrate.live.tree import Tree

if TYPE_CHECKING:
    from calibrate.live.executor import Executor


def prespeculate(executor: Executor, message: PrespeculateRows) -> tuple[Prepared, ...]:
    """Prepare a speculation for every outcome that each row's fan-outs ask for."""
    for row in message.rows:
        executor.rewind(row)
    outcomes = glue(executor, "glue", message)
    if message.announce:
        executor.announce(tuple(Prepared(tuple((o, Drafted(())) for o in found)) for found in outcomes))
    grown = [i for i, found in enumerate(outcomes) if found]
    speculations: dict[int, list[Drafted]] = {i: [] for i in range(len(outcomes))}
    if grown:
        texts = iter(grow(executor, message, grown, [outcomes[i] for i in grown]))
        for i in grown:
            speculations[i] = [next(texts) for _ in outcomes[i]]
    branches = sum(map(len, outcomes))
    trunks = sum(1 + len(row.tokens) for row in message.rows)
    steps = message.lookahead
    if message.announce:  # then it may have been stopped
        steps = sum(step.name == "tree" for step in executor.steps)
    executor.audit_fed(trunks + steps * branches, "Prespeculate")
    return tuple(
        Prepared(tuple(zip(found, speculations[i], strict=True))) for i, found in enumerate(outcomes)
    )


def glue(executor: Executor, name: str, message: PrespeculateRows) -> list[list[Outcome]]:
    """One stamped step: feed the last committed token and the drafted ones, choose the outcomes.

    Returns:
        The outcomes to prepare for of every row.
    """
    rows = message.rows
    chains = [(row.tail[-1], *row.tokens) for row in rows]
    counts = [len(chain) for chain in chains]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([row.slot for row in rows], chains)
    flat = torch.cat([logits[i, :count] for i, count in enumerate(counts)])
    # One more than the fan-out, since the rejected token is left out.
    most = 1 + max(max(fanout[:n]) for fanout, n in zip(message.fanouts, counts, strict=True))
    ranked = iter(top_tokens(flat, most))
    outcomes = [
        prepared_outcomes(
            [next(ranked) for _ in range(count)],
            row.tokens,
            fanout,
            keep_rejected=message.keep_rejected,
            part=message.part,
        )
        for row, count, fanout in zip(rows, counts, message.fanouts, strict=True)
    ]
    executor.stamp(name, start, fed, chains)
    return outcomes


def grow(
    executor: Executor,
    message: PrespeculateRows,
    grown: Sequence[int],
    outcomes: Sequence[Sequence[Outcome]],
) -> tuple[Drafted, ...]:
    """Continue every outcome of the rows `grown` by `lookahead` tokens, all at once.

    Returns:
        The speculation of each outcome, row after row.
    """
    rows = [message.rows[i] for i in grown]
    # After k accepted tokens the last trunk token seen is the k-th drafted one.
    forks = [[row.context - 1 + k for k, _ in found] for row, found in zip(rows, outcomes, strict=True)]
    tree = executor.runner.open_tree([row.slot for row in rows], forks, message.lookahead)
    bonuses = [[bonus for _, bonus in found] for found in outcomes]
    tokens, real = branch_tokens(bonuses, executor.runner.device)
    # The verified token of an outcome has the position after its k accepted ones; this is the next one.
    keys = [
        (row.request, row.position + k + 1)
        for row, found in zip(rows, outcomes, strict=True)
        for k, _ in found
    ]
    pen = pen_of(executor, message, keys)
    columns: list[list[int]] = []
    while len(columns) < message.lookahead and not (message.announce and executor.stopped()):
        columns.append(tree_step(executor, tree, tokens, real, pen))
    executor.runner.close_tree(tree)
    if len(columns) < message.lookahead:  # nobody will ask for these
        return (Drafted(()),) * len(keys)
    return drafted(columns, pen)


def branch_tokens(tokens: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """[R, N] tokens, and which of them are real; None if all are."""
    width = max(map(len, tokens))
    padded = [[*row, *[0] * (width - len(row))] for row in tokens]
    table = torch.tensor(padded, dtype=torch.long, device=device)
    if min(map(len, tokens)) == width:
        return table, None
    counts = torch.tensor([len(row) for row in tokens], device=device)
    return table, torch.arange(width, device=device) < counts[:, None]


def tree_step(
    executor: Executor, tree: Tree, tokens: Tensor, real: Tensor | None, pen: Pen, *, name: str = "tree"
) -> list[int]:
    """One stamped step of every branch; overwrites `tokens` [R, N] by the next ones.

    Returns:
        The next token of every real branch, row after row.
    """
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.tree_forward(tree, tokens)
    chosen = pen.choose(logits.flatten(0, 1) if real is None else logits[real])
    if real is None:
        tokens.copy_(chosen.view(tokens.shape))
    else:
        tokens[real] = chosen
    # The stamp below is of done work, also where kernels run asynchronously.
    column: list[int] = chosen.tolist()
    executor.stamp(name, start, fed, [range(count) for count in tree.counts])
    return column
