"""Validate predictions: the same settings simulated and live, on the same prompts, in the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from analysis import livecells
from analysis.intervals import Interval
from analysis.predictions import Prediction, Setting, nearest_measured, predict
from analysis.rows import Row, Subset
from analysis.sources import Sources
from calibrate.calibration import record
from calibrate.job import Job, like_profile, worker_specs
from calibrate.live.world import LiveWorld
from calibrate.live_runs import LiveRun
from calibrate.prompts import Prompt
from hardware_profiles.trace import Trace
from policies.registry import SettingError, configure
from policies.timeline import Span
from simulator.law import assume, opinion
from simulator.run import Scenario
from simulator.tokens import replay

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True)
class Validation:
    """Outcome of a validation.

    Attributes:
        sources: What predicted.
        rows: One per setting and batch, AR first within a batch and temperature.
        traces: Recording of the validation prompts, by temperature.
        repeats: Live repetitions.
        level: Of the predicted intervals.
        live_spans: Timeline of the first live run of each setting.
        machine: What it ran on.
    """

    sources: Sources
    rows: list[Row]
    traces: Mapping[float, Trace]
    repeats: int
    level: float
    live_spans: dict[Setting, list[Span]]
    machine: str = ""

    @property
    def trace(self) -> Trace:
        """The recording at the lowest temperature."""
        return self.traces[min(self.traces)]


@dataclass(frozen=True, slots=True)
class Trial:
    """How to validate.

    Attributes:
        settings: What to run: (settings, batch).
        prompts: On what.
        prompt_set: Their name.
        subsets: Parts that the prompts are split into, each run and predicted on its own.
        repeats: Live repetitions of each setting and prompt.
        level: Of the predicted intervals.

    Raises:
        SettingError: Fewer prompts than subsets, or a batch wider than a subset.
    """

    settings: tuple[Setting, ...]
    prompts: tuple[Prompt, ...]
    prompt_set: str
    subsets: int = 2
    repeats: int = 2
    level: float = 0.8

    def __post_init__(self) -> None:
        if not 1 <= self.subsets <= len(self.prompts):
            raise SettingError(f"{len(self.prompts)} prompts cannot be split into {self.subsets} subsets")
        if self.widest > self.size:
            needed = self.widest * self.subsets
            raise SettingError(
                f"a batch of {self.widest} needs {needed} prompts in {self.subsets} subsets, got "
                f"{len(self.prompts)}: a smaller batch would be run; give --count {needed}"
            )

    @property
    def widest(self) -> int:
        """Rows of the largest batch."""
        return max(batch for _, batch in self.settings)

    @property
    def size(self) -> int:
        """Prompts of the smallest subset."""
        return len(self.prompts) // self.subsets


@dataclass(frozen=True, slots=True)
class Expected:
    """Intervals of the speedup from the calibration's prompts: of one subset's run, and of all together."""

    subset: Interval
    whole: Interval


def validate(job: Job, sources: Sources, trial: Trial, *, progress: Progress) -> Validation:
    """Record the prompts, predict, run live, compare.

    Args:
        job: Pair, machine and placement, as for a calibration.
        sources: Costs and calibration traces that predict; they never saw these prompts.
        trial: What to run on what.
        progress: (stage, done, total).

    Raises:
        SettingError: No calibration trace at a temperature.
    """
    settings = with_baselines(trial.settings)
    temperatures = list(dict.fromkeys(s.temperature for s, _ in settings))
    for temperature in temperatures:
        sources.trace(temperature)  # fails before anything slow begins
    live = like_profile(job, sources.profile)
    traces = {
        t: record(replace(live, temperature=t), trial.prompts, trial.prompt_set, progress)
        for t in temperatures
    }
    parts = [{t: trace.slice(ids) for t, trace in traces.items()} for ids in split(traces, trial.subsets)]
    # Predictions are made before anything is run live.
    own = [predict(settings, sources.profile, part, seed=job.seed) for part in parts]
    expected = expect(settings, sources, trial, limit=job.limit, seed=job.seed, progress=progress)
    with LiveWorld(*worker_specs(live, batch=trial.widest)) as world:
        runs = [
            livecells.run_settings(
                world,
                settings,
                part,
                repeats=trial.repeats,
                seed=job.seed + i,
                progress=lambda done, total: progress("live settings", done, total),
            )
            for i, part in enumerate(parts)
        ]
    evidence = Evidence(sources, traces, runs)
    rows = [evidence.row(s, expected[i], [p[i] for p in own]) for i, s in enumerate(settings)]
    spans = livecells.first_spans(runs[0])
    return Validation(sources, rows, traces, trial.repeats, trial.level, spans, str(job.machine))


def with_baselines(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, with plain decoding first at every batch and temperature."""
    found: list[Setting] = []
    for batch, temperature in dict.fromkeys((b, s.temperature) for s, b in settings):
        found.append((configure("ar", temperature=temperature), batch))
        here = [(s, b) for s, b in settings if (b, s.temperature) == (batch, temperature)]
        found += [(s, b) for s, b in here if s.policy != "ar"]
    return found


