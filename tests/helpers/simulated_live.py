"""Live runs without models: what a live run keeps, made of simulated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analysis import execute
from calibrate.live.transport.device import Timing
from calibrate.live.wire import StepTime
from calibrate.live_runs import Cell, LiveRun, groups
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import Decisions
from hardware_profiles.trace import Trace
from policies.summary import Summary
from policies.timeline import Span
from policies.values import Request
from simulator.run import Scenario, simulate
from simulator.tokens import replay

JOB: Any = SimpleNamespace(max_tokens=64, machine="here")
"""Stands for a live pair that no model is started for."""


def simulated_run(
    cell: Cell, texts: Trace, ids: Sequence[int], repeat: int, profile: Profile, *, slower: float = 1.0
) -> LiveRun:
    """What a live run would keep, from a simulated one whose seconds are so many times as long."""
    scenario = Scenario(replay(texts.slice(ids), seed=repeat), profile=profile, batch=cell.batch, seed=repeat)
    found = simulate(scenario, cell.settings, timeline=True)
    text = {i: tuple(texts.slice([i]).token.tolist()) for i in ids}
    return LiveRun(
        place=cell.place,
        settings=cell.settings,
        batch=cell.batch,
        requests=tuple(ids),
        repeat=repeat,
        seed=repeat,
        summary=_slowed(found.summary, slower),
        rounds={request: found.rows.log.rounds(request) for request in ids},
        texts=text,
        spans=found.spans,
        timings=[_timing(span) for span in found.spans],
        decisions=Decisions(cell.settings.label, {}),
    )


def _timing(span: Span) -> Timing:
    """A span without host time or messages, as the live world would have timed it: steps last longer where
    the other device slowed them.
    """
    lasted_s, at_s, steps = span.end_s - span.start_s, span.start_s, []
    for name, seconds in span.details["steps"]:
        taken_s = seconds * lasted_s / sum(s for _, s in span.details["steps"])
        steps.append(StepTime(name, at_s, at_s + taken_s, 1))
        at_s += taken_s
    begin, end = (span.start_s,) * 2, (span.end_s,) * 2
    return Timing(span.device, span.name, *begin, *end, queued=False, steps=tuple(steps), context=0.0)


def _slowed(summary: Summary, factor: float) -> Summary:
    seconds = summary.seconds * factor
    return replace(summary, seconds=seconds, tokens_per_second=summary.tokens / seconds)


def run_without_models(
    monkeypatch: pytest.MonkeyPatch,
    profile: Profile,
    traces: Mapping[float, Trace],
    slower: Callable[[Cell, int], float] = lambda cell, repeat: 1.0,
) -> list[Cell]:
    """Let the executor run simulations in place of models; returns the cells of every repetition.

    Args:
        monkeypatch: Of the test.
        profile: Costs of what stands for the live world.
        traces: Recordings by temperature.
        slower: Factor on the seconds of a cell in a repetition.
    """
    ran: list[Cell] = []

    def run_matrix(
        worlds: object, cells: Sequence[Cell], requests: Sequence[Request], *, repeats: int, **_: object
    ) -> list[LiveRun]:
        ran.extend(cells)
        return [
            simulated_run(
                cell,
                traces[cell.settings.temperature],
                [request.id for request in group],
                repeat,
                profile,
                slower=slower(cell, repeat),
            )
            for repeat in range(repeats)
            for cell in cells
            for group in groups(requests, cell.batch)
        ]

    monkeypatch.setattr(execute, "run_matrix", run_matrix)
    monkeypatch.setattr(execute, "live_worlds", lambda *_: {})
    return ran
