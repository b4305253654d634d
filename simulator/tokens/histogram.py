"""Histograms: acceptance and hit curves that depend on the position within the speculation.

Nearer to a real pair than coins, and all that an engine's metrics tell: conditional acceptance at each
position (`conditional_acceptance` makes it from the engines' joint one) and hit curves by the number of
tokens accepted.  What a position looks like depends on its depth alone, so that rounds stay independent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.laws.ssd import power_law_hit
from policies.registry import SettingError
from policies.sampling import FloatArray, keyed_generator
from policies.values import BoolArray, IntArray, Request
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER, Outcomes, accepted_runs, index_requests, shaped_runs

DEEPEST = 64
"""Fan-outs that a power law's curve is tabulated for."""


def conditional_acceptance(joint: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptance at positions 0, 1, ... from the joint one, the engines' per-position metric.

    Args:
        joint: Share of rounds in which the tokens at positions 0 ... k were all accepted.

    Raises:
        SettingError: Shares that rise or leave 0..1.
    """
    before = (1.0, *joint[:-1])
    if any(not 0.0 <= here <= last for here, last in zip(joint, before, strict=True)):
        raise SettingError(f"joint acceptance must fall from at most 1 to at least 0, got {list(joint)}")
    return tuple(here / last if last > 0.0 else 0.0 for here, last in zip(joint, before, strict=True))


def power_law_curve(exponent: float, scale: float = 1.0) -> tuple[float, ...]:
    """Hit probability of F = 1 ... `DEEPEST` guesses by the papers' power law (`ssd.def11`)."""
    return tuple(power_law_hit(range(1, DEEPEST + 1), exponent, scale).tolist())


def histogram(
    acceptance: Sequence[float],
    *,
    rejected: Sequence[Sequence[float]],
    free: Sequence[float],
    requests: int,
    length: int,
    prompt_length: int,
    seed: int,
) -> TokenModel:
    """A token model of acceptance and hits by position; its luck is that of `coin` at the same seed.

    Args:
        acceptance: Probability that the token at depth 0, 1, ... of a round is accepted given that all
            before it were; deeper tokens (a longer lookahead, PEARL's next block) are like the last.
        rejected: Hit probability of F = 1, 2, ... guesses where a token was rejected after k = 0, 1, ...
            accepted ones; the last curve holds for larger k, too.
        free: The same where nothing was rejected: all accepted, or a plain decode.
        requests: Number of requests, at least 1.
        length: Tokens emitted by each.
        prompt_length: Prompt tokens of each.
        seed: Keys the luck, by request.

    Raises:
        SettingError: No position, a probability outside 0..1, or a hit curve that falls.
    """
    _check(acceptance, [*rejected, free])
    luck = [keyed_generator(seed, "coin-acceptance", r).random(length) for r in range(requests)]
    missed = np.concatenate([keyed_generator(seed, "coin-hit", r).random(length) for r in range(requests)])
    uniform, ends = np.concatenate(luck), np.repeat(np.arange(1, requests + 1) * length, length)
    run = _runs([uniform < level for level in acceptance], ends)
    need = np.stack([_need(missed, curve) for curve in rejected])
    starts, lengths = index_requests(list(range(requests)), [length] * requests)
    return TokenModel(
        starts=starts,
        lengths=lengths,
        run=run,
        need_rejected=need[0],
        need_free=_need(missed, free),
        tokens=None,
        ranked=None,
        max_fanout=min(len(curve) for curve in [*rejected, free]),
        vocabulary=0,
        requests=tuple(Request(i, prompt_length, length) for i in range(requests)),
        by_depth=Outcomes(run, need, np.arange(len(need))),
    )


def _runs(accepts: list[BoolArray], ends: IntArray) -> IntArray:
    """[n] accepted run from each position on, the token at each depth decided by its own array."""
    depth = len(accepts)
    first = shaped_runs(tuple(accepts), np.arange(depth), ends)
    at = np.arange(len(ends)) + depth
    further = accepted_runs(accepts[-1], ends)[np.minimum(at, len(ends) - 1)]
    runs: IntArray = first + np.where((first == depth) & (at < ends), further, 0)
    return runs


def _need(missed: FloatArray, curve: Sequence[float]) -> IntArray:
    """[n] smallest F with a hit, which F guesses have where `missed` >= 1 - curve[F - 1]."""
    # The curve rises, so that the chances to miss fall; searched from behind.
    chance = 1.0 - np.asarray(curve, dtype=np.float64)
    enough = np.searchsorted(chance[::-1], missed, side="right")
    need: IntArray = np.where(enough > 0, len(curve) - enough + 1, NEVER).astype(np.int64)
    return need


def _check(acceptance: Sequence[float], curves: Sequence[Sequence[float]]) -> None:
    if not acceptance or len(curves) < 2 or not all(curves):
        raise SettingError("a histogram needs the acceptance of a position, and a hit curve of each kind")
    for values in (acceptance, *curves):
        if not all(0.0 <= value <= 1.0 for value in values):
            raise SettingError(f"probabilities must lie in 0..1, got {list(values)[:8]}")
    for curve in curves:
        if list(curve) != sorted(curve):
            raise SettingError("more guesses cannot hit less: a hit curve falls")
