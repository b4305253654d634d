"""Lists and ranges of `simulate`: each row is the answer of its setting alone; and sweeps kept in parts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulate_command import answer, simulated

from hardware_profiles.tables import Row
from simulator.sweep import kept_in_parts

FEW = ("--acceptance", "0.8", "--requests", "4", "--max-tokens", "24")
COIN = ("--target-time", "1", "--draft-time", "0.1", *FEW)


def swept(*arguments: str) -> list[Row]:
    rows: list[Row] = answer(*COIN, *arguments)["rows"]
    return rows


def test_a_row_is_what_its_setting_alone_answers() -> None:
    rows = swept("--policy", "sd,saguaro", "--lookahead", "2-3,5", "--batch", "1,2", "--backup", "plain")
    assert len(rows) == 2 * 3 * 2
    for row in rows:
        backup = ("--backup", "plain") if row["policy"] == "saguaro" else ()
        asked = (f"--lookahead={row['lookahead']}", f"--batch={row['batch']}", "--policy", row["policy"])
        alone = answer(*COIN, *asked, *backup)
        for name in ("tokens_per_second", "speedup_vs_ar", "speedup_vs_sd", "tokens_per_round", "engine"):
            assert row[name] == alone[name]
        assert row["law_speedup_vs_ar"] == alone["law"]["speedup_vs_ar"] and row["refused"] is None


def test_plain_decoding_has_no_lookahead_and_is_one_row() -> None:
    rows = swept("--policy", "ar,sd", "--lookahead", "1-4")
    assert [row["setting"] for row in rows] == ["ar", "sd K=1", "sd K=2", "sd K=3", "sd K=4"]


def test_what_cannot_run_is_a_row_that_says_why() -> None:
    rows = swept("--policy", "sd,pld")
    assert rows[0]["refused"] is None and "looks words up" in rows[1]["refused"]
    printed = simulated(*COIN, "--policy", "sd,pld").stdout
    assert "not run: pld" in " ".join(printed.split()) and "sd K=4" in printed
    alone = simulated(*COIN, "--policy", "pld", "--lookahead", "2,3")
    assert alone.exit_code == 2 and "looks words up" in alone.output


def test_the_fastest_of_each_load_is_marked() -> None:
    lines = simulated(*COIN, "--policy", "sd", "--lookahead", "1,4", "--batch", "1,4").stdout.splitlines()
    assert [line.split("│")[1].strip() for line in lines if "*" in line and "│" in line] == ["sd K=4 *"] * 2


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_a_table_is_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    rows = swept("--policy", "ar,sd", "--out", str(path), "--plot", str(tmp_path / "rows.png"))
    read: dict[str, Any] = {
        "parquet": lambda: pq.read_table(path).to_pylist(),
        "csv": lambda: list(csv.DictReader(path.read_text().splitlines())),
        "json": lambda: json.loads(path.read_text()),
    }
    found = read[ending]()
    assert [row["setting"] for row in found] == [row["setting"] for row in rows]
    assert [float(row["speedup_vs_ar"]) for row in found] == [row["speedup_vs_ar"] for row in rows]
    assert (tmp_path / "rows.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lookahead", "4-2"], "goes from less to more"),
        (["--lookahead", "1-20000"], "1,000 at most"),
        (["--batch", "1,x"], "not a valid integer"),
        (["--policy", "sd,sagauro"], "Did you mean 'saguaro'"),
        (["--policy", "sd,pearl", "--fanout", "3"], "has no fanout"),
        (["--batch", "1,2", "--timeline", "run.json"], "of one setting"),
        (["--batch", "1,2", "--out", "rows.txt"], "ends in .parquet"),
        (["--batch", "1,2", "--rate", "1"], "one setting at a time"),
    ],
)
def test_bad_lists_are_refused(arguments: list[str], message: str) -> None:
    result = simulated(*COIN, *arguments)
    assert result.exit_code == 2 and message in result.output


def test_a_draft_of_another_cost() -> None:
    """The textbook profile's draft step takes a tenth of a target step of 1; a chain of four, then one."""
    rows = answer(*FEW, "--hw", "textbook", "--policy", "sd", "--draft-factor", "0.5,1,2.5")["rows"]
    tokens = rows[0]["tokens_per_round"]
    assert [row["speedup_vs_ar"] for row in rows] == pytest.approx(
        [tokens / (1 + 4 * step) for step in (0.05, 0.1, 0.25)], rel=0.02
    )
    assert rows[2]["law_speedup_vs_ar"] < rows[1]["law_speedup_vs_ar"]
    refused = simulated(*COIN, "--draft-factor", "2")
    assert refused.exit_code == 2 and "changes a profile" in refused.output


# Parts

SCHEMA = pa.schema([("number", pa.int64()), ("word", pa.string())])
DONE: list[int] = []


def _rows(chunk: int) -> list[Row]:
    if chunk == 2 and len(DONE) == 2:
        raise KeyboardInterrupt
    DONE.append(chunk)
    return [{"number": 10 * chunk + i, "word": None if i else "x"} for i in range(2)]


def _kept(path: Path, about: dict[str, Any], jobs: int = 1) -> int:
    return kept_in_parts(_rows, range(4), SCHEMA, path, about=about, jobs=jobs)


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    DONE.clear()
    with pytest.raises(KeyboardInterrupt):  # two of four chunks are done
        _kept(tmp_path / "a.parquet", {"asked": 1})
    assert not (tmp_path / "a.parquet").exists()
    DONE.append(-1)
    assert _kept(tmp_path / "a.parquet", {"asked": 1}) == 2
    assert DONE == [0, 1, -1, 2, 3] and [p.name for p in tmp_path.iterdir()] == ["a.parquet"]
    assert [row["number"] for row in pq.read_table(tmp_path / "a.parquet").to_pylist()] == [
        0, 1, 10, 11, 20, 21, 30, 31,
    ]  # fmt: skip
    assert _kept(tmp_path / "a.parquet", {"asked": 1}) == 0
    assert _kept(tmp_path / "whole.parquet", {"asked": 1}) == 4
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_parts_of_another_sweep_are_not_taken(tmp_path: Path) -> None:
    DONE.clear()
    with pytest.raises(KeyboardInterrupt):
        _kept(tmp_path / "a.parquet", {"asked": 1})
    DONE.append(-1)
    assert _kept(tmp_path / "a.parquet", {"asked": 2}) == 4


def test_several_jobs_write_the_same_bytes(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    DONE[:] = [-1] * 3
    _kept(tmp_path / "one.parquet", {})
    with joblib.parallel_config(backend="threading"):
        _kept(tmp_path / "two.parquet", {}, jobs=2)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_policies_of_unequal_knobs_need_no_further_option() -> None:
    # No option of some policies alone is named, so that none of those is made.
    rows = swept("--policy", "ssd,sd,ar", "--batch", "1,2")
    assert [row["policy"] for row in rows] == ["saguaro", "saguaro", "sd", "sd", "ar", "ar"]
