"""Live runs: settings on prompts, interleaved with plain decoding on the same prompts.

Within a repetition the groups of requests come in random order, and within a group the settings do, each
between two runs of plain decoding, no more than `APART` settings from either; every second repetition has the
order of the one before it backwards.  What plain decoding takes around a run, over what it takes in the
middle, is the *weather* of that run (`paired`), by which its seconds are divided: speedups are ratios within
such pairs.  Before it counts every setting runs once, unmeasured: first calls of a shape are slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from time import time
from typing import Any, TypeAlias

import numpy as np

from calibrate.hostrecords import LiveRecord, observe
from calibrate.live.errors import DeadlineMissed
from calibrate.live.transport.device import Timing
from calibrate.live.transport.world import LiveWorld
from calibrate.weather import Weather, WeatherStation
from hardware_profiles.profile import MeasuredRun
from hardware_profiles.reply_trace import Decisions, Key, Plain
from policies.registry import SettingError, Settings, find_policy, start
from policies.rows import Round, Rows
from policies.summary import Summary, summarise
from policies.timeline import Span, busy_seconds, overlap_seconds
from policies.values import Request

APART = 2
"""Settings in a row between two runs of plain decoding."""
MOST_REPEATS = 4
"""Times the repetitions asked for, if they do not repeat well enough."""
ATTEMPTS = 8
"""Runs of an emulated setting before a missed deadline counts: a machine that others use stalls at times."""

Group: TypeAlias = tuple[Request, ...]
"""Requests that are served by one run."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is compared: a setting at a batch in a place, the name of the world it runs in."""

    place: str
    settings: Settings
    batch: int = 1


@dataclass(frozen=True)
class LiveRun:
    """One run of a policy over a list of requests, by their ids.

    Attributes:
        settings: As they were asked for; the run's sampling has `seed`.
        texts: Token ids emitted by each request.
        spans: Timeline, in seconds since the run began.
        decisions: What a decision trace keeps of it; empty for policies that need none.
        looked: What the machine was like just before; None where nobody looked.
        began_s: When the run began, Unix time.
        weather: By how much plain decoding around it was slower than in the middle; see `paired`.
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
    looked: Weather | None = None
    began_s: float = 0.0
    weather: float = 1.0

    @property
    def cell(self) -> Cell:
        """What this is a run of."""
        return Cell(self.place, self.settings, self.batch)

    @property
    def tokens(self) -> float:
        """Tokens emitted."""
        return self.summary.tokens

    @property
    def seconds(self) -> float:
        """Decode seconds, as they would have been in the machine's usual weather."""
        return self.summary.seconds / self.weather

    @property
    def overlap_s(self) -> float:
        """Seconds in which the target and a draft worked."""
        return self.summary.overlap_s


def run_live(
    world: LiveWorld,
    settings: Settings,
    requests: Sequence[Request],
    *,
    batch: int = 1,
    place: str = "",
    repeat: int = 0,
    fresh_seed: bool = True,
) -> LiveRun:
    """Run one policy live over a list of requests, `batch` at a time, replaced as they finish.

    With `fresh_seed` a sampled run is keyed by `seed + repeat` instead of `seed`, since repetitions of the
    same draws would say nothing about how much a speed depends on the draws.

    Raises:
        SettingError: The policy runs without models, or needs more draft devices than the world has.
    """
    check_live(world, settings)
    seed = settings.seed + (repeat if fresh_seed and settings.temperature > 0.0 else 0)
    rows = Rows(requests, min(batch, len(requests)), keep_tokens=True)
    world.clear_records()
    world.environment.catch_up()  # else the idle time before the run would count as its first wait
    started, began_s = world.now, time()
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
        began_s=began_s,
    )


def check_live(world: LiveWorld, settings: Settings) -> None:
    """Refuse what a live world cannot run.

    Raises:
        SettingError: The policy runs without models, or needs more draft devices than the world has.
    """
    info, devices = find_policy(settings.policy), settings.draft_devices or 1
    if "live" not in info.worlds:
        raise SettingError(f"policy {settings.policy!r} runs in the simulated world only, without models")
    if info.needs_draft and devices > len(world.drafts):
        raise SettingError(
            f"{settings.label} needs {devices} draft device{'s' * (devices > 1)}, this world has "
            f"{len(world.drafts)}"
        )


