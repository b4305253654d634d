"""What the grids leave out: host time, waking up, and what two busy devices cost each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from calibrate.latency import quantiles
from calibrate.live.device import Timing
from calibrate.live.messages import Echo, Probe
from calibrate.live.world import LiveWorld
from calibrate.runs import LiveRun
from hardware_profiles.costs import GridCost, Quantiles
from hardware_profiles.latency import LatencySurface
from hardware_profiles.profile import Host, HostOperation, OperationHost, Overlap, RoleName
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


def measure_host(
    runs: Sequence[LiveRun], grids: Mapping[str, GridCost], overlap: Sequence[Overlap], latency: Quantiles
) -> Host:
    """Host time as it is in real rounds, and what the grids leave out there.

    A probe repeats one forward; in a round a worker wakes up with cold caches, builds masks and answers,
    and reads its message.  What an operation takes in live rounds beyond the grids' forwards is charged to
    it as a constant.

    Args:
        runs: Live runs of the calibration's own settings.
        grids: Measured surfaces.
        overlap: Measured slow-downs; operations that ran beside the other device are expected slower.
        latency: Message latency, for the record.
    """
    surfaces = {name: LatencySurface(cost) for name, cost in grids.items()}
    slowdown = {f"{entry.device}.{entry.operation}": entry.slowdown for entry in overlap}
    found: dict[HostOperation, list[tuple[float, float, float]]] = {}
    think: list[float] = []
    for run in runs:
        timings = [t for t in run.timings if t.operation != "prefill"]
        think += _thinking(timings)
        for timing in timings:
            submit = timing.submit_overhead_s
            if submit is not None:
                extra = timing.end_s - timing.start_s - _expected(timing, surfaces, slowdown)
                found.setdefault(_host_name(timing), []).append((submit, timing.report_overhead_s, extra))
    operations = {}
    for name, samples in found.items():
        submit_s, report_s, extra_s = (
            trimmed_mean(np.array(column)) for column in zip(*samples, strict=True)
        )
        operations[name] = OperationHost(submit_s=submit_s, report_s=report_s, extra_s=extra_s)
    return Host(
        submit_s=float(np.mean([host.submit_s for host in operations.values()])),
        report_s=float(np.mean([host.report_s for host in operations.values()])),
        round_s=trimmed_mean(np.array(think)),
        message_latency_s=latency,
        operations=operations,
    )


def trimmed_mean(samples: np.ndarray) -> float:
    """Mean without the highest and lowest 5 %, which on a shared machine belong to other processes."""
    low, high = np.quantile(samples, [0.05, 0.95])
    return float(samples[(samples >= low) & (samples <= high)].mean())


def _host_name(timing: Timing) -> HostOperation:
    if timing.operation == "verify" and timing.tokens == 1:
        return "decode"
    return cast("HostOperation", timing.operation)


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


def _thinking(timings: list[Timing]) -> list[float]:
    """Time between the last report so far and the next submission, for operations submitted after it."""
    ordered = sorted(timings, key=lambda t: t.submit_s)
    gaps, last = [], ordered[0].arrival_s
    for timing in ordered[1:]:
        if timing.submit_s >= last:
            gaps.append(timing.submit_s - last)
        last = max(last, timing.arrival_s)
    return gaps
