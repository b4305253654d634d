"""Every sample of vLLM's output: the numbers that are worked out by hand in its comment.

`h` is rounds by accepted tokens, `s` rounds that got as far as a position, `c` conditional acceptance.
"""

from __future__ import annotations

import pytest
from import_samples import SAMPLES, all_of, check_dflash, close, only

from simulator.imports.formats import read_file
from simulator.imports.measured import pool, survivors_of
from simulator.imports.vllm import best_lookahead_by_batch


def test_prometheus_all_accepted() -> None:
    found = only("vllm/prometheus_v0.25.1_K3_all_accepted.prom")
    # K = 144 / 48; 1 + 144 / 48 = 4; 3 prefills + 48 + 144 - 192 generated = 3; 0.106165618 s / 48 rounds
    assert (found.lookahead, found.rounds, found.accepted, found.overshoot_tokens) == (3, 48, 144, 3)
    assert found.acceptance_at_position == (1.0, 1.0, 1.0) == found.joint_acceptance_at_position
    assert found.tokens_per_round == 4.0
    assert found.round_s == close(0.00221178370945078)


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
    assert found.round_s == close(0.0457047651)
    assert found.time_per_token_s == close(0.0144666)


def test_bench_serve_without_speculation() -> None:
    found = only("vllm/bench_serve_no_spec_v0.25.1.json")
    assert found.rounds is None and found.tokens_per_round is None
    assert found.target_step_s == close(0.0112658283)


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
    assert plain.target_step_s == pytest.approx(0.01157, abs=5e-6)  # 1 / 86.4
    # 15 / 911 s of a full window
    assert [w.round_s for w in windows[3:]] == pytest.approx([0.01646] * 5, rel=0.01)
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
    assert by["line 5"].round_s == close(5 / 235.49)
    assert by["line 7"].round_s == close(0.02132378)
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
