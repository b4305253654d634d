"""`python -m simulator.imports` and `simulate --acceptance FILE`: answers, refusals, nothing half-written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cli import main as simulate_main
from simulator.imports.__main__ import main
from simulator.imports.acceptance import acceptance_of
from simulator.imports.export import lookahead_by_batch, schedule, sglang_flags, vllm_config
from simulator.imports.formats import FORMATS, sniff
from simulator.imports.measured import ImportRefused
from simulator.imports.reading import read_file, read_text

SAMPLES = Path(__file__).parents[1] / "data" / "imports"
DFLASH = str(SAMPLES / "vllm/prometheus_delta_K7_dflash.json")
TEXTBOOK = ["--target-time", "1", "--draft-time", "0.1"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def simulated(*arguments: str) -> Result:
    return CliRunner().invoke(simulate_main, list(arguments))


@pytest.fixture
def acceptance(tmp_path: Path) -> str:
    path = str(tmp_path / "acceptance.json")
    assert run("read", DFLASH, "--out", path).exit_code == 0
    return path


# ---- read


def test_every_format_is_told_from_every_sample_of_it() -> None:
    seen = {sniff(p.read_text()).name for p in SAMPLES.rglob("*") if p.is_file()}
    assert {fmt.name for fmt in FORMATS} - seen == {"answers", "sglang-bench"}  # see below


def test_json_and_table() -> None:
    found = json.loads(run("read", DFLASH, "--json").stdout)
    assert found["format"] == "vllm-counters-delta"
    (measured,) = found["measured"]
    assert measured["rounds"] == 6274
    assert "the hit curve of a speculation cache" in measured["missing"]
    shown = run("read", DFLASH).output
    assert "2.6146" in shown and "not said: " in shown


def test_answers_of_a_run_are_added_up(tmp_path: Path) -> None:
    rows = [
        {"meta_info": {"spec_verify_ct": n, "spec_accept_histogram": h}}
        for n, h in ((3, [1, 2]), (5, [4, 1]))
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run("read", str(tmp_path / "answers.jsonl"), "--out", str(tmp_path / "a.json")).exit_code == 0
    file = json.loads((tmp_path / "a.json").read_text())
    assert (file["rounds"], file["histogram"]) == (8, [5, 3])


def test_runs_of_sglang_s_benchmark(tmp_path: Path) -> None:
    row = {
        "backend": "sglang",
        "output_throughput": 200.0,
        "concurrency": 3.5,
        "mean_tpot_ms": 15.0,
        "mean_itl_ms": 15.0,
    }
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row | {"accept_length": length}) for length in (3.2, None)))
    first, second = read_file(path).measured
    assert (first.engine, first.tokens_per_round, first.batch, first.label) == ("sglang", 3.2, 3.5, "run 1")
    assert first.speeds.time_per_token_s == pytest.approx(0.015)
    assert second.tokens_per_round is None  # not speculated for, or another engine's server


def test_counters_between_two_pages(tmp_path: Path) -> None:
    before, after = (str(SAMPLES / f"vllm/prometheus_K7_dflash_{n}.prom") for n in ("before", "after"))
    found = json.loads(run("read", after, "--before", before, "--json").stdout)
    assert found["measured"][0]["rounds"] == 6274
    fell = run("read", before, "--before", after)
    assert fell.exit_code == 2 and "the server restarted" in fell.output


def test_a_format_that_is_named_overrides(tmp_path: Path) -> None:
    result = run("read", DFLASH, "--format", "vllm-log")
    assert result.exit_code == 2 and "SpecDecoding" in result.output
    assert "choices: vllm-counters-delta" in run("read", DFLASH, "--format", "nonsense").output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("hello\n", "unknown format"),
        ('{"mean_itl_ms": 1, "output_throughput": "fast"}', "output_throughput: expected a number"),
        ("x\nvllm:spec_decode_num_drafts_total{} many\n", ":1: expected `name{labels} value`"),
        (
            "# \nvllm:spec_decode_num_drafts_total{} many\n",
            ":2: vllm:spec_decode_num_drafts_total: expected a number",
        ),
        ("# \nvllm:spec_decode_num_drafts_total{} NaN\n", "expected a number"),
        ('{"meta_info": {"spec_verify_ct": 3, "spec_accept_histogram": [1, -2, 4]}}', "at least 0, got -2"),
        (
            '{"meta_info": {"spec_verify_ct": 9, "spec_accept_histogram": [1, 2]}}',
            "holds 3 rounds, it states 9",
        ),
        ('{"meta_info": 7}', "not what sglang-meta-info looks like"),
        ("SpecDecoding metrics: nothing here\n", ":1: expected `Accepted: N tokens`"),
        ("| test | t/s |\n|--|--|\n| pp5 | 1 | 2 |\n", ":3: expected 2 columns, got 3"),
        ("| test | t/s |\n|--|--|\n| zz5 | 1 |\n", ":3: test: expected pp<N> or tg<N>"),
        ('{"benchmarks": [{}]}', "expected an entry 'config'"),
        ("[" * 100_000, "unknown format"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content)
    result = run("read", str(path))
    assert result.exit_code == 2, result.output
    assert said in result.output and str(path) in result.output
    assert len(result.output.strip().splitlines()) == 1


WHOLE = [p.read_text() for p in sorted(SAMPLES.rglob("*")) if p.is_file()]
DAMAGE = ("", "0", "-1", "null", "{}", "[]", '""', "NaN", "1e999", ",", "9" * 30, "|")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(WHOLE), st.data())
def test_damaged_input_is_refused_or_read_but_never_crashes(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = min(len(text), start + data.draw(st.sampled_from((1, 2, 5, 20, 200))))
    damaged = text[:start] + data.draw(st.sampled_from(DAMAGE)) + text[end:]
    with suppress(ImportRefused):
        for measured in read_text(damaged, sniff(damaged)):
            assert acceptance_of(measured, "x", assume_iid=True, lookahead=measured.lookahead or 5)


def test_a_depth_that_no_engine_drafts(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        '{"pooled_spec_decode_acceptance_histogram": {"0": 1, "99999999999": 1}}'
    )
    assert "expected at most 1024" in run("read", str(tmp_path / "p.json")).output


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    result = run("read", str(tmp_path / "x.bin"))
    assert result.exit_code == 2 and "expected text in UTF-8" in result.output


def test_two_models_are_not_added_up(tmp_path: Path) -> None:
    line = 'vllm:spec_decode_num_drafts_total{{model_name="{}"}} 5\n'
    (tmp_path / "m.prom").write_text("#\n" + line.format("a") + line.format("b"))
    assert "several models" in run("read", str(tmp_path / "m.prom")).output


def test_names_of_one_count_must_agree(tmp_path: Path) -> None:
    counts = {"spec_verify_ct": 2, "spec_accepted_drafts": 3, "spec_num_correct_drafts": 4}
    (tmp_path / "m.json").write_text(json.dumps({"meta_info": counts}))
    assert "names of the same count disagree" in run("read", str(tmp_path / "m.json")).output


def test_several_measurements_need_a_choice(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    name = str(SAMPLES / "llamacpp/ik_llama_spec_bench.md")
    refused = run("read", name, "--out", str(out))
    assert refused.exit_code == 2 and "--select: 'code 1', 'extract 1'" in refused.output
    assert not out.exists()
    assert run("read", name, "--select", "code 1", "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text())["source"]["label"] == "code 1"
    assert "no measurement 'x'" in run("read", name, "--select", "x").output


def test_a_refused_import_leaves_the_old_file(acceptance: str) -> None:
    old = Path(acceptance).read_text()
    result = run("read", str(SAMPLES / "llamacpp/llama_bench_pp512_tg128.json"), "--out", acceptance)
    assert result.exit_code == 2 and "missing: the lookahead" in result.output
    assert Path(acceptance).read_text() == old


def test_options_that_would_change_nothing_are_refused(tmp_path: Path) -> None:
    assert "give --out, too" in run("read", DFLASH, "--assume-iid").output
    result = run("read", DFLASH, "--lookahead", "3", "--out", str(tmp_path / "a.json"))
    assert result.exit_code == 2 and "contradicts the source, which says 7" in result.output


def test_provenance(acceptance: str) -> None:
    file = json.loads(Path(acceptance).read_text())
    assert (file["kind"], file["schema_version"]) == ("spectwin-acceptance", 1)
    assert file["source"]["file"] == "prometheus_delta_K7_dflash.json"
    assert (file["source"]["engine"], file["source"]["format"]) == ("vllm", "vllm-counters-delta")
    assert file["source"]["imported_at"].endswith("Z")


# ---- simulate


def test_simulate_reads_the_file(acceptance: str) -> None:
    result = simulated("--acceptance", acceptance, "--policy", "sd", "--lookahead", "7", *TEXTBOOK, "--json")
    found = json.loads(result.stdout)
    # The limit of 128 tokens cuts a last round of each request: a little below 2.61.
    assert found["tokens_per_round"] == pytest.approx(2.6146, abs=0.12)
    assert "measured by vllm (prometheus_delta_K7_dflash.json, 6274 rounds)" in found["sources"]["tokens"]
    assert "assumed" not in found["sources"]["tokens"]


def test_the_position_counts(acceptance: str) -> None:
    # K = 1: 1 + .6717; K = 2: 1 + .6717 + .4036
    for depth, length in ((1, 1.6717), (2, 2.0753)):
        result = simulated(
            "--acceptance", acceptance, "--policy", "sd", "--lookahead", str(depth), *TEXTBOOK, "--json"
        )
        assert json.loads(result.stdout)["tokens_per_round"] == pytest.approx(length, abs=0.05)


def test_past_the_last_position_is_assumed_and_said(acceptance: str) -> None:
    for more in (["--policy", "sd", "--lookahead", "9"], ["--policy", "pearl", "--lookahead", "4"]):
        result = simulated("--acceptance", acceptance, *more, *TEXTBOOK, "--json")
        assert "assumed: positions past 7 like that one" in json.loads(result.stdout)["sources"]["tokens"]


def test_a_speculation_cache_needs_a_hit_curve(acceptance: str) -> None:
    refused = simulated("--acceptance", acceptance, "--policy", "saguaro", *TEXTBOOK)
    assert refused.exit_code == 2
    assert "needs the hit curve of a speculation cache" in refused.output and "--hit-curve" in refused.output
    given = simulated(
        "--acceptance", acceptance, "--policy", "saguaro", "--hit-curve", "1,0.5", *TEXTBOOK, "--json"
    )
    found = json.loads(given.stdout)
    assert found["sources"]["tokens"].endswith("assumed: hit curve 1 - 0.5 F^-1")
    assert found["cache_hit_rate"] == pytest.approx(1 - 0.5 / 3, abs=0.03)  # F = 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "sd", "--hit-curve", "1,0.5"], "changes nothing: policy 'sd'"),
        (["--policy", "saguaro", "--hit-curve", "0,0.5"], "exponent above 0"),
        (["--policy", "saguaro", "--hit-curve", "nan"], "is not an exponent and a scale"),
        (["--policy", "saguaro", "--hit-exponent", "1"], "in place of --hit-exponent"),
        (["--policy", "saguaro", "--hit-curve", "1,0.5", "--backup", "ngram"], "looks words up in the text"),
        (["--policy", "sd", "--temperature", "1"], "--acceptance or --temperature"),
    ],
)
def test_what_a_file_cannot_give_is_refused(arguments: list[str], said: str, acceptance: str) -> None:
    result = simulated("--acceptance", acceptance, *arguments, *TEXTBOOK)
    assert result.exit_code == 2 and said in result.output.replace("\n", " "), result.output


def test_other_files_are_refused(tmp_path: Path, acceptance: str) -> None:
    assert "python -m simulator.imports read" in simulated("--acceptance", DFLASH, "--policy", "sd").output
    assert "neither a number nor a file" in simulated("--acceptance", "nowhere.json").output
    assert (
        "--hit-curve goes with --acceptance FILE"
        in simulated("--acceptance", "0.8", "--hit-curve", "1,1").output
    )
    content = json.loads(Path(acceptance).read_text())
    joint = content["joint_acceptance_at_position"]
    for change, said in (
        ({"schema_version": 2}, "schema_version"),
        ({"acceptance_at_position": joint}, "running product"),
        ({"lookahead": 0}, "lookahead"),
        ({"histogram": [1, 2]}, "expected 8 entries"),
        ({"colour": "red"}, "colour"),
    ):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content | change))
        result = simulated("--acceptance", str(path), "--policy", "sd")
        assert result.exit_code == 2 and said in result.output


def test_a_file_by_hand_needs_little(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "imports.md").read_text()
    (tmp_path / "hand.json").write_text(text[text.index('{"kind"') : text.index("## In the engine's terms")])
    found = simulated(
        "--acceptance", str(tmp_path / "hand.json"), "--policy", "sd", "--lookahead", "2", *TEXTBOOK
    )
    assert found.exit_code == 0, found.output


# ---- export


def test_export_of_a_simulated_answer(tmp_path: Path, acceptance: str) -> None:
    answer = simulated(
        "--acceptance", acceptance, "--policy", "sd", "--lookahead", "5", *TEXTBOOK, "--json"
    ).stdout
    (tmp_path / "answer.json").write_text(answer)
    lines = json.loads(
        run("export", "--simulated", str(tmp_path / "answer.json"), "--draft", "d", "--json").stdout
    )
    config = '{"method": "draft_model", "model": "d", "num_speculative_tokens": 5}'
    assert lines == {
        "vllm": f"--speculative-config '{config}'",
        "sglang": "--speculative-algorithm STANDALONE --speculative-draft-model-path d "
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6",
        "llama.cpp": "--model-draft d --draft-max 5 --draft-min 5 --draft-p-min 0",
    }


def test_export_of_methods_without_a_model() -> None:
    assert json.loads(vllm_config(3, method="ngram")) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    assert sglang_flags(3, method="ngram") == "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"
    for arguments, said in (
        (["--lookahead", "3"], "needs a draft model"),
        (["--lookahead", "3", "--method", "ngram", "--draft", "d"], "has no draft model"),
        (["--draft", "d"], "give --lookahead"),
        (["--lookahead", "3", "--draft", "d", "--method", "magic"], "unknown method"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1-4"], "expected B:K"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1:4"], "exceeds the 3"),
        (["--lookahead", "3", "--draft", "d", "--by-batch", "1:3", "--engine", "sglang"], "only vLLM"),
        (["--lookahead", "3", "--draft", "d", "--largest-batch", "9"], "changes nothing"),
    ):
        result = run("export", *arguments)
        assert result.exit_code == 2 and said in result.output


def test_schedule() -> None:
    # 4 from 1 to 7, 2 from 8 to 31, plain decoding from 32 to 64; equal neighbours are one range
    assert schedule({1: 4, 4: 4, 8: 2, 32: 0}, 64) == [[1, 7, 4], [8, 31, 2], [32, 64, 0]]
    assert schedule({2: 3}) == [[1, 2, 3]]
    with pytest.raises(ImportRefused, match="below 8"):
        schedule({8: 1}, 4)


def test_lookahead_by_batch_of_timed_rounds() -> None:
    timed = str(SAMPLES / "vllm/dynamic_speculative_config_eagle1.json")
    line = run("export", "--measured", timed, "--method", "eagle", "--draft", "e", "--engine", "vllm").output
    assert '"num_speculative_tokens_per_batch_size": [[1, 63, 3], [64, 64, 2]]' in line


@dataclass
class Best:
    policy: str
    lookahead: int | None


@dataclass
class Point:
    at: float
    best: Best


def test_lookahead_by_batch_of_flips() -> None:
    points = [Point(1.0, Best("sd", 5)), Point(8.0, Best("sd", 2)), Point(16.0, Best("ar", None))]
    assert lookahead_by_batch(points) == {1: 5, 8: 2, 16: 0}
    with pytest.raises(ImportRefused, match="which no engine has"):
        lookahead_by_batch([Point(1.0, Best("saguaro", 5))])


# ---- the program


def test_the_module_runs_without_torch() -> None:
    modules = "simulator.imports.reading, simulator.imports.acceptance"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "simulator.imports", "formats"], check=True, capture_output=True, text=True
    )
    assert "vllm-counters" in shown.stdout


def test_no_measurement_is_negative_or_endless() -> None:
    for path in SAMPLES.rglob("*"):
        if (
            path.is_file()
            and path.name != "aiperf_record_illustrative.json"
            and sniff(path.read_text()).name != "configuration"
        ):
            for measured in read_file(path).measured:
                for value in measured.speeds.stated().values():
                    assert not isinstance(value, float) or 0.0 < value < math.inf
