"""Noise of whole operations: its mean, its key, and what it does to devices that wait for each other."""

from __future__ import annotations

import numpy as np
import pytest

from hardware_profiles.optime import Host, HostOperation, OperationHost
from hardware_profiles.profile import Profile
from hardware_profiles.records import record
from hardware_profiles.surface import Quantiles, varied
from policies.registry import configure
from simulator.costs import BLOCK, STRATA, Effects, KeyedNoise
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel, coin

SPREAD = (0.5, 0.75, 1.0, 1.25, 1.5)
TARGET_S, DRAFT_S = 4e-3, 1e-3


def profile(spread: Quantiles | None) -> Profile:
    """A target step of 4 ms and a draft step of 1 ms; operations vary as a whole, or not at all."""
    role, entry = {"device": {"kind": "cpu"}, "model": "m"}, OperationHost(spread=spread)
    names: tuple[HostOperation, ...] = ("decode", "verify", "draft", "continue")
    return record(
        Profile,
        {
            "name": "tiny",
            "roles": {"target": role, "draft": role},
            "operations": {"target.forward": {"seconds": TARGET_S}, "draft.forward": {"seconds": DRAFT_S}},
            "host": Host(operations=dict.fromkeys(names, entry)),
            "provenance": {"kind": "synthetic"},
        },
    )


def seconds(policy: str, spread: Quantiles | None, *, jitter: bool = True, seed: int = 0) -> float:
    tokens: TokenModel = coin(0.999999, exponent=1.0, requests=40, length=50, prompt_length=4, seed=1)
    scenario = Scenario(tokens, profile=profile(spread), effects=Effects(jitter=jitter), seed=seed)
    knobs = {} if policy == "ar" else {"lookahead": 4}
    return simulate(scenario, configure(policy, **knobs)).summary.seconds


def test_factors_are_keyed_and_have_the_mean_one() -> None:
    one, other = KeyedNoise(7, strata=STRATA), KeyedNoise(7, strata=STRATA)
    drawn = [one.factor("verify", SPREAD) for _ in range(3 * BLOCK)]
    again = []
    for _ in range(3 * BLOCK):  # what others draw in between changes nothing
        other.factor("draft", SPREAD)
        again.append(other.factor("verify", SPREAD))
    assert drawn == again
    # The law is uniform in [.5, 1.5] but for its flat ends, and every 16 factors have one in each sixteenth
    # of it, which is within 1 / 32 of the middle of its part, on one side or the other alike.
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.005)
    assert np.mean(drawn[:16]) == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(-1 / 15, abs=0.04)
    assert (min(drawn), max(drawn)) == pytest.approx((0.5, 1.5))
    assert KeyedNoise(8, strata=STRATA).factor("verify", SPREAD) != drawn[0]
    independent = KeyedNoise(7)
    free = [independent.factor("verify", SPREAD) for _ in range(3 * BLOCK)]
    # A deviation of .31 over the root of 3072: 0.6 %.
    assert np.mean(free) == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(free[:-1], free[1:])[0, 1] == pytest.approx(0.0, abs=0.06)


def test_devices_in_turn_take_the_sum_of_their_means() -> None:
    still, varying = seconds("sd", SPREAD, jitter=False), seconds("sd", SPREAD)
    assert seconds("sd", None) == pytest.approx(still)
    assert varying == pytest.approx(still, rel=0.02)
    assert seconds("sd", SPREAD) == varying != seconds("sd", SPREAD, seed=1)


def test_devices_that_wait_for_each_other_take_the_mean_of_the_longer() -> None:
    """A round of PEARL with K = 4 here is the longer of 4 ms and 4 x 1 ms.

    Both vary by the same law, so that it takes E max(X, Y) of 4 ms: by numbers below, 1.18 of it.
    """
    random = np.random.default_rng(0)
    longer = float(np.maximum(*varied(SPREAD, random.random((2, 200_000)))).mean())
    assert longer == pytest.approx(1.18, abs=0.01)
    ratio = seconds("pearl", SPREAD) / seconds("pearl", SPREAD, jitter=False)
    # 400 rounds with a deviation of a quarter: 1.3 %; a few of them start a text and draft alone.
    assert ratio == pytest.approx(longer, abs=0.05)
