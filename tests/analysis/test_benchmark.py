"""The benchmark's object, from runs too short to say anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis import benchmark
from analysis.benchmark import PROFILE, WORLDS, main, scalar_tokens, scale, write_long_trace
from hardware_profiles.store import find_trace
from hardware_profiles.trace import read_trace


def test_it_prints_one_object() -> None:
    few = ["--repeats", "1", "--event-tokens", "500", "--compiled-tokens", "500", "--json"]
    found = json.loads(CliRunner().invoke(main, few, catch_exceptions=False).output)
    for engine in ("event", "compiled", "compiled_uncached"):
        assert set(found[engine]) == set(WORLDS)
        assert all(rate > 0.0 for rate in found[engine].values())
    for name in ("simpy_timeouts_per_second", "scalar_tokens_per_second"):
        low, high = found["spread"][name]
        assert 0.0 < low <= found[name] <= high


def test_people_get_a_table() -> None:
    few = ["--repeats", "1", "--event-tokens", "300", "--compiled-tokens", "300"]
    lines = CliRunner().invoke(main, few, catch_exceptions=False).stdout.splitlines()
    assert sum(line.startswith("| event world | ") for line in lines) == len(WORLDS)
    assert all(line.count("|") == lines[0].count("|") for line in lines if line.startswith("|"))


def test_a_long_trace_is_the_shipped_one_again_and_again(tmp_path: Path) -> None:
    write_long_trace(9_000, str(tmp_path))
    again = read_trace(tmp_path / "9000.parquet", columns=("draft_rank",))
    once = read_trace(find_trace(PROFILE), columns=("draft_rank",))
    assert len(again) >= 9_000 and len(again) % len(once) == 0
    assert again.column("draft_rank")[-len(once) :].tolist() == once.column("draft_rank").tolist()
    found = scale("positions", 9_000, str(tmp_path))
    assert found["seconds"] > 0.0 and found["megabytes"] >= found["base_megabytes"] > 0.0


def test_the_scalar_loop_by_hand() -> None:
    # Runs 2 1 0 and then 0: three tokens, one, three, one, ...: 7 is reached in three rounds, with 7.
    assert scalar_tokens([2, 1, 0, 0], [1, 1, 1, 1], total=7) == 7.0


def test_the_search_s_table_says_where_engines_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"settings": 9, "found": "sd K=2", "best": "ar", "regret": 0.25, "by_events": 3, "differ": 1e-16}
    monkeypatch.setattr(
        benchmark, "searched", lambda hw, batch: {**row, "hw": hw, "batch": batch, "both": ["ar", "sd"]}
    )
    lines = CliRunner().invoke(main, ["--search"], catch_exceptions=False).stdout.splitlines()
    assert lines[2] == "| cpu2-x5 | 1 | 9 | sd K=2 | ar | 25.00% | 3 | no: ar, sd | 1.0e-16 |"
    assert len(lines) == 5
