"""Studies of open questions on tiny worlds, and what becomes of their files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_profiles import profile, trace

from analysis.__main__ import main
from analysis.execute import Bench
from analysis.results import read
from analysis.sources import Sources
from analysis.studies.openquestions import Pareto, Ratio, RecordedPlan, ceilings, switch
from hardware_profiles.profile import save_profile
from hardware_profiles.trace import write_trace

NAMES = ("budget", "backup", "ratio", "temperature", "scale", "pareto", "drafts")
RANKS = np.random.default_rng(1).choice([0, 1, 2, 4], p=[0.7, 0.15, 0.1, 0.05], size=(8, 40)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_profile(profile(linear=True), folder / "tiny.json")
    write_trace(trace(RANKS, categories=["code", "prose"] * 4, listed=16), folder / "tiny.parquet")
    return folder


def bench() -> Bench:
    return Bench(
        Ratio().study(), RecordedPlan(), given_sources=Sources(profile(), {0.0: trace(RANKS, listed=16)}, 0.0)
    )


def invoke(folder: Path, name: str, out: Path, *arguments: str):  # type: ignore[no-untyped-def]
    asked = ["run", name, "--hw", str(folder / "tiny.json"), "--out", str(out), *arguments]
    return CliRunner().invoke(main, asked)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "scale"])
def test_a_study_writes_data_and_a_picture(folder: Path, tmp_path: Path, name: str) -> None:
    result = invoke(folder, name, tmp_path, "--json", "--count", "4")
    if name == "pareto":  # its widest batch is 8
        assert result.exit_code == 2 and "do not fill a batch of 8" in result.stderr
        result = invoke(folder, name, tmp_path, "--json")
    if name == "backup":
        assert result.exit_code == 2
        result = invoke(folder, name, tmp_path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["study"] == name and found["title"]
    columns = {"setting", "law_speedup_vs_ar", "simulated_speedup_vs_ar", "measured_speedup_vs_ar"}
    assert all(columns <= set(row) for row in found["rows"])
    assert all(row["measured_speedup_vs_ar"] is None for row in found["rows"])
    written = list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))
    assert len(written) == len(found["rows"]) == len(read(tmp_path / f"{name}.parquet").rows)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_temperature_is_refused(folder: Path, tmp_path: Path) -> None:
    result = invoke(folder, "scale", tmp_path)
    assert result.exit_code == 2 and "no trace at temperature 1" in result.stderr


def test_unknown_studies_and_profiles_are_refused(tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ["run", "alchemy"]).exit_code == 2
    result = CliRunner().invoke(main, ["run", "budget", "--hw", "abacus", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "no profile 'abacus'" in result.stderr


def test_every_study_is_listed_with_its_question() -> None:
    listed = CliRunner().invoke(main, ["list"], catch_exceptions=False).stdout.splitlines()
    assert {line.split()[0] for line in listed} >= {"validation", "family", *NAMES}
    assert all(len(line.split()) > 3 for line in listed)


def test_no_simulation_passes_its_ceiling() -> None:
    rows = Ratio().rows(bench())
    assert {row["policy"] for row in rows} == {"sd", "pearl", "saguaro"}
    for row in rows:
        assert row["simulated_speedup_vs_ar"] <= 1.1 * row["ceiling"]
    # Ceilings by hand at a = 1: SD with a draft for nothing and K up to 64 emits 65 tokens a step.
    assert ceilings(1.0, 1e9)["sd"] == pytest.approx(65.0)
    assert ceilings(1.0, 4.0)["pearl"] == 4.0


def test_the_switch_is_where_a_fast_backup_catches_up() -> None:
    speeds = {("primary", 1): 1.5, ("plain", 1): 1.2, ("primary", 2): 1.3, ("plain", 2): 1.3}
    rows = [{"backup": b, "batch": n, "measured_speedup_vs_ar": v} for (b, n), v in speeds.items()]
    assert switch(rows, "measured") == 2
    assert switch(rows[:2], "measured") is None


def test_pareto_counts_devices() -> None:
    rows = {(row["policy"], row["batch"]): row for row in Pareto().rows(bench())}
    assert rows["saguaro", 4]["devices"] == 2 and rows["sd", 4]["devices"] == 1
    row = rows["ar", 4]
    assert row["simulated_per_request"] == pytest.approx(row["simulated_tokens_per_second"] / 4)
    assert row["simulated_per_device"] == pytest.approx(row["simulated_tokens_per_second"])
