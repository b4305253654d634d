"""What is to be calibrated, and whether it can be."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from calibrate import machine as machines
from calibrate import models
from calibrate.adaptive import AdaptiveGoal
from calibrate.journal import Json, fingerprint
from calibrate.live.placement import (
    PRECISIONS,
    TORCH,
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
from calibrate.machine import Machine, available_memory, versions
from calibrate.options import CalibrationRequest, Choices
from calibrate.plan import Plan, plan
from calibrate.prompts import Prompt, choose_prompts
from calibrate.shipped import resolve_model
from hardware_profiles.profile import Profile
from policies.commandline import typed

FORMAT = 4
"""Of the journal's pieces: those of another format are not resumed."""
MOST_RECORDERS = 8
PRECISION: Precision = "fp32"
"""Of all models unless another is asked for; losslessness and replay are exact in it."""


@dataclass(frozen=True, kw_only=True)
class Job(Choices):
    """A pair to calibrate: folders or hub names of its models, and the `names` by which the user called them.

    The prompts are those of `prompt_set`; the command is for the provenance.
    """

    machine: Machine
    target: str
    draft: str
    names: tuple[str, str]
    prompts: tuple[Prompt, ...]
    prompt_set: str
    placement: Placement
    name: str
    command: str

    @property
    def random(self) -> bool:
        """Whether a model has random weights: then there is no acceptance to be measured."""
        return has_random_weights(self.target) or has_random_weights(self.draft)

    @property
    def plan(self) -> Plan:
        """What a calibration of it measures."""
        return plan(quick=self.quick, batches=self.batches, temperatures=self.temperature, passes=self.passes)

    @property
    def adaptive(self) -> AdaptiveGoal | None:
        """How the points of the grids are chosen by measuring; None: as planned."""
        if self.until_error is None:
            return None
        budget = {} if self.time_budget is None else {"time_budget_s": self.time_budget}
        return AdaptiveGoal(self.until_error, **budget)

    @cached_property
    def sizes(self) -> tuple[models.ModelSize, models.ModelSize]:
        """Of target and draft."""
        return models.model_size(self.target), models.model_size(self.draft)


def make_job(request: CalibrationRequest) -> Job:
    """The job that a request describes.

    Raises:
        WrongMachine: `hw` names another machine.
        ValueError: Bad prompts, models, placement, sampling or batches.
    """
    here = machines.find_machine()
    machines.require(request.hw, here)
    placed = parse_placement(request.placement)
    check_backend(request.draft_backend)
    machines.require_devices(placed, here, request.draft_backend, sampled=any(request.temperature))
    prompts = choose_prompts(request.prompts, request.count, half=request.quick)
    names = (request.target, request.draft)
    target, draft = (
        str((models.resolve_shape if name.startswith(models.SHAPE) else resolve_model)(name))
        for name in names
    )
    is_local_model(target)
    is_local_model(draft)
    return typed(
        Job,
        asdict(request),
        machine=here,
        target=target,
        draft=draft,
        names=names,
        prompts=tuple(prompts),
        prompt_set=request.prompts if "/" not in request.prompts else Path(request.prompts).stem,
        placement=placed,
        name=request.name or default_name(here, request.target, placed, request.draft_backend),
        command=shlex.join(["calibrate", *sys.argv[1:]]),
    )


def inputs(job: Job, what: Plan | None = None) -> dict[str, Json]:
    """Everything that the pieces of a calibration depend on, by name, for its journal."""
    return {
        "format": FORMAT,
        "target": fingerprint(job.target),
        "draft": fingerprint(job.draft),
        "prompts": [[p.question_id, p.category, p.text, p.source] for p in job.prompts],
        "machine": [str(job.machine), asdict(job.placement)],
        "temperatures": list(job.temperature),
        **{name: getattr(job, name) for name in _DEPENDS},
        "plan": repr(what or job.plan),
        "scouting": asdict(job.adaptive) if job.adaptive else None,
        "versions": versions(),
    }


_DEPENDS = ("top_p", "ranks", "max_tokens", "seed", "mode", "precision", "draft_backend")


def check(job: Job, what: Plan) -> None:
    """Refuse what cannot work, before anything is started.

    Raises:
        MisfitError: The tokenizers differ, a text outgrows the models, the memory does not suffice, or
            llama.cpp cannot keep so many branches.
    """
    models.check_tokenizers(job.target, job.draft)
    settings = [s for part in what.live for s in part.settings()]
    ahead = max((2 * (s.lookahead or 0) for s in settings), default=0)
    models.check_positions(
        dict(zip(("target", "draft"), job.sizes, strict=True)),
        longest=what.longest,
        max_tokens=job.max_tokens,
        ahead=ahead,
    )
    check_memories(job, batch=what.largest_batch, length=max(what.longest, job.max_tokens + ahead))
    if own_precision(job.draft_backend) is not None:
        trees = [point for grid in what.grids if grid.operation == "draft.tree" for point in grid.points]
        models.check_sequences(max((rows * (1 + branches) for rows, branches, _ in trees), default=0))


def check_memories(job: Job, *, batch: int, length: int) -> None:
    """Refuse models that do not fit into the memory of the devices that they are on.

    Raises:
        MisfitError: With the parts of the sum and what to change.
    """
    for device in dict.fromkeys(job.placement.devices):
        target, draft = (
            size if place == device else models.UNKNOWN
            for size, place in zip(job.sizes, job.placement.devices, strict=True)
        )
        need = models.memory_need(target, draft, batch=batch, length=length, precision=job.precision)
        local = job.machine.device(device)
        available = available_memory() if device == "cpu" else local.memory_bytes if local else None
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
    target, draft = (replace(spec, slots=batch, capacity=max(512, length)) for spec in specs)
    # OpenVINO knows compiled graphs only, llama.cpp its own.
    mode = job.mode if draft.backend == TORCH else "eager"
    return replace(target, mode=job.mode), replace(draft, mode=mode)


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
    if set(job.placement.devices) != {"cpu"}:
        return 1  # several would take turns on an accelerator, each with both models in its memory
    need = models.memory_need(*job.sizes, batch=1, length=job.max_tokens, precision=job.precision)
    each = need.weight_bytes + need.kv_bytes + need.spare_bytes // 2  # one process holds both
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
