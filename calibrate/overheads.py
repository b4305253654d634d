"""What the grids leave out: host time, waking up, and what two busy devices cost each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.latency import quantiles
from calibrate.live.device import Timing
from calibrate.live.messages import Echo, Probe
from calibrate.live.world import LiveWorld
from calibrate.runs import LiveRun
from hardware_profiles.costs import GridCost, Quantiles
from hardware_profiles.latency import LatencySurface
from hardware_profiles.profile import Host, HostOperation, OperationHost, Overlap, RoleName
from policies.protocols import Event, Steps
from policies.registry import Settings

TURN = Probe("forward", new_tokens=1, context=128, repeats=3, warmup=0)
"""What the draft does between two repetitions of a target's probe."""
LEVER = 1.2
"""A slope is fitted if the longest expected operation is this many times the shortest."""
FEW = 50
"""Fewer samples than this cannot tell what idling costs."""
TINY = 1e-9
MOST_WAKE = 0.5
MOST_SCALE = 1.5
"""A slope beyond this, or below its inverse, is noise: only the constant is fitted then."""
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
    """Seconds of `repeats` forwards of a shape (a `calibrate.latency.Timer`).

    A draft's steps follow each other, and so do its repetitions here.  A target's verifications wait for
    their turn: between its repetitions the draft takes a few steps, as in a round.
    """
    if device == "draft":
        probe = Probe(kind=kind, repeats=repeats, warmup=0, **shape)  # type: ignore[arg-type]
        return list(ask(world, device, probe).durations_s)
    once = Probe(kind=kind, repeats=1, warmup=0, **shape)  # type: ignore[arg-type]
    durations: list[float] = []
    for _ in range(repeats):
        durations += ask(world, device, once).durations_s
        ask(world, "draft", TURN)
    return durations


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
class Sample:
    """One operation of a live run.

    Attributes:
        setting: The setting it ran in.
        alone: Whether the other device was idle by the policy's design.
        lead_s: From the report that the policy acted on to the start of its work.
        work_s: From start to end.
        report_s: From the end to the policy.
        expected_s: What the grids say of its forwards.
        overlap_s: Seconds of its work in which the other device worked, too.
        idle_s: How long its device did nothing before.
    """

    setting: Settings
    alone: bool
    lead_s: float
    work_s: float
    report_s: float
    expected_s: float
    overlap_s: float
    idle_s: float


def measure_host(
    runs: Sequence[LiveRun], grids: Mapping[str, GridCost], overlap: Sequence[Overlap], latency: Quantiles
) -> tuple[Host, list[Overlap]]:
    """Host time as it is in real rounds, and how the grids' forwards fare there.

    A probe repeats one warm forward; in a round a worker wakes up with cold caches, builds masks and
    answers, reads messages, and the policy thinks in between.  Per operation the live work is fitted by
    `extra_s + scale * (what the grids say) + wake * (idling before)` over the calibration's settings.
    Target operations are fitted where the draft is idle by design (AR, SD); what they take longer beside a
    busy draft then gives the target's slow-down, in place of the probes'.

    Args:
        runs: Live runs of the calibration's own settings.
        grids: Measured surfaces.
        overlap: Slow-downs measured by probes.
        latency: Message latency, for the record.

    Returns:
        The host's entry, and the slow-downs with the target's replaced.
    """
    surfaces = {name: LatencySurface(cost) for name, cost in grids.items()}
    slowdown = {f"{entry.device}.{entry.operation}": entry.slowdown for entry in overlap}
    samples: dict[HostOperation, list[Sample]] = {}
    for run in runs:
        for name, sample in _samples(run, surfaces, slowdown):
            samples.setdefault(name, []).append(sample)
    fitted = {name: _fit(name, found) for name, found in samples.items()}
    host = Host(
        submit_s=float(np.mean([entry.submit_s for entry in fitted.values()])),
        report_s=float(np.mean([entry.report_s for entry in fitted.values()])),
        message_latency_s=latency,
        operations=fitted,
    )
    return host, [_in_situ(entry, samples, fitted) for entry in overlap]


def _samples(
    run: LiveRun, surfaces: Mapping[str, LatencySurface], slowdown: Mapping[str, float]
) -> list[tuple[HostOperation, Sample]]:
    timings = sorted((t for t in run.timings if t.operation != "prefill"), key=lambda t: t.submit_s)
    found = []
    for timing in timings:
        before = [t.arrival_s for t in timings if t.arrival_s <= timing.submit_s][-3:]
        if timing.queued or not before or timing.start_s < 0:
            continue
        name = "decode" if timing.operation == "verify" and timing.tokens == 1 else timing.operation
        sample = Sample(
            setting=run.settings,
            alone=run.settings.policy in {"ar", "sd"},
            lead_s=timing.start_s - max(before),
            work_s=timing.end_s - timing.start_s,
            report_s=timing.report_overhead_s,
            expected_s=_expected(timing, surfaces, slowdown),
            overlap_s=sum(
                max(0.0, min(timing.end_s, t.end_s) - max(timing.start_s, t.start_s))
                for t in timings
                if t.device != timing.device
            ),
            idle_s=timing.start_s
            - max(
                (t.end_s for t in timings if t.device == timing.device and t.end_s <= timing.start_s),
                default=0.0,
            ),
        )
        found.append((cast("HostOperation", name), sample))
    return found


