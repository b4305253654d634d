"""Queueing theory as the oracle: one row at a time, requests of one step each, whose time is drawn."""

from __future__ import annotations

from itertools import repeat

import pytest

from analysis.studies.queueing import SYSTEMS, Server, System, constant, row_of, served
from serving.loop import serve
from serving.metrics import good, metrics, parse_slo
from serving.scheduler import EngineOptions
from serving.traffic import TrafficError, generated


@pytest.mark.parametrize("system", SYSTEMS[:3], ids=lambda system: system.name)
def test_one_server(system: System) -> None:
    """Within 99 %, and the interval is a narrow one."""
    found = row_of(system, 24_000, 2)
    assert found["half_s"] < 0.25 * found["expected_s"]
    assert found["inside"]
    assert found["busy"] == pytest.approx(system.rate, rel=0.05)


def test_closed_loop_of_five_users() -> None:
    """One server that never idles: a request a second, and each waits for the other four."""
    found = served(System("closed", constant, 1.0, users=5), 200, 0)
    assert found.end_s == 200.0
    assert found.e2el_s[10:].tolist() == [5.0] * 190


def test_metrics_by_hand() -> None:
    """Three requests of 3 tokens at 0, 1, 2 s, a row at a time, a second a step: 3 s each, one by one."""
    traffic = generated(3, 1, 3, [0.0, 1.0, 2.0])
    done = serve(traffic, EngineOptions(max_num_seqs=1), Server(repeat(1.0)))
    found = metrics(done, parse_slo("ttft=3,tpot=1"))
    assert done.ttft_s.tolist() == [1.0, 3.0, 5.0]
    assert (found["mean_ttft_ms"], found["median_ttft_ms"]) == (3000.0, 3000.0)
    assert found["p90_ttft_ms"] == pytest.approx(4600.0)  # 3000 + 0.8 * 2000
    assert found["mean_tpot_ms"] == found["p99_itl_ms"] == 1000.0
    assert found["mean_e2el_ms"] == 5000.0
    assert found["duration"] == 9.0 and found["output_throughput"] == 1.0
    assert found["request_goodput"] == pytest.approx(2 / 9)  # the last one waits too long
    assert good(done, {"e2el": 4.0}).tolist() == [True, False, False]
    assert found["mean_waiting"] == pytest.approx(6 / 9)  # beside the nine steps: 0 1 2, 1 1 1, 0 0 0


@pytest.mark.parametrize("text", ["ttft", "ttft=0", "ttft=x", "speed=1", ""])
def test_bad_objectives(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_slo(text)


def test_a_single_token_has_no_tpot() -> None:
    done = serve(generated(2, 1, 1, [0.0, 0.0]), EngineOptions(), Server(repeat(1.0)))
    found = metrics(done, {"tpot": 0.001})
    assert found["mean_tpot_ms"] is None and found["median_itl_ms"] is None
    assert found["good_share"] == 1.0
