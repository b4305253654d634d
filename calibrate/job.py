"""What is to be calibrated, and whether it can be."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calibrate import machine as machines
from calibrate import models
from calibrate.adaptive import AdaptiveGoal, adaptive_goal
from calibrate.journal import Json, fingerprint
from calibrate.live.placement import (
    PRECISIONS,
    TORCH,
    Mode,
    Placement,
    Precision,
    WorkerSpec,
    check_backend,
    has_random_weights,
    is_local_model,
    labelled_backend,
    own_precision,
    pair_specs,
    parse_placement,
)
from calibrate.machine import Machine, available_memory
from calibrate.plan import BATCHES, Plan, plan
from calibrate.prompts import Prompt, choose_prompts
from calibrate.record import versions
from calibrate.shipped import resolve_model
from hardware_profiles.profile import Profile
from policies.sampling import Sampling

FORMAT = 3
"""Of the journal's pieces: those of another format are not resumed."""
MOST_RECORDERS = 8
PRECISION: Precision = "fp32"
"""Of all models unless another is asked for; losslessness and replay are exact in it."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to calibrate.

    Attributes:
        machine: Where.
        target: Folder or hub name of the target.
        draft: Folder or hub name of the draft.
        names: How the user called them.
        prompts: Calibration prompts.
        prompt_set: Their name.
        placement: Which cores each model gets.
        limit: Tokens recorded per prompt.
        quick: Fewer points and repetitions, batch 1 only.
        name: Name of the profile.
        seed: Keys orders and sampling.
        command: For the provenance.
        temperatures: Of the traces that a calibration records; 0 is greedy.
        top_p: Mass of both models' laws that is kept where tokens are sampled.
        ranks: Choices of the draft kept per position; None: 16 greedy, 32 sampled.
        batches: Rows served at once in the latency grids.
        mode: How the workers call their models.
        temperature: What `record` alone records.
        passes: How often everything is measured, pass after pass.
        apart_s: Least seconds from one pass's beginning to the next one's.
        adaptive: How the points of the grids are chosen by measuring; None: as planned.
        precision: Of both models.
        draft_backend: What runs the draft: `torch`, or `openvino:CPU`, `llamacpp:q8_0` and the like.
        trust_remote_code: Run code that comes with the models.
    """

    machine: Machine
    target: str
    draft: str
    names: tuple[str, str]
    prompts: tuple[Prompt, ...]
    prompt_set: str
    placement: Placement
    limit: int
    quick: bool
    name: str
    seed: int
    command: str
    temperatures: tuple[float, ...] = (0.0, 1.0)
    top_p: float = 1.0
    ranks: int | None = None
    batches: tuple[int, ...] = BATCHES
    mode: Mode = "eager"
    temperature: float = 0.0
    passes: int = 1
    apart_s: float = 0.0
    adaptive: AdaptiveGoal | None = None
    precision: Precision = PRECISION
    draft_backend: str = TORCH
    trust_remote_code: bool = False

    @property
    def random(self) -> bool:
        """Whether a model has random weights: then there is no acceptance to be measured."""
        return has_random_weights(self.target) or has_random_weights(self.draft)

    @property
    def plan(self) -> Plan:
        """What a calibration of it measures."""
        return plan(
            quick=self.quick, batches=self.batches, temperatures=self.temperatures, passes=self.passes
        )


