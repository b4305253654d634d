"""The calibration stage: from a pair and a machine to a profile and traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from calibrate import checks
from calibrate.anchors import measured_runs
from calibrate.bench import Bench, Progress, Workers, requests_of
from calibrate.hostfit import fit_host
from calibrate.job import Job, check, recorders
from calibrate.journal import Journal
from calibrate.live.placement import TORCH, backend_label
from calibrate.passes import begin_pass
from calibrate.plans import Plan
from calibrate.probes import latency_quantiles, message_latency
from calibrate.prompts import Prompt
from calibrate.recording import RecordingJob
from calibrate.roles import role_of
from calibrate.scouting import scouting_notes
from calibrate.traces import now, record_trace, versions
from hardware_profiles.profile import Profile, Provenance, Roles
from hardware_profiles.trace import Trace

__all__ = ["Calibrated", "Job", "calibrate", "record", "requests_of", "run_calibration"]

MESSAGES = 50
RANDOM = "random weights: latencies only, no acceptance"
"""What a profile says of itself where a model has no trained weights."""


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
            trust_remote_code=job.trust_remote_code,
        ),
        prompt_set=prompt_set,
        names=job.names,
        progress=lambda done, total: progress(stage, done, total),
        journal=journal,
        processes=recorders(job),
        when=journal.get("started") if journal.has("started") else None,
    )


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
