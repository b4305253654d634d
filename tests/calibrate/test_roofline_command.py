"""`python -m calibrate.roofline`: fits printed, predictions written, bad input refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from calibrate.roofline import main
from hardware_profiles.profile import load_profile
from simulator.cli import main as simulate

PAIR = ("--target", "llama-3.1-70b", "--draft", "llama-3.2-1b")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_fit_prints_shares_and_errors() -> None:
    result = run("fit", "--hw", "cpu2-x5", "--against", "cpu2-x20")
    assert result.exit_code == 0, result.output
    assert "target.forward" in result.output and "on cpu2-x20" in result.output


def test_fit_as_json() -> None:
    result = run("fit", "--hw", "cpu2-x20", "--against", "cpu2-x5", "--json")
    found = json.loads(result.output)["operations"]
    assert set(found) == {"target.forward", "target.prefill", "draft.forward", "draft.prefill", "draft.tree"}
    forward = found["target.forward"]
    assert forward["points"] == forward["held_out_error"]["held_out_points"] == 28
    # The draft is the same model in both profiles, the target is not: its efficiencies carry worse.
    assert found["draft.forward"]["carried_error"]["median"] < forward["carried_error"]["median"]


def test_a_prediction_is_accepted_by_simulate(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    result = run("predict", "--device", "h100", *PAIR, "--tp", "4", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "roofline" in result.output and "simulate --hw" in result.output
    profile = load_profile(out)
    assert profile.provenance.kind == "roofline"
    assert all(profile.provenance_of(name).kind == "roofline" for name in profile.operations)
    assert (profile.roles.target.tensor_parallel, profile.roles.draft.tensor_parallel) == (4, 1)
    arguments = ["--hw", str(out), "--acceptance", "0.8", "--requests", "2", "--max-tokens", "16", "--json"]
    told = json.loads(CliRunner().invoke(simulate, arguments).output)["sources"]
    assert "(roofline, " in told["latency"] and any("engine ssd" in text for text in told.values())


def test_what_does_not_fit_into_memory_is_refused_by_simulate(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    run("predict", "--device", "l40s", *PAIR, "--out", str(out))
    result = CliRunner().invoke(simulate, ["--hw", str(out), "--acceptance", "0.8"])
    assert result.exit_code == 2
    assert "spread the model over more devices" in result.output


def test_a_cpu_takes_the_efficiencies_of_a_measured_profile(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    models = ("--target", "qwen2.5-0.5b", "--draft", "pair:draft", "--precision", "fp32")
    result = run("predict", "--device", "cpu-core", *models, "--out", str(out))
    assert result.exit_code == 0, result.output
    profile = load_profile(out)
    error = profile.operations["target.forward"].interpolation_error
    assert error is not None and 0.0 < error.median < 0.1
    assert "cpu2-x5" in (profile.provenance_of("target.forward").note or "")


def test_shared_devices_take_turns(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    models = ("--target", "llama-3.1-8b", "--draft", "llama-3.2-1b")
    assert (
        run("predict", "--device", "a100", *models, "--placement", "shared", "--out", str(out)).exit_code == 0
    )
    profile = load_profile(out)
    assert profile.placement == "shared"
    assert profile.slowdown("draft.forward") == 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--hw", "a100x8"], "only return what was put in"),
        (["fit", "--hw", "textbook"], "not measured"),
        (["fit", "--hw", "nothing"], "no profile 'nothing'"),
        (["fit", "--hw", "cpu2-x5", "--target", "qwen9"], "no architecture 'qwen9'"),
        (["predict", "--device", "z100", *PAIR], "no device 'z100'"),
        (["predict", "--device", "h100", *PAIR, "--precision", "int1"], "no precision 'int1'"),
        (["predict", "--device", "xeon16", *PAIR, "--tp", "2"], "no link"),
        (["predict", "--device", "h100", *PAIR, "--like", "nothing"], "nothing"),
        (["predict", "--device", "h100", *PAIR, "--tp", "4", "--placement", "shared"], "--draft-tp as --tp"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    out = ["--out", str(tmp_path / "p.json")] if arguments[0] == "predict" else []
    result = run(*arguments, *out)
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
