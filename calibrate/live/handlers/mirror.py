"""Mirror-SD's operations (`policies.mirror`) on a worker: the speaking verification, and the rollouts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from calibrate.live.choice import BONUS, draw, law, top_tokens
from calibrate.live.exits import Exits, load_exits
from calibrate.live.handlers.prespeculate import grow
from calibrate.live.messages import Outcome, PrespeculateRows, Row, RowwiseRows, Step, Verified
from calibrate.live.outcomes import cut, judge
from calibrate.live.verification import Proposals, judge_chains
from policies.mirror import Branch, Candidates, EarlyVerdict, Plan, Rolled, Window, forks
from policies.operations import Source
from policies.rowwise import RowVerdict
from policies.sampling import keyed_uniforms

if TYPE_CHECKING:
    from calibrate.live.executor import Executor

KEPT = "exits"
"""Name under which an executor keeps its model's early exits."""


def exits_of(executor: Executor) -> Exits:
    """The early exits of the executor's model, loaded on first use."""
    return executor.once(KEPT, lambda: load_exits(executor.runner.model))


class Exit:
    """Looks at a forward on its way, and says what an early exit takes for the next tokens.

    Args:
        executor: Says it.
        message: A speaking verification.
        counts: [R] tokens fed to each row.

    Attributes:
        began: When the exit layer was done.
        ended: When the word was out; the layers after the exit run from then on.
    """

    def __init__(self, executor: Executor, message: RowwiseRows, counts: Sequence[int]) -> None:
        self.exits = exits_of(executor)
        self.name = str(message.option("exit"))
        self.layer = self.exits.layer(self.name)
        self.kappa = int(message.option("kappa"))
        self.counts = [1] * len(counts) if message.option("candidates") == "first" else list(counts)
        self.began = self.ended = 0.0
        self._executor = executor

    def see(self, hidden: Tensor) -> None:
        """Announce the candidates of each row at the positions that count, from hidden states [R, n, H]."""
        self.began = time.perf_counter()
        table = self.exits.logits(self.name, hidden[:, : max(self.counts)])
        ranked = iter(top_tokens(_joined(table, self.counts), self.kappa))
        self._executor.announce(
            tuple(Candidates(tuple(tuple(next(ranked)) for _ in range(count))) for count in self.counts)
        )
        self.ended = time.perf_counter()

    @property
    def shares(self) -> tuple[str, str]:
        """Names of the forward's steps before and after the exit, with their shares of its layers."""
        share = self.layer / self.exits.layers
        return f"early:{share:.4g}", f"late:{1.0 - share:.4g}"


def _joined(table: Tensor, counts: Sequence[int]) -> Tensor:
    """[sum counts, V] the first `counts` [R] entries of each row of a table [R, n, V]."""
    from torch import cat

    return cat([table[i, :count] for i, count in enumerate(counts)])


def verify_early(executor: Executor, message: RowwiseRows) -> tuple[EarlyVerdict, ...]:
    """One forward that speaks on its way; see `policies.mirror.EarlyVerify`."""
    rows = _with_windows(message)
    for row in rows:
        executor.rewind(row)
    chains = [(row.tail[-1], *row.tokens) for row in rows]
    exit_ = Exit(executor, message, [len(chain) for chain in chains])
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward_through([row.slot for row in rows], chains, exit_.layer, exit_.see)
    verified = judged(executor, message, rows, logits)
    _stamp(executor, exit_, start, executor.runner.fed - fed, chains)
    executor.audit_fed(sum(map(len, chains)), "EarlyVerify")
    early, late = exit_.shares
    return tuple(
        EarlyVerdict(
            RowVerdict(found.accepted, found.emitted, found.ended, found.bonus),
            ((early, len(chain)), ("exit", 0), (late, 0)),
        )
        for found, chain in zip(verified, chains, strict=True)
    )


def _with_windows(message: RowwiseRows) -> list[Row]:
    rows = []
    for row, ask in zip(message.rows, message.asks, strict=True):
        window = Window._make(ask)
        source = Source.PRIMARY if window.tokens else Source.NONE
        rows.append(row._replace(tokens=window.tokens, law=window.law, source=int(source)))
    return rows


