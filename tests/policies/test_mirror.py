"""Mirror-SD in tiny simulated worlds: events by hand, the latency law, fallbacks, and the rule of reuse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_profiles import profile
from tiny_worlds import events, outcomes, tokens_by_hand

from hardware_profiles.reply_trace import Decisions
from policies.laws.mirror import (
    batch_schedule,
    can_reuse,
    each_paths,
    fallback,
    fallback_first,
    first_paths,
    mirror_step_time_printed,
)
from policies.mirror import (
    BY_BATCH,
    Branch,
    MirrorConfig,
    RolloutPlan,
    forks,
    mirror,
    reuse,
    scheduled_kappa,
)
from policies.registry import SettingError, configure
from policies.rows import Rows
from policies.values import NO_HANDLE, UNKNOWN, Drafted, Request, RowVerdict, Source, Speculation, View
from simulator.costs import TextbookCosts
from simulator.replies import Recorded
from simulator.run import Scenario, simulate
from simulator.synthetic import Synthetic
from simulator.tokens import TokenModel, coin
from simulator.world import SimulatedWorld

# The draft is right at 0, wrong at 1 (the target's token is its first other one), wrong at 2 (its fifth other
# one, more than kappa), and right from 3 on.
PATH = ("+--++++", [0, 1, 5, 0, 0, 0, 0])


def play(
    tokens: TokenModel, knobs: MirrorConfig, *, draft_s: float, batch: int = 1
) -> tuple[SimulatedWorld, Rows]:
    world = SimulatedWorld(tokens, TextbookCosts(1.0, draft_s), timeline=True, rows=Synthetic(tokens))
    rows = Rows(tokens.requests, batch)
    world.run(mirror(world, rows, knobs))
    return world, rows


def test_the_draft_starts_at_the_mark() -> None:
    world, rows = play(tokens_by_hand(PATH), MirrorConfig(lookahead=2, kappa=2), draft_s=0.125)
    # A window takes 2 steps of 1/8 s, a rollout one more (glue).  The exit lies half-way through the target's
    # second: the mark comes 0.5 s after its start, the rollout ends 0.375 s later, before the target does.
    assert events(world) == [
        ("draft", "draft", 0.0, 0.25),
        ("target", "earlyverify", 0.25, 1.25),  # accepts 1; the correction is prepared for
        ("draft", "rollout", 0.75, 1.125),
        ("target", "earlyverify", 1.25, 2.25),  # accepts 0; the correction is not
        ("draft", "rollout", 1.75, 2.125),
        ("draft", "draft", 2.25, 2.5),  # the fallback
        ("target", "earlyverify", 2.5, 3.5),  # accepts 2, and the token after them is prepared for
        ("draft", "rollout", 3.0, 3.375),
        ("target", "earlyverify", 3.5, 4.5),  # the last token
        ("draft", "rollout", 4.0, 4.375),
    ]
    assert outcomes(rows.log.rounds(0)) == [(1, 2, 1), (0, 1, 0), (2, 3, 1), (1, 1, -1)]


@pytest.mark.parametrize(("exit_", "share"), [("1/4", 0.25), ("1/2", 0.5), ("3/4", 0.75)])
def test_a_slow_draft_outlasts_the_later_layers(exit_: str, share: float) -> None:
    knobs = MirrorConfig(lookahead=2, kappa=2, exit=exit_)  # type: ignore[arg-type]
    world, _ = play(tokens_by_hand(("+++", [0, 0, 0])), knobs, draft_s=0.3)
    # One round: the rollout of 3 * 0.3 s goes on when the target is done, 1 - share after the mark.
    starts_and_ends = [event[2:] for event in events(world)]
    expected = [(0.0, 0.6), (0.6, 1.6), (0.6 + share, 1.5 + share)]
    assert np.array(starts_and_ends) == pytest.approx(np.array(expected))
    assert world.now == pytest.approx(0.6 + share + 0.9)


def test_without_overlap_the_rollout_waits_for_the_verdict() -> None:
    world, _ = play(tokens_by_hand(PATH), MirrorConfig(lookahead=2, kappa=2, overlap="off"), draft_s=0.125)
    assert events(world)[:4] == [
        ("draft", "draft", 0.0, 0.25),
        ("target", "earlyverify", 0.25, 1.25),
        ("draft", "rollout", 1.25, 1.625),
        ("target", "earlyverify", 1.625, 2.625),
    ]


def test_candidates_at_the_first_position_serve_no_later_correction() -> None:
    knobs = MirrorConfig(lookahead=2, kappa=8, candidates="first")
    _, rows = play(tokens_by_hand(PATH), knobs, draft_s=0.125)
    # The correction after one accepted token is lost; the one in the first place is the fifth of 8.
    assert [hit for _, _, hit in outcomes(rows.log.rounds(0))] == [0, 1, 0, -1]


def test_a_batch_waits_for_the_row_that_misses() -> None:
    tokens = tokens_by_hand(PATH, ("+++++++", [0] * 7))
    world, rows = play(tokens, MirrorConfig(lookahead=2, kappa=2), draft_s=0.125, batch=2)
    anew = [e for e in events(world) if e[1] == "draft"]
    assert anew == [("draft", "draft", 0.0, 0.25), ("draft", "draft", 2.25, 2.5)]
    assert [hit for _, _, hit in outcomes(rows.log.rounds(1))] == [1, 1, -1]


A, KAPPA, GAMMA, REQUESTS, LENGTH = 0.8, 4, 3, 60, 200


@pytest.mark.parametrize("reading", ["each", "first"])
@pytest.mark.parametrize("draft_s", [0.05, 0.2])
def test_time_and_fallbacks_follow_the_corrected_laws(reading: str, draft_s: float) -> None:
    tokens = coin(A, exponent=1.0, requests=REQUESTS, length=LENGTH, prompt_length=8, seed=1)
    settings = configure("mirror", lookahead=GAMMA, kappa=KAPPA, candidates=reading)
    run = simulate(Scenario(tokens, textbook=TextbookCosts(1.0, draft_s)), settings)
    log = run.rows.log.table()
    hit, whole = log["hit"], log["accepted"] == log["length"]
    misses, rounds = int((hit == 0).sum()), len(hit)
    # mirror.eq10 with the term that it lacks: every fallback drafts a window serially.
    printed = mirror_step_time_printed(0.5, 0.5, (1 + GAMMA) * draft_s, 0.0)
    serial = (misses + REQUESTS) * GAMMA * draft_s
    assert run.rows.log.ends[-1] == pytest.approx(rounds * printed + serial)
    assert serial > 0.01 * rounds * printed  # so the law as printed is off by more than any rounding
    # mirror.prop1, corrected: the drafted token is one of the candidates, and of the others 1 - kappa^-1 are.
    overlap = A + (1 - A) * (1 - 1 / KAPPA)
    law = fallback if reading == "each" else fallback_first
    counted = hit >= 0
    frequency = float(((hit == 0) & ~whole)[counted].mean())
    expected = law(A, overlap, GAMMA)
    assert frequency == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / counted.sum()))
    assert frequency > 1 - overlap  # the printed bound


def test_the_pieces_of_a_forward_cost_what_the_forward_costs() -> None:
    tokens = coin(A, exponent=1.0, requests=1, length=4, prompt_length=8, seed=0)
    view = View((0,), (0,), (0,), (8,), (4,))
    work = (("early:0.4", 4), ("exit", 0), ("late:0.6", 0), ("verify", 1))
    measured = Scenario(tokens, profile=profile(target_s=2.0)).costs
    for costs in (measured, TextbookCosts(2.0, 0.1)):
        steps = costs.row_steps("target", view, [work], {"exit": 0.05})
        assert [name for name, _ in steps] == [name for name, _ in work]
        assert [s for _, s in steps] == pytest.approx([0.8, 0.05, 1.2, 2.0])


def test_the_schedule_is_the_papers() -> None:
    for batch in (1, 8, 16, 32, 64, 100):
        assert scheduled_kappa(batch) == batch_schedule(batch)[0]
    assert [scheduled_kappa(batch) for batch in (2, 9, 17, 33, 63)] == [8, 4, 2, 1, 1]
    knobs = MirrorConfig(lookahead=1, kappa=0)
    assert [knobs.kappa_at(batch) for batch in (1, 16, 64)] == [8, 4, 1]
    assert MirrorConfig(lookahead=1, kappa=5).kappa_at(64) == 5
    with pytest.raises(ValueError, match="at least 1"):
        scheduled_kappa(0)


def test_decisions_of_another_kappa_are_no_answer() -> None:
    """With the schedule kappa depends on the batch: what batch 1 (kappa 8) decided is not replayed at 16."""
    decided = {("earlyverify", 8, i, 0): [[0, [5], True, 5], [["early:0.5", 1]]] for i in range(16)}
    marks = {key: [[[5]]] for key in decided}
    rolled = {("rollout", 8, i, 0): [[], [["glue", 1]]] for i in range(16)}
    contents = Recorded(Decisions("mirror", {**decided, **rolled}, marks), 16)
    tokens = coin(0.5, exponent=1.0, requests=16, length=1, prompt_length=5, seed=0)
    requests = [Request(i, 5, 1, (1,) * 5) for i in range(16)]
    for batch, kappa in ((8, BY_BATCH), (16, 8)):
        world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), rows=contents)
        rows = Rows(requests, batch, keep_tokens=True)
        world.run(mirror(world, rows, MirrorConfig(lookahead=1, kappa=kappa)))
        assert rows.texts == {i: [5] for i in range(16)}
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), rows=contents)
    with pytest.raises(SettingError, match="has no earlyverify"):
        world.run(
            mirror(world, Rows(requests, 16, keep_tokens=True), MirrorConfig(lookahead=1, kappa=BY_BATCH))
        )


def test_settings_say_what_they_take() -> None:
    assert configure("mirror-sd", lookahead=7).label == "mirror K=7"
    with pytest.raises(SettingError, match="exit"):
        configure("mirror", exit="2/3")
    with pytest.raises(SettingError, match="changes nothing at temperature 0"):
        configure("mirror", acceptance_rule="matching")
    with pytest.raises(SettingError, match="no kappa"):
        configure("sd", kappa=3)


def test_branches_leave_out_the_drafted_token_where_it_stands() -> None:
    plan = RolloutPlan(Drafted((7, 8)), ((7, 5), (6, 8), (8, 7)))
    assert forks(plan) == ((0, 5), (1, 6), (2, 8), (2, 7))
    assert forks(RolloutPlan(Drafted((7, 8)), ((7, 5),))) == ((0, 7), (0, 5))


def test_what_is_reused_keeps_the_handles_of_its_laws() -> None:
    branches = [tuple(Branch(0, (7, 8, 9, 4), 20)), tuple(Branch(1, (6, 3, 3), 30))]
    # Drafted (7, 8, ...): one token accepted and 6 after it; the second branch, whole.
    assert reuse(branches, RowVerdict(1, (7, 6), False, 6)) == Drafted((3, 3), 30)
    # Two accepted and 9 after them: the first branch, its laws from the token after 9 on.
    assert reuse(branches, RowVerdict(2, (7, 8, 9), False, 9)) == Drafted((4,), 22)
    # Three accepted: nothing is left below.  Another token: no path.
    assert reuse(branches, RowVerdict(3, (7, 8, 9, 4), False, 4)) is None
    assert reuse(branches, RowVerdict(1, (7, 5), False, 5)) is None
    assert reuse([tuple(Branch(0, (7, 8)))], RowVerdict(0, (7,), False, 7)) == Drafted((8,), NO_HANDLE)


small = st.integers(0, 2)


@given(
    st.lists(small, min_size=1, max_size=3),
    st.lists(small, min_size=4, max_size=4),
    st.lists(st.sets(small, max_size=2).map(sorted), min_size=4, max_size=4),
)
def test_reuse_follows_the_rule_of_the_laws(
    window: list[int], target: list[int], said: list[Sequence[int]]
) -> None:
    accepted = next((i for i, token in enumerate(window) if token != target[i]), len(window))
    verdict = RowVerdict(accepted, tuple(target[: accepted + 1]), False, target[accepted])
    each = tuple(map(tuple, said[: len(window) + 1]))
    found = [tuple(Branch(k, (token, 9, 9))) for k, token in forks(RolloutPlan(Drafted(tuple(window)), each))]
    paths = each_paths(window, each)
    assert (reuse(found, verdict) is not None) == can_reuse(window, target, paths)
    branches = [(token, *target[1:], 9) for token in said[0]]
    paths = first_paths([branch[:-1] for branch in branches])
    found = [tuple(Branch(0, branch)) for branch in branches]
    assert (reuse(found, verdict) is not None) == can_reuse(window, target, paths)


def test_windows_and_the_batchs_speculation_are_the_same() -> None:
    windows = {0: Drafted((4, 5), 3), 2: Drafted((6,))}
    speculation = Speculation.drafted(3, windows)
    assert [speculation.row(slot) for slot in range(3)] == [windows[0], Drafted(), windows[2]]
    assert speculation.sources == (Source.PRIMARY, Source.NONE, Source.PRIMARY)
    # Drafts of a replay have no ids: their windows keep their length.
    drafted = Speculation((0, 3, 0), (0, 1, 0))
    merged = speculation.merge(drafted, frozenset({1}))
    assert merged.row(1) == Drafted((UNKNOWN,) * 3)
    assert drafted.row(1) == Drafted((UNKNOWN,) * 3)
