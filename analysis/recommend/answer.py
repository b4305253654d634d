"""Which policy, lookahead, fan-out and backup: searched by simulation, with how sure and why.

The answer is for a number of equal devices that serve a number of requests at any time
(`analysis.recommend.search`).

Where the best setting changes is looked for over the batch and over the acceptance.  Another acceptance is
made by *thinning* a greedy trace: at each position, by a coin keyed to it, the draft's first choice is taken
to be wrong (it and the second change places), or the target's token is taken to be the draft's first choice;
all else, clusters of easy text included, stays as recorded.  Sampled traces have no such handle; there coins
are tossed at the acceptance wanted, with the hit curve fitted to the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.intervals import BATCH_REPLICATES, LEVEL, REPLICATES, Bootstrap, Interval, interval
from analysis.recommend.search import (
    FEW,
    Choice,
    Deployment,
    Progress,
    Search,
    best_of,
    grid,
    leaders,
    refine,
)
from analysis.sources import Sources
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.registry import SettingError, Settings, configure
from policies.sampling import FloatArray, keyed_uniforms
from policies.summary import Summary
from simulator.law import law_inputs
from simulator.placement import count_devices
from simulator.run import Scenario
from simulator.tokens import TokenModel, coin, replay


@dataclass(frozen=True, slots=True)
class Query:
    """What a recommendation is asked for.

    Attributes:
        batch: Requests served at any time, in all.
        temperature: Of the target.
        devices: Equal devices at hand.
        limit: Most tokens per request; None: as recorded.
        level: Of the intervals.
        crossovers: Whether to look at other batches and acceptances.
        seed: Keys latency noise, luck and resampling.

    Raises:
        SettingError: A value out of its domain.
    """

    batch: int = 1
    temperature: float = 0.0
    devices: int = 2
    limit: int | None = None
    level: float = LEVEL
    crossovers: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("max-devices", self.devices)):
            if value < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")
        if self.temperature < 0.0:
            raise SettingError(f"temperature must be at least 0, got {self.temperature:g}")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A choice with its intervals.

    Attributes:
        choice: The setting on all devices.
        speed: Interval of its tokens per second, all groups together.
        over_ar: Interval of its speed over plain decoding's on the same devices.
        winner_over: Interval of the winner's speed over its own, on the same prompts (paired).
    """

    choice: Choice
    speed: Interval
    over_ar: Interval
    winner_over: Interval

    @property
    def distinguishable(self) -> bool:
        """Whether the winner is faster than it in all but (1 - level) / 2 of the replicates."""
        return self.winner_over.low > 1.0


@dataclass(frozen=True)
class Recommendation:
    """The answer.

    Attributes:
        sources: What it rests on.
        query: What was asked.
        winner: The fastest.
        runner_up: The fastest other setting.
        best: The best of every policy that can run, by name, `ar` and `sd` always among them.
        by_batch: The best at other batches.
        by_acceptance: The best at other acceptances.
        acceptance: That of the recorded traffic.
        tried: Settings simulated.
        refused: Settings that cannot run, and why.
    """

    sources: Sources
    query: Query
    winner: Ranked
    runner_up: Ranked
    best: Mapping[str, Ranked]
    by_batch: list[Point]
    by_acceptance: list[Point]
    acceptance: float
    tried: int
    refused: Mapping[Settings, str]

    @property
    def over_sd(self) -> Interval:
        """The winner's speed over the best SD's on equal devices."""
        return self.best["sd"].winner_over

    @property
    def extrapolated(self) -> list[str]:
        """Where costs of the winner or of a baseline lay outside the measured grid."""
        rows = [self.winner, *self.best.values()]
        return sorted({text for row in rows for text in row.choice.extrapolated})


def recommend(sources: Sources, query: Query, progress: Progress) -> Recommendation:
    """Search, then say how sure, and where the answer changes.

    Args:
        sources: Profile and traffic.
        query: What for.
        progress: (stage, done, total).

    Raises:
        SettingError: No trace at the temperature, or no policy can run.
    """
    scenario = sources.scenario(query.temperature, limit=query.limit, seed=query.seed)
    _check_devices(sources, query)
    search = Search(scenario, query.devices, query.batch)
    ranked = refine(search, query.temperature, progress)
    for policy in ("ar", "sd"):
        if best_of(ranked, policy) is None:
            reason = next((why for s, why in search.refused.items() if s.policy == policy), "it was refused")
            raise SettingError(f"{policy} cannot run here: {reason}")
    rows = rank(leaders(ranked, 2), sources, query, progress)
    best: dict[str, Ranked] = {}
    for row in rows:
        best.setdefault(row.choice.settings.policy, row)
    leading = list(dict.fromkeys(choice.settings for choice in ranked))[:3]
    return Recommendation(
        sources=sources,
        query=query,
        winner=rows[0],
        runner_up=rows[1],
        best=best,
        by_batch=over_batch(search, leading, BATCHES, progress) if query.crossovers else [],
        by_acceptance=(
            over_acceptance(search, sources, leading, ACCEPTANCES, progress) if query.crossovers else []
        ),
        acceptance=float(np.mean(scenario.tokens.run > 0)),
        tried=search.simulated,
        refused=search.refused,
    )