def split(traces: Mapping[float, Trace], subsets: int) -> list[list[int]]:
    """Ids of the prompts of each subset: neighbours dealt out in turn.

    Prompts come one of each category after the other, so that they are dealt out by whole turns.
    """
    requests = next(iter(traces.values())).requests
    turn = max(1, len({r.category for r in requests}))
    dealt: list[list[int]] = [[] for _ in range(subsets)]
    if len(requests) < turn * subsets:
        turn = 1
    for number, request in enumerate(requests):
        dealt[number // turn % subsets].append(request.id)
    sizes = [len(ids) for ids in dealt]
    if max(sizes) - min(sizes) > 1:  # a last turn that is not whole: one by one, then
        dealt = [[r.id for r in requests[k::subsets]] for k in range(subsets)]
    return dealt


def expect(
    settings: Sequence[Setting],
    sources: Sources,
    trial: Trial,
    *,
    limit: int,
    seed: int,
    progress: Progress,
) -> list[Expected]:
    """Predict every setting from the calibration's prompts, for runs of the trial's size."""
    boots = {
        (temperature, batch): sources.bootstrap(
            temperature,
            batch=batch,
            size=trial.size,
            limit=reachable(limit, sources.trace(temperature)),
            level=trial.level,
            seed=seed,
        )
        for temperature, batch in dict.fromkeys((s.temperature, b) for s, b in settings)
    }
    found = []
    for done, (setting, batch) in enumerate(settings):
        boot = boots[setting.temperature, batch]
        found.append(Expected(boot.speedup(setting), boot.speedup_of_several(setting, trial.subsets)))
        progress("predictions", done + 1, len(settings))
    return found


def reachable(limit: int, trace: Trace) -> int | None:
    """The limit where the calibration trace reaches it, else None: all that was recorded."""
    return limit if int(np.diff(trace.offsets).max()) >= limit else None


@dataclass(frozen=True)
class Evidence:
    """What the rows of a validation are made of.

    Attributes:
        sources: What predicted.
        traces: Recording of the prompts, by temperature.
        runs: Live runs of each subset.
    """

    sources: Sources
    traces: Mapping[float, Trace]
    runs: Sequence[Sequence[LiveRun]]

    def row(self, setting: Setting, expected: Expected, own: Sequence[Prediction]) -> Row:
        """One setting: `own` are its predictions per subset."""
        settings, batch = setting
        plain = (configure("ar", temperature=settings.temperature), batch)
        speeds = [livecells.measured(part, setting) for part in self.runs]
        plains = [livecells.measured(part, plain) for part in self.runs]
        whole, ar = livecells.together(speeds), livecells.together(plains)
        nearest = nearest_measured(settings, self.sources.profile.measured_runs, batch)
        law = self.law(setting)
        greedy = settings.temperature == 0.0
        mine = [run for part in self.runs for run in livecells.of_setting(part, setting)]
        return Row(
            settings=settings,
            batch=batch,
            law_tokens_per_second=law[0],
            law_speedup_vs_ar=law[1],
            interval=expected.whole,
            nearest=None if nearest is None else nearest.speedup_vs_ar,
            measured=whole,
            measured_speedup_vs_ar=whole.tokens_per_second / ar.tokens_per_second,
            speedup_by_repeat=livecells.speedup_by_repeat(whole, ar),
            subsets=tuple(
                Subset(p, expected.subset, s.tokens_per_second / a.tokens_per_second)
                for p, s, a in zip(own, speeds, plains, strict=True)
            ),
            agreement=livecells.agreement(settings, own, mine, self.traces[0.0]) if greedy else None,
            identical=livecells.identical(mine, self.traces[0.0]) if greedy else None,
        )

    def law(self, setting: Setting) -> tuple[float | None, float | None]:
        """(tokens per second, speedup over AR) of the law, told the means of the prompts' own trace."""
        settings, batch = setting
        tokens = replay(self.traces[settings.temperature])
        scenario = Scenario(tokens=tokens, profile=self.sources.profile, batch=batch)
        law = opinion(settings, assume(scenario, settings), batch=batch)
        return law.tokens_per_second, law.speedup_vs_ar
