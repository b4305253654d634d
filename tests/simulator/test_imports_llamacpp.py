"""Every sample of llama.cpp's output: the numbers that are worked out by hand in its comment.

`h` is rounds by accepted tokens, `s` rounds that got as far as a position, `c` conditional acceptance.
"""

from __future__ import annotations

import pytest
from import_samples import all_of, close, labelled, only

from simulator.imports.measured import survivors_of


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
    assert found.draft_s_per_round == close(0.00374201)


def test_llama_server_timings() -> None:
    name = "llamacpp/server_timings_b9789_qwen7b_draft05b.json"
    cuda, vulkan = (labelled(name, f"{b} draft_0_5b code_linkedlist") for b in ("cuda", "vulkan"))
    for found in (cuda, vulkan):  # 256 - 207 = 49 forwards, 256 / 49, 207 / 237
        assert found.rounds is None
        assert found.tokens_per_target_forward == close(5.22448980)
        assert found.accepted_share == close(0.87341772)
    assert (cuda.round_s, vulkan.round_s) == (close(0.31350955), close(0.07770176))
    plain = labelled(name, "cuda baseline code_linkedlist")
    assert plain.target_step_s == close(3.007936 / 256)
    old = only("llamacpp/server_timings_pr12603.json")  # 200 - 65 = 135
    assert old.tokens_per_target_forward == close(200 / 135)
    assert (old.accepted_share, old.round_s) == (close(65 / 347), close(0.08209338))


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
    assert (found.prefill_s, found.prefill_tokens) == (close(0.07213564), 512)
    assert found.target_step_s == close(0.00841224906)
    cpu = only("llamacpp/llama_bench_small_pp_cpu.md")  # 2 / 7.64 = 261.8 ms
    forward = dict(cpu.forward_s)
    assert [forward[n] for n in (1, 2, 4, 8, 16)] == close([0.25707, 0.26178, 0.25940, 0.27491, 0.30728])
    assert cpu.target_step_s == close(0.25445)
    moe = only("llamacpp/llama_bench_small_pp_sycl_moe.md")
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
    assert [m.target_step_s for m in (one, eight)] == close([0.246914, 0.059844])  # 1 / 4.05
    assert [m.prefill_s for m in (one, eight)] == close([10.372771, 1.982038])  # 64 / 6.17
    assert [m.target_step_s for m in (flat, deep)] == close([0.00829187, 0.00856825])


def test_llama_batched_bench() -> None:
    short, _ = all_of("llamacpp/batched_bench_llama7b.md")
    steps = {1: 0.024055, 2: 0.039289, 4: 0.053734, 8: 0.057375, 16: 0.066055, 32: 0.068758}
    assert dict(short.step_s_by_batch) == close(steps)  # 3.079 / 128
    assert only("llamacpp/batched_bench.jsonl").step_s_by_batch == ((1, close(0.0273725)),)
