"""Saguaro sampling: draw less often what is cached, so that the residual is what is cached.

`ssd.def13`, `ssd.def14`, `ssd.thm15`, `ssd.thm19`.  p is the target's law, q the draft's, both [V].  A
drafted token is accepted with probability min(1, p/q); after a rejection the target draws from the
*residual* norm(max(p - q, 0)), and the round hits if that token is cached.  Saguaro multiplies the
draft's F likeliest tokens, which are the ones cached, by C.

Two caches, which behave oppositely under C, by name:

- `fixed`: the F likeliest tokens under q, whatever was rejected (proof of `ssd.thm15`).  The hit rate
  never falls as C falls.
- `without_rejected`: the F likeliest of those that were not rejected, since a rejected token cannot
  come back (`ssd.thm19`, and what a sensible cache does).  Here the hit rate may rise *or fall* with C.

Nor does the acceptance always fall with C, as the paper's section 4.2.3 has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from policies.laws.candidates import token_law
from policies.laws.ssd import FloatArray, _check_probability

Cached: TypeAlias = Literal["without_rejected", "fixed"]
CACHED: tuple[Cached, ...] = get_args(Cached)
Law: TypeAlias = FloatArray | Sequence[float]


def top_tokens(q: Law, count: int) -> NDArray[np.int64]:
    """Ids of the `count` likeliest tokens, likeliest first; of equally likely ones the lower id.

    All of the vocabulary if `count` exceeds it.

    Raises:
        ValueError: `q` is no law, or `count` below 0.
    """
    if count < 0:
        raise ValueError(f"the number of top tokens must be at least 0, got {count}")
    return np.argsort(-token_law("q", q), kind="stable")[:count].astype(np.int64)


def rescale(q: Law, top: int, scale: float) -> FloatArray:
    """[V] Saguaro's law: q with its `top` likeliest tokens multiplied by `scale`, normalised (`ssd.def14`).

    Where C = 0 leaves nothing to draw, the definition is 0/0 and this an error.  The engine has to draw
    something: both worlds keep q there (`calibrate.live.choice.rescale`, `simulator.tokens.chances`).

    Args:
        q: [V] the draft's law.
        top: F; 0 leaves q as it is.
        scale: C in 0..1; 1 leaves q as it is, 0 never draws the top tokens.

    Raises:
        ValueError: Outside the domain; C = 0 where all of the mass is on the top tokens (0/0).
    """
    _check_probability(scale=scale)
    law = token_law("q", q)
    law[top_tokens(law, top)] *= scale
    total = float(law.sum())
    if total <= 0.0:
        raise ValueError(f"C = {scale:g} leaves nothing to draw: all mass is on the top {top} tokens")
    return law / total


def acceptance(p: Law, q: Law) -> float:
    """Probability that a token drawn from q is accepted: sum min(p, q) = 1 - |p - q|_1 / 2 (`ssd.thm1`).

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    target, draft = _pair(p, q)
    return min(1.0, float(np.minimum(target, draft).sum()))


def acceptance_printed(p: Law, q: Law) -> float:
    """Acceptance as A.3.1 prints it, 1 - |p - q|_1: without the half that `ssd.thm1` has.

    Off by |p - q|_1 / 2, and negative for laws with little in common; the paper's own numbers have the half.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    target, draft = _pair(p, q)
    return 1.0 - float(np.abs(target - draft).sum())


def emitted_law(p: Law, q: Law) -> FloatArray:
    """[V] law of the token that a position emits: min(p, q) + (1 - sum min(p, q)) residual  (`ssd.sd`).

    It is p, which is why speculative decoding loses nothing.  Where p = q nothing is rejected: the residual
    is 0/0, but of probability 0.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    target, draft = _pair(p, q)
    accepted = np.minimum(target, draft)
    over = np.maximum(target - draft, 0.0)
    total = float(over.sum())
    rejected = 1.0 - float(accepted.sum())
    return np.asarray(accepted + (rejected * over / total if total > 0.0 else 0.0), dtype=np.float64)


