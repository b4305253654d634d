"""Layer times of somebody's profile, put together by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_tables import CONFIG, write_layers

from hardware_profiles.layers import Layers, LayersError, Link, forwards_profile, layers_profile
from hardware_profiles.networks import network_of_config
from hardware_profiles.surface import LatencySurface

NETWORK = network_of_config(CONFIG, name="tiny")  # two layers, two heads of queries to one of keys
US = 1e-6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_layers(tmp_path)


def test_a_forward_is_its_layers(folder: Path) -> None:
    found = Layers(folder, NETWORK).forward(2, 1, 23)
    # 2 tokens: 20 us a call; embedding and last norm once, two norms and four products in each of two layers.
    # Attention of two rows at context 24: 2 + 24 us in each layer. The output matrix for two sequences.
    assert found.seconds == pytest.approx((2 * 20 + 2 * 6 * 20 + 2 * 26 + 200) * US)
    assert {part.name: part.how for part in found.parts}["attention"] == "interpolated"


def test_a_wide_verification_is_a_chunk_and_a_hole_is_a_line(folder: Path) -> None:
    parts = {part.name: part for part in Layers(folder, NETWORK).forward(2, 64, 16, head=False).parts}
    # 64 tokens of two queries each are more than a tile: a chunk of each row, in two layers; history 16 lies
    # between the cells of 0 and 32.
    assert parts["attention"].seconds == pytest.approx(2 * 2 * 64_016 * US)
    assert parts["qkv_proj"].how == "beyond the table"


def test_two_gpus_have_a_link(folder: Path) -> None:
    two = Layers(folder, NETWORK, 2, Link(1e9, 5 * US))
    reduced = next(part for part in two.forward(1, 1, 20).parts if part.name == "all-reduce")
    # Two in each of two layers, of 64 numbers of two bytes: half of them twice at 1 GB/s.
    assert reduced.seconds == pytest.approx(4 * (5 * US + 128e-9))


def test_a_profile_without_a_draft(folder: Path) -> None:
    profile = layers_profile(Layers(folder, NETWORK), name="layers")
    assert set(profile.operations) == {"target.forward", "target.prefill"}
    assert profile.provenance.kind == "measured" and profile.provenance.machine == "Some GPU"
    surface = LatencySurface(profile.operation("target.forward"))
    composed = Layers(folder, NETWORK).forward(2, 1, 128).seconds
    assert surface.seconds(batch=2, new_tokens=1, context=128) == pytest.approx(composed, rel=1e-4)


def test_a_csv_of_whole_forwards(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(
        "tokens,context,ms\n" + "\n".join(f"{n},{c},{n + c / 100}" for n in (1, 4) for c in (0, 400))
    )
    cost = forwards_profile(path, name="f", machine="a GPU").operation("target.forward")
    surface = LatencySurface(cost)
    # Two rows of two tokens over 100 cached ones each are four tokens over 200.
    assert surface.seconds(batch=2, new_tokens=2, context=100) == pytest.approx(6e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "dense.csv",
            "layer,tokens,time_us\nqkv_proj,1,x",
            r"dense\.csv:2: time_us: expected a number, got 'x'",
        ),
        ("dense.csv", "layer,tokens,time_us\nqkv_proj,1,-1", "at least 0"),
        ("dense.csv", "layer,tokens,time_us\nqkv_proj,1,1", "has no layer down_proj"),
        ("per_sequence.csv", "layer,sequences,time_us\n", "holds no rows"),
    ],
)
def test_damage_is_named(folder: Path, file: str, text: str, said: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(LayersError, match=said):
        Layers(folder, NETWORK)
