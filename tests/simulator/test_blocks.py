"""Blocks in one pass in worlds of coins: rounds by hand, and the laws."""

from __future__ import annotations

import pytest

from policies.registry import Settings, configure
from simulator.costs import TextbookCosts
from simulator.law import law_inputs, law_prediction
from simulator.run import Scenario, Simulated, simulate
from simulator.tokens import coin

K = 3


def run(settings: Settings, acceptance: float, *, draft_s: float = 0.25, hit_scale: float = 1.0) -> Simulated:
    tokens = coin(acceptance, exponent=1.0, scale=hit_scale, requests=2, length=200, prompt_length=4, seed=3)
    return simulate(Scenario(tokens=tokens, textbook=TextbookCosts(1.0, draft_s)), settings)


def test_rounds_by_hand() -> None:
    """All is accepted and every outcome prepared: 50 rounds of four tokens for each of two requests.

    A draft pass and a verification, 1.25 s.  With a cache 1 s, after a first block of 0.25 s: the glue pass
    and that of the blocks (0.5 s) hide.  With a pass per token 0.25 + 3 * 0.25 s hide, too; the first
    takes 0.75 s.
    """
    alone = run(configure("block", lookahead=K), 1.0).summary
    assert alone.seconds == pytest.approx(2 * 50 * 1.25)
    cached = run(configure("saguaro-block", lookahead=K), 1.0, hit_scale=0.0).summary
    assert cached.seconds == pytest.approx(2 * (50 + 0.25)) and cached.cache_hit_rate == 1.0
    each = run(configure("ssd-eagle", lookahead=K), 1.0, hit_scale=0.0).summary
    assert each.seconds == pytest.approx(2 * (50 + 0.75))


def test_what_was_prepared_is_accepted_less() -> None:
    """Prepared tokens are refused, redrafted ones accepted; all outcomes are prepared.

    A request of 200 tokens begins with 4, and goes on with one in each round.
    """
    late = configure("saguaro-block", lookahead=K, ahead_acceptance=0.0)
    found = run(late, 1.0, hit_scale=0.0)
    assert found.summary.rounds == 2 * (1 + 196)
    assert [r.accepted for r in found.rows.log.rounds(0)][:3] == [3, 0, 0]


@pytest.mark.parametrize(
    "settings",
    [
        configure("block", lookahead=K),
        configure("saguaro-block", lookahead=K),
        configure("ssd-eagle", lookahead=K, ahead_acceptance=0.8),
    ],
    ids=lambda settings: settings.label,
)
def test_simulated_speed_is_the_laws(settings: Settings) -> None:
    tokens = coin(0.7, exponent=1.0, scale=1.0, requests=8, length=600, prompt_length=4, seed=5)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.2))
    law = law_prediction(settings, law_inputs(scenario), batch=1)
    found = simulate(scenario, settings).summary
    assert law.speedup_vs_ar is not None
    assert found.tokens_per_second == pytest.approx(law.speedup_vs_ar, rel=0.03)
    assert found.tokens_per_round == pytest.approx(law.tokens_per_round, rel=0.03)
    if law.cache_hit_rate is not None:
        assert found.cache_hit_rate == pytest.approx(law.cache_hit_rate, abs=0.02)


@pytest.mark.parametrize("name", ["block", "saguaro-block"])
def test_both_engines_agree(name: str) -> None:
    settings = configure(name, lookahead=K)
    tokens = coin(0.7, exponent=1.0, requests=5, length=40, prompt_length=4, seed=5)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, 0.2), batch=3)
    event, compiled = (
        simulate(Scenario(**{**vars(scenario), "engine": e}), settings) for e in ("event", "compiled")
    )
    assert compiled.engine == "compiled"
    assert event.summary == compiled.summary
