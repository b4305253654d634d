"""Whether a GGUF file computes what the torch model of the same weights does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.errors import ModelError
from calibrate.live.llamacpp_context import LlamaContext

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "q8_0": 5e-2, "q4_0": 5e-1}
"""Root mean square of the difference to the torch model's logits, relative to that of the logits.  One of
two rotations mixed up makes it about 1."""
_LENGTH = 24
"""Tokens of the text that is compared."""


def check_context(context: LlamaContext, model: PreTrainedModel, precision: str) -> None:
    """Compare the logits of a random text; the context is empty before and afterwards.

    Args:
        context: Of the file.
        model: In single precision, on the CPU.
        precision: Of the file.

    Raises:
        ModelError: They differ by more than the precision explains.
    """
    config: Any = model.config.get_text_config()
    count = min(_LENGTH, getattr(config, "max_position_embeddings", None) or _LENGTH)
    ids = torch.randint(config.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    error = float("inf")
    if context.vocabulary == config.vocab_size:
        everything = np.ones(count, dtype=bool)
        found = context.decode(ids.numpy(), np.arange(count), [[0]] * count, everything)
        context.remove(0)
        with torch.inference_mode():
            expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        error = relative_error(torch.from_numpy(found), expected)
    if not error <= TOLERANCE[precision]:
        raise ModelError(
            f"the GGUF computes something else than its model at {precision!r}; use another precision, or "
            "the backend 'torch'"
        )


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Root mean square of a difference of logits [n, V], relative; what each row shares means nothing."""
    found, expected = (each - each.mean(dim=-1, keepdim=True) for each in (found, expected))
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
