"""Live runs: settings on prompts, interleaved so that a drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.live.device import Timing
from calibrate.live.world import LiveWorld
from policies.operations import Request
from policies.records import Round, Span
from policies.registry import Settings, start
from policies.rows import Rows
from policies.summary import Summary, summarise
from policies.timeline import busy_seconds, overlap_seconds


@dataclass(frozen=True)
class LiveRun:
    """One setting on one prompt.

    Attributes:
        place: Name of the world it ran in, e.g. a placement.
        settings: The policy and its knobs.
        request: Id of the request.
        repeat: Which repetition.
        summary: Metrics.
        rounds: Rounds of the request.
        text: Token ids emitted.
        spans: Timeline, in seconds since the run began.
        timings: When each operation was submitted, begun, done and reported.
    """

    place: str
    settings: Settings
    request: int
    repeat: int
    summary: Summary
    rounds: list[Round]
    text: tuple[int, ...]
    spans: list[Span]
    timings: list[Timing]


def run_once(
    world: LiveWorld, settings: Settings, request: Request, *, place: str = "", repeat: int = 0
) -> LiveRun:
    """Run one policy live on one request (batch 1)."""
    rows = Rows([request], 1, keep_tokens=True)
    world.clear_records()
    started = world.now
    world.run(start(world, rows, settings))
    ended = rows.log.ends[-1]
    spans = [Span(s.device, s.name, s.start_s - started, s.end_s - started, s.details) for s in world.spans()]
    decode = [s for s in spans if s.name != "prefill"]
    summary = summarise(
        rows.log,
        total_s=ended - started,
        busy_s={device: busy_seconds(decode, device) for device in ("target", "draft")},
        overlap_s=overlap_seconds(decode, "target", "draft"),
    )
    return LiveRun(
        place=place,
        settings=settings,
        request=request.id,
        repeat=repeat,
        summary=summary,
        rounds=rows.log.rounds(request.id),
        text=tuple(rows.texts[request.id]),
        spans=spans,
        timings=world.timings(),
    )


def run_matrix(
    worlds: Mapping[str, LiveWorld],
    settings: Sequence[tuple[str, Settings]],
    requests: Sequence[Request],
    *,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[LiveRun]:
    """Run every setting on every request, `repeats` times.

    Within a request and repetition the settings run in a new random order, AR among them, so that what is
    compared lies close together in time.  The first request is run once before, unmeasured, by every
    setting: first calls of a shape are slower.

    Args:
        worlds: Worlds by name.
        settings: (world, settings) pairs; repeated pairs are run that often.
        requests: Prompts.
        repeats: Repetitions.
        seed: Keys the order.
        progress: Called with (runs done, runs in all).
    """
    random = np.random.default_rng(seed)
    total, done = len(settings) * len(requests) * repeats, 0
    for place, setting in dict.fromkeys(settings):
        run_once(worlds[place], setting, requests[0])
    runs: list[LiveRun] = []
    for repeat in range(repeats):
        for request in requests:
            for index in random.permutation(len(settings)):
                place, setting = settings[index]
                runs.append(run_once(worlds[place], setting, request, place=place, repeat=repeat))
                done += 1
                progress(done, total)
    return runs


@dataclass(frozen=True, slots=True)
class Measured:
    """Speed of a setting over a set of runs.

    Attributes:
        tokens: Tokens per pass over the prompts.
        seconds: Decode seconds per pass: per prompt the median over repetitions, then summed.
        by_repeat_s: [repeats] the plain sum of each repetition, which shows the spread.
        overlap_s: Mean seconds per pass in which both devices worked.
    """

    tokens: int
    seconds: float
    by_repeat_s: tuple[float, ...]
    overlap_s: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens over seconds."""
        return self.tokens / self.seconds


def measure(runs: Sequence[LiveRun]) -> dict[tuple[str, Settings], Measured]:
    """Speed of every (world, settings) among the runs."""
    grouped: dict[tuple[str, Settings], list[LiveRun]] = {}
    for run in runs:
        grouped.setdefault((run.place, run.settings), []).append(run)
    return {key: _measure(group) for key, group in grouped.items()}


def _measure(runs: list[LiveRun]) -> Measured:
    requests = sorted({run.request for run in runs})
    repeats = sorted({run.repeat for run in runs})
    seconds = [float(np.median([r.summary.seconds for r in runs if r.request == i])) for i in requests]
    tokens = [next(r.summary.tokens for r in runs if r.request == i) for i in requests]
    # A setting that was run several times per repetition (AR) counts once.
    by_repeat = [
        sum(
            float(np.mean([r.summary.seconds for r in runs if r.request == i and r.repeat == k]))
            for i in requests
        )
        for k in repeats
    ]
    overlap = sum(float(np.mean([r.summary.overlap_s for r in runs if r.request == i])) for i in requests)
    return Measured(sum(tokens), sum(seconds), tuple(by_repeat), overlap)
