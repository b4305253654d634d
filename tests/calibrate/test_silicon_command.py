"""`python -m calibrate.silicon`, on tiny tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tiny_tables import CONFIG, write_tables

from calibrate.silicon import main
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.surface import LatencySurface
from simulator.cli import main as simulate


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "wheel")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return str(path)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_forward_names_its_cells(wheel: Path, config: str) -> None:
    asked = [
        "--system",
        "h100_sxm",
        "--config",
        config,
        "--rows",
        "2",
        "--tokens-per-row",
        "4",
        "--context",
        "50",
    ]
    result = run("forward", *asked, "--tp", "2", "--tables", wheel, "--json")
    found = json.loads(result.stdout)
    assert found["seconds"] == pytest.approx(sum(cell["seconds"] for cell in found["cells"]))
    assert {"qkv", "attention", "all-reduce", "output matrix"} <= {cell["name"] for cell in found["cells"]}
    less = json.loads(run("forward", *asked, "--tp", "2", "--tables", wheel, "--no-head", "--json").stdout)
    assert less["seconds"] < found["seconds"]
    eager = json.loads(run("forward", *asked, "--tables", wheel, "--eager", "--json").stdout)
    assert eager["seconds"] == eager["launch_floor_s"] == pytest.approx(2 * 265e-6)
    assert "ms" in run("forward", *asked, "--tables", wheel).stdout


def test_what_cannot_be_priced_is_one_line(wheel: Path, config: str, tmp_path: Path) -> None:
    for arguments, said in (
        (["--system", "l40s", "--config", config, "--tables", wheel], "no GPU 'l40s'"),
        (["--system", "h100", "--config", "nonesuch", "--tables", wheel], "no architecture 'nonesuch'"),
        (["--system", "h100", "--config", config, "--tables", tmp_path], "holds no tables"),
        (["--system", "h100", "--config", config, "--tp", "3", "--tables", wheel], "num_gpus 3"),
    ):
        result = run("forward", *arguments)
        assert result.exit_code == 2 and said in result.stderr and result.stderr.count("\n") == 1


def test_compose_and_simulate(wheel: Path, config: str, tmp_path: Path) -> None:
    out = tmp_path / "pair.json"
    pair = ["--target", config, "--draft", config, "--tables", wheel]
    result = run("compose", "--hw", "h100", *pair, "--out", out, "--json")
    assert (
        json.loads(result.stdout)["origin"] == "composed now"
        and load_profile(out).provenance.kind == "composed"
    )
    few = ["--acceptance", "0.8", "--policy", "sd", "--requests", "2", "--max-tokens", "8", "--json"]
    answers = [
        json.loads(CliRunner().invoke(simulate, list(map(str, [*arguments, *few]))).stdout)[
            "tokens_per_second"
        ]
        for arguments in (["--hw", out], ["--hw", "h100", *pair])
    ]
    assert answers[0] == answers[1]
    alone = CliRunner().invoke(simulate, ["--hw", "h100", "--target", config, *few])
    assert alone.exit_code == 2 and "--target, --draft and --hw" in alone.stderr


def test_coverage_and_check(wheel: Path) -> None:
    assert {row["gpu"] for row in json.loads(run("coverage", "--tables", wheel, "--json").stdout)} == {
        "h100_sxm"
    }
    shown = run("coverage", "--tables", wheel).stdout
    assert shown.count("custom_allreduce") == 1 and "bfloat16" in shown  # one line of both versions
    assert "sound" in run("check", "--tables", wheel).stdout
    next((wheel / "aiconfigurator_core/systems/data").rglob("moe_perf.parquet")).write_bytes(b"no")
    assert "moe_perf.parquet is damaged" in run("check", "--tables", wheel).stderr


def test_import_of_whole_forwards(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("tokens,context,ms\n1,0,5\n1,100,6\n8,0,7\n8,100,8\n")
    result = run("import", "--format", "forwards", tmp_path / "f.csv", "--out", tmp_path / "f.json")
    assert result.exit_code == 0 and load_profile(tmp_path / "f.json").provenance.kind == "measured"
    assert "--config says whose layers" in run("import", tmp_path, "--out", tmp_path / "x.json").stderr


def test_cost_curves_go_out_and_come_in(tmp_path: Path) -> None:
    costs, profile = tmp_path / "costs.json", tmp_path / "p.json"
    asked = ("--lookahead", "4", "--requests", "8", "--out", costs)
    assert "4 verifications, 4 drafts of 4" in run("costs", "--hw", "shipped:textbook", *asked).stdout
    read = ("import", "--format", "vllm-costs", costs, "--machine", "H100", "--out", profile)
    assert run(*read, "--lookahead", "4").exit_code == 0
    textbook, found = load_profile(find_profile("shipped:textbook")), load_profile(profile)
    at = {"batch": 2, "new_tokens": 5, "context": 0}
    seconds = [LatencySurface(each.operation("target.forward")).seconds(**at) for each in (textbook, found)]
    assert seconds[0] == pytest.approx(seconds[1])
    assert "--lookahead goes with --format vllm-costs" in run(*read).output
