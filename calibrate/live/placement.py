"""Which worker runs what, by which backend, on which device and cores."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from calibrate.live.errors import ModelError, PlacementError
from hardware_profiles.shapes import ShapeError, read_config, text_config

Precision: TypeAlias = Literal["fp32", "fp64", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Role: TypeAlias = Literal["target", "draft"]
Mode: TypeAlias = Literal["eager", "compiled"]
MODES: tuple[Mode, ...] = get_args(Mode)
TORCH = "torch"
"""The backend of all workers but drafts that another one of `BACKENDS` runs."""
GGUF_PRECISIONS = ("fp32", "fp16", "q8_0", "q4_0")
"""Of the files that llama.cpp runs."""


class BackendKind(NamedTuple):
    """A kind of backend.

    Attributes:
        examples: Names, for people.
        variant: Regular expression of what follows `kind:`; None: nothing does.
        names_precision: Whether that is a precision; else it is a device, or a number.
        runs_torch: Whether torch runs the model behind it, so that it is here wherever torch is.
    """

    examples: tuple[str, ...]
    variant: str | None = None
    names_precision: bool = False
    runs_torch: bool = False


BACKENDS: Mapping[str, BackendKind] = {
    TORCH: BackendKind((TORCH,), runs_torch=True),
    "openvino": BackendKind(("openvino:CPU", "openvino:GPU", "openvino:NPU"), r"[A-Z]+(?:\.\d+)?"),
    "llamacpp": BackendKind(
        tuple(f"llamacpp:{precision}" for precision in GGUF_PRECISIONS),
        "|".join(GGUF_PRECISIONS),
        names_precision=True,
    ),
}
"""By name, which is that of a module of `calibrate.live.backends` with a function `open_runner`."""
_DEVICE = r"cpu|mps|(?:cuda|xpu|npu)(?::\d+)?"
FORMS = "split, shared:0 or shared:0,1 (cores), cuda:0 (both), cuda:0+cuda:1 or cuda:0+cpu (target+draft)"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker process.

    Attributes:
        name: Name of the device in timelines and errors.
        model: Folder with `config.json` and safetensors, or a hub name `organisation/model`.
        cores: Cores the process is pinned to; one torch thread each.
        precision: Of weights and KV cache; with OpenVINO of the arithmetic only, with llama.cpp of nothing:
            there the backend names its own.
        role: What it serves.
        mode: How the model is called.
        slots: Rows to allocate at first.
        capacity: Tokens per row to allocate at first.
        device: Where torch has the model: `cpu`, `cuda`, `cuda:1`, `mps`, `xpu`, `npu`.
        backend: What runs it; a target is run by torch.
        trust_remote_code: Run code that comes with the model.
    """

    name: str
    model: str
    cores: tuple[int, ...]
    precision: Precision = "fp32"
    role: Role = "target"
    mode: Mode = "eager"
    slots: int = 1
    capacity: int = 512
    device: str = "cpu"
    backend: str = TORCH
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_device(self.device)
        check_backend(self.backend)
        check_cores(self.cores)
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}; modes: {', '.join(MODES)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}; precisions: {', '.join(PRECISIONS)}")
        if self.backend == TORCH:
            return
        if self.role != "draft":
            raise ValueError(f"{self.backend!r} runs drafts only; a target is run by torch")
        double = self.precision == "fp64" and own_precision(self.backend) is None
        if self.device != "cpu" or self.mode != "eager" or double:
            raise ValueError(
                f"{self.backend!r} names its device and compiles by itself: leave device 'cpu' and mode "
                f"'eager', and use fp32, bf16 or fp16, got {self.device!r}, {self.mode!r}, {self.precision!r}"
            )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the target and the draft are, and the name this has in profiles.

    `*_cores` are those of the process (with an accelerator, those that launch its work), `*_device` is where
    torch has the model.
    """

    name: str
    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]
    target_device: str = "cpu"
    draft_device: str = "cpu"

    @property
    def separate(self) -> bool:
        """Whether each model has a device, or cores, of its own; else they take turns."""
        if self.target_device != self.draft_device:
            return True
        return self.target_device == "cpu" and not set(self.target_cores) & set(self.draft_cores)

    @property
    def devices(self) -> tuple[str, str]:
        """Of target and draft."""
        return (self.target_device, self.draft_device)


def available_cores() -> tuple[int, ...]:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def check_cores(cores: tuple[int, ...]) -> None:
    """Refuse no core, a repeated or a missing one, with the cores that there are (`PlacementError`)."""
    available = available_cores()
    missing = [core for core in cores if core not in available]
    if missing:
        raise PlacementError(
            f"core {', '.join(map(str, missing))} is not available here; available: "
            f"{', '.join(map(str, available))}"
        )
    if not cores or len(set(cores)) != len(cores):
        raise PlacementError(f"a worker needs one or more different cores, got {cores}")


def check_device(device: str) -> None:
    """Refuse what is no name of a device, with those there are (`PlacementError`)."""
    if not re.fullmatch(_DEVICE, device):
        raise PlacementError(f"unknown device {device!r}; devices: cpu, cuda, cuda:1, mps, xpu, npu")


def check_backend(backend: str) -> None:
    """Refuse what is no name of a backend, with those there are (`PlacementError`)."""
    kind, colon, name = backend.partition(":")
    known = BACKENDS.get(kind)
    if known is None or (bool(colon) if known.variant is None else not re.fullmatch(known.variant, name)):
        examples = ", ".join(each for kind in BACKENDS.values() for each in kind.examples)
        raise PlacementError(f"unknown backend {backend!r}; backends: {examples}")


def backend_kind(backend: str) -> BackendKind:
    """What is true of all backends of its kind; torch's for a device of torch."""
    return BACKENDS.get(backend.partition(":")[0], BACKENDS[TORCH])


