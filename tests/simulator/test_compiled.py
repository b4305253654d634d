"""The compiled replay is the event world: rounds identical, times to rounding, whatever runs."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny_profiles import profile as tiny_profile
from tiny_worlds import tokens_by_hand

from hardware_profiles.optime import Host, OperationHost
from hardware_profiles.profile import Overlap, Profile, load_profile
from hardware_profiles.reply_trace import read_decisions
from hardware_profiles.store import decisions_name, find_decisions, find_profile, find_trace
from hardware_profiles.trace import read_trace
from policies.operation import Operation
from policies.registry import SettingError, Settings, configure
from simulator.compiled import batches, content, prices, replay
from simulator.compiled.loops import Loop, Mode
from simulator.compiled.replay import not_covered
from simulator.costs import Effects, TextbookCosts
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import TokenModel, coin
from simulator.tokens import replay as replayed
from simulator.tokens.coins import histogram

TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def _python_loops() -> Iterator[None]:
    Loop.mode = "python"
    yield
    Loop.mode = "auto"


def both(scenario: Scenario, setting: Settings) -> tuple[Simulated, Simulated]:
    engines = ("event", "compiled")
    one, other = (simulate(replace(scenario, engine=e), setting) for e in engines)  # type: ignore[arg-type]
    assert (one.engine, other.engine) == engines
    return one, other


def check_equal(scenario: Scenario, setting: Settings) -> None:
    """Rounds, their times and all that is counted of them."""
    event, compiled = both(scenario, setting)
    expected, found = event.rows.log, compiled.rows.log
    for name, column in expected.table().items():
        assert column.tolist() == found.table()[name].tolist(), name
    for name in ("ends", "admitted_s", "first_token_s"):
        wanted, got = getattr(expected, name), getattr(found, name)
        if isinstance(wanted, dict):
            assert sorted(wanted) == sorted(got)
            wanted, got = ([times[k] for k in sorted(times)] for times in (wanted, got))
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=0.0, err_msg=name)
    wanted, got = event.summary.as_dict(), compiled.summary.as_dict()
    longest = wanted["seconds"] + wanted["prefill_s"]
    for name in wanted:
        close(got[name], wanted[name], longest)
    assert compiled.extrapolated == event.extrapolated
    assert compiled.memory == event.memory


def close(found: Any, expected: Any, longest: float) -> None:
    """Equal to rounding; what is left between long times, to that of those."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = list(found.values()), list(expected.values())
    if expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * longest)


# Random runs


@cache
def shipped(name: str) -> Profile:
    return load_profile(find_profile(name))


@cache
def recorded(name: str, limit: int) -> TokenModel:
    trace = read_trace(find_trace(name))
    return replayed(trace.slice([r.id for r in trace.requests][:5]), limit=limit)


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(1e-5, most))


@st.composite
def hosts(draw: Callable[..., Any]) -> OperationHost:
    spread = draw(st.sampled_from([None, (0.5, 0.8, 1.0, 1.1, 1.6)]))
    return OperationHost(
        submit_s=draw(seconds(0.1)),
        report_s=draw(seconds(0.1)),
        submit_row_s=draw(seconds(0.05)),
        report_token_s=draw(seconds(0.01)),
        extra_s=draw(st.floats(-2.0, 0.3)),
        row_s=draw(st.floats(-0.05, 0.1)),
        step_s=draw(seconds(0.05)),
        token_s=draw(seconds(0.02)),
        scale=draw(st.floats(0.5, 2.0)),
        wake=draw(seconds(0.5)),
        idle_cap_s=draw(seconds(0.5)),
        spread=spread,
    )


KINDS = ("decode", "verify", "settle", "draft", "prespeculate", "continue")


@st.composite
def profiles(draw: Callable[..., Any]) -> Profile:
    if draw(st.booleans()):
        return shipped(draw(st.sampled_from(["cpu2-x5", "cpu2-x20", "a100x8"])))
    named = draw(st.lists(st.sampled_from(KINDS), unique=True))
    host = Host(
        submit_s=draw(seconds(0.1)),
        report_s=draw(seconds(0.1)),
        operations={name: draw(hosts()) for name in named},
    )
    slowdown = st.floats(0.8, 3.0)
    overlap = [
        Overlap(device="target", operation="forward", while_busy="draft", slowdown=draw(slowdown)),
        Overlap(device="target", operation="prefill", while_busy="draft", slowdown=draw(slowdown)),
        Overlap(
            device="draft", operation="forward", while_busy="target", while_operation="forward",
            slowdown=draw(slowdown),
        ),
        Overlap(device="draft", operation="tree", while_busy="target", slowdown=draw(slowdown)),
    ]  # fmt: skip
    return tiny_profile(
        draft_s=draw(st.floats(0.05, 1.5)),
        linear=draw(st.booleans()),
        host=host,
        overlap=tuple(overlap) if draw(st.booleans()) else (),
    )


