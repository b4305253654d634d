"""The one executor of all studies: record prompts, run settings live, predict on the same content, compare.

The rule, the same for all:

- **Prompts** are recorded first by plain decoding, once per temperature, in a process without speculative
  code.
- **Content.**  A policy that a recording replays is simulated on it; any other on what its own live runs
  decided, without their times.  Costs come from a profile that never saw these prompts.
- **Baseline.**  The unit of every speedup is plain decoding in the same world, place, batch and temperature,
  on the same prompts.  Live it runs once more per `AR_PER_SETTINGS` settings, so that it is as well known.
- **Order.**  Within a repetition prompts come in random order, and settings do for each (all prompts at once
  in a batch), plain decoding among them; before all that each setting runs once, unmeasured
  (`calibrate.live_runs`).
- **Luck.**  A live repetition of a sampled setting draws anew.  Simulated, it is the mean of `DRAWS` draws,
  or of one run per repetition where decisions are replayed; greedy settings are simulated once.
- **Speed** is tokens over decode seconds, prefills left out: greedy, each prompt counts with the median of
  its repetitions; sampled, with their mean; several prompts, categories and subsets with their sums.  The
  spread is half the range of the repetitions' speedups, relative to the speedup.
- **The law** is told the means of the prompts compared, and the hit curve of all prompts recorded with them:
  few prompts have few rejections at large fan-outs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import outside_grid, share_surfaces
from analysis.results import EVERY, Results, Row, describe, read, settings_of
from analysis.rounds import Agreement, compare_rounds
from analysis.sources import Sources, load_sources
from analysis.stats import spread_of
from analysis.study import RECORDED, SPLIT, Entry, Plan, PlanT, Progress, Study
from calibrate.calibration import record, requests_of
from calibrate.job import Job, like_profile, make_job, worker_specs
from calibrate.live.placement import WorkerSpec, available_cores, parse_placement
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, decide, joined, measure, run_matrix
from calibrate.prompts import Prompt, find_prompts, load_prompts, spread
from hardware_profiles.reply_trace import Decisions, DecisionTrace, read_decisions, write_decisions
from hardware_profiles.trace import Trace
from policies.config import LawInputs
from policies.registry import SettingError, Settings, configure, find_policy
from policies.summary import Summary
from policies.values import IntArray
from simulator.costs import Effects
from simulator.law import draft_rule, law_inputs, law_prediction
from simulator.probe import DraftRule
from simulator.run import Scenario, Simulated, find_timings, simulate
from simulator.tokens import replay

DRAWS = 8
"""Simulations of a sampled setting, whose mean is predicted: each has luck of its own, one to three per cent
of a speed over a thousand tokens."""
AR_PER_SETTINGS = 6
"""Plain decoding runs once more per this many settings."""
FIGURES = ("tokens_per_round", "cache_hit_rate", "acceptance_rate")
"""Figures of a summary that every row has, once per world."""
MEASURED = "measured"
MOST_TOKENS = 64
"""Of a request that runs live, unless the plan says otherwise."""


def plain(settings: Settings) -> Settings:
    """Plain decoding at the same sampling setting and seed."""
    return configure("ar", temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed)


def needs_decisions(settings: Settings) -> bool:
    """Whether a recording of the prompts does not tell what the setting decides."""
    return find_policy(settings.policy).needs_decisions and not settings.config.follows_path(
        settings.sampling
    )


@dataclass(frozen=True)
class Outcome:
    """A setting on some prompts in one world.

    Attributes:
        tokens: Tokens of a pass over the prompts.
        seconds: Decode seconds of it.
        repeats: [(tokens, seconds)] of each live repetition.
        overlap_s: Of these, seconds in which target and draft worked.
        runs: What it is made of; empty where only speeds are stored.
    """

    tokens: float
    seconds: float
    repeats: tuple[tuple[float, float], ...] = ()
    runs: tuple[LiveRun | Simulated, ...] = ()
    overlap_s: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def summaries(self) -> list[Summary]:
        """Of its runs."""
        return [run.summary for run in self.runs]

    @classmethod
    def pooled(cls, parts: Sequence[Outcome]) -> Outcome:
        """One set of prompts after the other: sums."""
        repeats = zip(*(part.repeats for part in parts), strict=True)
        return cls(
            sum(part.tokens for part in parts),
            sum(part.seconds for part in parts),
            tuple((sum(t for t, _ in each), sum(s for _, s in each)) for each in repeats),
            tuple(run for part in parts for run in part.runs),
            sum(part.overlap_s for part in parts),
        )

    @classmethod
    def live(cls, runs: Sequence[LiveRun]) -> Outcome:
        """Of the live runs of one cell."""
        found = measure(runs)[runs[0].cell]
        repeats = zip(found.by_repeat, found.by_repeat_s, strict=True)
        return cls(
            found.tokens, found.seconds, tuple((v * s, s) for v, s in repeats), tuple(runs), found.overlap_s
        )

    @classmethod
    def simulated(cls, runs: Sequence[Simulated]) -> Outcome:
        """Mean of several simulations."""
        tokens, seconds = ([getattr(run.summary, name) for run in runs] for name in ("tokens", "seconds"))
        overlap = float(np.mean([run.summary.overlap_s for run in runs]))
        return cls(float(np.mean(tokens)), float(np.mean(seconds)), (), tuple(runs), overlap)


def speedups(own: Outcome, unit: Outcome) -> list[float]:
    """Speedup over plain decoding in each live repetition."""
    pairs = zip(own.repeats, unit.repeats, strict=True)
    return [(t / s) / (other_t / other_s) for (t, s), (other_t, other_s) in pairs]


@dataclass(frozen=True)
class View:
    """A setting in one world: what the columns of a study are read from.

    Attributes:
        entry: The setting.
        world: `measured`, or a simulated one.
        own: What it did.
        unit: What plain decoding did there.
        trace: Recording of these prompts.
        told: What the law is told.
        decisions: What was decided, where that is replayed or was live.
        scenario: Tokens and costs of the simulated world.
    """

    entry: Entry
    world: str
    own: Outcome
    unit: Outcome
    trace: Trace
    told: LawInputs
    decisions: tuple[Decisions, ...]
    scenario: Scenario

    @property
    def settings(self) -> Settings:
        """The policy and its knobs."""
        return self.entry.settings

    @property
    def live(self) -> bool:
        """Whether it was measured."""
        return self.world == MEASURED

    def total(self, name: str) -> float:
        """Sum of a figure over all runs."""
        return float(sum(getattr(summary, name) for summary in self.own.summaries))

    def rounds(self) -> Mapping[str, IntArray]:
        """Columns of all rounds (`RoundLog.table`)."""
        tables = [_rounds(run) for run in self.own.runs]
        return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _rounds(run: LiveRun | Simulated) -> Mapping[str, IntArray]:
    if isinstance(run, Simulated):
        return run.rows.log.table()
    rounds = [each for own in run.rounds.values() for each in own]
    names = ("accepted", "length", "emitted", "hit", "source", "request")
    return {name: np.array([getattr(each, name) for each in rounds], dtype=np.int64) for name in names}


def pooled_figure(summaries: Sequence[Summary], figure: str) -> float | None:
    """A figure over several runs as a ratio of sums, weighted by what its denominator counts."""
    known = [s for s in summaries if getattr(s, figure) is not None]
    if not known:
        return None
    weights = [_weight(summary, figure) for summary in known]
    return float(np.average([getattr(s, figure) for s in known], weights=weights))


def _weight(summary: Summary, figure: str) -> float:
    """Positions verified, of which the acceptance rate is a share; rounds for the others."""
    if figure != "acceptance_rate" or not summary.acceptance_rate:
        return float(summary.rounds)
    return summary.accepted_per_round * summary.rounds / summary.acceptance_rate


@dataclass
class Bench:
    """Where a study runs: prompts, pair and profile.

    Args:
        study: What is asked.
        plan: How.
        hw: Name of the profile; of no importance where `sources` are given.
        progress: (stage, done, total).
        given_sources: Profile and calibration traces; by default those that `hw` names.
        given_job: The live pair; by default the profile's own, as it was measured.
        subsets: Parts that the prompts are split into, each run and predicted on its own.
        out: Folder in which live runs are kept before anything is made of them.
    """

    study: Study[Any]
    plan: Plan
    hw: str = ""
    progress: Progress = lambda stage, done, total: None
    given_sources: Sources | None = None
    given_job: Job | None = None
    subsets: int = 1
    out: Path | None = None
    decided: dict[float, list[DecisionTrace]] = field(default_factory=dict)
    """What live runs decided, by temperature and repetition."""
    comparisons: list[Comparison] = field(default_factory=list)
    notes: Row = field(default_factory=dict)
    """What is kept beside what was asked, e.g. the machine."""
    _traces: dict[float, Trace] = field(default_factory=dict)
    _curves: dict[tuple[float, DraftRule], LawInputs] = field(default_factory=dict)
    _scenarios: dict[tuple[float, int], Scenario] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Sources:
        """Profile and calibration traces."""
        return self.given_sources or load_sources(self.hw, temperatures=self.plan.temperature)

    @cached_property
    def job(self) -> Job:
        """The pair that runs, or ran what is predicted again, and how."""
        if self.given_job is not None:
            return self.given_job
        kept = self.stored.asked.get("live_hw") if self.stored is not None else None
        sources = load_sources(kept) if kept and kept != self.hw else self.sources
        return profiled_job(sources, limit=self.plan.max_tokens or MOST_TOKENS, seed=self.plan.seed)

    def plan_as(self, kind: type[PlanT]) -> PlanT:
        """The plan, known to be of a study's own kind."""
        assert isinstance(self.plan, kind)
        return self.plan

    @cached_property
    def stored(self) -> Results | None:
        """Live runs that are predicted again."""
        return None if self.plan.measured is None else read(self.plan.measured)

    @property
    def limit(self) -> int | None:
        """Most tokens of a request whose recording may be longer."""
        return self.plan.max_tokens if self.plan.prompts == RECORDED else None

    def prompts(self) -> list[Prompt]:
        """The prompts asked for, of all categories in turn."""
        every = load_prompts(find_prompts(self.plan.prompts))
        return spread(every, self.plan.count) if self.plan.count else every

    def trace(self, temperature: float) -> Trace:
        """The prompts, recorded by plain decoding at a temperature."""
        if temperature not in self._traces:
            self._traces[temperature] = self._recorded(temperature)
        return self._traces[temperature]

    def _recorded(self, temperature: float) -> Trace:
        if self.plan.prompts == RECORDED:
            return spread_requests(self.sources.trace(temperature), self.plan.count)
        job = replace(self.job, temperature=temperature)
        return record(job, self.prompts(), self.plan.prompts, self.progress)

    def scenario(self, temperature: float, batch: int = 1) -> Scenario:
        """The prompts on the profile's hardware."""
        key = (temperature, self.plan.seed)
        if key not in self._scenarios:
            self._scenarios[key] = self._scenario(self.trace(temperature), temperature, self.plan.seed)
        found = replace(self._scenarios[key], batch=batch)
        share_surfaces(self._scenarios[key], found)
        return found

    def calibration(self, temperature: float) -> Scenario:
        """The prompts that the profile was calibrated on, on its hardware."""
        return self._scenario(self.sources.trace(temperature), temperature, self.plan.seed)

    def _scenario(self, trace: Trace, temperature: float, seed: int) -> Scenario:
        profile = self.sources.profile
        tokens = replay(trace, limit=self.limit, seed=seed)
        timings = find_timings(profile, temperature)
        return Scenario(tokens, profile=profile, seed=seed, measured_timings=timings)

    def told(self, entry: Entry) -> LawInputs:
        """What the law is told of a setting."""
        settings = entry.settings
        scenario = self.scenario(settings.temperature)
        told = law_inputs(scenario, settings)
        if self.plan.prompts == RECORDED:
            key = (settings.temperature, draft_rule(settings))
            if key not in self._curves:
                every = replay(self.sources.trace(settings.temperature), seed=self.plan.seed)
                self._curves[key] = law_inputs(replace(scenario, tokens=every), settings)
            told = replace(told, exponent=self._curves[key].exponent, scale=self._curves[key].scale)
        drift = dict(entry.drift)
        return replace(
            told,
            target_s=told.target_s * drift.get("target.forward", 1.0),
            draft_s=told.draft_s * drift.get("draft.forward", 1.0),
        )

    def compare(self, entries: Sequence[Entry]) -> list[Row]:
        """Law, simulation and, where the plan says so, measurement of every setting, plain decoding first.

        Raises:
            SettingError: Too few prompts for a batch, no recording at a temperature, or too few cores.
        """
        entries = with_baselines(entries)
        traces = {t: self.trace(t) for t in dict.fromkeys(e.settings.temperature for e in entries)}
        groups = [
            Comparison(self, [e for e in entries if e.settings.temperature == t], trace)
            for t, trace in traces.items()
        ]
        self.comparisons += groups
        with ExitStack() as stack:
            worlds = _Worlds(self.job, entries, stack) if self._runs_models(entries) else None
            for group in groups:
                group.gather(worlds)
        if self.out is not None and self.plan.live:
            self._keep(groups)
        for group in groups:
            group.simulate()
        return [row for group in groups for row in group.rows()]

    def _keep(self, groups: Sequence[Comparison]) -> None:
        """Write what was measured and decided, so that it can be predicted again whatever comes."""
        assert self.out is not None
        rows = tuple(row for group in groups for row in group.rows())
        asked = {**self.plan.asked, "live_hw": self.hw}
        Results(self.study.name, rows, asked).write(self.out)
        for temperature, traces in self.decided.items():
            for repeat, trace in enumerate(traces):
                write_decisions(trace, self.out / decisions_file(temperature, repeat))

    def _runs_models(self, entries: Sequence[Entry]) -> bool:
        if self.stored is not None:
            return False
        return self.plan.live or any(
            needs_decisions(entry.settings) and self.known_decisions(entry.settings) is None
            for entry in entries
        )

    def known_decisions(self, settings: Settings) -> Decisions | None:
        """What the profile's own recording of decisions says of a setting, on the calibration's prompts."""
        if self.plan.prompts != RECORDED:
            return None
        known = self.sources.decisions.get(settings.temperature)
        return None if known is None else known.settings.get(settings.label)


