"""What a round of speculation costs at a load, and where the speedup that was hoped for goes.

A round of K drafted tokens yields E = 1 + sum of the joint acceptances, so at steady state

    speedup = (plain + plain gap + q) / ((verify + draft + gap) / E + q)

where `plain` is a decoding step of the target at the same batch and context, gaps are the host's between
forwards, and q is the time that prefills of other requests take per output token of a row.  Costs come from a
hardware profile (measured or composed), evaluated at the load, or from times that the engine itself printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from hardware_profiles.optime import HostOperation
from hardware_profiles.profile import Profile
from hardware_profiles.surface import LatencySurface
from simulator.law import Stage
from simulator.tokens.acceptance import joint_of

DEEPEST = 16
"""Largest lookahead that is proposed."""
WORTH = 0.02
"""Least gain of a change that is named."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Where the best lookahead by batch is looked for."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server is doing.

    Attributes:
        batch: Rows that decode at once.
        context: Mean tokens in a row's KV cache.
        prompt_per_token: Prompt tokens that are prefilled per output token.
    """

    batch: float = 1.0
    context: float = 0.0
    prompt_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a round, and of a plain decoding step, at one load.

    Attributes:
        draft_s: Of all drafting of a round; None where it is not told from verification.
        verify_s: Of one verification; with `draft_s` None, of both together.
        gap_s: The host's in a round.
        plain_gap_s: The host's in a plain step.
        prefill_s: Other requests' prefills, per output token of a row.
    """

    plain_s: float
    draft_s: float | None
    verify_s: float
    gap_s: float = 0.0
    plain_gap_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def round_s(self) -> float:
        """A round without prefills of others."""
        return self.verify_s + (self.draft_s or 0.0) + self.gap_s

    def token_s(self, tokens_per_round: float) -> float:
        """Seconds per output token of a row."""
        return self.round_s / tokens_per_round + self.prefill_s

    @property
    def plain_token_s(self) -> float:
        """The same of plain decoding."""
        return self.plain_s + self.plain_gap_s + self.prefill_s

    def speedup(self, tokens_per_round: float) -> float:
        """Over plain decoding at the same load."""
        return self.plain_token_s / self.token_s(tokens_per_round)


class Prices(Protocol):
    """What rounds cost."""

    @property
    def batches(self) -> Sequence[int]:
        """Where the best lookahead by batch can be looked for; none where one load is known."""

    def lookaheads(self, depth: int) -> Sequence[int]:
        """Those that can be compared with the one at hand."""

    def at(self, lookahead: int, load: Load) -> RoundCost:
        """A round of that lookahead."""


@dataclass(frozen=True)
class ProfilePrices:
    """From a hardware profile.

    Attributes:
        passes: Of the draft per round; None: one per drafted token.
        width: Tokens per row of a verification at every lookahead; None: K + 1.
    """

    profile: Profile
    passes: int | None = None
    width: int | None = None
    batches: Sequence[int] = BATCHES

    def lookaheads(self, depth: int) -> Sequence[int]:
        """As `Prices`."""
        return range(1, max(DEEPEST, depth) + 1)

    @cached_property
    def _surfaces(self) -> dict[str, LatencySurface]:
        return {name: LatencySurface(cost) for name, cost in self.profile.operations.items()}

    def _forward(self, name: str, load: Load, new: float) -> float:
        surface = self._surfaces.get(name)
        if surface is None:
            return 0.0
        return surface.seconds(batch=load.batch, new_tokens=new, context=load.context)

    def _host(
        self, operation: HostOperation, load: Load, expected_s: float, calls: int, tokens: float
    ) -> float:
        """Host time of an operation beyond its forwards."""
        host = self.profile.host.of(operation)
        rows, through = max(1, round(load.batch)), round(tokens * load.batch)
        work = host.work_s(expected_s, rows=rows, calls=calls, tokens=through, idle_s=0.0)
        return host.lead_s(rows) + host.after_s(through) + work - expected_s

    def at(self, lookahead: int, load: Load) -> RoundCost:
        """As `Prices`: the first draft forward reads what the last round left, the others a token each."""
        passes = lookahead if self.passes is None else min(self.passes, lookahead)
        plain = self._forward("target.forward", load, 1)
        verify = self._forward("target.forward", load, self.width or lookahead + 1)
        draft = 0.0
        if passes == 1:
            draft = self._forward("draft.forward", load, lookahead)
        elif passes:
            draft = self._forward("draft.forward", load, 2)
            draft += (passes - 1) * self._forward("draft.forward", load, 1)
        gap = self._host("verify", load, verify, 1, lookahead + 1)
        gap += self._host("draft", load, draft, passes, lookahead + 1) if passes else 0.0
        return RoundCost(
            plain, draft, verify, gap, self._host("decode", load, plain, 1, 1), self._prefills(load)
        )

    def _prefills(self, load: Load) -> float:
        """Every output token of the batch brings so many prompt tokens, which hold all rows up."""
        surface = self._surfaces.get("target.prefill")
        if surface is None or not load.prompt_per_token:
            return 0.0
        chunk = 2048
        each = surface.seconds(batch=1, new_tokens=chunk) / chunk
        return each * load.prompt_per_token * load.batch


