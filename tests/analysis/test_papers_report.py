"""What `python -m analysis.papers` says, and whether the page and the stored results still say the same."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from analysis.papers.__main__ import main
from analysis.papers.cells import PAPERS, read_csv
from analysis.papers.forecast import toss
from analysis.papers.predicted import TOTAL, PredictedPaper, as_dict, predict_paper, predict_papers, summarise
from analysis.papers.report import as_json, markdown_counts, markdown_summary

ROOT = Path(__file__).parents[2]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def everything() -> list[PredictedPaper]:
    """All studies, what was simulated taken from the stored results: tossing all of it takes minutes."""
    found = []
    for one in predict_papers("all", simulate=False):
        tossed = {row["row"]: row["simulated"] for row in stored(one.paper)["rows"]}
        found.append(
            replace(one, forecasts=[replace(f, simulated=tossed[f.cell.row]) for f in one.forecasts])
        )
    return found


def stored(paper: str) -> dict[str, Any]:
    path = ROOT / "analysis" / "results" / "papers" / f"{paper}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    for name in ("first", "second"):
        result = invoke("rasd", "--json", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert invoke("rasd", "--markdown").stdout == invoke("rasd", "--markdown").stdout


def test_json_holds_every_value_once(tmp_path: Path) -> None:
    path = tmp_path / "double.json"
    assert invoke("double", "--no-simulation", "--summary", "--json", str(path)).exit_code == 0
    found = json.loads(path.read_text())
    flagged = {entry["row"] for entry in found["flagged"]}
    predicted = {row["row"] for row in found["rows"] if row["flag"] is None}
    others = [row for rows in found["not_targets"].values() for row in rows]
    accounted = [*predicted, *flagged, *found["baselines"], *others]
    assert sorted(accounted) == list(range(1, 772)) and found["counts"]["cells"] == 771
    assert all(row["simulated"] is None and row["identifiability"] for row in found["rows"])
    assert all(not {row["row"]} & set(row["used"]) for row in found["rows"])
    assert all(row["low"] <= row["predicted"] <= row["high"] for row in found["rows"])


def test_one_object_for_one_paper_and_a_list_for_all() -> None:
    some = [predict_paper(paper, simulate=False) for paper in ("mirror", "rasd")]
    assert json.loads(as_json(some[:1]))["paper"] == "mirror"
    assert [entry["paper"] for entry in json.loads(as_json(some))] == ["mirror", "rasd"]


def test_the_summary_by_hand() -> None:
    found = predict_paper("mirror", simulate=False)
    lines = {line["method"]: line for line in summarise(found)}
    cells = [f for f in found.sound if f.cell.method == "Mirror-SD"]
    errors = sorted(abs(f.estimate.value / f.cell.value - 1.0) for f in cells)
    line = lines["Mirror-SD: speedup"]
    assert line["predicted"] == len(cells) == 24 and line["law"] is not None
    # The median of 24 is the mean of the 12th and the 13th.
    assert line["law"]["median"] == pytest.approx((errors[11] + errors[12]) / 2)
    assert line["law"]["worst"] == pytest.approx(errors[-1])
    assert line["inside"] == sum(f.inside for f in cells)
    assert lines[TOTAL]["predicted"] == 120  # the two adapters are no speeds
    flags = [line for name, line in lines.items() if name != TOTAL]
    assert sum(line["flagged"] for line in flags) == found.counts["flagged"]


@pytest.mark.parametrize("paper", PAPERS)
def test_summaries_count_every_prediction_and_every_flag(paper: str) -> None:
    found = predict_paper(paper, simulate=False)
    lines = [line for line in summarise(found) if line["method"] != TOTAL]
    assert sum(line["predicted"] for line in lines) == found.counts["predicted"]
    assert sum(line["flagged"] for line in lines) == found.counts["flagged"]


def test_tables_for_people() -> None:
    result = invoke("mirror", "--no-simulation")
    assert result.exit_code == 0
    for text in (
        "Mirror-SD",
        "identifiability",
        "T_draft assumed",
        "flagged, not fitted",
        "not simulated",
        "printed values: 122",
    ):
        assert text in result.output, text
    assert "| --: |" in invoke("rasd", "--markdown").output


def test_the_index_of_figures() -> None:
    result = invoke("figures")
    assert result.exit_code == 0 and "not yet" in result.output
    assert invoke("figures", "--markdown").output.startswith("| paper | figure |")
    for entry in read_csv("figures"):
        assert entry["paper"] in PAPERS and entry["shape"] in {"same", "partly", "not yet", "other", "-"}, (
            entry
        )
        assert entry["why"], entry


def test_bad_input_is_refused(tmp_path: Path) -> None:
    assert invoke("alchemy").exit_code == 2
    result = invoke("figures", "--json", str(tmp_path / "x.json"))
    assert result.exit_code == 2 and "takes --markdown only" in result.output
    result = invoke("mirror", "--no-simulation", "--json", str(tmp_path))
    assert result.exit_code == 2 and "is a directory" in result.output
    (tmp_path / "file").write_text("")
    result = invoke("rasd", "--summary", "--plot", str(tmp_path / "file" / "deeper"))
    assert result.exit_code == 2 and "Error" in result.output
    assert "Examples" in invoke("--help").output


def test_pictures(tmp_path: Path) -> None:
    assert invoke("rasd", "--summary", "--plot", str(tmp_path)).exit_code == 0
    assert (tmp_path / "rasd.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_up_to_date(everything: list[PredictedPaper]) -> None:
    page = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
    head, rule, *lines = markdown_summary(everything).splitlines()
    totals = "\n".join([head, rule, *(line for line in lines if "| all speeds |" in line)])
    assert totals in page, "python -m analysis.papers all --summary --markdown"
    assert markdown_counts(everything) in page


def test_stored_results_are_up_to_date(everything: list[PredictedPaper]) -> None:
    for found in everything:
        alike(stored(found.paper), as_dict(found), found.paper)


@pytest.mark.slow
def test_stored_simulations_are_what_coins_say(everything: list[PredictedPaper]) -> None:
    checked: set[tuple[str, str]] = set()
    for one in everything:
        for forecast in one.forecasts:
            coin = forecast.coin
            if coin is None or (one.paper, coin.policy) in checked:
                continue
            assert forecast.simulated == pytest.approx(toss(coin), rel=1e-9), forecast.cell
            checked.add((one.paper, coin.policy))
    assert {policy for _, policy in checked} == {"sd", "pearl", "saguaro", "double", "duo", "mirror"}


def test_what_is_not_simulated_has_a_reason_and_what_is_has_none(everything: list[PredictedPaper]) -> None:
    for one in everything:
        for forecast in one.forecasts:
            assert (forecast.coin is None) == bool(forecast.unsimulated), forecast.cell
            assert (forecast.simulated is None) == bool(forecast.unsimulated), forecast.cell
    reasons = (
        invoke("rasd", "--markdown").output.split("Not simulated:")[1].split("No prediction targets:")[0]
    )
    assert "coin tosses have no words to look up (" in reasons


def alike(stored: object, now: object, where: str) -> None:
    """Equal, numbers but for what another version of a numerical library may change."""
    if isinstance(stored, dict) and isinstance(now, dict):
        assert [str(k) for k in stored] == [str(k) for k in now], where
        for (name, one), other in zip(stored.items(), now.values(), strict=True):
            alike(one, other, f"{where}.{name}")
    elif isinstance(stored, list) and isinstance(now, list | tuple):
        for number, (one, other) in enumerate(zip(stored, now, strict=True)):
            alike(one, other, f"{where}[{number}]")
    elif isinstance(stored, float) and isinstance(now, float):
        assert math.isclose(stored, now, rel_tol=1e-6, abs_tol=1e-9), where
    else:
        assert stored == now, where
