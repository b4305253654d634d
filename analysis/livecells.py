"""The live half of a validation: settings run on a subset of the prompts, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.predictions import Prediction, Setting
from analysis.rounds import Agreement, compare_rounds
from calibrate.calibration import requests_of
from calibrate.job import Job, worker_specs
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import Cell, LiveRun, Measured, measure, run_matrix
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure
from policies.timeline import Span

AR_PER_SETTINGS = 6
"""Plain decoding runs once per this many settings, among them, so that the baseline is as well known."""


def run_settings(
    world: LiveWorld,
    settings: Sequence[Setting],
    part: Mapping[float, Trace],
    *,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None],
    limit: int | None = None,
) -> list[LiveRun]:
    """Every setting live on one subset of the prompts, plain decoding among them several times.

    Args:
        world: Where.
        settings: What to run, plain decoding at every batch and temperature among them.
        part: Recording of the subset, by temperature.
        repeats: Repetitions.
        seed: Keys the order.
        progress: (runs done, runs in all) of a temperature.
        limit: Most tokens per request; None: as recorded.
    """
    runs: list[LiveRun] = []
    for temperature, trace in part.items():
        cells = [Cell("", s, batch) for s, batch in settings if s.temperature == temperature]
        extra = []
        for batch in dict.fromkeys(cell.batch for cell in cells):
            others = sum(cell.batch == batch for cell in cells) - 1
            extra += [Cell("", configure("ar", temperature=temperature), batch)] * (others // AR_PER_SETTINGS)
        requests = requests_of(trace, limit)
        runs += run_matrix(
            {"": world}, [*cells, *extra], requests, repeats=repeats, seed=seed, progress=progress
        )
    return runs


def run_interleaved(
    job: Job,
    trace: Trace,
    settings: Sequence[Settings],
    plain: Settings,
    *,
    repeats: int,
    progress: Callable[[int, int], None],
) -> list[LiveRun]:
    """Settings live at batch 1 on the prompts of a trace, plain decoding among them several times.

    Args:
        job: Pair and machine.
        trace: The prompts, with the lengths recorded for them.
        settings: What to run, plain decoding left out.
        plain: Plain decoding at the same sampling.
        repeats: Repetitions.
        progress: (runs done, runs in all).
    """
    cells = [Cell("", s) for s in settings] + [Cell("", plain)] * (1 + len(settings) // AR_PER_SETTINGS)
    with LiveWorld(*worker_specs(job)) as world:
        return run_matrix(
            {"": world}, cells, requests_of(trace), repeats=repeats, seed=job.seed, progress=progress
        )


def measured(runs: Sequence[LiveRun], setting: Setting) -> Measured:
    """Speed of one setting among the runs on a subset."""
    settings, batch = setting
    return measure(of_setting(runs, setting))[Cell("", settings, batch)]


def of_setting(runs: Sequence[LiveRun], setting: Setting) -> list[LiveRun]:
    """The runs of one setting."""
    return [run for run in runs if (run.settings, run.batch) == setting]


def together(parts: Sequence[Measured]) -> Measured:
    """The same setting on several sets of prompts, one after the other."""
    seconds = np.array([m.by_repeat_s for m in parts])  # [parts, repeats]
    tokens = seconds * np.array([m.by_repeat for m in parts])
    return Measured(
        tokens=sum(m.tokens for m in parts),
        seconds=sum(m.seconds for m in parts),
        by_repeat_s=tuple(seconds.sum(axis=0).tolist()),
        by_repeat=tuple((tokens.sum(axis=0) / seconds.sum(axis=0)).tolist()),
        overlap_s=sum(m.overlap_s for m in parts),
    )


def speedup_by_repeat(speed: Measured, ar: Measured) -> tuple[float, ...]:
    """Speedup in each repetition."""
    return tuple(s / a for s, a in zip(speed.by_repeat, ar.by_repeat, strict=True))


def agreement(
    settings: Settings, own: Sequence[Prediction], runs: Sequence[LiveRun], trace: Trace
) -> Agreement:
    """Simulated against live rounds of one setting, over all subsets."""
    simulated = {request: rounds for p in own for request, rounds in p.rounds.items()}
    live = {request: rounds for run in runs if run.repeat == 0 for request, rounds in run.rounds.items()}
    return compare_rounds(settings, simulated, live, trace)


def identical(runs: Sequence[LiveRun], trace: Trace) -> bool:
    """Whether every live text is the recorded one."""
    texts = {
        r.id: tuple(trace.token[a:b].tolist())
        for r, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False)
    }
    return all(text == texts[request] for run in runs for request, text in run.texts.items())


def first_spans(runs: Sequence[LiveRun]) -> dict[Setting, list[Span]]:
    """Timeline of the first run of each setting."""
    found: dict[Setting, list[Span]] = {}
    for run in runs:
        if run.repeat == 0:
            found.setdefault((run.settings, run.batch), run.spans)
    return found