@st.composite
def token_models(draw: Callable[..., Any]) -> TokenModel:
    kind = draw(st.sampled_from(["coin", "histogram", "cpu2-x5", "cpu2-x5-t1"]))
    shape = {"requests": draw(st.integers(1, 5)), "length": draw(st.integers(1, 20)), "prompt_length": 7}
    rate = st.floats(0.0, 1.0)
    if kind == "coin":
        return coin(draw(rate), exponent=draw(st.floats(0.3, 2.0)), seed=draw(st.integers(0, 9)), **shape)
    if kind == "histogram":
        return histogram(
            draw(st.lists(rate, min_size=1, max_size=4)),
            rejected=[(0.2, 0.5, 0.6), (0.4, 0.4, 0.9)],
            free=(0.6, 0.7, 0.8),
            seed=draw(st.integers(0, 9)),
            **shape,
        )
    return recorded(kind, draw(st.sampled_from([7, 20])))


@st.composite
def settings_for(draw: Callable[..., Any], tokens: TokenModel) -> Settings:
    temperature = 1.0 if tokens.sampled is not None else 0.0
    texts = tokens.tokens is not None
    choices = ["ar", "sd", "pearl", *["saguaro"] * 4, *(["pld"] if texts else [])]
    policy = draw(st.sampled_from(choices))
    knobs: dict[str, Any] = {"temperature": temperature, "seed": draw(st.integers(0, 3))}
    if policy == "ar":
        return configure("ar", **knobs)
    depth = knobs["lookahead"] = draw(st.integers(1, 5))
    if temperature and policy != "pld":
        knobs["draft_sampling"] = draw(st.sampled_from(["sampled", "greedy"]))
    if policy != "saguaro":
        return configure(policy, **knobs)
    fanouts = st.tuples(st.integers(1, 3), *[st.integers(0, 3)] * depth)
    knobs["fanout"] = draw(fanouts)
    knobs["backup"] = draw(
        st.sampled_from(["primary", "primary", "plain", "random", *(["ngram"] if texts else [])])
    )
    knobs["first"] = draw(st.sampled_from(["primary", "backup"]))
    if knobs["backup"] == "primary":
        knobs["stall"] = draw(st.sampled_from(["batch", "rows"]))
    else:
        knobs["fanout_backup"] = draw(st.none() | fanouts)
    if knobs.get("stall") != "rows":
        knobs["draft_devices"] = draw(st.integers(1, 3))
    knobs["cache_set"] = draw(st.sampled_from(["others", "top"]))
    if temperature and knobs["draft_sampling"] == "sampled":
        knobs["scale"] = draw(st.sampled_from([1.0, 0.6]))
    return configure(policy, **knobs)


class Run:
    """A setting in a scenario, which says of itself what matters."""

    def __init__(self, scenario: Scenario, setting: Settings) -> None:
        self.scenario = scenario
        self.setting = setting

    def __repr__(self) -> str:
        world = self.scenario
        requests = [(r.prompt_length, r.limit) for r in world.serving()[1]]
        costs = world.textbook or (world.profile and world.profile.name)
        return (
            f"{self.setting.label} seed {self.setting.seed}: batch {world.batch}, {requests}, {costs}, "
            f"{world.effects}, drift {world.drift}, seed {world.seed}"
        )


@st.composite
def runs(draw: Callable[..., Any]) -> Run:
    tokens, batch = draw(token_models()), draw(st.integers(1, 4))
    costs: dict[str, Any] = {"textbook": TextbookCosts(1.0, draw(seconds(0.5)))}
    if draw(st.integers(0, 3)):
        rows = draw(st.sampled_from(["padded", "packed"]))
        costs = {"profile": draw(profiles()).but(verification=rows)}
        costs["drift"] = draw(st.sampled_from([{}, {"target.forward": 1.1, "draft.tree": 0.9}]))
        costs["effects"] = Effects(*draw(st.tuples(*[st.sampled_from([True, True, False])] * 7)))
    scenario = Scenario(
        tokens,
        batch=batch,
        requests=draw(st.none() | st.integers(1, 9)),
        prompt_length=draw(st.none() | st.integers(1, 300)),
        seed=draw(st.integers(0, 5)),
        **costs,
    )
    return Run(scenario, draw(settings_for(tokens)))


