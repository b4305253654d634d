"""The calibration stage: from a pair and a machine to a profile and a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.latency import Plan, measure_grids, plan
from calibrate.live.placement import Placement, pair_specs
from calibrate.live.world import LiveWorld
from calibrate.machine import Machine
from calibrate.overheads import measure_host, measure_overlap, message_latency, time_shape
from calibrate.prompts import Prompt, spread
from calibrate.recording import RecordingJob, model_facts
from calibrate.runs import LiveRun, measure, run_matrix
from calibrate.subprocesses import run_apart
from calibrate.traces import now, record_trace, versions
from hardware_profiles.profile import (
    DeviceInfo,
    MeasuredRun,
    Profile,
    Provenance,
    Role,
    Roles,
)
from hardware_profiles.trace import Trace
from policies.operations import Request
from policies.registry import Settings, configure

ANCHORS: tuple[dict[str, Any], ...] = (
    {"policy": "ar"},
    {"policy": "sd", "lookahead": 3},
    {"policy": "sd", "lookahead": 6},
    {"policy": "pearl", "lookahead": 3},
    {"policy": "pearl", "lookahead": 6},
    {"policy": "saguaro", "lookahead": 3, "fanout": (2,), "backup": "primary"},
    {"policy": "saguaro", "lookahead": 3, "fanout": (2,), "backup": "plain"},
    {"policy": "saguaro", "lookahead": 6, "fanout": (2,), "backup": "primary"},
    {"policy": "saguaro", "lookahead": 6, "fanout": (2,), "backup": "plain"},
)
"""Settings run live during calibration: they give the host's overheads, and whoever has no simulator
would extrapolate from them (the naive baseline of `validate`)."""

Progress = Callable[[str, int, int], None]
"""(stage, done, total)."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to calibrate.

    Attributes:
        machine: Where.
        target: Folder or hub name of the target.
        draft: Likewise of the draft.
        names: How the user called them.
        prompts: Calibration prompts.
        prompt_set: Their name.
        placement: Which cores each model gets.
        temperature: Sampling setting of the trace; 0 is greedy.
        limit: Tokens recorded per prompt.
        quick: Fewer points and repetitions, batch 1 only.
        name: Name of the profile.
        seed: Keys orders and sampling.
        command: For the provenance.
    """

    machine: Machine
    target: str
    draft: str
    names: tuple[str, str]
    prompts: tuple[Prompt, ...]
    prompt_set: str
    placement: Placement
    temperature: float
    limit: int
    quick: bool
    name: str
    seed: int
    command: str


def calibrate(job: Job, progress: Progress) -> tuple[Profile, Trace]:
    """Measure the pair on the machine and record its trace.

    Nothing else of ours runs while latencies are measured: the trace is recorded first, the workers are
    idle but for the probe at hand.
    """
    trace = record(job, job.prompts, job.prompt_set, progress)
    facts = [run_apart(_facts, folder, lambda _: None) for folder in (job.target, job.draft)]
    what = plan(quick=job.quick)
    with LiveWorld(*pair_specs(job.target, job.draft, job.placement)) as world:
        messages = message_latency(world, "draft", 50)
        grids = measure_grids(
            what,
            lambda *shape: time_shape(world, *shape),
            seed=job.seed,
            progress=lambda done, total: progress("latency grids", done, total),
        )
        overlap = _overlap(job, world, what, progress)
        runs = _anchor_runs(job, world, trace, progress)
    host, overlap = measure_host(runs, grids, overlap, messages)
    profile = Profile(
        name=job.name,
        description=(
            f"{job.names[0]} drafted for by {job.names[1]} on {job.machine}, placement {job.placement.name}"
        ),
        roles=Roles(
            target=_role(job, facts[0], job.placement.target_cores),
            draft=_role(job, facts[1], job.placement.draft_cores),
        ),
        placement="split" if job.placement.name == "split" else "shared",
        placement_note=job.placement.name,
        operations=grids,  # type: ignore[arg-type]
        host=host,
        overlap=tuple(overlap),
        measured_runs=anchors(runs),
        provenance=Provenance(
            kind="measured",
            when=now(),
            machine=str(job.machine),
            versions=versions(),
            command=job.command,
            note=f"eager torch, one thread per core; {what.repeats} repetitions per point, interleaved",
        ),
    )
    return profile, trace


def record(job: Job, prompts: tuple[Prompt, ...], prompt_set: str, progress: Progress) -> Trace:
    """Record a trace of `prompts` by plain decoding, in a process of its own."""
    return record_trace(
        prompts,
        RecordingJob(
            target=job.target,
            draft=job.draft,
            prompts=(),
            limit=job.limit,
            temperature=job.temperature,
            seed=job.seed,
        ),
        prompt_set=prompt_set,
        names=job.names,
        progress=lambda done, total: progress("trace", done, total),
    )


def requests_of(trace: Trace, limit: int | None = None) -> list[Request]:
    """The recorded prompts as requests for a live run, with the recorded lengths."""
    lengths = np.diff(trace.offsets)
    return [
        Request(r.id, len(r.prompt), int(n) if limit is None else min(limit, int(n)), tuple(r.prompt))
        for r, n in zip(trace.requests, lengths, strict=True)
    ]


def anchors(runs: list[LiveRun]) -> tuple[MeasuredRun, ...]:
    """Speeds of the calibration's own live runs, over AR interleaved with them."""
    measured = measure(runs)
    ar = measured["", configure("ar")]
    return tuple(
        MeasuredRun(
            policy=settings.policy,
            lookahead=settings.lookahead,
            fanout=settings.fanout,
            backup=settings.backup,
            tokens=speed.tokens,
            tokens_per_second=speed.tokens_per_second,
            speedup_vs_ar=speed.tokens_per_second / ar.tokens_per_second,
        )
        for (_, settings), speed in measured.items()
    )


def _anchor_runs(job: Job, world: LiveWorld, trace: Trace, progress: Progress) -> list[LiveRun]:
    chosen = spread(list(job.prompts), 4 if job.quick else 6)
    wanted = [i for i, prompt in enumerate(job.prompts) if prompt in chosen]
    requests = [r for r in requests_of(trace, 64 if job.quick else None) if r.id in wanted]
    settings: list[tuple[str, Settings]] = [("", configure(**knobs)) for knobs in ANCHORS]
    return run_matrix(
        {"": world},
        settings,
        requests,
        repeats=1 if job.quick else 2,
        seed=job.seed,
        progress=lambda done, total: progress("live settings", done, total),
    )


def _overlap(job: Job, world: LiveWorld, what: Plan, progress: Progress) -> list[Any]:
    if job.placement.name != "split":
        return []
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        progress("overlap", done, 3 * what.overlap_repeats)

    return measure_overlap(world, what.overlap_repeats, tick)


def _role(job: Job, facts: dict[str, Any], cores: tuple[int, ...]) -> Role:
    return Role(
        device=DeviceInfo(kind="cpu", name=job.machine.processor, cores=cores, threads=len(cores)),
        model=facts["name"],
        parameters=facts["parameters"],
        precision="fp32",
        backend="torch-eager",
        mode="eager",
    )


def _facts(folder: str, _: Callable[[Any], None]) -> dict[str, Any]:
    return model_facts(folder)


def default_name(machine: Machine, target: str, placement: Placement) -> str:
    """`cpu2-x20`, or `cpu2-x20-shared-0-1` for another placement than split."""
    short = target.removeprefix("pair:") if target.startswith("pair:") else Path(target).name
    name = f"{machine.name}-{short}"
    if placement.name != "split":
        name += "-" + placement.name.replace(":", "-").replace(",", "-")
    return name
