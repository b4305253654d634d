"""Experiments on tiny worlds, and what becomes of their files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.experiments import backup, pareto, ratio
from analysis.experiments.__main__ import main
from analysis.experiments.bench import Bench, spread_requests
from analysis.experiments.runner import EXPERIMENTS, module_of
from analysis.experiments.store import Outcome, load, save
from analysis.sources import Sources
from hardware_profiles.profile import save_profile
from hardware_profiles.trace import write_trace
from policies.registry import configure

RANKS = np.random.default_rng(1).choice([0, 1, 2, 4], p=[0.7, 0.15, 0.1, 0.05], size=(8, 40)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_profile(profile(linear=True), folder / "tiny.json")
    write_trace(trace(RANKS, categories=["code", "prose"] * 4, listed=16), folder / "tiny.parquet")
    return folder


@pytest.fixture
def bench() -> Bench:
    return Bench(Sources(profile(), {0.0: trace(RANKS, listed=16)}, 0.0))


def invoke(folder: Path, name: str, out: Path, *arguments: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(main, [name, "--hw", str(folder / "tiny.json"), "--out", str(out), *arguments])


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n != "scale"])
def test_an_experiment_writes_data_and_a_picture(folder: Path, tmp_path: Path, name: str) -> None:
    result = invoke(folder, name, tmp_path, "--json", "--count", "4")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["name"] == name and found["title"] and not found["live"]
    columns = {"setting", "law_speedup_vs_ar", "simulated_speedup_vs_ar", "measured_speedup_vs_ar"}
    assert all(columns <= set(row) for row in found["rows"])
    assert len(list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))) == len(
        found["rows"]
    )
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert load(name, tmp_path).rows == found["rows"]


def test_a_missing_temperature_is_refused(folder: Path, tmp_path: Path) -> None:
    result = invoke(folder, "scale", tmp_path)
    assert result.exit_code == 2 and "no trace at temperature 1" in result.stderr


def test_live_results_are_not_overwritten_by_simulated_ones(folder: Path, tmp_path: Path) -> None:
    row = {"setting": "x"}
    (tmp_path / "budget.json").write_text(Outcome("budget", "t", ("p",), True, [row]).as_json())
    with pytest.raises(ValueError, match="holds live results"):
        save(Outcome("budget", "t", ("p",), False, [row]), module_of("budget"), tmp_path)


def test_unknown_experiments_and_profiles_are_refused(folder: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["alchemy"]).exit_code == 2
    result = CliRunner().invoke(main, ["budget", "--hw", "abacus", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "no profile 'abacus'" in result.stderr


def test_rows_by_hand() -> None:
    bench = Bench(Sources(profile(), {0.0: trace([[0] * 8] * 2)}, 0.0))
    row = bench.row((configure("sd", lookahead=1), 1))
    # Two tokens in 1.25 s; a draft at half the cost makes it 1.125 s.
    assert row["simulated_speedup_vs_ar"] == pytest.approx(1.6)
    faster = bench.row((configure("sd", lookahead=1), 1), {"draft.forward": 0.5})
    # Constant costs do not drift in the simulation of a grid-less profile unless the factor is applied.
    assert faster["law_speedup_vs_ar"] == pytest.approx(2 / 1.125)
    assert faster["simulated_speedup_vs_ar"] == pytest.approx(2 / 1.125)


def test_no_simulation_passes_its_ceiling(bench: Bench) -> None:
    rows = ratio.run(bench)
    assert {row["policy"] for row in rows} == {"sd", "pearl", "saguaro"}
    for row in rows:
        assert row["simulated_speedup_vs_ar"] <= 1.1 * row["ceiling"]
    # Ceilings by hand at a = 1: SD with a draft for nothing and K up to 64 emits 65 tokens a step.
    assert ratio.ceilings(1.0, 1e9)["sd"] == pytest.approx(65.0)
    assert ratio.ceilings(1.0, 4.0)["pearl"] == 4.0


def test_the_switch_is_where_a_fast_backup_catches_up() -> None:
    speeds = {("primary", 1): 1.5, ("plain", 1): 1.2, ("primary", 2): 1.3, ("plain", 2): 1.3}
    rows = [{"backup": b, "batch": n, "measured_speedup_vs_ar": v} for (b, n), v in speeds.items()]
    assert backup.switch(rows, "measured") == 2
    assert backup.switch(rows[:2], "measured") is None


def test_pareto_counts_devices(bench: Bench) -> None:
    rows = {(row["policy"], row["batch"]): row for row in pareto.run(bench)}
    assert rows["saguaro", 4]["devices"] == 2 and rows["sd", 4]["devices"] == 1
    row = rows["ar", 4]
    assert row["simulated_per_request"] == pytest.approx(row["simulated_tokens_per_second"] / 4)
    assert row["simulated_per_device"] == pytest.approx(row["simulated_tokens_per_second"])


def test_prompts_are_taken_from_every_category() -> None:
    recorded = trace([[0]] * 6, categories=["a", "a", "a", "a", "b", "b"])
    assert [r.category for r in spread_requests(recorded, 4).requests] == ["a", "b", "a", "b"]
    assert spread_requests(recorded, None) is recorded
