"""What the grids leave out: host time, waking up, and what two busy devices cost each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrate.latency import quantiles
from calibrate.live.device import Timing
from calibrate.live.messages import Echo, Probe
from calibrate.live.world import LiveWorld
from calibrate.runs import LiveRun
from hardware_profiles.costs import Quantiles
from hardware_profiles.profile import Host, Overlap, RoleName
from policies.protocols import Event, Steps

NEIGHBOUR_REPEATS = 100_000
"""More repetitions than any neighbour lasts: it is stopped when the measured one is done."""


def ask(world: LiveWorld, device: str, message: Any) -> Any:
    """Submit one calibration message and wait for its answer."""
    answers: list[Any] = []

    def steps() -> Steps:
        answers.append((yield getattr(world, device).submit(message)))

    world.run(steps())
    return answers[0]


def time_shape(world: LiveWorld, device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
    """Seconds of `repeats` forwards of a shape on an otherwise idle machine (a `calibrate.latency.Timer`)."""
    probe = Probe(kind=kind, repeats=repeats, warmup=0, **shape)  # type: ignore[arg-type]
    return list(ask(world, device, probe).durations_s)


def message_latency(world: LiveWorld, device: str, count: int) -> Quantiles:
    """Quantiles (`hardware_profiles.costs.LEVELS`) of half a round trip, s."""
    samples = []
    for _ in range(count):
        world.clear_records()
        ask(world, device, Echo())
        timing = world.timings()[-1]
        samples.append((timing.arrival_s - timing.submit_s) / 2)
    return quantiles(np.array(samples))


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """Which operation is slowed by which.

    Attributes:
        device: The one that is measured.
        operation: Its operation in the profile.
        probe: Its shape.
        other: The other device.
        neighbour: What the other device does meanwhile, over and over.
    """

    device: RoleName
    operation: Literal["forward", "prefill", "tree"]
    probe: Probe
    other: RoleName
    neighbour: Probe


def overlap_cases() -> list[OverlapCase]:
    """The shapes of a typical round at lookahead 4 and fan-out 3."""
    verify = Probe("forward", new_tokens=5, context=128, repeats=NEIGHBOUR_REPEATS, warmup=0)
    tree = Probe("tree", branches=15, context=128, repeats=NEIGHBOUR_REPEATS, warmup=0)

    def few(probe: Probe, repeats: int) -> Probe:
        fields = {name: getattr(probe, name) for name in probe.__dataclass_fields__}
        return Probe(**fields | {"repeats": repeats})

    step = Probe("forward", new_tokens=1, context=128, repeats=20, warmup=0)
    return [
        OverlapCase("target", "forward", few(verify, 3), "draft", tree),
        OverlapCase("draft", "tree", few(tree, 20), "target", verify),
        OverlapCase("draft", "forward", step, "target", verify),
    ]


def measure_overlap(world: LiveWorld, repeats: int, progress: Callable[[], None]) -> list[Overlap]:
    """Slow-down of each case: median seconds with a busy neighbour over those without, interleaved."""
    found = []
    for case in overlap_cases():
        alone, together = [], []
        for _ in range(repeats):
            alone += ask(world, case.device, case.probe).durations_s
            together += _with_neighbour(world, case)
            progress()
        slowdown = float(np.median(together) / np.median(alone))
        found.append(
            Overlap(
                device=case.device,
                operation=case.operation,
                while_busy=case.other,
                slowdown=max(0.5, slowdown),
            )
        )
    return found


def _with_neighbour(world: LiveWorld, case: OverlapCase) -> list[float]:
    durations: list[float] = []

    def steps() -> Steps:
        neighbour = getattr(world, case.other).submit(case.neighbour)
        # Its first forward runs before the measured one starts: let it get going.
        yield _pause(world, 0.002)
        result = yield getattr(world, case.device).submit(case.probe)
        neighbour.stop()
        yield neighbour
        durations.extend(result.durations_s)

    world.run(steps())
    return durations


def _pause(world: LiveWorld, seconds: float) -> Event:
    pause: Event = world.environment.timeout(seconds)
    return pause


@dataclass(frozen=True, slots=True)
class RoundOverheads:
    """Host time of real rounds, s (medians over all operations of live runs)."""

    submit_s: float
    report_s: float
    round_s: float


def round_overheads(runs: Sequence[LiveRun]) -> RoundOverheads:
    """Host time as it is in real rounds, where messages carry tokens and the policy thinks in between.

    submit: from a submission to the worker's start, plus the worker's own time around its model calls.
    report: from the worker's end to the policy.  round: the policy's own time between a report and the
    next submission.
    """
    submit, report, think = [], [], []
    for run in runs:
        timings = [t for t in run.timings if t.operation != "prefill"]
        for timing in timings:
            if timing.submit_overhead_s is not None:
                submit.append(timing.submit_overhead_s + (timing.end_s - timing.start_s - timing.model_s))
            report.append(timing.report_overhead_s)
        think += _thinking(timings)
    return RoundOverheads(float(np.median(submit)), float(np.median(report)), float(np.median(think)))


def _thinking(timings: list[Timing]) -> list[float]:
    """Time between the last report so far and the next submission, for operations submitted after it."""
    ordered = sorted(timings, key=lambda t: t.submit_s)
    gaps, last = [], ordered[0].arrival_s
    for timing in ordered[1:]:
        if timing.submit_s >= last:
            gaps.append(timing.submit_s - last)
        last = max(last, timing.arrival_s)
    return gaps


def host(measured: RoundOverheads, latency: Quantiles) -> Host:
    """The profile's entry."""
    return Host(
        submit_s=measured.submit_s,
        report_s=measured.report_s,
        round_s=measured.round_s,
        message_latency_s=latency,
    )
