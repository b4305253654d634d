"""Import, simulate, export, for every sample; and what a joint rate taken for a conditional one would do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.records import plain, record
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.imports.export import Speculation, engine_lines
from simulator.imports.formats import read_file
from simulator.imports.measured import (
    Imported,
    ImportRefused,
    acceptance_of,
    conditional_of,
    histogram_of,
    iid_acceptance,
    joint_of,
    pool,
    survivors_of,
    write_acceptance,
)
from simulator.run import Scenario, simulate
from simulator.tokens import histogram
from simulator.tokens.acceptance import AcceptanceFile, load_acceptance

SAMPLES = Path(__file__).parents[1] / "data" / "imports"
LONG = 6_000

# file, label of the measurement (None: the only one; "pool": all), K, tokens per round (worked out in
# the files of samples by engine).
BY_POSITION = [
    ("vllm/prometheus_v0.25.1_K3_all_accepted.prom", None, 3, 4.0),
    ("vllm/prometheus_delta_K7_dflash.json", None, 7, 2.6146),  # 1 + 10130 / 6274
    ("vllm/prometheus_K7_dflash_after.prom", None, 7, 2.6128),  # 1 + 10280 / 6374
    ("vllm/prometheus_K7_dflash_before.prom", None, 7, 2.5),  # 1 + 150 / 100
    ("vllm/prometheus_dp2_constructed.prom", None, 5, 2.9189),  # 1 + 71 / 37
    ("vllm/bench_serve_spec_v0.25.1.json", None, 3, 3.1611),  # 1 + 2723 / 1260
    ("vllm/bench_serve_console_mtp_K4.txt", None, 4, 2.3315),  # 1 + 55458 / 41650
    ("vllm/spec_decoding_log_v1_0.13_plus.log", "pool", 15, 3.1148),  # 1 + 884 / 418
    # 19 + 24 + 59 + 60 + 16 + 34 + 12 + 26 = 250 of 431 + 548 + 599 + 608 + 604 + 607 + 608 + 608 = 4613
    ("vllm/engine_log_v0.13.0_ar_then_spec.log", "pool", 15, 1.0542),
    ("vllm/spec_decoding_log_history.log", "line 3", 5, 5.4407),  # 1 + 262 / 59
    ("vllm/spec_decoding_log_history.log", "line 5", 5, 2.6306),  # 1 + 768 / 471
    ("vllm/spec_decoding_log_history.log", "line 8", 24, 1.78),
    ("vllm/per_request_summary_v0.32_docs.json", None, 3, 1.2326),  # 1 + 10 / 43
    ("vllm/per_request_summary_real_K7.json", None, 7, 6.0909),  # 1 + 168 / 33
    # full drafts, where the source's 2.4 has short ones: 1 + .8 + .8 x 2/3 + .8 x 2/3 x 1
    ("vllm/per_request_detailed_constructed.json", None, 3, 2.8667),
    ("vllm/dynamic_speculative_config_eagle1.json", None, 7, 2.48),  # 1 + 1.48
    ("sglang/meta_info_2026-02_with_histogram.json", None, 4, 4.2667),  # 1 + 98 / 30
    ("sglang/meta_info_2026_new_and_alias_names.json", None, 5, 4.3333),  # 1 + 70 / 21
    ("sglang/sglext_spec_tokens_details_2026-08.json", None, 5, 2.4651),  # 1 + 63 / 43
    ("sglang/speculative_decoding_stats_detailed_constructed.json", None, 5, 3.5),  # 1 + 5 / 2
    ("sglang/decoupled_trace_draft_proxy__apply_control_batch_constructed.csv", None, 4, 4.25),  # 1 + 13 / 4
    ("llamacpp/server_metrics_2026.prom", None, 4, 4.8134),  # 1 + 2105 / 552
    ("llamacpp/server_eagle3_2026-06.log", None, 3, 2.9195),  # 1 + 167 / 87
    ("llamacpp/ik_llama_spec_bench.md", "code 1", 3, 3.4455),  # 1 + 538 / 220
    ("llamacpp/ik_llama_spec_bench.md", "extract 1", 3, 3.409),  # 1 + .913 + .800 + .696
    ("specbench/rest_mtbench_3rows.jsonl", None, 3, 1.5938),  # 102 / 64; 4 tokens a round at most
    ("specbench/specbench_answers_constructed.jsonl", None, 4, 2.5714),  # 18 / 7
    ("trainers/speculators_acceptance_constructed.csv", None, 7, 2.6146),
    ("trainers/speculators_perf_results_constructed.csv", "HumanEval synchronous", 7, 2.6146),
    ("other/aiperf_pooled_histogram_illustrative.json", None, 5, 3.2),  # 1 + 56320 / 25600
]

# The same with a mean only: refused without --assume-iid; K is stated by the test where the source has none.
MEAN_ONLY = [
    ("vllm/spec_decoding_log_history.log", "line 1", None, 3, 2.3926),  # 10616 / 4437
    ("sglang/meta_info_2025-11_old_names.json", None, None, 5, 1.0585),  # 1 + 11 / 188
    ("sglang/metrics_gauges_constructed.prom", None, None, 3, 3.04),
    ("sglang/decode_batch.log", "line 1", None, 5, 4.40),
    ("sglang/bench_serving_console_eagle.txt", None, 5, 5, 3.39),
    ("sglang/nightly_one_batch_metrics.json", None, 3, 3, 3.19),
    ("sglang/decoupled_trace_verifier__verify_worker_timing_constructed.csv", None, None, 4, 3.6),  # 18 / 5
    ("llamacpp/server_timings_b9789_qwen7b_draft05b.json", "cuda draft_0_5b code_linkedlist", 8, 8, 5.2245),
    ("llamacpp/server_timings_pr12603.json", None, 8, 8, 1.4815),  # 200 / 135
    ("llamacpp/speculative_closing_2023.log", None, 53, 53, 7.6),  # 266 / 35
    ("llamacpp/speculative_closing_2023_fixed_draft.log", None, 16, 16, 6.1860),  # 266 / 43
    ("llamacpp/speculative_closing_poor_draft.log", None, 8, 8, 1.5732),  # 129 / 82
    (
        "trainers/specforge_spec_bundle_llama8b.json",
        "gsm8k steps=3 topk=1 lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge",
        None,
        3,
        2.5482,
    ),
    ("ssd/ssd_engine_llama1b_self_k6.log", None, None, 6, 3.78),
    ("ssd/ssd_profile_constructed.log", None, None, 6, 3.875),  # 62 / 16
]

SPEEDS_ONLY = [
    "vllm/prometheus_scientific_notation_K1.prom",
    "vllm/bench_serve_no_spec_v0.25.1.json",
    "llamacpp/llama_bench_pp512_tg128.json",
    "llamacpp/llama_bench_small_pp_cpu.md",
    "llamacpp/llama_bench_small_pp_sycl_moe.md",
    "llamacpp/llama_bench_threads_pp64_tg16.md",
    "llamacpp/batched_bench_llama7b.md",
    "llamacpp/batched_bench.jsonl",
    "specbench/rest_mtbench_baseline_3rows.jsonl",
    "specbench/specbench_baseline_constructed.jsonl",
    "other/guidellm_sweep_constructed.json",
    "pearl/pearl_humaneval_constructed.jsonl",
    "pearl/pearl_mtbench_constructed.jsonl",
    "pearl/nano_pearl_log_constructed.log",
]

ELSEWHERE = [  # refused as a whole, or of several runs: see the files by engine
    "vllm/speculative_config_examples.jsonl",
    "sglang/adaptive_config_default.json",
    "specbench/question_4rows.jsonl",
    "other/aiperf_record_illustrative.json",
    "ssd/ssd_engine_llama70b_1b_h100.log",
]


def chosen(name: str, label: str | None) -> Imported:
    measured = read_file(SAMPLES / name).measured
    if label is None:
        (found,) = measured
        return found
    if label == "pool":
        return pool([m for m in measured if m.label != "plain"])
    return next(m for m in measured if m.label == label)


def simulated(acceptance: AcceptanceFile, lookahead: int) -> tuple[float, int]:
    """Tokens per round of SD with these tokens, and the number of rounds."""
    tokens = histogram(
        acceptance.acceptance_at_position,
        rejected=[(0.0,)],
        free=(0.0,),
        requests=1,
        length=LONG,
        prompt_length=1,
        seed=3,
    )
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    summary = simulate(scenario, configure("sd", lookahead=lookahead)).summary
    assert summary.tokens_per_round is not None
    return summary.tokens_per_round, summary.rounds


def round_trip(acceptance: AcceptanceFile, lookahead: int, length: float, tmp_path: Path) -> None:
    write_acceptance(tmp_path / "a.json", acceptance)
    again = load_acceptance(tmp_path / "a.json")
    assert again == acceptance
    assert (again.lookahead, again.source.file) == (lookahead, acceptance.source.file)
    found, rounds = simulated(again, lookahead)
    # Accepted tokens of a round lie in 0 ... K; their variance follows from the joint rates:
    # E[j^2] = sum (2 i - 1) a_i.  Four standard errors, plus the last round, which the limit may cut.
    joint = again.joint_acceptance_at_position
    mean = sum(joint)
    variance = math.fsum((2 * i - 1) * a for i, a in enumerate(joint, 1)) - mean**2
    assert 1.0 + mean == pytest.approx(length, abs=2e-3)
    assert found == pytest.approx(
        1.0 + mean, abs=4 * math.sqrt(max(variance, 0.0) / rounds) + 2 * lookahead / rounds
    )
    setting = Speculation(lookahead, model="d")
    assert json.loads(setting.vllm_config)["num_speculative_tokens"] == lookahead
    assert f"--speculative-num-steps {lookahead} " in setting.flags["sglang"]
    assert f"--spec-draft-n-max {lookahead} " in setting.flags["llama.cpp"]


def test_every_sample_is_accounted_for() -> None:
    files = {str(p.relative_to(SAMPLES)) for p in SAMPLES.rglob("*") if p.is_file()}
    told = {row[0] for row in BY_POSITION} | {row[0] for row in MEAN_ONLY} | set(SPEEDS_ONLY) | set(ELSEWHERE)
    assert files == told


@pytest.mark.parametrize(("name", "label", "lookahead", "length"), BY_POSITION)
def test_round_trip_by_position(
    name: str, label: str | None, lookahead: int, length: float, tmp_path: Path
) -> None:
    acceptance = acceptance_of(chosen(name, label), name)
    assert not [a for a in acceptance.assumed if not a.startswith("lookahead")]
    round_trip(acceptance, lookahead, length, tmp_path)


@pytest.mark.parametrize("row", MEAN_ONLY, ids=lambda row: row[0])
def test_round_trip_of_a_mean(row: tuple[str, str | None, int | None, int, float], tmp_path: Path) -> None:
    name, label, told, lookahead, length = row
    measured = chosen(name, label)
    with pytest.raises(ImportRefused, match="--assume-iid"):
        acceptance_of(measured, name, lookahead=told)
    acceptance = acceptance_of(measured, name, lookahead=told, assume_iid=True)
    assert "alone" in acceptance.assumed[0]
    round_trip(acceptance, lookahead, length, tmp_path)


def test_the_runs_of_an_ssd_log_one_by_one(tmp_path: Path) -> None:
    name = "ssd/ssd_engine_llama70b_1b_h100.log"
    plain, sd, ssd = read_file(SAMPLES / name).measured
    with pytest.raises(ImportRefused, match="neither acceptance per position"):
        acceptance_of(plain, name)
    round_trip(acceptance_of(sd, name, assume_iid=True), 6, 5.03, tmp_path)
    round_trip(acceptance_of(ssd, name, assume_iid=True), 7, 5.47, tmp_path)


@pytest.mark.parametrize("name", SPEEDS_ONLY)
def test_speeds_alone_make_no_acceptance(name: str) -> None:
    for measured in read_file(SAMPLES / name).measured:
        with pytest.raises(ImportRefused, match=r"neither acceptance per position"):
            acceptance_of(measured, name, assume_iid=True)


# ---- joint is not conditional


def test_joint_mistaken_for_conditional_gives_another_answer() -> None:
    """A planted bug: the engine's "per-position acceptance rate" fed in as if it were conditional."""
    measured = chosen("vllm/prometheus_delta_K7_dflash.json", None)
    joint = measured.joint_acceptance_at_position
    assert joint is not None
    right = acceptance_of(measured, "x")
    wrong = right.but(acceptance_at_position=joint, joint_acceptance_at_position=joint_of(joint))
    # 1 + .6717 + .6717 x .4036 + .6717 x .4036 x .2152 + ... = 2.01, against 2.61
    assert simulated(right, 7)[0] == pytest.approx(2.6146, abs=0.06)
    assert simulated(wrong, 7)[0] == pytest.approx(2.0095, abs=0.06)
    # The file holds both lists, so that such a mix-up does not load.
    with pytest.raises(ValueError, match="running product"):
        record(AcceptanceFile, {**plain(right), "acceptance_at_position": list(joint)})


