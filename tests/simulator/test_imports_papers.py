"""Every sample of research code, trainers and load generators: the numbers worked out by hand in comments.

`h` is rounds by accepted tokens, `s` rounds that got as far as a position, `c` conditional acceptance.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from import_samples import SAMPLES, all_of, check_dflash, close, only

from simulator.imports.formats import read_file
from simulator.imports.measured import ImportRefused, survivors_of


def test_rest(tmp_path: Path) -> None:
    found = only("specbench/rest_mtbench_3rows.jsonl")
    # rounds 21 + 18 + 25 (idxs + 1), tokens 36 + 36 + 30; 102 / 64; ratio of sums 102 / 2.0371
    assert (found.rounds, found.accepted) == (64, 102 - 64)
    assert found.tokens_per_round == close(1.59375)
    assert found.tokens_per_second == close(50.071)
    rows = (SAMPLES / "specbench/rest_mtbench_3rows.jsonl").read_text().splitlines()
    for row, rounds, tokens, wall_s in zip(
        rows, (21, 18, 25), (36, 36, 30), (0.62150836, 0.56105614, 0.8545289), strict=True
    ):
        (tmp_path / "row.jsonl").write_text(row)
        (one,) = read_file(tmp_path / "row.jsonl").measured
        assert one.rounds == rounds and one.accepted == tokens - rounds
        assert one.tokens_per_second == close(tokens / wall_s)
    baseline = only("specbench/rest_mtbench_baseline_3rows.jsonl")
    assert (baseline.rounds, baseline.accepted, baseline.joint_acceptance_at_position) == (102, 0, None)
    assert baseline.tokens_per_second == close(38.7633)
    assert found.tokens_per_second / 38.7633 == pytest.approx(1.2917, abs=1e-4)


def test_spec_bench() -> None:
    found = only("specbench/specbench_answers_constructed.jsonl")
    # 3 + 1 + 5 + 2 = 11, 4 + 1 + 2 = 7; 18 / 7; 18 / .74 s
    assert (found.rounds, found.tokens_per_round) == (7, close(2.57142857))
    assert found.histogram == (2, 2, 1, 1, 1)
    assert found.tokens_per_second == close(24.32432432)
    baseline = only("specbench/specbench_baseline_constructed.jsonl")
    assert (baseline.rounds, baseline.tokens_per_second) == (18, close(16.66666667))


def test_specforge() -> None:
    rows = [
        m
        for m in all_of("trainers/specforge_spec_bundle_llama8b.json")
        if m.label.startswith("gsm8k steps=3 ")
    ]
    plain, _, second = rows
    # 2.5482 / 321.25 = 7.93 ms; 1 / 181.81 = 5.50 ms
    assert (second.lookahead, second.tokens_per_round) == (3, close(2.5481878))
    assert (second.round_s, plain.target_step_s) == (close(0.0079321), close(0.0055002))


def test_speculators() -> None:
    check_dflash(only("trainers/speculators_acceptance_constructed.csv"))
    rows = all_of("trainers/speculators_perf_results_constructed.csv")
    assert [row.time_per_token_s for row in rows] == close([0.0166, 0.0221])
    for row in rows:
        check_dflash(row)


def test_ssd_log() -> None:
    plain, sd, ssd = all_of("ssd/ssd_engine_llama70b_1b_h100.log")
    assert plain.target_step_s == close(3927.68 / 262144)
    assert plain.tokens_per_second == pytest.approx(66.74, abs=0.005)
    # (5.03 - 1) / 6 = .6717 of 6; (27.52 - 15.29) / 6 = 2.04 ms per drafted token
    assert (sd.lookahead, sd.tokens_per_round) == (6, 5.03)
    assert sd.draft_s_per_round == close(6 * 0.00203833)
    assert (sd.round_s, sd.verify_s) == (close(0.02752), close(0.01529))
    assert sd.tokens_per_second == pytest.approx(181.69, abs=0.01)  # 262144 / 1442.85
    assert (ssd.lookahead, ssd.tokens_per_round, ssd.cache_hit_rate) == (7, 5.47, 0.88)
    assert (ssd.tokens_per_round_on_hit, ssd.tokens_per_round_on_miss) == (5.68, 4.01)
    assert ssd.joint_acceptance_on_hit == close((0.870, 0.776, 0.706, 0.648, 0.600, 0.558, 0.523))
    expected = (0.870, 0.892, 0.910, 0.918, 0.926, 0.930, 0.937)
    assert ssd.acceptance_on_hit == pytest.approx(expected, abs=6e-4)
    assert ssd.acceptance_at_position is None  # of all rounds only the mean is logged
    assert ssd.draft_s_per_round is None  # it overlaps the verification


def test_ssd_log_without_a_miss_row() -> None:
    found = only("ssd/ssd_engine_llama1b_self_k6.log")
    # 3.78 = .79 x 4.50 + .21 x: x = (3.78 - 3.555) / .21
    assert (found.tokens_per_round, found.cache_hit_rate, found.tokens_per_round_on_hit) == (3.78, 0.79, 4.5)
    assert found.tokens_per_round_on_miss == close(1.0714286)


def test_ssd_profile() -> None:
    found = only("ssd/ssd_profile_constructed.log")
    # hits 7 + 6 of 16 rows, 33 + 29 tokens with the bonus; 21.4 and 21.2 ms
    assert (found.rounds, found.cache_hit_rate, found.tokens_per_round) == (16, 13 / 16, 62 / 16)
    assert found.verify_s == close((0.0214 + 0.0212) / 2)
    assert found.draft_s_per_round == close(0.0156)


def test_pearl() -> None:
    # (200 + 312) / (4 + 6): the first prompt warms up
    assert only("pearl/pearl_humaneval_constructed.jsonl").tokens_per_second == close(51.2)
    assert only("pearl/pearl_mtbench_constructed.jsonl").tokens_per_second == close(410 / 8)
    nano = only("pearl/nano_pearl_log_constructed.log")
    assert (nano.run_length, nano.tokens_per_round) == (close((8.08 + 7.0) / 2), None)
    assert nano.tokens_per_second == close(199.0)


def test_load_generators() -> None:
    synchronous, constant = all_of("other/guidellm_sweep_constructed.json")  # `throughput` is left out
    assert (synchronous.time_per_token_s, constant.label) == (close(0.0166), "constant 2/s")
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
