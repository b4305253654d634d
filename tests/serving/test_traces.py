"""Twenty invented requests in every layout: the totals are worked by hand in the comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.scheduler import EngineOptions
from serving.traces import read_traffic
from serving.traffic import ServedRequest, Traffic, TrafficError, arrival_times

DATA = Path(__file__).parents[1] / "data" / "traffic"
# 512+1024+96+2048+300+513+40+4096+1024+150+777+1536+64+3000+1+900+1024+250+2560+600
PROMPTS, OUTPUTS = 20515, 2800


@pytest.mark.parametrize("name", ["mooncake.jsonl", "azure2023.csv", "vidur.csv"])
def test_all_twenty(name: str) -> None:
    traffic = read_traffic(DATA / name)
    assert len(traffic.requests) == 20
    assert (traffic.prompt_tokens, traffic.output_tokens) == (PROMPTS, OUTPUTS)
    assert traffic.span_s == pytest.approx(10.0)
    third, fourth = traffic.requests[3:5]  # together, in the order of the file
    assert third.arrival_s == fourth.arrival_s == pytest.approx(1.2)
    assert (third.prompt, fourth.prompt) == (2048, 300)


def test_mooncake_blocks() -> None:
    whole = read_traffic(DATA / "mooncake.jsonl", block_size=512).requests
    seen, hits = set[int](), 0
    for request in whole:
        leading = 0
        for block in request.blocks:
            if block not in seen:
                break
            leading += 1
        hits += leading
        seen |= set(request.blocks)
    assert hits == 18  # rows 3, 5, 8, 10, 11, 13, 16, 18, 19: 2+1+2+1+2+3+2+4+1, all full blocks
    assert len(whole[5].blocks) == 1  # 513 tokens: one full block
    fine = read_traffic(DATA / "mooncake.jsonl", block_size=16).requests
    assert len(fine[0].blocks) == 32 and len(fine[14].blocks) == 0
    with pytest.raises(TrafficError, match="no multiple of 48"):
        read_traffic(DATA / "mooncake.jsonl", block_size=48)


def test_burstgpt_leaves_out_what_failed() -> None:
    traffic = read_traffic(DATA / "burstgpt.csv")
    assert traffic.skipped == (("failed", 2),)
    assert (len(traffic.requests), traffic.prompt_tokens, traffic.output_tokens) == (18, 20474, 2772)
    assert [r.arrival_s for r in traffic.requests][:6] == [0, 0, 0, 1, 1, 1]


def test_azure_passes_midnight() -> None:
    requests = read_traffic(DATA / "azure2023.csv").requests
    assert requests[1].arrival_s == pytest.approx(0.2500001, abs=1e-12)  # seven decimals
    assert requests[10].arrival_s == pytest.approx(5.0)


def test_azure_2024(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,2\n")
    assert read_traffic(path).requests == (ServedRequest(0.0, 5, 2),)


def test_lengths_alone() -> None:
    traffic = read_traffic(DATA / "vidur_no_arrivals.csv")
    assert not traffic.timed
    assert traffic.prompt_tokens + traffic.output_tokens == 23315


def test_sharegpt_as_vllm_filters_it() -> None:
    traffic = read_traffic(DATA / "sharegpt.json")  # rows 3, 7, 11, 13, 14, 18 go
    assert (len(traffic.requests), traffic.prompt_tokens, traffic.output_tokens) == (14, 7274, 2317)
    assert not traffic.timed and traffic.skipped[0][1] == 6


def test_llmservingsim_session() -> None:
    requests = read_traffic(DATA / "llmservingsim.jsonl").requests
    assert len(requests) == 22
    assert (sum(r.prompt for r in requests), sum(r.output for r in requests)) == (PROMPTS, OUTPUTS)
    assert [(r.after, r.pause_s) for r in requests[19:]] == [(None, 0.0), (19, 0.5), (20, 0.25)]
    one, two = requests[6].blocks, requests[12].blocks  # 40 and 64 tokens that share their first 32
    assert len(one) == 2 and len(two) == 4 and one == two[:2]


def test_blis_serves_what_was_ok() -> None:
    traffic = read_traffic(DATA / "blis_trace.csv")
    assert traffic.skipped == (("failed", 2),)
    assert (len(traffic.requests), traffic.prompt_tokens, traffic.output_tokens) == (18, 20474, 2772)
    assert traffic.span_s == pytest.approx(10.0)


MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": %s}\n'
CALL = '{"input_toks": 5, "output_toks": 3, "arrival_time_ns": 0, %s}\n'
HEAD = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "-1,5,5\n", r"x.csv:2: arrived_at: expected a number of at least 0"),
        (HEAD + "nan,5,5\n", r"x.csv:2: arrived_at"),
        (HEAD + "2,5,5\n1,5,5\n", r"request 1 arrives at 1 s, before the one above it \(2 s\)"),
        (HEAD + "0,0,5\n", r"request 0 has 0 prompt and 5 output tokens"),
        (HEAD + "0,5,2.5\n", r"x.csv:2: num_decode_tokens: expected a whole number"),
        (HEAD + "0,5\n", r"x.csv:2: num_decode_tokens is missing"),
        (HEAD, "there is no request in it"),
        ("a,b\n1,2\n", "no known trace"),
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n',
            "1 hash_ids for 600",
        ),
        ('{"input_toks": 5', "x.csv:1"),
        (HEAD + "0,1e300,5\n", "0 to 16,777,216, got 1e\\+300"),
        (HEAD + "1e20,5,5\n", "expected a time from 0 to 1e"),
        (MOONCAKE % "[[1], 2]", "hash_ids: expected a list of whole numbers"),
        (MOONCAKE % "7", "hash_ids: expected a list of whole numbers"),
        (CALL % '"input_tok_ids": "hello"', "input_tok_ids: expected a list of whole numbers"),
        ('{"sub_requests": [1], "arrival_time_ns": 3}', "sub_requests: expected a list of objects"),
    ],
)
def test_bad_traffic(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(TrafficError, match=says):
        read_traffic(path)


def test_what_never_fits_is_refused_by_name() -> None:
    traffic = Traffic((ServedRequest(0.0, 4, 4), ServedRequest(0.0, 100, 20)), "x")
    EngineOptions(num_gpu_blocks=8).check(traffic)  # 120 tokens: 8 blocks of 16
    with pytest.raises(TrafficError, match=r"request 1 .* needs 8 KV blocks of 16, and num_gpu_blocks is 7"):
        EngineOptions(num_gpu_blocks=7).check(traffic)
    with pytest.raises(TrafficError, match=r"request 1 .* longer than max_model_len 119"):
        EngineOptions(max_model_len=119).check(traffic)
    with pytest.raises(TrafficError, match="without chunked prefill"):
        EngineOptions(max_num_seqs=8, max_num_batched_tokens=64, enable_chunked_prefill=False).check(traffic)
    with pytest.raises(TrafficError, match="max_num_batched_tokens 64 is less than max_num_seqs 256"):
        EngineOptions(max_num_batched_tokens=64).check(traffic)


def test_made_up_arrivals() -> None:
    assert arrival_times(3, 2.0, "constant").tolist() == [0.5, 1.0, 1.5]
    for kind, burstiness, variance in (("poisson", 1.0, 1.0), ("gamma", 0.25, 4.0)):
        gaps = arrival_times(20_000, 4.0, kind, burstiness=burstiness, seed=3)  # type: ignore[arg-type]
        gaps = gaps[1:] - gaps[:-1]
        assert gaps.mean() == pytest.approx(0.25, rel=0.05)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(variance, rel=0.1)  # 1 / burstiness
    assert (arrival_times(9, 1.0, seed=1) == arrival_times(9, 1.0, seed=1)).all()
    assert (arrival_times(9, 1.0, seed=1) != arrival_times(9, 1.0, seed=2)).all()


def test_scaled_and_cut() -> None:
    traffic = read_traffic(DATA / "llmservingsim.jsonl")
    assert traffic.scaled(0.5).span_s == pytest.approx(5.0)
    assert len(traffic.cut(20).requests) == 20
    assert len(traffic.cut(duration_s=1.2).requests) == 3  # 0, 0.25, 0.7: the next ones come at 1.2
    with pytest.raises(TrafficError, match="above 0"):
        traffic.scaled(0.0)