def residual(p: Law, q: Law) -> FloatArray:
    """[V] law of the target's token after a rejection: norm(max(p - q, 0))  (`ssd.sd`).

    Raises:
        ValueError: Not two laws over one vocabulary, or p = q, by which nothing is ever rejected.
    """
    target, draft = _pair(p, q)
    over = np.maximum(target - draft, 0.0)
    total = float(over.sum())
    if total <= 0.0:
        raise ValueError("p and q are the same law: nothing is rejected, so there is no residual")
    return over / total


def hit_given_rejection_fixed(p: Law, q: Law, fanout: int, scale: float) -> float:
    """P(hit | rejection) with the `fixed` cache: in / (in + out), nonincreasing in C (`ssd.thm15`).

    in and out are the residual's mass on and off the `fanout` likeliest tokens of q.  Where nothing is
    ever rejected it is 1 by convention.

    Args:
        p: [V] the target's law.
        q: [V] the draft's law before rescaling.
        fanout: F, cached tokens, which are also the tokens rescaled.
        scale: C.

    Raises:
        ValueError: Outside the domain.
    """
    return _hit_given_rejection(p, q, fanout, scale, makes_room=False)


def hit_given_rejection(p: Law, q: Law, fanout: int, scale: float) -> float:
    """P(hit | rejection) with the `without_rejected` cache; may rise or fall with C (`ssd.thm19`).

    in/s + (R_S/s) (u(g)/s): u = max(p - q', 0) with mass s, of which `in` lies on S, the F likeliest
    tokens of q; R_S the mass of max(q' - p, 0) on S, q' the rescaled draft.  A rejected token of S,
    probability R_S/s and independent of the target's token, makes room for g, the draft's next choice.
    Where nothing is ever rejected it is 1 by convention.

    Args:
        p: [V] the target's law.
        q: [V] the draft's law before rescaling.
        fanout: F, cached tokens, and the number of tokens rescaled.
        scale: C.

    Raises:
        ValueError: Outside the domain.
    """
    return _hit_given_rejection(p, q, fanout, scale, makes_room=True)


def _hit_given_rejection(p: Law, q: Law, fanout: int, scale: float, *, makes_room: bool) -> float:
    """P(hit | rejection); whether a rejected token makes room for the draft's next choice."""
    under, over, total = _masses(p, q, fanout, scale)
    if total == 0.0:
        return 1.0
    ranked = top_tokens(q, fanout + 1)
    inside, following = ranked[:fanout], ranked[fanout:]
    held = float(under[inside].sum())
    if makes_room:
        held += float(over[inside].sum()) / float(over.sum()) * float(under[following].sum())
    return min(1.0, held / total)


def round_weights(p: Law, q: Law, fanout: Sequence[int], scale: float) -> FloatArray:
    """[K + 1] probability of k accepted tokens where position k is drafted with its own F_k.

    The last fan-out belongs to the bonus token after K accepted ones, where nothing is drafted.

    Args:
        p: [V] the target's law, the same at every position.
        q: [V] the draft's law before rescaling.
        fanout: F_0 ... F_K.
        scale: C.

    Raises:
        ValueError: Outside the domain.
    """
    if len(fanout) == 0:
        raise ValueError("needs a fan-out for at least one position")
    accepted = np.array([acceptance(p, rescale(q, f, scale)) for f in fanout[:-1]])
    reached = np.append(1.0, np.cumprod(accepted))
    return np.asarray(reached * np.append(1.0 - accepted, 1.0), dtype=np.float64)


