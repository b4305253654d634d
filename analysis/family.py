"""Every policy on the same held-out prompts: law, simulated, live, lossless or not, and in which order.

`python -m analysis.family_cli --hw cpu2-x5`: all live policies run on the profile's pair, interleaved with
plain decoding; each is simulated on the same content (the prompts' recorded path, or the decisions that its
live runs kept, without their times) with costs that never saw these prompts.  Two questions are answered: how
far predicted and measured speedups are apart, and whether trusting the predicted order would have cost
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from analysis.livecells import identical, run_interleaved
from calibrate.calibration import record
from calibrate.decisions import joined
from calibrate.job import Job
from calibrate.prompts import Prompt
from calibrate.runs import LiveRun
from hardware_profiles.decisions import DecisionTrace
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure, find_policy
from simulator.law import assume, opinion
from simulator.run import Scenario, simulate
from simulator.tokens import replay

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""
Speeds: TypeAlias = dict[str, tuple[float, float]]
"""Per category tokens and seconds."""


@dataclass(frozen=True)
class Member:
    """One setting.

    Attributes:
        settings: The policy and its knobs.
        law_speedup_vs_ar: The law's; None where none is implemented for a whole setting.
        simulated: By category, on the content of the live runs.
        simulated_ar: The same of plain decoding.
        measured: By category, one per repetition.
        measured_ar: The same of plain decoding.
        identical: Whether every greedy live text is plain decoding's; None at a temperature above 0.
    """

    settings: Settings
    law_speedup_vs_ar: float | None
    simulated: Speeds
    simulated_ar: Speeds
    measured: tuple[Speeds, ...]
    measured_ar: tuple[Speeds, ...]
    identical: bool | None

    def simulated_speedup(self, category: str | None = None) -> float:
        """Over plain decoding; of one category, or of all."""
        return _speed(self.simulated, category) / _speed(self.simulated_ar, category)

    def measured_speedups(self, category: str | None = None) -> tuple[float, ...]:
        """Over plain decoding in the same repetition, one per repetition."""
        pairs = zip(self.measured, self.measured_ar, strict=True)
        return tuple(_speed(mine, category) / _speed(plain, category) for mine, plain in pairs)

    def measured_speedup(self, category: str | None = None) -> float:
        """Over plain decoding: ratio of sums over all repetitions."""
        return _pooled(self.measured, category) / _pooled(self.measured_ar, category)

    @property
    def error(self) -> float:
        """Simulated over measured speedup, less 1."""
        return self.simulated_speedup() / self.measured_speedup() - 1.0

    @property
    def law_error(self) -> float | None:
        """The law's over measured speedup, less 1."""
        if self.law_speedup_vs_ar is None:
            return None
        return self.law_speedup_vs_ar / self.measured_speedup() - 1.0

    @property
    def spread(self) -> float:
        """Half the range of the repetitions, relative to the speedup."""
        found = self.measured_speedups()
        return (max(found) - min(found)) / 2.0 / self.measured_speedup()


@dataclass(frozen=True, slots=True)
class Order:
    """Predicted against measured order of the policies on one category of prompts.

    Attributes:
        category: Of the prompts.
        temperature: Of the runs.
        pairs: Pairs of settings whose repetitions do not overlap, so that the live runs tell them apart.
        right: Those of them that the simulation orders alike.
        predicted: The fastest setting by simulation.
        best: The fastest measured.
        regret: Share of the fastest one's speed that trusting the prediction misses.
    """

    category: str
    temperature: float
    pairs: int
    right: int
    predicted: str
    best: str
    regret: float


def _speed(speeds: Speeds, category: str | None) -> float:
    chosen = list(speeds.values()) if category is None else [speeds[category]]
    return sum(tokens for tokens, _ in chosen) / sum(seconds for _, seconds in chosen)


def _pooled(repeats: Sequence[Speeds], category: str | None) -> float:
    chosen = [s[c] for s in repeats for c in (s if category is None else (category,))]
    return sum(tokens for tokens, _ in chosen) / sum(seconds for _, seconds in chosen)


def run_family(
    job: Job,
    profile: Profile,
    settings: Sequence[Settings],
    prompts: Sequence[Prompt],
    *,
    prompt_set: str,
    repeats: int,
    progress: Progress,
) -> list[Member]:
    """Run the settings live and simulate them; one temperature.

    Args:
        job: Pair and machine, as the profile was measured.
        profile: What predicts.
        settings: All at one sampling.
        prompts: Held out from the calibration.
        prompt_set: Their name.
        repeats: Live repetitions.
        progress: (stage, done, total).
    """
    temperature = settings[0].temperature
    trace = record(replace(job, temperature=temperature), prompts, prompt_set, progress)
    plain = configure("ar", temperature=temperature, top_p=settings[0].top_p, seed=settings[0].seed)
    asked = [s for s in settings if s.policy != "ar"]
    runs = run_interleaved(
        job,
        trace,
        asked,
        plain,
        repeats=repeats,
        progress=lambda done, total: progress(f"live at T={temperature:g}", done, total),
    )
    of = {s: [run for run in runs if run.settings == s] for s in (plain, *asked)}
    tokens = replay(trace, seed=job.seed)
    scenario = Scenario(tokens=tokens, profile=profile, seed=job.seed)
    measured_ar = _measured(of[plain], trace, repeats)
    simulated_ar = simulated_by_category(scenario, plain, trace, of[plain], job.limit)
    members = []
    for done, each in enumerate(asked):
        law = opinion(each, assume(scenario, each), batch=1).speedup_vs_ar if _has_law(each) else None
        members.append(
            Member(
                settings=each,
                law_speedup_vs_ar=law,
                simulated=simulated_by_category(scenario, each, trace, of[each], job.limit),
                simulated_ar=simulated_ar,
                measured=_measured(of[each], trace, repeats),
                measured_ar=measured_ar,
                identical=identical(of[each], trace) if temperature == 0.0 else None,
            )
        )
        progress("simulations", done + 1, len(asked))
    return members


