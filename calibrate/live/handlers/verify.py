"""What workers do for `Verify` and `Settle`: one forward of the chains, or none."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from calibrate.live.choice import law
from calibrate.live.messages import SettleRows, Verified, VerifyRows
from calibrate.live.outcomes import cut, judge
from calibrate.live.verification import Proposals, judge_chains

if TYPE_CHECKING:
    from calibrate.live.executor import Executor


def verify(executor: Executor, message: VerifyRows) -> tuple[Verified, ...]:
    """Judge every row's chain in one forward."""
    rows = message.rows
    for row in rows:
        executor.rewind(row)
    chains = [(row.tail[-1], *row.tokens) for row in rows]
    start, fed = time.perf_counter(), executor.runner.fed
    logits = executor.runner.forward([row.slot for row in rows], chains)
    if message.sampling.greedy and not message.leave_open:
        best = logits.argmax(dim=-1).tolist()
        verified = [
            judge(row.tokens, judged[: len(row.tokens) + 1], row.room, executor.end_token_ids)
            for row, judged in zip(rows, best, strict=True)
        ]
    else:
        verified = _verify_sampled(executor, message, law(logits, message.sampling))
    executor.stamp("verify", start, fed, chains)
    executor.audit_fed(sum(map(len, chains)), "Verify")
    return tuple(verified)


def _verify_sampled(executor: Executor, message: VerifyRows, p: Tensor) -> list[Verified]:
    """As `verify`, from the target's laws [R, n, V]; keeps those of positions that stay open."""
    proposals = Proposals(message.rows, message.sampling, p.shape[-1], executor.reader)
    leave_open = np.full(len(message.rows), message.leave_open)
    verified = []
    for i, (row, run, bonus) in enumerate(
        zip(message.rows, *judge_chains(p, proposals, leave_open), strict=True)
    ):
        verified.append(cut(row.tokens[:run], bonus, row.room, executor.end_token_ids))
        if bonus is None and not verified[-1].ended:
            executor.leave_open(row, row.position + run, p[i, run].clone())
    return verified


def settle(executor: Executor, message: SettleRows) -> tuple[Verified, ...]:
    """Decide the positions that a verification left open; no forward, for their laws were kept."""
    rows = message.rows
    if not rows:
        return ()
    p = executor.open_laws(rows)[:, None]
    proposals = Proposals(rows, message.sampling, p.shape[-1], executor.reader)
    _, following = judge_chains(p, proposals, proposals.lengths > 0)
    return tuple(
        cut((), row.tokens[0] if bonus is None else bonus, row.room, executor.end_token_ids)
        for row, bonus in zip(rows, following, strict=True)
    )
