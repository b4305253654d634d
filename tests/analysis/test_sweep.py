"""The sweep study: every row is `simulate`'s answer, maps compare equal devices, kills lose little."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from analysis.__main__ import main
from analysis.results import Results, Row
from analysis.studies import sweep
from analysis.studies.sweep import SweepPlan, cells, chunks, per_device, pictures, work
from simulator.sweep import Sweeper, kept_in_parts, row_schema

SMALL = "--hw textbook --batch 1,2 --acceptances 0.5,0.9 --contexts 8 --draft-factors 1,9 --lookaheads 1,3"


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "TOKENS", 16)
    monkeypatch.setattr(sweep, "REQUESTS", (8, 4))
    monkeypatch.setattr(sweep, "_worker", [])


def asked(*more: str) -> Row:
    arguments = ["run", "sweep", *SMALL.split(), "--guesses", "1", "--json", *more]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found: Row = json.loads(result.stdout)
    return found


def test_a_world_of_constant_costs() -> None:
    found = asked()
    at = {(row["map"], row["batch"], row["draft_factor"], row["acceptance"]): row for row in found["rows"]}
    # 2 x 2 cells of batch and acceptance, 2 x 1 of batch and context, 2 x 2 of ratio and acceptance.
    assert len(at) == 4 + 2 + 4
    # One request on two devices, a draft of a tenth of a target step: SSD hides its drafting.
    row = at["batch-acceptance", 1, 1.0, 0.9]
    assert row["winner"] == "saguaro" and row["saguaro_vs_ar"] > row["sd_vs_ar"] > 1.0
    assert row["cost_ratio"] == pytest.approx(10.0)
    # Two requests on two devices: two replicas of SD serve them at once, one group of SSD in turns.
    assert at["batch-acceptance", 2, 1.0, 0.9]["sd_vs_ar"] == pytest.approx(row["sd_vs_ar"], rel=0.02)
    # A draft almost as slow as its target brings nothing to SD.
    assert at["ratio-acceptance", 1, 9.0, 0.5]["sd_vs_ar"] < 1.0
    assert found["asked"]["refused"] == 0
    maps = pictures(Results("sweep", tuple(found["rows"])))
    assert set(maps) == {f"-{name}" for name in sweep.PLANES}
    figure = Figure()
    maps["-batch-context"].draw(figure)
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.texts] == [
        f"{row['speedup_vs_ar']:.1f}" for row in found["rows"] if row["map"] == "batch-context"
    ]


def test_rows_are_of_simulate_and_jobs_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joblib = pytest.importorskip("joblib")
    monkeypatch.setattr(sweep, "CHUNK", 3)
    plan = SweepPlan(
        hw=("textbook",), batch=(1, 2), acceptances=(0.5,), contexts=(8,), draft_factors=(1.0,),
        lookaheads=(2,), guesses=(1,),
    )  # fmt: skip
    parts = chunks(plan)
    assert len(parts) > 2
    kept_in_parts(work, parts, row_schema(), tmp_path / "one.parquet", about={})
    with joblib.parallel_config(backend="threading", n_jobs=1):
        kept_in_parts(work, parts, row_schema(), tmp_path / "two.parquet", about={}, jobs=-1)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    row = pq.read_table(tmp_path / "one.parquet").to_pylist()[3]  # the first of the second chunk
    alone = Sweeper().row(parts[1].requests[0])
    assert all(row[name] == alone[name] for name in ("setting", "batch", "speedup_vs_ar", "tokens_per_round"))


def test_groups_of_unequal_batches() -> None:
    """Five replicas for twelve requests: three serve two, two serve three; 2.4 on the line between."""
    rows = [{"batch": 2, "tokens_per_second": 10.0}, {"batch": 3, "tokens_per_second": 14.0}]
    assert per_device(rows, 2.4, devices=1) == pytest.approx((3 * 10.0 + 2 * 14.0) / 5)
    assert per_device(rows, 2.4, devices=4) == pytest.approx(11.6 / 4)
    # Four requests on five replicas: one idles.
    assert per_device([{"batch": 1, "tokens_per_second": 6.0}], 0.8, devices=1) == pytest.approx(4 * 6.0 / 5)
    assert per_device(rows, 3.5, devices=1) is None


def test_planes_cross_in_one_point() -> None:
    plan = SweepPlan(batch=(1, 4, 16), acceptances=(0.5, 0.8), contexts=(256, 512), draft_factors=(1.0, 2.0))
    assert len(cells(plan)) == 3 * 2 + 3 * 2 + 2 * 2 - 3 - 2 - 1 + 1
    assert {"batch": 1, "prompt_length": 512, "acceptance": 0.8, "draft_factor": 1.0} in cells(plan)


def test_what_is_recorded_is_swept_too(tmp_path: Path) -> None:
    arguments = "--hw cpu2-x5 --recorded --policies ar,sd,pld --lookaheads 2 --max-tokens 8 --batch 2"
    command = ["run", "sweep", *arguments.split(), "--placements", "split,shared", "--json"]
    rows = json.loads(CliRunner().invoke(main, command).stdout)["rows"]
    assert [(row["placement"], row["policy"]) for row in rows] == [
        (place, policy) for place in ("split", "shared") for policy in ("ar", "sd", "pld")
    ]
