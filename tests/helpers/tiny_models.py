"""Tiny random models whose logits are spread out (the default initialisation makes all tokens alike)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.25,
}


def tiny_model(
    seed: int,
    *,
    vocabulary: int = VOCABULARY,
    layers: int = 2,
    attention: str = "sdpa",
    positions: int = 512,
    end: int | None = None,
) -> LlamaForCausalLM:
    """A random Llama; `end` ends its texts."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **SIZES | {"num_hidden_layers": layers},
        vocab_size=vocabulary,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=end,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def with_noise(model: LlamaForCausalLM, scale: float) -> LlamaForCausalLM:
    """A copy that mostly agrees: a draft whose acceptances are mixed."""
    draft = LlamaForCausalLM(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in draft.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator), alpha=scale * float(weights.std()))
    return draft
