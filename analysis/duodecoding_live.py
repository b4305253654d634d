"""DuoDecoding on real models: settings run live on held-out prompts, beside the simulation of each.

Every setting is simulated on the content of its own live runs (the prompts' recorded path, or the decisions
made, without their times), with the costs of a profile that never saw these prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.duodecoding_budget import Progress
from analysis.duodecoding_sequences import Doubt, doubt_of
from analysis.execute import profiled_job
from analysis.sources import Sources
from calibrate.calibration import record, requests_of
from calibrate.job import worker_specs
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import Cell, LiveRun, joined, measure, run_matrix
from calibrate.prompts import Prompt
from hardware_profiles.decisions import Decisions, DecisionTrace
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure, find_policy
from policies.summary import Summary
from simulator.law import law_inputs, law_prediction
from simulator.pacing import find_pace
from simulator.run import Scenario, simulate
from simulator.tokens import replay

ALL = "all"


@dataclass(frozen=True)
class Iteration:
    """What a mean round is (the paper's Figure 4).

    Attributes:
        seconds: Of a round.
        target_s: In which the target works.
        draft_s: In which the draft works.
        first_token_s: Until the first token, prefill included (Figure 3).
    """

    seconds: float
    target_s: float
    draft_s: float
    first_token_s: float

    @classmethod
    def of(cls, summaries: Sequence[Summary]) -> Iteration:
        """Mean over the rounds of some runs; the first token's over the runs."""
        rounds = sum(s.batch_rounds for s in summaries)

        def busy(device: str) -> float:
            return sum(s.seconds * s.utilization.get(device, 0.0) for s in summaries) / rounds

        first = [s.time_to_first_token_s for s in summaries if s.time_to_first_token_s is not None]
        seconds = sum(s.seconds for s in summaries) / rounds
        return cls(seconds, busy("target"), busy("draft"), float(np.mean(first)))

    def as_dict(self) -> dict[str, float]:
        """Plain values, ready for JSON."""
        return {
            "seconds": self.seconds,
            "target_s": self.target_s,
            "draft_s": self.draft_s,
            "first_token_s": self.first_token_s,
        }


@dataclass(frozen=True)
class Line:
    """A setting by three opinions; speedups are over plain decoding in the same world.

    Attributes:
        settings: The policy and its knobs.
        law: The law's speedup; None where it has none.
        simulated: By category of prompts, `ALL` among them.
        measured: Likewise.
        by_repeat: Measured speedup of each repetition, on all prompts.
        simulated_round: Mean round.
        measured_round: Likewise.
        lossless: Whether every text is plain decoding's.
        doubt: Of DuoDecoding, by category.
    """

    settings: Settings
    law: float | None
    simulated: dict[str, float]
    measured: dict[str, float]
    by_repeat: tuple[float, ...]
    simulated_round: Iteration
    measured_round: Iteration
    lossless: bool
    doubt: dict[str, Doubt]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "setting": self.settings.label,
            "law_speedup_vs_ar": self.law,
            "simulated_speedup_vs_ar": self.simulated,
            "measured_speedup_vs_ar": self.measured,
            "measured_by_repeat": list(self.by_repeat),
            "simulated_round": self.simulated_round.as_dict(),
            "measured_round": self.measured_round.as_dict(),
            "lossless": self.lossless,
            "doubt": {name: doubt.as_dict() for name, doubt in self.doubt.items()},
        }


