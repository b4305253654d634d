"""Every sample of SGLang's output: the numbers that are worked out by hand in its comment.

`h` is rounds by accepted tokens, `s` rounds that got as far as a position, `c` conditional acceptance.
"""

from __future__ import annotations

import pytest
from import_samples import all_of, close, only

from simulator.imports.measured import survivors_of


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
    assert found.round_s is None  # nine requests run


def test_decode_log() -> None:
    windows = all_of("sglang/decode_batch.log")
    assert [w.tokens_per_round for w in windows] == [4.40, 3.04, 3.05, 3.00]
    assert [w.lookahead for w in windows] == [5, 3, 3, 3]  # 3.40 / .68 = 5
    # 4.40 / 11.87 s; unknown with nine requests running
    assert [w.round_s for w in windows] == [close(0.37068), None, close(0.0521368), close(0.0518583)]


def test_bench_console_and_nightly() -> None:
    assert only("sglang/bench_serving_console_eagle.txt").tokens_per_round == 3.39
    nightly = only("sglang/nightly_one_batch_metrics.json")
    assert (nightly.tokens_per_round, nightly.batch) == (3.19, 1)
    assert nightly.round_s == close(3.19 / 231.74)
    assert nightly.tokens_per_second == 231.74


def test_decoupled_traces() -> None:
    verifier = only("sglang/decoupled_trace_verifier__verify_worker_timing_constructed.csv")
    # rounds 2 + 2 + 1, drafts 6 + 8 + 0, accepted 5 + 8 + 0, tokens 18 = 13 + 5; 21.6 21.8 21.0 ms
    assert (verifier.rounds, verifier.drafted, verifier.accepted) == (5, 14, 13)
    assert verifier.tokens_per_round == close(18 / 5)
    assert verifier.verify_s == close((0.0216 + 0.0218 + 0.0210) / 3)
    proxy = only("sglang/decoupled_trace_draft_proxy__apply_control_batch_constructed.csv")
    assert (proxy.rounds, proxy.histogram, proxy.cache_hit_rate) == (4, (0, 1, 0, 0, 3), 0.75)
