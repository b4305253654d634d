"""Traffic in simulated time: what steps cost, what they accept, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.surface import GridCost, LatencySurface, Point
from policies.registry import SettingError, configure
from serving.lookahead import parse_lookaheads
from serving.metrics import metrics
from serving.scheduler import EngineOptions
from serving.traffic import ServedRequest, Traffic, generated
from simulator.cli import main
from simulator.costs import Effects, ProfileCosts, TextbookCosts, curvature
from simulator.needs import kv_blocks
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.tokens import coin
from simulator.traffic import Forwards, serve_traffic

DATA = Path(__file__).parents[1] / "data" / "traffic"


def grid(axes: tuple[Any, ...], points: dict[tuple[int, ...], float]) -> LatencySurface:
    return LatencySurface(
        GridCost(axes=axes, points=tuple(Point(at=at, mean_s=s) for at, s in points.items()))
    )


def test_a_mixed_step_by_hand() -> None:
    # A forward of B rows takes 1 + 0.1 B + 0.01 c; a prompt of N tokens 1 + 0.02 N + 0.0001 N^2.
    forward = grid(
        ("batch", "new_tokens", "context"),
        {(b, n, c): 1 + 0.1 * b * n + 0.01 * c for b in (1, 11) for n in (1, 3) for c in (0, 1000)},
    )
    prefill = grid(
        ("batch", "new_tokens"), {(1, n): 1 + 0.02 * n + 0.0001 * n * n for n in (0, 100, 200, 300, 400)}
    )
    assert curvature(prefill) == pytest.approx(0.0002)
    costs = ProfileCosts(
        {"target.forward": forward, "target.prefill": prefill}, effects=Effects(jitter=False), seed=0
    )
    forwards = Forwards(costs, "target")
    assert forwards.mixed(2, 2, 600, ()) == pytest.approx(1.2 + 3.0)
    # 20 decoding tokens of 10 rows over 50 each, and a chunk of 180 after 40: matrices at 200 tokens take
    # 1 + 4 + 4 - 0.0001 (200^2 - 180^2) = 8.24; the history 0.0002 * 180 * 40 = 1.44; the contexts 0.5.
    assert forwards.mixed(10, 20, 500, [(None, 180, 40)]) == pytest.approx(8.24 + 1.44 + 0.5)


def textbook(**more: Any) -> Scenario:
    tokens = coin(0.8, exponent=1.0, scale=1.0, requests=8, length=512, prompt_length=8, seed=1)
    return Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), **more)


def test_constants() -> None:
    """Reads in one step of 1 s, then a token a second; with K = 3 each step takes 0.3 s more."""
    traffic = generated(2, 8, 5, [0.0, 0.0])
    plain, _ = serve_traffic(textbook(), configure("ar"), traffic, EngineOptions())
    assert plain.last_s.tolist() == [5.0, 5.0]
    spoken, _ = serve_traffic(textbook(), configure("sd", lookahead=3), traffic, EngineOptions())
    assert spoken.first_s.tolist() == [1.3, 1.3]
    assert spoken.counts.emitted == 10
    rounds = spoken.end_s / 1.3
    assert rounds == pytest.approx(round(rounds)) and 2 <= round(rounds) <= 5


def test_what_is_accepted_is_the_token_models() -> None:
    """As many tokens a round as a full batch has, whose rounds begin one token later."""
    scenario = textbook(batch=8)
    traffic = generated(8, 8, 512, np.zeros(8))
    served, _ = serve_traffic(scenario, configure("sd", lookahead=4), traffic, EngineOptions())
    full = simulate(scenario, configure("sd", lookahead=4)).summary
    found = metrics(served)
    assert found["tokens_per_round"] == pytest.approx(full.tokens_per_round, rel=0.02)


def test_saturated_decoding_is_the_full_batchs() -> None:
    """Short prompts, as many users as rows: seconds per step are those of the closed loop."""
    tokens = coin(0.8, exponent=1.0, scale=1.0, requests=4, length=256, prompt_length=16, seed=1)
    profile = load_profile(find_profile("h100x4-llama-3.1-70b+llama-3.2-1b"))
    scenario = Scenario(tokens, profile=profile, batch=4, effects=Effects(jitter=False))
    for settings in (configure("ar"), configure("sd", lookahead=4)):
        full = simulate(scenario, settings).summary
        traffic = Traffic((ServedRequest(0.0, 16, 256),) * 4, "full")
        served, _ = serve_traffic(scenario, settings, traffic, EngineOptions())
        found = metrics(served)
        step_s = (served.last_s - served.first_s).sum() / served.counts.rounds
        assert step_s == pytest.approx(full.seconds / full.batch_rounds, rel=0.02)
        assert found["mean_tpot_ms"] == pytest.approx(1e3 * 4 / full.tokens_per_second, rel=0.05)


def test_lookahead_by_batch() -> None:
    """2 tokens drafted for one row, none for two: but the draft reads on, as long as for one token."""
    traffic = generated(2, 8, 6, [0.0, 2.0])
    table = parse_lookaheads("1:2,2:0")
    scenario = Scenario(coin(0.0, exponent=1.0, scale=1.0, requests=1, length=64, prompt_length=8, seed=1),
                        textbook=TextbookCosts(1.0, 0.1))  # fmt: skip
    served, _ = serve_traffic(scenario, configure("sd"), traffic, EngineOptions(), table)
    # Nothing is accepted: a token a step. Steps of one row take 1.2 s, of two 1.1: the first row has said two
    # tokens when the second comes, and says its last four beside it; the second has two left then.
    assert served.last_s.tolist() == pytest.approx([2.4 + 4 * 1.1, 2.4 + 4 * 1.1 + 2 * 1.2])
    # Drafted for a row that is alone: after the first and the second token of the first row, and after the
    # fifth of the second.
    assert served.counts.verified - served.counts.rounds == 2 + 2 + 2


@pytest.mark.parametrize("adapt", ["goodput", "verification"])
def test_adapting_to_load(adapt: Any) -> None:
    """Where verification is free all is drafted; where nothing is accepted, rows soon verify nothing."""
    traffic = generated(4, 8, 100, np.zeros(4))
    options = EngineOptions()
    fixed, _ = serve_traffic(textbook(), configure("sd", lookahead=3), traffic, options)
    found, _ = serve_traffic(textbook(), configure("sd", lookahead=3), traffic, options, adapt)
    assert found.counts.accepted >= 0.95 * fixed.counts.accepted
    profile = load_profile(find_profile("cpu2-x5"))
    tokens = coin(0.0, exponent=1.0, scale=1.0, requests=4, length=512, prompt_length=8, seed=1)
    scenario = Scenario(tokens, profile=profile)
    fixed, _ = serve_traffic(scenario, configure("sd", lookahead=3), traffic, options)
    found, _ = serve_traffic(scenario, configure("sd", lookahead=3), traffic, options, adapt)
    assert found.counts.verified - found.counts.rounds < 0.2 * (fixed.counts.verified - fixed.counts.rounds)
    assert found.end_s < fixed.end_s


def asked(*options: str) -> Any:
    return CliRunner().invoke(main, ["--acceptance", "0.8", *options])


def test_the_command() -> None:
    result = asked("--policy", "sd", "--traffic", str(DATA / "llmservingsim.jsonl"), "--hw", "cpu2-x5",
                   "--slo", "ttft=1,tpot=0.04", "--max-num-seqs", "4", "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["completed"] == found["requests"] == 22
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20515, 2800)
    assert found["engine_options"]["max_num_seqs"] == 4 and found["mean_running"] <= 4
    assert found["offered_rate"] == pytest.approx(2.1)  # 22 calls, sessions' beginnings, in 10 s
    for name in ("ttft", "tpot", "itl", "e2el"):
        low, mid, high = (found[f"{key}_{name}_ms"] for key in ("median", "p90", "p99"))
        assert 0.0 < low <= mid <= high and found[f"mean_{name}_ms"] > 0.0
    assert found["ar"]["completed"] == 22 and found["preemptions"] == 0
    assert 0.0 <= found["request_goodput"] <= found["request_throughput"]


def test_the_table_says_what_the_json_says() -> None:
    options = ("--policy", "ar", "--target-time", "1", "--draft-time", "0.1", "--rate", "0.05",
               "--requests", "5", "--prompt", "100", "--output", "4", "--arrivals", "constant")  # fmt: skip
    table = asked(*options).output
    # Every 20 s a request of one step and three tokens more.
    assert "5 requests, 0.05 requests/s offered" in table
    assert "1000.0" in table and "4000.0" in table
    assert "always enough blocks" in table


def test_the_timeline_has_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    result = asked("--policy", "ar", "--target-time", "1", "--draft-time", "0.1", "--max-concurrency", "3",
                   "--requests", "3", "--output", "2", "--prompt", "8", "--max-num-seqs", "2",
                   "--timeline", str(path))  # fmt: skip
    assert result.exit_code == 0, result.output
    events = json.loads(path.read_text())["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert [step["ts"] for step in steps] == [0, 1e6, 2e6, 3e6]  # two rows for two steps, then the third
    curves = {name: [e["args"][name] for e in events if e["ph"] == "C" and e["name"] == name]
              for name in ("running", "waiting", "blocks")}  # fmt: skip
    assert curves == {"running": [2, 2, 1, 1], "waiting": [1, 1, 0, 0], "blocks": [2, 2, 1, 1]}


def test_blocks_that_there_is_room_for() -> None:
    """An H100 of 80 GiB: 0.9 of it less 16.06e9 of weights, 131,072 a token: 29,205 blocks of 16.

    SD's draft takes 2.47e9 and 32,768 a token of the same memory.
    """
    profile = load_profile(find_profile("h100x1-llama-3.1-8b+llama-3.2-1b"))
    target, draft = profile.roles.target, profile.roles.draft
    memory = target.device.memory_bytes
    assert memory and target.weight_bytes and draft.weight_bytes
    room = 0.9 * memory - target.weight_bytes
    assert kv_blocks(profile, configure("ar"), 16, 0.9) == int(room // (16 * 131_072))
    assert kv_blocks(profile, configure("sd"), 16, 0.9) == int((room - draft.weight_bytes) // (16 * 163_840))
    found = json.loads(asked("--hw", profile.name, "--policy", "sd", "--rate", "2", "--requests", "3",
                             "--gpu-memory-utilization", "0.5", "--json").output)  # fmt: skip
    assert found["engine_options"]["num_gpu_blocks"] == kv_blocks(profile, configure("sd"), 16, 0.5)
    with pytest.raises(SettingError, match="no memory is left"):
        kv_blocks(profile, configure("ar"), 16, 0.1)


def test_the_frontier(tmp_path: Path) -> None:
    """A step of 1 s whatever the rows: a token a second for each user; devices give more under load."""
    path = tmp_path / "frontier.png"
    constants = (
        "--policy",
        "ar",
        "--target-time",
        "1",
        "--draft-time",
        "0.1",
        "--prompt",
        "8",
        "--output",
        "4",
    )
    result = asked(*constants, "--rate", "0.5", "--requests", "30", "--plot", str(path), "--json")
    assert result.exit_code == 0, result.output
    points = json.loads(result.output)["frontier"]
    assert [point["tokens_per_second_per_user"] for point in points] == pytest.approx([1.0] * len(points))
    given = [point["tokens_per_second_per_device"] for point in points]
    assert given == sorted(given) and path.stat().st_size > 10_000
    # At a twentieth of the load 30 requests come in some 1200 s: 120 tokens.
    assert given[0] == pytest.approx(0.1, rel=0.3)


def test_same_seed_same_answer() -> None:
    options = ("--policy", "ar", "--rate", "2", "--requests", "30", "--output", "20", "--json")
    assert asked(*options).output == asked(*options).output != asked(*options, "--seed", "1").output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--slo", "ttft=1"), "--slo goes with --traffic"),
        (("--rate", "1", "--batch", "4"), "--max-num-seqs"),
        (("--rate", "1", "--lookahead", "auto"), "auto"),
        (("--rate", "1", "--policy", "double"), "ar, sd, pld, pearl, saguaro"),
        (("--rate", "1", "--policy", "pearl", "--lookahead-by-batch", "1:2"), "goes with sd"),
        (("--rate", "1", "--burstiness", "2"), "--arrivals gamma"),
        (("--rate", "1", "--time-scale", "2"), "--time-scale goes with --traffic"),
        (("--traffic", str(DATA / "vidur_no_arrivals.csv")), "give --rate"),
        (("--traffic", str(DATA / "vidur.csv"), "--prompt", "5"), "--prompt changes nothing"),
        (("--traffic", str(DATA / "vidur.csv"), "--num-gpu-blocks", "100"), r"request 3 .* needs 145 KV"),
        (("--rate", "1", "--max-model-len", "100"), "longer than max_model_len"),
        (("--rate", "1", "--engine", "compiled"), "--engine compiled"),
        (("--rate", "1", "--gpu-memory-utilization", "0.9", "--num-gpu-blocks", "9"), "in place of"),
        (("--rate", "1", "--adapt", "goodput", "--lookahead-by-batch", "1:2"), "either"),
    ],
)  # fmt: skip
def test_refusals(options: tuple[str, ...], says: str) -> None:
    result = asked("--policy", "sd", "--hw", "cpu2-x5", *options)
    assert result.exit_code == 2
    assert re.search(says, result.output), result.output
