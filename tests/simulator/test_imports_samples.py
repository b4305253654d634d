"""Every sample of an engine's output: the numbers that are worked out by hand in its comment.

`h` is rounds by accepted tokens, `s` rounds that got as far as a position, `c` conditional acceptance.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.imports.derive import pool, survivors_of
from simulator.imports.measured import Imported, ImportRefused
from simulator.imports.reading import read_file
from simulator.imports.tuned import best_lookahead_by_batch

SAMPLES = Path(__file__).parents[1] / "data" / "imports"
DFLASH_SURVIVORS = (4214, 2532, 1350, 888, 566, 370, 210)
DFLASH_CONDITIONAL = (0.67166082, 0.60085430, 0.53317536, 0.65777778, 0.63738739, 0.65371025, 0.56756757)


def close(value: object) -> object:
    return pytest.approx(value, rel=1e-4)


def all_of(name: str, **how: object) -> tuple[Imported, ...]:
    return read_file(SAMPLES / name, **how).measured  # type: ignore[arg-type]


def only(name: str) -> Imported:
    (found,) = all_of(name)
    return found


def labelled(name: str, label: str) -> Imported:
    return next(m for m in all_of(name) if m.label == label)


def check_dflash(found: Imported) -> None:
    # K = 43918 / 6274 = 7; c_2 = 2532 / 4214; h_0 = 6274 - 4214 = 2060; 1 + 10130 / 6274 = 2.6146
    assert (found.lookahead, found.rounds, found.drafted, found.accepted) == (7, 6274, 43918, 10130)
    assert found.histogram == (2060, 1682, 1182, 462, 322, 196, 160, 210)
    assert survivors_of(found.histogram) == DFLASH_SURVIVORS
    assert found.acceptance_at_position == close(DFLASH_CONDITIONAL)
    assert found.joint_acceptance_at_position == close(tuple(s / 6274 for s in DFLASH_SURVIVORS))
    assert found.tokens_per_round == close(2.61459994)
    assert found.accepted_share == close(0.23065713)


# ---- vLLM


def test_prometheus_all_accepted() -> None:
    found = only("vllm/prometheus_v0.25.1_K3_all_accepted.prom")
    # K = 144 / 48; 1 + 144 / 48 = 4; 3 prefills + 48 + 144 - 192 generated = 3; 0.106165618 s / 48 rounds
    assert (found.lookahead, found.rounds, found.accepted, found.overshoot_tokens) == (3, 48, 144, 3)
    assert found.acceptance_at_position == (1.0, 1.0, 1.0) == found.joint_acceptance_at_position
    assert found.tokens_per_round == 4.0
    assert found.speeds.round_s == close(0.00221178370945078)


def test_prometheus_scientific_notation_without_accepted_tokens() -> None:
    found = only("vllm/prometheus_scientific_notation_K1.prom")
    assert (found.lookahead, found.rounds, found.drafted) == (1, 6491797, 6491797)
    assert found.tokens_per_round is None
    assert "accepted tokens" in found.missing


def test_prometheus_delta() -> None:
    check_dflash(only("vllm/prometheus_delta_K7_dflash.json"))


def test_prometheus_before_and_after_with_positions_out_of_order() -> None:
    after, before = (SAMPLES / f"vllm/prometheus_K7_dflash_{name}.prom" for name in ("after", "before"))
    (found,) = read_file(after, before=before).measured
    check_dflash(found)


def test_prometheus_engines_of_a_data_parallel_server_are_added() -> None:
    found = only("vllm/prometheus_dp2_constructed.prom")
    # 22 + 15 = 37 rounds, 110 + 75 = 185 = 37 x 5, 44 + 27 = 71; s = 25 18 13 9 6; 1 + 71 / 37
    assert (found.lookahead, found.rounds, found.drafted, found.accepted) == (5, 37, 185, 71)
    assert found.histogram is not None and survivors_of(found.histogram) == (25, 18, 13, 9, 6)
    assert found.tokens_per_round == close(2.91891892)


def test_bench_serve() -> None:
    found = only("vllm/bench_serve_spec_v0.25.1.json")
    # .85 .71667 .59444 x 1260 = 1071 903 749, sum 2723 = accepted; 1260 + 2723 + 8 - 3983 = 8
    assert found.histogram == (1260 - 1071, 1071 - 903, 903 - 749, 749)
    assert (found.lookahead, found.accepted, found.batch, found.overshoot_tokens) == (3, 2723, 2.0, 8)
    assert found.acceptance_at_position == close((0.85, 0.84313725, 0.82945736))
    assert found.tokens_per_round == close(3.16111111)
    assert found.speeds.round_s == close(0.0457047651)
    assert found.speeds.time_per_token_s == close(0.0144666)


def test_bench_serve_without_speculation() -> None:
    found = only("vllm/bench_serve_no_spec_v0.25.1.json")
    assert found.rounds is None and found.tokens_per_round is None
    assert found.speeds.target_step_s == close(0.0112658283)


def test_bench_console_is_in_percent() -> None:
    found = only("vllm/bench_serve_console_mtp_K4.txt")
    # 166600 / 41650 = 4; .3378 / .6024 = .5608; 1 + 55458 / 41650; 41650 + 55458 + 200 - 97092 = 216
    assert (found.lookahead, found.rounds, found.accepted, found.overshoot_tokens) == (4, 41650, 55458, 216)
    assert found.joint_acceptance_at_position == close((0.6024, 0.3378, 0.2227, 0.1686))
    assert found.acceptance_at_position == pytest.approx((0.6024, 0.5608, 0.6593, 0.7571), abs=1e-4)
    assert found.tokens_per_round == close(2.33152461)
    assert found.histogram is None  # four digits do not give 55458 tokens back


def test_log_pools_counts_not_lengths() -> None:
    windows = all_of("vllm/spec_decoding_log_v1_0.13_plus.log")
    # 2700 / 15 = 180, 3300 / 15 = 220, 270 / 15 = 18
    assert [w.rounds for w in windows] == [180, 220, 18]
    assert [w.tokens_per_round for w in windows] == close([3.52777778, 2.88636364, 1.77777778])
    pooled = pool(windows)
    # 418 rounds, 455 + 415 + 14 = 884; 1 + 884 / 418; the mean of the lengths would be 2.73
    assert (pooled.rounds, pooled.accepted, pooled.drafted) == (418, 884, 6270)
    assert pooled.tokens_per_round == close(3.11483254)


def test_log_that_lists_a_position_too_many() -> None:
    plain, *windows = all_of("vllm/engine_log_v0.13.0_ar_then_spec.log")
    # 16 listed, 15 drafted: 9120 / 16 = 570 would give 1 + 60 / 570 = 1.105, logged is 1.10
    assert [w.rounds for w in windows] == [431, 548, 599, 608, 604, 607, 608, 608]
    assert {w.lookahead for w in windows} == {15}
    assert plain.speeds.target_step_s == pytest.approx(0.01157, abs=5e-6)  # 1 / 86.4
    # 15 / 911 s of a full window
    assert [w.speeds.round_s for w in windows[3:]] == pytest.approx([0.01646] * 5, rel=0.01)
    assert "16 positions are listed but 15" in windows[0].notes[0]


def test_log_in_four_layouts() -> None:
    by = {m.label: m for m in all_of("vllm/spec_decoding_log_history.log")}
    v0 = by["line 1"]  # 13311 / 3 = 4437; 10616 emitted / 4437 = 2.3926; accepted is not cut at a rejection
    assert (v0.rounds, v0.accepted, v0.joint_acceptance_at_position) == (4437, None, None)
    assert v0.tokens_per_round == close(2.39260762)
    assert (by["line 2"].rounds, by["line 2"].accepted, by["line 2"].drafted) == (None, 66, 66)
    assert (by["line 3"].rounds, by["line 3"].lookahead) == (59, 5)  # 295 / 5
    assert by["line 3"].tokens_per_round == close(5.44067797)  # 1 + 262 / 59
    assert [by[f"line {i}"].rounds for i in (5, 7)] == [471, 469]
    assert by["line 5"].tokens_per_round == close(2.63057325)
    assert by["line 5"].speeds.round_s == close(5 / 235.49)
    assert by["line 7"].speeds.round_s == close(0.02132378)
    last = by["line 8"]  # 364 / (1.78 - 1) = 466.7; 1190 / 467 = 2.548 drafted
    assert (last.rounds, last.lookahead, last.tokens_per_round) == (467, None, 1.78)
    assert last.joint_acceptance_at_position is not None and len(last.joint_acceptance_at_position) == 24


def test_request_summary() -> None:
    found = only("vllm/per_request_summary_v0.32_docs.json")
    # h = 39 1 0 3: accepted 1 + 9 = 10, s = 4 3 3
    assert (found.rounds, found.accepted, found.drafted) == (43, 10, 129)
    assert found.acceptance_at_position == close((4 / 43, 0.75, 1.0))
    assert found.joint_acceptance_at_position == close((0.09302326, 0.06976744, 0.06976744))
    assert found.tokens_per_round == close(1.23255814)


def test_request_summary_of_a_real_answer() -> None:
    found = only("vllm/per_request_summary_real_K7.json")
    # 3 + 4 + 6 + 16 + 0 + 6 + 133 = 168; 1 + 33 + 168 = 202 against 200 delivered
    assert (found.rounds, found.accepted, found.drafted, found.overshoot_tokens) == (33, 168, 231, 2)
    assert found.histogram is not None and survivors_of(found.histogram) == (31, 28, 26, 24, 20, 20, 19)
    assert found.tokens_per_round == close(6.09090909)


def test_request_of_varying_draft_length() -> None:
    found = only("vllm/per_request_detailed_constructed.json")
    # position i was tried in 5, 3 (one of 4 survivors drafted one token), 1 rounds: 4/5, 2/3, 1/1
    assert (found.rounds, found.accepted, found.drafted) == (5, 7, 11)
    assert found.acceptance_at_position == close((0.8, 2 / 3, 1.0))
    assert found.tokens_per_round == close(2.4)


def test_dynamic_profile() -> None:
    found = only("vllm/dynamic_speculative_config_eagle1.json")
    assert found.acceptance_at_position == close((0.68, 0.57352941, 0.51282051, 0.5, 0.6, 0.5, 0.66666667))
    # batch 1: 2.27 / 9.41 = .2412 at K = 3 is best; batch 64: 2.07 / 11.80 = .1754 at K = 2, interpolated
    assert best_lookahead_by_batch(found) == {1: 3, 4: 3, 16: 3, 32: 3, 64: 2}
    assert len(found.notes) == 1 and "batch 64, lookahead 7: 120.57 ms" in found.notes[0]


# ---- SGLang


def test_meta_info_old_names() -> None:
    found = only("sglang/meta_info_2025-11_old_names.json")
    # 940 / 188 = 5; 1 + 11 / 188; the reported 1.0638 = 200 / 188 has the prefill's token
    assert (found.lookahead, found.rounds, found.accepted) == (5, 188, 11)
    assert found.tokens_per_round == close(1.05851064)
    assert found.acceptance_at_position is None and found.overshoot_tokens == 0


@pytest.mark.parametrize(
    ("name", "depth", "rounds", "survivors", "length"),
    [
        # h = 4 0 2 2 22: 4 + 6 + 88 = 98; 1 + 98 / 30
        ("meta_info_2026-02_with_histogram.json", 4, 30, (26, 26, 24, 22), 4.26666667),
        # h = 2 4 2 1 1 11: 4 + 4 + 3 + 4 + 55 = 70, under both names and not twice; 1 + 70 / 21
        ("meta_info_2026_new_and_alias_names.json", 5, 21, (19, 15, 13, 12, 11), 4.33333333),
        # h = 11 14 11 4 0 3: 14 + 22 + 12 + 0 + 15 = 63; 1 + 63 / 43
        ("sglext_spec_tokens_details_2026-08.json", 5, 43, (32, 18, 7, 3, 3), 2.46511628),
    ],
)
def test_meta_info_histograms(
    name: str, depth: int, rounds: int, survivors: tuple[int, ...], length: float
) -> None:
    found = only(f"sglang/{name}")
    assert (found.lookahead, found.rounds, found.accepted) == (depth, rounds, sum(survivors))
    assert found.histogram is not None and survivors_of(found.histogram) == survivors
    assert found.tokens_per_round == close(length)
    assert found.overshoot_tokens == 1


def test_stats_lists_have_a_token_too_many() -> None:
    found = only("sglang/speculative_decoding_stats_detailed_constructed.json")
    # drafted 6 - 1, 5 - 1; accepted 4 - 1, 3 - 1; 1 + 5 / 2
    assert (found.rounds, found.drafted, found.accepted, found.tokens_per_round) == (2, 9, 5, 3.5)


def test_gauges() -> None:
    found = only("sglang/metrics_gauges_constructed.prom")
    assert (found.tokens_per_round, found.lookahead) == (3.04, 3)  # (3.04 - 1) / .68
    assert found.speeds.round_s is None  # nine requests run


def test_decode_log() -> None:
    windows = all_of("sglang/decode_batch.log")
    assert [w.tokens_per_round for w in windows] == [4.40, 3.04, 3.05, 3.00]
    assert [w.lookahead for w in windows] == [5, 3, 3, 3]  # 3.40 / .68 = 5
    # 4.40 / 11.87 s; unknown with nine requests running
    assert [w.speeds.round_s for w in windows] == [close(0.37068), None, close(0.0521368), close(0.0518583)]


def test_bench_console_and_nightly() -> None:
    assert only("sglang/bench_serving_console_eagle.txt").tokens_per_round == 3.39
    nightly = only("sglang/nightly_one_batch_metrics.json")
    assert (nightly.tokens_per_round, nightly.batch) == (3.19, 1)
    assert nightly.speeds.round_s == close(3.19 / 231.74)
    assert nightly.speeds.tokens_per_second == 231.74


def test_decoupled_traces() -> None:
    verifier = only("sglang/decoupled_trace_verifier__verify_worker_timing_constructed.csv")
    # rounds 2 + 2 + 1, drafts 6 + 8 + 0, accepted 5 + 8 + 0, tokens 18 = 13 + 5; 21.6 21.8 21.0 ms
    assert (verifier.rounds, verifier.drafted, verifier.accepted) == (5, 14, 13)
    assert verifier.tokens_per_round == close(18 / 5)
    assert verifier.speeds.verify_s == close((0.0216 + 0.0218 + 0.0210) / 3)
    proxy = only("sglang/decoupled_trace_draft_proxy__apply_control_batch_constructed.csv")
    assert (proxy.rounds, proxy.histogram, proxy.cache_hit_rate) == (4, (0, 1, 0, 0, 3), 0.75)


# ---- llama.cpp


def test_llama_server_metrics() -> None:
    found = only("llamacpp/server_metrics_2026.prom")
    # s = 548 540 525 492, sum 2105; 1 + 2105 / 552; 2160 / 552 = 3.913 drafted
    assert (found.lookahead, found.rounds, found.accepted) == (4, 552, 2105)
    assert found.acceptance_at_position == close((0.99275362, 0.98540146, 0.97222222, 0.93714286))
    assert found.tokens_per_round == close(4.81340580)
    assert "3.913 drafted per round" in found.notes[0]


def test_llama_server_log() -> None:
    found = only("llamacpp/server_eagle3_2026-06.log")
    # s = 70, .632 x 87 = 55, .483 x 87 = 42, sum 167; 325.555 ms / 87 rounds
    assert (found.rounds, found.drafted, found.accepted) == (87, 259, 167)
    assert found.histogram is not None and survivors_of(found.histogram) == (70, 55, 42)
    assert found.acceptance_at_position == close((0.80459770, 0.78571429, 0.76363636))
    assert found.tokens_per_round == close(2.91954023)
    assert found.speeds.draft_s_per_round == close(0.00374201)


def test_llama_server_timings() -> None:
    name = "llamacpp/server_timings_b9789_qwen7b_draft05b.json"
    cuda, vulkan = (labelled(name, f"{b} draft_0_5b code_linkedlist") for b in ("cuda", "vulkan"))
    for found in (cuda, vulkan):  # 256 - 207 = 49 forwards, 256 / 49, 207 / 237
        assert found.rounds is None
        assert found.tokens_per_target_forward == close(5.22448980)
        assert found.accepted_share == close(0.87341772)
    assert (cuda.speeds.round_s, vulkan.speeds.round_s) == (close(0.31350955), close(0.07770176))
    plain = labelled(name, "cuda baseline code_linkedlist")
    assert plain.speeds.target_step_s == close(3.007936 / 256)
    old = only("llamacpp/server_timings_pr12603.json")  # 200 - 65 = 135
    assert old.tokens_per_target_forward == close(200 / 135)
    assert (old.accepted_share, old.speeds.round_s) == (close(65 / 347), close(0.08209338))


@pytest.mark.parametrize(
    ("name", "accepted", "drafted", "per_forward"),
    [
        ("speculative_closing_2023.log", 231, 245, 266 / 35),  # 266 - 231 = 35
        ("speculative_closing_2023_fixed_draft.log", 223, 254, 266 / 43),
        ("speculative_closing_poor_draft.log", 47, 132, 129 / 82),
    ],
)
def test_llama_closing_lines(name: str, accepted: int, drafted: int, per_forward: float) -> None:
    found = only(f"llamacpp/{name}")
    assert (found.accepted, found.drafted, found.lookahead) == (accepted, drafted, None)
    assert found.accepted_share == close(accepted / drafted)
    assert found.tokens_per_target_forward == close(per_forward)


def test_ik_llama_table() -> None:
    code, extract = all_of("llamacpp/ik_llama_spec_bench.md")
    # .905 + .805 + .736 = 2.446 = 538 / 220: 199 177 162 of 220
    assert (code.rounds, code.drafted, code.accepted, code.lookahead) == (220, 660, 538, 3)
    assert code.joint_acceptance_at_position == pytest.approx((0.905, 0.805, 0.736), abs=5e-4)
    assert code.tokens_per_round == close(3.44545455)
    assert (extract.rounds, extract.drafted, extract.accepted) == (300, 899, 722)
    assert extract.tokens_per_round == close(3.40666667)


def test_llama_bench() -> None:
    found = only("llamacpp/llama_bench_pp512_tg128.json")
    # 72.136 ms for 512 prompt tokens; 1076.767880 ms / 128
    assert (found.speeds.prefill_s, found.speeds.prefill_tokens) == (close(0.07213564), 512)
    assert found.speeds.target_step_s == close(0.00841224906)
    cpu = only("llamacpp/llama_bench_small_pp_cpu.md").speeds  # 2 / 7.64 = 261.8 ms
    forward = dict(cpu.forward_s)
    assert [forward[n] for n in (1, 2, 4, 8, 16)] == close([0.25707, 0.26178, 0.25940, 0.27491, 0.30728])
    assert cpu.target_step_s == close(0.25445)
    moe = only("llamacpp/llama_bench_small_pp_sycl_moe.md").speeds
    expected = {
        1: 0.02393,
        2: 0.06252,
        3: 0.07574,
        4: 0.08649,
        6: 0.10350,
        8: 0.11998,
        12: 0.18425,
        17: 0.21831,
    }
    assert dict(moe.forward_s) == pytest.approx(expected, rel=2e-4)


def test_llama_bench_of_threads_and_depths() -> None:
    one, eight, flat, deep = all_of("llamacpp/llama_bench_threads_pp64_tg16.md")
    assert [m.speeds.target_step_s for m in (one, eight)] == close([0.246914, 0.059844])  # 1 / 4.05
    assert [m.speeds.prefill_s for m in (one, eight)] == close([10.372771, 1.982038])  # 64 / 6.17
    assert [m.speeds.target_step_s for m in (flat, deep)] == close([0.00829187, 0.00856825])


def test_llama_batched_bench() -> None:
    short, _ = all_of("llamacpp/batched_bench_llama7b.md")
    steps = {1: 0.024055, 2: 0.039289, 4: 0.053734, 8: 0.057375, 16: 0.066055, 32: 0.068758}
    assert dict(short.speeds.step_s_by_batch) == close(steps)  # 3.079 / 128
    assert only("llamacpp/batched_bench.jsonl").speeds.step_s_by_batch == ((1, close(0.0273725)),)


# ---- Spec-Bench, REST


def test_rest(tmp_path: Path) -> None:
    found = only("specbench/rest_mtbench_3rows.jsonl")
    # rounds 21 + 18 + 25 (idxs + 1), tokens 36 + 36 + 30; 102 / 64; ratio of sums 102 / 2.0371
    assert (found.rounds, found.accepted) == (64, 102 - 64)
    assert found.tokens_per_round == close(1.59375)
    assert found.speeds.tokens_per_second == close(50.071)
    rows = (SAMPLES / "specbench/rest_mtbench_3rows.jsonl").read_text().splitlines()
    for row, rounds, tokens, wall_s in zip(
        rows, (21, 18, 25), (36, 36, 30), (0.62150836, 0.56105614, 0.8545289), strict=True
    ):
        (tmp_path / "row.jsonl").write_text(row)
        (one,) = read_file(tmp_path / "row.jsonl").measured
        assert one.rounds == rounds and one.accepted == tokens - rounds
        assert one.speeds.tokens_per_second == close(tokens / wall_s)
    baseline = only("specbench/rest_mtbench_baseline_3rows.jsonl")
    assert (baseline.rounds, baseline.accepted, baseline.joint_acceptance_at_position) == (102, 0, None)
    assert baseline.speeds.tokens_per_second == close(38.7633)
    assert found.speeds.tokens_per_second / 38.7633 == pytest.approx(1.2917, abs=1e-4)


def test_spec_bench() -> None:
    found = only("specbench/specbench_answers_constructed.jsonl")
    # 3 + 1 + 5 + 2 = 11, 4 + 1 + 2 = 7; 18 / 7; 18 / .74 s
    assert (found.rounds, found.tokens_per_round) == (7, close(2.57142857))
    assert found.histogram == (2, 2, 1, 1, 1)
    assert found.speeds.tokens_per_second == close(24.32432432)
    baseline = only("specbench/specbench_baseline_constructed.jsonl")
    assert (baseline.rounds, baseline.speeds.tokens_per_second) == (18, close(16.66666667))


# ---- trainers, SSD, PEARL, load generators


def test_specforge() -> None:
    rows = [
        m
        for m in all_of("trainers/specforge_spec_bundle_llama8b.json")
        if m.label.startswith("gsm8k steps=3 ")
    ]
    plain, _, second = rows
    # 2.5482 / 321.25 = 7.93 ms; 1 / 181.81 = 5.50 ms
    assert (second.lookahead, second.tokens_per_round) == (3, close(2.5481878))
    assert (second.speeds.round_s, plain.speeds.target_step_s) == (close(0.0079321), close(0.0055002))


def test_speculators() -> None:
    check_dflash(only("trainers/speculators_acceptance_constructed.csv"))
    rows = all_of("trainers/speculators_perf_results_constructed.csv")
    assert [row.speeds.time_per_token_s for row in rows] == close([0.0166, 0.0221])
    for row in rows:
        check_dflash(row)


def test_ssd_log() -> None:
    plain, sd, ssd = all_of("ssd/ssd_engine_llama70b_1b_h100.log")
    assert plain.speeds.target_step_s == close(3927.68 / 262144)
    assert plain.speeds.tokens_per_second == pytest.approx(66.74, abs=0.005)
    # (5.03 - 1) / 6 = .6717 of 6; (27.52 - 15.29) / 6 = 2.04 ms per drafted token
    assert (sd.lookahead, sd.tokens_per_round) == (6, 5.03)
    assert sd.speeds.draft_s_per_round == close(6 * 0.00203833)
    assert (sd.speeds.round_s, sd.speeds.verify_s) == (close(0.02752), close(0.01529))
    assert sd.speeds.tokens_per_second == pytest.approx(181.69, abs=0.01)  # 262144 / 1442.85
    assert (ssd.lookahead, ssd.tokens_per_round, ssd.cache_hit_rate) == (7, 5.47, 0.88)
    assert (ssd.tokens_per_round_on_hit, ssd.tokens_per_round_on_miss) == (5.68, 4.01)
    assert ssd.joint_acceptance_on_hit == close((0.870, 0.776, 0.706, 0.648, 0.600, 0.558, 0.523))
    expected = (0.870, 0.892, 0.910, 0.918, 0.926, 0.930, 0.937)
    assert ssd.acceptance_on_hit == pytest.approx(expected, abs=6e-4)
    assert ssd.acceptance_at_position is None  # of all rounds only the mean is logged
    assert ssd.speeds.draft_s_per_round is None  # it overlaps the verification


def test_ssd_log_without_a_miss_row() -> None:
    found = only("ssd/ssd_engine_llama1b_self_k6.log")
    # 3.78 = .79 x 4.50 + .21 x: x = (3.78 - 3.555) / .21
    assert (found.tokens_per_round, found.cache_hit_rate, found.tokens_per_round_on_hit) == (3.78, 0.79, 4.5)
    assert found.tokens_per_round_on_miss == close(1.0714286)


def test_ssd_profile() -> None:
    found = only("ssd/ssd_profile_constructed.log")
    # hits 7 + 6 of 16 rows, 33 + 29 tokens with the bonus; 21.4 and 21.2 ms
    assert (found.rounds, found.cache_hit_rate, found.tokens_per_round) == (16, 13 / 16, 62 / 16)
    assert found.speeds.verify_s == close((0.0214 + 0.0212) / 2)
    assert found.speeds.draft_s_per_round == close(0.0156)


def test_pearl() -> None:
    # (200 + 312) / (4 + 6): the first prompt warms up
    assert only("pearl/pearl_humaneval_constructed.jsonl").speeds.tokens_per_second == close(51.2)
    assert only("pearl/pearl_mtbench_constructed.jsonl").speeds.tokens_per_second == close(410 / 8)
    nano = only("pearl/nano_pearl_log_constructed.log")
    assert (nano.run_length, nano.tokens_per_round) == (close((8.08 + 7.0) / 2), None)
    assert nano.speeds.tokens_per_second == close(199.0)


def test_load_generators() -> None:
    synchronous, constant = all_of("other/guidellm_sweep_constructed.json")  # `throughput` is left out
    assert (synchronous.speeds.time_per_token_s, constant.label) == (close(0.0166), "constant 2/s")
    pooled = only("other/aiperf_pooled_histogram_illustrative.json")
    # 4608 + 7680 + 9984 + 12288 + 21760 = 56320; 1 + 56320 / 25600
    assert (pooled.rounds, pooled.accepted, pooled.tokens_per_round) == (25600, 56320, close(3.2))
    assert pooled.histogram is not None
    assert survivors_of(pooled.histogram) == (19200, 14592, 10752, 7424, 4352)


def test_a_source_that_contradicts_itself_is_refused() -> None:
    # 22 + 38 + 48 + 60 + 110 = 278, it says 281
    with pytest.raises(ImportRefused, match="holds 278 accepted, it states 281"):
        only("other/aiperf_record_illustrative.json")


@pytest.mark.parametrize(
    "name",
    [
        "vllm/speculative_config_examples.jsonl",
        "sglang/adaptive_config_default.json",
        "specbench/question_4rows.jsonl",
    ],
)
def test_configurations_measure_nothing(name: str) -> None:
    with pytest.raises(ImportRefused, match="nothing in it was measured"):
        only(name)
