"""The calibration stage: from a pair and a machine to a profile and traces, and the files they go to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.adaptive import adapt_plan, adaptive_notes
from calibrate.hostfit import fit_host
from calibrate.hostrecords import LiveRecord, from_json, to_json
from calibrate.job import Job, check, inputs, worker_specs
from calibrate.journal import Journal, open_journal
from calibrate.live.placement import TORCH, Mode, backend_label, local_vocabulary, own_precision
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import (
    Cell,
    Group,
    groups,
    measured_runs,
    reduce_run,
    run_live,
    turns,
    weathers,
)
from calibrate.machine import versions
from calibrate.measure import measure_grids, measure_overlap, message_latency, quantiles, time_shape
from calibrate.models import MisfitError, ModelSize, hub_size
from calibrate.options import Progress
from calibrate.plan import LivePart, Plan
from calibrate.processes import run_isolated
from calibrate.prompts import spread
from calibrate.record import now, record_trace
from hardware_profiles.profile import DeviceInfo, Overlap, Profile, Role, Roles, save_profile
from hardware_profiles.store import trace_name, user_profile, user_trace
from hardware_profiles.surface import GridCost, Provenance, RoleName
from hardware_profiles.trace import Trace, write_trace
from policies.registry import Settings
from policies.values import Request

MESSAGES = 50
WARM_UP_TOKENS = 8
"""Length of the unmeasured run of every setting: first calls of a shape are slower."""
RANDOM = "random weights: latencies only, no acceptance"
"""What a profile says of itself where a model has no trained weights."""
RANDOM_PROMPT = (8, 48)
"""Shortest and longest prompt of live runs on random weights."""
WAITING = "waiting for the next pass"


@dataclass(frozen=True)
class Calibrated:
    """What a calibration finds: costs, and recordings by temperature; none where weights are random."""

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
        raise MisfitError(f"{RANDOM}; `calibrate --target shape:...` writes a profile alone")
    calibrated = run_calibration(replace(job, temperature=job.temperature[:1]), progress)
    return calibrated.profile, calibrated.trace


def run_calibration(
    job: Job, progress: Progress, *, journal: Journal | None = None, what: Plan | None = None
) -> Calibrated:
    """Record the pair's traces and measure it on the machine.

    Nothing else of ours runs while latencies are measured: the traces are recorded first, the workers are
    idle but for the probe at hand.

    The journal keeps every piece that is done; pieces that are there are taken from it.  What is measured is
    by default the job's plan.

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
    temperatures = () if job.random else dict.fromkeys(job.temperature)
    traces = {t: record_trace(job, t, progress, journal) for t in temperatures}
    with ExitStack() as stack:
        bench = CalibrationSteps(job, what, lazy_world(job, what, stack), journal, progress)
        messages = journal.once(lambda: message_latency(bench.world(), "draft", MESSAGES), "messages")
        bench = replace(bench, what=bench.adapted())
        for number in range(1, what.passes + 1):
            begin_pass(number, 60.0 * job.apart, journal, progress)
            part = replace(bench, what=bench.what.upto(number))
            grids, overlap, records = part.grids(), part.overlap(), part.live(traces)
    host, overlap = fit_host(records, grids, overlap, quantiles(np.array(messages)))
    random = f"; {RANDOM}" if job.random else ""
    profile = Profile(
        name=job.name,
        description=f"{job.names[0]} drafted for by {job.names[1]} on {job.machine}, "
        f"placement {job.placement.name}{random}",
        roles=Roles(target=role_of(job, "target"), draft=role_of(job, "draft")),
        placement="split" if job.placement.separate else "shared",
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


def _note(job: Job, what: Plan, journal: Journal) -> str:
    note = f"{job.mode} torch, one thread per core; {what.repeats} repetitions per point, interleaved"
    if what.passes > 1:
        note += f", in each of {what.passes} passes"
        note += f" that began at least {job.apart:g} minutes apart" if job.apart else ""
    if job.draft_backend != TORCH:
        note = f"draft by {backend_label(job.draft_backend)}; {note}"
    if job.random:
        note = f"{RANDOM}; {note}"
    if chosen := adaptive_notes(journal):
        note += f"; {chosen}"
    pauses = journal.stage("resumed")
    return note + (f"; interrupted, and resumed at {', '.join(pauses)}" if pauses else "")


def lazy_world(job: Job, what: Plan, stack: ExitStack) -> Callable[[], LiveWorld]:
    """The live world, started when something is first to be measured; the stack ends it."""
    specs = worker_specs(job, batch=what.largest_batch, length=what.longest)
    # Of a random model no token ends a text but by accident.
    ends: tuple[int, ...] | None = () if job.random else None
    return cache(lambda: stack.enter_context(LiveWorld(*specs, end_token_ids=ends)))


@dataclass(frozen=True, slots=True)
class CalibrationSteps:
    """The measurements of a calibration, each resumable piece by piece from the journal."""

    job: Job
    what: Plan
    world: Callable[[], LiveWorld]
    journal: Journal
    progress: Progress

    def _time(self, device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        return time_shape(self.world(), device, kind, shape, repeats)

    def adapted(self) -> Plan:
        """The plan, its grids' points chosen by measuring if the job says so."""
        if self.job.adaptive is None:
            return self.what
        progress = partial(self.progress, "choosing points")
        return adapt_plan(self.what, self.job.adaptive, self._time, journal=self.journal, progress=progress)

    def grids(self) -> dict[str, GridCost]:
        """Latency surfaces."""
        progress = partial(self.progress, "latency grids")
        return measure_grids(
            self.what, self._time, seed=self.job.seed, progress=progress, journal=self.journal
        )

    def overlap(self) -> list[Overlap]:
        """Slow-downs of models on cores or devices of their own; those on the same ones take turns."""
        if not self.job.placement.separate:
            return []
        progress = partial(self.progress, "overlap")
        return measure_overlap(self.world, self.what.overlap_repeats, progress, self.journal)

    def live(self, traces: Mapping[float, Trace]) -> list[LiveRecord]:
        """The plan's settings, run live between runs of plain decoding, as if the weather never changed."""
        records: list[LiveRecord] = []
        orders = [list(self._turns(number, part, traces)) for number, part in enumerate(self.what.live)]
        total = sum(map(len, orders))
        for number, order in enumerate(orders):
            warm: set[Settings] = set()
            for at, (repeat, group, cell) in enumerate(order):
                key, chosen, batch = ("live", number, at), cell.settings, cell.batch
                if not self.journal.has(*key):
                    if chosen not in warm:
                        short = [replace(r, limit=min(r.limit, WARM_UP_TOKENS)) for r in group]
                        run_live(self.world(), chosen, short, batch=batch)
                        warm.add(chosen)
                    run = run_live(self.world(), chosen, group, batch=batch, repeat=repeat)
                    self.journal.put(to_json(reduce_run(run)), *key)
                records.append(from_json(self.journal.get(*key)))
                self.progress("live settings", len(records), total)
        return [record.in_usual(own) for record, own in zip(records, weathers(records), strict=True)]

    def _turns(
        self, number: int, part: LivePart, traces: Mapping[float, Trace]
    ) -> Iterator[tuple[int, Group, Cell]]:
        """(repetition, requests, setting) of a part's runs in order; those of later passes follow."""
        settings = part.settings(top_p=self.job.top_p, seed=self.job.seed)
        cells = [Cell("", each, part.batch) for each in settings]
        sections = {("", part.batch, group): cells for group in self._groups(part, traces)}
        for repeat in range(part.repeats):
            for _, _, group, cell in turns(sections, [self.job.seed, number, repeat]):
                yield repeat, group, cell

    def _groups(self, part: LivePart, traces: Mapping[float, Trace]) -> list[Group]:
        """Requests of each run of a part: prompts of all categories, with the lengths recorded for them."""
        if not traces:
            return groups(random_requests(self.job, part.prompts), part.batch)
        chosen = spread(self.job.prompts, part.prompts)
        trace = traces.get(part.temperature) or next(iter(traces.values()))
        recorded = zip(requests_of(trace), self.job.prompts, strict=True)
        return groups([request for request, prompt in recorded if prompt in chosen], part.batch)


def requests_of(trace: Trace, limit: int | None = None) -> list[Request]:
    """The recorded prompts as requests for a live run, with the recorded lengths."""
    lengths = np.diff(trace.offsets)
    return [
        Request(r.id, len(r.prompt), int(n) if limit is None else min(limit, int(n)), tuple(r.prompt))
        for r, n in zip(trace.requests, lengths, strict=True)
    ]


def random_requests(job: Job, count: int) -> list[Request]:
    """Prompts of random tokens, for live runs that tell host times and nothing else."""
    random = np.random.default_rng(job.seed)
    vocabulary = local_vocabulary(job.target) or local_vocabulary(job.draft) or 2
    lengths = random.integers(*RANDOM_PROMPT, count, endpoint=True).tolist()
    return [
        Request(i, length, job.max_tokens, tuple(random.integers(1, vocabulary, length).tolist()))
        for i, length in enumerate(lengths)
    ]


def begin_pass(
    number: int,
    interval_s: float,
    journal: Journal,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a pass may begin, and note that it did.

    A resumed calibration that already began the pass waits no more; one that was killed while it waited goes
    on waiting for the same moment.  Passes are counted from 1, and begin at least `interval_s` apart;
    `progress` is called with (stage, seconds waited, seconds to wait).
    """
    if journal.has("pass", number):
        return
    if number > 1 and interval_s > 0.0:
        begun = clock()
        until = float(journal.get("pass", number - 1)) + interval_s
        total = max(0, round(until - begun))
        while (now := clock()) < until:
            progress(WAITING, round(now - begun), total)
            sleep(min(1.0, until - now))
        progress(WAITING, total, total)
    journal.put(clock(), "pass", number)


def role_of(job: Job, role: RoleName) -> Role:
    """What a profile says of the target or the draft of a job: device, model, precision, backend, sizes."""
    if role == "target":
        model, backend, size = job.target, TORCH, job.sizes[0]
    else:
        model, backend, size = job.draft, job.draft_backend, job.sizes[1]
    if size.parameters is None:
        size = run_isolated(_hub_size, (model, job.trust_remote_code), lambda _: None)
    path = Path(model)
    mode: Mode = job.mode if backend == TORCH else "compiled"
    precision = own_precision(backend) or job.precision
    return Role(
        device=_device(job, role),
        model=path.parent.name if path.is_file() else path.name if path.is_dir() else model,
        parameters=size.parameters,
        precision=precision,
        backend=backend_label(backend, mode),
        mode="eager" if mode == "eager" else "captured",
        kv_bytes_per_token=size.kv_bytes_per_token(precision),
        weight_bytes=size.weight_bytes(precision),
        layers=size.layers,
    )


def _hub_size(model: tuple[str, bool], _: Callable[[Any], None]) -> ModelSize:
    return hub_size(model[0], trust_remote_code=model[1])


def _device(job: Job, role: RoleName) -> DeviceInfo:
    """The accelerator of a role, or its cores."""
    placement = job.placement
    device, cores = placement.target_device, placement.target_cores
    if role == "draft":
        device, cores = placement.draft_device, placement.draft_cores
        kind, _, openvino = job.draft_backend.partition(":")
        if kind == "openvino" and openvino != "CPU":
            chip = openvino.partition(".")[0].lower()
            return DeviceInfo(kind=chip, name=f"OpenVINO {openvino}", cores=cores)
    if device != "cpu":
        local = job.machine.device(device)
        return DeviceInfo(
            kind=device.partition(":")[0],
            name=local.name or None if local else None,
            cores=cores,
            memory_bytes=local.memory_bytes if local else None,
        )
    return DeviceInfo(
        kind="cpu",
        name=job.machine.processor,
        cores=cores,
        threads=len(cores),
        memory_bytes=job.machine.memory_bytes,
    )


def profile_path(job: Job, out: Path | None) -> Path:
    """File of the profile, in `out` or among the user's own."""
    return out / f"{job.name}.json" if out else user_profile(job.name)


def trace_path(job: Job, temperature: float, out: Path | None) -> Path:
    """File of a trace: named like the profile, with `-t<temperature>` where tokens are sampled."""
    name = trace_name(job.name, temperature, job.top_p if temperature > 0.0 else 1.0)
    return out / f"{name}.parquet" if out else user_trace(name)


def open_work(job: Job, out: Path | None, *, fresh: bool = False, what: Plan | None = None) -> Journal:
    """The journal of a job, in a hidden folder beside its profile; `fresh` discards what lies there."""
    folder = profile_path(job, out).parent / f".{job.name}.partial"
    return open_journal(folder, inputs(job, what), fresh=fresh)


def write_all(calibrated: Calibrated, job: Job, out: Path | None) -> Path:
    """Write the traces and then the profile, each whole or not at all; returns the profile's path."""
    for temperature, trace in calibrated.traces.items():
        write_trace(trace, trace_path(job, temperature, out))
    path = profile_path(job, out)
    save_profile(calibrated.profile, path)
    return path
