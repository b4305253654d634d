"""What live trees decided replays to identical rounds in simulated time, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, run_live
from hardware_profiles.reply_trace import Decisions, DecisionTrace, read_decisions, write_decisions
from hardware_profiles.trace import TraceMeta, TraceRequest
from policies.config import SettingError
from policies.registry import Settings, configure
from policies.rows import Round, Rows
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import coin

LIMIT = 24
SETTINGS = [
    configure("tree", tree_widths=(3, 2)),
    configure("tree", tree_plan="dynamic", tree_depth=3, tree_topk=2, tree_budget=5),
    configure("tree", tree_widths=(2, 2), temperature=0.9, seed=3),
    configure("tree", tree_widths=(2, 2), temperature=0.9, seed=3, draft_sampling="greedy"),
]


def requests_of(prompts: list[tuple[int, ...]]) -> list[Request]:
    return [Request(i, len(prompt), LIMIT, prompt) for i, prompt in enumerate(prompts[:7])]


def trace_of(decisions: Decisions, requests: list[Request]) -> DecisionTrace:
    recorded = tuple(
        TraceRequest(id=r.id, question_id=r.id, category="any", prompt=r.prompt or (), ended="limit")
        for r in requests
    )
    meta = TraceMeta(target_model="t", draft_model="d", tokenizer="x", vocabulary=64, sampling={})
    return DecisionTrace(recorded, meta, {decisions.label: decisions}, LIMIT)


def replayed(trace: DecisionTrace, settings: Settings, batch: int) -> Simulated:
    tokens = coin(0.5, exponent=1.0, requests=1, length=LIMIT, prompt_length=3, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), batch=batch, decisions=trace)
    return simulate(scenario, settings)


def rounds_of(rows: Rows) -> dict[int, list[Round]]:
    return {request: rows.log.rounds(request) for request in rows.texts}


def check_replay(
    world: LiveWorld, settings: Settings, requests: list[Request], batch: int, path: Path
) -> LiveRun:
    """What a live run decided, written and read, replays to its rounds and texts in any batch."""
    live = run_live(world, settings, requests, batch=batch, fresh_seed=False)
    write_decisions(trace_of(live.decisions, requests), path)
    trace = read_decisions(path)
    for other in (1, 3):
        simulated = replayed(trace, settings, other)
        assert rounds_of(simulated.rows) == live.rounds
        assert {i: tuple(text) for i, text in simulated.rows.texts.items()} == live.texts
    return live


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_a_live_run_replays_round_by_round(
    world: LiveWorld, settings: Settings, batch: int, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    live = check_replay(world, settings, requests_of(prompts), batch, tmp_path / "decisions.parquet")
    assert {r.accepted for rounds in live.rounds.values() for r in rounds} >= {0, 1, 2}


def test_a_round_costs_its_steps(world: LiveWorld, prompts: list[tuple[int, ...]]) -> None:
    """A tree of two levels: feed, one tree step, one verification."""
    requests = requests_of(prompts)
    live = run_live(world, SETTINGS[0], requests, fresh_seed=False)
    summary = replayed(trace_of(live.decisions, requests), SETTINGS[0], 1).summary
    assert summary.seconds == pytest.approx(summary.rounds * (0.1 + 0.1 + 1.0))


def test_another_tree_is_another_setting(world: LiveWorld, prompts: list[tuple[int, ...]]) -> None:
    requests = requests_of(prompts)[:1]
    live = run_live(world, SETTINGS[0], requests, fresh_seed=False)
    with pytest.raises(SettingError, match="has no 'tree tree_widths=2,2'"):
        replayed(trace_of(live.decisions, requests), configure("tree", tree_widths=(2, 2)), 1)
