"""Each relaxed assumption in a case so small that the law's error can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_worlds import run, tokens_by_hand

from analysis.breaks.laws import LAWS
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.runs import PIPELINE, PolicyRuns
from analysis.breaks.worlds import Case, LawPoint, RelaxedWorld, falling, profile
from hardware_profiles.surface import LatencySurface
from policies.laws.ssd import expected_tokens

ALWAYS = LawPoint(0.8, 4, 0.1, fanout=(3,) * 5, scale=0.0)
"""Every outcome hits: a round lasts as long as the slower device."""


def bench(tokens: int = 6000) -> PolicyRuns:
    return PolicyRuns(tokens, seed=1)


def error(law: str, point: LawPoint, relaxation: str, size: float, tokens: int = 6000) -> float:
    found = LAWS[law].compare(bench(tokens), RELAXATIONS[relaxation].case(point, size))
    assert found is not None
    return found.error


def round_s(point: LawPoint, world: RelaxedWorld) -> float:
    """Seconds of a round of Saguaro that always hits."""
    return bench().run("saguaro", Case(point, world)).ratio("seconds", "rounds").value


def test_falling_acceptance_keeps_the_mean() -> None:
    # K = 2, acceptances x and x/10.  Verified positions: 1 + x, accepted: x + x^2/10.  Half of them:
    # .1 x^2 + .5 x - .5 = 0, x = (-.5 + sqrt(.25 + .2)) / .2 = .854102.
    assert falling(0.5, 2, 0.9) == pytest.approx((0.854102, 0.0854102), abs=1e-6)


def test_position() -> None:
    # So a round emits 1 + .854102 + .854102 * .0854102 = 1.927051 tokens, where E(.5, 2) = 1.75: -9.19 %.
    case = Case(LawPoint(0.5, 2, 0.1), RelaxedWorld(falling=0.9))
    found = LAWS["double.thm1"].compare(bench(60_000), case)
    assert found is not None and found.law == 1.75
    assert found.error == pytest.approx(1.75 / 1.927051 - 1.0, abs=4 * found.uncertainty)
    assert found.uncertainty < 0.004


def test_recorded_tokens_in_clusters() -> None:
    # Half of the tokens are accepted, K = 1: E(.5, 1) = 1.5.  In pairs, ++--: a round takes ++ (the second
    # one as its bonus), then each - costs a round: 4 tokens in 3 rounds, the law is 12.5 % too high.
    # Taking turns, +-: every round takes both, 2 tokens, the law is 25 % too low.
    for marks, expected in (("++--", 0.125), ("+-", -0.25)):
        text = marks * (24 // len(marks))
        _, rows = run(tokens_by_hand((text, [int(m == "-") for m in text])), "sd", lookahead=1)
        per_round = 24 / rows.log.batch_rounds
        assert expected_tokens(0.5, 1) / per_round - 1.0 == pytest.approx(expected)


def test_the_recording_has_more_empty_and_more_full_rounds_than_coins() -> None:
    point = LawPoint(0.8, 8, 0.1)
    inputs = RELAXATIONS["trace"].case(point, 0.0)
    sums = bench().run("sd", inputs).sums
    assert sums["tokens"].sum() > 5500  # all of its 6098 positions but the first and last round's
    full = 1.0 - sums["rejected"].sum() / sums["rounds"].sum()
    assert full > 1.5 * inputs.point.acceptance**8


def test_jitter() -> None:
    # Everything accepted, a block drafted in one step: a round lasts max(V, D), both of mean 1, V with a
    # variation of .2 and D with .2/sqrt(4).  E max = 1 + sqrt((.04 + .01) / (2 pi)) = 1.0892.
    assert error("double.thm3.pearl", LawPoint(1.0, 4, 0.25), "jitter", 0.2, 24_000) == pytest.approx(
        0.0892, abs=0.008
    )


def test_jitter_of_a_sum_costs_nothing() -> None:
    point = LawPoint(1.0, 4, 0.25)
    assert error("double.eq11", point, "jitter", 0.3, 24_000) == pytest.approx(0.0, abs=0.015)


def test_verification_that_grows_with_k() -> None:
    # All accepted: 5 tokens in 4 * .1 + 1 + 4 * .05 = 1.6, and not in 1.4.
    assert error("double.eq11", LawPoint(1.0, 4, 0.1), "verify-k", 0.05) == pytest.approx(1.6 / 1.4 - 1.0)


def test_verification_that_grows_with_the_batch() -> None:
    # Eight rows decode in 1 + .05 * 7 = 1.35; told of one row, the law promises 35 % too much.
    assert error("ar", LawPoint(0.8, 1, 0.1, batch=8), "verify-batch", 0.05) == pytest.approx(0.35)
    surface = LatencySurface(profile(0.1, RelaxedWorld(verify_batch=0.05)).operation("target.forward"))
    assert surface.seconds(batch=8, new_tokens=5) == pytest.approx(1.0 + 0.05 * 39)


def test_branches() -> None:
    # 5 * 3 branches: glue .1, and 4 steps of .1 (1 + .1 * 14) = .24: 1.06 instead of 1.
    assert round_s(ALWAYS, RelaxedWorld(branches=0.1)) == pytest.approx(1.06)
    # The glue step alone takes T_p = .4 to .5, which the verification hides.
    assert round_s(ALWAYS, RelaxedWorld(branches=0.0)) == pytest.approx(1.0)
    assert round_s(replace(ALWAYS, draft_s=0.25), RelaxedWorld(branches=0.0)) == pytest.approx(1.25)


def test_contention() -> None:
    # Both take 1 and overlap throughout, so each takes 1.4.
    assert round_s(replace(ALWAYS, draft_s=0.25), RelaxedWorld(contention=0.4)) == pytest.approx(1.4)
    # The draft's .4 take .56 beside the target, which has then done .56 / 1.4 = .4 of its work: .56 + .6.
    assert round_s(ALWAYS, RelaxedWorld(contention=0.4)) == pytest.approx(1.16)


def test_rows_that_miss_together_are_one_row() -> None:
    four = Case(LawPoint(0.8, 4, 0.1, fanout=(3,) * 5, batch=4), RelaxedWorld(clones=4))
    together, alone = (
        bench().run("saguaro", four),
        bench(1500).run("saguaro", Case(replace(four.point, batch=1))),
    )
    assert together.ratio("tokens", "seconds").value == alone.ratio("tokens", "seconds").value


def test_an_uninterruptible_tree() -> None:
    # One guess never hits (c = 1): every round is a plain decode that waits for a tree of 2.  As printed it
    # would take 1.
    point = LawPoint(0.8, 4, 0.1, fanout=(1,) * 5, backup="plain")
    assert error("ssd.thm7.printed", point, "tree", 2.0) == pytest.approx(1.0)
    assert error("ssd.thm7", point, "tree", 2.0) == pytest.approx(0.0)


def test_short_outputs() -> None:
    # All accepted, 8 tokens: rounds of 5 and 3, so 4 a round instead of 5.
    assert error("double.thm1", LawPoint(1.0, 4, 0.1), "short", 8) == pytest.approx(0.25)
    # All hit, too: .4 for the first draft and two rounds: 8 tokens in 2.4, where the law says 5 in 1.
    point = replace(ALWAYS, acceptance=1.0)
    assert error("ssd.thm7", point, "short", 8) == pytest.approx(5.0 / (8 / 2.4) - 1.0)


def test_the_plain_pipeline_by_hand() -> None:
    # All accepted, g = 4, C = 4: after the first block drafting hides, 4 tokens a round.
    assert bench().run(PIPELINE, Case(LawPoint(1.0, 4, 0.25))).ratio(
        "tokens", "seconds"
    ).value == pytest.approx(4.0)
    # Nothing accepted: a block (1) and a verification (1) for each token.
    assert bench(600).run(PIPELINE, Case(LawPoint(0.0, 4, 0.25))).ratio(
        "tokens", "seconds"
    ).value == pytest.approx(0.5)


def test_noise_varies_by_as_much_as_it_is_told() -> None:
    surface = LatencySurface(profile(0.1, RelaxedWorld(jitter=0.3)).operation("target.forward"))
    noise = surface.noise((np.arange(200_000) + 0.5) / 200_000)
    assert noise.mean() == pytest.approx(1.0, abs=1e-6)
    assert noise.std() == pytest.approx(0.3, abs=1e-4)
