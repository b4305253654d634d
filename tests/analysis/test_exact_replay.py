"""Replay is exact: live rounds of the shipped pair equal those simulated from a recording.

The recording is made by plain decoding in another process.  Planted bugs show that the comparison bites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tiny_profiles import profile

from analysis.execute import EMULATED
from analysis.rounds import compare_rounds
from calibrate.calibration import requests_of
from calibrate.job import Job
from calibrate.live.placement import available_cores, pair_specs, parse_placement
from calibrate.live.transport.emulated import Emulation
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, run_in_time, run_live
from calibrate.machine import Machine
from calibrate.prompts import choose_prompts
from calibrate.record import record_trace
from calibrate.shipped import resolve_model
from hardware_profiles.optime import Host
from hardware_profiles.reply_trace import DecisionTrace
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure
from policies.rows import Round
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
    configure("saguaro", lookahead=3, fanout=(2,), fanout_backup=(6, 0, 0, 0), backup="ngram"),
    configure("tree", tree_widths=(3, 2, 1)),
]
IN_BATCHES = [
    configure("tree", tree_widths=(4, 2)),
    configure("sd", lookahead=4),
    configure("pearl", lookahead=3),
    configure("saguaro", lookahead=3, fanout=(2,), backup="primary"),
    configure("saguaro", lookahead=3, fanout=(2,), backup="random"),
]
TOKENS = 40


@pytest.fixture(scope="module")
def trace() -> Trace:
    job = Job(
        machine=Machine("any", available_cores(), ()),
        target=str(resolve_model("pair:target")),
        draft=str(resolve_model("pair:draft")),
        names=("pair:target", "pair:draft"),
        prompts=tuple(choose_prompts("heldout", 4)),
        prompt_set="heldout",
        placement=parse_placement("shared:0"),
        name="any",
        command="any",
        max_tokens=TOKENS,
    )
    return record_trace(job, 0.0, processes=1)


@pytest.fixture(scope="module")
def live(trace: Trace) -> dict[tuple[Settings, int], list[LiveRun]]:
    specs = pair_specs(
        str(resolve_model("pair:target")), str(resolve_model("pair:draft")), parse_placement("shared:0")
    )
    requests = requests_of(trace)
    with LiveWorld(*specs) as world:
        alone = {(s, 1): [run_live(world, s, [request]) for request in requests] for s in SETTINGS}
        batches = {(s, b): [run_live(world, s, requests, batch=b)] for s in IN_BATCHES for b in (2, 3)}
        return alone | batches


def simulated(tokens: TokenModel, settings: Settings, batch: int = 1) -> dict[int, list[Round]]:
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1), batch=batch)
    log = simulate(scenario, settings).rows.log
    return {request.id: log.rounds(request.id) for request in tokens.requests}


def rounds_of(runs: list[LiveRun]) -> dict[int, list[Round]]:
    return {request: rounds for run in runs for request, rounds in run.rounds.items()}


@pytest.mark.parametrize(
    ("settings", "batch"),
    [*((s, 1) for s in SETTINGS), *((s, b) for s in IN_BATCHES for b in (2, 3))],
    ids=lambda value: getattr(value, "label", value),
)
def test_rounds_and_text_agree(
    trace: Trace, live: dict[tuple[Settings, int], list[LiveRun]], settings: Settings, batch: int
) -> None:
    runs = live[settings, batch]
    found = compare_rounds(settings, simulated(replay(trace), settings, batch), rounds_of(runs), trace)
    assert found.exact, found.differences
    for run in runs:
        for request, text in run.texts.items():
            first, last = trace.offsets[request : request + 2]
            assert text == tuple(trace.token[first:last].tolist())
    assert found.rounds == sum(map(len, rounds_of(runs).values())) or found.differences


def keeps_the_rejected_token(tokens: TokenModel) -> TokenModel:
    return replace(tokens, need_rejected=tokens.need_rejected + 1)


def accepts_one_too_few(tokens: TokenModel) -> TokenModel:
    return replace(tokens, run=np.maximum(0, tokens.run - 1))


def counts_the_bonus_as_drafted(tokens: TokenModel) -> TokenModel:
    return replace(tokens, run=tokens.run + 1)


@pytest.mark.parametrize("bug", [keeps_the_rejected_token, accepts_one_too_few, counts_the_bonus_as_drafted])
def test_a_planted_bug_is_caught(
    trace: Trace,
    live: dict[tuple[Settings, int], list[LiveRun]],
    bug: Callable[[TokenModel], TokenModel],
) -> None:
    settings = SETTINGS[4]
    wrong = simulated(bug(replay(trace)), settings)
    found = compare_rounds(settings, wrong, rounds_of(live[settings, 1]), trace)
    assert not found.exact


HOST = Host(submit_s=0.125, report_s=0.0625)
EMULATED_SETTINGS = [
    (configure("pearl", lookahead=3), 2),
    (configure("saguaro", lookahead=3, fanout=(2,), tree="abort"), 2),  # stops live what it misses
    (configure("double", lookahead=3), 1),
]


def test_an_emulated_machine_spends_its_time_as_simulated(trace: Trace) -> None:
    """Every operation of both devices begins and ends live when the simulation says so, in batches, too.

    Costs grow with the batch; rounds, admissions and who waits for whom are those of the real pair.
    """
    slow = profile(target_s=1.0, draft_s=0.25, linear=True, host=HOST)
    part = trace.slice([request.id for request in trace.requests[:3]])
    scenario = Scenario(replay(part, limit=8), profile=slow, effects=EMULATED)
    target, draft = pair_specs(
        str(resolve_model("pair:target")), str(resolve_model("pair:draft")), parse_placement("shared:0")
    )
    draft = replace(draft, cores=available_cores()[-1:])
    with LiveWorld(target, draft, emulation=Emulation(scenario.live_prices, 0.2)) as world:
        for settings, batch in EMULATED_SETTINGS:
            run = run_in_time(world, settings, requests_of(part, 8), batch=batch)
            decided = DecisionTrace(part.requests, part.meta, {run.decisions.label: run.decisions}, 8)
            predicted = simulate(replace(scenario, batch=batch, decisions=decided), settings, timeline=True)
            # The run's beginning is read off the clock, before its first submission.
            first = run.spans[0].start_s - predicted.spans[0].start_s
            live = sorted((s.device, s.start_s - first, s.end_s - first, s.name) for s in run.spans)
            simulated = sorted((s.device, s.start_s, s.end_s, s.name) for s in predicted.spans)
            assert [span[::3] for span in live] == [span[::3] for span in simulated], settings.label
            assert np.allclose([s[1:3] for s in live], [s[1:3] for s in simulated], atol=1e-6), settings.label
