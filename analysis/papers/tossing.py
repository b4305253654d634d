"""Forecasts by simulation: the papers' own world, constant latencies and iid coins, event by event."""

from __future__ import annotations

from functools import cache

from analysis.papers.forecast import Coin
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

REQUESTS, LENGTH = 4, 4096
"""Long outputs: the laws are long-run rates, and the first rounds of a request are not."""
FLAT = 1e-9
"""Exponent of a hit curve that is the same for any number of guesses: a coin's hit is that of all of them."""


@cache
def toss(tossed: Coin, seed: int = 0) -> float:
    """The simulated value, in the unit of the cell."""
    tokens = coin(
        tossed.acceptance,
        exponent=FLAT,
        scale=1.0 - tossed.hit,
        requests=REQUESTS,
        length=LENGTH,
        prompt_length=1,
        seed=seed,
    )
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, tossed.draft_step))
    settings = configure(tossed.policy, lookahead=tossed.lookahead, **dict(tossed.knobs))
    # A plain step takes 1 s and yields a token: tokens per second are the speedup.
    return tossed.factor * simulate(scenario, settings).summary.tokens_per_second
