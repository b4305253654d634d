"""What `auto` decides: budgets and lookaheads by hand, and backups on either side of b*."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tiny_worlds import tokens_by_hand

from hardware_profiles.profile import Profile
from hardware_profiles.records import record
from hardware_profiles.store import find_trace
from hardware_profiles.trace import read_trace
from policies.laws.ssd import expected_tokens, hit_rate_primary, outcome_weights, switch_batch
from policies.registry import SettingError, configure
from simulator.auto import resolve, settings_query
from simulator.costs import TextbookCosts
from simulator.fanout import SHAPES, fitting_budget, shape_after_backup, step_times
from simulator.probe import PRIOR_ROUNDS, DraftRule, mean_acceptance, round_statistics
from simulator.run import Scenario
from simulator.tokens import accepted_runs, coin, replay

LINEAR = {
    "axes": ["branches"],
    "points": [{"at": [1], "mean_s": 0.011}, {"at": [64], "mean_s": 0.074}],
}
"""A tree step: 10 ms and 1 ms per branch, over all rows."""


def coins(**changes: Any) -> Any:
    known: dict[str, Any] = {"exponent": 1.0, "requests": 8, "length": 400, "prompt_length": 10, "seed": 1}
    return coin(changes.pop("acceptance", 0.8), **(known | changes))


def constant(target_s: float = 1.0, draft_s: float = 0.1, **changes: Any) -> Scenario:
    return Scenario(tokens=coins(), textbook=TextbookCosts(target_s, draft_s), **changes)


def measured(tree: dict[str, Any] = LINEAR, **changes: Any) -> Scenario:
    """Verification 100 ms, a draft step 20 ms."""
    role = {"device": {"kind": "cpu"}, "model": "m"}
    operations = {"target.forward": {"seconds": 0.1}, "draft.forward": {"seconds": 0.02}, "draft.tree": tree}
    profile = record(
        Profile,
        {
            "name": "tiny",
            "roles": {"target": role, "draft": role},
            "operations": operations,
            "overlap": changes.pop("overlap", []),
            "host": changes.pop("host", {}),
            "provenance": {"kind": "synthetic"},
        },
    )
    return Scenario(tokens=coins(), profile=profile, **changes)


def budget(scenario: Scenario, lookahead: int = 4, **knobs: Any) -> tuple[int, str]:
    fit = fitting_budget(scenario, configure("saguaro", lookahead=lookahead, **knobs), most=10**6)
    return fit.budget, fit.bound


def test_the_budget_that_fits_by_hand() -> None:
    # Glue 20 ms, four steps of 10 + b ms, in 100 ms: b = 10.
    assert budget(measured()) == (10, "time")
    fit = fitting_budget(measured(), configure("saguaro", lookahead=4), most=10**6)
    assert (fit.verify_s, fit.prepare_s) == pytest.approx((0.1, 0.1))
    # Three steps: 20 + 3 (10 + b) <= 100: b = 16.
    assert budget(measured(), 3) == (16, "time")
    # Two rows share the 10 branches; two devices have 10 each.
    assert budget(measured(batch=2)) == (5, "time")
    assert budget(measured(), draft_devices=2) == (20, "time")


def test_the_budget_counts_contention_and_host_time() -> None:
    # The tree runs 1.25 times slower beside the verification: 20 + 4 (10 + b) <= 80: b = 5.
    overlap = [{"device": "draft", "operation": "tree", "while": "target", "slowdown": 1.25}]
    assert budget(measured(overlap=overlap)) == (5, "time")
    # 8 ms of the pre-speculation's own: 28 + 4 (10 + b) <= 100: b = 8.
    host = {"operations": {"prespeculate": {"submit_s": 0.003, "report_s": 0.005}}}
    assert budget(measured(host=host)) == (8, "time")


def test_the_budget_stops_where_nothing_is_known() -> None:
    # Cheap steps, but no tree of more than 20 branches was measured: 20 for one row, 6 for each of three.
    cheap = {"axes": ["branches"], "points": [{"at": [b], "mean_s": 0.001} for b in (1, 20)]}
    assert budget(measured(cheap)) == (20, "grid")
    assert budget(measured(cheap, batch=3)) == (6, "grid")
    # With an axis for the batch the grid says branches per row.
    points = [{"at": [b, n], "mean_s": 0.001} for b in (1, 4) for n in (1, 20)]
    assert budget(measured({"axes": ["batch", "branches"], "points": points}, batch=3)) == (20, "grid")
    few = fitting_budget(measured(cheap), configure("saguaro", lookahead=4), most=3)
    assert (few.budget, few.bound) == (15, "tokens")  # fan-outs of 3 at 5 positions


def test_on_constant_costs_everything_fits_or_nothing_does() -> None:
    # Four steps of .25 s take as long as the target, five longer: then one outcome per position.
    assert budget(constant(1.0, 0.25), 4) == (32 * 5, "cap")
    assert budget(constant(1.0, 0.25), 5) == (6, "late")


def test_step_times() -> None:
    times = step_times(measured(), configure("saguaro", lookahead=4))
    assert (times.verify_s, times.draft_s) == pytest.approx((0.1, 0.08))


def test_pearl_is_balanced() -> None:
    # ceil(1 / .3) = 4; three steps of .25 s and a bit.
    for draft_s, lookahead in ((0.3, 4), (0.25, 4), (0.1, 10)):
        found = resolve(constant(1.0, draft_s), settings_query("pearl", "auto"))
        assert found.settings == configure("pearl", lookahead=lookahead)
        assert found.choices[0].numbers == {"target_s": 1.0, "draft_s": draft_s}


def test_the_lookahead_is_the_fastest_in_its_neighbourhood() -> None:
    found = resolve(constant(1.0, 0.1), settings_query("sd", "auto"))
    best = found.settings.lookahead
    speeds = found.choices[0].numbers["tokens_per_second"]
    # (1 + ... + .8^K) / (1 + .1 K) is 2.460 at K = 5, 2.470 at 6, 2.448 at 7.
    assert found.choices[0].numbers["law"] == 6
    assert best is not None and speeds[str(best)] == max(speeds.values())
    assert {str(best - 1), str(best + 1)} <= set(speeds)


def test_uniform_and_geometric_by_hand() -> None:
    found = resolve(constant(), settings_query("saguaro", 2, "uniform", 8))
    assert found.settings.fanout == (3, 3, 2)
    # Weights .5, .25, .25 to the power 1/2: .7071, .5, .5; of a budget of 17: 7.04, 4.98, 4.98.
    scenario = replace(constant(), tokens=coins(acceptance=0.5, length=4000))
    assert resolve(scenario, settings_query("saguaro", 2, "geometric", 17)).settings.fanout == (7, 5, 5)


def test_after_a_backup_that_is_never_accepted_the_budget_belongs_to_position_0() -> None:
    found = resolve(constant(), settings_query("saguaro", 2, "uniform", 8, backup="plain"))
    assert found.settings.fanout_backup == (8, 0, 0)
    assert resolve(constant(), settings_query("saguaro", 2, "uniform", 8)).settings.fanout_backup is None
    known = round_statistics(coins(), 2, DraftRule())
    assert shape_after_backup(known, 40, most=15) == (15, 0, 0)


def test_exact_is_no_worse_than_the_others_by_its_own_measure() -> None:
    trace = read_trace(find_trace("cpu2-x5"), columns=("draft_rank", "draft_top_ids"))
    scenario = Scenario(tokens=replay(trace), textbook=TextbookCosts(1.0, 0.1))
    known = round_statistics(scenario.tokens, 4, DraftRule())
    hits = {}
    for shape in SHAPES:
        fanout = resolve(scenario, settings_query("saguaro", 4, shape, 12)).settings.fanout
        assert fanout is not None and sum(fanout) <= 12
        hits[shape] = float((known.weights * known.after_primary[np.arange(5), list(fanout)]).sum())
    assert hits["exact"] >= max(hits.values()) - 1e-9


def test_shapes_keep_below_what_the_recording_decides() -> None:
    trace = read_trace(find_trace("cpu2-x5"), columns=("draft_rank", "draft_top_ids"))
    scenario = Scenario(tokens=replay(trace), textbook=TextbookCosts(1.0, 0.1))
    most = scenario.tokens.max_fanout
    for shape in SHAPES:
        fanout = resolve(scenario, settings_query("saguaro", 3, shape, 4 * most)).settings.fanout
        assert fanout is not None and max(fanout) <= most


def test_probing_agrees_with_a_count_over_the_recording() -> None:
    """Rounds of 4 drafted tokens, one after the other; those that reach a request's end are left out."""
    trace = read_trace(find_trace("cpu2-x5"), columns=("draft_rank", "draft_top_ids"))
    known = round_statistics(replay(trace), 4, DraftRule(), deepest=15)
    rank = trace.column("draft_rank")
    accepted = np.minimum(accepted_runs(rank == 0, trace.ends), 4)
    starts = []
    for first, end in pairwise(trace.offsets.tolist()):
        here = first
        while here + accepted[here] + 1 < end:
            starts.append(here)
            here += int(accepted[here]) + 1
    counts = np.bincount(accepted[starts], minlength=5)
    bonus = rank[starts + accepted[starts]]
    fanouts = np.arange(16)
    # After a rejection the draft's first choice is left out; where nothing was rejected it is not.
    rejected, free = rank[rank > 0][:, None] <= fanouts, rank[:, None] < fanouts
    after = np.where(accepted[starts, None] < 4, bonus[:, None] <= fanouts, bonus[:, None] < fanouts)
    own = np.array([after[accepted[starts] == k].sum(axis=0) for k in range(5)])
    pooled = np.array([*[rejected.mean(axis=0)] * 4, free.mean(axis=0)])
    mixed = (own + PRIOR_ROUNDS * pooled) / (counts + PRIOR_ROUNDS)[:, None]
    mixed[:, 0] = 0.0
    assert known.weights == pytest.approx(counts / counts.sum())
    assert known.after_nothing == pytest.approx((rank[starts, None] < fanouts).mean(axis=0))
    # The few rounds of a position are mixed with a pool, which is drawn a little differently there.
    assert known.after_primary == pytest.approx(mixed, abs=0.02)