RANDOM = settings(
    max_examples=int(os.environ.get("EXAMPLES", "120")),  # more of them where somebody asks
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking runs both worlds some hundred times
)


@RANDOM
@given(runs())
def test_it_is_the_event_world(run: Run) -> None:
    check_equal(run.scenario, run.setting)


@pytest.mark.parametrize("mode", ["python", "numba"])
def test_loops_do_the_same_compiled(mode: Mode) -> None:
    if mode == "numba":
        pytest.importorskip("numba")
    Loop.mode = mode
    scenario = Scenario(recorded("cpu2-x5", 20), profile=shipped("cpu2-x5"), batch=3, requests=7)
    for knobs in ({}, {"stall": "rows"}, {"draft_devices": 2, "backup": "ngram"}):
        check_equal(scenario, configure("saguaro", **knobs))


def test_a_numba_that_does_not_import_leaves_it_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it is an error
    Loop.mode = "numba"
    loop = Loop(lambda n, out: out.__setitem__(0, n), 1)
    out = np.zeros(1)
    loop(1, 7.0, out)
    assert (out[0], Loop.mode) == (7.0, "python")


# Policies of row operations, by a script of what they submit and await

COINS: dict[str, dict[str, Any]] = {
    "double": {"lookahead": 3, "matched_length": 2.0},
    "duo": {"lookahead": 4, "sequences": "2"},
    "mirror": {"lookahead": 3, "kappa": 2},
    "tree": {"tree_widths": (2, 1)},
}


@pytest.mark.parametrize("policy", COINS)
@pytest.mark.parametrize("batch", [1, 3])
def test_scripts_of_coins_are_the_event_world(policy: str, batch: int) -> None:
    tokens = coin(0.7, exponent=1.0, requests=5, length=15, prompt_length=9, seed=3)
    slower = Overlap(device="target", operation="forward", while_busy="draft", slowdown=1.5)
    host = OperationHost(submit_s=0.05, report_token_s=0.01, extra_s=-0.1, wake=0.2, idle_cap_s=0.6)
    varying = host.but(spread=(0.5, 0.8, 1.0, 1.1, 1.6))
    linear = tiny_profile(
        linear=True,
        overlap=(slower,),
        host=Host(submit_s=0.02, operations={"verify": varying, "draft": host}),
    )
    setting = configure(policy, **COINS[policy])
    for costs in (
        {"textbook": TextbookCosts(1.0, 0.2)},
        {"profile": linear},
        {"profile": shipped("cpu2-x20")},
    ):
        check_equal(Scenario(tokens, batch=batch, **costs), setting)  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "temperature"), [("mirror", 0.0), ("double", 1.0), ("tree", 0.0)])
def test_scripts_of_recordings_are_the_event_world(policy: str, temperature: float) -> None:
    name = decisions_name("cpu2-x5", policy, temperature)
    trace = read_decisions(find_decisions(name))
    tokens = replayed(read_trace(find_trace("cpu2-x5-t1" if temperature else "cpu2-x5")), limit=24)
    scenario = Scenario(tokens, profile=shipped("cpu2-x5"), decisions=trace)
    found = list(trace.settings.values())[-1]
    setting = configure(policy, temperature=temperature, **found.knobs)
    for batch in (1, 2):
        few = replace(scenario, batch=batch, requests=3, drift={"target.forward": 1.1})
        check_equal(few, setting)
        event, compiled = both(few, setting)
        assert event.rows.texts == compiled.rows.texts


# Planted bugs, all of which some random run shows


def mutated(loop: Loop, was: str, becomes: str) -> Loop:
    """A loop with a change in its source."""
    source = textwrap.dedent(inspect.getsource(loop.function))
    assert was in source
    names: dict[str, Any] = {"Any": Any}
    exec("from __future__ import annotations\n" + source.replace(was, becomes), names)
    return Loop(names[loop.function.__name__], loop.outputs)


def bonus_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(content, "walk", mutated(content.walk, "min(count + 1, room)", "min(count + 2, room)"))


def admitted_a_round_early(patch: pytest.MonkeyPatch) -> None:
    early = mutated(batches.line_up, "i + 1 == ends[request]", "i + 2 >= ends[request]")
    patch.setattr(batches, "line_up", early)


def jitter_keyed_otherwise(patch: pytest.MonkeyPatch) -> None:
    as_it_is = prices.Prices._luck
    patch.setattr(prices.Prices, "_luck", lambda self, device, kind, n: as_it_is(self, f"{device}x", kind, n))


