"""Policies' own rounds under traffic: by hand, beside the full batch, and what holds of every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import read_trace
from policies.registry import SettingError, Settings, configure
from serving.blocks import BlockPool
from serving.loop import Run, StepRecord
from serving.metrics import Served
from serving.rounds import serve_rounds
from serving.scheduler import EngineOptions, Row, Scheduler, Step
from serving.traffic import ServedRequest, Traffic, TrafficError, arrival_times, generated
from simulator.costs import Effects, TextbookCosts
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.tokens import coin, replay
from simulator.traffic import arriving_texts, serve_traffic

SETTINGS = [
    configure("ar"),
    configure("sd", lookahead=2),
    configure("pearl", lookahead=3),
    configure("saguaro", lookahead=3, fanout=2),
    configure("saguaro", lookahead=2, fanout=1, backup="plain", first="backup"),
]


def textbook(acceptance: float = 0.7, **more: Any) -> Scenario:
    tokens = coin(acceptance, exponent=1.0, scale=1.0, requests=6, length=64, prompt_length=8, seed=1)
    return Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), **more)


def by_rounds(scenario: Scenario, settings: Settings, traffic: Traffic, **options: Any) -> Served:
    served, _ = serve_traffic(scenario, settings, traffic, EngineOptions(**options), rounds=True)
    return served


def test_sd_by_hand() -> None:
    """K = 2, all accepted: rounds of 0.2 + 1 s say 3 tokens; who comes meanwhile starts with the next."""
    traffic = Traffic((ServedRequest(0.0, 8, 6), ServedRequest(0.5, 8, 4)), "two")
    served = by_rounds(textbook(1.0), configure("sd", lookahead=2), traffic)
    assert served.first_s.tolist() == pytest.approx([1.2, 2.4])
    assert served.last_s.tolist() == pytest.approx([2.4, 3.6])
    assert served.ttft_s.tolist() == pytest.approx([1.2, 1.9])  # 0.7 s of it in the queue
    # Rows by time: 1 for 1.2 s, 2 for 1.2 s, 1 for 1.2 s.
    assert served.running == pytest.approx(4 / 3)


def test_saguaro_by_hand() -> None:
    """K = 2 and no outcome missed: 0.2 s for the first draft, then a round a second; the second request's
    first draft makes both wait."""
    tokens = coin(1.0, exponent=1.0, scale=0.0, requests=2, length=64, prompt_length=8, seed=1)
    traffic = Traffic((ServedRequest(0.0, 8, 6), ServedRequest(0.5, 8, 3)), "two")
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1))
    served = by_rounds(scenario, configure("saguaro", lookahead=2, fanout=1), traffic)
    assert served.first_s.tolist() == pytest.approx([1.2, 2.4])
    assert served.last_s.tolist() == pytest.approx([2.4, 2.4])


def test_plain_decoding_is_the_engines_steps() -> None:
    """With constants, prompts included, a round of plain decoding is a step: same times to the last bit."""
    traffic = generated(40, 8, 12, arrival_times(40, 0.3, seed=3))
    steps, _ = serve_traffic(textbook(), configure("ar"), traffic, EngineOptions(max_num_seqs=3))
    rounds = by_rounds(textbook(), configure("ar"), traffic, max_num_seqs=3)
    assert rounds.first_s.tolist() == steps.first_s.tolist()
    assert rounds.last_s.tolist() == steps.last_s.tolist()
    assert rounds.waiting > 0.5 and rounds.most_blocks == steps.most_blocks


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: each.label)
def test_all_at_once_is_the_full_batch(settings: Settings) -> None:
    """Requests that are all there from the beginning are served as a closed loop serves them, to the bit."""
    tokens = coin(0.7, exponent=1.0, scale=1.0, requests=9, length=40, prompt_length=30, seed=1)
    profile = load_profile(find_profile("cpu2-x5"))
    scenario = Scenario(tokens, profile=profile, batch=4, engine="event", effects=Effects(jitter=False))
    full = simulate(scenario, settings)
    served = by_rounds(scenario, settings, generated(9, 30, 40, np.zeros(9)), max_num_seqs=4)
    assert full.rows.log.ends[-1] == served.end_s
    assert served.counts.rounds == len(full.rows.log.table()["request"])
    assert served.counts.emitted == 360


def test_prompt_lookup_searches_recorded_texts() -> None:
    profile = load_profile(find_profile("cpu2-x5"))
    scenario = Scenario(replay(read_trace(find_trace("cpu2-x5"))), profile=profile)
    settings = configure("pld", lookahead=3)
    served = by_rounds(scenario, settings, generated(5, 50, 30, np.arange(5.0)), max_num_seqs=4)
    assert served.counts.accepted > 0 and served.counts.emitted == 150
    with pytest.raises(SettingError, match="the text itself"):
        by_rounds(scenario, settings, generated(1, 50, 3000, [0.0]), max_num_seqs=4)


def test_a_clock_that_began_elsewhere_ends_too() -> None:
    """Where now - begin is rounded below the moment waited for, waiting again would never end."""
    traffic, scenario = generated(200, 8, 1, arrival_times(200, 0.1, seed=1)), textbook()
    tokens = arriving_texts(scenario.tokens, traffic)
    world = scenario.world(tokens)
    world.env.run(until=123456.7)
    served, _ = serve_rounds(world, SETTINGS[0], traffic, EngineOptions(), tokens.requests)
    assert served.ttft_s == pytest.approx(by_rounds(scenario, SETTINGS[0], traffic).ttft_s, abs=1e-9)


def test_longer_replies_go_on_from_the_beginning() -> None:
    tokens = textbook().tokens
    longer = arriving_texts(tokens, generated(2, 8, 100, [0.0, 0.0]))
    assert longer.run[64:100].tolist() == tokens.run[:36].tolist()
    assert longer.run[100:164].tolist() == tokens.run[64:128].tolist()


def test_chunks_and_preemption_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget 6, plain decoding, 5 blocks of 4: (rows that verify), (row, tokens before, tokens read)."""
    log = list[tuple[list[int], list[tuple[int, int, int]]]]()

    class Watched(Scheduler):
        def schedule(self) -> Step | None:
            if (step := super().schedule()) is not None:
                log.append(([r.place for r in step.decodes], [(r.place, h, n) for r, n, h in step.chunks]))
            return step

    monkeypatch.setattr("serving.loop.Scheduler", Watched)
    traffic = Traffic((ServedRequest(0.0, 9, 8), ServedRequest(0.0, 5, 8)), "two")
    served = by_rounds(textbook(), configure("ar"), traffic, max_num_seqs=2, max_num_batched_tokens=6,
                       block_size=4, num_gpu_blocks=5)  # fmt: skip
    assert log == [
        ([], [(0, 0, 6)]),  # of 8 tokens: all but the last, which the round feeds
        ([0], [(0, 6, 2), (1, 0, 3)]),  # 6 - 2 - 1 are left for the other prompt
        ([0, 1], [(1, 3, 1)]),
        ([0, 1], []),
        ([0, 1], []),
        ([0], []),  # its 13th token needs a fourth block: row 1, which has said 3, has to go
        ([0], []),
        ([0], []),
        ([0], []),
        ([1], [(1, 4, 3)]),  # one of its two blocks is still there; 8 tokens, the last one not read
        *[([1], [])] * 4,
    ]
    assert (served.counts.preemptions, served.counts.lost, served.counts.hit) == (1, 7, 4)
    assert served.first_s.tolist() == [1.0, 2.0] and served.last_s.tolist() == [8.0, 13.0]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    gaps = draw(st.lists(st.floats(0.0, 6.0), min_size=1, max_size=10))
    sizes = [(draw(st.integers(1, 20)), draw(st.integers(1, 20))) for _ in gaps]
    times = np.cumsum(gaps).tolist()
    return Traffic(tuple(ServedRequest(at, *size) for at, size in zip(times, sizes, strict=True)), "drawn")


