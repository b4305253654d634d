"""The `recommend` command: keys, tables, settings to paste, errors."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from simulate_command import answer as simulated
from tiny_profiles import profile, trace

from analysis.recommend.__main__ import main
from analysis.recommend.report import (
    commands,
    engines,
    reasons,
    setting_text,
    without_acceptance_sweep,
)
from analysis.sources import Sources
from analysis.studies.family import setting_from as setting_of
from hardware_profiles.profile import save_profile
from hardware_profiles.trace import write_trace
from policies.registry import Settings, configure
from simulator.imports.export import engine_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose draft is right three times out of four, and its trace."""
    folder = tmp_path_factory.mktemp("tiny")
    save_profile(profile(linear=True, model_error=0.02), folder / "tiny.json")
    ranks = [[0, 0, 0, 1] * 6] * 8
    write_trace(trace(ranks, categories=["code", "prose"] * 4), folder / "tiny.parquet")
    return folder


def call(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--hw", str(folder / "tiny.json"), *arguments])


def test_json_has_the_documented_keys(folder: Path) -> None:
    result = call(folder, "--json", "--prompt-category", "code")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {
        "winner", "margin_vs_ar", "margin_vs_sd", "runner_up", "distinguishable", "best_of_each_policy",
        "why", "flips", "paste", "extrapolated", "devices", "batch", "temperature", "level", "model_error",
    } <= set(found)  # fmt: skip
    assert found["trace"] == {"prompts": "made up", "category": "code", "requests": 4, "acceptance": 0.75}
    winner = found["winner"]
    assert set(winner["speedup_vs_ar"]) == {"low", "middle", "high", "level"}
    assert set(winner["ms_per_token"]) == {"target_alone", "both", "draft_alone", "nobody"}
    assert found["margin_vs_ar"]["low"] > 1.0
    policies = {row["policy"] for row in found["best_of_each_policy"]}
    assert policies == {"ar", "sd", "pld", "suffix", "pearl", "saguaro"}
    assert [p["at"] for p in found["flips"]["over_batch"]] == [1, 2, 4, 8, 16]
    assert len(found["flips"]["over_acceptance"]) == 5


def test_the_same_question_gets_the_same_answer(folder: Path) -> None:
    first, again = (json.loads(call(folder, "--json", "--no-flips", "--seed", "3").stdout) for _ in range(2))
    for name in ("seconds", "cpu_seconds", "cpu_seconds_per_1000_settings"):
        assert first.pop(name) > 0.0 and again.pop(name) > 0.0
    assert first == again


def test_the_answer_for_people_and_its_picture(folder: Path, tmp_path: Path) -> None:
    result = call(folder, "--plot", str(tmp_path / "answer.png"))
    assert result.exit_code == 0, result.output
    for expected in ("over plain decoding", "over the best SD", "why:", "over the batch"):
        assert expected in result.stdout
    assert "vllm serve" not in result.stdout  # the pair's models are nobody else's
    assert (tmp_path / "answer.png").read_bytes().startswith(b"\x89PNG")


def test_settings_to_paste() -> None:
    sources = Sources(profile(), {0.0: trace([[0]])}, 0.0, hw="my.json", files={0.0: "my.parquet"})
    ssd = configure("saguaro", lookahead=3, fanout=(4, 2, 1, 1), backup="plain", stall=None)
    assert commands(ssd, sources, batch=4)["simulate"] == (
        "simulate --hw my.json --trace my.parquet --policy saguaro --lookahead 3 --fanout 4,2,1,1 "
        "--backup plain --batch 4"
    )
    # `validate` has uniform fan-outs only, and no policy whose content a run decides.

    def on_pair(settings: Settings, batch: int = 1) -> str | None:
        return commands(settings, sources, batch=batch, pair=("pair:x5", "pair:draft")).get("validate")

    family = "python -m analysis run family --live --hw my.json --setting"
    assert on_pair(ssd) == (f"{family} 'saguaro lookahead=3 fanout=4,2,1,1 backup=plain' --temperature 0")
    mirror = configure("mirror", lookahead=3, kappa=1, temperature=1.0)
    assert on_pair(mirror) == (f"{family} 'mirror lookahead=3 kappa=1' --temperature 1")
    assert on_pair(mirror, batch=2) is None  # it runs one request at a time
    sd = configure("sd", lookahead=5, temperature=1.0)
    line = on_pair(sd)
    assert line is not None and "--lookahead 5 --temperature 1 --batch 1" in line
    lines = engine_lines(sd, "big", "small")
    config = json.loads(lines["vllm"].split("--speculative-config ")[1].strip("'"))
    assert config == {
        "method": "draft_model", "model": "small", "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
    }  # fmt: skip
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1" in lines["sglang"]
    assert "--speculative-num-draft-tokens 6" in lines["sglang"]
    assert engine_lines(sd, "pair:x5", "small") == {} == engine_lines(sd, "big", "shape:llama-3.1-8b")
    for policy in ("ar", "mirror", "rasd"):
        assert engine_lines(configure(policy), "big", "small") == {}


@pytest.mark.parametrize(
    ("text", "temperature"),
    [
        ("mirror lookahead=3 kappa=1", 0.0),
        ("saguaro lookahead=2 fanout=3,2,1 backup=plain", 1.0),
        ("rasd", 0.0),
        ("tree tree_widths=3,1,1", 0.0),
    ],
)
def test_a_pasted_setting_is_read_as_what_it_was(text: str, temperature: float) -> None:
    setting = setting_of(text, temperature, 0)
    assert setting_text(setting) == text and setting_of(setting_text(setting), temperature, 0) == setting
    assert "(" not in commands(setting, Sources(profile(), {}, 0.0))["simulate"], (
        "a list as an option takes it"
    )


def answer(policy: str, **milliseconds: float) -> Any:
    """A recommendation of one policy over SD, of which only the words are looked at."""
    run = {
        "tokens": 1000,
        "seconds": 1.0,
        "overlap_s": milliseconds.get("both", 0.0),
        "tokens_per_round": 3.0,
    }
    used = {"target": 0.6, "draft": milliseconds.get("draft", 0.4)}
    summary = SimpleNamespace(**run, utilization=used, cache_hit_rate=None)
    rows = {name: SimpleNamespace(settings=configure(name), summary=summary) for name in ("ar", "sd", policy)}
    trace = SimpleNamespace(meta=SimpleNamespace(target_model="big", draft_model="small"))
    return SimpleNamespace(best=rows, winner=rows[policy], trace=trace, warnings=[])


def test_what_engines_lack_is_said() -> None:
    for has in ("sd", "pld"):
        lines, note = engines(answer(has))
        assert set(lines) >= {"vllm", "sglang"} and note is None
    lines, note = engines(answer("mirror"))
    assert note == "neither vLLM nor SGLang has 'mirror'; their lines are of the best SD"
    assert set(lines) == {f"{engine} (best SD)" for engine in ("vllm", "sglang", "tensorrt-llm")} | {
        "acceptance forced"
    }
    assert "--tokens-per-round" in lines["acceptance forced"]
    assert "decode plainly" in str(engines(answer("ar"))[1])
    assert (
        without_acceptance_sweep(answer("mirror")) == ["mirror"]
        and without_acceptance_sweep(answer("pearl")) == []
    )


def test_policies_that_take_turns_are_not_said_to_overlap() -> None:
    # 600 ms of verification and 400 of drafting over 1000 tokens: .6 and .4 ms per token, nothing of both.
    assert list(reasons(answer("rasd")))[-1] == (
        "rasd gets 3.00 tokens out of a round: 0.6 ms per token of verification, and 0.4 ms of drafting and "
        "retrieval before it"
    )
    assert (
        "drafts 0.4 ms per token while the target verifies" in list(reasons(answer("mirror", both=0.4)))[-1]
    )


@pytest.mark.parametrize(
    "question",
    [
        [],
        ["--max-tokens", "7", "--batch", "4", "--seed", "5"],
        ["--prompt-category", "code", "--max-devices", "1", "--batch", "5"],
    ],
)
def test_the_pasted_simulate_line_gives_the_answer_again(folder: Path, question: list[str]) -> None:
    found = json.loads(call(folder, "--json", "--no-flips", *question).stdout)
    words = shlex.split(found["paste"]["simulate"])
    again = simulated(*words[1:])
    winner, batch = found["winner"], int(words[words.index("--batch") + 1])
    groups = found["batch"] / batch
    assert again["tokens_per_second"] * groups == pytest.approx(winner["tokens_per_second"], rel=1e-9)
    assert again["tokens_per_round"] == pytest.approx(winner["tokens_per_round"], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt-category", "poems"], "categories: code, prose"),
        (["--temperature", "1"], "no trace at temperature 1"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--max-devices", "0"], "max-devices must be at least 1"),
        (["--trace", "nowhere.parquet"], "nowhere.parquet"),
        (["--max-tokens", "9999"], "9999"),
    ],
)
def test_bad_input_is_refused(folder: Path, arguments: list[str], message: str) -> None:
    result = call(folder, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr


def test_an_unknown_profile_is_refused() -> None:
    result = CliRunner().invoke(main, ["--hw", "abacus"])
    assert result.exit_code == 2 and "no profile 'abacus'" in result.stderr


def test_recommend_runs_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import analysis.recommend.__main__, calibrate.display\n"
        "assert 'transformers' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