def hit_rate_sampled(
    p: Law, q: Law, fanout: Sequence[int], scale: float, *, cached: Cached = "without_rejected"
) -> float:
    """p_hit,p with sampled tokens: sum_(k<K) w_k h(F_k) + w_K p(F_K likeliest of q)  (`ssd.thm19`).

    iid positions: one pair of laws at all of them.  With all K tokens accepted (or K = 0) the target
    draws from p itself, and no token is left out of the cache.

    Args:
        p: [V] the target's law.
        q: [V] the draft's law before rescaling.
        fanout: F_0 ... F_K; (2,) * 6 is K = 5 with two guesses at each position.
        scale: C.
        cached: Which tokens are cached after a rejection.

    Raises:
        ValueError: Outside the domain.
    """
    if cached not in CACHED:
        raise ValueError(f"cached must be one of {', '.join(CACHED)}, got {cached!r}")
    weights = round_weights(p, q, fanout, scale)
    hit = hit_given_rejection if cached == "without_rejected" else hit_given_rejection_fixed
    after = {f: hit(p, q, f, scale) for f in set(fanout[:-1])}
    free = float(token_law("p", p)[top_tokens(q, fanout[-1])].sum())
    return float((weights * np.array([*(after[f] for f in fanout[:-1]), free])).sum())


def saguaro_exact(
    p: Sequence[Fraction], q: Sequence[Fraction], fanout: int, lookahead: int, scale: Fraction
) -> tuple[Fraction, Fraction, Fraction]:
    """Acceptance, P(hit | rejection) and p_hit,p in rational arithmetic (`ssd.thm19`), by enumeration.

    The `without_rejected` cache, one fan-out at all positions.  Every pair of a rejected token and the
    target's next one is gone through, so that it shares no formula with `hit_given_rejection`.

    Args:
        p: [V] the target's law, summing to exactly 1.
        q: [V] the draft's law before rescaling, the same.
        fanout: F.
        lookahead: K.
        scale: C.

    Raises:
        ValueError: Sums that are not 1, or C = 0 with all mass on the top F.
    """
    if sum(p) != 1 or sum(q) != 1 or len(p) != len(q):
        raise ValueError("p and q must be laws over one vocabulary that sum to exactly 1")
    ranked = sorted(range(len(q)), key=lambda token: (-q[token], token))
    scaled = [value * (scale if token in ranked[:fanout] else 1) for token, value in enumerate(q)]
    if sum(scaled) == 0:
        raise ValueError(f"C = {scale} leaves nothing to draw: all mass is on the top {fanout} tokens")
    drawn = [value / sum(scaled) for value in scaled]
    accepted = sum((min(a, b) for a, b in zip(p, drawn, strict=True)), Fraction(0))
    missing = 1 - accepted
    hit = Fraction(1)
    if missing:
        hit = Fraction(0)
        for rejected, share in enumerate(max(b - a, Fraction(0)) for a, b in zip(p, drawn, strict=True)):
            cache = [token for token in ranked if token != rejected][:fanout]
            under = sum((max(p[token] - drawn[token], Fraction(0)) for token in cache), Fraction(0))
            hit += share / missing * under / missing
    full = accepted**lookahead
    free = sum((p[token] for token in ranked[:fanout]), Fraction(0))
    return accepted, hit, full * free + (1 - full) * hit


def _masses(p: Law, q: Law, fanout: int, scale: float) -> tuple[FloatArray, FloatArray, float]:
    """max(p - q', 0) and max(q' - p, 0), both [V], and the mass of the first."""
    target, _ = _pair(p, q)
    drawn = rescale(q, fanout, scale)
    under, over = np.maximum(target - drawn, 0.0), np.maximum(drawn - target, 0.0)
    # Both have the same mass but for rounding; a p that equals q' up to rounding rejects nothing.
    total = float(under.sum())
    return under, over, total if min(total, float(over.sum())) > 1e-15 else 0.0


def _pair(p: Law, q: Law) -> tuple[FloatArray, FloatArray]:
    target, draft = token_law("p", p), token_law("q", q)
    if target.shape != draft.shape:
        raise ValueError(f"p and q have different vocabularies: {len(target)} and {len(draft)} tokens")
    return target, draft
