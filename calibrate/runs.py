"""Live runs: settings on prompts, interleaved so that a drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from calibrate.decisions import collect_decisions
from calibrate.live.device import Timing
from calibrate.live.world import LiveWorld
from hardware_profiles.decisions import Decisions
from policies.registry import SettingError, Settings, find_policy, start
from policies.rows import Round, Rows
from policies.summary import Summary, summarise
from policies.timeline import Span, busy_seconds, overlap_seconds
from policies.values import Request

Group: TypeAlias = tuple[Request, ...]
"""Requests that are served by one run."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared: a setting in a place.

    Attributes:
        place: Name of the world it runs in, e.g. a placement.
        settings: The policy and its knobs.
        batch: Rows served at once.
    """

    place: str
    settings: Settings
    batch: int = 1


@dataclass(frozen=True)
class LiveRun:
    """One run of a policy over a list of requests.

    Attributes:
        place: Name of the world it ran in.
        settings: The policy and its knobs, as they were asked for.
        batch: Rows served at once, where there are as many requests.
        requests: Ids of the requests.
        repeat: Which repetition.
        seed: Seed of its sampling.
        summary: Metrics.
        rounds: Rounds of each request.
        texts: Token ids emitted by each.
        spans: Timeline, in seconds since the run began.
        timings: When each operation was submitted, begun, done and reported.
        decisions: What a decision trace keeps of it; empty for policies that need none.
    """

    place: str
    settings: Settings
    batch: int
    requests: tuple[int, ...]
    repeat: int
    seed: int
    summary: Summary
    rounds: dict[int, list[Round]]
    texts: dict[int, tuple[int, ...]]
    spans: list[Span]
    timings: list[Timing]
    decisions: Decisions

    @property
    def cell(self) -> Cell:
        """What this is a run of."""
        return Cell(self.place, self.settings, self.batch)


def run_live(
    world: LiveWorld,
    settings: Settings,
    requests: Sequence[Request],
    *,
    batch: int = 1,
    place: str = "",
    repeat: int = 0,
    fresh_luck: bool = True,
) -> LiveRun:
    """Run one policy live over a list of requests, `batch` at a time, replaced as they finish.

    Args:
        world: Where.
        settings: The policy and its knobs.
        requests: With prompts.
        batch: Rows served at once.
        place: Name of the world.
        repeat: Which repetition.
        fresh_luck: Whether a sampled run is keyed by `seed + repeat` instead of `seed`, since repetitions
            of the same draws would say nothing about how much luck there is in a speed.

    Raises:
        SettingError: The policy needs more draft devices than the world has.
    """
    _check_devices(world, settings)
    seed = settings.seed + (repeat if fresh_luck and settings.temperature > 0.0 else 0)
    rows = Rows(requests, min(batch, len(requests)), keep_tokens=True)
    world.clear_records()
    world.environment.catch_up()  # else the idle time before the run would count as its first wait
    started = world.now
    world.run(start(world, rows, replace(settings, seed=seed)))
    spans = [Span(s.device, s.name, s.start_s - started, s.end_s - started, s.details) for s in world.spans]
    ids = tuple(request.id for request in requests)
    return LiveRun(
        place=place,
        settings=settings,
        batch=batch,
        requests=ids,
        repeat=repeat,
        seed=seed,
        summary=_summary(world, rows, spans, rows.log.ends[-1] - started),
        rounds={request: rows.log.rounds(request) for request in ids},
        texts={request: tuple(rows.texts[request]) for request in ids},
        spans=spans,
        timings=world.timings(),
        decisions=collect_decisions(world, settings),
    )


def run_once(
    world: LiveWorld, settings: Settings, request: Request, *, place: str = "", repeat: int = 0
) -> LiveRun:
    """Run one policy live on one request."""
    return run_live(world, settings, [request], place=place, repeat=repeat)


def _check_devices(world: LiveWorld, settings: Settings) -> None:
    if "live" not in find_policy(settings.policy).worlds:
        raise SettingError(f"policy {settings.policy!r} runs in the simulated world only, without models")
    needed = max(settings.draft_devices or 1, int(find_policy(settings.policy).needs_draft))
    if find_policy(settings.policy).needs_draft and needed > len(world.drafts):
        raise SettingError(
            f"{settings.label} needs {needed} draft device{'s' * (needed > 1)}, this world has "
            f"{len(world.drafts)}"
        )


def _summary(world: LiveWorld, rows: Rows, spans: Sequence[Span], total_s: float) -> Summary:
    decode = [span for span in spans if span.name != "prefill"]
    # Whichever draft it is that works while the target does.
    joint = [span if span.device == "target" else replace(span, device="draft") for span in decode]
    return summarise(
        rows.log,
        total_s=total_s,
        busy_s={device.name: busy_seconds(decode, device.name) for device in world.devices},
        overlap_s=overlap_seconds(joint, "target", "draft"),
    )


def groups(requests: Sequence[Request], batch: int) -> list[Group]:
    """The requests of each run: one per run at batch 1, all in one run (refilling its rows) above."""
    return [(request,) for request in requests] if batch == 1 else [tuple(requests)]


def run_matrix(
    worlds: Mapping[str, LiveWorld],
    cells: Sequence[Cell],
    requests: Sequence[Request],
    *,
    repeats: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    fresh_luck: bool = True,
) -> list[LiveRun]:
    """Run every cell on every request, `repeats` times.

    Within a repetition the groups of requests come in random order, and within a group the cells do, AR
    among them, so that what is compared lies close together in time.  Before all that, every cell serves its
    first rows once, unmeasured: first calls of a shape are slower.

    Args:
        worlds: Worlds by name.
        cells: What to run; a repeated cell is run that often.
        requests: Prompts.
        repeats: Repetitions.
        seed: Keys the order.
        progress: Called with (runs done, runs in all).
        fresh_luck: See `run_live`.
    """
    random = np.random.default_rng(seed)
    for cell in dict.fromkeys(cells):
        run_live(worlds[cell.place], cell.settings, requests[: cell.batch], batch=cell.batch)
    sections: dict[Group, list[Cell]] = {}
    for cell in cells:
        for group in groups(requests, cell.batch):
            sections.setdefault(group, []).append(cell)
    order = list(sections)
    total, runs = repeats * sum(map(len, sections.values())), []
    for repeat in range(repeats):
        for group in (order[i] for i in random.permutation(len(order))):
            for cell in (sections[group][i] for i in random.permutation(len(sections[group]))):
                runs.append(
                    run_live(
                        worlds[cell.place],
                        cell.settings,
                        group,
                        batch=cell.batch,
                        place=cell.place,
                        repeat=repeat,
                        fresh_luck=fresh_luck,
                    )
                )
                progress(len(runs), total)
    return runs


@dataclass(frozen=True, slots=True)
class Measured:
    """Speed of a cell over a set of runs.

    Attributes:
        tokens: Tokens per pass over the prompts; the mean over repetitions where they differ.
        seconds: Decode seconds per pass: per group the median over repetitions, then summed; where
            repetitions differ in their tokens, the mean, so that the speed is a ratio of sums.
        by_repeat_s: [repeats] the plain sum of each repetition, which shows the spread.
        by_repeat: [repeats] tokens per second of each repetition.
        overlap_s: Mean seconds per pass in which the target and a draft worked.
    """

    tokens: float
    seconds: float
    by_repeat_s: tuple[float, ...]
    by_repeat: tuple[float, ...]
    overlap_s: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens over seconds."""
        return self.tokens / self.seconds