def own_precision(backend: str) -> str | None:
    """The precision that a backend names, whatever that of the run is: `q8_0` of `llamacpp:q8_0`."""
    return backend.partition(":")[2] if backend_kind(backend).names_precision else None


def backend_label(backend: str, mode: Mode = "eager") -> str:
    """What profiles and traces call a backend: `torch-eager`, `torch-compile`, `openvino-cpu`, `llamacpp`.

    llama.cpp's precision is not part of it: profiles and traces have a field for that.
    """
    if backend == TORCH:
        return "torch-eager" if mode == "eager" else "torch-compile"
    if own_precision(backend) is not None:
        return backend.partition(":")[0]
    return backend.lower().replace(":", "-")


def labelled_backend(label: str | None, precision: str | None = None) -> str:
    """The backend of a `backend_label` and a precision named beside it; torch where there is none such."""
    kind, _, variant = (label or "").partition("-")
    if kind == TORCH or kind not in BACKENDS:
        return TORCH
    return f"{kind}:{precision if BACKENDS[kind].names_precision else variant.upper()}"


def parse_placement(text: str) -> Placement:
    """Where two models are.

    `split`: target on core 0, draft on core 1; `shared:0,1`: both on both, a thread per core; `cuda:0`: both
    on one accelerator, in a process each; `cuda:0+cuda:1`, `cuda:0+cpu`, `cpu+cuda:0`: target + draft.  A
    model on the CPU beside an accelerator gets all cores but the first, which launches the other's work.

    Raises:
        PlacementError: Not one of these forms, or a core that is not there.  Whether an accelerator is there
            is not looked at here (`calibrate.machine.require_devices`).
    """
    if text == "split":
        placement = Placement(text, (0,), (1,))
    elif match := re.fullmatch(r"shared:(\d+(?:,\d+)*)", text):
        cores = tuple(int(core) for core in match[1].split(","))
        placement = Placement(text, cores, cores)
    elif match := re.fullmatch(rf"(?!cpu$|cpu\+cpu$)({_DEVICE})(?:\+({_DEVICE}))?", text):
        placement = _on_devices(text, match[1], match[2] or match[1])
    else:
        raise PlacementError(f"unknown placement {text!r}; use {FORMS}")
    try:
        check_cores(placement.target_cores)
        check_cores(placement.draft_cores)
    except PlacementError as error:
        raise PlacementError(f"placement {text!r}: {error}") from None
    return placement


def _on_devices(text: str, target: str, draft: str) -> Placement:
    """Cores for the processes of models of which one at least is on an accelerator."""
    first, *others = available_cores()
    rest = tuple(others) or (first,)
    if target == "cpu":
        return Placement(text, rest, (first,), target, draft)
    return Placement(text, (first,), rest if draft == "cpu" else rest[:1], target, draft)


def pair_specs(
    target: str,
    draft: str,
    placement: Placement,
    *,
    precision: Precision = "fp32",
    draft_backend: str = TORCH,
    trust_remote_code: bool = False,
) -> tuple[WorkerSpec, WorkerSpec]:
    """The two workers of a pair of models, called `target` and `draft`."""
    first = WorkerSpec(
        "target",
        target,
        placement.target_cores,
        precision,
        "target",
        device=placement.target_device,
        trust_remote_code=trust_remote_code,
    )
    second = replace(
        first,
        name="draft",
        model=draft,
        cores=placement.draft_cores,
        role="draft",
        device=placement.draft_device,
        backend=draft_backend,
    )
    return first, second


def has_random_weights(model: str) -> bool:
    """Whether a model is named by a `config.json` alone: random weights of that architecture are meant."""
    path = Path(model)
    return path.name.endswith(".json") and path.is_file()


def config_file(model: str) -> Path:
    """The configuration of a model's folder, or the file itself where that alone is given."""
    return Path(model) if has_random_weights(model) else Path(model) / "config.json"


def is_local_model(model: str) -> bool:
    """Whether `model` is a folder or a configuration, else a hub name.

    That is one only if it looks like `organisation/model` and nothing local of that kind exists; a mistyped
    folder then fails here rather than with a network error.

    Raises:
        ModelError: Neither a folder with a model nor a hub name.
    """
    folder = Path(model)
    if has_random_weights(model):
        return True
    if not folder.is_dir():
        if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", model) or folder.parent.is_dir():
            raise ModelError(f"model folder {model!r} does not exist")
        return False
    if not (folder / "config.json").is_file():
        raise ModelError(f"model folder {model!r} has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"model folder {model!r} has no safetensors file (no other format is loaded); "
            f"shape:{model} times its architecture with random weights"
        )
    return True


def local_vocabulary(model: str) -> int | None:
    """Vocabulary size that a model folder's configuration states; None for a hub name, or if it does not.

    Raises:
        ModelError: As `is_local_model`, or the configuration is not readable.
    """
    if not is_local_model(model):
        return None
    path = config_file(model)
    try:
        size = text_config(read_config(path), str(path)).get("vocab_size")
    except ShapeError as error:
        raise ModelError(str(error)) from None
    return size if isinstance(size, int) else None
