"""Speculation parallelism: small worlds by hand, and the authors' offline simulation."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from tiny_worlds import outcomes, run, tokens_by_hand

from policies.config import LawInputs
from policies.dsi import DsiConfig, dsi_speedup
from policies.registry import SettingError, configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin


def test_servers_by_hand() -> None:
    # K = 2, three servers.  Plain decoding knows token 0 at 1; the block of tokens 0 and 1, drafted at .5, is
    # judged at 1.5; that of tokens 2 and 3, drafted at 1, is rejected at 2.  The last token is decoded
    # plainly, from 2 to 3, before its block (drafted at 2.25) is judged.
    world, rows = run(tokens_by_hand(("++-+", [0, 0, 1, 0])), "dsi", lookahead=2, target_devices=3)
    assert world.now == 3.0
    assert [(a, e) for a, e, _ in outcomes(rows.log.rounds(0))] == [(1, 1), (1, 1), (0, 1), (1, 1)]
    assert rows.log.ends == [1.0, 1.5, 2.0, 3.0]


def test_a_draft_that_never_waits_by_hand() -> None:
    # Drafted at .3, .6, .9, 1.2, 1.5: the first token is judged from .3 to 1.3, the next three from 1.3 to
    # 2.3, of which the last is wrong.  The fifth is drafted anew, from 2.3 to 2.6, and judged at 3.6.
    world, rows = run(tokens_by_hand(("+++-+", [0, 0, 0, 1, 0])), "amusd", lookahead=8, draft_s=0.3)
    assert world.now == pytest.approx(3.6)
    assert [(a, e) for a, e, _ in outcomes(rows.log.rounds(0))] == [(1, 1), (2, 3), (1, 1)]


def authors(acceptance: float, lookahead: int, t_draft: float, runs: int) -> float:
    """Speedup by the loop of `SimulDSI`, without an end to the text: segments between two rejections."""
    luck, tokens, cost = np.random.default_rng(1), 0, 0.0
    for accepted in luck.geometric(1.0 - acceptance, runs) - 1:
        si, left = 0.0, int(accepted)
        for _ in count():
            si += lookahead * t_draft
            if left < lookahead:
                break
            left -= lookahead
        tokens += int(accepted) + 1
        cost += min(si + 1.0, accepted + 1.0)
    return tokens / cost


@pytest.mark.parametrize(
    ("acceptance", "lookahead", "t_draft"), [(0.8, 5, 0.1), (0.6, 1, 0.25), (0.9, 4, 0.5)]
)
def test_the_published_simulation_is_reproduced(acceptance: float, lookahead: int, t_draft: float) -> None:
    law, _ = dsi_speedup(acceptance, lookahead, t_draft)
    assert law == pytest.approx(authors(acceptance, lookahead, t_draft, 50_000), rel=0.01)
    tokens = coin(acceptance, exponent=1.0, requests=1, length=800, prompt_length=1, seed=2)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, t_draft))
    servers = 2 + DsiConfig(lookahead).servers_needed(t_draft)
    ours = simulate(scenario, configure("dsi", lookahead=lookahead, target_devices=servers)).summary
    # 800 tokens of such luck have a speedup that varies by some four per cent.
    assert ours.tokens_per_second == pytest.approx(law, rel=0.1)


def test_a_law_for_as_many_servers_as_it_supposes() -> None:
    inputs = LawInputs(acceptance=0.8, exponent=1.0, scale=1.0, target_s=1.0, draft_s=0.1)
    assert DsiConfig(2, 5).law(inputs, 1).speedup is not None
    assert "5 target servers" in (DsiConfig(2, 4).law(inputs, 1).reason or "")
    assert DsiConfig(2, 5).law(inputs, 2).speedup is None


def test_a_batch_is_refused() -> None:
    tokens = coin(0.8, exponent=1.0, requests=2, length=9, prompt_length=3, seed=0)
    with pytest.raises(SettingError, match="one sequence"):
        simulate(Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), batch=2), configure("dsi"))


@pytest.mark.parametrize("policy", ["dsi", "amusd"])
def test_the_clock_has_a_say(policy: str) -> None:
    tokens = coin(0.8, exponent=1.0, requests=2, length=9, prompt_length=3, seed=0)
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), engine="compiled")
    with pytest.raises(SettingError, match="does not cover"):
        simulate(scenario, configure(policy))
