"""Loading a model from a folder or the hub; only worker processes, recorders and tests import this."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from calibrate.live.messages import Tokens
from calibrate.live.placement import Precision

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "fp64": torch.float64,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def load_model(name: str, precision: Precision = "fp32", *, local: bool = True) -> PreTrainedModel:
    """A causal language model in evaluation mode, from safetensors, without code of its own.

    Args:
        name: Folder, or hub name if not `local`.
        precision: Of the weights.
        local: Never look beyond this machine.
    """
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=DTYPES[precision],
        local_files_only=local,
        use_safetensors=True,
        trust_remote_code=False,
    )
    return model.eval()


def model_end_tokens(model: PreTrainedModel) -> Tokens:
    """End tokens of a model: of its generation config, else of its config; empty if it names none."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(int(token) for token in ids)
    return ()