def usual_devices(profile: Profile) -> int:
    """Devices of a recommendation unless others are asked for: a group of the profile's two models."""
    return max(2, count_devices(configure("pearl"), profile).total)


def _check_devices(sources: Sources, query: Query) -> None:
    """Refuse fewer devices than the target alone takes."""
    needed = count_devices(configure("ar"), sources.profile).total
    if query.devices < needed:
        raise SettingError(
            f"the target of profile {sources.profile.name!r} is spread over {needed} devices: --max-devices "
            f"must be at least {needed}, got {query.devices}"
        )


def rank(choices: Sequence[Choice], sources: Sources, query: Query, progress: Progress) -> list[Ranked]:
    """The choices, fastest first, with intervals from replicates on the same prompts and machine."""
    widest = max(width for choice in choices for width in choice.deployment.widths)
    boot = sources.bootstrap(
        query.temperature,
        batch=widest,
        limit=query.limit,
        level=query.level,
        replicates=REPLICATES if widest == 1 else BATCH_REPLICATES,
        seed=query.seed,
    )
    speeds = []
    for done, choice in enumerate(choices):
        speeds.append(deployment_speeds(boot, choice.deployment))
        progress("intervals", done + 1, len(choices))
    plain = next(s for s, c in zip(speeds, choices, strict=True) if c.settings.plain)
    return [
        Ranked(
            choice=choice,
            speed=interval(speed, query.level),
            over_ar=interval(speed / plain, query.level),
            winner_over=interval(speeds[0] / speed, query.level),
        )
        for choice, speed in zip(choices, speeds, strict=True)
    ]


def deployment_speeds(boot: Bootstrap, deployment: Deployment) -> FloatArray:
    """[R] tokens per second of all groups of a deployment in each replicate."""
    total = np.zeros(boot.count)
    for width, groups in deployment.widths.items():
        total += groups * boot.predicted_speeds(deployment.settings, width)
    return total


def time_per_token(summary: Summary) -> dict[str, float]:
    """Where the milliseconds of a token of one group go: who works while it is made.

    `target_alone`, `both` (at least one draft and the target), `draft_alone`, `nobody` (messages, host).
    """
    seconds, tokens = summary.seconds, summary.tokens
    target = summary.utilization["target"] * seconds
    drafts = max((u * seconds for name, u in summary.utilization.items() if name != "target"), default=0.0)
    both = min(summary.overlap_s, target, drafts)
    parts = {
        "target_alone": target - both,
        "both": both,
        "draft_alone": drafts - both,
        "nobody": max(0.0, seconds - target - drafts + both),
    }
    return {name: 1e3 * value / tokens for name, value in parts.items()}


BATCHES = (1, 2, 4, 8, 16)
ACCEPTANCES = (0.3, 0.45, 0.6, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Point:
    """The best setting at one batch or acceptance.

    Attributes:
        at: The batch or acceptance.
        best: What is fastest there.
        vs_ar: Its speed over plain decoding's on the same devices.
        vs_sd: Its speed over the best SD's on the same devices.
        extrapolated: Whether costs outside the measured grid were used.
        winner_vs_ar: Speed over plain decoding of the setting recommended for the traffic asked about.
    """

    at: float
    best: Settings
    vs_ar: float
    vs_sd: float
    extrapolated: bool
    winner_vs_ar: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "at": self.at,
            "best": self.best.label,
            "policy": self.best.policy,
            "speedup_vs_ar": self.vs_ar,
            "speedup_vs_sd": self.vs_sd,
            "extrapolated": self.extrapolated,
            "recommended_vs_ar": self.winner_vs_ar,
        }


def over_batch(
    search: Search, finalists: Sequence[Settings], batches: Sequence[int], progress: Progress
) -> list[Point]:
    """The best of a small grid and the finalists at each batch.

    Args:
        search: Traffic, hardware and devices.
        finalists: Settings that were good at the traffic asked about, the winner first.
        batches: Requests served at any time.
        progress: (stage, done, total).
    """
    there = ((float(batch), Search(search.scenario, search.devices, batch)) for batch in batches)
    return _sweep(there, len(batches), finalists, lambda done, n: progress("other batches", done, n))


