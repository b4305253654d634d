"""Architectures: counts by hand and against what is published, configs that cannot be counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hardware_profiles.shapes import CONFIGS, ShapeError, find_shape, shape_of_config, with_layers

SMALL: dict[str, Any] = {
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "tie_word_embeddings": True,
}


def test_a_small_config_by_hand() -> None:
    shape = shape_of_config(SMALL, name="small")
    # head_dim 4 / 2 = 2, queries 4 wide, keys 2 wide.  A block: queries 4*4, output 4*4, keys and values
    # 2 * 4*2, MLP 3 * 4*8: 16 + 16 + 16 + 96 = 144.
    assert (shape.head_dim, shape.query_width, shape.kv_width) == (2, 4, 2)
    assert shape.layer_weights == 144
    assert shape.head_weights == 10 * 4
    assert shape.matrix_weights == 2 * 144 + 40
    # Tied: the embeddings are the output matrix.  Norms: two of 4 per block and one at the end.
    assert shape.parameters == 2 * 144 + 40 + 2 * 8 + 4
    assert shape.kv_numbers_per_token == 2 * 2 * 2


def test_embeddings_of_their_own_biases_and_head_norms_count() -> None:
    tied = shape_of_config(SMALL, name="small").parameters
    untied = shape_of_config({**SMALL, "tie_word_embeddings": False}, name="small").parameters
    assert untied - tied == 40
    # Qwen2: biases of queries (4), keys (2) and values (2) in both blocks.
    assert shape_of_config({**SMALL, "model_type": "qwen2"}, name="s").parameters - tied == 2 * 8
    # Qwen3: one norm per head's width (2) for queries and one for keys in both blocks.
    assert shape_of_config({**SMALL, "model_type": "qwen3"}, name="s").parameters - tied == 2 * 4


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Totals that the model cards state (safetensors metadata).
        ("llama-2-7b", 6_738_415_616),
        ("vicuna-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-68m", 68_030_208),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("deepseek-coder-33b", 33_342_991_360),
        # Those of the shipped pair's profiles.
        ("pair:x5", 8_693_376),
        ("pair:x20", 44_184_384),
        ("pair:draft", 932_640),
    ],
)
def test_published_counts(name: str, parameters: int) -> None:
    assert find_shape(name).parameters == parameters


def test_names_are_found_however_they_are_written() -> None:
    assert find_shape("Llama-3.1-70B-Instruct") == find_shape("meta-llama/Llama-3.1-70B")
    assert find_shape("Llama-2-7b-chat").layers == 32


def test_every_known_config_has_a_source() -> None:
    assert all(find_shape(name).source for name in CONFIGS)


def test_a_config_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert find_shape(str(tmp_path)) == find_shape(str(tmp_path / "config.json"))
    assert find_shape(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_local_experts": 8}, "experts"),
    ],
)
def test_configs_that_cannot_be_counted(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        shape_of_config({**SMALL, **change}, name="small")


@pytest.mark.parametrize("text", ["[1]", "not json"])
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ShapeError, match="config"):
        find_shape(str(tmp_path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ShapeError, match="qwen3-32b"):
        find_shape("qwen9")


def test_other_numbers_of_blocks() -> None:
    whole = find_shape("qwen2.5-14b")
    head = with_layers(whole, 1, name="head", source="one block")
    assert whole.matrix_weights - head.matrix_weights == 47 * whole.layer_weights
