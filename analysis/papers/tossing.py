"""Forecasts by simulation: the papers' own world, constant latencies and iid coins, event by event."""

from __future__ import annotations

from functools import cache

from analysis.papers.forecast import Coin
from policies.registry import Settings, configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

REQUESTS, LENGTH = 4, 4096
"""Long outputs: the laws are long-run rates, and the first rounds of a request are not."""


@cache
def toss(tossed: Coin, seed: int = 0) -> float:
    """The simulated value, in the unit of the cell.

    A cache hit is a coin of its own: fan-out 1 with a curve that misses one guess with 1 - p_hit.
    """
    tokens = coin(
        tossed.acceptance,
        exponent=1.0,
        scale=1.0 - tossed.hit,
        requests=REQUESTS,
        length=LENGTH,
        prompt_length=1,
        seed=seed,
    )
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, tossed.draft_step))
    # A plain step takes 1 s and yields a token: tokens per second are the speedup.
    return tossed.factor * simulate(scenario, _settings(tossed)).summary.tokens_per_second


def _settings(tossed: Coin) -> Settings:
    if tossed.policy == "saguaro":
        return configure("saguaro", lookahead=tossed.lookahead, fanout=(1,), backup="primary")
    return configure(tossed.policy, lookahead=tossed.lookahead)
