"""Time single forwards, messages, and what two busy devices cost each other, on idle workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrate.journal import Journal, Json
from calibrate.latency import quantiles
from calibrate.live.transport.wire import Echo, Probe
from calibrate.live.world import LiveWorld
from hardware_profiles.costs import Quantiles
from hardware_profiles.profile import Forward, Overlap, RoleName
from policies.protocols import Event, Steps

TURN = Probe("forward", new_tokens=1, context=128, repeats=3, warmup=0)
"""What the draft does between two repetitions of a target's probe."""
NEIGHBOUR_REPEATS = 100_000
"""More repetitions than any neighbour lasts: it is stopped when the measured one is done."""
HEAD_START_S = 0.002
STAGE = "overlap"
"""Under which the journal keeps repetitions."""


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
        probe = Probe(step=kind, repeats=repeats, warmup=0, **shape)  # type: ignore[arg-type]
        return list(ask(world, device, probe).durations_s)
    once = Probe(step=kind, repeats=1, warmup=0, **shape)  # type: ignore[arg-type]
    durations: list[float] = []
    for _ in range(repeats):
        durations += ask(world, device, once).durations_s
        ask(world, "draft", TURN)
    return durations


def message_latency(world: LiveWorld, device: str, count: int) -> list[float]:
    """Half a round trip of `count` messages, s."""
    samples = []
    for _ in range(count):
        world.clear_records()
        ask(world, device, Echo())
        timing = world.timings()[-1]
        samples.append((timing.arrival_s - timing.submit_s) / 2)
    return samples


def latency_quantiles(samples: Sequence[float]) -> Quantiles:
    """Quantiles (`hardware_profiles.costs.LEVELS`) of message latencies."""
    return quantiles(np.array(samples))


@dataclass(frozen=True, slots=True)
class OverlapCase:
    """Which operation is slowed by which.

    Attributes:
        device: The one that is measured.
        operation: Its operation in the profile.
        probe: Its shape.
        other: The other device.
        other_operation: The other's operation.
        neighbour: What the other device does meanwhile, over and over.
    """

    device: RoleName
    operation: Forward
    probe: Probe
    other: RoleName
    other_operation: Forward
    neighbour: Probe

    @property
    def pair(self) -> tuple[RoleName, Forward, RoleName, Forward]:
        """What the profile has one entry for."""
        return (self.device, self.operation, self.other, self.other_operation)


def overlap_cases() -> list[OverlapCase]:
    """The shapes of a typical round at lookahead 4 and fan-out 3.

    A target verifies or, after a miss, decodes beside a draft that goes on (PEARL); it verifies beside the
    draft's tree (SSD).
    """
    verify = Probe("forward", new_tokens=5, context=128, repeats=3, warmup=0)
    decode = replace(verify, new_tokens=1)
    step = Probe("forward", new_tokens=1, context=128, repeats=20, warmup=0)
    tree = Probe("tree", branches=15, context=128, repeats=20, warmup=0)
    verifying, stepping, growing = (replace(p, repeats=NEIGHBOUR_REPEATS) for p in (verify, step, tree))
    return [
        OverlapCase("target", "forward", verify, "draft", "forward", stepping),
        OverlapCase("target", "forward", decode, "draft", "forward", stepping),
        OverlapCase("target", "forward", verify, "draft", "tree", growing),
        OverlapCase("draft", "tree", tree, "target", "forward", verifying),
        OverlapCase("draft", "forward", step, "target", "forward", verifying),
    ]


def measure_overlap(
    world: Callable[[], LiveWorld],
    repeats: int,
    progress: Callable[[int, int], None],
    journal: Journal | None = None,
) -> list[Overlap]:
    """Slow-down of each pair of operations: seconds with a busy neighbour over those without, interleaved.

    Args:
        world: Called when something is to be measured.
        repeats: Repetitions of all cases.
        progress: Called with (repetitions done, repetitions in all).
        journal: Keeps every repetition that is done.
    """
    journal = journal or Journal()
    cases = overlap_cases()
    found: list[Json] = []
    for number in range(repeats):
        if not journal.has(STAGE, number):
            journal.put([_measure_case(world(), case) for case in cases], STAGE, number)
        found.append(journal.get(STAGE, number))
        progress(number + 1, repeats)
    return slowdowns(cases, found)


def slowdowns(cases: Sequence[OverlapCase], found: Sequence[Sequence[Sequence[Any]]]) -> list[Overlap]:
    """One entry per pair of operations: the geometric mean over its cases of a ratio of medians.

    Args:
        cases: What was measured.
        found: Per repetition and case (seconds alone, seconds beside the neighbour).
    """
    ratios: dict[Any, list[float]] = {}
    for index, case in enumerate(cases):
        alone, beside = (np.median([s for repetition in found for s in repetition[index][i]]) for i in (0, 1))
        ratios.setdefault(case.pair, []).append(float(beside / alone))
    return [
        Overlap(
            device=device,
            operation=operation,
            while_busy=other,
            while_operation=other_operation,
            slowdown=max(0.5, float(np.exp(np.mean(np.log(values))))),
        )
        for (device, operation, other, other_operation), values in ratios.items()
    ]


def _measure_case(world: LiveWorld, case: OverlapCase) -> Json:
    alone = list(ask(world, case.device, case.probe).durations_s)
    return [alone, _with_neighbour(world, case)]


def _with_neighbour(world: LiveWorld, case: OverlapCase) -> list[float]:
    durations: list[float] = []

    def steps() -> Steps:
        neighbour = getattr(world, case.other).submit(case.neighbour)
        # Its first forward runs before the measured one starts: let it get going.
        yield _pause(world, HEAD_START_S)
        result = yield getattr(world, case.device).submit(case.probe)
        neighbour.stop()
        yield neighbour
        durations.extend(result.durations_s)

    world.run(steps())
    return durations


def _pause(world: LiveWorld, seconds: float) -> Event:
    pause: Event = world.environment.timeout(seconds)
    return pause
