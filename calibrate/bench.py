"""The measurements of a calibration on its live world, and the requests that are served in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from calibrate.anchors import run_part, runs_of
from calibrate.hostrecords import LiveRecord
from calibrate.job import Job, worker_specs
from calibrate.journal import Journal
from calibrate.latency import measure_grids
from calibrate.live.placement import local_vocabulary
from calibrate.live.world import LiveWorld
from calibrate.plans import LivePart, Plan
from calibrate.probes import measure_overlap, time_shape
from calibrate.prompts import spread
from calibrate.scouting import scout
from hardware_profiles.costs import GridCost
from hardware_profiles.profile import Overlap
from hardware_profiles.trace import Trace
from policies.values import Request

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""
RANDOM_PROMPT = (8, 48)
"""Shortest and longest prompt of live runs on random weights."""


class Workers:
    """The live world, started when something is first to be measured.

    Args:
        job: Models, placement and mode.
        what: Tells how large a batch and how long a text there will be.
        stack: Ends the workers.
    """

    def __init__(self, job: Job, what: Plan, stack: ExitStack) -> None:
        self._specs = worker_specs(job, batch=what.largest_batch, length=what.longest)
        self._stack = stack
        # Of a random model no token ends a text but by accident.
        self._ends: tuple[int, ...] | None = () if job.random else None
        self._world: LiveWorld | None = None

    def __call__(self) -> LiveWorld:
        """The world."""
        if self._world is None:
            self._world = self._stack.enter_context(LiveWorld(*self._specs, end_token_ids=self._ends))
        return self._world


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements of a calibration, each resumable piece by piece.

    Attributes:
        job: What is calibrated.
        what: What is measured.
        workers: The live world.
        journal: What is done.
        progress: Called with (stage, done, total).
    """

    job: Job
    what: Plan
    workers: Workers
    journal: Journal
    progress: Progress

    def scouted(self) -> Plan:
        """The plan, its grids' points chosen by measuring if the job wishes it."""
        if self.job.scouting is None:
            return self.what
        return scout(
            self.what,
            self.job.scouting,
            lambda *shape: time_shape(self.workers(), *shape),
            journal=self.journal,
            progress=lambda done, total: self.progress("choosing points", done, total),
        )

    def grids(self) -> dict[str, GridCost]:
        """Latency surfaces."""
        return measure_grids(
            self.what,
            lambda *shape: time_shape(self.workers(), *shape),
            seed=self.job.seed,
            progress=lambda done, total: self.progress("latency grids", done, total),
            journal=self.journal,
        )

    def overlap(self) -> list[Overlap]:
        """Slow-downs of models on cores or devices of their own; those on the same ones take turns."""
        if not self.job.placement.apart:
            return []
        return measure_overlap(
            self.workers,
            self.what.overlap_repeats,
            lambda done, total: self.progress("overlap", done, total),
            self.journal,
        )

    def live(self, traces: Mapping[float, Trace]) -> list[LiveRecord]:
        """The plan's settings, run live."""
        job, records = self.job, list[LiveRecord]()
        total = sum(map(runs_of, self.what.live))
        for number, part in enumerate(self.what.live):
            before = len(records)
            records += run_part(
                part,
                part.settings(top_p=job.top_p, seed=job.seed),
                part_requests(job, part, traces),
                self.workers,
                number=number,
                seed=job.seed,
                journal=self.journal,
                progress=lambda done, before=before: self.progress("live settings", before + done, total),  # type: ignore[misc]
            )
        return records


def requests_of(trace: Trace, limit: int | None = None) -> list[Request]:
    """The recorded prompts as requests for a live run, with the recorded lengths."""
    lengths = np.diff(trace.offsets)
    return [
        Request(r.id, len(r.prompt), int(n) if limit is None else min(limit, int(n)), tuple(r.prompt))
        for r, n in zip(trace.requests, lengths, strict=True)
    ]


def part_requests(job: Job, part: LivePart, traces: Mapping[float, Trace]) -> list[Request]:
    """Requests of a part of the plan: prompts of all categories, with the lengths recorded for them."""
    if not traces:
        return random_requests(job, part.prompts)
    chosen = spread(list(job.prompts), part.prompts)
    wanted = [i for i, prompt in enumerate(job.prompts) if prompt in chosen]
    trace = traces.get(part.temperature) or next(iter(traces.values()))
    return [request for request in requests_of(trace) if request.id in wanted]


def random_requests(job: Job, count: int) -> list[Request]:
    """Prompts of random tokens, for live runs that tell host times and nothing else."""
    random = np.random.default_rng(job.seed)
    vocabulary = local_vocabulary(job.target) or local_vocabulary(job.draft) or 2
    shortest, longest = RANDOM_PROMPT
    lengths = random.integers(shortest, longest, count, endpoint=True).tolist()
    return [
        Request(i, length, job.limit, tuple(random.integers(1, vocabulary, length).tolist()))
        for i, length in enumerate(lengths)
    ]
