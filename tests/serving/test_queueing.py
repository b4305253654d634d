"""Queueing theory as the oracle: one row at a time, requests of one step each, whose time is drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serving.loop import serve
from serving.metrics import good, metrics, parse_slo
from serving.scheduler import EngineOptions, Step
from serving.traffic import TrafficError, arrival_times, generated

COUNT, BATCHES = 24_000, 24


class Server:
    """A step takes what is drawn."""

    lookahead = 0

    def __init__(self, draw: Callable[[np.random.Generator, int], np.ndarray]) -> None:
        self.now = 0.0
        self.seconds = iter(draw(np.random.default_rng(5), COUNT).tolist())

    def wait_until(self, at_s: float) -> None:
        self.now = at_s

    def run(self, step: Step) -> tuple[list[int], int]:
        self.now += next(self.seconds)
        return [0] * len(step.decodes), 0


def two_kinds(random: np.random.Generator, count: int) -> np.ndarray:
    """9 of 10 take 0.5 s, the tenth 5.5 s: mean 1, E[S^2] = 0.9 * 0.25 + 0.1 * 30.25 = 3.25."""
    return np.where(random.random(count) < 0.9, 0.5, 5.5)


# Pollaczek and Khinchine: a wait of rate E[S^2] / (2 (1 - rho)), E[S] = 1; M/M/1 has E[S^2] = 2, M/D/1 1.
@pytest.mark.parametrize(
    ("draw", "square", "rate"),
    [
        (lambda random, n: np.ones(n), 1.0, 0.7),
        (lambda random, n: random.exponential(1.0, n), 2.0, 0.6),
        (two_kinds, 3.25, 0.5),
    ],
    ids=["M/D/1", "M/M/1", "M/G/1"],
)
def test_one_server(
    draw: Callable[[np.random.Generator, int], np.ndarray], square: float, rate: float
) -> None:
    traffic = generated(COUNT, 1, 1, arrival_times(COUNT, rate, seed=2))
    served = serve(traffic, EngineOptions(max_num_seqs=1), Server(draw))
    expected = 1.0 + rate * square / (2.0 * (1.0 - rate))
    means = served.ttft_s[COUNT // 10 :].reshape(BATCHES, -1).mean(axis=1)
    half = 2.81 * means.std(ddof=1) / np.sqrt(BATCHES)  # 99 % by Student's t with 23 degrees of freedom
    assert half < 0.25 * expected
    assert abs(means.mean() - expected) < half
    assert served.busy_s / served.end_s == pytest.approx(rate, rel=0.05)


def test_closed_loop_of_five_users() -> None:
    """One server that never idles: a request a second, and each waits for the other four."""
    traffic = generated(200, 1, 1, np.zeros(200))
    engine = Server(lambda random, n: np.ones(n))
    served = serve(traffic, EngineOptions(max_num_seqs=1), engine, max_concurrency=5)
    assert served.end_s == 200.0
    assert served.e2el_s[10:].tolist() == [5.0] * 190


def test_metrics_by_hand() -> None:
    """Three requests of 3 tokens at 0, 1, 2 s, a row at a time, a second a step: 3 s each, one by one."""
    traffic = generated(3, 1, 3, [0.0, 1.0, 2.0])
    served = serve(traffic, EngineOptions(max_num_seqs=1), Server(lambda random, n: np.ones(n)))
    found = metrics(served, parse_slo("ttft=3,tpot=1"))
    assert served.ttft_s.tolist() == [1.0, 3.0, 5.0]
    assert (found["mean_ttft_ms"], found["median_ttft_ms"]) == (3000.0, 3000.0)
    assert found["p90_ttft_ms"] == pytest.approx(4600.0)  # 3000 + 0.8 * 2000
    assert found["mean_tpot_ms"] == found["p99_itl_ms"] == 1000.0
    assert found["mean_e2el_ms"] == 5000.0
    assert found["duration"] == 9.0 and found["output_throughput"] == 1.0
    assert found["request_goodput"] == pytest.approx(2 / 9)  # the last one waits too long
    assert good(served, {"e2el": 4.0}).tolist() == [True, False, False]
    assert found["mean_waiting"] == pytest.approx(6 / 9)  # beside the nine steps: 0 1 2, 1 1 1, 0 0 0


@pytest.mark.parametrize("text", ["ttft", "ttft=0", "ttft=x", "speed=1", ""])
def test_bad_objectives(text: str) -> None:
    with pytest.raises(TrafficError):
        parse_slo(text)


def test_a_single_token_has_no_tpot() -> None:
    served = serve(generated(2, 1, 1, [0.0, 0.0]), EngineOptions(), Server(lambda random, n: np.ones(n)))
    found = metrics(served, {"tpot": 0.001})
    assert found["mean_tpot_ms"] is None and found["median_itl_ms"] is None
    assert found["good_share"] == 1.0