def run_lines(
    sources: Sources,
    settings: Sequence[Settings],
    prompts: Sequence[Prompt],
    *,
    limit: int,
    repeats: int,
    seed: int,
    progress: Progress,
) -> list[Line]:
    """Run greedy settings live, plain decoding among them, and simulate each.

    Args:
        sources: Profile and its pair.
        settings: What to run; plain decoding, the unit, comes first by itself.
        prompts: Held out from the calibration.
        limit: Most tokens per prompt.
        repeats: Live repetitions.
        seed: Keys the order of the runs.
        progress: (stage, done, total).

    Raises:
        LiveError: A model is not there or does not run.
    """
    job = profiled_job(sources, limit=limit, seed=seed)
    trace = record(job, list(prompts), "heldout", progress)
    chosen = list(dict.fromkeys([configure("ar"), *settings]))
    with LiveWorld(*worker_specs(job)) as world:
        runs = run_matrix(
            {"": world},
            [Cell("", each) for each in chosen],
            requests_of(trace, limit),
            repeats=repeats,
            seed=seed,
            progress=lambda done, total: progress("live", done, total),
        )
    pace = find_pace(sources.profile)
    scenario = Scenario(replay(trace, seed=seed), profile=sources.profile, seed=seed, measured_pace=pace)
    lines = []
    for done, each in enumerate(chosen):
        lines.append(_line(scenario, trace, each, runs, limit))
        progress("simulations", done + 1, len(chosen))
    return lines


def _line(scenario: Scenario, trace: Trace, settings: Settings, runs: Sequence[LiveRun], limit: int) -> Line:
    mine = [run for run in runs if run.settings == settings]
    plain = [run for run in runs if run.settings.policy == "ar"]
    rowwise = find_policy(settings.policy).needs_decisions
    decisions = joined([run.decisions for run in mine if run.repeat == 0]) if rowwise else None
    simulated, summaries = {}, []
    for category, ids in _categories(trace).items():
        part = replace(scenario, tokens=replay(trace.slice(ids), seed=scenario.seed))
        if decisions is not None:
            part = replace(part, decisions=_trace_of(trace.slice(ids), decisions, limit))
        unit = simulate(part, configure("ar")).summary
        found = simulate(part, settings).summary
        simulated[category] = found.tokens_per_second / unit.tokens_per_second
        if category == ALL:
            summaries.append(found)
    speed, unit_speed = measure(mine)[Cell("", settings)], measure(plain)[Cell("", configure("ar"))]
    texts = {run.requests[0]: run.texts[run.requests[0]] for run in plain}
    return Line(
        settings=settings,
        law=law_prediction(settings, law_inputs(scenario, settings), batch=1).speedup_vs_ar,
        simulated=simulated,
        measured={
            category: _speed(mine, ids) / _speed(plain, ids) for category, ids in _categories(trace).items()
        },
        by_repeat=tuple(a / b for a, b in zip(speed.by_repeat, unit_speed.by_repeat, strict=True)),
        simulated_round=Iteration.of(summaries),
        measured_round=Iteration.of([run.summary for run in mine]),
        lossless=all(run.texts[r] == texts[r] for run in mine for r in run.requests),
        doubt=_doubts(trace, decisions) if settings.policy == "duo" and decisions is not None else {},
    )


def _categories(trace: Trace) -> dict[str, list[int]]:
    """Ids of the requests of each category, and of all."""
    found: dict[str, list[int]] = {ALL: [request.id for request in trace.requests]}
    for request in trace.requests:
        found.setdefault(request.category, []).append(request.id)
    return found


def _speed(runs: Sequence[LiveRun], ids: Sequence[int]) -> float:
    """Tokens per second, ratio of sums over the repetitions."""
    chosen = [run.summary for run in runs if run.requests[0] in ids]
    return sum(s.tokens for s in chosen) / sum(s.seconds for s in chosen)


def _doubts(trace: Trace, decisions: Decisions) -> dict[str, Doubt]:
    found = {}
    for category, ids in _categories(trace).items():
        try:
            found[category] = doubt_of(decisions, set(ids))
        except ValueError:  # too few tokens for a single round that got so far
            continue
    return found


def _trace_of(part: Trace, decisions: Decisions, limit: int) -> DecisionTrace:
    return DecisionTrace(part.requests, part.meta, {decisions.label: decisions}, limit)