def make_job(
    *,
    target: str,
    draft: str,
    temperature: Sequence[float],
    max_tokens: int,
    hw: str = "auto",
    prompts: str = "calibration",
    count: int | None = None,
    placement: str = "split",
    draft_backend: str = TORCH,
    precision: Precision = PRECISION,
    top_p: float = 1.0,
    ranks: int | None = None,
    batches: Sequence[int] = BATCHES,
    quick: bool = False,
    passes: int = 1,
    apart: float = 0.0,
    mode: Mode = "eager",
    until_error: float | None = None,
    time_budget: float | None = None,
    name: str | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Job:
    """The job that the options of `calibrate` describe, by their names; other commands give fewer of them.

    Raises:
        WrongMachine: `hw` names another machine.
        ValueError: Bad prompts, models, placement, sampling or batches.
    """
    for each in temperature:
        Sampling(each, top_p)
    if top_p != 1.0 and not any(temperature):
        raise ValueError(
            "--top-p changes nothing at temperature 0; give a temperature, e.g. --temperature 0,1"
        )
    here = machines.find_machine()
    machines.require(hw, here)
    placed = parse_placement(placement)
    check_backend(draft_backend)
    machines.require_devices(placed, here, draft_backend, sampled=any(temperature))
    chosen = choose_prompts(prompts, count, half=quick)
    folders = [
        str((models.resolve_shape if n.startswith(models.SHAPE) else resolve_model)(n))
        for n in (target, draft)
    ]
    for folder in folders:
        is_local_model(folder)
    return Job(
        machine=here,
        target=folders[0],
        draft=folders[1],
        names=(target, draft),
        prompts=tuple(chosen),
        prompt_set=prompts if "/" not in prompts else Path(prompts).stem,
        placement=placed,
        limit=max_tokens,
        quick=quick,
        name=name or default_name(here, target, placed, draft_backend),
        seed=seed,
        command=shlex.join(["calibrate", *sys.argv[1:]]),
        temperatures=tuple(temperature),
        top_p=top_p,
        ranks=ranks,
        batches=tuple(batches),
        mode=mode,
        temperature=temperature[0],
        passes=passes,
        apart_s=60.0 * apart,
        adaptive=adaptive_goal(until_error, time_budget),
        precision=precision,
        draft_backend=draft_backend,
        trust_remote_code=trust_remote_code,
    )


def inputs(job: Job, what: Plan | None = None) -> dict[str, Json]:
    """Everything that the pieces of a calibration depend on, by name, for its journal."""
    return {
        "format": FORMAT,
        "target": fingerprint(job.target),
        "draft": fingerprint(job.draft),
        "prompts": [[p.question_id, p.category, p.text, p.source] for p in job.prompts],
        "machine": [str(job.machine), asdict(job.placement)],
        "temperatures": list(job.temperatures),
        "top_p": job.top_p,
        "ranks": job.ranks,
        "max_tokens": job.limit,
        "seed": job.seed,
        "mode": job.mode,
        "precision": job.precision,
        "draft_backend": job.draft_backend,
        "plan": repr(what or job.plan),
        "scouting": asdict(job.adaptive) if job.adaptive else None,
        "versions": versions(),
    }


def check(job: Job, what: Plan) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        MisfitError: The tokenizers differ, a text outgrows the models, the memory does not suffice, or
            llama.cpp cannot keep so many branches.
    """
    models.check_tokenizers(job.target, job.draft)
    sizes = [("target", models.model_size(job.target)), ("draft", models.model_size(job.draft))]
    settings = [s for part in what.live for s in part.settings()]
    ahead = max((2 * (s.lookahead or 0) for s in settings), default=0)
    models.check_positions(sizes, longest=what.longest, max_tokens=job.limit, ahead=ahead)
    length = max(what.longest, job.limit + ahead)
    check_memories(job, batch=what.largest_batch, length=length)
    if own_precision(job.draft_backend) is not None:
        trees = [point for grid in what.grids if grid.operation == "draft.tree" for point in grid.points]
        models.check_sequences(max((rows * (1 + branches) for rows, branches, _ in trees), default=0))


def check_memories(job: Job, *, batch: int, length: int) -> None:
    """Refuse models that do not fit into the memory of the devices that they are on.

    Raises:
        MisfitError: With the parts of the sum and what to change.
    """
    nothing = models.ModelSize(None, None, None, None)
    for device in dict.fromkeys(job.placement.devices):
        target, draft = (
            models.model_size(model) if place == device else nothing
            for model, place in zip((job.target, job.draft), job.placement.devices, strict=True)
        )
        need = models.memory_need(target, draft, batch=batch, length=length, precision=job.precision)
        found = job.machine.device(device)
        available = available_memory() if device == "cpu" else found.memory_bytes if found else None
        models.check_memory(need, available, batch=batch, length=length)


def worker_specs(job: Job, *, batch: int = 1, length: int = 512) -> tuple[WorkerSpec, WorkerSpec]:
    """The workers of a job, with room for a batch of texts of a length."""
    specs = pair_specs(
        job.target,
        job.draft,
        job.placement,
        precision=job.precision,
        draft_backend=job.draft_backend,
        trust_remote_code=job.trust_remote_code,
    )
    return with_room(specs, job.mode, batch=batch, length=length)


def with_room(
    specs: tuple[WorkerSpec, WorkerSpec], mode: Mode, *, batch: int, length: int
) -> tuple[WorkerSpec, WorkerSpec]:
    """Workers that call their models in a mode, with room for a batch of texts of a length."""
    target, draft = (replace(spec, slots=batch, capacity=max(512, length)) for spec in specs)
    # OpenVINO knows compiled graphs only, llama.cpp its own.
    return replace(target, mode=mode), replace(draft, mode=mode if draft.backend == TORCH else "eager")


def like_profile(job: Job, profile: Profile) -> Job:
    """The job with its models called as they were when `profile` was measured: mode, precision, backend."""
    target, draft = profile.roles.target, profile.roles.draft
    return replace(
        job,
        mode="compiled" if target.mode == "captured" else "eager",
        precision=next((p for p in PRECISIONS if p == target.precision), PRECISION),
        draft_backend=labelled_backend(draft.backend, draft.precision),
    )


def recorders(job: Job) -> int:
    """Recorders that work side by side: one per core, if their models fit into memory together."""
    need = models.memory_need(
        models.model_size(job.target),
        models.model_size(job.draft),
        batch=1,
        length=job.limit,
        precision=job.precision,
    )
    each = need.weight_bytes + need.kv_bytes + need.spare_bytes // 2  # one process holds both
    if set(job.placement.devices) != {"cpu"}:
        return 1  # several would take turns on an accelerator, each with both models in its memory
    available = available_memory()
    fitting = MOST_RECORDERS if available is None else available // (2 * each)  # leave half of it alone
    return max(1, min(len(job.machine.cores), MOST_RECORDERS, fitting))


def default_name(machine: Machine, target: str, placement: Placement, draft_backend: str = TORCH) -> str:
    """`cpu2-x20`, or `cpu2-x20-shared-0-1` for another placement than split; with the draft's backend."""
    short = re.sub(r"[:,=]", "-", re.sub(r"^(pair|shape):", "", target))
    short = Path(short).parent.name if short.endswith("config.json") else Path(short).name
    parts = [machine.name, short]
    parts += [placement.name] if placement.name != "split" else []
    parts += [draft_backend.lower()] if draft_backend != TORCH else []
    return "-".join(re.sub(r"[:,+]", "-", part) for part in parts)