def test_probing_coins_finds_their_law() -> None:
    tokens = coins(requests=20, length=4000)
    assert mean_acceptance(tokens, DraftRule()) == pytest.approx(0.8, abs=0.008)
    known = round_statistics(tokens, 3, DraftRule(), deepest=4)
    assert known.weights == pytest.approx(outcome_weights(0.8, 3), abs=0.015)
    assert known.after_nothing == pytest.approx([0, 0, 1 / 2, 2 / 3, 3 / 4], abs=0.02)
    assert known.tokens_per_round == pytest.approx(expected_tokens(0.8, 3), rel=0.02)


def test_probing_a_text_by_hand() -> None:
    # K = 2 on + - + + + + -: rounds at 0 (one accepted, its bonus of rank 2) and at 2 (both, bonus right).
    # The round at 5 reaches the end, where nothing is looked up.
    known = round_statistics(tokens_by_hand(("+-++++-", [0, 2, 0, 0, 0, 0, 1])), 2, DraftRule(), deepest=2)
    assert known.weights.tolist() == [0.0, 0.5, 0.5]
    assert known.after_nothing.tolist() == [0.0, 1.0, 1.0]
    assert known.after_primary[1].tolist() == [0.0, 0.0, 1.0]
    assert known.after_primary[2].tolist() == [0.0, 1.0, 1.0]


