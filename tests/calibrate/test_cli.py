"""The `calibrate` command: refusals, nothing half-written, and what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from small_calibration import PLAN
from small_models import prompts, save_tokenizer

import calibrate.job
import calibrate.machine
from calibrate.calibration import Calibrated
from calibrate.cli import main
from calibrate.display import summary_lines
from calibrate.job import make_job
from calibrate.machine import Machine
from calibrate.options import CalibrationRequest
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import read_trace


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, without asking torch."""
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: Machine("Some CPU", (0, 1), ()))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--hw", "a100x8"], ["not 'a100x8'", "2 CPU cores", "no accelerator", "cpu2-x20"]),
        (["--prompts", "nowhere.jsonl"], ["nowhere.jsonl", "calibration, heldout"]),
        (["--placement", "anywhere"], ["unknown placement", "split"]),
        (["--placement", "shared:99"], ["core 99 is not available"]),
        (["--target", "./no-such-model"], ["no-such-model", "does not exist"]),
        (["--target", "pair:x99"], ["pair:x99", "pair:x20"]),
        (["--temperature", "-1"], ["temperature"]),
        (["--temperature", "warm"], ["'warm' is not a number"]),
        (["--temperature", "0", "--top-p", "0.9"], ["top-p", "--temperature 0,1"]),
        (["--top-p", "1.5"], ["top_p must be above 0 and at most 1"]),
        (["--batches", "0,2", "--target", "pair:target"], ["batches must be at least 1"]),
        (["--ranks", "0"], ["ranks"]),
        (["--max-tokens", "1020", "--target", "pair:target"], ["--max-tokens 1020", "1024 positions"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, arguments: list[str], messages: list[str]) -> None:
    result = run(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert all(message in result.stderr for message in messages), result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_draft_with_another_tokenizer_is_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    for name in ("config.json", "model.safetensors"):
        (draft / name).write_bytes((Path(pair[1]) / name).read_bytes())
    save_tokenizer(draft, swapped=(2, 3))
    result = run("--target", pair[0], "--draft", str(draft), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and "different tokenizers: id 2 is 'w2'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_has_examples_and_every_option_says_something() -> None:
    text = run("--help").stdout
    assert "calibrate --quick" in text and "--temperature 0,0.7 --top-p 0.95" in text
    assert "goes on where it was" in text
    for option in ("--batches", "--ranks", "--mode", "--fresh", "--json"):
        assert option in text


def test_other_commands_make_jobs_with_fewer_options() -> None:
    request = CalibrationRequest(target="pair:target", max_tokens=64, temperature=(0.0,))
    job = make_job(request)
    assert (job.temperature, job.name) == ((0.0,), "cpu2-target")
    assert len(job.prompts) == 48 and len(make_job(replace(request, quick=True)).prompts) == 24
    assert len(make_job(replace(request, quick=True, count=30)).prompts) == 30


@pytest.mark.slow
def test_a_calibration_writes_its_files_and_says_where(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The job's own plan is replaced by one of seconds.
    least = replace(PLAN, repeats=1, live=(replace(PLAN.live[0], repeats=1),))
    monkeypatch.setattr(calibrate.job, "plan", lambda **_: least)
    lines = [
        json.dumps({"question_id": p.question_id, "category": p.category, "turns": [p.text]})
        for p in prompts(4)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    result = run(
        *("--target", pair[0], "--draft", pair[1], "--prompts", str(tmp_path / "prompts.jsonl")),
        *("--temperature", "0,0.7", "--top-p", "0.9", "--ranks", "9", "--max-tokens", "10"),
        *("--placement", "shared:0", "--name", "mine", "--out", str(out), "--json"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert sorted(p.name for p in out.iterdir()) == ["mine-t0.7-p0.9.parquet", "mine.json", "mine.parquet"]
    assert found["profile"] == str(out / "mine.json") and found["trace"] == str(out / "mine.parquet")
    assert found["traces"] == {"0": str(out / "mine.parquet"), "0.7": str(out / "mine-t0.7-p0.9.parquet")}
    assert set(found["acceptance"]) == {"0", "0.7"} and found["resumed"] == {}
    sampled = read_trace(out / "mine-t0.7-p0.9.parquet")
    assert sampled.meta.sampling == {"temperature": 0.7, "seed": 0, "top_p": 0.9}
    assert sampled.meta.draft_top == 9 and sampled.meta.prompt_set == "prompts"
    profile = load_profile(out / "mine.json")
    role = profile.roles.target
    assert (role.layers, role.kv_bytes_per_token, role.mode) == (2, 256, "eager")
    assert role.weight_bytes == 4 * (role.parameters or 0) > 0
    assert profile.model_error is None and profile.overlap == ()


@pytest.mark.parametrize("verbose", [False, True])
def test_the_report_is_ten_readable_lines(verbose: bool) -> None:
    traces = {t: read_trace(find_trace(f"shipped:cpu2-x5{end}")) for t, end in ((0.0, ""), (1.0, "-t1"))}
    found = Calibrated(load_profile(find_profile("cpu2-x5")), traces)
    lines = summary_lines(found, files=[Path("a.json")], then="simulate --hw a", verbose=verbose)
    assert lines[-2:] == ["wrote     a.json", "next      simulate --hw a"]
    if verbose:
        assert any(line.startswith("host, verify (sampled): ") for line in lines)
        return
    names = " ".join(line[:9].strip() for line in lines)
    assert names == "profile target draft accepted cached together host how well warning wrote next"
    assert max(map(len, lines)) <= 120
    # 4102 of 6098 positions; half the spread of the repetitions of `draft.prefill`: (1.0637 - 0.9463) / 2
    assert "67.3 % greedy (code 55, tests 59, prose 61, tables 95); 66.7 % at temperature 1" in lines[3]
    assert lines[7].endswith("repetitions differ by +-5.9 %")