def test_a_list_that_rises_is_not_joint() -> None:
    with pytest.raises(ImportRefused, match="rises is not joint"):
        Imported.from_joint([0.6, 0.7], rounds=10, accepted=13, engine="e", source="s")


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=17).filter(any))
def test_histogram_conditional_joint_histogram_is_the_identity(histogram: list[int]) -> None:
    rounds = sum(histogram)
    measured = Imported.from_histogram(histogram, engine="e", source="s")
    assert measured.acceptance_at_position is not None
    joint = joint_of(measured.acceptance_at_position)
    assert joint == pytest.approx(measured.joint_acceptance_at_position, abs=1e-12)
    survivors = [round(share * rounds) for share in joint]
    assert list(histogram_of(rounds, survivors)) == histogram
    assert survivors == list(survivors_of(histogram))


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=16))
def test_conditional_joint_conditional_is_the_identity(conditional: list[float]) -> None:
    assert conditional_of(joint_of(conditional)) == pytest.approx(conditional, rel=1e-9)


@given(st.floats(0.0, 1.0), st.integers(1, 20))
def test_iid_acceptance_inverts_the_mean(acceptance: float, lookahead: int) -> None:
    length = math.fsum(acceptance**i for i in range(lookahead + 1))
    assert iid_acceptance(length, lookahead) == pytest.approx(acceptance, abs=1e-6)


def test_the_words_are_those_of_the_recommendation() -> None:
    lines = engine_lines(configure("pld", lookahead=5), "big", "unused")
    assert json.loads(lines["vllm"].split("--speculative-config ")[1].strip("'")) == json.loads(
        Speculation(5, "ngram").vllm_config
    )
    assert lines["sglang"].endswith(Speculation(5, "ngram").flags["sglang"])