def _has_law(settings: Settings) -> bool:
    return not find_policy(settings.policy).needs_decisions


def _measured(runs: Sequence[LiveRun], trace: Trace, repeats: int) -> tuple[Speeds, ...]:
    """Tokens and seconds by category, of each repetition; a request that ran several times counts once."""
    category = {r.id: r.category for r in trace.requests}
    found = []
    for repeat in range(repeats):
        speeds: Speeds = {}
        for request, kind in category.items():
            mine = [r.summary for r in runs if r.repeat == repeat and r.requests == (request,)]
            tokens, seconds = speeds.get(kind, (0.0, 0.0))
            speeds[kind] = (
                tokens + float(np.mean([s.tokens for s in mine])),
                seconds + float(np.mean([s.seconds for s in mine])),
            )
        found.append(speeds)
    return tuple(found)


def simulated_by_category(
    scenario: Scenario, settings: Settings, trace: Trace, runs: Sequence[LiveRun], limit: int
) -> Speeds:
    """Simulated tokens and seconds by category of prompts, on the path recorded or the decisions made live.

    Args:
        scenario: Costs and seed; batch 1.
        settings: What to simulate.
        trace: The prompts' recording.
        runs: Live runs of the setting, whose decisions (not times) are replayed where it needs them.
        limit: Most tokens per request.
    """
    found = {}
    for category, ids in by_category(trace).items():
        part = trace.slice(ids)
        scenarios = [replace(scenario, tokens=replay(part, seed=scenario.seed))]
        if find_policy(settings.policy).needs_decisions:
            scenarios = [
                replace(scenarios[0], decisions=decisions_of(part, settings, runs, repeat, limit))
                for repeat in sorted({run.repeat for run in runs})
            ]
        summaries = [simulate(each, settings).summary for each in scenarios]
        found[category] = (
            float(np.mean([s.tokens for s in summaries])),
            float(np.mean([s.seconds for s in summaries])),
        )
    return found


def by_category(trace: Trace) -> dict[str, list[int]]:
    """Ids of the requests of each category."""
    found: dict[str, list[int]] = {}
    for request in trace.requests:
        found.setdefault(request.category, []).append(request.id)
    return found


def decisions_of(
    trace: Trace, settings: Settings, runs: Sequence[LiveRun], repeat: int, limit: int
) -> DecisionTrace:
    """What a setting decided in one repetition of its live runs on the requests of a trace."""
    ids = {request.id for request in trace.requests}
    mine = [run.decisions for run in runs if run.repeat == repeat and set(run.requests) <= ids]
    return DecisionTrace(trace.requests, trace.meta, {settings.label: joined(mine)}, limit)


def orders(members: Sequence[Member]) -> list[Order]:
    """Predicted against measured order, by category, of settings at one temperature."""
    return [_order(members, category) for category in members[0].simulated]


def _order(members: Sequence[Member], category: str) -> Order:
    pairs = right = 0
    for one, other in combinations(members, 2):
        first, second = one.measured_speedups(category), other.measured_speedups(category)
        if min(first) <= max(second) and min(second) <= max(first):
            continue  # the repetitions overlap
        pairs += 1
        faster = min(first) > max(second)
        right += faster == (one.simulated_speedup(category) > other.simulated_speedup(category))
    predicted = max(members, key=lambda m: m.simulated_speedup(category))
    best = max(members, key=lambda m: m.measured_speedup(category))
    return Order(
        category=category,
        temperature=members[0].settings.temperature,
        pairs=pairs,
        right=right,
        predicted=predicted.settings.label,
        best=best.settings.label,
        regret=1.0 - predicted.measured_speedup(category) / best.measured_speedup(category),
    )


def error_summary(members: Sequence[Member]) -> Mapping[str, float]:
    """Median and largest error of the simulated speedups, and the spread of the live ones."""
    errors = [abs(m.error) for m in members]
    spreads = [m.spread for m in members]
    return {
        "settings": float(len(members)),
        "median_error": float(np.median(errors)),
        "largest_error": max(errors),
        "median_spread": float(np.median(spreads)),
        "largest_spread": max(spreads),
    }