def measure(runs: Sequence[LiveRun]) -> dict[Cell, Measured]:
    """Speed of every cell among the runs."""
    grouped: dict[Cell, list[LiveRun]] = {}
    for run in runs:
        grouped.setdefault(run.cell, []).append(run)
    return {cell: _measure(group) for cell, group in grouped.items()}


def _measure(runs: list[LiveRun]) -> Measured:
    """A group that was run several times per repetition (AR) counts once, with its mean."""
    keys = sorted({run.requests for run in runs})
    repeats = sorted({run.repeat for run in runs})
    of = {
        (key, repeat): [run.summary for run in runs if run.requests == key and run.repeat == repeat]
        for key in keys
        for repeat in repeats
    }
    # [groups, repeats]
    tokens = np.array([[np.mean([s.tokens for s in of[key, r]]) for r in repeats] for key in keys])
    seconds = np.array([[np.mean([s.seconds for s in of[key, r]]) for r in repeats] for key in keys])
    if runs[0].settings.temperature > 0.0:
        per_pass = float(seconds.mean(axis=1).sum())
    else:
        every = [[s.seconds for r in repeats for s in of[key, r]] for key in keys]
        per_pass = float(sum(np.median(each) for each in every))
    mean_tokens = float(tokens.mean(axis=1).sum())
    overlap = sum(np.mean([s.overlap_s for r in repeats for s in of[key, r]]) for key in keys)
    return Measured(
        tokens=int(mean_tokens) if mean_tokens.is_integer() else mean_tokens,
        seconds=per_pass,
        by_repeat_s=tuple(seconds.sum(axis=0).tolist()),
        by_repeat=tuple((tokens.sum(axis=0) / seconds.sum(axis=0)).tolist()),
        overlap_s=float(overlap),
    )
