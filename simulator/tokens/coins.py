"""Coin tosses: outcomes that are drawn instead of recorded.

`coin` is the world of the papers' laws.  `histogram` is nearer to a real pair, and all that an engine's
metrics tell: acceptance and hit curves by the position within the speculation.  What a position looks like
depends on its depth alone, so that rounds stay independent.  Luck is keyed by request, the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.laws.ssd import PowerLaw, power_law_hit
from policies.registry import SettingError
from policies.sampling import FloatArray, keyed_generator
from policies.values import BoolArray, IntArray, Request
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER, Outcomes, accepted_runs, shaped_runs

DEEPEST = 64
"""Fan-outs that a power law's curve is tabulated for."""


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
    check_power_law(exponent, scale)
    uniform, missed, ends = _luck(requests, length, seed)
    # P(need > F) = scale * F**-exponent
    with np.errstate(over="ignore", divide="ignore"):
        least = np.ceil((scale / np.maximum(missed, 1e-300)) ** (1.0 / exponent))
    needed: IntArray = np.clip(least, 1.0, float(NEVER)).astype(np.int64)
    return TokenModel.of(
        [Request(i, prompt_length, length) for i in range(requests)],
        [length] * requests,
        run=accepted_runs(uniform < acceptance, ends),
        need_rejected=needed,
        need_free=needed,
        max_fanout=NEVER,
        power_law=PowerLaw(exponent, scale, r_squared=1.0, worst=0.0, fanouts=0),
    )


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
    """A token model of acceptance and hits by position.

    Args:
        acceptance: Probability that the token at depth 0, 1, ... of a round is accepted given that all
            before it were; deeper tokens (a longer lookahead, PEARL's next block) are like the last.
        rejected: Hit probability of F = 1, 2, ... guesses where a token was rejected after k = 0, 1, ...
            accepted ones; the last curve holds for larger k, too.
        free: The same where nothing was rejected: all accepted, or a plain decode.
        requests: As `coin`, like the other parameters.
        length: Tokens emitted by each.
        prompt_length: Prompt tokens of each.
        seed: Keys the luck.

    Raises:
        SettingError: No position, a probability outside 0..1, or a hit curve that falls.
    """
    curves = [*rejected, free]
    _check(acceptance, curves)
    uniform, missed, ends = _luck(requests, length, seed)
    run = _runs([uniform < level for level in acceptance], ends)
    need = np.stack([_need(missed, curve) for curve in rejected])
    return TokenModel.of(
        [Request(i, prompt_length, length) for i in range(requests)],
        [length] * requests,
        run=run,
        need_rejected=need[0],
        need_free=_need(missed, free),
        max_fanout=min(map(len, curves)),
        by_depth=Outcomes(run, need, np.arange(len(need))),
    )


def mixed(acceptance: Sequence[float], *, exponent: float, scale: float = 1.0, **shape: int) -> TokenModel:
    """`histogram` with the hit curve of `coin`; `shape` are the other arguments of both.

    Raises:
        SettingError: As `coin`.
    """
    check_power_law(exponent, scale)
    curve = power_law_curve(exponent, scale)
    return histogram(acceptance, rejected=[curve], free=curve, **shape)


def conditional_acceptance(joint: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptance at positions 0, 1, ... from the joint one, the engines' per-position metric:
    the share of rounds in which the tokens at positions 0 ... k were all accepted.

    Raises:
        SettingError: Shares that rise or leave 0..1.
    """
    before = (1.0, *joint[:-1])
    if any(not 0.0 <= here <= last for here, last in zip(joint, before, strict=True)):
        raise SettingError(f"joint acceptance must fall from at most 1 to at least 0, got {list(joint)}")
    return tuple(here / last if last > 0.0 else 0.0 for here, last in zip(joint, before, strict=True))


def check_power_law(exponent: float, scale: float) -> None:
    """Refuse a hit curve that is none.

    Raises:
        SettingError: It is outside its domain.
    """
    if exponent <= 0.0 or not 0.0 <= scale <= 1.0:
        raise SettingError(
            f"the hit curve needs an exponent above 0 and a scale in 0..1, got {exponent:g}, {scale:g}"
        )


def power_law_curve(exponent: float, scale: float = 1.0) -> tuple[float, ...]:
    """Hit probability of F = 1 ... `DEEPEST` guesses by the papers' power law (`ssd.def11`)."""
    return tuple(power_law_hit(range(1, DEEPEST + 1), exponent, scale).tolist())


def _luck(requests: int, length: int, seed: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """[n] uniforms that decide acceptances, [n] those that decide hits, and [n] where each request ends."""
    accept, hit = (
        np.concatenate([keyed_generator(seed, stream, r).random(length) for r in range(requests)])
        for stream in ("coin-acceptance", "coin-hit")
    )
    return accept, hit, np.repeat(np.arange(1, requests + 1) * length, length)


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
    if any(list(curve) != sorted(curve) for curve in curves):
        raise SettingError("more guesses cannot hit less: a hit curve falls")
