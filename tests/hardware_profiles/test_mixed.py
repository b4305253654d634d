"""Steps that mix prompts with decoding rows, put together by hand from layers that were timed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_layers import attention_us, write_layers
from tiny_tables import CONFIG

from hardware_profiles.layers import Layers, Link
from hardware_profiles.mixed import MixedLayers
from hardware_profiles.networks import network_of_config

NETWORK = network_of_config(CONFIG, name="tiny")  # two layers
US = 1e-6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_layers(tmp_path)
    return tmp_path


def dense_us(tokens: int) -> float:
    return (2 + 2 * 6) * 10 * tokens  # embedding and last norm; two norms and four products in two layers


def test_one_chunk_beside_rows(folder: Path) -> None:
    layers = MixedLayers(folder, NETWORK)
    seconds = layers.step_s(3, 3, [(40, 8)], context=24, longest=24, answers=3)
    expected = dense_us(43) + 2 * attention_us(40, 8, 3, 24) + 300
    assert seconds == pytest.approx(expected * US)


def test_rows_alone_are_a_forward(folder: Path) -> None:
    layers = MixedLayers(folder, NETWORK)
    alone = layers.step_s(2, 2, [], context=24, longest=24, answers=2)
    assert alone == pytest.approx(Layers(folder, NETWORK).forward(2, 1, 23).seconds)


def test_further_chunks_add_what_they_take(folder: Path) -> None:
    layers = MixedLayers(folder, NETWORK)
    seconds = layers.step_s(0, 0, [(16, 0), (32, 16)], context=0, longest=0, answers=0)
    least = attention_us(16, 0, 0, 0)
    expected = dense_us(48) + 2 * (attention_us(16, 0, 0, 0) + attention_us(32, 16, 0, 0) - least)
    assert seconds == pytest.approx(expected * US)


def test_unequal_rows_take_longer_where_that_was_fitted(folder: Path) -> None:
    even = MixedLayers(folder, NETWORK).step_s(2, 2, [], context=20, longest=30, answers=0)
    (folder / "meta.yaml").write_text("skew_fit:\n  per_tp:\n    1:\n      alpha_default: 0.1\n    2:\n")
    skewed = MixedLayers(folder, NETWORK)
    assert skewed.skew == 0.1
    # A tenth of the way from 20 to 30, in two layers of two rows.
    more = skewed.step_s(2, 2, [], context=20, longest=30, answers=0) - even
    assert more == pytest.approx(2 * 0.1 * 2 * 10 * US)
    assert MixedLayers(folder, NETWORK, 2).skew == 0.0


def test_gpus_are_linked(folder: Path) -> None:
    one = MixedLayers(folder, NETWORK).step_s(1, 1, [], context=16, longest=16, answers=1)
    two = MixedLayers(folder, NETWORK, 2, Link(1e9, 5 * US))
    linked = two.step_s(1, 1, [], context=16, longest=16, answers=1)
    assert linked - one == pytest.approx(4 * (5 * US + 128e-9))


def test_another_grid_in_the_same_file_is_left_out(folder: Path) -> None:
    expected = MixedLayers(folder, NETWORK).step_s(1, 1, [(24, 8)], context=24, longest=24, answers=1)
    write_layers(folder, "24,48,1,24,99999")
    found = MixedLayers(folder, NETWORK).step_s(1, 1, [(24, 8)], context=24, longest=24, answers=1)
    assert found == expected


def test_a_long_prompt_is_read_in_chunks(folder: Path) -> None:
    parts = {part.name: part for part in Layers(folder, NETWORK).forward(1, 160, 0).parts}
    # 64, 64 after 64, 32 after 128: attention grows with the square of a prompt.
    expected = attention_us(64, 0, 0, 0) + attention_us(64, 64, 0, 0) + attention_us(32, 128, 0, 0)
    assert parts["attention"].seconds == pytest.approx(2 * expected * US)
