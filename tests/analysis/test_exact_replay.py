"""Replay is exact: live rounds of the shipped pair equal those simulated from a recording.

The recording is made by plain decoding in another process.  Planted bugs show that the comparison bites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from analysis.rounds import compare_rounds
from calibrate.calibration import requests_of
from calibrate.live.placement import pair_specs, parse_placement
from calibrate.live.world import LiveWorld
from calibrate.pair.resolve import resolve_model
from calibrate.prompts import find_prompts, load_prompts, spread
from calibrate.recording import RecordingJob
from calibrate.runs import LiveRun, run_once
from calibrate.traces import record_trace
from hardware_profiles.trace import Trace
from policies.records import Round
from policies.registry import Settings, configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel, replay

SETTINGS = [
    configure("ar"),
    configure("sd", lookahead=4),
    configure("pearl", lookahead=1),
    configure("pearl", lookahead=5),
    configure("saguaro", lookahead=2, fanout=(1,), backup="primary"),
    configure("saguaro", lookahead=4, fanout=(3,), backup="plain"),
    configure("saguaro", lookahead=4, fanout=(3,), backup="random"),
    configure("saguaro", lookahead=3, fanout=(5, 0, 2, 7), backup="primary"),
]
TOKENS = 40


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record_trace(
        spread(load_prompts(find_prompts("heldout")), 4),
        RecordingJob(str(resolve_model("pair:target")), str(resolve_model("pair:draft")), (), limit=TOKENS),
        prompt_set="heldout",
        names=("pair:target", "pair:draft"),
    )


@pytest.fixture(scope="module")
def live(trace: Trace) -> dict[Settings, list[LiveRun]]:
    specs = pair_specs(
        str(resolve_model("pair:target")), str(resolve_model("pair:draft")), parse_placement("shared:0")
    )
    with LiveWorld(*specs) as world:
        return {s: [run_once(world, s, request) for request in requests_of(trace)] for s in SETTINGS}


def simulated(tokens: TokenModel, settings: Settings) -> dict[int, list[Round]]:
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    log = simulate(scenario, settings).rows.log
    return {request.id: log.rounds(request.id) for request in tokens.requests}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.label)
def test_rounds_and_text_agree(trace: Trace, live: dict[Settings, list[LiveRun]], settings: Settings) -> None:
    runs = live[settings]
    found = compare_rounds(
        settings, simulated(replay(trace), settings), {r.request: r.rounds for r in runs}, trace
    )
    assert found.exact, found.differences
    for run in runs:
        first, last = trace.offsets[run.request : run.request + 2]
        assert run.text == tuple(trace.token[first:last].tolist())
    assert found.rounds == sum(len(r.rounds) for r in runs) or found.differences


def keeps_the_rejected_token(tokens: TokenModel) -> TokenModel:
    return replace(tokens, need_rejected=tokens.need_rejected + 1)


def accepts_one_too_few(tokens: TokenModel) -> TokenModel:
    return replace(tokens, run=np.maximum(0, tokens.run - 1))


def counts_the_bonus_as_drafted(tokens: TokenModel) -> TokenModel:
    return replace(tokens, run=tokens.run + 1)


@pytest.mark.parametrize("bug", [keeps_the_rejected_token, accepts_one_too_few, counts_the_bonus_as_drafted])
def test_a_planted_bug_is_caught(
    trace: Trace, live: dict[Settings, list[LiveRun]], bug: Callable[[TokenModel], TokenModel]
) -> None:
    settings = SETTINGS[4]
    wrong = simulated(bug(replay(trace)), settings)
    found = compare_rounds(settings, wrong, {r.request: r.rounds for r in live[settings]}, trace)
    assert not found.exact
