"""Architectures of decoder-only transformers: sizes from a config, published ones by name.  No weights.

The counts are of the Llama family's block (Llama, Vicuna, Qwen, DeepSeek-Coder): four attention matrices with
grouped keys and values, a gated MLP of three matrices, two norms, rotary positions.  A model of another kind
(experts, a plain MLP) is refused where its config tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardware_profiles.files import FileRefused, read_json

UNKNOWN_KINDS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Config entries of models whose tokens do not all go through the same weights."""


class ShapeError(ValueError):
    """An architecture cannot be found or counted; the message says what would do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder-only transformer.

    Attributes:
        hidden: Width of the residual stream.
        kv_heads: Heads of keys and values (fewer where heads are grouped).
        head_dim: Numbers per head.
        intermediate: Width of the MLP.
        vocabulary: Token ids.
        tied: Whether input and output embeddings are the same matrix.
        qkv_bias: Whether queries, keys and values have a bias (Qwen2.5).
        qk_norm: Whether queries and keys are normalised per head (Qwen3).
        source: Where the numbers come from.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    source: str = ""

    @property
    def query_width(self) -> int:
        """Numbers of a token's queries."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one block."""
        attention = 2 * self.hidden * self.query_width + 2 * self.hidden * self.kv_width
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Weights of the output matrix."""
        return self.vocabulary * self.hidden

    @property
    def matrix_weights(self) -> int:
        """Weights that every forward multiplies with: all blocks and the output matrix."""
        return self.layers * self.layer_weights + self.head_weights

    @property
    def parameters(self) -> int:
        """All weights: matrices, embeddings, norms and biases; tied embeddings once."""
        small = 2 * self.hidden
        small += 2 * self.head_dim if self.qk_norm else 0
        small += self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        embeddings = 0 if self.tied else self.head_weights
        return self.matrix_weights + embeddings + self.layers * small + self.hidden

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers in the KV cache per token, all blocks."""
        return 2 * self.layers * self.kv_width


def shape_of_config(config: Mapping[str, Any], *, name: str, source: str = "") -> Shape:
    """The shape that a transformers config describes (`config.json` as a dict).

    It has `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size`, `vocab_size`, and
    may have `num_key_value_heads`, `head_dim`, `tie_word_embeddings`, `model_type`.

    Raises:
        ShapeError: An entry is missing, or the model is of another kind.
    """
    config = text_config(config, name)
    if strange := [key for key in UNKNOWN_KINDS if config.get(key)]:
        raise ShapeError(f"{name}: {strange[0]} says that it has experts, whose weights are not counted here")
    needed = [entry for entry in _ENTRIES if entry != "num_key_value_heads"]
    if missing := [key for key in needed if not config.get(key)]:
        raise ShapeError(f"{name}: the config has no {', '.join(missing)}")
    for key in (*_ENTRIES, "head_dim"):
        value = config.get(key)
        if value is not None and (type(value) is not int or not 0 < value <= _LARGEST_SIZE):
            raise ShapeError(f"{name}: {key}: expected a whole number above 0, got {value!r:.80}")
    hidden, layers, heads, intermediate, vocabulary = (int(config[key]) for key in needed)
    kind = str(config.get("model_type", "llama"))
    return Shape(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=intermediate,
        vocabulary=vocabulary,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
        qk_norm=kind == "qwen3",
        source=source,
    )


def text_config(config: Any, name: str) -> Mapping[str, Any]:
    """The part of a `config.json` that is about text: of a model that also sees, its `text_config`.

    Raises:
        ShapeError: The config or that part is no object.
    """
    if not isinstance(config, Mapping):
        raise ShapeError(f"{name} is no config: it holds no object")
    inner = config.get("text_config", config)
    if not isinstance(inner, Mapping):
        raise ShapeError(f"{name}: text_config: expected an object, got {inner!r:.80}")
    return inner


def read_config(path: Path) -> dict[str, Any]:
    """A model's `config.json`.

    Raises:
        ShapeError: It cannot be read, or holds no object.
    """
    try:
        config = read_json(path)
    except FileRefused as error:
        raise ShapeError(f"{path} cannot be read as a config: {error}") from None
    text_config(config, str(path))
    return dict(config)


_LARGEST_SIZE = 10**9
_ENTRIES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def _config(*sizes: int, **more: Any) -> dict[str, Any]:
    return {**dict(zip(_ENTRIES, sizes, strict=True)), "model_type": "llama", **more}


_QWEN2 = {"model_type": "qwen2"}
_QWEN3 = {"model_type": "qwen3", "head_dim": 128}
_DEEPSEEK = "deepseek-ai/deepseek-coder"
_TIED = {"tie_word_embeddings": True}