def over_acceptance(
    search: Search,
    sources: Sources,
    finalists: Sequence[Settings],
    acceptances: Sequence[float],
    progress: Progress,
) -> list[Point]:
    """The best of a small grid and the finalists at each acceptance, at the search's own batch."""
    temperature = finalists[0].temperature

    def there(acceptance: float) -> Search:
        tokens = (
            replay(thinned(sources.trace(temperature), acceptance))
            if temperature == 0.0
            else coins_like(search.scenario, finalists[0], acceptance)
        )
        # Decisions belong to the acceptance they were made at.
        scenario = replace(search.scenario, tokens=tokens, decisions=None)
        return Search(scenario, search.devices, search.batch)

    found = ((acceptance, there(acceptance)) for acceptance in acceptances)
    return _sweep(found, len(acceptances), finalists, lambda done, n: progress("other acceptances", done, n))


def _sweep(
    searches: Iterable[tuple[float, Search]],
    count: int,
    finalists: Sequence[Settings],
    progress: Callable[[int, int], None],
) -> list[Point]:
    points = []
    for at, search in searches:
        points.append(_point(at, search, finalists, requests=max(6, 2 * search.batch)))
        progress(len(points), count)
    return points


def _point(at: float, search: Search, finalists: Sequence[Settings], *, requests: int) -> Point:
    small = grid(search.scenario.tokens, finalists[0].temperature, **FEW)
    # Coins have neither texts nor distributions: settings that need them are refused and drop out.
    ranked = search.best([*finalists, *small], requests)
    ar, sd = best_of(ranked, "ar"), best_of(ranked, "sd")
    assert ar is not None and sd is not None, "every profile with a draft runs both"
    winner, best = search.try_out(finalists[0], requests), ranked[0]
    return Point(
        at=at,
        best=best.settings,
        vs_ar=best.tokens_per_second / ar.tokens_per_second,
        vs_sd=best.tokens_per_second / sd.tokens_per_second,
        extrapolated=bool(best.extrapolated or ar.extrapolated),
        winner_vs_ar=None if winner is None else winner.tokens_per_second / ar.tokens_per_second,
    )


def crossovers(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Neighbouring points between which the best policy changes."""
    return [(a, b) for a, b in pairwise(points) if a.best.policy != b.best.policy]


def thinned(trace: Trace, acceptance: float, *, seed: int = 0) -> Trace:
    """A greedy trace with another acceptance (see above).

    Args:
        trace: With `draft_rank`, and `draft_top_ids` where the draft's choices are recorded.
        acceptance: Share of positions whose token is to be the draft's first choice; to be met on average.
        seed: Keys the coins, by request and position.
    """
    rank = trace.column("draft_rank")
    now = float(np.mean(rank == 0))
    luck = keyed_uniforms(seed, "thinning", trace.request, trace.position)
    changed = rank.copy()
    if acceptance < now:
        changed[(rank == 0) & (luck < 1.0 - acceptance / now)] = 1
    elif now < 1.0:
        changed[(rank > 0) & (luck < (acceptance - now) / (1.0 - now))] = 0
    moved = {"draft_top_ids": _moved(trace, changed)} if "draft_top_ids" in trace.columns else {}
    return trace.changed(draft_rank=changed, **moved)


def _moved(trace: Trace, rank: np.ndarray) -> np.ndarray:
    """[n, M] the draft's choices with the target's token at its new rank."""
    ids = trace.column("draft_top_ids").copy()
    before = trace.column("draft_rank")
    down = np.flatnonzero((before == 0) & (rank == 1))
    if ids.shape[1] > 1:
        ids[down, :2] = ids[down, 1::-1]
    for row in np.flatnonzero((before > 0) & (rank == 0)):
        last = min(int(before[row]), ids.shape[1] - 1)
        ids[row, 1 : last + 1] = ids[row, :last]
        ids[row, 0] = trace.token[row]
    return ids


def coins_like(scenario: Scenario, settings: Settings, acceptance: float) -> TokenModel:
    """Coins with a recording's fitted hit curve and lengths, at another acceptance."""
    told = law_inputs(scenario, settings)
    requests = scenario.tokens.requests
    return coin(
        acceptance,
        exponent=max(told.exponent or 1.0, 1e-3),
        scale=told.scale,
        requests=len(requests),
        length=round(float(np.mean([r.limit for r in requests]))),
        prompt_length=round(float(np.mean([r.prompt_length for r in requests]))),
        seed=0,
    )
