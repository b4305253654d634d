"""DuoDecoding's verification (`policies.duo`) on a worker: the pending block, then the first tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from calibrate.live.choice import ACCEPTED, BONUS, draw, one_hot, residual
from calibrate.live.messages import Row, RowwiseRows, Verified, VerifyRows
from calibrate.live.outcomes import cut
from policies.duo import (
    NO_SEQUENCE,
    Openings,
    PendingVerdict,
    Settled,
)
from policies.operations import NO_LAW, Source
from policies.rowwise import RowVerdict
from policies.sampling import keyed_uniforms

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from policies.operations import IntArray
    from policies.sampling import FloatArray


def verify_pending(executor: Executor, message: RowwiseRows) -> tuple[PendingVerdict, ...]:
    """A verification of chains like any other; see `policies.duo.VerifyPending`."""
    rows = tuple(
        row._replace(tokens=tokens, law=handle, source=int(Source.PRIMARY if tokens else Source.NONE))
        for row, (tokens, handle) in zip(message.rows, message.asks, strict=True)
    )
    verify = VerifyRows(rows, message.sampling, bool(message.option("leave_open")))
    verified = cast("tuple[Verified, ...]", executor.execute(verify))
    return tuple(
        PendingVerdict(
            RowVerdict(found.accepted, found.emitted, found.ended, found.bonus),
            (("verify", 1 + len(row.tokens)),),
        )
        for row, found in zip(rows, verified, strict=True)
    )


def settle_sequences(executor: Executor, message: RowwiseRows) -> tuple[Settled, ...]:
    """Try candidates one after the other by the open laws; see `policies.duo.SettleSequences`."""
    asks: list[Openings] = [Openings._make(ask) for ask in message.asks]
    rows = [
        row._replace(position=row.position + ask.accepted, room=row.room - ask.accepted)
        for row, ask in zip(message.rows, asks, strict=True)
    ]
    p = executor.open_laws(rows)
    chosen, tokens = try_candidates(executor, p, rows, asks, message.sampling.seed)
    replies = []
    for row, number, token in zip(rows, chosen, tokens, strict=True):
        found = cut((), token, row.room, executor.end_token_ids)
        replies.append(Settled(RowVerdict(0, found.emitted, found.ended, found.bonus), number, ()))
    return tuple(replies)


def try_candidates(
    executor: Executor, p: Tensor, rows: Sequence[Row], asks: Sequence[Openings], seed: int
) -> tuple[list[int], list[int]]:
    """Number of the accepted candidate of each row (NO_SEQUENCE: none), and the token emitted.

    A candidate is accepted with min(1, p / sigma), sigma one-hot for a chosen one; a failure leaves
    (p - sigma)+, normalised, to the next (`duo.verify`, recursive rejection sampling).

    Args:
        executor: Knows the laws of drawn candidates.
        p: [R, V] the target's laws.
        rows: [R] the open positions.
        asks: [R] candidates.
        seed: Of the run.
    """
    requests = np.array([row.request for row in rows], dtype=np.int64)
    positions = np.array([row.position for row in rows], dtype=np.int64)
    numbers = np.full(len(rows), NO_SEQUENCE, dtype=np.int64)
    emitted = np.zeros(len(rows), dtype=np.int64)
    for number in range(max(len(ask.tokens) for ask in asks)):
        trying = np.array(
            [i for i, ask in enumerate(asks) if numbers[i] == NO_SEQUENCE and number < len(ask.tokens)],
            dtype=np.int64,
        )
        if not len(trying):
            break
        candidates = np.array([asks[i].tokens[number] for i in trying], dtype=np.int64)
        handles = np.array([asks[i].law if number == 0 else NO_LAW for i in trying], dtype=np.int64)
        keys = (requests[trying], positions[trying])
        sigma = _laws_of(executor, handles, candidates, keys, p.shape[-1])
        own = torch.from_numpy(trying).to(p.device)
        left = p[own]
        at = np.arange(len(trying))
        under_p = left.cpu().numpy()[at, candidates]
        uniforms = keyed_uniforms(seed, ACCEPTED, *keys, number)
        passed = uniforms * sigma[at, candidates] < under_p
        numbers[trying[passed]], emitted[trying[passed]] = number, candidates[passed]
        rest = residual(left, torch.from_numpy(sigma).to(p.device))
        p = p.index_copy(0, own, rest / rest.sum(dim=-1, keepdim=True))
    drawn = draw(p, keyed_uniforms(seed, BONUS, requests, positions)).cpu().numpy()
    tokens: list[int] = np.where(numbers == NO_SEQUENCE, drawn, emitted).tolist()
    return numbers.tolist(), tokens


def _laws_of(
    executor: Executor,
    handles: IntArray,
    candidates: IntArray,
    keys: tuple[IntArray, IntArray],
    vocabulary: int,
) -> FloatArray:
    """[n, V] sigma of each candidate."""
    sigma: FloatArray = one_hot(torch.from_numpy(candidates), vocabulary).numpy()
    drawn = np.flatnonzero(handles != NO_LAW)
    if len(drawn):
        requests, positions = (key[drawn] for key in keys)
        # Asked for its own sake: it raises if a law is another token's.
        executor.reader.masses(handles[drawn], requests, positions, candidates[drawn], vocabulary)
        sigma[drawn] = executor.reader.laws(handles[drawn], vocabulary)
    return sigma