@st.composite
def options(draw: st.DrawFn) -> EngineOptions:
    rows, chunked = draw(st.integers(1, 4)), draw(st.booleans())
    return EngineOptions(
        max_num_seqs=rows,
        max_num_batched_tokens=4 * rows + draw(st.integers(0, 20)) + (0 if chunked else 40),
        num_gpu_blocks=draw(st.one_of(st.none(), st.integers(11, 16))),
        block_size=4,
        enable_chunked_prefill=chunked,
    )


@limits(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traffic=traffics(), settings=st.sampled_from(SETTINGS), given_options=options())
def test_what_holds_of_every_run(traffic: Traffic, settings: Settings, given_options: EngineOptions) -> None:
    """Everyone is served to the end, whoever is here waits or runs, and nobody before his time."""
    steps, blocks = list[StepRecord](), given_options.num_gpu_blocks
    served, _ = serve_traffic(textbook(), settings, traffic, given_options, rounds=True, watch=steps.append)
    assert served.output.tolist() == [request.output for request in traffic.requests]
    assert served.arrival_s.tolist() == [request.arrival_s for request in traffic.requests]
    assert (served.first_s > served.arrival_s).all() and (served.last_s >= served.first_s).all()
    for step in steps:
        came, gone = (served.arrival_s <= step.began_s).sum(), (served.last_s <= step.began_s).sum()
        assert step.running + step.waiting == came - gone and step.running <= given_options.max_num_seqs
        assert blocks is None or step.blocks <= blocks
    assert blocks is not None or served.counts.preemptions == 0


def early(run: Run, now: float) -> None:
    """A request is admitted up to a second before it comes."""
    receive(run, now + 1.0)


receive, give_back, commit = Run.receive, BlockPool.give_back, Scheduler.commit


def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, settings = generated(6, 8, 12, arrival_times(6, 0.2, seed=3)), configure("sd", lookahead=2)
    by_rounds(textbook(), settings, traffic, max_num_seqs=2)

    def unqueued(run: Run, now: float) -> None:
        waiting = len(run.scheduler.waiting)
        receive(run, now)
        for row in list(run.scheduler.waiting)[waiting:]:
            run.arrival_s[row.place] = now

    def leaky(pool: Any, blocks: Any) -> None:
        give_back(pool, list(blocks)[:-1])

    def generous(scheduler: Scheduler, step: Any, accepted: list[int], drafted: int, now: float) -> list[Row]:
        found = commit(scheduler, step, accepted, drafted, now)
        scheduler.counts.emitted += 1
        return found

    for where, name, bug, says in (
        (Run, "receive", early, "requests spent"),
        (Run, "receive", unqueued, "requests spent"),
        (BlockPool, "give_back", leaky, "KV blocks were not given back"),
        (Scheduler, "commit", generous, "tokens are computed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, bug)
            with pytest.raises(AssertionError, match=says):
                by_rounds(textbook(), settings, traffic, max_num_seqs=2)


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        (configure("double"), {}, "ar, sd, pld, pearl, saguaro, not with 'double'"),
        (configure("sd", lookahead=8), {"max_num_seqs": 256}, "2304 tokens of 256 rows"),
        (configure("saguaro", stall="rows"), {"num_gpu_blocks": 99}, "stall 'rows'"),
    ],
)
def test_refusals(settings: Settings, options: dict[str, int], says: str) -> None:
    with pytest.raises((SettingError, TrafficError), match=says):
        by_rounds(textbook(), settings, generated(1, 8, 4, [0.0]), **options)
