"""`diagnose`: three samples by hand, every sample read, costs against the simulator, a server looked at."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count, pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result
from import_samples import SAMPLES
from simulate_command import answer

from analysis.diagnose import __main__ as command
from analysis.diagnose.account import Load, MeasuredPrices, ProfilePrices, Seen, changes, waterfall
from hardware_profiles.networks import find_network
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from simulator.imports.export import SGLANG, Speculation
from simulator.imports.serve import Serve, read_serve

PAIR = "h100x4-llama-3.1-70b+llama-3.2-1b"
SERVE = (
    "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 --speculative-config "
    '\'{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 5}\''
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command.main, list(arguments))


def diagnosed(sample: str, *arguments: str) -> dict[str, Any]:
    result = run(str(SAMPLES / sample), *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def speeds(found: dict[str, Any]) -> list[float]:
    return [stage["speedup_vs_ar"] for stage in found["waterfall"]]


def test_by_hand_drafting_takes_the_time() -> None:
    """SSD's engine at K = 6: 14.98 ms plain, 15.29 ms to verify, 12.23 ms to draft, 5.03 tokens a round."""
    found = diagnosed("ssd/ssd_engine_llama70b_1b_h100.log", "--select", "line 12")
    plain = 3927.68 / 262144
    # 7; 5.03; 5.03 * 14.983 / (14.983 + 12.23) = 2.769; 5.03 * 14.983 / 27.52 = 2.739
    by_hand = [7.0, 5.03, 5.03 * plain / (plain + 0.01223), 5.03 * plain / 0.02752]
    assert speeds(found) == pytest.approx(by_hand, rel=1e-6)
    # A draft twice as fast: 27.52 / (27.52 - 6.115) = 1.286
    (change,) = found["changes"]
    assert "twice as fast" in change["what"] and change["gain"] == pytest.approx(27.52 / 21.405 - 1, rel=1e-6)


def test_by_hand_nothing_is_accepted() -> None:
    """A broken drafter of 15: windows of 1.054 tokens a round on average, 11.57 ms plain."""
    found = diagnosed("vllm/engine_log_v0.13.0_ar_then_spec.log")
    rounds = (431, 548, 599, 608, 604, 607, 608, 608)
    accepted = (found["tokens_per_round"] - 1.0) * sum(rounds)
    assert accepted == pytest.approx(round(accepted), abs=1e-6)  # of 4613 rounds
    assert found["positions"][0]["acceptance"] < 0.06 and found["speedup_vs_ar"] < 0.75
    hoped, kept, seen = speeds(found)
    assert (hoped, kept) == (16.0, pytest.approx(found["tokens_per_round"]))
    assert seen == pytest.approx(found["tokens_per_round"] * found["plain_s"] / found["round_s"])
    # Without speculation tokens come 1 / 0.707 times as fast.
    assert found["changes"][0] == {
        "what": "no speculation at this load",
        "gain": pytest.approx(1.0 / seen - 1.0),
        "lookahead": 0,
    }


def test_by_hand_too_many_drafted_tokens_at_batch_64() -> None:
    """Timed at batch 64: 8.53 ms plain, 120.57 ms at K = 7, (10.44 + 13.16) / 2 = 11.80 at K = 2."""
    found = diagnosed("vllm/dynamic_speculative_config_eagle1.json", "--batch", "64")
    # 2.48 * 8.53 / 120.57 = 0.1755; K = 2: 2.07 tokens in 11.80 ms, 0.1754 a ms, not 0.02057: 8.53 times.
    assert speeds(found)[-1] == pytest.approx(2.48 * 8.53 / 120.57) == found["speedup_vs_ar"]
    best = found["changes"][0]
    assert best["lookahead"] == 2 and best["gain"] == pytest.approx((2.07 / 11.8) / (2.48 / 120.57) - 1.0)
    assert found["lookahead_by_batch"] == {"1": 3, "4": 3, "16": 3, "32": 3, "64": 2}


EVERY = [str(p.relative_to(SAMPLES)) for p in sorted(SAMPLES.rglob("*.*"))]


def test_every_sample_is_diagnosed_or_refused_in_one_line() -> None:
    ends = dict.fromkeys(("at once", "once one is chosen", "refused"), 0)
    for sample in EVERY:
        result, end = run(str(SAMPLES / sample)), "at once"
        if label := re.search(r"choose one with --select: '?([^',\n]+)", result.stderr):
            result, end = run(str(SAMPLES / sample), "--select", label[1]), "once one is chosen"
        if result.exit_code == 0:
            assert "acceptance" in result.stdout, sample
        else:
            end = "refused"
            assert result.exit_code == 2 and result.stderr.startswith("Error: "), sample
            assert result.stderr.count("\n") == 1, sample
        ends[end] += 1
    # The refused ones hold plain decoding alone, settings, texts, or numbers that contradict each other.
    assert ends == {"at once": 35, "once one is chosen": 7, "refused": 18}


