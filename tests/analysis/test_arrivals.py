"""`validate --rate` on live runs made of simulated ones: a machine 10 % slower than its profile."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from tiny_profiles import profile, trace

from analysis import execute
from analysis.cli import main
from analysis.results import Results
from analysis.sources import Sources
from analysis.studies import arrivals, validation
from calibrate.live_traffic import LiveServing
from calibrate.machine import Machine
from simulator.run import Scenario
from simulator.tokens import replay
from simulator.traffic import serve_traffic

TEXTS = trace([[0, 0, 1, 0, 2, 0] * 2] * 3)
TINY = profile()
ASKED = ["--policies", "sd,saguaro", "--lookahead", "2", "--fanout", "2", "--count", "3", "--requests", "12",
         "--max-num-seqs", "2", "--slo", "ttft=20", "--repeats", "2", "--hw", "tiny"]  # fmt: skip


def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(machine=Machine("Some CPU", (0, 1, 2), ()), limit=12)
    monkeypatch.setattr(validation, "make_job", lambda *_, **__: job)
    monkeypatch.setattr(validation, "like_profile", lambda job, _: job)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: Sources(TINY, {0.0: TEXTS}, 0.0))
    monkeypatch.setattr(execute.Bench, "trace", lambda self, t: self.sources.trace(t))
    monkeypatch.setattr(arrivals, "live_runs", live)


def live(bench: Any, options: Any, settings: Any, loads: Any, texts: Any) -> Any:
    """Repetitions that take 9 and 11 % longer."""
    said = tuple(tuple(each.tolist()) for each in np.split(TEXTS.token, TEXTS.offsets[1:-1]))
    runs = {}
    for load in loads:
        for each in settings:
            for slower in (1.09, 1.11):
                drift = dict.fromkeys(TINY.operations, slower)
                scenario = Scenario(replay(TEXTS), profile=TINY, drift=drift)
                served, _ = serve_traffic(scenario, each, load.traffic, options, rounds=True)
                run = LiveServing(served, said * 4, (), ())
                runs.setdefault((load.name, each.label), []).append(run)
    return runs


def call(*arguments: str) -> Any:
    return CliRunner().invoke(main, [*ASKED, *arguments])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        machine(patch)
        result = call("--rate", "0.5x,overload", "--out", str(folder), "--json")
    assert result.exit_code == 0, result.output
    return folder


def found_in(folder: Path) -> Results:
    told = json.loads((folder / "validation.json").read_text())
    about = {name: told[name] for name in told if name not in {"study", "asked", "rows"}}
    return Results("validation", tuple(told["rows"]), told["asked"], about)


def test_what_was_measured_is_compared(out: Path) -> None:
    found = found_in(out)
    by = {(row["load"], row["policy"], row["metric"]): row for row in found.rows}
    assert len(by) == 2 * 3 * len(arrivals.METRICS)
    # Plain decoding of 12 tokens by 2 rows of 1 s a token: 1 / 6 requests a second, less the prompts' time.
    capacity = by["0.5x", "ar", "mean_ttft_ms"]["rate"] / 0.5
    assert 0.1 < capacity < 1 / 6
    assert by["overload", "sd", "mean_ttft_ms"]["rate"] == pytest.approx(1.3 * capacity)
    tpot = by["0.5x", "ar", "mean_itl_ms"]
    assert tpot["error"] < 0.0 and len(tpot["by_repeat"]) == 2
    low, high = tpot["by_repeat"]
    assert tpot["measured_spread"] == pytest.approx((high - low) / 2 / tpot["measured"])
    assert by["0.5x", "sd", "tokens_per_round"]["error"] == pytest.approx(0.0)  # the same content
    queue = by["overload", "ar", "p99_ttft_ms"]
    assert queue["simulated"] > 1.4 * by["0.5x", "ar", "p99_ttft_ms"]["simulated"]
    goodput = by["overload", "ar", "request_goodput"]
    assert goodput["simulated"] > goodput["measured"] > 0.0
    assert found.about["identical_to_plain_decoding"] is True
    assert found.about["errors"]["mean_e2el_ms"]["largest"] > 0.05


def test_table_and_picture(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    table = call("--rate", "0.5x").output
    assert "0.5x: " in table and "TTFT, ms" in table and "good requests/s" in table
    assert "text identical to plain decoding: yes" in table
    for picture in arrivals.pictures(found_in(out)).values():
        figure = Figure(figsize=picture.size)
        picture.draw(figure)
        assert [axes.get_ylabel() for axes in figure.axes] == list(arrivals.PANELS.values())


def test_stored_runs_are_predicted_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a profile that is 10 % slower: then nothing is far off, at the same arrivals."""
    machine(monkeypatch)
    slow = profile(target_s=1.1, draft_s=0.275)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: Sources(slow, {0.0: TEXTS}, 0.0))
    result = call("--rate", "0.5x,overload", "--measured", str(out), "--json")
    assert result.exit_code == 0, result.output
    again = json.loads(result.stdout)
    before = {(row["load"], row["setting"], row["metric"]): row for row in found_in(out).rows}
    for row in again["rows"]:
        old = before[row["load"], row["setting"], row["metric"]]
        assert (row["rate"], row["measured"]) == (old["rate"], old["measured"])
    itl = [row["error"] for row in again["rows"] if row["metric"] == "mean_itl_ms"]
    assert max(map(abs, itl)) < 0.05 < max(abs(before[k]["error"]) for k in before if k[2] == "mean_itl_ms")


def test_a_trace_says_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    path = tmp_path / "three.jsonl"
    path.write_text("".join(
        json.dumps({"input_toks": 5, "output_toks": n, "arrival_time_ns": int(1e9 * at)}) + "\n"
        for at, n in ((0, 3), (2, 40), (7.5, 1))
    ))  # fmt: skip
    rows = json.loads(call("--traffic", str(path), "--json").stdout)["rows"]
    assert {(row["load"], row["requests"]) for row in rows} == {("three.jsonl", 3)}
    assert rows[0]["rate"] == pytest.approx(2 / 7.5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--rate", "fast"), "a share such as 0.5x"),
        (("--rate", "1", "--temperature", "1"), "--temperature"),
        (("--rate", "1", "--batch", "2"), "--max-num-seqs"),
        (("--rate", "1", "--enable-prefix-caching"), "share nothing"),
        (("--rate", "1", "--policies", "double"), "not with 'double'"),
        (("--rate", "1", "--num-gpu-blocks", "1", "--block-size", "4"), "num_gpu_blocks is 1"),
    ],
)
def test_refusals(options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    sources = Sources(TINY, {0.0: TEXTS, 1.0: TEXTS}, 0.0)
    monkeypatch.setattr(validation, "load_sources", lambda *_, **__: sources)
    result = call(*options)
    assert result.exit_code != 0 and says in result.output
