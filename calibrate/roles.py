"""What a profile says of the two models: where each is, what runs it, how large it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibrate import checks
from calibrate.checks import ModelSize
from calibrate.job import Job
from calibrate.live.placement import TORCH, Mode, backend_label, own_precision
from calibrate.subprocesses import run_apart
from hardware_profiles.profile import DeviceInfo, Role, RoleName


def role_of(job: Job, role: RoleName) -> Role:
    """What a profile says of the target or the draft of a job: device, model, precision, backend, sizes."""
    target = role == "target"
    model, backend = (job.target, TORCH) if target else (job.draft, job.draft_backend)
    size = checks.model_size(model)
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
