"""A Llama as a GGUF file, the format of llama.cpp: what its CPU draft is made of.

The file holds the same weights, in single or half precision or quantised in blocks of 32; vectors (norms)
stay in single precision.  A quantised file's embedding and output matrices have eight bits at least, as
llama.cpp's own quantiser keeps the output matrix finer than the rest.

The vocabulary is a number: llama.cpp is given token ids and asked for logits, so that the file needs no
tokenizer (`tokenizer.ggml.model = no_vocab`).

Imports torch and gguf in functions only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.live.errors import ModelError
from calibrate.live.placement import GGUF_PRECISIONS
from hardware_profiles.files import atomic_write

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 32
"""Numbers that share a scale in `q8_0` and `q4_0`; a row of a matrix is a multiple of it."""
_ARCHITECTURE = "llama"
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""transformers' names of modules, and llama.cpp's."""


def import_gguf() -> Any:
    """The package; a `ModelError` where it is not installed."""
    try:
        import gguf
    except ImportError as error:
        raise ModelError(
            f"gguf is not installed ({error}); pip install gguf, or 'spectwin[llamacpp]' for what runs its "
            "files, too"
        ) from None
    return gguf


def export_gguf(model: PreTrainedModel, out: Path, precision: str) -> None:
    """Write a model as a GGUF file, whole or not at all.

    Args:
        model: A Llama without biases and with plain rotary positions, on the CPU.
        out: File; one that is there is replaced.
        precision: Of the matrices: `fp32`, `fp16`, `q8_0` (8.5 bits per weight), `q4_0` (4.5).

    Raises:
        ModelError: gguf is not installed, or the model is of another kind, or its rows are not whole blocks.
        ValueError: An unknown precision.
    """
    gguf = import_gguf()
    if precision not in GGUF_PRECISIONS:
        raise ValueError(f"unknown precision {precision!r} of a GGUF; known: {', '.join(GGUF_PRECISIONS)}")
    _check_architecture(model.config)
    with atomic_write(out, binary=True) as file:
        writer = gguf.GGUFWriter(file.name, _ARCHITECTURE)
        _describe(writer, gguf, model.config, precision)
        for name, weights in _tensors(model):
            kind = _kind(gguf, name, weights, precision)
            writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _check_architecture(config: Any) -> None:
    """Refuse a model that the file could not describe."""
    if config.model_type != "llama":
        raise ModelError(
            f"only models of type 'llama' are written as GGUF here, this one is {config.model_type!r}; "
            "use the backend 'torch'"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ModelError(
            f"rotary positions of type {kind!r} are not written as GGUF; use the backend 'torch'"
        )
    if config.hidden_act != "silu" or config.attention_bias or config.mlp_bias:
        raise ModelError(
            "a GGUF of type 'llama' has SiLU and no biases, this model differs; use the backend 'torch'"
        )


def _describe(writer: Any, gguf: Any, config: Any, precision: str) -> None:
    """Everything of the file but its tensors."""
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    kind = {"fp32": "ALL_F32", "fp16": "MOSTLY_F16"}.get(precision, f"MOSTLY_{precision.upper()}")
    writer.add_file_type(gguf.LlamaFileType[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """llama.cpp's names and the weights, in single precision; what is tied comes once."""
    config: Any = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        weights = parameter.detach().float().cpu().numpy()
        count = heads.get(module.rpartition(".")[2])
        if count is not None:
            weights = interleaved(weights, count)
        yield f"{_renamed(module)}.weight", weights


def _renamed(module: str) -> str:
    if module in _NAMES:
        return _NAMES[module]
    prefix, layer, rest = module.removeprefix("model.").split(".", 2)
    if prefix != "layers" or rest not in _NAMES:
        raise ModelError(f"a GGUF of type 'llama' has no place for {module!r}; use the backend 'torch'")
    return f"blk.{layer}.{_NAMES[rest]}"


def interleaved(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """[heads * d, H] query or key weights in the order of llama.cpp's rotation.

    transformers rotates number i of a head with number i + d/2; llama.cpp, for this architecture, number 2i
    with number 2i + 1.  Queries and keys are reordered alike, so that their products stay what they were.
    """
    rows, width = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, width)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, width))


def _kind(gguf: Any, name: str, weights: NDArray[np.float32], precision: str) -> Any:
    """How a tensor is stored."""
    kinds = gguf.GGMLQuantizationType
    if weights.ndim == 1 or precision == "fp32":
        return kinds.F32
    if precision == "fp16":
        return kinds.F16
    if weights.shape[1] % BLOCK:
        raise ModelError(
            f"{name} has rows of {weights.shape[1]} numbers, which do not divide into blocks of {BLOCK}: "
            f"this model cannot be quantised to {precision}; use llamacpp:fp16"
        )
    outer = name in {"token_embd.weight", "output.weight"}
    return kinds.Q8_0 if precision == "q8_0" or outer else kinds.Q4_0