def forwards_vary_otherwise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prices.Prices, "_vary", lambda *_: None)


def prefill_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay._Clock, "_prefill", lambda *_, **__: None)


def idling_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay, "run_clock", mutated(replay.run_clock, "min(at[d] - ended[d],", "min(0.0,"))


def contention_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replay, "slowdown_tables", lambda *_: (np.ones((7, 7)),) * 2)


def hits_of_the_next_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(content.Rule, "chain_hits", lambda self, runs: runs >= self.chain)


@pytest.mark.parametrize(
    "bug",
    [
        bonus_twice, admitted_a_round_early, jitter_keyed_otherwise, forwards_vary_otherwise,
        prefill_forgotten, idling_forgotten, contention_forgotten, hits_of_the_next_position,
    ],
)  # fmt: skip
def test_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.cache_clear()  # with what was replayed of it
    bug(monkeypatch)
    few = settings(RANDOM, max_examples=500, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises((AssertionError, IndexError)):
        few(given(runs())(lambda run: check_equal(run.scenario, run.setting)))()
    recorded.cache_clear()


# By hand, and what it does not cover


def test_a_batch_by_hand() -> None:
    # K = 2, drafting .25 s a step; row 1 misses its first round (rank 5), row 0 never does.  A draft of .5 s,
    # a verification of 1 s beside the pre-speculation of .5 s; the redraft of row 1 until 2.0; its second
    # round ends at 3.0, row 0's as well.
    tokens = tokens_by_hand(("+" * 6, [0] * 6), ("+-+++", [0, 5, 0, 0, 0]))
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.25), batch=2, engine="compiled")
    run = simulate(scenario, configure("saguaro", lookahead=2, fanout=(2,)))
    assert run.rows.log.ends == [1.5, 3.0]
    assert run.rows.log.table()["emitted"].tolist() == [3, 2, 3, 3]
    assert run.summary.utilization["target"] == pytest.approx(2.0 / 3.0)
    # .5 + .5 before the verifications, .5 beside each.
    assert run.summary.utilization["draft"] == pytest.approx(2.0 / 3.0)
    assert run.summary.overlap_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("policy", "knobs", "why"),
    [
        ("saguaro", {"backup": "primary-all"}, "other rows"),
        ("saguaro", {"tree": "abort"}, "stopped midway"),
        ("saguaro", {"stall": "rows", "draft_devices": 2}, "begins first"),
    ],
)
def test_it_says_what_it_does_not_cover(policy: str, knobs: dict[str, Any], why: str) -> None:
    setting = configure(policy, **knobs)
    assert why in (not_covered(setting) or "")
    tokens = coin(0.8, exponent=1.0, requests=2, length=9, prompt_length=3, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), batch=2)
    assert simulate(scenario, setting).engine == "event"
    with pytest.raises(SettingError, match=why):
        simulate(replace(scenario, engine="compiled"), setting)


def test_costs_that_it_does_not_know_are_the_event_worlds() -> None:
    class Doubled(TextbookCosts):
        def steps(self, device: str, operation: Operation, size: Any = None) -> list[tuple[str, float]]:
            return [(name, 2.0 * s) for name, s in TextbookCosts.steps(self, device, operation, size)]

    tokens = coin(0.8, exponent=1.0, requests=1, length=9, prompt_length=3, seed=0)
    run = simulate(Scenario(tokens, textbook=Doubled(1.0, 0.1)), configure("ar"))
    assert (run.engine, run.summary.seconds) == ("event", pytest.approx(18.0))


def test_a_timeline_is_the_event_worlds() -> None:
    tokens = coin(0.8, exponent=1.0, requests=2, length=9, prompt_length=3, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1))
    assert simulate(scenario, configure("sd"), timeline=True).engine == "event"
    with pytest.raises(SettingError, match="keeps no timeline"):
        simulate(replace(scenario, engine="compiled"), configure("sd"), timeline=True)


def test_long_runs_are_timed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # A redraft beside the next round may belong to another chunk than that.
    monkeypatch.setattr(batches, "CHUNK", 3)
    tokens = coin(0.7, exponent=1.0, requests=9, length=20, prompt_length=5, seed=2)
    scenario = Scenario(tokens, profile=shipped("cpu2-x5"), batch=3)
    for knobs in ({}, {"stall": "rows"}, {"draft_devices": 2}):
        check_equal(scenario, configure("saguaro", **knobs))
    check_equal(scenario, configure("pearl"))