@dataclass(frozen=True, slots=True)
class MeasuredPrices:
    """From times that an engine printed, at the load that it had; other lookaheads by straight lines.

    Attributes:
        plain_s: A plain step.
        round_s: A round of `lookahead`.
        draft_s: Its drafting; None where it is not told apart.
        verify_s: Its verification.
        forwards: ((tokens, seconds), ...) of forwards of the target, if any were timed.
    """

    plain_s: float
    round_s: float
    lookahead: int
    draft_s: float | None = None
    verify_s: float | None = None
    forwards: tuple[tuple[int, float], ...] = ()
    batches: Sequence[int] = ()

    def lookaheads(self, depth: int) -> Sequence[int]:
        """As `Prices`: where drafting is not told from verification, a straight line says too little."""
        return (depth,) if self.draft_s is None else range(1, max(DEEPEST, depth) + 1)

    def at(self, lookahead: int, load: Load) -> RoundCost:
        """As `Prices`; the load is not looked at."""
        if self.draft_s is None or self.verify_s is None:
            grown = (self.round_s - self.plain_s) * lookahead / self.lookahead
            return RoundCost(self.plain_s, None, self.plain_s + grown)
        points = {1: self.plain_s, self.lookahead + 1: self.verify_s} | dict(self.forwards)
        sizes = sorted(points)
        verify = float(np.interp(lookahead + 1, sizes, [points[size] for size in sizes]))
        gap = max(0.0, self.round_s - self.draft_s - self.verify_s)
        return RoundCost(self.plain_s, self.draft_s * lookahead / self.lookahead, verify, gap)


