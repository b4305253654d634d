"""The one way in for models, tokenizers and configurations, from a folder or the hub.

A repository may bring code of its own (`auto_map` in its configuration).  transformers, left to itself, asks
on standard input whether to run it; nothing here ever does, unless the user said `--trust-remote-code`.
Weights are read from safetensors only: other formats are pickles, which run code when they are opened.

This imports torch: only processes that run a model, or need its tokenizer, import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from calibrate.live.accelerators import torch_device
from calibrate.live.errors import ModelError
from calibrate.live.placement import Precision, has_random_weights, is_local_model

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
WEIGHTS_SEED = 0
"""Of random weights."""


def load_tokenizer(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model, a folder or a hub name.

    Raises:
        ModelError: It comes with code that it needs, and may not run it.
    """
    with _loading(os.fspath(name)):
        return AutoTokenizer.from_pretrained(os.fspath(name), trust_remote_code=trust_remote_code)


def load_config(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """The configuration of a model, or of a `config.json`; arguments and errors as `load_tokenizer`."""
    with _loading(os.fspath(name)):
        return AutoConfig.from_pretrained(os.fspath(name), trust_remote_code=trust_remote_code)


def untrained_model(
    config: Any, *, dtype: torch.dtype = torch.float32, trust_remote_code: bool = False
) -> PreTrainedModel:
    """A causal language model of a configuration, with weights as they come; errors as `load_tokenizer`."""
    with _loading(config.name_or_path):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code
        )
    return model


def load_model(
    name: str | os.PathLike[str],
    precision: Precision = "fp32",
    *,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A causal language model in evaluation mode, from safetensors.

    Args:
        name: Folder, or hub name; of a `config.json` alone, a model with random weights, made on its device
            and equal at every call there, whose forwards cost what those of a trained one cost.
        precision: Of the weights.
        device: Where to put it.
        trust_remote_code: Run code that comes with it.

    Raises:
        ModelError: It needs such code and may not run it, or is not there.
        PlacementError: The device is not here.
    """
    place, path, dtype = torch_device(device), os.fspath(name), DTYPES[precision]
    if has_random_weights(path):
        config = load_config(path, trust_remote_code=trust_remote_code)
        numbered = [] if place.type in {"cpu", "mps"} else [place]
        kept = torch.random.fork_rng(numbered, device_type=place.type if numbered else "cuda")
        with place, kept:
            torch.manual_seed(WEIGHTS_SEED)
            return untrained_model(config, dtype=dtype, trust_remote_code=trust_remote_code).eval()
    with _loading(path):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=is_local_model(path),  # never look beyond this machine for what is a folder
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    return model.to(place).eval()


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Without transformers' bars and remarks; its refusal to run code, in our words."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{name} brings code of its own (`auto_map` in its configuration), which is not run; "
            "--trust-remote-code runs it"
        ) from None
    finally:
        logging.set_verbosity(verbosity)


def model_end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """End tokens of a model: of its generation config, else of its config; empty if it names none."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(int(token) for token in ids)
    return ()