def run_in_time(world: LiveWorld, *what: Any, **more: Any) -> LiveRun:
    """`run_live`, again where an emulated device missed a deadline; the last of several errors is raised."""
    for _ in range(ATTEMPTS - 1):
        with suppress(DeadlineMissed):
            return run_live(world, *what, **more)
    return run_live(world, *what, **more)


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
    alone: bool = False,
    enough: Callable[[Sequence[LiveRun]], bool] = lambda runs: True,
) -> list[LiveRun]:
    """Run every cell in the world of its place on every request, `repeats` times.

    Args:
        worlds: By place.
        cells: What is run, plain decoding of every place and batch among them.
        requests: At batch 1 each is a run; in a batch all are one.
        repeats: Repetitions; `MOST_REPEATS` times as many at most where the runs so far are not `enough`.
        seed: Keys the order.
        progress: Called with (runs done, runs in all so far).
        alone: Whether the machine has no weather, as emulated ones: then plain decoding runs but once.
        enough: Whether runs repeat well enough.
    """
    for cell in dict.fromkeys(cells):
        with suppress(DeadlineMissed):  # first calls of a shape are slower, as was said
            run_live(worlds[cell.place], cell.settings, requests[: cell.batch], batch=cell.batch)
    sections: dict[tuple[str, int, Group], list[Cell]] = defaultdict(list)
    for cell in dict.fromkeys(cells):
        for group in groups(requests, cell.batch):
            sections[cell.place, cell.batch, group].append(cell)
    station, runs = None if alone else WeatherStation(), list[LiveRun]()
    for repeat in range(MOST_REPEATS * repeats):
        order = list(turns(sections, [seed, repeat // 2], alone=alone))
        for place, batch, group, cell in order if repeat % 2 == 0 else reversed(order):
            looked = None if station is None else station.look()
            more = {"batch": batch, "place": place, "repeat": repeat}
            run = run_in_time(worlds[place], cell.settings, group, **more)
            runs.append(replace(run, looked=looked) if looked else run)
            progress(len(runs), len(order) * max(repeats, repeat + 1))
        if repeat + 1 >= repeats and enough(runs):
            break
    return runs if alone else paired(runs)


def turns(
    sections: Mapping[tuple[str, int, Group], Sequence[Cell]], seed: Sequence[int], *, alone: bool = False
) -> Iterator[tuple[str, int, Group, Cell]]:
    """The runs of one repetition, as said above: (place, batch, group, cell)."""
    random, keys = np.random.default_rng(seed), list(sections)
    for number in random.permutation(len(keys)).tolist():
        place, batch, group = keys[number]
        cells = [sections[keys[number]][i] for i in random.permutation(len(sections[keys[number]]))]
        plain = next((cell for cell in cells if cell.settings.plain), None)
        others = [cell for cell in cells if not cell.settings.plain]
        if plain is None or alone:
            yield from ((place, batch, group, cell) for cell in cells)
            continue
        for i, cell in enumerate(others):
            if i % APART == 0:
                yield place, batch, group, plain
            yield place, batch, group, cell
        yield place, batch, group, plain


def paired(runs: Sequence[LiveRun]) -> list[LiveRun]:
    """The runs with their `weathers`."""
    return [replace(run, weather=own) for run, own in zip(runs, weathers(runs), strict=True)]


def weathers(runs: Sequence[LiveRun | LiveRecord]) -> list[float]:
    """Of every run: what plain decoding takes around it, over what it takes in the middle.

    That is of plain decoding on the same requests, in the same place and batch, per token, and between the
    run before and the one after it interpolated by time, on a logarithmic scale; 1 without any.
    """
    found = [1.0] * len(runs)
    of: dict[Any, list[int]] = defaultdict(list)
    for number, run in enumerate(runs):
        of[run.place, run.batch, run.requests, run.settings.temperature].append(number)
    for numbers in of.values():
        mine = [runs[n] for n in numbers]
        plainly = [run for run in mine if run.settings.plain]
        if plainly:
            logs = np.log([run.seconds / run.tokens for run in plainly])
            middles = [run.began_s + run.seconds / 2.0 for run in mine]
            at = [run.began_s + run.seconds / 2.0 for run in plainly]
            order = np.argsort(at)  # of a calibration that was resumed, any
            weather = np.exp(np.interp(middles, np.array(at)[order], logs[order]) - np.median(logs))
            for number, own in zip(numbers, weather.tolist(), strict=True):
                found[number] = own
    return found


def reduce_run(run: LiveRun) -> LiveRecord:
    """What is kept of a live run."""
    return LiveRecord(
        settings=run.settings,
        batch=run.batch,
        requests=run.requests,
        repeat=run.repeat,
        tokens=round(run.tokens),
        seconds=run.seconds,
        observations=tuple(observe(run.timings)),
        overlap_s=run.overlap_s,
        began_s=run.began_s,
    )


@dataclass(frozen=True)
class Measured:
    """Speed of a setting over a set of runs.

    Attributes:
        tokens: Tokens per pass over the prompts; the mean over repetitions where they differ.
        seconds: Decode seconds per pass: per group the median over repetitions, then summed; where
            repetitions differ in their tokens, the mean, so that the speed is a ratio of sums.
        repeats: Tokens of each repetition and the plain sum of its seconds, which show the spread.
        overlap_s: Mean seconds per pass in which the target and a draft worked.
    """

    tokens: float
    seconds: float
    repeats: tuple[tuple[float, float], ...] = ()
    overlap_s: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def measure(runs: Sequence[LiveRun] | Sequence[LiveRecord]) -> Measured:
    """Speed of one cell's runs; a group that was run several times per repetition (AR) counts once."""
    keys = sorted({run.requests for run in runs})
    repeats = sorted({run.repeat for run in runs})
    of = {
        (key, repeat): [run for run in runs if run.requests == key and run.repeat == repeat]
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
    return Measured(
        tokens=int(mean_tokens) if mean_tokens.is_integer() else mean_tokens,
        seconds=per_pass,
        repeats=tuple(zip(tokens.sum(axis=0).tolist(), seconds.sum(axis=0).tolist(), strict=True)),
        overlap_s=float(sum(np.mean([s.overlap_s for r in repeats for s in of[key, r]]) for key in keys)),
    )


def collect_decisions(world: LiveWorld, settings: Settings) -> Decisions:
    """What the devices answered in the run of these settings, since their records were cleared."""
    replies: dict[Key, Plain] = {}
    early: dict[Key, Plain] = {}
    for device in world.devices:
        for operation, answered, said in device.replies:
            for i, key in enumerate(operation.reply_keys()):
                if key in replies:
                    raise AssertionError(f"{key} was answered twice; give the operations different parts")
                replies[key] = plain(answered[i])
                if said is not None:
                    early[key] = plain(said[i])
    knobs = {name: plain(value) for name, value in settings.knobs.items()}
    # Of steps that fed no token to a model.
    taken: dict[str, list[float]] = defaultdict(list)
    for step in (step for timing in world.timings() for step in timing.steps if step.tokens == 0):
        taken[step.name].append(step.end_s - step.start_s)
    seconds = {name: median(values) for name, values in sorted(taken.items())}
    return Decisions(settings.label, replies, early, seconds, settings.policy, knobs)


def plain(value: Any) -> Plain:
    """Tuples as lists, numpy's numbers as Python's."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def joined(runs: Sequence[Decisions]) -> Decisions:
    """The decisions of one setting in several runs, of different requests each."""
    if len({run.label for run in runs}) != 1:
        raise ValueError(f"decisions of {len({run.label for run in runs})} settings cannot be joined")
    replies: dict[Key, Plain] = {}
    early: dict[Key, Plain] = {}
    for run in runs:
        replies |= run.replies
        early |= run.early
    names = sorted({name for run in runs for name in run.seconds})
    seconds = {n: median(run.seconds[n] for run in runs if n in run.seconds) for n in names}
    return replace(runs[0], replies=replies, early=early, seconds=seconds)


def measured_runs(records: Sequence[LiveRecord]) -> tuple[MeasuredRun, ...]:
    """Speed of every setting, over plain decoding interleaved with it."""
    grouped: dict[tuple[Settings, int], list[LiveRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.settings.temperature, r.batch)):
        grouped[record.settings, record.batch].append(record)
    measurements = {key: measure(group) for key, group in grouped.items()}
    plain = {(s.temperature, batch): m.speed for (s, batch), m in measurements.items() if s.plain}
    return tuple(
        MeasuredRun(
            policy=settings.policy,
            lookahead=settings.lookahead,
            fanout=settings.fanout,
            backup=settings.backup,
            batch=batch,
            temperature=settings.temperature,
            tokens=round(measured.tokens),
            tokens_per_second=measured.speed,
            speedup_vs_ar=measured.speed / plain[settings.temperature, batch],
        )
        for (settings, batch), measured in measurements.items()
    )
