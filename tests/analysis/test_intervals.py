"""Intervals: by hand on constant costs, and their coverage of a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_profiles import profile, trace

from analysis.intervals import Bootstrap, block_factors, chosen_requests, interval, seconds_by_request
from analysis.stats import repeatability
from policies.registry import configure
from simulator.run import Scenario, simulate
from simulator.tokens import replay

AR, SD = configure("ar"), configure("sd", lookahead=1)
GOOD, BAD = [0] * 8, [3] * 8
"""Texts of 8 tokens of which the draft knows all, and none."""


def bootstrap(ranks: list[list[int]], **fields: object) -> Bootstrap:
    known = {k: fields.pop(k) for k in ("blocks", "target_s", "draft_s") if k in fields}
    scenario = Scenario(tokens=replay(trace(ranks)), profile=profile(**known))  # type: ignore[arg-type]
    return Bootstrap(scenario, **fields)  # type: ignore[arg-type]


def test_quantiles_by_hand() -> None:
    found = interval(np.arange(101.0), 0.8)
    assert (found.low, found.middle, found.high) == pytest.approx((10.0, 50.0, 90.0))
    assert 10.1 in found and 9.9 not in found
    with pytest.raises(ValueError, match="level"):
        interval(np.ones(3), 1.0)


def test_requests_take_the_seconds_that_they_take_alone() -> None:
    # SD with K = 1 on constant costs 1 and 0.25: a good text takes 4 rounds of 1.25 s for 8 tokens, a bad
    # one 8 rounds; prefills (0.5 s on each device) are no decode time.
    scenario = Scenario(tokens=replay(trace([GOOD, BAD])), profile=profile())
    tokens, seconds = seconds_by_request(simulate(scenario, SD))
    assert tokens.tolist() == [8.0, 8.0]
    assert seconds == pytest.approx([5.0, 10.0])


def test_alike_prompts_leave_no_doubt() -> None:
    found = bootstrap([GOOD, GOOD, GOOD]).speedup(SD)
    assert (found.low, found.middle, found.high) == pytest.approx((8 / 5, 8 / 5, 8 / 5))


def test_prompts_are_drawn_to_the_size_of_the_run() -> None:
    # One prompt: either good (8 s / 5 s) or bad (8 s / 10 s); two of them may also be mixed.
    one, two = bootstrap([GOOD, BAD], size=1), bootstrap([GOOD, BAD], size=2)
    assert set(np.round(one.speedups(SD), 6)) == {1.6, 0.8}
    assert set(np.round(two.speedups(SD), 6)) == {1.6, 0.8, round(16 / 15, 6)}
    assert one.speedup(SD).high - one.speedup(SD).low >= two.speedup(SD).high - two.speedup(SD).low


def test_a_batch_is_simulated_replicate_by_replicate() -> None:
    # Two rows of one kind run in step: 4 rounds of 1.25 s or 8; mixed: the slower one decides, 8 rounds.
    boot = bootstrap([GOOD, BAD], size=2, batch=2, replicates=30)
    assert set(np.round(boot.speedups(SD), 6)) == {1.6, 0.8}
    assert boot.count == len(boot.prompts) == 30


def test_a_drifting_target_moves_sd_less_than_plain_decoding() -> None:
    # Blocks of 0.9 and 1.1 on the target alone: AR takes 8 b, SD 4 (b + 0.25).
    boot = bootstrap([GOOD] * 3, blocks={"target.forward": (0.9, 1.1)})
    assert sorted(set(np.round(1 / boot.speeds(AR), 4))) == [0.9, 1.1]
    expected = [8 * b / (4 * (b + 0.25)) for b in (0.9, 1.1)]
    assert sorted(set(np.round(boot.speedups(SD), 3))) == pytest.approx(sorted(expected), rel=0.005)


def test_drift_in_a_batch_is_simulated() -> None:
    boot = bootstrap([GOOD] * 2, blocks={"target.forward": (0.9, 1.1)}, batch=2, replicates=20)
    assert sorted(set(np.round(boot.speeds(AR), 6))) == pytest.approx([2 / 1.1, 2 / 0.9])


def test_model_error_widens_the_speedup_but_not_plain_decoding() -> None:
    sure, unsure = bootstrap([GOOD] * 2), bootstrap([GOOD] * 2, model_error=0.1)
    assert unsure.speedup(AR).low == unsure.speedup(AR).high == 1.0
    spread = np.std(np.log(unsure.speedups(SD) / sure.speedups(SD)))
    assert spread == pytest.approx(0.1, rel=0.15)


def test_the_same_seed_gives_the_same_interval_and_another_another() -> None:
    ranks = [GOOD, BAD, [0, 2] * 4, [0, 0, 0, 1] * 2]
    first, again, other = (bootstrap(ranks, seed=s, model_error=0.02).speedup(SD) for s in (1, 1, 2))
    assert first == again != other


def test_coverage_of_a_synthetic_truth() -> None:
    # Texts with an acceptance of their own; the calibration has 40, a live run 6 others.
    random = np.random.default_rng(0)

    def texts(count: int) -> list[list[int]]:
        return [(random.random(32) > random.beta(6, 3)).astype(int).tolist() for _ in range(count)]

    inside = 0
    for trial in range(40):
        predicted = bootstrap(texts(40), size=6, seed=trial).speedup(SD)
        live = Scenario(tokens=replay(trace(texts(6))), profile=profile())
        speeds = [simulate(live, s).summary.tokens_per_second for s in (SD, AR)]
        inside += speeds[0] / speeds[1] in predicted
    # Binomial of 40 at 0.8: 32 +- 2.5; within three standard deviations.
    assert 25 <= inside <= 39


def test_several_runs_are_surer_than_one() -> None:
    boot = bootstrap([GOOD, BAD, [0, 2] * 4], size=2)
    one, four = boot.speedup(SD), boot.speedup_of_several(SD, 4)
    assert four.high - four.low < one.high - one.low


def test_block_factors_have_mean_one_and_prefills_have_none() -> None:
    found = block_factors(profile(blocks={"target.forward": (2.0, 4.0)}))
    assert {name: f.tolist() for name, f in found.items()} == {"target.forward": [2 / 3, 4 / 3]}
    boot = bootstrap([GOOD] * 3, size=2, replicates=5)
    assert boot.prompts.shape == (5, 2) and not boot.factors


def test_a_request_drawn_twice_is_served_twice() -> None:
    tokens = chosen_requests(replay(trace([GOOD, BAD])), np.array([1, 1, 0]))
    run = simulate(Scenario(tokens=tokens, profile=profile()), SD)
    assert run.summary.tokens == 24
    assert seconds_by_request(run)[1] == pytest.approx([10.0, 10.0, 5.0])


def test_repeatability_is_what_two_measurements_would_differ_by() -> None:
    """Halves of (1, e^0.2) are 0.2 apart: over sqrt(2).  Of two such pairs, the three ways to halve them give
    0, 0 and 0.2: sqrt(0.04 / 3 / 2)."""
    one, other = 1.0, float(np.exp(0.2))
    assert repeatability([one]) is None
    assert repeatability([one, other]) == pytest.approx(0.2 / np.sqrt(2.0))
    assert repeatability([one, one, other, other]) == pytest.approx(np.sqrt(0.04 / 3.0 / 2.0))
