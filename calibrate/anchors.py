"""Run settings live during calibration, resumable run by run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from calibrate.hostrecords import LiveRecord, from_json, reduce_run, to_json
from calibrate.journal import Journal
from calibrate.live.world import LiveWorld
from calibrate.plans import LivePart
from calibrate.runs import run_live
from hardware_profiles.profile import MeasuredRun
from policies.registry import Settings
from policies.values import Request

STAGE = "live"
"""Under which the journal keeps runs."""
WARM_UP_TOKENS = 8
"""Length of the unmeasured run of every setting: first calls of a shape are slower."""


def run_part(
    part: LivePart,
    settings: Sequence[Settings],
    requests: Sequence[Request],
    world: Callable[[], LiveWorld],
    *,
    number: int,
    seed: int,
    journal: Journal,
    progress: Callable[[int], None] = lambda done: None,
) -> list[LiveRecord]:
    """Run the settings of one part of the plan, all of them on a prompt (or batch) before the next.

    Within a prompt and repetition the settings run in a random order of its own, AR among them, so that
    what is compared lies close together in time.

    Args:
        part: Repetitions and batch.
        settings: What to run.
        requests: Prompts.
        world: Called when something is to be run.
        number: Of the part, for the journal.
        seed: Keys the order.
        journal: Keeps every run that is done; those that are there are not run again.
        progress: Called with the number of runs done so far.
    """
    groups = [[r] for r in requests] if part.batch == 1 else [list(requests)]
    records: list[LiveRecord] = []
    warm: set[Settings] = set()
    for repeat in range(part.repeats):
        for group_number, group in enumerate(groups):
            random = np.random.default_rng([seed, number, repeat, group_number])
            for index in random.permutation(len(settings)):
                chosen = settings[index]
                key = (STAGE, number, repeat, group_number, int(index))
                if not journal.has(*key):
                    if chosen not in warm:
                        _warm_up(world(), chosen, groups[0], part.batch)
                        warm.add(chosen)
                    run = run_live(world(), chosen, group, batch=part.batch, repeat=repeat)
                    journal.put(to_json(reduce_run(run)), *key)
                records.append(from_json(journal.get(*key)))
                progress(len(records))
    return records


def runs_of(part: LivePart) -> int:
    """Number of live runs of a part."""
    return part.repeats * len(part.knobs) * (part.prompts if part.batch == 1 else 1)


def _warm_up(world: LiveWorld, settings: Settings, requests: Sequence[Request], batch: int) -> None:
    short = [replace(r, limit=min(r.limit, WARM_UP_TOKENS)) for r in requests]
    run_live(world, settings, short, batch=batch)


def measured_runs(records: Sequence[LiveRecord]) -> tuple[MeasuredRun, ...]:
    """Speed of every setting, over plain decoding interleaved with it."""
    speeds = {key: _speed(group) for key, group in _grouped(records).items()}
    plain = {
        (s.temperature, batch): tokens / seconds
        for (s, batch), (tokens, seconds) in speeds.items()
        if s.policy == "ar"
    }
    return tuple(
        MeasuredRun(
            policy=settings.policy,
            lookahead=settings.lookahead,
            fanout=settings.fanout,
            backup=settings.backup,
            batch=batch,
            temperature=settings.temperature,
            tokens=tokens,
            tokens_per_second=tokens / seconds,
            speedup_vs_ar=tokens / seconds / plain[settings.temperature, batch],
        )
        for (settings, batch), (tokens, seconds) in speeds.items()
    )


def _grouped(records: Sequence[LiveRecord]) -> dict[tuple[Settings, int], list[LiveRecord]]:
    grouped: dict[tuple[Settings, int], list[LiveRecord]] = {}
    for record in sorted(records, key=lambda r: (r.settings.temperature, r.batch)):
        grouped.setdefault((record.settings, record.batch), []).append(record)
    return grouped


def _speed(records: Sequence[LiveRecord]) -> tuple[int, float]:
    """Tokens and seconds per pass: per prompt (or batch) the median over repetitions, then summed.

    Sampled repetitions differ in what they write, so that their sums are compared: the mean.
    """
    middle = np.mean if records[0].settings.temperature > 0.0 else np.median
    tokens = seconds = 0.0
    for requests in dict.fromkeys(r.requests for r in records):
        runs = [r for r in records if r.requests == requests]
        tokens += float(middle([r.tokens for r in runs]))
        seconds += float(middle([r.seconds for r in runs]))
    return round(tokens), seconds