def test_a_composed_round_costs_what_the_simulator_makes_of_it() -> None:
    prices = ProfilePrices(load_profile(find_profile(PAIR)))
    for batch in (1, 16):
        said = answer(
            *shlex.split(f"--policy sd --hw {PAIR} --acceptance 0.8 --batch {batch} --max-tokens 512")
        )
        seen = Seen(4, said["tokens_per_round"], (0.8,) * 4, Load(batch, 128 + 256))
        assert waterfall(seen, prices)[-1].speedup_vs_ar == pytest.approx(said["speedup_vs_ar"], rel=0.03)


def test_stages_by_hand_and_in_order() -> None:
    prices = MeasuredPrices(plain_s=10.0, round_s=24.0, lookahead=4, draft_s=8.0, verify_s=14.0)
    seen = Seen(4, 3.0, (0.8, 0.75, 0.7, 0.65), Load(), plain_s=10.0, round_s=30.0)
    names, values = zip(*((s.effect, s.speedup_vs_ar) for s in waterfall(seen, prices)), strict=True)
    # 5; 3; 3 * 10 / 18; 3 * 10 / 22; with the host's 2: 3 * 10 / 24; seen 3 * 10 / 30
    assert values == pytest.approx((5.0, 3.0, 30 / 18, 30 / 22, 30 / 24, 1.0))
    assert "width" in names[3] and "host" in names[4] and names[5].startswith("seen")
    assert all(later.gain <= first.gain for first, later in pairwise(changes(seen, prices)))


def test_a_draft_that_looks_words_up_costs_nothing_and_one_pass_costs_one() -> None:
    profile, load = load_profile(find_profile(PAIR)), Load(8, 500)
    looked, once, each = (
        ProfilePrices(profile, passes).at(6, load).draft_s or 0.0 for passes in (0, 1, None)
    )
    assert looked == 0.0 < once < each / 4


@pytest.mark.parametrize("method", SGLANG)
def test_serve_lines_that_are_exported_are_read_back(method: str) -> None:
    draft = "org/draft" if method in ("draft_model", "eagle", "eagle3") else None
    flags = Speculation(5, method, draft).flags
    vllm = read_serve(f"vllm serve org/target --tensor-parallel-size 4 {flags['vllm']}")
    assert vllm == Serve("vllm", "org/target", method, 5, None, draft, tp=4)
    sglang = read_serve(f"python -m sglang.launch_server --model-path org/target --tp 4 {flags['sglang']}")
    assert (sglang.target, sglang.method, sglang.draft, sglang.tp) == ("org/target", method, draft, 4)
    assert (sglang.lookahead, sglang.width) == (5, 6)
    if "tensorrt-llm" in flags:
        served = read_serve(f"trtllm-serve org/target --tp_size 4 {flags['tensorrt-llm']}")
        assert served == Serve("tensorrt-llm", "org/target", method, 5, None, draft, tp=4)
    if "llama.cpp" in flags:
        served = read_serve(f"./build/bin/llama-server -m target.gguf {flags['llama.cpp']}")
        assert (served.method, served.lookahead, served.draft) == (method, 5, draft)


def test_a_file_says_what_tensorrt_llm_speculates_with(tmp_path: Path) -> None:
    (tmp_path / "llm.yaml").write_text(
        "# four GPUs\ntensor_parallel_size: 4\nspeculative_config:\n  decoding_type: Eagle3  # lookahead: 9\n"
        "  max_draft_len: 3\n  speculative_model: 'org/head'\ncuda_graph_config: null\n"
    )
    for option in ("--config", "--extra_llm_api_options"):
        read = read_serve(f"trtllm-serve serve org/target {option} {tmp_path}/llm.yaml")
        assert read == Serve("tensorrt-llm", "org/target", "eagle3", 3, None, "org/head", tp=4, eager=True)
    with pytest.raises(ValueError, match=r"other\.yaml: No such file"):
        read_serve(f"trtllm-serve org/target --config {tmp_path}/other.yaml")