def run_study(study: Study[Any], plan: Plan, progress: Progress, out: Path | None = None) -> Results:
    """Answer a study.

    Args:
        study: What is asked.
        plan: How.
        progress: (stage, done, total).
        out: Folder in which live runs are kept as soon as they are done.

    Raises:
        SettingError: A setting, prompt or recording that it needs is not there.
    """
    asked = plan.asked
    if plan.measured is not None:
        kept = read(plan.measured).asked
        asked |= {name: kept[name] for name in REPEATED if name in kept}
        asked["live_hw"] = kept.get("live_hw") or (kept.get("hw") or [None])[0]
        told = {name: asked[name] for name in REPEATED}
        plan = replace(plan, live=False, **told)
    elif plan.live and plan.hw:
        asked["live_hw"] = plan.hw[0]
    rows: list[Row] = []
    notes: Row = {}
    for hw in plan.hw or ("",):
        bench = Bench(study, plan, hw, progress, out=out, notes=notes)
        rows += study.rows(bench)
    results = Results(study.name, tuple(rows), asked | notes)
    return replace(results, about=study.about(results))


REPEATED = ("prompts", "count", "max_tokens", "repeats", "seed")
"""What predicting stored live runs again takes from them."""


def decisions_file(temperature: float, repeat: int) -> str:
    """Name of what a repetition decided, beside its results."""
    return f"decided-t{temperature:g}-{repeat}.parquet"


