"""What a `config.json` says of a network that kernel tables can price: dense or with experts, windows,
precision.

`Shape` counts what every token goes through; this adds experts, sliding windows, quantised weights and EAGLE
heads, and refuses what no table here is of: latent attention (MLA), linear attention, state-space layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardware_profiles.kernels import BYTES, find_tables
from hardware_profiles.shapes import (
    CONFIGS,
    UNKNOWN_KINDS,
    Shape,
    ShapeError,
    find_shape,
    read_config,
    shape_of_config,
    text_config,
)

REFUSED: Mapping[str, str] = {
    "kv_lora_rank": "latent attention (MLA)",
    "linear_num_key_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "mamba_num_heads": "state-space layers",
    "ssm_state_size": "state-space layers",
    "hybrid_override_pattern": "layers of several kinds",
    "block_configs": "layers of several kinds",
    "index_topk": "sparse attention",
    "hybrid_layer_pattern": "layers of several kinds",
    "intermediate_size_mlp": "layers of several kinds",
    "enable_moe_block": "experts beside a plain MLP",
}
"""Config entries of networks that are not composed, and what they stand for."""
MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
    },
}
"""Published configs of networks with experts, which have no `Shape`, by name."""
TOPK = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""Config entries of the experts that a token goes through."""
HEAD_KINDS = ("eagle3", "eagle", "mtp", "dflash")
"""Draft heads that follow from their target."""
EAGLE_VOCABULARY = 32_000
"""Of the draft heads that EAGLE-3's authors publish."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer.

    Attributes:
        count: How many there are.
        topk: Of them each token goes through.
        width: Intermediate size of one.
        shared_width: Of the expert that every token goes through; 0: none.
        dense_layers: Layers that have a plain MLP in their place.
    """

    count: int
    topk: int
    width: int
    shared_width: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """A decoder-only transformer, as far as its kernels' times go.

    Attributes:
        windows: Tokens that each layer of a kind looks back on, and how many such layers there are; 0: all.
        dtype: Of matrix products, as the tables call it.
        moe_dtype: Of the experts'.
        fused_hidden: Vectors of the hidden size that a draft head reads at once (1 or 2 for EAGLE and MTP, 3
            for EAGLE-3); 0: it is no head.
    """

    shape: Shape
    experts: Experts | None = None
    windows: tuple[tuple[int, int], ...] = ()
    dtype: str = "bfloat16"
    moe_dtype: str = "bfloat16"
    fused_hidden: int = 0

    @property
    def parameters(self) -> int:
        """All weights."""
        shape = self.shape
        total = shape.parameters + self.fused_hidden * shape.hidden**2
        if self.experts is not None:
            with_experts = shape.layers - self.experts.dense_layers
            each = self.experts.count * self.experts.width + self.experts.shared_width - shape.intermediate
            total += with_experts * (3 * shape.hidden * each + shape.hidden * self.experts.count)
        return total

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights: embeddings and the output matrix in 16 bits, the rest as stated."""
        shape = self.shape
        outer = (1 if shape.tied else 2) * shape.head_weights
        moe = 0
        if self.experts is not None:
            moe = (shape.layers - self.experts.dense_layers) * 3 * shape.hidden * self.experts.count
            moe *= self.experts.width
        inner = self.parameters - outer - moe
        return round(2 * outer + BYTES[self.dtype] * inner + BYTES[self.moe_dtype] * moe)

    @property
    def layer_windows(self) -> tuple[tuple[int, int], ...]:
        """(window, layers), all layers in it."""
        return self.windows or ((0, self.shape.layers),)


def network_of_config(config: Mapping[str, Any], *, name: str, precision: str | None = None) -> Network:
    """The network that a transformers config describes.

    Raises:
        ShapeError: It is of a kind that is not composed, or an entry is missing.
    """
    text = text_config(config, name)
    for key, kind in REFUSED.items():
        if text.get(key):
            raise ShapeError(f"{name}: {key} says {kind}, which is not composed here")
    kinds = [kind for kind in _layer_kinds(text, name) if "attention" not in kind or "linear" in kind]
    if kinds:
        raise ShapeError(f"{name}: layers of kind {kinds[0]!r} are not composed here")
    experts = _experts(text, name)
    plain = {k: v for k, v in text.items() if k not in UNKNOWN_KINDS}
    if not plain.get("intermediate_size") and experts is not None:
        plain["intermediate_size"] = experts.width
    if text.get("draft_vocab_size"):
        plain["vocab_size"] = text["draft_vocab_size"]
    shape = shape_of_config(plain, name=name)
    dtype = precision or _precision(config, text, name)
    moe_dtype = {"nvfp4": "nvfp4"}.get(dtype, dtype)
    method = _quantisation(config, text).get("quant_method")
    if method == "mxfp4" and precision is None:  # gpt-oss: experts alone
        dtype, moe_dtype = "bfloat16", "w4a16_mxfp4"
    fused = 0
    if "eagle" in str(text.get("architectures")).lower():
        fused = 3 if text.get("draft_vocab_size") else 1
    return Network(shape, experts, _windows(text, shape.layers, name), dtype, moe_dtype, fused)


def _experts(text: Mapping[str, Any], name: str) -> Experts | None:
    count = next((_size(text, key, name) for key in UNKNOWN_KINDS if text.get(key)), 0)
    if not count:
        return None
    topk = next((_size(text, key, name) for key in TOPK if text.get(key)), 0)
    width = next(
        (_size(text, key, name) for key in ("moe_intermediate_size", "intermediate_size") if text.get(key)), 0
    )
    if not topk or not width:
        raise ShapeError(f"{name}: the config has experts, but not num_experts_per_tok and their size")
    layers = _size(text, "num_hidden_layers", name)
    plain = text.get("mlp_only_layers")
    dense = len(plain) if isinstance(plain, list) else _size(text, "first_k_dense_replace", name)
    if (step := _size(text, "interleave_moe_layer_step", name)) > 1:
        dense = layers - layers // step
    shared = (
        _size(text, "shared_expert_intermediate_size", name) or _size(text, "n_shared_experts", name) * width
    )
    return Experts(count, topk, width, shared, min(dense, layers))


def _size(text: Mapping[str, Any], key: str, name: str) -> int:
    """A count of the config; 0 where it has none.

    Raises:
        ShapeError: It is no whole number from 0 on.
    """
    value = text.get(key) or 0
    if type(value) is not int or not 0 <= value < 10**9:
        raise ShapeError(f"{name}: {key}: expected a whole number from 0 on, got {value!r:.80}")
    return value


def _windows(text: Mapping[str, Any], layers: int, name: str) -> tuple[tuple[int, int], ...]:
    if text.get("use_sliding_window") is False or not (window := _size(text, "sliding_window", name)):
        return ()
    kinds, sliding = _layer_kinds(text, name), layers
    if kinds:
        sliding = sum("sliding" in kind or "chunked" in kind for kind in kinds)
        if len(kinds) != layers:
            raise ShapeError(f"{name}: layer_types: expected {layers} of them, got {len(kinds)}")
    elif (pattern := _size(text, "sliding_window_pattern", name)) > 1:
        sliding = layers - layers // pattern
    return tuple(part for part in ((window, sliding), (0, layers - sliding)) if part[1])


def _layer_kinds(text: Mapping[str, Any], name: str) -> list[str]:
    kinds = text.get("layer_types") or []
    if not isinstance(kinds, list):
        raise ShapeError(f"{name}: layer_types: expected a list, got {kinds!r:.80}")
    return [str(kind) for kind in kinds]


def _quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("quantization_config") or text.get("quantization_config") or {}
    return found if isinstance(found, Mapping) else {}


def _precision(config: Mapping[str, Any], text: Mapping[str, Any], name: str) -> str:
    found = _quantisation(config, text)
    method = str(found.get("quant_method") or "").lower()
    if not method or method == "mxfp4":
        return "bfloat16"
    if method == "fp8":
        return "fp8_block" if found.get("weight_block_size") else "fp8"
    if method in ("modelopt", "compressed-tensors"):
        words = str(found).lower()
        for word in ("nvfp4", "fp8"):
            if word in words or (word == "fp8" and "'num_bits': 8" in words and "'type': 'float'" in words):
                return word
    raise ShapeError(
        f"{name}: quantisation {method!r} is not composed; give --precision, one of {', '.join(BYTES)}"
    )


def find_network(name_or_path: str, *, tables: Path | None = None, precision: str | None = None) -> Network:
    """A network by name, or from a `config.json` or the folder that holds one.

    Names are those of `hardware_profiles.shapes`, those of the tables' own `model_configs` (`Qwen3-30B-A3B`),
    and `eagle3:NAME`, `eagle:NAME`, `mtp:NAME`, `dflash:NAME`, the heads of a target.

    Raises:
        ShapeError: There is none, or it is of a kind that is not composed.
    """
    kind, _, rest = name_or_path.partition(":")
    if rest and kind.lower() in HEAD_KINDS:
        return draft_head(find_network(rest, tables=tables), kind.lower())
    path = Path(name_or_path)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        name = path.parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
        return _read(path, name or path.stem, precision)
    short = name_or_path.lower().rsplit("/", 1)[-1].removesuffix("-instruct").removesuffix("-chat")
    if short in CONFIGS:
        return network_of_config(CONFIGS[short][0], name=short, precision=precision)
    if short in MIXTURES:
        return network_of_config(MIXTURES[short], name=short, precision=precision)
    configs = {}
    try:
        folder = find_tables(tables).parent / "model_configs"
        configs = {_short(path): path for path in folder.glob("*_config.json") if "quant" not in path.name}
    except ValueError:
        pass  # only the names above
    for wanted in (short, f"meta-{short}", f"{short}-instruct"):
        if wanted in configs:
            return _read(configs[wanted], short, precision)
    try:
        find_shape(name_or_path)
    except ShapeError as error:
        more = f"; the tables have {', '.join(sorted(configs))}" if configs else ""
        raise ShapeError(f"{error}{more}") from None
    raise AssertionError  # a name that CONFIGS lacks is no shape


def _read(path: Path, name: str, precision: str | None) -> Network:
    """A config with what stands beside it of its quantisation (`hf_quant_config.json`)."""
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if precision is None and beside.is_file():
        said = read_config(beside).get("quantization")
        algorithm = str(said.get("quant_algo") if isinstance(said, Mapping) else said).lower()
        if algorithm not in BYTES:
            raise ShapeError(f"{beside}: quant_algo {algorithm!r} is not composed; give --precision")
        precision = algorithm
    return network_of_config(read_config(path), name=name, precision=precision)


def _short(path: Path) -> str:
    return path.name.partition("--")[2].removesuffix("_config.json").lower()


def draft_head(target: Network, kind: str = "eagle3") -> Network:
    """A draft head as published for a target, one of `HEAD_KINDS`: one layer of its sizes, DFlash's five.

    EAGLE-3's is dense, has a reduced vocabulary and reads three hidden states; EAGLE's is dense, has the
    target's whole vocabulary and reads a token's embedding beside one state; so does an MTP layer, which is a
    block of the target's own kind: its experts, its precision.  DFlash's layers are dense, have the whole
    vocabulary and read five hidden states.
    """
    name = f"{kind}-{target.shape.name}"
    if kind == "mtp":
        experts = None if target.experts is None else replace(target.experts, dense_layers=0)
        shape = replace(target.shape, layers=1, name=name)
        return replace(target, shape=shape, experts=experts, windows=(), fused_hidden=2)
    shape = replace(target.shape, layers=1, tied=False, name=name)
    if kind == "dflash":
        return Network(replace(shape, layers=5), fused_hidden=5)
    if kind == "eagle":
        return Network(shape, fused_hidden=2)
    return Network(replace(shape, vocabulary=EAGLE_VOCABULARY), fused_hidden=3)
