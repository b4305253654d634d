"""The one executor of all studies: record prompts, run settings live, predict on the same content, compare.

The rule, the same for all:

- **Prompts** are recorded first by plain decoding, once per temperature, in a process without speculative
  code.
- **Content.**  A policy that a recording replays is simulated on it; any other on what its own live runs
  decided, without their times.  Costs come from a profile that never saw these prompts.
- **Baseline.**  The unit of every speedup is plain decoding in the same world, place, batch and temperature,
  on the same prompts.  Live it runs before and after every other setting.
- **Order.**  Within a repetition prompts come in random order, and settings do for each (all prompts at once
  in a batch); what plain decoding takes around a run is the weather that its seconds are divided by; before
  all that each setting runs once, unmeasured (`calibrate.live_runs`).
- **Luck.**  A live repetition of a sampled setting draws anew.  Simulated, it is the mean of `DRAWS` draws,
  or of one run per repetition where decisions are replayed; greedy settings are simulated once.  On emulated
  devices time alone is tested: there every sampled repetition is simulated on what it drew itself.
- **Speed** is tokens over decode seconds, prefills left out: greedy, each prompt counts with the median of
  its repetitions; sampled, with their mean; several prompts, categories and subsets with their sums.  The
  spread is half the range of the repetitions' speedups, relative to the speedup.
- **The law** is told the means of the prompts compared, and the hit curve of all prompts recorded with them:
  few prompts have few rejections at large fan-outs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from analysis.intervals import outside_grid, plain, varied
from analysis.outcomes import MEASURED, Performance, WorldView, pooled_figure
from analysis.results import EVERY, Results, Row, describe, read, settings_of
from analysis.rounds import compare_rounds
from analysis.sources import Sources, load_sources
from analysis.stats import grouped, repeatability, spread_of
from analysis.study import RECORDED, SPLIT, Entry, Plan, PlanT, Study
from calibrate.calibration import requests_of
from calibrate.job import Job, like_profile, make_job, worker_specs
from calibrate.live.placement import WorkerSpec, available_cores, parse_placement
from calibrate.live.transport.emulated import Emulation
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, joined, measure, paired, run_matrix
from calibrate.options import CalibrationRequest, Progress, quiet
from calibrate.prompts import Prompt, choose_prompts, spread
from calibrate.record import record_trace
from calibrate.reply_recorder import Recorder
from hardware_profiles.reply_trace import Decisions, DecisionTrace, read_decisions, write_decisions
from hardware_profiles.trace import Trace
from policies.config import LawInputs
from policies.registry import SettingError, Settings, find_policy
from policies.rows import Round
from simulator.costs import Effects
from simulator.law import draft_rule, law_inputs, law_prediction
from simulator.run import Scenario, Simulated, find_timings, simulate
from simulator.tokens import replay, retold

DRAWS = 8
"""Simulations of a sampled setting, whose mean is predicted: each has luck of its own, one to three per cent
of a speed over a thousand tokens."""
EMULATED = Effects(overlap=False, jitter=False)
"""What is simulated of a machine that live devices emulate: they do not slow each other, and never vary."""
FIGURES = ("tokens_per_round", "cache_hit_rate", "acceptance_rate")
"""Figures of a summary that every row has, once per world."""
MOST_TOKENS = 64
"""Of a request that runs live, unless the plan says otherwise."""
LIVE = CalibrationRequest(temperature=(0.0,), quick=True)
"""What jobs of live runs are made of, but for the pair."""
REPEATED = ("prompts", "count", "max_tokens", "repeats", "seed")
"""What predicting stored live runs again takes from them."""


def needs_decisions(settings: Settings) -> bool:
    """Whether a recording of the prompts does not tell what the setting decides."""
    follows_path = settings.config.follows_path(settings.sampling)
    return find_policy(settings.policy).needs_decisions and not follows_path


@dataclass
class Bench:
    """Where a study runs: prompts, pair and profile.

    Args:
        study: What is asked.
        plan: How.
        hw: Name of the profile.
        progress: (stage, done, total).
        given_sources: Profile and calibration traces in place of those that `hw` names.
        promised: What waits for them where they are still being measured.
        given_job: The live pair in place of the profile's own, as it was measured.
        subsets: Parts that the prompts are split into, each run and predicted on its own.
        time_scale: Real seconds per second of the profile, whose times live devices then emulate; None: they
            are this machine's own.
        out: Folder in which live runs are kept before anything is made of them.
        notes: What is kept beside what was asked, e.g. the machine.
    """

    study: Study[Any]
    plan: Plan
    hw: str = ""
    progress: Progress = quiet
    given_sources: Sources | None = None
    promised: Callable[[], Sources] | None = None
    given_job: Job | None = None
    subsets: int = 1
    time_scale: float | None = None
    out: Path | None = None
    notes: Row = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    _traces: dict[float, Trace] = field(default_factory=dict)
    _curves: dict[Any, LawInputs] = field(default_factory=dict)
    _scenarios: dict[Any, Scenario] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Sources:
        """Profile and calibration traces."""
        if self.promised is not None:
            return self.promised()
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
    def recorded(self) -> bool:
        """Whether the prompts are those of the calibration, as they were recorded then."""
        return self.plan.prompts == RECORDED

    @property
    def limit(self) -> int | None:
        """Most tokens of a request whose recording may be longer."""
        return self.plan.max_tokens if self.recorded else None

    def prompts(self) -> list[Prompt]:
        """The prompts asked for, of all categories in turn."""
        return choose_prompts(self.plan.prompts, self.plan.count)

    def trace(self, temperature: float) -> Trace:
        """The prompts, recorded by plain decoding at a temperature."""
        if temperature not in self._traces:
            if self.recorded:
                trace = spread_requests(self.sources.trace(temperature), self.plan.count)
            else:
                job = replace(self.job, prompts=tuple(self.prompts()), prompt_set=self.plan.prompts)
                trace = record_trace(job, temperature, self.progress)
            self._traces[temperature] = trace
        return self._traces[temperature]

    def scenario(self, temperature: float, batch: int = 1) -> Scenario:
        """The prompts on the profile's hardware."""
        key, seed = (temperature, self.plan.seed), self.plan.seed
        if key not in self._scenarios:
            self._scenarios[key] = self.scenario_of(self.trace(temperature), temperature, seed)
        return varied(self._scenarios[key], batch=batch)

    def calibration(self, temperature: float) -> Scenario:
        """The prompts that the profile was calibrated on, on its hardware."""
        return self.scenario_of(self.sources.trace(temperature), temperature, self.plan.seed)

    def scenario_of(self, trace: Trace, temperature: float, seed: int) -> Scenario:
        """A recording on the profile's hardware."""
        profile = self.sources.profile
        tokens = replay(trace, limit=self.limit, seed=seed)
        # Of real rounds of the profile's own pair; emulated devices know the steps of operations only.
        timings = None if self.time_scale is not None else find_timings(profile, temperature)
        return Scenario(tokens, profile=profile, seed=seed, measured_timings=timings)

    def law_inputs(self, entry: Entry) -> LawInputs:
        """Inputs of the law for a setting."""
        settings = entry.settings
        scenario = self.scenario(settings.temperature)
        inputs = law_inputs(scenario, settings)
        if self.recorded:
            key = (settings.temperature, draft_rule(settings))
            if key not in self._curves:
                every = replay(self.sources.trace(settings.temperature), seed=self.plan.seed)
                self._curves[key] = law_inputs(replace(scenario, tokens=every), settings)
            inputs = replace(inputs, exponent=self._curves[key].exponent, scale=self._curves[key].scale)
        target, draft = (dict(entry.drift).get(f"{role}.forward", 1.0) for role in ("target", "draft"))
        return replace(inputs, target_s=inputs.target_s * target, draft_s=inputs.draft_s * draft)

    def emulation(self, entries: Sequence[Entry]) -> Emulation | None:
        """What live devices emulate: the profile's times, as they are simulated in `EMULATED`."""
        if self.time_scale is None:
            return None
        scenario = varied(self.scenario(entries[0].settings.temperature), effects=EMULATED)
        return Emulation(scenario.live_prices, self.time_scale)

    def compare(self, entries: Sequence[Entry]) -> list[Row]:
        """Law, simulation and, where the plan says so, measurement of every setting, plain decoding first.

        Raises:
            SettingError: Too few prompts for a batch, no recording at a temperature, or too few cores.
        """
        entries = with_baselines(entries)
        by_temperature = grouped(entries, lambda entry: entry.settings.temperature)
        traces = {temperature: self.trace(temperature) for temperature in by_temperature}
        groups = [Comparison(self, by_temperature[t], trace) for t, trace in traces.items()]
        self.comparisons += groups
        with ExitStack() as stack:
            worlds = cache(lambda: live_worlds(self.job, entries, stack, self.emulation(entries)))
            for group in groups:
                group.gather(worlds)
            if self.time_scale is not None:
                self.notes["emulated"] = kept_time(worlds().values(), self.time_scale)
        if self.out is not None and self.plan.live:
            # Before anything is simulated: it can be predicted again whatever comes.
            rows = tuple(row for group in groups for row in group.rows())
            Results(self.study.name, rows, {**self.plan.asked, "live_hw": self.hw}).write(self.out)
            for group in groups:
                group.keep_decisions(self.out)
        for group in groups:
            group.simulate()
        return [row for group in groups for row in group.rows()]


