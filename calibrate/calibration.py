"""The calibration stage: from a pair and a machine to a profile and traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from calibrate import checks
from calibrate.anchors import measured_runs, run_part, runs_of
from calibrate.job import Job, check, recorders, worker_specs
from calibrate.journal import Journal
from calibrate.latency import measure_grids
from calibrate.live.placement import TORCH, backend_label, local_vocabulary
from calibrate.live.world import LiveWorld
from calibrate.observations import LiveRecord
from calibrate.overheads import fit_host
from calibrate.passes import begin_pass
from calibrate.plans import LivePart, Plan
from calibrate.probes import latency_quantiles, measure_overlap, message_latency, time_shape
from calibrate.prompts import Prompt, spread
from calibrate.recording import RecordingJob
from calibrate.roles import role_of
from calibrate.scouting import scout, scouting_notes
from calibrate.traces import now, record_trace, versions
from hardware_profiles.costs import GridCost
from hardware_profiles.profile import Overlap, Profile, Provenance, Roles
from hardware_profiles.trace import Trace
from policies.operations import Request

__all__ = ["Calibrated", "Job", "calibrate", "record", "requests_of", "run_calibration"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""

MESSAGES = 50
RANDOM = "random weights: latencies only, no acceptance"
"""What a profile says of itself where a model has no trained weights."""
RANDOM_PROMPT = (8, 48)
"""Shortest and longest prompt of their live runs."""


@dataclass(frozen=True)
class Calibrated:
    """What a calibration finds.

    Attributes:
        profile: Costs.
        traces: Recordings by temperature, in the order asked for; none where weights are random.
    """

    profile: Profile
    traces: Mapping[float, Trace]

    @property
    def trace(self) -> Trace:
        """The recording at the first temperature."""
        return next(iter(self.traces.values()))


def calibrate(job: Job, progress: Progress) -> tuple[Profile, Trace]:
    """`run_calibration` of the first temperature, from the beginning and without a journal.

    Raises:
        MisfitError: As `run_calibration`, or a model has random weights, so that there is no trace.
    """
    if job.random:
        raise checks.MisfitError(f"{RANDOM}; `calibrate --target shape:...` writes a profile alone")
    found = run_calibration(replace(job, temperatures=job.temperatures[:1]), progress)
    return found.profile, found.trace


def run_calibration(
    job: Job, progress: Progress, *, journal: Journal | None = None, what: Plan | None = None
) -> Calibrated:
    """Record the pair's traces and measure it on the machine.

    Nothing else of ours runs while latencies are measured: the traces are recorded first, the workers are
    idle but for the probe at hand.

    Args:
        job: What to calibrate.
        progress: Called with (stage, done, total).
        journal: Keeps every piece that is done; pieces that are there are taken from it.
        what: What to measure; by default the job's plan.

    Raises:
        MisfitError: The pair, the batches or the limit cannot work here.
    """
    what = what or job.plan
    check(job, what)
    journal = journal or Journal()
    if journal.resumed:
        journal.put(now(), "resumed", sum(journal.resumed.values()))
    journal.once(now, "started")
    # What random weights say is nobody's acceptance.
    temperatures = () if job.random else dict.fromkeys(job.temperatures)
    traces = {t: record_at(job, t, progress, journal) for t in temperatures}
    with ExitStack() as stack:
        bench = Bench(job, what, Workers(job, what, stack), journal, progress)
        messages = journal.once(lambda: message_latency(bench.workers(), "draft", MESSAGES), "messages")
        bench = replace(bench, what=bench.scouted())
        for number in range(1, what.passes + 1):
            begin_pass(number, job.apart_s, journal, progress)
            part = replace(bench, what=bench.what.upto(number))
            grids, overlap, records = part.grids(), part.overlap(), part.live(traces)
    host, overlap = fit_host(records, grids, overlap, latency_quantiles(messages))
    profile = Profile(
        name=job.name,
        description=(
            f"{job.names[0]} drafted for by {job.names[1]} on {job.machine}, placement {job.placement.name}"
            + (f"; {RANDOM}" if job.random else "")
        ),
        roles=Roles(
            target=role_of(job, "target"),
            draft=role_of(job, "draft"),
        ),
        placement="split" if job.placement.apart else "shared",
        placement_note=job.placement.name,
        operations=grids,  # type: ignore[arg-type]
        host=host,
        overlap=tuple(overlap),
        measured_runs=() if job.random else measured_runs(records),
        provenance=Provenance(
            kind="measured",
            when=journal.get("started"),
            machine=str(job.machine),
            versions=versions(),
            command=job.command,
            note=_note(job, what, journal),
        ),
    )
    return Calibrated(profile, traces)


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


def record(job: Job, prompts: Sequence[Prompt], prompt_set: str, progress: Progress) -> Trace:
    """Record a trace of `prompts` by plain decoding at the job's `temperature`, in processes of its own."""
    return _record(job, prompts, prompt_set, progress, Journal())


def record_at(job: Job, temperature: float, progress: Progress, journal: Journal) -> Trace:
    """Record the calibration prompts at a temperature, as far as the journal does not have them."""
    return _record(replace(job, temperature=temperature), job.prompts, job.prompt_set, progress, journal)


def _record(
    job: Job, prompts: Sequence[Prompt], prompt_set: str, progress: Progress, journal: Journal
) -> Trace:
    sampled = job.temperature > 0.0
    stage = f"trace at T={job.temperature:g}" if sampled else "trace"
    return record_trace(
        prompts,
        RecordingJob(
            target=job.target,
            draft=job.draft,
            prompts=(),
            limit=job.limit,
            temperature=job.temperature,
            top_p=job.top_p if sampled else 1.0,
            ranks=job.ranks,
            seed=job.seed,
            precision=job.precision,
            devices=job.placement.devices,
            draft_backend=job.draft_backend,
        ),
        prompt_set=prompt_set,
        names=job.names,
        progress=lambda done, total: progress(stage, done, total),
        journal=journal,
        processes=recorders(job),
        when=journal.get("started") if journal.has("started") else None,
    )


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


def _note(job: Job, what: Plan, journal: Journal) -> str:
    note = f"{job.mode} torch, one thread per core; {what.repeats} repetitions per point, interleaved"
    if what.passes > 1:
        note += f", in each of {what.passes} passes"
        note += f" that began at least {job.apart_s / 60:g} minutes apart" if job.apart_s else ""
    if job.draft_backend != TORCH:
        note = f"draft by {backend_label(job.draft_backend)}; {note}"
    if job.random:
        note = f"{RANDOM}; {note}"
    if chosen := scouting_notes(journal):
        note += f"; {chosen}"
    pauses = journal.stage("resumed")
    return note + (f"; interrupted, and resumed at {', '.join(pauses)}" if pauses else "")
