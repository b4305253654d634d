"""Every policy on the same held-out prompts: law, simulated, live, lossless or not, and in which order.

`python -m analysis.family_cli --hw cpu2-x5`: all live policies run on the profile's pair, interleaved with
plain decoding; each is simulated on the same content (the prompts' recorded path, or the decisions that its
live runs kept, without their times) with costs that never saw these prompts.  Three questions are answered:
how far predicted and measured speedups are apart, how far they would be if content were ignored, and whether
trusting the predicted order would have cost anything.  What was measured is kept (`analysis.family_store`),
so that it can be predicted again from another profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from analysis.family_orders import Member, Speeds
from analysis.livecells import identical, run_interleaved
from analysis.predictions import DRAWS
from analysis.sources import Sources
from analysis.studies.family import content_ignored
from calibrate.job import Job
from calibrate.live_runs import LiveRun, joined
from hardware_profiles.decisions import DecisionTrace
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure, find_policy
from simulator.law import law_inputs, law_prediction
from simulator.pacing import find_pace
from simulator.run import Scenario, simulate
from simulator.tokens import replay

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True)
class Measured:
    """One setting as it ran live.

    Attributes:
        settings: The policy and its knobs.
        speeds: By category, one per repetition.
        identical: Whether every greedy text is plain decoding's; None at a temperature above 0.
        decided: What was decided on all prompts, one per repetition that decided anew; empty for policies
            that the prompts' recording replays.
    """

    settings: Settings
    speeds: tuple[Speeds, ...]
    identical: bool | None
    decided: tuple[DecisionTrace, ...] = ()


@dataclass(frozen=True)
class Group:
    """All settings of one temperature, as they ran live.

    Attributes:
        plain: Plain decoding.
        members: All others.
    """

    plain: Measured
    members: tuple[Measured, ...]

    @property
    def temperature(self) -> float:
        """Of the runs."""
        return self.plain.settings.temperature


def measure_family(
    job: Job, settings: Sequence[Settings], trace: Trace, *, repeats: int, progress: Progress
) -> Group:
    """Run the settings live on the prompts of a trace; one temperature.

    Args:
        job: Pair and machine, as the profile was measured.
        settings: All at one sampling.
        trace: Recording of the prompts at this sampling.
        repeats: Live repetitions.
        progress: (stage, done, total).
    """
    first = settings[0]
    plain = configure("ar", temperature=first.temperature, top_p=first.top_p, seed=first.seed)
    asked = [s for s in settings if s.policy != "ar"]
    runs = run_interleaved(
        job,
        trace,
        asked,
        plain,
        repeats=repeats,
        progress=lambda done, total: progress(f"live at T={first.temperature:g}", done, total),
    )
    found = []
    for each in (plain, *asked):
        mine = [run for run in runs if run.settings == each]
        speeds = tuple(speeds_by_category(trace, mine, repeat) for repeat in range(repeats))
        lossless = identical(mine, trace) if each.temperature == 0.0 else None
        found.append(Measured(each, speeds, lossless, decided_by_repeat(trace, each, mine, job.limit)))
    return Group(found[0], tuple(found[1:]))


def predict_family(
    group: Group, trace: Trace, sources: Sources, *, seed: int, progress: Progress
) -> list[Member]:
    """Predict what was measured, with the costs of a profile that never saw these prompts.

    Args:
        group: What was measured.
        trace: Recording of the prompts at the group's sampling.
        sources: The profile, and its calibration traces for what ignores content.
        seed: Keys latency noise.
        progress: (stage, done, total).

    Raises:
        SettingError: No calibration trace at the group's temperature.
    """
    pace = find_pace(sources.profile, group.temperature)
    scenario = Scenario(replay(trace, seed=seed), profile=sources.profile, seed=seed, measured_pace=pace)
    known = replace(scenario, tokens=replay(sources.trace(group.temperature), seed=seed))
    simulated_ar = simulated_by_category(scenario, group.plain.settings, trace, ())
    members = []
    for done, each in enumerate(group.members):
        settings = each.settings
        law = None
        if not find_policy(settings.policy).needs_decisions:
            law = law_prediction(settings, law_inputs(scenario, settings), batch=1).speedup_vs_ar
        members.append(
            Member(
                settings=settings,
                law_speedup_vs_ar=law,
                ignored_speedup_vs_ar=content_ignored(known, settings),
                simulated=simulated_by_category(scenario, settings, trace, each.decided),
                simulated_ar=simulated_ar,
                measured=each.speeds,
                measured_ar=group.plain.speeds,
                identical=each.identical,
            )
        )
        progress("simulations", done + 1, len(group.members))
    return members


def speeds_by_category(trace: Trace, runs: Sequence[LiveRun], repeat: int) -> Speeds:
    """Tokens and seconds of one repetition by category; a request that ran several times counts once."""
    found: Speeds = {}
    for category, ids in by_category(trace).items():
        own = [[r.summary for r in runs if r.repeat == repeat and r.requests == (i,)] for i in ids]
        found[category] = (
            float(sum(np.mean([s.tokens for s in each]) for each in own)),
            float(sum(np.mean([s.seconds for s in each]) for each in own)),
        )
    return found


def decided_by_repeat(
    trace: Trace, settings: Settings, runs: Sequence[LiveRun], limit: int
) -> tuple[DecisionTrace, ...]:
    """What a setting decided on all prompts, one per repetition; empty where the recording replays a policy.

    Of greedy repetitions, which decide alike, only the first.

    Args:
        trace: The prompts.
        settings: Of the runs.
        runs: Of that setting.
        limit: Most tokens per request.
    """
    if not find_policy(settings.policy).needs_decisions:
        return ()
    repeats = sorted({run.repeat for run in runs})[: 1 if settings.temperature == 0.0 else None]
    return tuple(
        DecisionTrace(
            trace.requests,
            trace.meta,
            {settings.label: joined([run.decisions for run in runs if run.repeat == repeat])},
            limit,
        )
        for repeat in repeats
    )


def simulated_by_category(
    scenario: Scenario, settings: Settings, trace: Trace, decided: Sequence[DecisionTrace]
) -> Speeds:
    """Simulated tokens and seconds by category of prompts, on the path recorded or the decisions made live.

    Args:
        scenario: Costs and seed; batch 1.
        settings: What to simulate.
        trace: The prompts' recording.
        decided: What the setting's live runs decided, where the policy needs that; the mean is taken.
    """
    found = {}
    for category, ids in by_category(trace).items():
        draws = DRAWS if settings.temperature > 0.0 and not decided else 1
        here, *others = (
            replace(scenario, tokens=replay(trace.slice(ids), seed=seed), seed=seed)
            for seed in range(scenario.seed, scenario.seed + draws)
        )
        scenarios = [replace(here, decisions=each.slice(ids)) for each in decided] or [here, *others]
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
