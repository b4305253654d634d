"""An embedding computes the same function; one with a mistake in it is caught by the same check."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from calibrate.live.loading import load_model, load_tokenizer
from calibrate.pair import embed as embedding
from calibrate.pair.corpus import encode
from calibrate.pair.embed import EMBEDDINGS, Shape, embed, ensure_embedded, real_layers
from calibrate.prompts import load_prompts
from calibrate.shipped import DATA, PROMPTS

MAX_DIFFERENCE = 5e-5


def a_llama(**changes: Any) -> Any:
    """A random Llama: 4 heads of 8, 3 layers, norms that are not all one."""
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(1)
    model: Any = LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return model


def difference(one: Any, other: Any, tokens: torch.Tensor) -> float:
    """The largest difference of logits on ``tokens``; the argmax has to agree everywhere."""
    with torch.inference_mode():
        a, b = one(tokens).logits, other(tokens).logits
    if not torch.equal(a.argmax(-1), b.argmax(-1)):
        return float("inf")
    return float((a - b).abs().max())


TOKENS = torch.arange(40).reshape(2, 20)


@pytest.mark.parametrize("shape", ["2x1", "1x2", "3x2", "3/2x1", "5/4x5/3x2", "7/4x4/3x5/4"])
def test_logits_are_those_of_the_small_model(shape: str) -> None:
    model = a_llama()
    larger = embed(model, Shape.parse(shape))
    assert sum(p.numel() for p in larger.parameters()) > sum(p.numel() for p in model.parameters())
    assert difference(model, larger, TOKENS) < MAX_DIFFERENCE


@pytest.mark.parametrize("changes", [{"num_key_value_heads": 2}, {"tie_word_embeddings": False}])
def test_other_llamas_are_embedded_too(changes: dict[str, Any]) -> None:
    model = a_llama(**changes)
    assert difference(model, embed(model, Shape.parse("2x2")), TOKENS) < MAX_DIFFERENCE


def forget_the_norm(model: Any) -> None:
    """The mistake of not undoing RMSNorm's larger mean."""
    model.model.layers[0].input_layernorm.weight.mul_(2**0.5)


def let_noise_into_the_stream(model: Any) -> None:
    """The mistake of leaving an extra head's output unmasked."""
    model.model.layers[0].self_attn.o_proj.weight[:32, 32:].fill_(0.02)


def let_an_identity_layer_speak(model: Any) -> None:
    """The mistake of an extra layer that adds something."""
    model.model.layers[0].mlp.down_proj.weight[0, 0] = 0.5


@pytest.mark.parametrize(
    ("shape", "mistake"),
    [
        ("2x1", forget_the_norm),
        ("2x1", let_noise_into_the_stream),
        ("1x3", let_an_identity_layer_speak),
    ],
)
def test_a_planted_mistake_is_caught(shape: str, mistake: Callable[[Any], None]) -> None:
    model = a_llama()
    larger = embed(model, Shape.parse(shape))
    with torch.no_grad():
        mistake(larger)
    assert difference(model, larger, TOKENS) > 100 * MAX_DIFFERENCE


def test_a_fraction_of_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="heads 4 times 9/8 is not an integer"):
        embed(a_llama(), Shape(width=Fraction(9, 8)))


@pytest.mark.parametrize("text", ["", "2", "2x", "axb", "1/2x1", "2x2x2x2", "1/0x2"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ValueError, match="is no shape"):
        Shape.parse(text)


def test_a_shape_reads_what_it_prints() -> None:
    shape = Shape(Fraction(3, 2), Fraction(2), Fraction(5, 4))
    assert Shape.parse(str(shape)) == shape


def test_real_layers_stand_evenly() -> None:
    assert real_layers(5, 5) == [0, 1, 2, 3, 4]
    assert real_layers(5, 10) == [1, 3, 5, 7, 9]
    assert real_layers(2, 6) == [1, 4]


@pytest.mark.parametrize("name", sorted(EMBEDDINGS))
def test_the_shipped_target_survives_its_named_embeddings(name: str) -> None:
    target, tokenizer = load_model(DATA / "target"), load_tokenizer(DATA / "target")
    larger = embed(target, EMBEDDINGS[name])
    for prompt in load_prompts(PROMPTS["heldout"])[::16]:
        tokens = torch.tensor([encode(tokenizer, prompt.text)])
        assert difference(target, larger, tokens) < MAX_DIFFERENCE


@pytest.fixture
def tiny_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random Llama in place of the shipped target."""
    folder = tmp_path / "data" / "target"
    a_llama().save_pretrained(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    monkeypatch.setattr(embedding, "DATA", tmp_path / "data")
    return folder


def test_an_embedding_is_built_once(tiny_target: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = ensure_embedded("x5", cache)
    built = (first / "model.safetensors").stat().st_mtime_ns
    assert ensure_embedded("x5", cache) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == built
    assert [path.name for path in cache.iterdir()] == [first.name]  # nothing half-built is left
    assert load_model(first).config.embedding["width"] == str(EMBEDDINGS["x5"].width)
    assert difference(load_model(tiny_target), load_model(first), TOKENS) < MAX_DIFFERENCE


def test_new_weights_are_embedded_anew(tiny_target: Path, tmp_path: Path) -> None:
    before = ensure_embedded("x5", tmp_path / "cache")
    a_llama(rms_norm_eps=1e-5).save_pretrained(str(tiny_target))
    assert ensure_embedded("x5", tmp_path / "cache") != before


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x5, x20"):
        ensure_embedded("x7", tmp_path)
