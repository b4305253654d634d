"""The calibration stage: from a pair and a machine to a profile and traces, and the files they go to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from calibrate.adaptive import adapt_plan, adaptive_notes
from calibrate.hostfit import fit_host
from calibrate.hostrecords import LiveRecord
from calibrate.job import Job, check, inputs, recorders, worker_specs
from calibrate.journal import Journal, open_journal
from calibrate.live.placement import TORCH, Mode, backend_label, local_vocabulary, own_precision
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import measured_runs, run_part, runs_of
from calibrate.measure import measure_grids, measure_overlap, message_latency, quantiles, time_shape
from calibrate.models import MisfitError, ModelSize, model_size
from calibrate.plan import LivePart, Plan
from calibrate.processes import run_apart
from calibrate.prompts import Prompt, spread
from calibrate.record import RecordingJob, now, record_trace, versions
from hardware_profiles.profile import DeviceInfo, Overlap, Profile, Role, Roles, save_profile
from hardware_profiles.store import trace_name, user_profile, user_trace
from hardware_profiles.surface import GridCost, Provenance, RoleName
from hardware_profiles.trace import Trace, write_trace
from policies.values import Request

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
        raise MisfitError(f"{RANDOM}; `calibrate --target shape:...` writes a profile alone")
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
    traces = {t: _record(replace(job, temperature=t), progress, journal) for t in temperatures}
    with ExitStack() as stack:
        bench = Bench(job, what, Workers(job, what, stack), journal, progress)
        messages = journal.once(lambda: message_latency(bench.workers(), "draft", MESSAGES), "messages")
        bench = replace(bench, what=bench.adapted())
        for number in range(1, what.passes + 1):
            begin_pass(number, job.apart_s, journal, progress)
            part = replace(bench, what=bench.what.upto(number))
            grids, overlap, records = part.grids(), part.overlap(), part.live(traces)
    host, overlap = fit_host(records, grids, overlap, quantiles(np.array(messages)))
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
    return _record(replace(job, prompts=tuple(prompts), prompt_set=prompt_set), progress, Journal())


def _record(job: Job, progress: Progress, journal: Journal) -> Trace:
    sampled = job.temperature > 0.0
    stage = f"trace at T={job.temperature:g}" if sampled else "trace"
    return record_trace(
        job.prompts,
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
        prompt_set=job.prompt_set,
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
    if chosen := adaptive_notes(journal):
        note += f"; {chosen}"
    pauses = journal.stage("resumed")
    return note + (f"; interrupted, and resumed at {', '.join(pauses)}" if pauses else "")


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

    def adapted(self) -> Plan:
        """The plan, its grids' points chosen by measuring if the job says so."""
        if self.job.adaptive is None:
            return self.what
        return adapt_plan(
            self.what,
            self.job.adaptive,
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


WAITING = "waiting for the next pass"


def begin_pass(
    number: int,
    apart_s: float,
    journal: Journal,
    progress: Callable[[str, int, int], None],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a pass may begin, and note that it did.

    A resumed calibration that already began the pass waits no more; one that was killed while it waited goes
    on waiting for the same moment.

    Args:
        number: Of the pass, from 1.
        apart_s: Least seconds from one pass's beginning to the next one's.
        journal: Keeps when each pass began.
        progress: Called with (stage, seconds waited, seconds to wait).
        clock: Seconds since the epoch.
        sleep: Waits that many seconds.
    """
    if journal.has("pass", number):
        return
    if number > 1 and apart_s > 0.0:
        begun = clock()
        until = float(journal.get("pass", number - 1)) + apart_s
        total = max(0, round(until - begun))
        while (now := clock()) < until:
            progress(WAITING, round(now - begun), total)
            sleep(min(1.0, until - now))
        progress(WAITING, total, total)
    journal.put(clock(), "pass", number)


def role_of(job: Job, role: RoleName) -> Role:
    """What a profile says of the target or the draft of a job: device, model, precision, backend, sizes."""
    target = role == "target"
    model, backend = (job.target, TORCH) if target else (job.draft, job.draft_backend)
    size = model_size(model)
    if size.parameters is None:
        size = run_apart(_hub_size, (model, job.trust_remote_code), lambda _: None)
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


def _device(job: Job, role: RoleName) -> DeviceInfo:
    """The accelerator of a role, or its cores."""
    placement = job.placement
    device, cores = placement.target_device, placement.target_cores
    if role == "draft":
        device, cores = placement.draft_device, placement.draft_cores
    kind, _, openvino = job.draft_backend.partition(":")
    openvino = openvino if role == "draft" and kind == "openvino" else ""
    if openvino not in {"", "CPU"}:
        return DeviceInfo(kind=openvino.partition(".")[0].lower(), name=f"OpenVINO {openvino}", cores=cores)
    if device != "cpu":
        found = job.machine.device(device)
        return DeviceInfo(
            kind=device.partition(":")[0],
            name=found.name or None if found else None,
            cores=cores,
            memory_bytes=found.memory_bytes if found else None,
        )
    return DeviceInfo(
        kind="cpu",
        name=job.machine.processor,
        cores=cores,
        threads=len(cores),
        memory_bytes=job.machine.memory_bytes,
    )


def _hub_size(model: tuple[str, bool], _: Callable[[Any], None]) -> ModelSize:
    return hub_size(model[0], trust_remote_code=model[1])


def hub_size(name: str, *, trust_remote_code: bool = False) -> ModelSize:
    """Sizes of a model that is known by its hub name only, from its configuration."""
    from calibrate.live.loading import load_config

    config = load_config(name, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelSize(
        parameters=count_parameters(config, trust_remote_code=trust_remote_code),
        layers=int(text.num_hidden_layers),
        kv_per_token=2 * int(text.num_hidden_layers) * int(heads) * int(width),
        positions=getattr(text, "max_position_embeddings", None),
    )


def count_parameters(config: Any, *, trust_remote_code: bool = False) -> int:
    """Number of weights of a causal model of this configuration; builds it without memory."""
    import torch

    from calibrate.live.loading import untrained_model

    with torch.device("meta"):
        model = untrained_model(config, trust_remote_code=trust_remote_code)
    return sum(p.numel() for p in model.parameters())


def profile_path(job: Job, out: Path | None) -> Path:
    """File of the profile, in `out` or among the user's own."""
    return out / f"{job.name}.json" if out else user_profile(job.name)


def trace_path(job: Job, temperature: float, out: Path | None) -> Path:
    """File of a trace: named like the profile, with `-t<temperature>` where tokens are sampled."""
    name = trace_name(job.name, temperature, job.top_p if temperature > 0.0 else 1.0)
    return out / f"{name}.parquet" if out else user_trace(name)


def open_work(job: Job, out: Path | None, *, fresh: bool = False, what: Plan | None = None) -> Journal:
    """The journal of a job, in a hidden folder beside its profile.

    Args:
        job: What is calibrated.
        out: As for `profile_path`.
        fresh: Discard what an interrupted run left.
        what: What is measured; by default the job's plan.
    """
    folder = profile_path(job, out).parent / f".{job.name}.partial"
    return open_journal(folder, inputs(job, what), fresh=fresh)


def write_all(found: Calibrated, job: Job, out: Path | None) -> Path:
    """Write the traces and then the profile, each whole or not at all; returns the profile's path."""
    for temperature, trace in found.traces.items():
        path = trace_path(job, temperature, out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trace(trace, path)
    path = profile_path(job, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_profile(found.profile, path)
    return path
