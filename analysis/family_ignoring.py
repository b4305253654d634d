"""The naive baseline of replaying what tokens say: the same costs, and coins in place of the content."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.registry import Settings, configure
from simulator.law import assume
from simulator.run import Scenario, simulate
from simulator.tokens import coin

REQUESTS, LENGTH = 40, 200
"""Coin tosses that stand for ignored content: enough of them for two per cent."""


def content_ignored(scenario: Scenario, settings: Settings) -> float:
    """Speedup by the same costs and iid coins: the naive baseline of replaying what the tokens say.

    The coins have the mean acceptance and the hit curve of the calibration's recording.  Retrieval, of which
    coins know nothing, finds nothing: `double` is PEARL, `rasd` its drafted tree, `rest` and `pld` are plain
    decoding.

    Args:
        scenario: The profile, and the calibration's recording at the setting's temperature.
        settings: What to predict.
    """
    told = assume(scenario, settings)
    tokens = coin(
        told.acceptance,
        exponent=max(told.exponent or 1.0, 1e-3),
        scale=told.scale,
        requests=REQUESTS,
        length=LENGTH,
        prompt_length=round(float(np.mean([r.prompt_length for r in scenario.tokens.requests]))),
        seed=scenario.seed,
    )
    tossed = replace(scenario, tokens=tokens, decisions=None)
    plain = configure("ar", temperature=settings.temperature, top_p=settings.top_p)
    rest = replace(settings, config=settings.config.content_ignored)
    speed = simulate(tossed, rest).summary.tokens_per_second
    return speed / simulate(tossed, plain).summary.tokens_per_second
