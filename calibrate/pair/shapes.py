"""The architectures of the pair, and saving its models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.pair.tokenizer import MAX_POSITION, VOCABULARY

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TARGET: Mapping[str, int] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "head_dim": 64,
}
DRAFT: Mapping[str, int] = {
    "hidden_size": 160,
    "intermediate_size": 416,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "head_dim": 32,
}


def llama_config(shape: Mapping[str, int], *, vocabulary: int = VOCABULARY) -> LlamaConfig:
    """A Llama configuration with the pair's conventions: tied embeddings, token 0 ends a text."""
    from transformers import LlamaConfig

    sizes: dict[str, Any] = dict(shape)
    return LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=MAX_POSITION,
        num_key_value_heads=shape["num_attention_heads"],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        **sizes,
    )


def new_model(shape: Mapping[str, int], *, seed: int) -> LlamaForCausalLM:
    """An untrained model of ``shape`` whose weights depend on ``seed`` only."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(llama_config(shape))


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write ``model`` rounded to fp16, with its tokenizer; ``model`` itself is left as it is."""
    import copy

    import torch

    rounded: Any = copy.deepcopy(model)
    rounded.to(torch.float16)
    rounded.config.dtype = torch.float16
    rounded.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