def _fit(name: HostOperation, samples: list[Sample]) -> OperationHost:
    """Host time, and work = extra + scale * expected + wake * idle by bounded least squares."""
    alone = [s for s in samples if s.alone]
    chosen = alone if name in {"decode", "verify"} and alone else samples
    groups: dict[Settings, list[Sample]] = {}
    for sample in chosen:
        groups.setdefault(sample.setting, []).append(sample)
    kept = [s for group in groups.values() for s in _trim(group)]
    work, expected, idle = np.array([(s.work_s, s.expected_s, s.idle_s) for s in kept]).T
    cap = float(np.quantile(idle, 0.95))
    idle = np.minimum(idle, cap)
    # A regressor that hardly varies explains nothing: its coefficient stays at its neutral value.
    free_scale = np.quantile(expected, 0.9) > LEVER * np.quantile(expected, 0.1)
    free_wake = cap > 2.0 * float(np.quantile(idle, 0.1)) and len(kept) > FEW
    low = [-np.inf, 1 / MOST_SCALE if free_scale else 1.0 - TINY, 0.0]
    high = [np.inf, MOST_SCALE if free_scale else 1.0 + TINY, MOST_WAKE if free_wake else TINY]
    design = np.column_stack([np.ones(len(kept)), expected, idle])
    extra, scale, wake = (float(v) for v in lsq_linear(design, work, bounds=(low, high)).x)
    return OperationHost(
        submit_s=trimmed_mean(np.array([s.lead_s for s in chosen])),
        report_s=trimmed_mean(np.array([s.report_s for s in chosen])),
        extra_s=extra,
        scale=scale,
        wake=wake,
        idle_cap_s=cap,
    )


def _trim(samples: list[Sample]) -> list[Sample]:
    """A setting's samples without the longest and shortest 5 %, relative to what is expected."""
    ratio = np.array([s.work_s / s.expected_s for s in samples])
    low, high = np.quantile(ratio, [0.05, 0.95])
    return [s for s, r in zip(samples, ratio, strict=True) if low <= r <= high]


def _in_situ(
    entry: Overlap,
    samples: Mapping[HostOperation, list[Sample]],
    fitted: Mapping[HostOperation, OperationHost],
) -> Overlap:
    """The target's slow-down in real rounds: work W took T seconds, O of them beside a busy draft.

    At a slow-down f, W = (T - O) + O / f.
    """
    if (entry.device, entry.operation) != ("target", "forward"):
        return entry
    work = took = beside = 0.0
    names: tuple[HostOperation, ...] = ("decode", "verify")
    for name in names:
        host = fitted.get(name)
        for s in samples.get(name, []):
            if host is not None and not s.alone:
                woken = host.extra_s + host.wake * min(s.idle_s, host.idle_cap_s)
                work += host.submit_s + woken + host.scale * s.expected_s + host.report_s
                took += s.lead_s + s.work_s + s.report_s
                beside += s.overlap_s
    if beside == 0.0 or work - took + beside <= 0.0:
        return entry
    return entry.model_copy(update={"slowdown": float(np.clip(beside / (work - took + beside), 0.9, 2.0))})


def trimmed_mean(samples: np.ndarray) -> float:
    """Mean without the highest and lowest 5 %, which on a shared machine belong to other processes."""
    low, high = np.quantile(samples, [0.05, 0.95])
    return float(samples[(samples >= low) & (samples <= high)].mean())


def _expected(timing: Timing, surfaces: Mapping[str, LatencySurface], slowdown: Mapping[str, float]) -> float:
    """What the grids say of an operation's forwards, s."""
    beside = timing.operation in {"prespeculate", "continue"}  # these run while the target verifies
    total, context = 0.0, timing.context - 1
    for step in timing.steps:
        kind = "tree" if step.name == "tree" else "forward"
        name = f"{timing.device}.{kind}"
        shape = {"branches": step.tokens} if kind == "tree" else {"batch": 1, "new_tokens": step.tokens}
        factor = slowdown.get(name, 1.0) if beside else 1.0
        total += factor * surfaces[name].seconds(context=context, **shape)
        context += step.tokens
    return total
