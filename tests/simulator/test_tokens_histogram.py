"""The histogram token model: acceptance and hits by position, each number worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from policies.registry import SettingError, configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel, coin, conditional_acceptance, histogram
from simulator.tokens.coins import power_law_curve

ALWAYS, NEVER_HITS = (1.0,), (0.0,)


def drawn(acceptance: tuple[float, ...], *, length: int = 4000, **curves: object) -> TokenModel:
    given = {"rejected": [ALWAYS], "free": ALWAYS, **curves}
    return histogram(acceptance, requests=1, length=length, prompt_length=1, seed=1, **given)  # type: ignore[arg-type]


def run(tokens: TokenModel, policy: str, **knobs: object):  # type: ignore[no-untyped-def]
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    return simulate(scenario, configure(policy, **knobs)).summary  # type: ignore[arg-type]


def test_the_same_at_every_position_is_the_coin() -> None:
    flat = histogram(
        (0.7, 0.7, 0.7),
        rejected=[power_law_curve(0.5, 0.9)] * 2,
        free=power_law_curve(0.5, 0.9),
        requests=3,
        length=500,
        prompt_length=1,
        seed=4,
    )
    tossed = coin(0.7, exponent=0.5, scale=0.9, requests=3, length=500, prompt_length=1, seed=4)
    assert (flat.run == tossed.run).all()
    # Coins know fan-outs beyond 64, where the table ends.
    shallow = tossed.need_free <= 64
    assert (flat.need_free == tossed.need_free)[shallow].all() and shallow.mean() > 0.8


def test_a_sure_first_token_and_a_hopeless_second_one() -> None:
    # K = 2, conditional acceptance 1 and 0: every round emits 1 + 1 tokens.  The mean over the verified
    # positions is 1/2, by which iid acceptance promises 1 + 1/2 + 1/4.
    summary = run(drawn((1.0, 0.0)), "sd", lookahead=2)
    assert summary.tokens_per_round == 2.0
    assert summary.acceptance_rate == pytest.approx(0.5, abs=1e-3)


def test_beyond_the_last_position_acceptance_is_that_of_the_last() -> None:
    # All accepted at any depth: K + 1 tokens a round.
    assert run(drawn((1.0,), length=60), "sd", lookahead=5).tokens_per_round == 6.0
    # 0 at depth 2 ends every run there; deeper ones are never reached.
    assert set(drawn((1.0, 1.0, 0.0, 1.0), length=40).run[:-4].tolist()) == {2}


def test_hit_curves_belong_to_the_number_of_tokens_accepted() -> None:
    # Conditional acceptance 1/2 and 1, K = 2: half of the rounds accept nothing, half both.
    # A rejection at once never hits; after both nothing is rejected, and the free curve always hits.
    tokens = drawn((0.5, 1.0), length=20_000, rejected=[NEVER_HITS, ALWAYS])
    summary = run(tokens, "saguaro", lookahead=2, fanout=(1,), backup="primary")
    assert summary.hit_rate_after_primary == pytest.approx(0.5, abs=0.03)
    # The other way round: k = 0 always hits, k = 2 (free) never does.
    tokens = drawn((0.5, 1.0), length=20_000, free=NEVER_HITS)
    summary = run(tokens, "saguaro", lookahead=2, fanout=(1,), backup="primary")
    assert summary.hit_rate_after_primary == pytest.approx(0.5, abs=0.03)


def test_fan_outs_that_a_curve_asks_for() -> None:
    # 1 guess hits 30 %, 2 hit 80 %: a share of .3, .5 and .2 of positions needs 1, 2 and more than there are.
    need = drawn((0.5,), length=20_000, free=(0.3, 0.8)).need_free
    shares = [(need == 1).mean(), (need == 2).mean(), (need > 2).mean()]
    assert shares == pytest.approx([0.3, 0.5, 0.2], abs=0.015)


def test_joint_acceptance_of_an_engine() -> None:
    # 60 % of rounds accept the first token, 45 % the first two, none the third: .6, .45/.6, 0; then 0/0.
    assert conditional_acceptance([0.6, 0.45, 0.0, 0.0]) == pytest.approx((0.6, 0.75, 0.0, 0.0))
    with pytest.raises(SettingError, match="must fall"):
        conditional_acceptance([0.5, 0.6])


def test_rounds_are_those_of_the_histogram() -> None:
    # Rounds by accepted tokens k = 0, 1, 2: 1 - .9, .9 (1 - .5), .9 * .5.
    tokens = drawn((0.9, 0.5), length=40_000)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.1))
    accepted = simulate(scenario, configure("sd", lookahead=2)).rows.log.table()["accepted"]
    shares = np.bincount(accepted) / len(accepted)
    assert shares == pytest.approx([0.1, 0.45, 0.45], abs=0.015)


@pytest.mark.parametrize(
    ("acceptance", "curve", "message"),
    [((), ALWAYS, "acceptance of a position"), ((1.5,), ALWAYS, "0..1"), ((0.5,), (0.5, 0.4), "falls")],
)
def test_refusals(acceptance: tuple[float, ...], curve: tuple[float, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        drawn(acceptance, free=curve)