def run_study(study: Study[Any], plan: Plan, progress: Progress, out: Path | None = None) -> Results:
    """Answer a study; live runs are kept in the folder `out` as soon as they are done.

    Raises:
        SettingError: A setting, prompt or recording that it needs is not there.
    """
    asked = plan.asked
    if plan.measured is not None:
        kept = read(plan.measured).asked
        asked |= {name: kept[name] for name in REPEATED if name in kept}
        asked["live_hw"] = kept.get("live_hw") or (kept.get("hw") or [None])[0]
        plan = replace(plan, live=False, **{name: asked[name] for name in REPEATED})
    elif plan.live and plan.hw:
        asked["live_hw"] = plan.hw[0]
    rows: list[Row] = []
    notes: Row = {}
    for hw in plan.hw or ("",):
        rows += study.rows(Bench(study, plan, hw, progress, out=out, notes=notes))
    results = Results(study.name, tuple(rows), asked | notes)
    return replace(results, about=study.about(results))


def with_baselines(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with plain decoding first in every place, batch and temperature (and drift)."""
    complete: list[Entry] = []
    groups = grouped(entries, lambda entry: (entry.batch, plain(entry.settings), entry.place, entry.drift))
    for (batch, unit, place, drift), mine in groups.items():
        given = [e for e in mine if e.settings.plain]
        complete += given[:1] or [Entry(unit, batch, place, (("baseline", True),), drift)]
        complete += [e for e in mine if not e.settings.plain]
    return list(dict.fromkeys(complete))


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


Worlds: TypeAlias = Callable[[], Mapping[str, LiveWorld]]
"""Starts the live worlds, by place, when first called."""


class Comparison:
    """All settings of one temperature on the prompts recorded there."""

    def __init__(self, bench: Bench, entries: Sequence[Entry], trace: Trace) -> None:
        self.bench, self.entries, self.trace = bench, entries, trace
        self.temperature = entries[0].settings.temperature
        self.subsets = split(trace, bench.subsets)
        self.runs: list[LiveRun] = []
        self.decisions: dict[str, tuple[Decisions, ...]] = {}
        """By label, one per live repetition that decided anew."""
        self.outcomes: dict[tuple[str, Entry], dict[Part, Performance]] = {}
        self._scenarios: dict[tuple[Part, int], Scenario] = {}
        widest = max(entry.batch for entry in entries)
        if widest > min(map(len, self.subsets)):
            raise SettingError(f"{len(trace.requests)} prompts do not fill a batch of {widest}: --count")

    def parts(self, batch: int) -> list[Part]:
        """What is simulated and summed on its own: subsets, at batch 1 by category where the study asks."""
        category = {request.id: request.category for request in self.trace.requests}
        by_category = self.bench.study.by_category and batch == 1
        parts = []
        for subset, ids in enumerate(self.subsets):
            names = grouped(ids, lambda i: category[i] if by_category else EVERY)
            parts += [Part(tuple(mine), name, subset) for name, mine in names.items()]
        return parts

    def gather(self, worlds: Worlds) -> None:
        """Run live what is to be, and collect what was decided."""
        bench = self.bench
        every = dict.fromkeys(entry.settings for entry in self.entries)
        needed = [settings for settings in every if find_policy(settings.policy).needs_decisions]
        if bench.stored is not None:
            self.decisions = self._stored_decisions()
        elif bench.plan.live:
            self.runs = self._run(worlds())
            self.decisions = {each.label: self._live_decisions(each) for each in needed}
            for entry in (entry for entry in self.entries if not entry.drift):
                mine = [run for run in self.runs if run.cell == entry.cell]
                self.outcomes[MEASURED, entry] = {
                    part: Performance.live([run for run in mine if set(run.requests) <= set(part.ids)])
                    for part in self.parts(entry.batch)
                }
        else:
            recording = bench.sources.decisions.get(self.temperature) if bench.recorded else None
            known = {} if recording is None else recording.settings
            needed = [settings for settings in needed if needs_decisions(settings)]
            recorded = {s.label: known[s.label] for s in needed if s.label in known}
            if missing := [s for s in needed if s.label not in known]:
                requests = requests_of(self.trace, bench.limit)
                recorder = Recorder(worlds()[SPLIT], requests, None)
                recorded |= {
                    s.label: recorder.record(s, self._progress(f"decisions of {s.label}")) for s in missing
                }
            self.decisions = {label: (decisions,) for label, decisions in recorded.items()}

    def _progress(self, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: self.bench.progress(stage, done, total)

    def _run(self, worlds: Mapping[str, LiveWorld]) -> list[LiveRun]:
        """Every setting live on each subset, plain decoding among them several times."""
        plan, runs = self.bench.plan, list[LiveRun]()
        for number, ids in enumerate(self.subsets):
            runs += run_matrix(
                worlds,
                list(dict.fromkeys(e.cell for e in self.entries if not e.drift)),
                requests_of(self.trace.slice(ids), self.bench.limit),
                repeats=plan.repeats,
                seed=plan.seed + number,
                progress=self._progress(f"live at T={self.temperature:g}"),
                alone=self.bench.time_scale is not None,
                enough=lambda runs: plan.until is None or repeat_within(paired(runs), plan.until),
            )
        self.bench.notes.setdefault("weather", []).extend(weather_rows(runs))
        return runs

    def _live_decisions(self, settings: Settings) -> tuple[Decisions, ...]:
        """What a setting decided, one per repetition that decided anew: greedy ones all decide alike."""
        mine = [run for run in self.runs if run.settings == settings]
        where = min(run.batch for run in mine), mine[0].place
        mine = [run for run in mine if (run.batch, run.place) == where]
        repeats = sorted({run.repeat for run in mine})[: 1 if self.temperature == 0.0 else None]
        return tuple(joined([run.decisions for run in mine if run.repeat == r]) for r in repeats)

    def _file(self, repeat: int | str) -> str:
        """Name of what a repetition decided, beside its results."""
        return f"decided-t{self.temperature:g}-{repeat}.parquet"

    def keep_decisions(self, folder: Path) -> None:
        """Write what live runs decided, a file per repetition."""
        for repeat in range(max(map(len, self.decisions.values()), default=0)):
            mine = [each[repeat] for each in self.decisions.values() if repeat < len(each)]
            write_decisions(self._trace_of(mine, self.bench.job.max_tokens), folder / self._file(repeat))

    def _trace_of(self, decisions: Sequence[Decisions], limit: int) -> DecisionTrace:
        known = {each.label: each for each in decisions}
        return DecisionTrace(self.trace.requests, self.trace.meta, known, limit)

    def _stored_decisions(self) -> dict[str, tuple[Decisions, ...]]:
        path = self.bench.plan.measured
        assert path is not None
        folder = path if path.is_dir() else path.parent
        stored: dict[str, tuple[Decisions, ...]] = {}
        for repeat in range(len(list(folder.glob(self._file("*"))))):
            for label, each in read_decisions(folder / self._file(repeat)).settings.items():
                stored[label] = (*stored.get(label, ()), each)
        return stored

    def simulate(self) -> None:
        """Every setting in its own place in every simulated world."""
        here = [e for e in self.entries if e.place == SPLIT]
        for done, entry in enumerate(here):
            for world, effects in self.bench.study.worlds.items():
                parts = self.parts(entry.batch)
                self.outcomes[world, entry] = {p: self._simulated(entry, p, effects) for p in parts}
            self.bench.progress("simulations", done + 1, len(here))

    def _simulated(self, entry: Entry, part: Part, effects: Effects) -> Performance:
        runs = []
        for number, content in enumerate(self._contents(entry, part)):
            scenario = varied(content, batch=entry.batch, effects=effects, drift=dict(entry.drift))
            timeline = self.bench.study.timeline and number == 0
            runs.append(simulate(scenario, entry.settings, timeline=timeline))
        return Performance.simulated(runs, retold=self.retells)

    @property
    def retells(self) -> bool:
        """Whether live repetitions are simulated on what they drew."""
        return self.bench.time_scale is not None and self.temperature > 0.0 and bool(self.runs)

    def retold(self, entry: Entry, part: Part, repeat: int) -> Scenario:
        """What a live repetition drew, on the profile's hardware."""
        mine = (run for run in self.runs if run.cell == entry.cell and run.repeat == repeat)
        return self.told([run for run in mine if set(run.requests) <= set(part.ids)])

    def told(self, runs: Sequence[LiveRun]) -> Scenario:
        """What live runs of one setting did, told again on the profile's hardware."""
        ids = sorted({request for run in runs for request in run.requests})
        base = varied(self.bench.scenario(self.temperature, runs[0].batch), engine="event")
        if find_policy(runs[0].settings.policy).needs_decisions:
            tokens = replay(self.trace.slice(ids), limit=self.bench.limit, seed=self.bench.plan.seed)
            limit = int(np.diff(self.trace.offsets).max())
            mine = self._trace_of([joined([run.decisions for run in runs])], limit).slice(ids)
            return varied(base, tokens=tokens, decisions=mine)
        rounds = {request: own for run in runs for request, own in run.rounds.items()}
        texts = {request: text for run in runs for request, text in run.texts.items()}
        requests = requests_of(self.trace.slice(ids), self.bench.limit)
        return varied(base, tokens=retold(requests, rounds, texts, self.trace.meta.vocabulary))

    def _contents(self, entry: Entry, part: Part) -> Iterator[Scenario]:
        """One per draw, or per repetition whose decisions are replayed."""
        trace, seed, settings = self.trace, self.bench.plan.seed, entry.settings
        if (known := self.decisions.get(settings.label)) is not None:
            limit = int(np.diff(trace.offsets).max())
            for replayed in known:
                mine = self._trace_of([replayed], limit).slice(part.ids)
                yield varied(self._scenario(part, seed), decisions=mine)
        elif self.retells:
            for repeat in sorted({run.repeat for run in self.runs}):
                yield self.retold(entry, part, repeat)
        elif needs_decisions(settings):
            raise SettingError(f"nothing is known of what {settings.label} decides on these prompts: --live")
        else:
            for each in range(seed, seed + (DRAWS if self.temperature > 0.0 else 1)):
                yield self._scenario(part, each)

    def _scenario(self, part: Part, seed: int) -> Scenario:
        if (part, seed) not in self._scenarios:
            tokens = replay(self.trace.slice(part.ids), limit=self.bench.limit, seed=seed)
            base = self.bench.scenario(self.temperature)
            self._scenarios[part, seed] = varied(base, tokens=tokens, seed=seed)
        return self._scenarios[part, seed]

    def rows(self) -> list[Row]:
        """One per entry; more by category, and by subset where there are several."""
        rows = []
        for entry in self.entries:
            parts = self.parts(entry.batch)
            rows.append(self._row(entry, parts, EVERY))
            if self.bench.study.by_category and entry.batch == 1:
                names = dict.fromkeys(part.category for part in parts)
                rows += [self._row(entry, [p for p in parts if p.category == name], name) for name in names]
            if len(self.subsets) > 1:
                for number in range(len(self.subsets)):
                    chosen = [p for p in parts if p.subset == number]
                    rows.append({**self._row(entry, chosen, EVERY), "subset": number})
        return rows

    def _row(self, entry: Entry, parts: Sequence[Part], category: str) -> Row:
        settings, inputs = entry.settings, self.bench.law_inputs(entry)
        law = law_prediction(settings, inputs, batch=entry.batch)
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
            "law_acceptance": inputs.acceptance,
        }
        outcomes = {
            world: Performance.pooled([self.outcomes[world, entry][part] for part in parts])
            for world in (*self.bench.study.worlds, MEASURED)
            if (world, entry) in self.outcomes
        }
        simulated = next((own for world, own in outcomes.items() if world != MEASURED), None)
        stored = {} if MEASURED in outcomes else self._stored(entry, parts)
        for world in (*self.bench.study.worlds, MEASURED):
            row |= {f"{world}_tokens_per_second": None, f"{world}_speedup_vs_ar": None}
            if world == MEASURED:
                row |= stored
            if world in outcomes:
                row |= self._world(world, entry, parts, inputs, outcomes[world])
        measured = row["measured_speedup_vs_ar"]
        for world in ("law", *self.bench.study.worlds):
            own = row[f"{world}_speedup_vs_ar"]
            row[f"{world}_error"] = None if own is None or measured is None else own / measured - 1.0
        runs = simulated.runs if simulated is not None else ()
        outside = {text for run in runs if isinstance(run, Simulated) for text in outside_grid(run)}
        row["extrapolated"] = "; ".join(sorted(outside))
        row |= {"identical": stored.get("identical"), **dict.fromkeys(ROUNDS)}
        if MEASURED in outcomes:
            if self.temperature == 0.0:
                row |= self._agreement(settings, outcomes[MEASURED].runs, runs)
            row["rounds_equal"] = self._rounds_equal(settings, outcomes[MEASURED].runs, runs)
            row["repeatability"] = self._repeatability(entry, parts, outcomes)
        return row

    def _repeatability(
        self, entry: Entry, parts: Sequence[Part], outcomes: Mapping[str, Performance]
    ) -> float | None:
        """Of the measured speedup; where each repetition is simulated on what it drew, of its error."""
        unit = self._unit(entry)
        by_repeat = {
            world: own.speedups(Performance.pooled([self.outcomes[world, unit][part] for part in parts]))
            for world, own in outcomes.items()
            if own.repeats
        }
        measured = by_repeat.pop(MEASURED)
        told = next(iter(by_repeat.values()), [1.0] * len(measured))
        return repeatability([a / b for a, b in zip(measured, told, strict=True)])

    def _rounds_equal(
        self, settings: Settings, live: Sequence[LiveRun | Simulated], runs: Sequence[LiveRun | Simulated]
    ) -> bool | None:
        """Whether every live round went as simulated; None where the simulation drew on its own, or the clock
        decides.
        """
        replayed = self.retells or settings.label in self.decisions or self.temperature == 0.0
        if not runs or not replayed or find_policy(settings.policy).clocked:
            return None
        told: dict[int, list[list[Round]]] = {}  # by request, one per simulated repetition
        for run in runs:
            if isinstance(run, Simulated):
                for request in run.rows.log.admitted_s:
                    told.setdefault(request, []).append(run.rows.log.rounds(request))
        return all(
            rounds == told[request][min(run.repeat, len(told[request]) - 1)]
            for run in live
            if isinstance(run, LiveRun)
            for request, rounds in run.rounds.items()
        )

    def _unit(self, entry: Entry) -> Entry:
        """Plain decoding in its place, batch and drift."""
        same = (plain(entry.settings), entry.place, entry.batch, entry.drift)
        return next(e for e in self.entries if (e.settings, e.place, e.batch, e.drift) == same)

    def _world(
        self, world: str, entry: Entry, parts: Sequence[Part], inputs: LawInputs, own: Performance
    ) -> Row:
        """The columns of one world."""
        plainly = self._unit(entry)
        unit = Performance.pooled([self.outcomes[world, plainly][part] for part in parts])
        decisions = self.decisions.get(entry.settings.label, ())
        if world == MEASURED:
            decisions = tuple(run.decisions for run in own.runs if isinstance(run, LiveRun))
        trace = self.trace.slice([i for part in parts for i in part.ids])
        scenario = self.bench.scenario(self.temperature, entry.batch)
        view = WorldView(entry, world, own, unit, trace, inputs, decisions, scenario)
        figures = {
            "tokens_per_second": own.speed,
            "speedup_vs_ar": own.speed / unit.speed,
            **{name: pooled_figure(own.summaries, name) for name in FIGURES},
            "overlap_s": own.overlap_s,
            **self.bench.study.columns(view),
        }
        if world == MEASURED:  # enough to pool and to compare live runs again
            by_repeat = own.speedups(unit)
            figures |= {
                "low": min(by_repeat),
                "high": max(by_repeat),
                "spread": spread_of(by_repeat, own.speed / unit.speed),
                "by_repeat": by_repeat,
                "tokens": own.tokens,
                "seconds": own.seconds,
                "repeat_tokens": [tokens for tokens, _ in own.repeats],
                "repeat_seconds": [seconds for _, seconds in own.repeats],
            }
        return {f"{world}_{name}": value for name, value in figures.items()}

    def _stored(self, entry: Entry, parts: Sequence[Part]) -> Row:
        """The measured columns of a stored row."""
        category = parts[0].category if len({p.category for p in parts}) == 1 else EVERY
        for row in self.bench.stored.rows if self.bench.stored is not None else ():
            same = (row["batch"], row.get("place") or SPLIT, row.get("category") or EVERY)
            if same == (entry.batch, entry.place, category) and settings_of(row) == entry.settings:
                return {n: v for n, v in row.items() if n.startswith("measured_") or n == "identical"}
        return {}

    def _agreement(
        self,
        settings: Settings,
        live: Sequence[LiveRun | Simulated],
        simulated: Sequence[LiveRun | Simulated],
    ) -> Row:
        """Whether greedy live runs said what plain decoding says, and went as simulated, round by round."""
        ran = [run for run in live if isinstance(run, LiveRun)]
        spans = zip(self.trace.requests, self.trace.offsets, self.trace.offsets[1:], strict=False)
        texts = {r.id: tuple(self.trace.token[a:b].tolist()[: self.bench.limit]) for r, a, b in spans}
        row: Row = {"identical": all(run.texts.items() <= texts.items() for run in ran)}
        info = find_policy(settings.policy)
        if not simulated or info.needs_decisions or info.clocked:
            return row
        expected = {
            request: run.rows.log.rounds(request)
            for run in simulated
            if isinstance(run, Simulated)
            for request in dict.fromkeys(run.rows.log.table()["request"].tolist())
        }
        rounds = {r: own for run in ran if run.repeat == 0 for r, own in run.rounds.items()}
        agreement = compare_rounds(settings, expected, rounds, self.trace)
        unexcused = sum(not d.excused for d in agreement.differences)
        row["differences"] = [str(each) for each in agreement.differences]
        return row | dict(zip(ROUNDS, (agreement.rounds, len(agreement.differences), unexcused), strict=True))


