"""GGUF files, read back by the package that defines them; llama.cpp itself is not needed here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from tiny_models import tiny_model
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from calibrate.live.backends.gguf import export_gguf, interleaved
from calibrate.live.errors import ModelError
from calibrate.pair.cli import pair
from calibrate.shipped import DATA


def matrices(file: Path) -> dict[str, NDArray[np.float32]]:
    """Tensors by name, in single precision."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        for tensor in gguf.GGUFReader(file).tensors
    }


def kinds(file: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def test_weights_and_sizes_are_the_models(tmp_path: Path) -> None:
    model, file = tiny_model(1), tmp_path / "folder" / "model.gguf"
    export_gguf(model, file, "fp32")
    found, weights = matrices(file), {name: w.detach().numpy() for name, w in model.named_parameters()}
    assert len(found) == len(weights) == 2 * 9 + 3
    for mine, theirs in {
        "token_embd": "model.embed_tokens",
        "output": "lm_head",
        "output_norm": "model.norm",
        "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
        "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    }.items():
        assert np.array_equal(found[f"{mine}.weight"], weights[f"{theirs}.weight"])
    key = weights["model.layers.1.self_attn.k_proj.weight"]
    assert np.array_equal(found["blk.1.attn_k.weight"], interleaved(key, 2))
    fields = gguf.GGUFReader(file).fields
    told = {name: field.contents() for name, field in fields.items() if name.startswith("llama.")}
    assert told == {
        "llama.context_length": 512,
        "llama.embedding_length": 32,
        "llama.block_count": 2,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 8,
        "llama.attention.value_length": 8,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "llama.rope.dimension_count": 8,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": 64,
    }
    assert fields["tokenizer.ggml.model"].contents() == "no_vocab"
    assert [path.name for path in file.parent.iterdir()] == ["model.gguf"]


def test_interleaving_by_hand() -> None:
    """Two heads of four: number i of a half goes to 2i of its head, that of the other half to 2i + 1."""
    rows = np.arange(8, dtype=np.float32)[:, None]
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_products_of_queries_and_keys_stay_what_they_were() -> None:
    """transformers rotates halves, llama.cpp neighbours; of the reordered weights it is the same product."""
    random, width, position = np.random.default_rng(2), 8, 5
    query, key = random.normal(size=(2, width, width)).astype(np.float32)
    state = random.normal(size=width).astype(np.float32)
    angles = position * 10000.0 ** (-np.arange(0, width, 2) / width)

    def halves(vector: NDArray[Any]) -> NDArray[Any]:
        one, other = np.split(vector, 2)
        return np.concatenate(
            [one * np.cos(angles) - other * np.sin(angles), other * np.cos(angles) + one * np.sin(angles)]
        )

    def neighbours(vector: NDArray[Any]) -> NDArray[Any]:
        one, other = vector[::2], vector[1::2]
        return np.stack(
            [one * np.cos(angles) - other * np.sin(angles), other * np.cos(angles) + one * np.sin(angles)],
            axis=1,
        ).ravel()

    expected = halves(query @ state) @ (key @ state)
    assert neighbours(interleaved(query, 1) @ state) @ (interleaved(key, 1) @ state) == pytest.approx(
        expected
    )
    assert neighbours(query @ state) @ (key @ state) != pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(("precision", "bits"), [("q8_0", 8), ("q4_0", 4)])
def test_blocks_are_rounded_to_their_own_scale(tmp_path: Path, precision: str, bits: int) -> None:
    """No number is further off than one step of its block: the largest of 32, by 2^(bits - 1)."""
    model, file = tiny_model(1), tmp_path / "model.gguf"
    export_gguf(model, file, precision)
    found, stored = matrices(file), kinds(file)
    quantised = {name for name, kind in stored.items() if kind == precision.upper()}
    outer = {"token_embd.weight", "output.weight"}
    assert {stored[name] for name in outer} == {"Q8_0"}
    assert {kind for name, kind in stored.items() if "norm" in name} == {"F32"}
    assert quantised | outer == {name for name in stored if "norm" not in name}
    exact = model.model.layers[0].mlp.up_proj.weight.detach().numpy()
    blocks = exact.reshape(-1, 32)
    step = np.abs(blocks).max(axis=1, keepdims=True) / 2 ** (bits - 1)
    error = np.abs(found["blk.0.ffn_up.weight"].reshape(-1, 32) - blocks)
    assert (error <= 1.02 * step).all() and error.max() > 0.2 * step.min()


def test_half_precision_is_the_shipped_weights_own(tmp_path: Path) -> None:
    """The shipped draft is kept in half precision: nothing is lost, and what is tied comes once."""
    file = tmp_path / "draft.gguf"
    result = CliRunner().invoke(pair, ["gguf", "pair:draft", "--out", str(file), "--type", "fp16"])
    assert result.exit_code == 0, result.output
    assert f"{file.stat().st_size} bytes" in result.output
    model = LlamaForCausalLM.from_pretrained(DATA / "draft", dtype="float32")
    found = matrices(file)
    assert "output.weight" not in found
    assert np.array_equal(found["token_embd.weight"], model.model.embed_tokens.weight.detach().numpy())


def test_other_models_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    sizes: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for model, message in (
        (GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)), "'gpt_neox'"),
        (LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True)), "no biases"),
        (LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=scaled)), "'linear'"),
    ):
        with pytest.raises(ModelError, match=rf"{message}.*backend 'torch'"):
            export_gguf(model, file, "fp16")
    odd = LlamaForCausalLM(LlamaConfig(**sizes))
    with pytest.raises(ModelError, match=r"ffn_down.weight has rows of 48.*llamacpp:fp16"):
        export_gguf(odd, file, "q4_0")
    with pytest.raises(ValueError, match="unknown precision 'q5'"):
        export_gguf(odd, file, "q5")
    assert list(tmp_path.iterdir()) == []
    export_gguf(odd, file, "fp16")
    assert list(tmp_path.iterdir()) == [file]


def test_without_the_package_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    result = CliRunner().invoke(pair, ["gguf", "pair:draft", "--out", str(tmp_path / "draft.gguf")])
    assert result.exit_code == 2 and "pip install gguf" in result.output
    assert list(tmp_path.iterdir()) == []
