"""Loading a model from a folder or the hub; only worker processes, recorders and tests import this."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from calibrate.live.accelerators import torch_device
from calibrate.live.messages import Tokens
from calibrate.live.placement import (
    TORCH,
    Precision,
    WorkerSpec,
    has_random_weights,
    is_local_model,
    own_precision,
)
from calibrate.live.runner import ModelRunner

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


WEIGHTS_SEED = 0
"""Of random weights."""


def load_model(
    name: str, precision: Precision = "fp32", *, local: bool = True, device: str = "cpu"
) -> PreTrainedModel:
    """A causal language model in evaluation mode, from safetensors, without code of its own.

    Args:
        name: Folder, or hub name if not `local`; of a `config.json` alone, a model with random weights.
        precision: Of the weights.
        local: Never look beyond this machine.
        device: Where to put it.

    Raises:
        PlacementError: The device is not here.
    """
    place = torch_device(device)
    if has_random_weights(name):
        return random_model(name, precision, place)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=DTYPES[precision],
        local_files_only=local,
        use_safetensors=True,
        trust_remote_code=False,
    )
    return model.to(place).eval()


def random_model(config: str, precision: Precision, device: torch.device) -> PreTrainedModel:
    """A model of an architecture with random weights, made on its device; equal at every call on that device.

    Its forwards cost what those of a trained one cost; what it says means nothing.

    Args:
        config: Path of a `config.json`.
        precision: Of the weights.
        device: Where.
    """
    numbered = [] if device.type in {"cpu", "mps"} else [device]
    kept = torch.random.fork_rng(numbered, device_type=device.type if numbered else "cuda")
    with device, kept:
        torch.manual_seed(WEIGHTS_SEED)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(config), dtype=DTYPES[precision]
        )
    return model.eval()


def open_runner(spec: WorkerSpec) -> ModelRunner:
    """The model of a worker, ready for forwards by its backend on its device.

    Raises:
        ModelError: The backend is not installed, or cannot run the model.
        PlacementError: The device is not here.
    """
    local = is_local_model(spec.model)
    if spec.backend == TORCH:
        model = load_model(spec.model, spec.precision, local=local, device=spec.device)
        return ModelRunner(model, slots=spec.slots, capacity=spec.capacity, mode=spec.mode)
    precision = own_precision(spec.backend)
    runner = _openvino_runner(spec, local) if precision is None else _llamacpp_runner(spec, precision, local)
    runner.model.to("meta")  # the backend has weights of its own
    return runner


def _openvino_runner(spec: WorkerSpec, local: bool) -> ModelRunner:
    from calibrate.live.openvino_graph import graph_folder
    from calibrate.live.openvino_runner import OpenvinoRunner

    return OpenvinoRunner(
        load_model(spec.model, local=local),
        spec.backend.partition(":")[2],
        slots=spec.slots,
        capacity=spec.capacity,
        precision=spec.precision,
        threads=len(spec.cores),
        folder=graph_folder(spec.model) if local else None,
    )


def _llamacpp_runner(spec: WorkerSpec, precision: str, local: bool) -> ModelRunner:
    """From a GGUF in the user's cache, made where it is not there; of a hub's model, made each time."""
    from calibrate.live.llamacpp_files import gguf_file, import_llamacpp
    from calibrate.live.llamacpp_runner import LlamacppRunner
    from calibrate.pair.gguf import export_gguf

    import_llamacpp()  # refused before anything is written
    model = load_model(spec.model, local=local)
    with tempfile.TemporaryDirectory() as temporary:
        file = gguf_file(spec.model, precision) if local else Path(temporary) / "model.gguf"
        if not file.is_file():
            export_gguf(model, file, precision)
        return LlamacppRunner(
            model,
            file,
            precision,
            slots=spec.slots,
            capacity=spec.capacity,
            threads=len(spec.cores),
        )


def model_end_tokens(model: PreTrainedModel) -> Tokens:
    """End tokens of a model: of its generation config, else of its config; empty if it names none."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(int(token) for token in ids)
    return ()
