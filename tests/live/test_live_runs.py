"""Live runs: what a run reports, in which order cells are run, and how speeds are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_support import Prompts

from calibrate import live_runs as runs_module
from calibrate.hostrecords import observe
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import (
    Cell,
    LiveRun,
    groups,
    measure,
    paired,
    reduce_run,
    run_live,
    run_matrix,
    turns,
    weathers,
)
from policies.registry import SettingError, configure
from policies.values import Request

AR = configure("ar")
SAGUARO = configure("saguaro", lookahead=3, fanout=(2,))
SAMPLED = configure("sd", lookahead=2, temperature=1.0, seed=4)


@pytest.fixture
def requests(prompts: Prompts) -> list[Request]:
    return [Request(i, len(prompt), 12 + i, prompt) for i, prompt in enumerate(prompts[3:8])]


@pytest.mark.parametrize("batch", [1, 3, 9])
def test_a_run_serves_all_its_requests(world: LiveWorld, requests: list[Request], batch: int) -> None:
    run = run_live(world, SAGUARO, requests, batch=batch, place="here", repeat=2)
    assert run.cell == Cell("here", SAGUARO, batch)
    assert (run.requests, run.repeat, run.seed) == ((0, 1, 2, 3, 4), 2, 0)
    assert {i: len(text) for i, text in run.texts.items()} == {r.id: r.limit for r in requests}
    assert {i: sum(r.emitted for r in rounds) for i, rounds in run.rounds.items()} == {
        r.id: r.limit for r in requests
    }
    assert run.summary.tokens == sum(r.limit for r in requests)
    assert run.summary.overlap_s > 0
    assert set(run.summary.utilization) == {"target", "draft"}
    assert max(timing.rows for timing in run.timings) == min(batch, 5)
    assert min(span.start_s for span in run.spans) >= 0


def test_a_run_of_one_request(world: LiveWorld, requests: list[Request]) -> None:
    run = run_live(world, AR, requests[1:2])
    assert (run.requests, run.batch, len(run.texts[1])) == ((1,), 1, 13)


def test_repetitions_of_sampled_runs_have_fresh_seeds(world: LiveWorld, requests: list[Request]) -> None:
    texts = [run_live(world, SAMPLED, requests, batch=2, repeat=repeat).texts for repeat in (0, 1, 1)]
    assert texts[0] != texts[1]
    assert texts[1] == texts[2]
    stale = run_live(world, SAMPLED, requests, batch=2, repeat=1, fresh_seed=False)
    assert (stale.texts, stale.seed, stale.settings) == (texts[0], 4, SAMPLED)
    reseeded = replace(SAMPLED, seed=5)
    assert run_live(world, reseeded, requests, batch=2).texts == texts[1]


def test_more_drafts_than_there_are_is_refused(world: LiveWorld, requests: list[Request]) -> None:
    with pytest.raises(SettingError, match="needs 2 draft devices, this world has 1"):
        run_live(world, configure("saguaro", draft_devices=2), requests)


def test_groups() -> None:
    a, b = Request(0, 1, 1), Request(1, 1, 1)
    assert groups([a, b], 1) == [(a,), (b,)]
    assert groups([a, b], 2) == groups([a, b], 8) == [(a, b)]


def test_every_setting_runs_between_plain_ones(requests: list[Request], monkeypatch: Any) -> None:
    """Groups and cells come in an order of their own, every second time in the same one backwards."""
    calls: list[tuple[str, int, tuple[int, ...], int]] = []

    def fake(world: Any, settings: Any, group: Any, *, batch: int, repeat: int = -1, **_: Any) -> str:
        calls.append((settings.label, batch, tuple(r.id for r in group), repeat))
        return settings.label

    monkeypatch.setattr(runs_module, "run_live", fake)
    sd = [Cell("", configure("sd", lookahead=k)) for k in (1, 2, 3)]
    cells = [Cell("", AR), *sd, Cell("", AR, 4), Cell("", SAGUARO, 4)]
    ticks: list[tuple[int, int]] = []
    worlds: Any = {"": None}
    run_matrix(
        worlds, cells, requests, repeats=2, seed=1, progress=lambda *tick: ticks.append(tick), alone=True
    )
    assert [call[:3] for call in calls[:6]] == [
        ("ar", 1, (0,)), *((f"sd K={k}", 1, (0,)) for k in (1, 2, 3)),
        ("ar", 4, (0, 1, 2, 3)), (SAGUARO.label, 4, (0, 1, 2, 3)),
    ]  # fmt: skip
    one, other = ([call for call in calls if call[3] == repeat] for repeat in (0, 1))
    assert [call[:3] for call in other] == [call[:3] for call in reversed(one)]
    assert len(one) == 4 * len(requests) + 2 and ticks[-1] == (2 * len(one), 2 * len(one))
    # With weather: two settings at most in a row, plain decoding around them.
    sections = {("", 1, (requests[0],)): cells[:4], ("", 4, tuple(requests)): cells[4:]}
    found = [(place, batch, cell.settings.plain) for place, batch, _, cell in turns(sections, [1])]
    assert [plain for _, batch, plain in found if batch == 1] == [True, False, False, True, False, True]
    assert [plain for _, batch, plain in found if batch == 4] == [True, False, True]


def test_repetitions_go_on_until_they_are_enough(requests: list[Request], monkeypatch: Any) -> None:
    monkeypatch.setattr(runs_module, "run_live", lambda *_, repeat=-1, **__: repeat)
    worlds: Any = {"": None}

    def repetitions(enough: int) -> int:
        runs: Any = run_matrix(
            worlds, [Cell("", AR)], requests[:1], repeats=2, seed=1, alone=True,
            enough=lambda runs: len(runs) >= enough,
        )  # fmt: skip
        return len(runs)

    assert [repetitions(n) for n in (1, 2, 5, 99)] == [2, 2, 5, 8]


def test_seconds_are_divided_by_the_weather(world: LiveWorld, requests: list[Request]) -> None:
    """Plain decoding takes 1 s, then 4 s, then 2 s: in the middle of the first two it would take 2 s, which
    is usual; halfway between 4 s and 2 s, sqrt(8) s, which is sqrt(2) times as much."""
    template = run_live(world, AR, requests[:1])

    def run(settings: Any, began_s: float, seconds: float) -> LiveRun:
        summary = replace(template.summary, tokens=8, seconds=seconds)
        return replace(template, settings=settings, summary=summary, began_s=began_s)

    told = [run(AR, 0.0, 1.0), run(SAGUARO, 5.0, 1.5), run(AR, 9.5, 4.0)]
    told += [run(SAGUARO, 15.75, 1.0), run(AR, 20.0, 2.0)]
    found = paired(told)
    assert [r.weather for r in found] == pytest.approx(
        [0.5, 2.0 ** (2.0 * 5.25 / 11.0 - 1.0), 2.0, 2.0 ** (1.0 - 4.75 / 9.5), 1.0]
    )
    assert [r.seconds for r in found if r.settings.plain] == pytest.approx([2.0, 2.0, 2.0])
    assert found[3].seconds == pytest.approx(1.0 / np.sqrt(2.0))
    # So do a calibration's: of twice as slow a machine, every operation counts half.
    record = reduce_run(template).in_usual(2.0)
    assert record.seconds == template.seconds / 2.0
    assert [o.work_s for o in record.observations] == [o.work_s / 2.0 for o in observe(template.timings)]
    assert weathers([reduce_run(run) for run in told]) == [run.weather for run in found]


def test_speeds_are_ratios_of_sums(world: LiveWorld, requests: list[Request]) -> None:
    template = run_live(world, AR, requests[:1])

    def run(settings: Any, request: int, repeat: int, tokens: int, seconds: float) -> LiveRun:
        summary = replace(template.summary, tokens=tokens, seconds=seconds, overlap_s=0.5)
        return replace(template, settings=settings, requests=(request,), repeat=repeat, summary=summary)

    greedy = [run(AR, r, k, 10, s) for r, k, s in ((0, 0, 1.0), (0, 1, 2.0), (0, 2, 9.0), (1, 0, 4.0))]
    greedy += [run(AR, 1, 1, 10, 4.0), run(AR, 1, 2, 10, 4.0)]
    sampled = [run(SAMPLED, 0, 0, 8, 2.0), run(SAMPLED, 0, 1, 12, 4.0)]
    slow, fast = measure(greedy), measure(sampled)
    assert (slow.tokens, slow.seconds, slow.overlap_s) == (20, 6.0, 1.0)
    assert slow.repeats == ((20, 5.0), (20, 6.0), (20, 13.0))
    assert (fast.tokens, fast.seconds, fast.speed) == (10, 3.0, pytest.approx(20 / 6))
    assert fast.repeats == ((8, 2.0), (12, 4.0))
