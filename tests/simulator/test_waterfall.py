"""From the law to the simulation: whatever was asked, the last line is what was simulated."""

from __future__ import annotations

import pytest
from tiny_profiles import profile

import simulator.law as module
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import read_trace
from policies.registry import configure
from simulator.costs import Effects, TextbookCosts
from simulator.law import law_inputs, law_prediction, waterfall
from simulator.run import Scenario, baselines, simulate
from simulator.tokens import coin, replay

TOKENS = {
    "tossed": coin(0.8, exponent=1.0, scale=1.0, requests=5, length=14, prompt_length=30, seed=0),
    "recorded": replay(read_trace(find_trace("shipped:cpu2-x5")).slice(range(5)), limit=14),
}
COSTS = {
    "textbook": {"textbook": TextbookCosts(1.0, 0.2)},
    "tiny": {"profile": profile(linear=True)},
    "shipped": {"profile": load_profile(find_profile("shipped:cpu2-x5"))},
}
SETTINGS = [
    configure("ar"),
    configure("sd", lookahead=3),
    configure("pearl", lookahead=3),
    configure("pld"),
    *(configure("saguaro", lookahead=2, backup=backup) for backup in ("primary", "random", "plain")),
    configure("saguaro", lookahead=2, tree="abort"),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("jitter", [True, False])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_the_last_stage_is_the_simulated_speedup(
    tokens: str, costs: str, jitter: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", 300)
    scenario = Scenario(TOKENS[tokens], batch=batch, effects=Effects(jitter=jitter), **COSTS[costs])
    for settings in SETTINGS:
        if tokens == "tossed" and settings.policy == "pld":
            continue  # coins have no words to look up
        law = law_prediction(settings, law_inputs(scenario, settings), batch=batch)
        stages = waterfall(scenario, settings, law)
        if law.speedup_vs_ar is None:
            assert stages == [] and law.reason
            continue
        plain, _ = baselines(scenario, settings)
        simulated = simulate(scenario, settings).summary.tokens_per_second
        assert stages[0].speedup_vs_ar == law.speedup_vs_ar
        assert stages[-1].speedup_vs_ar == simulated / plain.summary.tokens_per_second
        names = [stage.effect for stage in stages]
        assert ("jitter" in names) == (jitter and costs != "textbook"), names
        assert ("devices slow each other" in names) == (costs != "textbook")
