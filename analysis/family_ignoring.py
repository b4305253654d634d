"""The naive baseline of replaying what tokens say: the same costs, and coins in place of the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from policies.registry import Settings, configure, find_policy
from simulator.law import assume
from simulator.run import Scenario, simulate
from simulator.tokens import coin

REQUESTS, LENGTH = 40, 200
"""Coin tosses that stand for ignored content: enough of them for two per cent."""
WITHOUT: Mapping[str, str] = {"double": "pearl", "rasd": "tree", "rest": "ar", "pld": "ar"}
"""What is left of a policy whose retrieval finds nothing."""


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
    speed = simulate(tossed, without_retrieval(settings)).summary.tokens_per_second
    return speed / simulate(tossed, plain).summary.tokens_per_second


def without_retrieval(settings: Settings) -> Settings:
    """The policy that is left where nothing is ever retrieved, and no draft is ever confident.

    A tree grown by confidence becomes one of a fixed shape: as deep, as wide at its root, chains below it.
    """
    name = WITHOUT.get(settings.policy, settings.policy)
    grown = name == "tree" and (settings.policy != "tree" or settings.option("tree_plan") == "dynamic")
    if name == settings.policy and not grown:
        return settings
    kept = {knob: value for knob, value in settings.knobs.items() if knob in find_policy(name).knobs}
    if grown:
        depth, topk = settings.option("tree_depth"), settings.option("tree_topk")
        kept = {"tree_widths": (topk, *[1] * (depth - 1))}
    return configure(name, temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed, **kept)
