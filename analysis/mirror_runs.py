"""What the figures of Mirror-SD are made of, run on a pair: settings, live runs, simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from analysis.decided import decided_by
from analysis.family import by_category
from analysis.family_orders import EVERY
from analysis.livecells import AR_PER_SETTINGS
from analysis.mirror_points import Point, live_point, simulated_point, speed_of
from analysis.sources import Sources
from calibrate.calibration import record, requests_of
from calibrate.job import Job, worker_specs
from calibrate.live.placement import parse_placement
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import Cell, LiveRun, decide, run_matrix
from calibrate.prompts import Prompt
from hardware_profiles.decisions import DecisionTrace
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure
from simulator.pacing import find_pace
from simulator.run import Scenario, simulate
from simulator.tokens import replay

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""
SPLIT, SHARED = "split", "shared:0,1"
"""Placements: a core for each model, which profiles are measured on, or both models on both cores."""
FIGURES = ("3a", "4", "5", "6b", "7", "8")


@dataclass(frozen=True)
class Sweep:
    """What is varied.

    Attributes:
        lookaheads: gamma of Figure 3a.
        lookahead: Of all others.
        kappas: Of Figure 7.
        kappa: Of all others.
        exits: Of Figure 7.
        batches: Of Figure 5.
        streams: Of a streaming draft, as its knob says it.
    """

    lookaheads: tuple[int, ...] = (1, 2, 3, 5, 8)
    lookahead: int = 3
    kappas: tuple[int, ...] = (1, 2, 4, 8)
    kappa: int = 2
    exits: tuple[str, ...] = ("1/4", "1/2", "3/4")
    batches: tuple[int, ...] = (1, 4, 8)
    streams: str = "2"

    def cells(self, figures: Iterable[str], **target: Any) -> list[Cell]:
        """Everything that some figures compare, each once, plain decoding left out.

        Args:
            figures: Of `FIGURES`.
            target: Temperature and seed.
        """
        parts: dict[str, Callable[[], list[Cell]]] = {
            "3a": lambda: [Cell(SPLIT, s) for k in self.lookaheads for s in self._rivals(k, target)],
            "4": lambda: [
                Cell(SPLIT, s) for s in (*self._rivals(self.lookahead, target), *self._in_turns(target))
            ],
            "5": lambda: [
                Cell(SPLIT, s, batch) for batch in self.batches for s in self._rivals(self.lookahead, target)
            ],
            "6b": lambda: [Cell(SPLIT, s) for s in self._in_turns(target)],
            "7": lambda: [
                Cell(SPLIT, self._mirror(self.lookahead, target, kappa=kappa, exit=exit_))
                for exit_ in self.exits
                for kappa in self.kappas
            ],
            "8": lambda: [
                Cell(place, s) for place in (SPLIT, SHARED) for s in self._rivals(self.lookahead, target)
            ],
        }
        return list(dict.fromkeys(cell for figure in figures for cell in parts[figure]()))

    def _rivals(self, lookahead: int, target: Mapping[str, Any]) -> list[Settings]:
        """SD, PEARL, SSD, and Mirror-SD with either draft."""
        return [
            configure("sd", lookahead=lookahead, **target),
            configure("pearl", lookahead=lookahead, **target),
            configure("saguaro", lookahead=lookahead, fanout=(3,), backup="primary", **target),
            self._mirror(lookahead, target),
            self._mirror(lookahead, target, streams=self.streams),
        ]

    def _in_turns(self, target: Mapping[str, Any]) -> list[Settings]:
        """Mirror-SD without overlap, with either draft."""
        return [
            self._mirror(self.lookahead, target, overlap="off", streams=streams)
            for streams in ("0", self.streams)
        ]

    def _mirror(self, lookahead: int, target: Mapping[str, Any], **knobs: Any) -> Settings:
        return configure("mirror", lookahead=lookahead, **{"kappa": self.kappa, **target, **knobs})


def points_of(
    job: Job,
    sources: Sources,
    cells: Sequence[Cell],
    prompts: Sequence[Prompt],
    *,
    prompt_set: str,
    repeats: int,
    progress: Progress,
) -> list[Point]:
    """Cells on a profile's pair: measured, and those on its placement simulated on what the pair decides.

    Args:
        job: Pair and machine, as the profile was measured.
        sources: What predicts.
        cells: All at one sampling, without plain decoding.
        prompts: Held out from the calibration.
        prompt_set: Their name.
        repeats: Live repetitions; 0: each Mirror-SD runs once, untimed, for its decisions alone.
        progress: (stage, done, total).
    """
    first = cells[0].settings
    trace = record(replace(job, temperature=first.temperature), prompts, prompt_set, progress)
    plain = configure("ar", temperature=first.temperature, seed=first.seed)
    found: list[Point] = []
    if repeats:
        runs = run_cells(job, trace, cells, plain, repeats=repeats, progress=progress)
        order = {cell: number for number, cell in enumerate(cells)}  # the runs came in a random one
        live = live_points(runs, trace, plain)
        found += sorted(live, key=lambda p: order[Cell(p.place, p.settings, p.batch)])
        decided = {each.label: decided_by(runs, each) for each in _mirrors(cells)}
    else:
        decided = _decide(job, trace, cells, progress)
    decisions = DecisionTrace(trace.requests, trace.meta, decided, job.limit)
    here = [cell for cell in cells if cell.place == SPLIT]
    for done, cell in enumerate(here):
        found += simulated_points(sources, trace, decisions, cell, plain, seed=job.seed)
        progress("simulations", done + 1, len(here))
    return found


def run_cells(
    job: Job, trace: Trace, cells: Sequence[Cell], plain: Settings, *, repeats: int, progress: Progress
) -> list[LiveRun]:
    """Cells live, with plain decoding in every place and batch; a repetition draws what the first did."""
    baselines = []
    for place, size in dict.fromkeys((cell.place, cell.batch) for cell in cells):
        compared = sum((cell.place, cell.batch) == (place, size) for cell in cells)
        baselines += [Cell(place, plain, size)] * (1 + compared // AR_PER_SETTINGS)
    batch = max(cell.batch for cell in cells)
    with ExitStack() as stack:
        worlds = {}
        for place in dict.fromkeys(cell.place for cell in cells):
            there = job if place == SPLIT else replace(job, placement=parse_placement(place))
            worlds[place] = stack.enter_context(LiveWorld(*worker_specs(there, batch=batch)))
        return run_matrix(
            worlds,
            [*cells, *baselines],
            requests_of(trace),
            repeats=repeats,
            seed=job.seed,
            progress=lambda done, total: progress(f"live at T={plain.temperature:g}", done, total),
            fresh_luck=False,
        )


def live_points(runs: Sequence[LiveRun], trace: Trace, plain: Settings) -> list[Point]:
    """Every cell of the runs on all prompts and, at batch 1, on those of each category."""
    found = []
    for cell in dict.fromkeys(run.cell for run in runs if run.settings != plain):
        mine = [run for run in runs if run.cell == cell]
        unit = [run for run in runs if run.cell == replace(cell, settings=plain)]
        for category, ids in _parts(trace, cell.batch).items():
            own, base = ([r for r in some if set(r.requests) <= set(ids)] for some in (mine, unit))
            found.append(live_point(own, base, category))
    return found


def simulated_points(
    sources: Sources, trace: Trace, decisions: DecisionTrace, cell: Cell, plain: Settings, *, seed: int
) -> list[Point]:
    """A cell simulated on all prompts and, at batch 1, on those of each category."""
    found, pace = [], find_pace(sources.profile, plain.temperature)
    for category, ids in _parts(trace, cell.batch).items():
        scenario = Scenario(
            replay(trace.slice(ids), seed=seed),
            profile=sources.profile,
            batch=cell.batch,
            seed=seed,
            decisions=decisions.slice(ids),
            measured_pace=pace,
        )
        run = simulate(scenario, cell.settings)
        unit = speed_of([simulate(scenario, plain).summary])
        where = (cell.place, cell.settings, cell.batch)
        found.append(simulated_point(where, category, [run.summary], unit, run.rows.log.table()))
    return found


def _parts(trace: Trace, batch: int) -> dict[str, list[int]]:
    everything = {EVERY: [r.id for r in trace.requests]}
    return {**everything, **by_category(trace)} if batch == 1 else everything


def _mirrors(cells: Sequence[Cell]) -> list[Settings]:
    return list(dict.fromkeys(cell.settings for cell in cells if cell.settings.policy == "mirror"))


def _decide(job: Job, trace: Trace, cells: Sequence[Cell], progress: Progress) -> dict[str, Any]:
    with LiveWorld(*worker_specs(job)) as world:
        return decide(
            world,
            _mirrors(cells),
            requests_of(trace),
            progress=lambda done, total: progress("decisions", done, total),
        )