A, F, K, T = 0.8, 8, 3, 0.1


def auto_backup(batch: int, **flags: Any) -> Any:
    scenario = Scenario(
        tokens=coins(requests=6, length=6000), textbook=TextbookCosts(1.0, T), batch=batch, requests=6
    )
    return resolve(scenario, settings_query("saguaro", K, fanout=(F,), backup="auto", **flags))


def test_the_backup_switches_at_b_star() -> None:
    b_star = switch_batch(
        hit_rate_primary(A, (F,) * (K + 1), 1.0), 1.0 - 1.0 / F, expected_tokens(A, K), 1.0, K * T
    )
    assert 2.5 < b_star < 2.8
    below, above = auto_backup(2), auto_backup(3)
    assert (below.settings.backup, above.settings.backup) == ("primary", "plain")
    numbers = below.choices[0].numbers
    assert numbers["b_corrected"] == pytest.approx(b_star, abs=0.15)  # from tosses, not from their law
    assert numbers["t_primary"] == pytest.approx(K * T)
    assert "agrees" in below.choices[0].why and "agrees" in above.choices[0].why
    assert numbers["tokens_per_second"]["primary"] > numbers["tokens_per_second"]["plain"]


def test_the_switch_is_found_by_simulation_if_asked() -> None:
    assert "b_simulated" not in auto_backup(3).choices[0].numbers
    assert auto_backup(3, find_switch=True).choices[0].numbers["b_simulated"] == 3


def test_nothing_open_is_left_alone() -> None:
    found = resolve(constant(), settings_query("saguaro", 3, fanout=(2,), backup="random"))
    assert found.settings == configure("saguaro", lookahead=3, fanout=(2,), backup="random")
    assert found.choices == ()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"policy": "pearl", "budget": 4}, "no fan-out"),
        ({"policy": "ar", "lookahead": "auto"}, "no lookahead"),
        ({"budget": 0}, "at least 1"),
        ({"budget": 3, "fanout": (2,)}, "either fan-outs or a shape"),
        ({"lookahead": "auto", "fanout": (2, 1, 1)}, "single one"),
        ({"fanout_backup": (2,)}, "changes nothing with backup 'primary'"),
        ({"first": "backup"}, "changes nothing with backup 'primary'"),
        ({"stall": "rows"}, "at batch 1"),
        ({"draft_devices": 2}, "constant times"),
        ({"find_switch": True}, "backup 'auto' only"),
    ],
)
def test_contradictions_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        resolve(constant(), settings_query(**asked))


def test_a_stall_of_rows_belongs_to_the_primary_backup_alone() -> None:
    found = resolve(constant(batch=4), settings_query("saguaro", 4, backup="auto", stall="rows"))
    assert found.settings.knobs["stall"] == ("rows" if found.settings.backup == "primary" else "batch")
