"""Traffic through flat arrays is the traffic of the scheduler, whatever comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from policies.registry import Settings, configure
from serving.lookahead import LookaheadByBatch
from serving.metrics import Served
from serving.scheduler import EngineOptions
from serving.traffic import ServedRequest, Traffic, TrafficError, arrival_times, generated
from simulator import flat_traffic
from simulator import traffic as plain
from simulator.compiled import steps
from simulator.compiled.loops import Loop
from simulator.costs import TextbookCosts
from simulator.scenario import Scenario
from simulator.tokens import coin

TOKENS = coin(0.7, exponent=1.0, scale=1.0, requests=3, length=9, prompt_length=1, seed=1)
TABLE = LookaheadByBatch((1, 2, 4), (3, 1, 0))
BY_CONTEXT = LookaheadByBatch((1, 3), (2, 0, 1, 3), (0, 12))
SETTINGS = {
    "ar": (configure("ar"), None),
    "sd": (configure("sd", lookahead=2), None),
    "by batch": (configure("sd"), TABLE),
    "by context": (configure("sd"), BY_CONTEXT),
}


def both(
    scenario: Scenario,
    chosen: Settings,
    traffic: Traffic,
    options: EngineOptions,
    *more: Any,
) -> tuple[Served, Served]:
    table, users = more
    expected, _ = plain.serve_traffic(scenario, chosen, traffic, options, table, max_concurrency=users)
    engine = plain.engine_of(scenario, chosen, table)
    with np.errstate(over="ignore"):
        return expected, flat_traffic.FlatRun(traffic, options, engine, users).serve(steps.run_steps)


def same(expected: Served, found: Served) -> None:
    for name in ("arrival_s", "first_s", "last_s", "prompt", "output", "gaps"):
        assert np.array_equal(getattr(expected, name), getattr(found, name)), name
    for name in ("end_s", "steps", "busy_s", "running", "waiting", "most_blocks", "counts"):
        assert getattr(expected, name) == getattr(found, name), name


@settings(max_examples=100, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    ),
    policy=st.sampled_from(sorted(SETTINGS)),
    blocks=st.sampled_from([None, *range(12, 20)]),
    rows=st.integers(1, 6),
    caching=st.booleans(),
    chunked=st.booleans(),
    users=st.sampled_from([None, 3]),
)
def test_any_traffic(
    *,
    asked: list[tuple[int, int, int, int]],
    policy: str,
    blocks: int | None,
    rows: int,
    caching: bool,
    chunked: bool,
    users: int | None,
) -> None:
    """Shared beginnings, blocks that run out, prompts in parts or whole, users of a closed loop."""
    requests = tuple(
        ServedRequest(0.7 * at, p, o, tuple(10 * kind + i for i in range(p // 4)) if kind else ())
        for at, p, o, kind in sorted(asked)
    )
    options = EngineOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=16 if chunked else 48,
        block_size=4,
        num_gpu_blocks=blocks,
        enable_prefix_caching=caching,
        enable_chunked_prefill=chunked,
    )
    scenario = Scenario(TOKENS, textbook=TextbookCosts(1.0, 0.1))
    chosen, table = SETTINGS[policy]
    same(*both(scenario, chosen, Traffic(requests, "any"), options, table, users))


@pytest.mark.parametrize("hw", ["cpu2-x5", "h100x1-qwen3-8b+eagle3-qwen3-8b"])
@pytest.mark.parametrize("policy", sorted(SETTINGS))
def test_prices_noise_and_host_time(hw: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_traffic, "DRAWN", 128)  # it stops for more
    monkeypatch.setattr(flat_traffic, "GAPS", 64)
    scenario = Scenario(TOKENS, profile=load_profile(find_profile(hw)), seed=3)
    traffic = generated(40, 70, 40, arrival_times(40, 500.0, seed=1))
    options = EngineOptions(max_num_seqs=8, num_gpu_blocks=23, max_num_batched_tokens=128)
    chosen, table = SETTINGS[policy]
    expected, found = both(scenario, chosen, traffic, options, table, None)
    same(expected, found)
    assert expected.counts.preemptions > 0


def test_the_command_runs_it_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer compiled or not, what lay beyond the measured grid included."""
    pytest.importorskip("numba")
    scenario = Scenario(TOKENS, profile=load_profile(find_profile("cpu2-x5")), seed=3)
    traffic = generated(12, 4000, 12, np.zeros(12))
    expected = plain.serve_traffic(scenario, configure("sd"), traffic, EngineOptions())
    monkeypatch.setattr(Loop, "mode", "numba")
    monkeypatch.setattr(steps, "compiled_steps", lambda: steps.run_steps)
    told = list[int]()
    found = flat_traffic.serve_traffic(
        scenario, configure("sd"), traffic, EngineOptions(), progress=told.append
    )
    same(expected[0], found[0])
    assert expected[1] == found[1] != ()
    calls = Traffic((*traffic.requests, replace(traffic.requests[0], after=0)), "calls")
    monkeypatch.setattr(
        flat_traffic, "FlatRun", None
    )  # a call that waits for another one's reply is not covered
    assert len(flat_traffic.serve_traffic(scenario, configure("ar"), calls, EngineOptions())[0].last_s) == 13


def test_compiled() -> None:
    pytest.importorskip("numba")
    scenario = Scenario(TOKENS, profile=load_profile(find_profile("cpu2-x5")), seed=3)
    traffic = generated(40, 70, 40, np.zeros(40))
    options = EngineOptions(max_num_seqs=8, num_gpu_blocks=23, max_num_batched_tokens=128)
    expected, _ = plain.serve_traffic(scenario, configure("sd"), traffic, options)
    engine = plain.engine_of(scenario, configure("sd"))
    same(expected, flat_traffic.FlatRun(traffic, options, engine, None).serve(steps.compiled_steps()))


@pytest.mark.parametrize(
    ("request_", "options", "says"),
    [
        (ServedRequest(0.0, 100, 20), {"num_gpu_blocks": 7}, "request 1 .* needs 8 KV blocks"),
        (ServedRequest(0.0, 100, 20), {"max_model_len": 119}, "request 1 .* longer than max_model_len 119"),
        (ServedRequest(0.0, 100, 20), {"max_num_batched_tokens": 4}, "less than max_num_seqs"),
    ],
)
def test_what_can_never_be_served_is_refused(
    request_: ServedRequest, options: dict[str, int], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and before anything runs, also where it is compiled."""
    pytest.importorskip("numba")
    monkeypatch.setattr(Loop, "mode", "numba")
    monkeypatch.setattr(steps, "compiled_steps", lambda: steps.run_steps)
    scenario = Scenario(TOKENS, textbook=TextbookCosts(1.0, 0.1))
    traffic = Traffic((ServedRequest(0.0, 4, 4), request_), "x")
    with pytest.raises(TrafficError, match=says):
        flat_traffic.serve_traffic(scenario, configure("ar"), traffic, EngineOptions(**options))
