"""Coin tosses: the world of the papers' laws."""

from __future__ import annotations

import numpy as np

from policies.laws.ssd import PowerLaw
from policies.registry import SettingError
from policies.sampling import FloatArray, keyed_generator
from policies.values import IntArray, Request
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER, accepted_runs, index_requests


def coin(
    acceptance: float,
    *,
    exponent: float,
    scale: float = 1.0,
    requests: int,
    length: int,
    prompt_length: int,
    seed: int,
) -> TokenModel:
    """The papers' world: iid acceptance and hit probability `1 - scale * F**-exponent`.

    The rates are those of the policy at hand, at any temperature: with greedy as with sampled drafts,
    whichever set of outcomes is cached.  Saguaro's C, whose very point is to trade one rate for the other,
    is refused, since coins have no distributions to rescale.

    Args:
        acceptance: Probability that a drafted token is accepted given that all before it were, 0 to 1.
        exponent: r of the power law (SSD, definition 11), above 0.
        scale: c of the power law; 1 in the paper.
        requests: Number of requests, at least 1.
        length: Tokens emitted by each.
        prompt_length: Prompt tokens of each.
        seed: Keys the coins, by request.

    Raises:
        SettingError: A parameter outside its domain.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise SettingError(f"acceptance must be between 0 and 1, got {acceptance:g}")
    if exponent <= 0.0 or not 0.0 <= scale <= 1.0:
        raise SettingError(
            f"the hit curve needs an exponent above 0 and a scale in 0..1, got {exponent:g}, {scale:g}"
        )
    accept, miss = [], []
    for request in range(requests):
        accept.append(keyed_generator(seed, "coin-acceptance", request).random(length) < acceptance)
        miss.append(keyed_generator(seed, "coin-hit", request).random(length))
    needed = _power_law_need(np.concatenate(miss), exponent, scale)
    starts, lengths = index_requests(list(range(requests)), [length] * requests)
    return TokenModel(
        starts=starts,
        lengths=lengths,
        run=np.concatenate([accepted_runs(a) for a in accept]),
        need_rejected=needed,
        need_free=needed,
        tokens=None,
        ranked=None,
        max_fanout=NEVER,
        vocabulary=0,
        requests=tuple(Request(i, prompt_length, length) for i in range(requests)),
        power_law=PowerLaw(exponent, scale, r_squared=1.0, worst=0.0, fanouts=0),
    )


def _power_law_need(uniform: FloatArray, exponent: float, scale: float) -> IntArray:
    """Smallest F >= 1 with hit: P(need > F) = scale * F**-exponent."""
    with np.errstate(over="ignore", divide="ignore"):
        least = np.ceil((scale / np.maximum(uniform, 1e-300)) ** (1.0 / exponent))
    need: IntArray = np.clip(least, 1.0, float(NEVER)).astype(np.int64)
    return need
