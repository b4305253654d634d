"""Forwards put together from tables small enough to be worked out by hand (`tiny_tables`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tiny_tables import CONFIG, GPU, gemm_ms, write_table, write_tables

from hardware_profiles import kernels
from hardware_profiles.composed import EAGER_LAYER_S, Composer, captured_size, composed_profile
from hardware_profiles.kernels import (
    Heads,
    MoeKey,
    Tables,
    TablesError,
    coverage,
    find_tables,
    read_rows,
    version_key,
    without_quantising,
)
from hardware_profiles.networks import find_network, network_of_config
from hardware_profiles.pairs import USUAL, Pair, is_gpu, pair_profile
from hardware_profiles.shapes import ShapeError

US = 1e-6


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def tables(wheel: Path) -> Tables:
    return Tables(find_tables(wheel), "h100")


def test_versions_sort_as_numbers() -> None:
    assert sorted(["0.5.14", "0.5.9", "0.5.6.post2"], key=version_key) == ["0.5.6.post2", "0.5.9", "0.5.14"]
    assert version_key("1.3.0rc20") < version_key("1.3.0rc23") < version_key("1.3.0")


def test_a_cell_is_its_fastest_kernel(tables: Tables) -> None:
    found = tables.gemm("bfloat16", 8, 128, 64)
    assert found == (pytest.approx(gemm_ms(8, 128, 64) * 1e-3), "8x128x64", "cell")


def test_a_wider_matrix_keeps_its_ratio_to_the_roofline(tables: Tables) -> None:
    # n = 512 is past the table: the ratio of n = 256, at the bytes of n = 512.
    at_256 = gemm_ms(1, 256, 64) * 1e-3
    rooflines = [2.0 * (n * 64 + 64 + n) * 1e-9 for n in (256, 512)]
    found = tables.gemm("bfloat16", 1, 512, 64)
    assert found.seconds == pytest.approx(at_256 / rooflines[0] * rooflines[1])
    assert found.how == "beyond the table"


def test_a_slow_cell_inside_a_tile_is_noise_and_across_tiles_it_is_not(tmp_path: Path) -> None:
    root = write_tables(tmp_path / "w")
    rows = [
        {"gemm_dtype": "bfloat16", "m": m, "n": 64, "k": 64, "latency": ms}
        for m, ms in ((1, 0.9), (2, 0.1), (64, 0.2), (65, 0.05))
    ]
    write_table(root, "gemm/vllm/0.24.0/gemm_perf", rows)
    own = Tables(find_tables(root), GPU)
    # 1 is slower than 2 in the same tile of 64 rows; 64 is slower than 65, which begins another.
    assert [own.gemm("bfloat16", m, 64, 64).seconds for m in (1, 64, 65)] == pytest.approx([1e-4, 2e-4, 5e-5])


def test_attention_reads_keys_and_values_cold(tables: Tables) -> None:
    one = tables.attention(Heads(4, 2, 16))
    # 10 us, and 1 + 99 cached tokens of 128 bytes at 1 GB/s - though the cell at 100 tokens took 10 us alone.
    assert one.seconds(1, 1, 99).seconds == pytest.approx(10 * US + 100 * 128e-9)
    # Four new tokens read the cache once: 10 us and 8 rows of 1000 tokens.
    assert one.seconds(8, 4, 1000).seconds == pytest.approx(10 * US + 8 * 1000 * 128e-9)
    # 1024 new tokens of two heads to a key fill 2048 rows of queries: computing is what takes long.
    wide = one.seconds(1, 1024, 1000).seconds - one.seconds(1, 1024, 0).seconds
    assert wide == pytest.approx(4 * 1024 * 1000 * 64 / 102.4e9)


def test_heads_that_were_not_measured_are_those_of_the_nearest(tables: Tables) -> None:
    found = tables.attention(Heads(6, 2, 16)).seconds(1, 1, 0)
    assert found.how == "interpolated" and "4 heads, 2 KV heads of 16" in found.cells


def test_allreduce_is_by_elements_current_and_captured(tables: Tables) -> None:
    assert tables.allreduce(2, 96).seconds == pytest.approx(4 * US)
    assert tables.allreduce(2, 96, captured=False).seconds == pytest.approx(20 * US)
    assert tables.allreduce(2, 256).seconds == pytest.approx(8 * US)  # twice the largest message
    with pytest.raises(TablesError, match="num_gpus 3"):
        tables.allreduce(3, 64)


def by_hand(m: int, attention: float, head: int) -> float:
    """Two layers of `CONFIG` over m tokens, and the output matrix for `head` of them."""
    gemms = sum(gemm_ms(m, n, k) * 1e-3 for n, k in ((128, 64), (64, 64), (256, 64), (64, 128)))
    passes = [2 * (8 * m * 64), 6 * m * 128]  # bytes; half of 1 GB/s is reached, each kernel begins with 1 us
    layer = gemms + attention + sum(passes) * 2e-9 + 3 * US
    outer = gemm_ms(head, 256, 64) * 1e-3 + 10 * head * 256 * 2e-9 + 2 * US if head else 0.0
    return 2 * layer + outer + 4 * m * 64 * 2e-9 + 1 * US


def test_a_short_message_takes_no_longer_than_a_long_one(tmp_path: Path) -> None:
    wheel = write_tables(tmp_path / "wheel")
    shared = {"num_gpus": 4, "allreduce_dtype": "bfloat16", "backend": "vllm_graph"}
    rows = [
        {**shared, "message_size": n, "latency": ms} for n, ms in ((64, 0.009), (128, 0.004), (256, 0.006))
    ]
    write_table(wheel, "comm/vllm/0.24.0/custom_allreduce_perf", rows)
    tables = Tables(find_tables(wheel), "h100")
    # 9 us at 64 elements, but 4 at 128, to which it can be filled up.
    assert [tables.allreduce(4, n).seconds for n in (64, 128, 256)] == pytest.approx([4e-6, 4e-6, 6e-6])


def test_a_forward_by_hand(tables: Tables) -> None:
    composer = Composer(tables, network_of_config(CONFIG, name="tiny"))
    attention = 10 * US + 2 * 50 * 128e-9
    found = composer.forward(2, 4, 50)
    assert found.seconds == pytest.approx(by_hand(8, attention, 8))
    assert composer.forward(2, 4, 50, head=False).seconds == pytest.approx(by_hand(8, attention, 0))
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds)
    assert sum(found.interpolated.values()) == pytest.approx(1.0)


def test_a_captured_graph_runs_at_the_next_size(tables: Tables) -> None:
    composer = Composer(tables, network_of_config(CONFIG, name="tiny"))
    assert composer.forward(3, 1, 0, head=False).seconds < composer.forward(4, 1, 0, head=False).seconds
    layers = [sum(p.seconds for p in composer.forward(b, 1, 0).parts if p.name == "norms") for b in (3, 4)]
    assert layers[0] == layers[1]


def test_launching_sets_a_floor(tables: Tables) -> None:
    eager = Composer(tables, network_of_config(CONFIG, name="tiny"), eager=True)
    assert eager.forward(1, 1, 0).seconds == 2 * EAGER_LAYER_S
    assert eager.forward(8, 1, 9999).seconds > 2 * EAGER_LAYER_S  # the larger of the two, not their sum
    wide = Composer(tables, network_of_config(CONFIG, name="tiny")).forward(8, 100, 0)
    assert wide.floor_s == 2 * EAGER_LAYER_S  # 800 tokens are more than the largest graph
    larger = Composer(tables, network_of_config(CONFIG, name="tiny"), capture_limit=1024)
    assert larger.forward(8, 100, 0).floor_s == 0.0
    assert [captured_size(n) for n in (1, 3, 5, 9, 256, 257)] == [1, 4, 8, 16, 256, 272]


def test_two_gpus_share_a_layer_and_reduce_twice(tables: Tables) -> None:
    network = network_of_config(CONFIG, name="tiny")
    parts = {part.name: part for part in Composer(tables, network, 2).forward(1, 1, 0).parts}
    assert parts["all-reduce"].count == 4 and parts["all-reduce"].seconds == pytest.approx(16 * US)
    assert parts["qkv"].seconds == pytest.approx(2 * gemm_ms(1, 64, 64) * 1e-3)
    assert parts["output matrix"].cells == "1x128x64"


def test_experts_of_one_row_may_be_the_same(tables: Tables) -> None:
    config = {**CONFIG, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    network = network_of_config(config, name="moe")
    apart, same = (Composer(tables, network, correlation=c).forward(1, 4, 0) for c in (0.0, 1.0))
    spent = [next(p.seconds for p in f.parts if p.name == "experts") for f in (apart, same)]
    assert spent == pytest.approx([2 * 4 * US, 2 * 1 * US])  # a microsecond a token, two layers
    assert tables.moe(MoeKey("bfloat16", 64, 16, 2, 8), 8).how == "beyond the table"


@pytest.mark.parametrize(
    ("entry", "said"),
    [({"kv_lora_rank": 512}, "MLA"), ({"layer_types": ["linear_attention"]}, "linear_attention")],
)
def test_networks_without_tables_are_refused(entry: dict[str, object], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        network_of_config({**CONFIG, **entry}, name="strange")


def test_what_a_config_says_of_windows_and_precision() -> None:
    windowed = network_of_config(
        {**CONFIG, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, name="w"
    )
    assert windowed.layer_windows == ((8, 1), (0, 1))
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert network_of_config({**CONFIG, "quantization_config": fp8}, name="q").dtype == "fp8_block"
    head = find_network("eagle3:llama-3.1-8b")
    assert head.shape.layers == 1 and head.fused_hidden == 3 and head.shape.vocabulary == 32_000


def test_a_wheel_that_is_absent_or_of_another_version_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="holds no tables: pip install"):
        find_tables(tmp_path)
    other = write_tables(tmp_path / "other", version="0.13.0")
    with pytest.raises(
        TablesError, match=r"tables of aiconfigurator-core 0\.13\.0, this version reads 0\.12\.0"
    ):
        find_tables(other)
    sound = write_tables(tmp_path / "sound")
    assert {row["table"] for row in coverage(find_tables(sound))} >= {"gemm_perf", "moe_perf"}
    broken = sound / "aiconfigurator_core/systems/data" / GPU / "gemm/vllm/0.24.0/gemm_perf.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(TablesError, match=r"gemm_perf\.parquet is damaged"):
        Tables(find_tables(sound), GPU).gemm("bfloat16", 1, 64, 64)
    pa.parquet.write_table(pa.table({"latency": [0.0]}), broken)
    with pytest.raises(TablesError, match="a latency is not above 0"):
        read_rows(broken, {}, ("latency",))


def test_gpus_and_engines_that_have_no_tables(wheel: Path) -> None:
    with pytest.raises(TablesError, match="no GPU 'a30' in the tables; there are h100_sxm"):
        Tables(find_tables(wheel), "a30")
    with pytest.raises(TablesError, match="only of vllm, not of sglang"):
        Tables(find_tables(wheel), "h100", "sglang")


def test_a_pair_is_composed_once(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    config = tmp_path / "tiny" / "config.json"
    config.write_text(json.dumps(CONFIG))
    pair = Pair(hw="h100x2", target=str(config), draft=str(config), tables=wheel)
    profile, origin = pair_profile(pair)
    assert profile.name == "h100x2-tiny+tiny" and origin == "composed now"
    assert profile.provenance.kind == "composed" and "0.24.0" in (
        profile.provenance_of("target.forward").note or ""
    )
    assert profile.roles.target.tensor_parallel == 2 and profile.roles.draft.tensor_parallel == 1
    again, origin = pair_profile(pair)
    assert origin.startswith("cached") and again == profile
    with pytest.raises(TablesError, match="h100x2 are 2 GPUs, and --tp says 4"):
        pair_profile(Pair(hw="h100x2", tp=4, target=str(config), draft=str(config), tables=wheel))


def test_experts_of_a_pair_are_correlated_where_there_are_any(wheel: Path) -> None:
    pair = Pair(hw="h100", target="llama-3.1-8b", draft="llama-3.2-1b", tables=wheel)
    for said in ({"expert_correlation": 0.5}, {"expert_distribution": "balanced"}):
        with pytest.raises(TablesError, match="neither network has experts"):
            pair_profile(replace(pair, **said))


def test_what_quantises_the_input_is_taken_off_every_narrow_cell() -> None:
    # The fastest cells: 12 us in fp8, 2 in bfloat16; 10 us are not the product's, and none is below 2.
    narrow = {"latency": np.array([0.012, 0.020, 0.0125]), "m": np.array([1, 2, 3])}
    found = without_quantising(narrow, {"latency": np.array([0.002, 0.050])})
    assert found["latency"].tolist() == pytest.approx([0.002, 0.010, 0.0025])
    assert without_quantising({"latency": np.array([0.001])}, narrow)["latency"].tolist() == [0.012]


def test_weights_that_do_not_fit(tables: Tables) -> None:
    composer = Composer(tables, network_of_config({**CONFIG, "vocab_size": 10**7}, name="huge"))
    with pytest.raises(TablesError, match=r"huge weighs 1 GB, 1 x h100_sxm hold 1: .*--tp"):
        composed_profile(composer, composer, name="huge")


def test_names_of_gpus() -> None:
    assert is_gpu("h100") and is_gpu("a100x8") and is_gpu("rtx_pro_6000_server") and not is_gpu("cpu2-x5")


def test_the_usual_pairs_are_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "_installed", lambda: None)
    for pair in USUAL:
        profile, origin = pair_profile(pair)
        assert (
            origin == f"shipped:{profile.name}"
            and profile.provenance.versions["aiconfigurator-core"] == "0.12.0"
        )
        assert sum("gemm_perf" in name for name in profile.provenance.versions) == 1
    shared, _ = pair_profile(replace(USUAL[0], placement="shared"))
    assert shared.placement == "shared" and shared.overlap
    with pytest.raises(
        TablesError, match=r"no kernel tables are installed: .*; shipped for l40s: l40sx1-llama"
    ):
        pair_profile(Pair(hw="l40s", target="qwen3-8b", draft="qwen3-0.6b"))


@pytest.mark.parametrize(
    ("hw", "gpu", "devices"),
    [("h100", "h100", 1), ("H100x4", "h100", 4), ("rtx4090", "rtx4090", 1), ("rtx4090x2", "rtx4090", 2)],
)
def test_a_number_of_gpus_is_no_part_of_a_name(hw: str, gpu: str, devices: int) -> None:
    pair = Pair(hw=hw, target="", draft="")
    assert (pair.gpu, pair.devices) == (gpu, devices)
