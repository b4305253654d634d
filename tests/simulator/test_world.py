"""Worlds small enough to be worked out by hand, beyond constant costs and one draft."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_worlds import events, outcomes, run, tokens_by_hand

from hardware_profiles.optime import Host, OperationHost
from hardware_profiles.profile import Profile
from hardware_profiles.records import record
from hardware_profiles.surface import ConstantCost, GridCost, LatencySurface, Point
from policies.operation import Draft, Prespeculate, Verify
from policies.protocols import Steps
from policies.registry import SettingError, configure, start
from policies.rows import NO_CACHE, Rows
from policies.sampling import Sampling
from policies.values import Speculation
from simulator.costs import Effects, ProfileCosts, TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel, coin
from simulator.world import SimulatedWorld

RIGHT = ("+" * 6, [0] * 6)
PER_BRANCH = GridCost(
    axes=("branches", "context"),
    points=tuple(Point(at=(b, c), mean_s=0.1 * b) for b in (1, 100) for c in (0, 100)),
)


def by_branches() -> ProfileCosts:
    """Verification 1 s, drafting .25 s a step, a tree step .1 s per branch."""
    surfaces = {
        "target.forward": LatencySurface(ConstantCost(seconds=1.0)),
        "draft.forward": LatencySurface(ConstantCost(seconds=0.25)),
        "draft.tree": LatencySurface(PER_BRANCH),
    }
    return ProfileCosts(surfaces, effects=Effects(jitter=False), seed=0)


def play(
    tokens: TokenModel, costs: Any, policy: str, *, batch: int = 1, host: Host | None = None, **knobs: Any
) -> tuple[SimulatedWorld, Rows]:
    settings = configure(policy, **knobs)
    world = SimulatedWorld(tokens, costs, host=host, timeline=True, draft_devices=settings.draft_devices or 1)
    rows = Rows(tokens.requests, batch)
    world.run(start(world, rows, settings))
    return world, rows


def test_two_draft_devices_halve_the_tree() -> None:
    # K = 2, F = 2,2,2: 6 outcomes.  First draft .5 s.  Then beside each verification of 1 s a glue of .25 s
    # and two tree steps: of 6 branches 2 x .6 s on one device, of 3 branches 2 x .3 s on each of two.
    # One device: rounds of .25 + 1.2 = 1.45 s.  Two: .85 s, less than the verification.
    knobs: dict[str, Any] = {"lookahead": 2, "fanout": (2,)}
    one, _ = play(tokens_by_hand(RIGHT), by_branches(), "saguaro", **knobs)
    assert events(one)[1:] == [
        ("draft", "prespeculate", 0.5, pytest.approx(1.95)),
        ("target", "verify", 0.5, 1.5),
        ("draft", "prespeculate", pytest.approx(1.95), pytest.approx(3.4)),
        ("target", "verify", pytest.approx(1.95), pytest.approx(2.95)),
    ]
    two, rows = play(tokens_by_hand(RIGHT), by_branches(), "saguaro", draft_devices=2, **knobs)
    assert events(two)[1:] == [
        ("draft", "prespeculate", 0.5, pytest.approx(1.35)),
        ("draft-1", "prespeculate", 0.5, pytest.approx(1.35)),
        ("target", "verify", 0.5, 1.5),
        ("draft", "prespeculate", 1.5, pytest.approx(2.35)),
        ("draft-1", "prespeculate", 1.5, pytest.approx(2.35)),
        ("target", "verify", 1.5, 2.5),
    ]
    assert outcomes(rows.log.rounds(0)) == [(2, 3, 1), (2, 3, -1)]
    assert two.machine.busy_s == pytest.approx({"target": 2.0, "draft": 2.2, "draft-1": 1.7})


def test_missing_rows_sit_out_while_the_others_go_on() -> None:
    # K = 2, drafting .25 s a step.  Row 1 misses in the first round (rank 5), row 0 never does.
    #   batch: all wait for row 1's redraft, 1.5 - 2.0.
    #   rows: row 0 is verified alone meanwhile; its tree waits for the redraft, which the draft serves first.
    missing = ("-+++++", [5, 0, 0, 0, 0, 0])
    knobs: dict[str, Any] = {"batch": 2, "lookahead": 2, "fanout": (1,)}
    waiting, _ = run(tokens_by_hand(RIGHT, missing), "saguaro", **knobs)
    assert events(waiting)[3:6] == [
        ("draft", "draft", 1.5, 2.0),
        ("draft", "prespeculate", 2.0, 2.5),
        ("target", "verify", 2.0, 3.0),
    ]
    going, rows = run(tokens_by_hand(RIGHT, missing), "saguaro", stall="rows", **knobs)
    assert events(going) == [
        ("draft", "draft", 0.0, 0.5),
        ("draft", "prespeculate", 0.5, 1.0),
        ("target", "verify", 0.5, 1.5),
        ("draft", "draft", 1.5, 2.0),  # row 1
        ("target", "verify", 1.5, 2.5),  # row 0, its last round
        ("draft", "prespeculate", 2.0, 2.5),
        ("draft", "prespeculate", 2.5, 3.0),
        ("target", "verify", 2.5, 3.5),  # row 1
        ("draft", "prespeculate", 3.5, 4.0),
        ("target", "verify", 3.5, 4.5),
    ]
    assert [s.details["rows"] for s in going.spans if s.name == "verify"] == [2, 1, 1, 1]
    assert outcomes(rows.log.rounds(1)) == [(0, 1, 0), (2, 3, 1), (2, 2, -1)]


def test_settling_takes_host_time_on_the_target() -> None:
    # Sampled PEARL settles after each round: .1 s to submit, .2 s of work, .05 s to report.
    # Rounds of 1 s (K = 2, the draft's .5 s hide behind it) become 1.35 s.
    settle = OperationHost(submit_s=0.1, extra_s=0.2, report_s=0.05)
    host = Host(sampled={"settle": settle})
    world, rows = play(
        tokens_by_hand(("++++", [0] * 4)),
        TextbookCosts(1.0, 0.25),
        "pearl",
        host=host,
        lookahead=2,
        temperature=1.0,
    )
    # All accepted: plain round emits 1, then blocks of 1 pending token and a bonus: 1 + 2 + 1.
    assert outcomes(rows.log.rounds(0)) == [(0, 1, 1), (1, 2, 1), (1, 1, -1)]
    assert [e for e in events(world) if e[0] == "target"][:3] == [
        ("target", "verify", 0.0, 1.0),
        ("target", "settle", 1.1, pytest.approx(1.3)),
        ("target", "verify", pytest.approx(1.35), pytest.approx(2.35)),
    ]
    assert world.now == pytest.approx(3 * 1.35)


def test_greedy_pearl_settles_nothing() -> None:
    world, _ = run(tokens_by_hand(("++++", [0] * 4)), "pearl", lookahead=2)
    assert {name for _, name, *_ in events(world)} == {"verify", "continue"}


def test_host_time_by_row_and_by_sampling() -> None:
    # Verifying two rows: 1 s of forward, .2 s extra and .3 s for the second row; sampled .1 s in all.
    host = Host(
        operations={"decode": OperationHost(extra_s=0.2, row_s=0.3)},
        sampled={"decode": OperationHost(extra_s=0.1)},
    )
    paths = [("-", [1])] * 2
    greedy, _ = play(tokens_by_hand(*paths), TextbookCosts(1.0, 0.25), "ar", batch=2, host=host)
    assert greedy.now == pytest.approx(1.5)
    sampled, _ = play(
        tokens_by_hand(*paths), TextbookCosts(1.0, 0.25), "ar", batch=2, host=host, temperature=1.0
    )
    assert sampled.now == pytest.approx(1.1)


def test_host_time_by_forward_and_by_token() -> None:
    # Two steps of .25 s and .1 s more for each; .05 s for every token fed.  At first one is unseen, after a
    # round with all accepted two are (its last drafted token and the bonus): 2 fed, then 3.
    host = Host(operations={"draft": OperationHost(step_s=0.1, token_s=0.05)})
    world, _ = play(
        tokens_by_hand(("+" * 6, [0] * 6)), TextbookCosts(1.0, 0.25), "sd", lookahead=2, host=host
    )
    drafts = [span.end_s - span.start_s for span in world.spans if span.name == "draft"]
    assert drafts == pytest.approx([0.5 + 0.2 + 0.1, 0.5 + 0.2 + 0.15])


def test_waits_grow_with_rows_and_tokens() -> None:
    # Verifying nothing in two rows: .1 s before, .2 s for the second row; .3 s after, .05 s for either token.
    waits = OperationHost(submit_s=0.1, submit_row_s=0.2, report_s=0.3, report_token_s=0.05)
    host = Host(operations={"decode": waits})
    paths = [("-", [1])] * 2
    world, _ = play(tokens_by_hand(*paths), TextbookCosts(1.0, 0.25), "ar", batch=2, host=host)
    assert world.now == pytest.approx(0.3 + 1.0 + 0.4)


@pytest.mark.parametrize(("tree", "round_s"), [("whole", 1.6), ("abort", 1.2)])
def test_a_tree_that_nobody_hits_can_be_aborted(tree: str, round_s: float) -> None:
    # The target's token is never among the draft's best: four plain decodes of 1 s, each a miss.  A tree
    # takes 4 x .4 = 1.6 s; stopped at 1 s, it ends with its third step, at 1.2 s.
    world, rows = play(
        tokens_by_hand(("----", [5] * 4)),
        TextbookCosts(1.0, 0.4),
        "saguaro",
        lookahead=4,
        fanout=(1,),
        backup="plain",
        first="backup",
        tree=tree,
    )
    assert world.now == pytest.approx(4 * round_s)
    assert [r.hit for r in rows.log.rounds(0)] == [0, 0, 0, NO_CACHE]


def test_a_tree_that_is_hit_is_carried_through() -> None:
    # One plain decode hits, and what it prepared for, all that is left, is verified in the second round.
    world, _ = play(
        tokens_by_hand(("+" * 6, [0] * 6)),
        TextbookCosts(1.0, 0.4),
        "saguaro",
        lookahead=4,
        fanout=(1,),
        backup="plain",
        first="backup",
        tree="abort",
    )
    # 1.6 s for the hit; then 1.2 s, since a request that has ended needs no tree.
    assert world.now == pytest.approx(1.6 + 1.2)


def profile(**changes: Any) -> Profile:
    operations = {name: {"seconds": s} for name, s in (("target.forward", 1.0), ("draft.forward", 0.25))}
    role = {"device": {"kind": "cpu"}, "model": "m"}
    data: dict[str, Any] = {
        "name": "tiny",
        "roles": {"target": role, "draft": role},
        "operations": operations | {"draft.tree": {"seconds": 0.25}},
        "provenance": {"kind": "synthetic"},
    }
    return record(Profile, data | changes)


def test_contention_by_pairs_of_operations() -> None:
    # K = 2: the tree (glue .25, steps 2 x .25) runs beside the verification and halves its speed; a draft
    # would not.  .75 s of overlap do .375 s of verification, the other .625 s run alone: 1.375 s a round.
    overlap = [
        {"device": "target", "operation": "forward", "while": "draft", "slowdown": 1.0},
        {
            "device": "target", "operation": "forward", "while": "draft", "while_operation": "tree",
            "slowdown": 2.0,
        },
    ]  # fmt: skip
    scenario = Scenario(tokens=tokens_by_hand(RIGHT), profile=profile(overlap=overlap))
    found = simulate(scenario, configure("saguaro", lookahead=2, fanout=(1,)), timeline=True)
    verifies = [(s.start_s, s.end_s) for s in found.spans if s.name == "verify"]
    assert verifies == [(0.5, pytest.approx(1.875)), (pytest.approx(1.875), pytest.approx(3.25))]
    beside = simulate(scenario, configure("pearl", lookahead=2)).summary
    assert beside.seconds == pytest.approx(beside.batch_rounds * 1.0)


def test_drafted_tokens_name_the_shape_that_rescaled_their_laws() -> None:
    tokens = coin(0.5, exponent=1.0, requests=1, length=9, prompt_length=1, seed=0)
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 1.0))
    rows = Rows(tokens.requests, 1)
    rows.admit()
    view, sampling, nothing = rows.view(), Sampling(temperature=1.0, scale=0.5), Speculation.empty(1)
    every = frozenset({0})
    found = []

    def steps() -> Steps:
        drafted = yield world.draft.submit(Draft(view, 2, (1,), sampling, (3, 2)))
        verdict = yield world.target.submit(Verify(view, nothing, sampling))
        prepare = Prespeculate(view, nothing, 2, (3, 2, 1), sampling=sampling, shape=(3, 2))
        cache = yield world.draft.submit(prepare)
        found.extend([drafted, cache.take(verdict, every)])

    world.run(steps())
    assert [(s.shape, s.lengths) for s in found] == [((3, 2), (2,)), ((3, 2), (2,))]


def test_coins_have_no_words_to_look_up() -> None:
    tokens = coin(0.5, exponent=1.0, requests=1, length=9, prompt_length=1, seed=0)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    with pytest.raises(SettingError, match=r"an acceptance rate has none; use a recorded trace"):
        simulate(scenario, configure("saguaro", backup="ngram"))


def test_a_run_that_does_not_fit_is_refused() -> None:
    sizes = {"weight_bytes": 100, "kv_bytes_per_token": 10}
    role = {"device": {"kind": "cpu", "memory_bytes": 175}, "model": "m"} | sizes
    small = profile(roles={"target": role, "draft": role})
    scenario = Scenario(tokens=tokens_by_hand(RIGHT), profile=small)
    # Target: 100 + (1 + 6) x 10 = 170 B decoding plainly; a lookahead of 2 needs 20 B more.
    assert [n.needed_bytes for n in simulate(scenario, configure("ar")).memory] == [170]
    with pytest.raises(SettingError, match=r"target has 175 B of memory, but sd K=2 at batch 1 needs 190 B"):
        simulate(scenario, configure("sd", lookahead=2))
