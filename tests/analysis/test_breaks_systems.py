"""Laws of Mirror-SD, DOUBLE, DuoDecoding and RASD in cases worked out by hand, and what was recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.breaks.comparison import by_value, speed
from analysis.breaks.laws import (
    LAWS,
    RETRIEVING,
    all_fallbacks,
    double_speed,
    double_tokens,
    mirror_step,
    omega,
    two_sequences_speed,
)
from analysis.breaks.map import differs
from analysis.breaks.relaxations import (
    RELAXATIONS,
    inputs_of_replies,
    matches,
    recorded_matches,
)
from analysis.breaks.runs import PolicyRuns
from analysis.breaks.worlds import Case, LawPoint, RelaxedWorld, replies_of
from analysis.papers.rasd import fused_tau
from analysis.studies.mirror_account import overlap_counted
from policies.laws.double import pearl_speedup
from policies.registry import configure
from policies.tokentree import TreeVerdict
from simulator.replies import revive

DECIDED = RELAXATIONS["decided"]
NEVER_REUSED = LawPoint(0.5, 4, 0.1, kappa=1)
"""One guess misses at c = 1."""


@pytest.fixture(scope="module")
def bench() -> PolicyRuns:
    return PolicyRuns(6000, seed=3)


def test_mirrors_step_by_hand(bench: PolicyRuns) -> None:
    # A glue step and four of .1 take as long as the later half: 1.  Nothing is reused: .4 more.
    assert mirror_step(NEVER_REUSED, 0.0) == 1.0
    assert all_fallbacks(NEVER_REUSED) == 1.0 and omega(NEVER_REUSED) == 0.5
    run = bench.run("mirror", Case(NEVER_REUSED))
    assert run.ratio("seconds", "rounds").value == pytest.approx(1.4)
    # The window is rejected somewhere with 1 - .5^4.
    assert run.ratio("fallbacks", "rounds").value == pytest.approx(1 - 0.5**4, abs=0.02)
    # A draft of .2 a step exceeds the half by .5, and a target that grows by .05 per token takes 1.2.
    slow = replace(NEVER_REUSED, draft_s=0.2, scale=0.0)
    wide = bench.run("mirror", Case(slow, RelaxedWorld(verify_k=0.05)))
    assert mirror_step(slow, 0.0) == 1.5
    assert wide.ratio("seconds", "rounds").value == pytest.approx(0.6 + 1.0, abs=1e-3)


def test_double_without_matches_is_pearl() -> None:
    for a, g in ((0.5, 2), (0.8, 4), (0.9, 1)):
        point = LawPoint(a, g, 1.0 / g)
        assert double_speed(point) == pytest.approx(pearl_speedup(a, g, float(g)), rel=1e-6)


def test_doubles_tokens_where_nothing_is_drafted_right() -> None:
    # a near 0: nothing is ever pending; the target's own token and AMT more.
    assert double_tokens(LawPoint(1e-9, 3, 0.1, matched=1.5)) == pytest.approx(2.5)


def test_one_of_two_sequences_is_pearl() -> None:
    # h = 0: of 9 tokens the other sequence has 4, the leading one 5, in 5 steps.
    point = LawPoint(0.7, 9, 0.2, scale=1.0)
    assert two_sequences_speed(point) == pytest.approx(pearl_speedup(0.7, 5, 5.0))
    # h = 1, K = 3: sequences of 2 and 1 tokens, a = .5: every first token is right, half of the time the
    # leading one, whose second waits.  Shares after a round in which all passed (w): .5 and .5;
    # w = 1/(1 + .5 + .5 - .5^2 - .5) = .8; tokens .2 + .8 (.5 (1 + .5) + .5) = 1.2.
    assert two_sequences_speed(LawPoint(0.5, 3, 0.2, scale=0.0)) == pytest.approx(1.2)


def test_a_wrong_law_of_double_is_caught() -> None:
    """One that counts half of the matched tokens twice."""
    wrong = by_value(
        lambda point: double_speed(replace(point, matched=1.5 * point.matched)),
        speed("double"),
    )
    found = wrong.compare(PolicyRuns(12_000, seed=11), Case(RETRIEVING[0]))
    assert differs(found), found


def test_halves_of_coins() -> None:
    point = LAWS["rasd.fuse"].points[0]
    for world in (RelaxedWorld(), RelaxedWorld(falling=0.2)):
        found = matches(Case(point, world), 40_000, 5)
        assert found["drafted"].mean() == pytest.approx(3.0, rel=0.03)
        assert found["retrieved"].mean() == pytest.approx(0.5, rel=0.04)
        assert (found["fused"] == np.maximum(found["drafted"], found["retrieved"])).all()
    # Falling acceptance keeps the mean and loses the long ones, of which a fused tree lives.
    assert found["fused"].mean() < fused_tau(3.0, 0.5)


def test_the_recorded_fused_tree_matches_what_was_accepted() -> None:
    trace = replies_of("rasd").settings["rasd"]
    rounds = sorted(key for key in trace.replies if key[0] == "verifytree")
    verdicts = [revive(TreeVerdict, trace.replies[key]).verdict for key in rounds]
    found = recorded_matches()
    assert found["fused"].tolist() == [verdict.accepted for verdict in verdicts]
    assert (found["fused"] >= np.maximum(found["drafted"], found["retrieved"])).all()


def test_laws_are_told_what_a_reader_would_count() -> None:
    point = LawPoint(0.8, 4, 0.1, kappa=8)
    told = inputs_of_replies(point)
    recorded = replies_of("mirror").settings[configure("mirror", lookahead=4, kappa=8).label]
    counted = overlap_counted([recorded])
    assert omega(told) == pytest.approx(counted) and 0.6 < told.acceptance < 0.7
    assert inputs_of_replies(RETRIEVING[0]).matched != RETRIEVING[0].matched


def test_a_setting_that_was_not_recorded_is_left_out(bench: PolicyRuns) -> None:
    law = LAWS["mirror.eq10"]
    assert law.compare(bench, DECIDED.case(LawPoint(0.8, 5, 0.1, kappa=8), 0.0)) is None
    assert law.compare(bench, DECIDED.case(LawPoint(0.8, 4, 0.1, kappa=8), 0.0)) is not None