def judged(executor: Executor, message: RowwiseRows, rows: Sequence[Row], logits: Tensor) -> list[Verified]:
    """[R] outcomes, by the rule that the message names, from the target's logits [R, n, V]."""
    if message.sampling.greedy:
        return matched(executor, rows, logits.argmax(dim=-1).tolist())
    p = law(logits, message.sampling)
    if message.option("rule") == "matching":
        return matched(executor, rows, own_draws(rows, p, message.sampling.seed))
    proposals = Proposals(rows, message.sampling, p.shape[-1], executor.reader)
    accepted, following = judge_chains(p, proposals, np.zeros(len(rows), dtype=np.bool_))
    return [
        cut(row.tokens[:run], bonus, row.room, executor.end_token_ids)
        for row, run, bonus in zip(rows, accepted, following, strict=True)
    ]


def matched(executor: Executor, rows: Sequence[Row], own: Sequence[Sequence[int]]) -> list[Verified]:
    """[R] outcomes of accepting what equals the target's own tokens [R, n] (`mirror.eq3`, `mirror.eq11`)."""
    return [
        judge(row.tokens, tokens[: len(row.tokens) + 1], row.room, executor.end_token_ids)
        for row, tokens in zip(rows, own, strict=True)
    ]


def own_draws(rows: Sequence[Row], p: Tensor, seed: int) -> list[list[int]]:
    """[R, n] the target's own token at every position, drawn from its laws p [R, n, V].

    Keyed by request and position, and by nothing that the draft draws from: so the token at a position is
    from p whatever was drafted there.
    """
    count = p.shape[1]
    requests = np.array([row.request for row in rows], dtype=np.int64)[:, None]
    positions = np.array([row.position for row in rows], dtype=np.int64)[:, None] + np.arange(count)
    uniforms = keyed_uniforms(seed, BONUS, requests, positions)
    drawn: list[list[int]] = draw(p.flatten(0, 1), uniforms.reshape(-1)).view(len(rows), count).tolist()
    return drawn


def _stamp(executor: Executor, exit_: Exit, start: float, fed: int, chains: Sequence[Sequence[int]]) -> None:
    """Note the forward as its three pieces; what was fed is counted once."""
    early, late = exit_.shares
    shape = len(chains), max(map(len, chains))
    executor.steps += [
        Step(early, start, exit_.began, fed, *shape),
        Step("exit", exit_.began, exit_.ended, 0, *shape),
        Step(late, exit_.ended, time.perf_counter(), 0, *shape),
    ]


def roll_out(executor: Executor, message: RowwiseRows) -> tuple[Rolled, ...]:
    """A glue step, then all branches side by side; see `policies.mirror.Rollout`."""
    plans = [Plan(Window._make(ask[0]), ask[1]) for ask in message.asks]
    rows = [row._replace(tokens=plan.window.tokens) for row, plan in zip(message.rows, plans, strict=True)]
    for row in rows:
        executor.rewind(row)
    chains = [(row.tail[-1], *row.tokens) for row in rows]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([row.slot for row in rows], chains)
    logits[0, 0, 0].item()  # the stamp is of done work
    executor.stamp("glue", start, fed, chains)
    lookahead = int(message.option("lookahead"))
    outcomes: list[tuple[Outcome, ...]] = [forks(plan) for plan in plans]
    branches = _grown(executor, message, rows, outcomes, lookahead)
    executor.audit_fed(sum(map(len, chains)) + lookahead * sum(map(len, outcomes)), "Rollout")
    return tuple(
        Rolled(
            tuple(tuple(branch) for branch in found),
            (("glue", len(chain)), *[("tree", len(found))] * (lookahead if found else 0)),
        )
        for found, chain in zip(branches, chains, strict=True)
    )


def _grown(
    executor: Executor,
    message: RowwiseRows,
    rows: Sequence[Row],
    outcomes: Sequence[Sequence[Outcome]],
    lookahead: int,
) -> list[list[Branch]]:
    """[R] branches of each row, of all rows in the same steps."""
    grown = [i for i, found in enumerate(outcomes) if found]
    branches: list[list[Branch]] = [[] for _ in rows]
    if not grown:
        return branches
    tree = PrespeculateRows(tuple(rows), lookahead, (), message.sampling)
    drafted: Any = iter(grow(executor, tree, grown, [outcomes[i] for i in grown]))
    for i in grown:
        for accepted, token in outcomes[i]:
            tokens, handle = next(drafted)
            branches[i].append(Branch(accepted, (token, *tokens), handle))
    return branches