def test_heads_are_priced_by_their_kind() -> None:
    # One layer of Llama-3.1-8B is 218.1 M; two states to one 33.6 M (three: 50.3 M); embedding and output
    # 2 * 4096 tokens of 128256 (525.3 M each) or 32000 (131.1 M).
    sizes = {"eagle3": 218.1 + 50.3 + 262.1, "eagle": 218.1 + 33.6 + 1050.7, "mtp": 218.1 + 33.6 + 1050.7}
    for kind, millions in sizes.items():
        assert find_network(f"{kind}:llama-3.1-8b").parameters / 1e6 == pytest.approx(millions, abs=0.2)
    # An MTP layer is a block like the target's others, with its eight experts.
    assert find_network("mtp:mixtral-8x7b").experts == find_network("mixtral-8x7b").experts


def test_other_serve_lines() -> None:
    lines = (SAMPLES / "vllm/speculative_config_examples.jsonl").read_text().splitlines()
    read = [read_serve(f"vllm serve m --speculative-config '{line}' --enforce-eager") for line in lines]
    assert [each.lookahead for each in read] == [3, 3, None, 3, 3, 5, 3] and all(each.eager for each in read)
    assert [each.passes for each in read][:3] == [None, 0, 0]
    dotted = read_serve("CUDA_VISIBLE_DEVICES=0 vllm serve m --speculative-config.num-speculative-tokens 4")
    assert dotted.lookahead == 4
    refused = run(str(SAMPLES / "vllm/prometheus_delta_K7_dflash.json"), "--serve", "ls -l")
    assert refused.exit_code == 2 and "expected vllm serve" in refused.stderr


def page(step: int) -> str:
    """A server whose rounds last 25 ms for 8 rows, two of five drafted tokens accepted."""
    rounds = 1000 * step
    samples = {
        "spec_decode_num_drafts_total": rounds,
        "spec_decode_num_draft_tokens_total": 5 * rounds,
        "spec_decode_num_accepted_tokens_total": 2 * rounds,
        "inter_token_latency_seconds_sum": 0.025 * rounds,
        "inter_token_latency_seconds_count": rounds,
        "prompt_tokens_total": 1200 * step,
        "generation_tokens_total": 3000 * step,
        "request_success_total": 10 * step,
        "num_requests_running": 8,
        "num_requests_waiting": 3,
    }
    text = "".join(f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in samples.items())
    return text + "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {part * step}\n'
        for i, part in enumerate((800, 500, 350, 250, 100))
    )


@contextmanager
def serving() -> Iterator[str]:
    """A server of such pages, a new one each time."""
    steps = count(1)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(page(next(steps)).encode() if found else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_is_looked_at_twice() -> None:
    with serving() as url:
        result = run(url, "--every", "0.05", "--serve", SERVE, "--hw", "h100", "--batch", "8", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    # 1 + 2 accepted tokens; 25 ms a round; (1200 + 3000 / 2) / 10 = 270 tokens of context
    assert (found["tokens_per_round"], found["lookahead"]) == (3.0, 5)
    assert found["load"] == {"batch": 8.0, "context": 270.0, "prompt_per_token": 0.4}
    assert found["round_s"] == pytest.approx(0.025)
    assert "prefills of other requests" in [stage["effect"] for stage in found["waterfall"]]
    assert set(found["engines"]) <= {"vllm"}


def test_watching_prints_a_row_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [command.Page(page(step), at=float(step)) for step in (1, 2, 3)]
    monkeypatch.setattr(command, "_pages", lambda url, every: iter(pages))
    result = run("--watch", "http://somewhere", "--serve", SERVE, "--hw", "h100")
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert len(rows) == 2 and "tokens/round" in head
    # 1000 rounds of 25 ms in a second are 25 rows; 3000 tokens/s
    assert rows[0].split()[1:7] == ["25.0", "3", "3000", "3.00", "0.80", "25.00"]
    assert max(map(len, rows)) <= 160
    assert run("--watch", str(Path(__file__))).exit_code == 2


def test_a_server_that_does_not_answer_is_one_line() -> None:
    refused = run("http://127.0.0.1:9/metrics")
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_a_terminal_and_a_file_without_colour(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    sample = str(SAMPLES / "vllm/prometheus_delta_K7_dflash.json")
    shown = run(sample, "--hw", PAIR, "--batch", "64", "--context", "4000").stdout
    lines = [
        line for line in shown.splitlines() if not line.startswith(("vllm:", "sglang:"))
    ]  # to paste: whole
    assert max(map(len, lines)) <= columns and "\x1b" not in shown and "fastest K by batch" in shown
