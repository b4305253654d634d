"""The `simulate` command: answers, refusals, and that no option is silently ignored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simulator.cli import main

COIN = ["--target-time", "1", "--draft-time", "0.1", "--acceptance", "0.8", "--hit-exponent", "1"]
KEYS = {
    "policy", "batch", "lookahead", "tokens", "rounds", "seconds", "tokens_per_second", "speedup_vs_ar",
    "speedup_vs_sd", "tokens_per_round", "accepted_per_round", "cache_hit_rate", "utilization", "law",
}  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_json_has_the_documented_keys() -> None:
    assert set(answer(*COIN)) >= KEYS


def test_same_seed_same_bytes() -> None:
    first, second = (run("--policy", "saguaro", "--batch", "4", "--json").stdout for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    "extra",
    [
        ["--policy", "sd"],
        ["--policy", "pearl"],
        ["--batch", "3"],
        ["--lookahead", "6"],
        ["--fanout", "1"],
        ["--fanout", "1,2,3,4,5"],
        ["--backup", "plain"],
        ["--backup", "random"],
        ["--requests", "50"],
        ["--max-tokens", "64"],
        ["--context", "400"],
        ["--no-jitter"],
        ["--seed", "5"],
        ["--hw", "textbook"],
        ["--acceptance", "0.5"],
        ["--acceptance", "0.5", "--hit-exponent", "0.3"],
        ["--acceptance", "0.5", "--hit-exponent", "0.3", "--hit-scale", "0.2"],
        ["--target-time", "1", "--draft-time", "0.1"],
        ["--target-time", "1", "--draft-time", "0.3"],
    ],
    ids=" ".join,
)
def test_every_option_changes_the_answer(extra: list[str]) -> None:
    base = answer()
    if "--hw" in extra:
        extra = [*extra, "--trace", "cpu2-x5"]
    changed = answer(*extra)
    assert {k: v for k, v in changed.items() if k != "seed"} != {k: v for k, v in base.items() if k != "seed"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "sagauro"], "Did you mean 'saguaro'"),
        (["--lookahead", "0"], "use policy 'ar'"),
        (["--policy", "sd", "--fanout", "3"], "has no fanout"),
        (["--policy", "ar", "--lookahead", "3"], "has no lookahead"),
        (["--fanout", "3,2"], "lookahead + 1 = 5"),
        (["--fanout", "three"], "not a number"),
        (["--fanout", "40"], "more than this trace can decide"),
        (["--backup", "hope"], "unknown backup"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--requests", "0"], "requests must be at least 1"),
        (["--hw", "a100x8"], "cpu2-x20"),
        (["--trace", "nothing.parquet"], "nothing.parquet"),
        (["--target-time", "1"], "go together"),
        (["--target-time", "-1", "--draft-time", "1"], "above 0"),
        (["--hit-exponent", "1"], "--acceptance"),
        (["--acceptance", "1.5"], "between 0 and 1"),
        (["--acceptance", "0.5", "--trace", "cpu2-x20"], "not both"),
        (["--max-tokens", "100000"], "needs a longer recording"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("acceptance", ["0", "1"])
@pytest.mark.parametrize("policy", ["sd", "pearl", "saguaro"])
def test_extreme_acceptance(policy: str, acceptance: str) -> None:
    found = answer(
        "--policy", policy, "--target-time", "1", "--draft-time", "0.1", "--acceptance", acceptance
    )  # fmt: skip
    # At acceptance 0 PEARL never has a block to verify: there is no rate, rather than a made-up one.
    nothing_verified = policy == "pearl" and acceptance == "0"
    assert found["acceptance_rate"] == (None if nothing_verified else float(acceptance))


def test_malformed_profile_names_the_field(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "spectwin/profile/1", "name": "bad"}')
    result = run("--hw", str(bad))
    assert result.exit_code == 2
    assert "bad.json" in result.stderr and "operations" in result.stderr


def test_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert run(*COIN, "--timeline", str(path), "--json").exit_code == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "M"} == {"process_name", "thread_name"}
    assert {e["cat"] for e in events if e["ph"] == "X"} == {"target", "draft"}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    assert run("--plot", str(path), "--json").exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_tables_for_people() -> None:
    printed = run("--policy", "saguaro", "--batch", "16").stdout
    for expected in ("law", "simulated", "measured", "where the time goes", "why law and simulation differ"):
        assert expected in printed


def test_list_policies() -> None:
    names = [row["name"] for row in json.loads(run("--list-policies", "--json").stdout)]
    assert names == ["ar", "sd", "pearl", "saguaro"]
    assert "PEARL" in run("--list-policies").stdout


def test_cold_start_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from simulator.cli import main\n"
        "try: main(['--policy', 'saguaro', '--batch', '16', '--json'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