def with_baselines(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with plain decoding first in every place, batch and temperature (and drift)."""
    found: list[Entry] = []
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.batch, plain(entry.settings), entry.place, entry.drift), []).append(entry)
    for (batch, unit, place, drift), mine in groups.items():
        given = [e for e in mine if e.settings.plain]
        found += given[:1] or [Entry(unit, batch, place, (("baseline", True),), drift)]
        found += [e for e in mine if not e.settings.plain]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Part:
    """Prompts that are reported together.

    Attributes:
        ids: Of the requests.
        category: Of the prompts; `EVERY` where they ran together.
        subset: Which one they belong to.
    """

    ids: tuple[int, ...]
    category: str
    subset: int


class Comparison:
    """All settings of one temperature on the prompts recorded there."""

    def __init__(self, bench: Bench, entries: Sequence[Entry], trace: Trace) -> None:
        self.bench, self.entries, self.trace = bench, entries, trace
        self.temperature = entries[0].settings.temperature
        self.subsets = split(trace, bench.subsets)
        self.runs: list[LiveRun] = []
        self.decisions: dict[str, tuple[Decisions, ...]] = {}
        self.outcomes: dict[tuple[str, Entry], dict[Part, Outcome]] = {}
        widest = max(entry.batch for entry in entries)
        if widest > min(map(len, self.subsets)):
            raise SettingError(f"{len(trace.requests)} prompts do not fill a batch of {widest}: --count")

    def parts(self, batch: int) -> list[Part]:
        """What is simulated and summed on its own: subsets, at batch 1 by category where the study asks."""
        category = {request.id: request.category for request in self.trace.requests}
        apart = self.bench.study.by_category and batch == 1
        found: dict[tuple[str, int], list[int]] = {}
        for subset, ids in enumerate(self.subsets):
            for i in ids:
                found.setdefault((category[i] if apart else EVERY, subset), []).append(i)
        return [Part(tuple(ids), *key) for key, ids in found.items()]

    def gather(self, worlds: _Worlds | None) -> None:
        """Run live what is to be, and collect what was decided."""
        decided = [e.settings for e in self.entries if find_policy(e.settings.policy).needs_decisions]
        needed = list(dict.fromkeys(decided))
        if self.bench.stored is not None:
            self.decisions = self._stored_decisions()
        elif self.bench.plan.live and worlds is not None:
            self.runs = self._run(worlds)
            self.decisions = {each.label: self._decided(each) for each in needed}
            self._keep_decisions()
        else:
            needed = [s for s in needed if needs_decisions(s)]
            known = {s.label: self.bench.known_decisions(s) for s in needed}
            self.decisions = {label: (found,) for label, found in known.items() if found is not None}
            asked = [s for s in needed if s.label not in self.decisions]
            if asked and worlds is not None:
                self.decisions |= {name: (found,) for name, found in self._decide(worlds, asked).items()}
        for entry in self.entries:
            if self.runs and not entry.drift:
                mine = [run for run in self.runs if run.cell == entry.cell]
                self.outcomes[MEASURED, entry] = {p: _live(mine, p) for p in self.parts(entry.batch)}

    def _run(self, worlds: _Worlds) -> list[LiveRun]:
        """Every setting live on each subset, plain decoding among them several times."""
        cells = list(dict.fromkeys(e.cell for e in self.entries if not e.drift))
        sizes = [(c.place, c.batch) for c in cells if not c.settings.plain]
        units = [c for c in cells if c.settings.plain]
        extra = [c for c in units for _ in range(sizes.count((c.place, c.batch)) // AR_PER_SETTINGS)]
        runs = []
        for number, ids in enumerate(self.subsets):
            runs += run_matrix(
                worlds.by_place,
                [*cells, *extra],
                requests_of(self.trace.slice(ids), self.bench.limit),
                repeats=self.bench.plan.repeats,
                seed=self.bench.plan.seed + number,
                progress=lambda done, total: self.bench.progress(
                    f"live at T={self.temperature:g}", done, total
                ),
            )
        return runs

    def _decide(self, worlds: _Worlds, asked: Sequence[Settings]) -> dict[str, Decisions]:
        return decide(
            worlds.by_place[SPLIT],
            asked,
            requests_of(self.trace, self.bench.limit),
            progress=lambda done, total: self.bench.progress("decisions", done, total),
        )

    def _decided(self, settings: Settings) -> tuple[Decisions, ...]:
        """What a setting decided, one per repetition that decided anew: greedy ones all decide alike."""
        mine = [run for run in self.runs if run.settings == settings]
        where = min(run.batch for run in mine), mine[0].place
        mine = [run for run in mine if (run.batch, run.place) == where]
        repeats = sorted({run.repeat for run in mine})[: 1 if self.temperature == 0.0 else None]
        return tuple(joined([run.decisions for run in mine if run.repeat == r]) for r in repeats)

    def _keep_decisions(self) -> None:
        kept = self.bench.decided.setdefault(self.temperature, [])
        for repeat in range(max(map(len, self.decisions.values()), default=0)):
            both = {name: each[repeat] for name, each in self.decisions.items() if repeat < len(each)}
            limit = self.bench.job.limit
            kept.append(DecisionTrace(self.trace.requests, self.trace.meta, both, limit))

    def _stored_decisions(self) -> dict[str, tuple[Decisions, ...]]:
        path = self.bench.plan.measured
        assert path is not None
        folder = path if path.is_dir() else path.parent
        found: dict[str, list[Decisions]] = {}
        for repeat in range(len(list(folder.glob(f"decided-t{self.temperature:g}-*.parquet")))):
            for label, each in read_decisions(
                folder / decisions_file(self.temperature, repeat)
            ).settings.items():
                found.setdefault(label, []).append(each)
        return {label: tuple(each) for label, each in found.items()}

    def simulate(self) -> None:
        """Every setting in its own place in every simulated world."""
        here = [e for e in self.entries if e.place == SPLIT]
        for done, entry in enumerate(here):
            for world, effects in self.bench.study.worlds.items():
                parts = self.parts(entry.batch)
                self.outcomes[world, entry] = {p: self._simulated(entry, p, effects) for p in parts}
            self.bench.progress("simulations", done + 1, len(here))

    def _simulated(self, entry: Entry, part: Part, effects: Effects) -> Outcome:
        settings, timeline = entry.settings, self.bench.study.timeline
        scenarios = self._scenarios(settings, part)
        runs = []
        for number, original in enumerate(scenarios):
            drift = dict(entry.drift)
            scenario = replace(original, batch=entry.batch, effects=effects, drift=drift)
            share_surfaces(self.bench.scenario(self.temperature), scenario)
            runs.append(simulate(scenario, settings, timeline=timeline and number == 0))
        return Outcome.simulated(runs)

    def _scenarios(self, settings: Settings, part: Part) -> Iterator[Scenario]:
        """One per draw, or per repetition whose decisions are replayed."""
        trace, seed = self.trace.slice(part.ids), self.bench.plan.seed
        for decided in self.decisions.get(settings.label, ()):
            whole = DecisionTrace(self.trace.requests, trace.meta, {decided.label: decided}, self._limit)
            yield replace(self._scenario_of(part, seed), decisions=whole.slice(part.ids))
        if settings.label in self.decisions:
            return
        if needs_decisions(settings):
            raise SettingError(f"nothing is known of what {settings.label} decides on these prompts: --live")
        for each in range(seed, seed + (DRAWS if self.temperature > 0.0 else 1)):
            yield self._scenario_of(part, each)

    @property
    def _limit(self) -> int:
        return int(np.diff(self.trace.offsets).max())

    def _scenario_of(self, part: Part, seed: int) -> Scenario:
        known: dict[tuple[Part, int], Scenario] = self.__dict__.setdefault("_known", {})
        if (part, seed) not in known:
            known[part, seed] = self.bench._scenario(self.trace.slice(part.ids), self.temperature, seed)
        return known[part, seed]

    def unit(self, entry: Entry) -> Entry:
        """Plain decoding in the same place, batch and drift."""
        same = (
            e for e in self.entries if (e.place, e.batch, e.drift) == (entry.place, entry.batch, entry.drift)
        )
        return next(e for e in same if e.settings == plain(entry.settings))

    def rows(self) -> list[Row]:
        """One per entry; more by category, and by subset where there are several."""
        found = []
        for entry in self.entries:
            parts = self.parts(entry.batch)
            found.append(self._row(entry, parts, EVERY))
            if self.bench.study.by_category and entry.batch == 1:
                names = dict.fromkeys(part.category for part in parts)
                found += [self._row(entry, [p for p in parts if p.category == name], name) for name in names]
            if len(self.subsets) > 1:
                for number in range(len(self.subsets)):
                    chosen = [p for p in parts if p.subset == number]
                    found.append({**self._row(entry, chosen, EVERY), "subset": number})
        return found

    def _row(self, entry: Entry, parts: Sequence[Part], category: str) -> Row:
        settings, told = entry.settings, self.bench.told(entry)
        law = law_prediction(settings, told, batch=entry.batch)
        row: Row = {
            **dict(entry.tags),
            "profile": self.bench.sources.profile.name,
            **describe(settings),
            "batch": entry.batch,
            "place": entry.place,
            "category": category,
            "requests": sum(len(part.ids) for part in parts),
            "law_tokens_per_second": law.tokens_per_second,
            "law_speedup_vs_ar": law.speedup_vs_ar,
            "law_cache_hit_rate": law.cache_hit_rate,
            "law_acceptance": told.acceptance,
        }
        simulated: Outcome | None = None
        for world in (*self.bench.study.worlds, MEASURED):
            row |= self._world(world, entry, parts, told)
            if (world, entry) in self.outcomes:
                last = Outcome.pooled([self.outcomes[world, entry][p] for p in parts])
                simulated = last if simulated is None and world != MEASURED else simulated
        measured = row["measured_speedup_vs_ar"]
        for world in ("law", *self.bench.study.worlds):
            own = row.get(f"{world}_speedup_vs_ar")
            row[f"{world}_error"] = None if own is None or measured is None else own / measured - 1.0
        row["extrapolated"] = "; ".join(_extrapolated(simulated))
        return row | self._agreement(entry, simulated, parts)

    def _world(self, world: str, entry: Entry, parts: Sequence[Part], told: LawInputs) -> Row:
        """The columns of one world."""
        if (world, entry) not in self.outcomes:
            stored = self._stored(entry, parts) if world == MEASURED else {}
            return {f"{world}_tokens_per_second": None, f"{world}_speedup_vs_ar": None, **stored}
        own, unit = (
            Outcome.pooled([self.outcomes[world, each][part] for part in parts])
            for each in (entry, self.unit(entry))
        )
        ids = [i for part in parts for i in part.ids]
        view = View(
            entry, world, own, unit, self.trace.slice(ids), told, self._view_decisions(world, own, entry),
            self.bench.scenario(self.temperature, entry.batch),
        )  # fmt: skip
        figures = {
            "tokens_per_second": own.speed,
            "speedup_vs_ar": own.speed / unit.speed,
            **{name: pooled_figure(own.summaries, name) for name in FIGURES},
            "overlap_s": own.overlap_s,
            **self.bench.study.columns(view),
        }
        if world == MEASURED:
            figures |= live_figures(own, unit)
        return {f"{world}_{name}": value for name, value in figures.items()}

    def _view_decisions(self, world: str, own: Outcome, entry: Entry) -> tuple[Decisions, ...]:
        if world == MEASURED:
            return tuple(run.decisions for run in own.runs if isinstance(run, LiveRun))
        return self.decisions.get(entry.settings.label, ())

    def _stored(self, entry: Entry, parts: Sequence[Part]) -> Row:
        """The measured columns of a stored row."""
        if self.bench.stored is None:
            return {}
        category = parts[0].category if len({p.category for p in parts}) == 1 else EVERY
        for row in self.bench.stored.rows:
            same = (row["batch"], row.get("place") or SPLIT, row.get("category") or EVERY)
            if same == (entry.batch, entry.place, category) and settings_of(row) == entry.settings:
                return {n: v for n, v in row.items() if n.startswith("measured_") or n == "identical"}
        return {}

    def _agreement(self, entry: Entry, simulated: Outcome | None, parts: Sequence[Part]) -> Row:
        """Whether greedy live runs went as simulated, round by round, and said what plain decoding says."""
        names = ("rounds_compared", "round_differences", "unexcused_differences")
        if (MEASURED, entry) not in self.outcomes or self.temperature > 0.0:
            stored = self._stored(entry, parts)
            return {"identical": stored.get("identical"), **dict.fromkeys(names)}
        live = [run for part in parts for run in self.outcomes[MEASURED, entry][part].runs]
        texts = [run for run in live if isinstance(run, LiveRun)]
        row: Row = {"identical": identical(texts, self.trace, self.bench.limit)}
        if simulated is None or find_policy(entry.settings.policy).needs_decisions:
            return row | dict.fromkeys(names)
        found = self.agreement(entry, parts)
        unexcused = sum(not d.excused for d in found.differences)
        row["differences"] = [str(each) for each in found.differences]
        return row | dict(zip(names, (found.rounds, len(found.differences), unexcused), strict=True))

    def agreement(self, entry: Entry, parts: Sequence[Part]) -> Agreement:
        """Simulated against live rounds of a greedy setting."""
        world = next(iter(self.bench.study.worlds))
        live, simulated = (
            [run for part in parts for run in self.outcomes[name, entry][part].runs]
            for name in (MEASURED, world)
        )
        return compare_rounds(
            entry.settings,
            {
                r: run.rows.log.rounds(r)
                for run in simulated
                if isinstance(run, Simulated)
                for r in _served(run)
            },
            {
                r: own
                for run in live
                if isinstance(run, LiveRun) and run.repeat == 0
                for r, own in run.rounds.items()
            },
            self.trace,
        )


def _served(run: Simulated) -> list[int]:
    return sorted(set(run.rows.log.table()["request"].tolist()))


def live_figures(own: Outcome, unit: Outcome) -> Row:
    """What is kept of live runs, enough to pool and to compare them again."""
    by_repeat = speedups(own, unit)
    return {
        "low": min(by_repeat),
        "high": max(by_repeat),
        "spread": spread_of(by_repeat, own.speed / unit.speed),
        "by_repeat": by_repeat,
        "tokens": own.tokens,
        "seconds": own.seconds,
        "repeat_tokens": [tokens for tokens, _ in own.repeats],
        "repeat_seconds": [seconds for _, seconds in own.repeats],
    }


def _live(runs: Sequence[LiveRun], part: Part) -> Outcome:
    return Outcome.live([run for run in runs if set(run.requests) <= set(part.ids)])


def _extrapolated(found: Outcome | None) -> list[str]:
    runs = [] if found is None else found.runs
    return sorted({text for run in runs if isinstance(run, Simulated) for text in outside_grid(run)})


def identical(runs: Sequence[LiveRun], trace: Trace, limit: int | None = None) -> bool:
    """Whether every live text is the recorded one, up to a limit."""
    texts = {
        r.id: tuple(trace.token[a:b].tolist())
        for r, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False)
    }
    return all(text == texts[request][:limit] for run in runs for request, text in run.texts.items())


def split(trace: Trace, subsets: int) -> list[list[int]]:
    """Ids of the prompts of each subset: neighbours dealt out in turn.

    Prompts come one of each category after the other, so that they are dealt out by whole turns.

    Raises:
        SettingError: Fewer prompts than subsets.
    """
    requests = trace.requests
    if not 1 <= subsets <= len(requests):
        raise SettingError(f"{len(requests)} prompts cannot be split into {subsets} subsets")
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


def spread_requests(trace: Trace, count: int | None) -> Trace:
    """`count` requests taken in turn from every category; all of them for None."""
    if count is None or count >= len(trace.requests):
        return trace
    by_category: dict[str, list[int]] = {}
    for request in trace.requests:
        by_category.setdefault(request.category, []).append(request.id)
    turns = [ids[turn] for turn in range(count) for ids in by_category.values() if turn < len(ids)]
    return trace.slice(turns[:count])


class _Worlds:
    """The live worlds of some entries, one per place, with as many drafts and rows as any needs."""

    def __init__(self, job: Job, entries: Sequence[Entry], stack: ExitStack) -> None:
        self.by_place: dict[str, LiveWorld] = {}
        widest = max(entry.batch for entry in entries)
        drafts = max(entry.settings.draft_devices or 1 for entry in entries)
        for place in dict.fromkeys(entry.place for entry in entries if not entry.drift):
            there = job if place == SPLIT else replace(job, placement=parse_placement(place))
            target, draft = worker_specs(there, batch=widest)
            self.by_place[place] = stack.enter_context(LiveWorld(target, more_drafts(draft, drafts)))


def more_drafts(draft: WorkerSpec, count: int) -> list[WorkerSpec]:
    """`count` draft workers, the further ones on cores that nobody has yet.

    Raises:
        SettingError: There are too few cores.
    """
    if count == 1:
        return [draft]
    free = [core for core in available_cores() if core not in (0, *draft.cores)]
    if len(free) < count - 1:
        raise SettingError(
            f"{count} draft devices live need {count + 1} cores, one for the target; there are "
            f"{len(available_cores())}: run this study without --live"
        )
    more = [replace(draft, name=f"draft-{i + 1}", cores=(free[i],)) for i in range(count - 1)]
    return [draft, *more]


def live_job(
    target: str,
    draft: str,
    *,
    limit: int,
    temperatures: Sequence[float] = (0.0,),
    placement: str = SPLIT,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Job:
    """The job that live runs are made of: pair, placement and limit; calibrating it would be quick."""
    return make_job(
        target=target,
        draft=draft,
        placement=placement,
        temperature=temperatures,
        max_tokens=limit,
        quick=True,
        seed=seed,
        trust_remote_code=trust_remote_code,
    )


def profiled_job(sources: Sources, *, limit: int, seed: int) -> Job:
    """The live job of a profile's own pair, as its trace names it, called as it was when it was measured."""
    meta = next(iter(sources.traces.values())).meta
    job = live_job(meta.target_model, meta.draft_model, limit=limit, seed=seed)
    return like_profile(job, sources.profile)
