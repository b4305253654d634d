"""`python -m simulator.imports read`: answers, refusals, nothing half-written."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_samples import DFLASH, SAMPLES, run

from simulator.imports.formats import FORMATS, read_file, read_text, sniff
from simulator.imports.measured import ImportRefused, acceptance_of


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
    assert first.time_per_token_s == pytest.approx(0.015)
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


@settings(max_examples=200)
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


def test_the_module_runs_without_torch() -> None:
    modules = "simulator.imports.formats, simulator.imports.__main__, simulator.tokens.acceptance"
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
                for value in measured.speeds.values():
                    assert not isinstance(value, float) or 0.0 < value < math.inf
