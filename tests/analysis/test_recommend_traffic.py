"""Recommendations for requests that arrive: one row at a time on constant latencies, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from analysis.recommend import traffic_report
from analysis.recommend.__main__ import main
from analysis.recommend.answer import Query
from analysis.recommend.traffic import TrafficPlan, interval_of, joined, plan_traffic
from serving.lookahead import LookaheadByBatch

# A forward takes 1 s, one of the draft 0.1 s, all drafted tokens are accepted.  A reply of 5 tokens takes
# plain decoding 5 s; SD with K = 4 says the first one after 1.4 s, the other four after 2.8 s.
HAND = (
    *("--hw", "textbook", "--acceptance", "1", "--max-num-seqs", "1", "--prompt", "8", "--output", "5"),
    *("--arrivals", "constant", "--requests", "20", "--lookaheads", "4", "--seeds", "2", "--slo", "e2el=6"),
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*HAND, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def by_name(found: dict[str, Any]) -> dict[str, Any]:
    return {row["setting"]: row for row in found["settings"]}


def test_where_each_setting_stops_by_hand() -> None:
    """Of 20 requests that come every g seconds 18 have to end within 6 s.

    The i-th one waits i (S - g): 5 + 17 (5 - g) = 6 at g = 4.941, 0.2024 requests a second, and
    2.8 + 17 (2.8 - g) = 6 at g = 2.612, 0.3829.
    """
    found = answer("--rate", "0.3")
    rows = by_name(found)
    assert rows["ar"]["stops_at_rate"]["middle"] == pytest.approx(1 / (5 - 1 / 17), rel=0.01)
    assert rows["sd K=4"]["stops_at_rate"]["middle"] == pytest.approx(1 / (2.8 - 3.2 / 17), rel=0.01)
    assert found["settings"][0]["policy"] == "sd" and found["replicas"] == 1
    assert rows["sd K=4"]["latency_s"]["middle"] == pytest.approx(2.8)
    assert (rows["ar"]["holds"], rows["ar"]["devices"], rows["sd K=4"]["devices"]) == (False, 2, 1)
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 1, 4]]


def test_replicas_share_the_load() -> None:
    """A request a second is more than one replica does, and a third of it more than 0.3829 allows two of."""
    found = answer("--rate", "1")
    assert found["replicas"] == 3  # 0.333 each
    assert by_name(found)["ar"]["devices"] == 5
    assert by_name(found)["sd K=4"]["latency_s"]["middle"] == pytest.approx(2.8)


def test_what_never_holds() -> None:
    found = answer("--rate", "0.1", "--slo", "e2el=3")
    ar = by_name(found)["ar"]
    assert ar["stops_at_rate"]["middle"] == 0.0 and ar["devices"] is None
    # Alone a request of SD takes 2.8 s, and of plain decoding 5.
    assert found["over_plain"]["middle"] == pytest.approx(5 / 2.8)
    text = run(*HAND, "--rate", "0.1", "--slo", "e2el=2").output
    assert "nothing holds it at any load" in text


def test_the_screen_says_what_the_json_says() -> None:
    text = run(*HAND, "--rate", "0.3").output
    assert "sd K=4" in text and "0.38 (0.38-0.38)" in text and "--lookahead-by-batch '[[1, 1, 4]]'" in text


def test_a_sweep_goes_out_and_its_results_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_report, "MAP_LOADS", 3)
    pair = (
        *(
            "--hw",
            "h100x1-llama-3.1-8b+llama-3.2-1b",
            "--acceptance",
            "0.7",
            "--rate",
            "5",
            "--requests",
            "12",
        ),
        *("--prompt", "100", "--output", "20", "--slo", "ttft=1,tpot=0.02", "--seeds", "2"),
        *("--lookaheads", "4", "--max-num-seqs", "64"),
    )
    found = run(*pair, "--export", str(tmp_path / "sweep"), "--plot", str(tmp_path / "map.png"), "--json")
    assert found.exit_code == 0, found.output
    lines = json.loads(found.stdout)["engines"]
    assert lines["vllm"].startswith("vllm serve llama-3.1-8b --max-num-seqs 64")
    assert "--goodput ttft:1000 tpot:20 --ignore-eos" in lines["sweep"]
    serve = json.loads((tmp_path / "sweep" / "serve.json").read_text())
    assert serve["ar"] == {} and serve["sd K=4"]["speculative_config"]["num_speculative_tokens"] == 4
    loads = json.loads((tmp_path / "sweep" / "bench.json").read_text())
    assert loads[0]["request_rate"] == 5.0
    table = json.loads((tmp_path / "sweep" / "lookaheads.json").read_text())
    assert table[0][0] == 1 and table[-1][1] == 64
    assert (tmp_path / "map.png").stat().st_size > 10_000

    rows = json.loads(found.stdout)["settings"]
    runs = tmp_path / "sweep" / "runs" / "20261122" / "SERVE-ar"
    runs.mkdir(parents=True)
    measured = {"_benchmark_name": "ar", "request_rate": 5.0, "mean_e2el_ms": 200.0, "median_ttft_ms": 20.0}
    for number in range(2):
        (runs / f"run={number}.json").write_text(json.dumps(measured | {"mean_e2el_ms": 200.0 + 20 * number}))
    compared = run(*pair, "--measured", str(tmp_path / "sweep" / "runs"), "--json")
    told = {row["metric"]: row for row in json.loads(compared.stdout)["measured"]}
    assert set(told) == {"mean_e2el_ms", "median_ttft_ms"} and told["mean_e2el_ms"]["runs"] == 2
    error = told["mean_e2el_ms"]
    assert error["measured"] == 210.0 and error["error"] == pytest.approx(error["predicted"] / 210.0 - 1.0)
    ar = next(row for row in rows if row["setting"] == "ar")
    assert error["predicted"] == pytest.approx(ar["mean_e2el_ms"], rel=0.2)
    (runs / "run=1.json").write_text(json.dumps(measured | {"_benchmark_name": "sd K=9"}))
    assert "none of the settings here" in run(*pair, "--measured", str(runs)).output
    (runs / "run=1.json").write_text("{}")
    assert "no result of a sweep" in run(*pair, "--measured", str(runs)).output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--rate", "1", "--batch", "4"), "--batch is of a full batch"),
        (("--rate", "1", "--slo", "ttft=1", "--max-concurrency", "4"), "closed loop"),
        (("--rate", "1"), "--slo"),
        (("--rate", "1", "--slo", "speed=1"), "objectives are"),
        (("--slo", "ttft=1"), "--slo goes with"),
        (("--export", "there"), "--export goes with"),
    ],
)
def test_refusals(options: tuple[str, ...], says: str) -> None:
    result = run("--hw", "textbook", "--acceptance", "0.5", *options)
    assert result.exit_code == 2 and says in result.output, result.output


def test_a_pair_that_engines_cannot_load() -> None:
    plan = TrafficPlan(rate=1.0, slo="e2el=9", count=2, seeds=2, output=4, lookaheads=(2,))
    found = plan_traffic(Query(hw="textbook", acceptance=1.0), plan)
    assert traffic_report.lines(found)["vllm"].startswith("vllm serve any ")
    assert traffic_report.lines(replace(found, models=("pair:x5", "pair:draft"))) == {}


def test_intervals_and_tables_by_hand() -> None:
    # Of 1, 2 and 3: deviation 1, half a width of 4.303 / sqrt(3) = 2.484.
    assert (interval_of([1, 2, 3]).low, interval_of([1, 2, 3]).high) == pytest.approx(
        (-0.484, 4.484), abs=1e-3
    )
    assert joined(LookaheadByBatch((1, 2, 4, 8), (4, 4, 0, 0))) == LookaheadByBatch((1, 4), (4, 0))