ROUNDS = ("rounds_compared", "round_differences", "unexcused_differences")
"""Columns of a row whose live rounds were compared with simulated ones."""


def repeat_within(runs: Sequence[LiveRun], share: float) -> bool:
    """Whether every setting's speed, in the weather that its runs had, repeats within a share."""
    for mine in grouped(runs, lambda run: run.cell).values():
        again = repeatability([tokens / seconds for tokens, seconds in measure(mine).repeats])
        if again is None or again > share:
            return False
    return True


def weather_rows(runs: Sequence[LiveRun]) -> list[Row]:
    """What the machine was like before each run, beside what the run took and what its pair says."""
    return [
        {
            **run.looked._asdict(),
            "setting": run.settings.label,
            "batch": run.batch,
            "requests": list(run.requests),
            "repeat": run.repeat,
            "tokens": run.summary.tokens,
            "seconds": run.summary.seconds,
            "weather": run.weather,
        }
        for run in runs
        if run.looked is not None
    ]


def split(trace: Trace, subsets: int) -> list[list[int]]:
    """Ids of the prompts of each subset: neighbours dealt out in turn.

    Prompts come one of each category after the other, so that they are dealt out by whole turns, unless those
    do not come out even.

    Raises:
        SettingError: Fewer prompts than subsets.
    """
    ids = [request.id for request in trace.requests]
    if not 1 <= subsets <= len(ids):
        raise SettingError(f"{len(ids)} prompts cannot be split into {subsets} subsets")
    turn = len({request.category for request in trace.requests})
    for size in (turn, 1) if len(ids) >= turn * subsets else (1,):
        dealt = [[i for n, i in enumerate(ids) if n // size % subsets == k] for k in range(subsets)]
        if max(map(len, dealt)) - min(map(len, dealt)) <= 1:
            break
    return dealt


def spread_requests(trace: Trace, count: int | None) -> Trace:
    """`count` requests taken in turn from every category; all of them for None."""
    if count is None or count >= len(trace.requests):
        return trace
    return trace.slice([request.id for request in spread(trace.requests, count)])


def live_worlds(
    job: Job, entries: Sequence[Entry], stack: ExitStack, emulation: Emulation | None = None
) -> dict[str, LiveWorld]:
    """The live worlds of some entries, one per place, with as many drafts and rows as any needs."""
    worlds = {}
    widest = max(entry.batch for entry in entries)
    drafts = max(entry.settings.draft_devices or 1 for entry in entries)
    for place in dict.fromkeys(entry.place for entry in entries if not entry.drift):
        there = job if place == SPLIT else replace(job, placement=parse_placement(place))
        target, draft = worker_specs(there, batch=widest)
        live = LiveWorld(
            target, more_drafts(draft, drafts, together=emulation is not None), emulation=emulation
        )
        worlds[place] = stack.enter_context(live)
    return worlds


def kept_time(worlds: Iterable[LiveWorld], scale: float) -> Row:
    """How well emulated devices kept their times, over all runs so far.

    `late_reports` are those that came after they were to be noticed, and by how many real seconds at most;
    `missed_runs` were repeated, since real work was not done in time.
    """
    every = list(worlds)
    behind = [scale * s for world in every for device in world.devices for s in device.behind_s]
    return {
        "time_scale": scale,
        "missed_runs": sum(world.missed for world in every),
        "reports": len(behind),
        "late_reports": sum(s > 0.0 for s in behind),
        "latest_s": max(behind, default=0.0),
    }


def more_drafts(draft: WorkerSpec, count: int, *, together: bool = False) -> list[WorkerSpec]:
    """`count` draft workers, the further ones on cores that nobody has yet, or `together` on the first's.

    Raises:
        SettingError: There are too few cores.
    """
    if count == 1:
        return [draft]
    free = [core for core in available_cores() if core not in (0, *draft.cores)]
    if together:  # emulated, they last as long wherever they are
        free = [draft.cores[0]] * (count - 1)
    if len(free) < count - 1:
        raise SettingError(
            f"{count} draft devices live need {count + 1} cores, one for the target; there are "
            f"{len(available_cores())}: run this study without --live"
        )
    more = [replace(draft, name=f"draft-{i + 1}", cores=(free[i],)) for i in range(count - 1)]
    return [draft, *more]


def profiled_job(sources: Sources, *, limit: int, seed: int) -> Job:
    """The live job of a profile's own pair, as its trace names it, called as it was when it was measured."""
    meta = next(iter(sources.traces.values())).meta
    pair = replace(LIVE, target=meta.target_model, draft=meta.draft_model, max_tokens=limit, seed=seed)
    return like_profile(make_job(pair), sources.profile)
