"""Token models: *what* is accepted and cached, apart from *when* (design.md, section 3).

Greedy decoding needs three numbers per position of a request, whatever the policy does:

- `run`: how many consecutive positions from here the draft's own first choice is the target's token;
- `need_rejected`: the smallest fan-out whose cached set holds the target's token, given that the
  draft's first choice was verified here and rejected;
- `need_free`: the same when nothing was rejected here (all accepted, or a plain decode).

`replay` takes them from a recorded trace and is exact; `coin` draws them: the world of the papers' laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from policies.laws.ssd import PowerLaw
from policies.operations import (
    UNKNOWN,
    BoolArray,
    IntArray,
    Request,
    Source,
    Speculation,
    Verdict,
    View,
)
from policies.randomness import keyed_generator
from policies.registry import SettingError

if TYPE_CHECKING:
    from hardware_profiles.trace import Trace

NEVER = np.iinfo(np.int64).max // 4
"""A fan-out that no budget reaches."""


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Outcomes of every position, request after request, in flat arrays of n positions.

    Attributes:
        starts: [largest request id + 1] index of each request's first position; -1 for unknown ids.
        lengths: [largest request id + 1] positions of each request.
        run: [n] accepted run of the primary draft from each position, within the request.
        need_rejected: [n] fan-out needed for a hit after a rejection there.
        need_free: [n] fan-out needed for a hit where nothing was rejected.
        tokens: [n] the target's token; None without ids.
        ranked: [n, M] the draft's first M choices; None without ids.
        max_fanout: Largest F_k that the ranks recorded can decide.
        vocabulary: Number of token ids; 0 without ids.
        requests: What can be served, in order.
        law: The hit curve that coins are tossed by; None for a recording.
    """

    starts: IntArray
    lengths: IntArray
    run: IntArray
    need_rejected: IntArray
    need_free: IntArray
    tokens: IntArray | None
    ranked: IntArray | None
    max_fanout: int
    vocabulary: int
    requests: tuple[Request, ...]
    law: PowerLaw | None = None

    def verify(self, view: View, speculation: Speculation) -> Verdict:
        """Outcome of verifying `speculation` for the rows of `view` (both greedy)."""
        slots = view.slots
        here = self.starts[view.requests] + view.positions
        lengths = speculation.lengths[slots]
        accepted = np.minimum(lengths, self.run[here])
        if speculation.has_random:
            random = speculation.sources[slots] == Source.RANDOM
            accepted[random] = self._accepted_random(here[random], speculation, slots[random])
        # `run` ends with the request, so the accepted tokens fit in its room unless the limit is lower.
        accepted = np.minimum(accepted, view.rooms)
        emitted = np.minimum(accepted + 1, view.rooms)
        width = len(speculation.lengths)
        bonus = np.full(width, UNKNOWN, dtype=np.int64)
        if self.tokens is not None:
            last = np.minimum(here + accepted, len(self.tokens) - 1)
            bonus[slots] = np.where(emitted > accepted, self.tokens[last], UNKNOWN)
        return Verdict(
            _spread(accepted, slots, width),
            _spread(emitted, slots, width),
            _spread(emitted == view.rooms, slots, width),
            bonus,
        )

    def hits(self, view: View, speculation: Speculation, verdict: Verdict, fanout: IntArray) -> BoolArray:
        """[B] whether the outcome lies in a cache of `fanout` [K + 1] outcomes per accepted count."""
        slots = view.slots
        accepted = verdict.accepted[slots]
        here = self.starts[view.requests] + view.positions
        at = np.minimum(here + accepted, len(self.run) - 1)
        rejected = accepted < speculation.lengths[slots]
        need = np.where(rejected, self.need_rejected[at], self.need_free[at])
        if speculation.has_random:
            random = (speculation.sources[slots] == Source.RANDOM) & rejected
            need[random] = self._need_after_random(at[random], accepted[random], speculation, slots[random])
        hit = (fanout[accepted] >= need) & ~verdict.ended[slots]
        return _spread(hit, slots, len(speculation.lengths))

    def continues(self, view: View, speculation: Speculation, verdict: Verdict) -> BoolArray:
        """[B] whether all was accepted and the draft's own next choice is the bonus token (PEARL)."""
        slots = view.slots
        here = self.starts[view.requests] + view.positions
        lengths = speculation.lengths[slots]
        hit = (self.run[here] > lengths) & (verdict.accepted[slots] == lengths) & ~verdict.ended[slots]
        return _spread(hit, slots, len(speculation.lengths))

    def repeated(self, count: int) -> TokenModel:
        """The same model serving `count` requests: its own, then the same again under new ids."""
        base, ids = len(self.starts), [r.id for r in self.requests]
        rounds = -(-count // len(ids))
        again = [
            replace(request, id=request.id + base * k) for k in range(rounds) for request in self.requests
        ]
        return replace(
            self,
            starts=np.tile(self.starts, rounds),
            lengths=np.tile(self.lengths, rounds),
            requests=tuple(again[:count]),
        )

    def _accepted_random(self, here: IntArray, speculation: Speculation, slots: IntArray) -> IntArray:
        """Accepted random tokens per row; without ids none ever is."""
        if self.tokens is None or speculation.tokens is None:
            return np.zeros(len(here), dtype=np.int64)
        drawn = speculation.tokens[slots]
        at = here[:, None] + np.arange(drawn.shape[1])
        same = drawn == self.tokens[np.minimum(at, len(self.tokens) - 1)]
        same &= np.arange(drawn.shape[1]) < speculation.lengths[slots][:, None]
        accepted: IntArray = np.cumprod(same, axis=1).sum(axis=1)
        return accepted

    def _need_after_random(
        self, at: IntArray, accepted: IntArray, speculation: Speculation, slots: IntArray
    ) -> IntArray:
        """Fan-out needed when a random token was rejected: it frees a place only if it outranks the token.

        With rank(y) counted from 0 and s the rejected token, y is the (rank(y) + 1)-th choice, or the
        rank(y)-th once s, ranked above it, is left out.
        """
        need = self.need_free[at]
        if self.ranked is None or speculation.tokens is None:
            return need
        drawn = speculation.tokens[slots, accepted]
        is_drawn = self.ranked[at] == drawn[:, None]
        rank = np.where(is_drawn.any(axis=1), is_drawn.argmax(axis=1), NEVER)
        return np.where(rank < need - 1, need - 1, need)


PerRow = TypeVar("PerRow", IntArray, BoolArray)


def _spread(values: PerRow, slots: IntArray, width: int) -> PerRow:
    """Per-row values of `slots` as an array of the whole batch, zero elsewhere."""
    if len(slots) == width:
        return values
    spread: PerRow = np.zeros(width, dtype=values.dtype)
    spread[slots] = values
    return spread


def replay(trace: Trace, *, limit: int | None = None) -> TokenModel:
    """The exact token model of a recorded greedy trace.

    Args:
        trace: Recorded by plain decoding, with `draft_rank`; `draft_top_ids` is used where present.
        limit: Most tokens per request; by default all that were recorded.

    Raises:
        SettingError: The trace is not greedy, or shorter than `limit` for a request that did not end by
            itself.
    """
    temperature = float(str(trace.meta.sampling.get("temperature", 0.0)))
    if temperature != 0.0:
        raise SettingError(
            f"this trace was sampled at temperature {temperature:g}; greedy policies need a greedy trace "
            "(record one with `calibrate --temperature 0`)"
        )
    rank = trace.column("draft_rank")
    known = trace.draft_top_ids
    recorded = NEVER if known is None else known.shape[1]
    need_free = np.where(rank < recorded, rank + 1, NEVER)
    need_rejected = np.where(rank < recorded, rank, NEVER)
    starts, lengths = _index([r.id for r in trace.requests], np.diff(trace.offsets))
    return TokenModel(
        starts=starts,
        lengths=lengths,
        run=trace.run_lengths(),
        need_rejected=need_rejected,
        need_free=need_free,
        tokens=trace.token,
        ranked=None if known is None else known.astype(np.int64),
        max_fanout=NEVER if known is None else recorded - 1,
        vocabulary=trace.meta.vocabulary,
        requests=tuple(_traced_requests(trace, limit)),
    )


def _traced_requests(trace: Trace, limit: int | None) -> list[Request]:
    requests = []
    for entry, length in zip(trace.requests, np.diff(trace.offsets), strict=True):
        if limit is not None and limit > length and entry.ended == "limit":
            raise SettingError(
                f"the trace holds {length} tokens of request {entry.id}; --max-tokens {limit} needs a "
                f"longer recording (at most {length} with this trace)"
            )
        wanted = int(length) if limit is None else min(limit, int(length))
        requests.append(Request(entry.id, len(entry.prompt), wanted))
    return requests


def coin(
    acceptance: float,
    *,
    exponent: float,
    scale: float = 1.0,
    requests: int,
    length: int,
    prompt_length: int,
    seed: int,
) -> TokenModel:
    """The papers' world: iid acceptance and hit probability `1 - scale * F**-exponent`.

    Args:
        acceptance: Probability that a drafted token is accepted given that all before it were, 0 to 1.
        exponent: r of the power law (SSD, definition 11), above 0.
        scale: c of the power law; 1 in the paper.
        requests: Number of requests, at least 1.
        length: Tokens emitted by each.
        prompt_length: Prompt tokens of each.
        seed: Keys the coins, by request.

    Raises:
        SettingError: A parameter outside its domain.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise SettingError(f"acceptance must be between 0 and 1, got {acceptance:g}")
    if exponent <= 0.0 or not 0.0 <= scale <= 1.0:
        raise SettingError(
            f"the hit curve needs an exponent above 0 and a scale in 0..1, got {exponent:g}, {scale:g}"
        )
    accept, miss = [], []
    for request in range(requests):
        accept.append(keyed_generator(seed, "coin-acceptance", request).random(length) < acceptance)
        miss.append(keyed_generator(seed, "coin-hit", request).random(length))
    needed = _power_law_need(np.concatenate(miss), exponent, scale)
    starts, lengths = _index(list(range(requests)), [length] * requests)
    return TokenModel(
        starts=starts,
        lengths=lengths,
        run=np.concatenate([accepted_runs(a) for a in accept]),
        need_rejected=needed,
        need_free=needed,
        tokens=None,
        ranked=None,
        max_fanout=NEVER,
        vocabulary=0,
        requests=tuple(Request(i, prompt_length, length) for i in range(requests)),
        law=PowerLaw(exponent, scale, r_squared=1.0, worst=0.0, fanouts=0),
    )


def accepted_runs(accept: BoolArray) -> IntArray:
    """[n] number of consecutive True from each position on, e.g. T T F T -> 2 1 0 1."""
    positions = np.arange(len(accept))
    stops = np.where(accept, len(accept), positions)
    runs: IntArray = np.minimum.accumulate(stops[::-1])[::-1] - positions
    return runs


def _power_law_need(uniform: np.ndarray, exponent: float, scale: float) -> IntArray:
    """Smallest F >= 1 with hit: P(need > F) = scale * F**-exponent."""
    with np.errstate(over="ignore", divide="ignore"):
        least = np.ceil((scale / np.maximum(uniform, 1e-300)) ** (1.0 / exponent))
    need: IntArray = np.clip(least, 1.0, float(NEVER)).astype(np.int64)
    return need


def _index(ids: Sequence[int], lengths: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
    starts = np.full(max(ids) + 1, -1, dtype=np.int64)
    sizes = np.zeros(max(ids) + 1, dtype=np.int64)
    starts[ids] = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sizes[ids] = lengths
    return starts, sizes