@dataclass(frozen=True, slots=True)
class TablePrices:
    """From rounds timed by batch and lookahead, 0 being plain decoding; between those by straight lines.

    Attributes:
        rounds: (batch, K, seconds).
    """

    rounds: tuple[tuple[int, int, float], ...]

    @property
    def batches(self) -> Sequence[int]:
        """As `Prices`."""
        return sorted({batch for batch, _, _ in self.rounds})

    def lookaheads(self, depth: int) -> Sequence[int]:
        """As `Prices`."""
        return range(1, max(k for _, k, _ in self.rounds) + 1)

    def at(self, lookahead: int, load: Load) -> RoundCost:
        """As `Prices`: of the largest batch that was timed and is not larger."""
        batch = max((b for b in self.batches if b <= load.batch), default=self.batches[0])
        depths, seconds = zip(*sorted((k, s) for b, k, s in self.rounds if b == batch), strict=True)
        plain, whole = (float(np.interp(k, depths, seconds)) for k in (0, lookahead))
        return RoundCost(plain, None, whole)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server was seen to do.

    Attributes:
        lookahead: K; None where it is not known.
        tokens_per_round: E, the target's own token counted.
        acceptance: [K] conditional, at each position; empty where only a mean is known.
        load: Its load.
        plain_s: Seconds of a plain step, if measured.
        round_s: Seconds of a round, if measured.
    """

    lookahead: int | None
    tokens_per_round: float
    acceptance: tuple[float, ...]
    load: Load
    plain_s: float | None = None
    round_s: float | None = None

    def tokens_at(self, lookahead: int) -> float:
        """E of another lookahead: deeper positions are accepted like the last one."""
        known = self.acceptance[:lookahead]
        more = (self.acceptance[-1],) * (lookahead - len(known))
        tokens = 1.0 + sum(joint_of((*known, *more)))
        accepted = sum(joint_of(self.acceptance))
        scale = (self.tokens_per_round - 1.0) / accepted if accepted else 1.0  # 1 where positions are counted
        return min(lookahead + 1.0, 1.0 + (tokens - 1.0) * scale)


def waterfall(seen: Seen, prices: Prices | None) -> list[Stage]:
    """Speedup over plain decoding at the same load, from what is hoped for to what is seen, cause by cause.

    It ends where knowledge does: without prices with the acceptance, without a measured round with what the
    prices say.
    """
    tokens, depth = seen.tokens_per_round, seen.lookahead
    stages = [] if depth is None else [Stage("hoped: all accepted, drafts and width free", depth + 1.0)]
    stages.append(Stage("acceptance", tokens))
    if prices is not None and depth is not None:
        stages += _priced(seen, prices, depth)
    if (speedup := seen_speedup(seen, prices)) is not None:
        known = stages[-1].speedup_vs_ar
        if abs(speedup / known - 1.0) > 1e-9:
            rest = "what these do not explain (scheduling, contention, other work)"
            stages.append(Stage(f"seen: {rest}" if prices else "seen", speedup))
    return stages


def _priced(seen: Seen, prices: Prices, depth: int) -> Iterator[Stage]:
    """The stages that are computed, one more cost in each."""
    tokens, load = seen.tokens_per_round, seen.load
    alone = Load() if isinstance(prices, ProfilePrices) else load
    first = prices.at(depth, alone)
    free = replace(first, gap_s=0.0, plain_gap_s=0.0, prefill_s=0.0)
    if first.draft_s is None:
        yield Stage("drafting, width and host (not told apart)", free.speedup(tokens))
        return
    yield Stage("drafting takes time", replace(free, verify_s=free.plain_s).speedup(tokens))
    yield Stage("verification grows with its width", free.speedup(tokens))
    loads = {}
    if load.batch != alone.batch:
        loads[f"batch of {load.batch:.3g}"] = replace(alone, batch=load.batch)
    if load.context != alone.context:
        loads[f"context of {load.context:.0f} tokens"] = replace(load, prompt_per_token=0.0)
    for name, at in loads.items():
        free = replace(prices.at(depth, at), gap_s=0.0, plain_gap_s=0.0, prefill_s=0.0)
        yield Stage(name, free.speedup(tokens))
    whole = prices.at(depth, load)
    if whole.gap_s or whole.plain_gap_s:
        yield Stage("host between forwards", replace(whole, prefill_s=0.0).speedup(tokens))
    if whole.prefill_s:
        yield Stage("prefills of other requests", whole.speedup(tokens))


def seen_speedup(seen: Seen, prices: Prices | None) -> float | None:
    """As measured: a round, and a plain step as measured or else as priced; None where either is unknown."""
    if seen.round_s is None:
        return None
    plain = seen.plain_s
    if plain is None and prices is not None and seen.lookahead is not None:
        cost = prices.at(seen.lookahead, seen.load)
        plain = cost.plain_token_s
    return None if plain is None else seen.tokens_per_round * plain / seen.round_s


@dataclass(frozen=True, slots=True)
class Change:
    """Something that would help.

    Attributes:
        what: In words.
        gain: Of tokens per second, as a share.
        lookahead: K to set, 0 for none; None where it is no setting.
    """

    what: str
    gain: float
    lookahead: int | None = None


def changes(seen: Seen, prices: Prices | None) -> list[Change]:
    """What would help most, the largest gain first; gains below `WORTH` are left out.

    What the prices do not explain is taken to stay as it is.
    """
    if prices is None or seen.lookahead is None:
        return []
    depth, tokens = seen.lookahead, seen.tokens_per_round
    cost = prices.at(depth, seen.load)
    now = cost.token_s(tokens)
    best = best_lookahead(seen, prices)
    found = []
    if best == 0:
        found.append(Change("no speculation at this load", now / cost.plain_token_s - 1.0, 0))
    elif best != depth:
        other = prices.at(best, seen.load).token_s(seen.tokens_at(best))
        found.append(Change(f"a lookahead of {best}, not {depth}", now / other - 1.0, best))
    if cost.draft_s:
        halved = replace(cost, draft_s=cost.draft_s / 2.0).token_s(tokens)
        found.append(Change("a draft twice as fast (a head, a smaller model)", now / halved - 1.0))
    if cost.gap_s:
        closed = replace(cost, gap_s=0.0).token_s(tokens)
        found.append(
            Change(
                "no host time between forwards (captured graphs, asynchronous scheduling)", now / closed - 1.0
            )
        )
    if cost.prefill_s:
        apart = replace(cost, prefill_s=0.0).token_s(tokens)
        found.append(Change("prefills elsewhere (disaggregated)", now / apart - 1.0))
    if seen.acceptance:
        better = [1.0 - 0.75 * (1.0 - a) for a in seen.acceptance]
        more = cost.token_s(tokens * (1.0 + sum(joint_of(better))) / (1.0 + sum(joint_of(seen.acceptance))))
        found.append(Change("a better draft: a quarter fewer rejections", now / more - 1.0))
    if (speedup := seen_speedup(seen, prices)) is not None:
        found.append(Change("what the costs do not explain, removed", cost.speedup(tokens) / speedup - 1.0))
    return sorted((c for c in found if c.gain >= WORTH), key=lambda change: -change.gain)


def best_lookahead(seen: Seen, prices: Prices, load: Load | None = None) -> int:
    """The K of most tokens per second at a load, 0 for plain decoding; of equals the smallest.

    Where only a mean acceptance is known the choice is between the lookahead at hand and none.
    """
    load, depth = load or seen.load, seen.lookahead or 1
    now = prices.at(depth, load)
    seconds = {0: now.plain_token_s, depth: now.token_s(seen.tokens_per_round)}
    for k in prices.lookaheads(depth) if seen.acceptance else ():
        seconds.setdefault(k, prices.at(k, load).token_s(seen.tokens_at(k)))
    return min(seconds, key=lambda k: (seconds[k], k))


def by_batch(seen: Seen, prices: Prices) -> dict[int, int]:
    """The best lookahead at other batches; empty without acceptance by position."""
    batches = prices.batches if seen.acceptance else ()
    return {b: best_lookahead(seen, prices, replace(seen.load, batch=float(b))) for b in batches}