CONFIGS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "llama-2-7b": (_config(4096, 32, 32, 32, 11008, 32000), "meta-llama/Llama-2-7b-hf"),
    "llama-2-70b": (_config(8192, 80, 64, 8, 28672, 32000), "meta-llama/Llama-2-70b-hf"),
    "llama-3.1-8b": (_config(4096, 32, 32, 8, 14336, 128256), "meta-llama/Llama-3.1-8B"),
    "llama-3.1-70b": (_config(8192, 80, 64, 8, 28672, 128256), "meta-llama/Llama-3.1-70B"),
    "llama-3.3-70b": (_config(8192, 80, 64, 8, 28672, 128256), "meta-llama/Llama-3.3-70B-Instruct"),
    "llama-3.2-1b": (_config(2048, 16, 32, 8, 8192, 128256, **_TIED), "meta-llama/Llama-3.2-1B"),
    "llama-3.2-3b": (
        _config(3072, 28, 24, 8, 8192, 128256, **_TIED, head_dim=128),
        "meta-llama/Llama-3.2-3B",
    ),
    "llama-68m": (_config(768, 2, 12, 12, 3072, 32000), "JackFram/llama-68m"),
    "vicuna-7b": (_config(4096, 32, 32, 32, 11008, 32000), "lmsys/vicuna-7b-v1.5"),
    "vicuna-68m": (_config(768, 2, 12, 12, 3072, 32000), "double7/vicuna-68m"),
    "qwen2.5-0.5b": (_config(896, 24, 14, 2, 4864, 151936, **_QWEN2, **_TIED), "Qwen/Qwen2.5-0.5B"),
    "qwen2.5-1.5b": (_config(1536, 28, 12, 2, 8960, 151936, **_QWEN2, **_TIED), "Qwen/Qwen2.5-1.5B"),
    "qwen2.5-7b": (_config(3584, 28, 28, 4, 18944, 152064, **_QWEN2), "Qwen/Qwen2.5-7B"),
    "qwen2.5-14b": (_config(5120, 48, 40, 8, 13824, 152064, **_QWEN2), "Qwen/Qwen2.5-14B"),
    "qwen2.5-32b": (_config(5120, 64, 40, 8, 27648, 152064, **_QWEN2), "Qwen/Qwen2.5-32B"),
    "qwen2.5-72b": (_config(8192, 80, 64, 8, 29568, 152064, **_QWEN2), "Qwen/Qwen2.5-72B"),
    "qwen3-0.6b": (_config(1024, 28, 16, 8, 3072, 151936, **_QWEN3, **_TIED), "Qwen/Qwen3-0.6B"),
    "qwen3-1.7b": (_config(2048, 28, 16, 8, 6144, 151936, **_QWEN3, **_TIED), "Qwen/Qwen3-1.7B"),
    "qwen3-4b": (_config(2560, 36, 32, 8, 9728, 151936, **_QWEN3, **_TIED), "Qwen/Qwen3-4B"),
    "qwen3-8b": (_config(4096, 36, 32, 8, 12288, 151936, **_QWEN3), "Qwen/Qwen3-8B"),
    "qwen3-14b": (_config(5120, 40, 40, 8, 17408, 151936, **_QWEN3), "Qwen/Qwen3-14B"),
    "qwen3-32b": (_config(5120, 64, 64, 8, 25600, 151936, **_QWEN3), "Qwen/Qwen3-32B"),
    "deepseek-coder-1.3b": (_config(2048, 24, 16, 16, 5504, 32256), f"{_DEEPSEEK}-1.3b-instruct"),
    "deepseek-coder-33b": (_config(7168, 62, 56, 8, 19200, 32256), f"{_DEEPSEEK}-33b-instruct"),
    "pair:x5": (_config(384, 5, 6, 6, 860, 2048, head_dim=64, **_TIED), "the shipped pair, widened"),
    "pair:x20": (_config(576, 10, 9, 9, 1720, 2048, head_dim=64, **_TIED), "the shipped pair, widened"),
    "pair:draft": (_config(160, 2, 5, 5, 416, 2048, head_dim=32, **_TIED), "the shipped pair"),
}
"""Published configs by name, and the repository on huggingface.co whose `config.json` has them."""


def find_shape(name_or_path: str) -> Shape:
    """An architecture by name, or from a `config.json` or the folder that holds one.

    Names are compared without regard to case; `-instruct` and `-chat` at the end make no difference.

    Raises:
        ShapeError: There is none; the message lists the names there are.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return shape_of_config(read_config(path), name=path.parent.name or path.stem, source=str(path.name))
    name = name_or_path.lower().rsplit("/", 1)[-1].removesuffix("-instruct").removesuffix("-chat")
    if name in CONFIGS:
        config, source = CONFIGS[name]
        return shape_of_config(config, name=name, source=source)
    raise ShapeError(
        f"no architecture {name_or_path!r}: give a config.json, a folder with one, or one of "
        + ", ".join(sorted(CONFIGS))
    )


def with_layers(shape: Shape, layers: int, *, name: str, source: str) -> Shape:
    """The same blocks, another number of them: a pruned draft, or an EAGLE head's single block."""
    return replace(shape, layers=layers, name=name, source=source)
