"""Which worker runs what, and on which cores."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from calibrate.live.errors import ModelError, PlacementError

Precision: TypeAlias = Literal["fp32", "fp64", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Role: TypeAlias = Literal["target", "draft"]
Mode: TypeAlias = Literal["eager", "compiled"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process.

    Attributes:
        name: Name of the device in timelines and errors.
        model: Folder with `config.json` and safetensors, or a hub name `organisation/model`.
        cores: Cores the process is pinned to; one torch thread each.
        precision: Of weights and KV cache.
        role: What it serves.
        mode: How the model is called.
        slots: Rows to allocate KV caches for; more are allocated when a batch asks for them.
        capacity: Tokens per row to allocate, likewise.
    """

    name: str
    model: str
    cores: tuple[int, ...]
    precision: Precision = "fp32"
    role: Role = "target"
    mode: Mode = "eager"
    slots: int = 1
    capacity: int = 512

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}; modes: {', '.join(MODES)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; precisions: {', '.join(PRECISIONS)}")
        check_cores(self.cores)


@dataclass(frozen=True, slots=True)
class Placement:
    """Cores of the target and of the draft, and the name this has in profiles."""

    name: str
    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]


def available_cores() -> tuple[int, ...]:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def check_cores(cores: tuple[int, ...]) -> None:
    """Refuse an empty, repeated or missing core.

    Raises:
        PlacementError: With the cores that there are.
    """
    available = available_cores()
    missing = [core for core in cores if core not in available]
    if missing:
        raise PlacementError(
            f"core {', '.join(map(str, missing))} is not available here; available: "
            f"{', '.join(map(str, available))}"
        )
    if not cores or len(set(cores)) != len(cores):
        raise PlacementError(f"a worker needs one or more different cores, got {cores}")


def parse_placement(text: str) -> Placement:
    """`split`: target on core 0, draft on core 1; `shared:0,1`: both on both, a thread per core.

    Args:
        text: `split`, or `shared:` and core numbers.

    Raises:
        PlacementError: Not one of these forms, or a core that is not there.
    """
    target: tuple[int, ...]
    draft: tuple[int, ...]
    if text == "split":
        target, draft = (0,), (1,)
    elif match := re.fullmatch(r"shared:(\d+(?:,\d+)*)", text):
        target = draft = tuple(int(core) for core in match[1].split(","))
    else:
        raise PlacementError(f"unknown placement {text!r}; use split, shared:0 or shared:0,1")
    try:
        check_cores(target)
        check_cores(draft)
    except PlacementError as error:
        raise PlacementError(f"placement {text!r}: {error}") from None
    return Placement(text, target, draft)


def pair_specs(
    target: str, draft: str, placement: Placement, *, precision: Precision = "fp32"
) -> tuple[WorkerSpec, WorkerSpec]:
    """The two workers of a pair of models, called `target` and `draft`."""
    return (
        WorkerSpec("target", target, placement.target_cores, precision, "target"),
        WorkerSpec("draft", draft, placement.draft_cores, precision, "draft"),
    )


def is_local_model(model: str) -> bool:
    """Whether `model` is a folder (True) or a hub name (False).

    A name counts as the hub's only if it looks like `organisation/model` and nothing local of that kind
    exists; a mistyped folder then fails here rather than with a network error.

    Raises:
        ModelError: Neither a folder with a model nor a hub name.
    """
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"model folder {model!r} has no config.json")
        if not any(folder.glob("*.safetensors")):
            raise ModelError(f"model folder {model!r} has no safetensors file (no other format is loaded)")
        return True
    looks_like_hub = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model) is not None
    if not looks_like_hub or folder.parent.is_dir():
        raise ModelError(f"model folder {model!r} does not exist")
    return False


def local_vocabulary(model: str) -> int | None:
    """Vocabulary size that a model folder's configuration states; None for a hub name, or if it does not.

    Raises:
        ModelError: As `is_local_model`, or the configuration is not readable.
    """
    if not is_local_model(model):
        return None
    path = Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    size = config.get("text_config", config).get("vocab_size")
    return size if isinstance(size, int) else None
