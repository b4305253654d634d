"""Replay: the token model of a recorded trace, greedy or sampled (docs/explanation/replay.md)."""

from __future__ import annotations

import numpy as np

from hardware_profiles.trace import Trace
from policies.registry import SettingError
from policies.sampling import Sampling
from policies.values import Request, Source
from simulator.tokens.model import TokenModel, other_sampling
from simulator.tokens.outcomes import NEVER, accepted_runs
from simulator.tokens.sampled import SampledOutcomes

REPLAY_COLUMNS = (
    "target_logprob",
    "draft_logprob",
    "draft_rank",
    "draft_top_ids",
    "draft_top_logprobs",
    "target_at_draft_top_logprobs",
    "accept_mass",
)
"""Columns that `replay` reads; of a greedy trace only `draft_rank` and `draft_top_ids`."""


def replay(trace: Trace, *, limit: int | None = None, seed: int = 0) -> TokenModel:
    """The exact token model of a recorded trace, for runs at the target sampling it was recorded with.

    Args:
        trace: Recorded by plain decoding.  A greedy one needs `draft_rank`; `draft_top_ids` is used where
            present.  A sampled one needs all of `REPLAY_COLUMNS`.
        limit: Most tokens per request; by default all that were recorded.
        seed: Keys the luck of sampled decoding, beside the seed of the run; a greedy trace has none.

    Raises:
        TraceError: A column is missing.
        SettingError: The trace is shorter than `limit` for a request that did not end by itself, or its
            text cannot have been sampled from the target's recorded distribution.
    """
    sampling, sampled = recorded_sampling(trace), None
    rank = trace.column("draft_rank")
    if sampling.greedy:
        known = trace.columns.get("draft_top_ids")
        listed = NEVER if known is None else known.shape[1]
        run = accepted_runs(rank == 0, trace.ends)
        # The rejected token is the draft's first choice, rank 0, which outranks every other.
        need_rejected = np.where(rank < listed, rank, NEVER)
    else:
        if not np.isfinite(trace.column("target_logprob")).all():
            raise SettingError(
                "this trace holds a token of probability 0: its text was not sampled as it says"
            )
        sampled = SampledOutcomes(trace, seed)
        plain = sampled.outcomes(sampling, Source.PRIMARY)
        known = trace.column("draft_top_ids")
        listed, run, need_rejected = known.shape[1], plain.run, plain.need[0]
    return TokenModel.of(
        _traced_requests(trace, limit),
        np.diff(trace.offsets),
        run=run,
        need_rejected=need_rejected,
        need_free=np.where(rank < listed, rank + 1, NEVER),
        tokens=trace.token,
        ranked=known,
        max_fanout=NEVER if known is None else listed - 1,
        vocabulary=trace.meta.vocabulary,
        setting=(sampling.temperature, sampling.top_p),
        sampled=sampled,
    )


def check_sampling(trace: Trace, temperature: float, top_p: float = 1.0) -> None:
    """Refuse a run whose target samples otherwise than the trace's did.

    Raises:
        SettingError: It does; the message says what to record.
    """
    found = recorded_sampling(trace)
    both_greedy = found.greedy and temperature == 0.0
    if not both_greedy and (found.temperature, found.top_p) != (temperature, top_p):
        raise other_sampling((found.temperature, found.top_p), (temperature, top_p))


def recorded_sampling(trace: Trace) -> Sampling:
    """The target sampling that a trace was recorded with."""
    said = trace.meta.sampling
    return Sampling(
        temperature=float(str(said.get("temperature", 0.0))), top_p=float(str(said.get("top_p", 1.0)))
    )


def _traced_requests(trace: Trace, limit: int | None) -> list[Request]:
    requests = []
    for entry, length in zip(trace.requests, np.diff(trace.offsets).tolist(), strict=True):
        if limit is not None and limit > length and entry.ended == "limit":
            raise SettingError(
                f"the trace holds {length} tokens of request {entry.id}; --max-tokens {limit} needs a "
                f"longer recording (at most {length} with this trace)"
            )
        requests.append(Request(entry.id, len(entry.prompt), min(limit or length, length), entry.prompt))
    return requests
