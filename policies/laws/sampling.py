"""Drafting, accepting and rejecting sampled tokens; several candidates for one position; Saguaro sampling.

`target_probs` is p and `draft_probs` q, both [V].  A drafted token is accepted with probability min(1, p/q);
after a rejection the target draws from the *residual* norm(max(p - q, 0)), and the output then has exactly
the target's distribution (`ssd.sd`).  Two distributions that are not over one vocabulary, or do not sum to 1,
are a ValueError.

Several *candidates* are tried in turn (`duo.verify`, `rasd.verify`): one that was drawn from a distribution
sigma is accepted with min(1, p/sigma), and after a failure p becomes the residual, by which the next one is
judged.  A candidate that was chosen and not drawn (the top token of a draft, a retrieved one) has the one-hot
sigma, by which it is accepted with p.

Saguaro (`ssd.def13` to `ssd.thm19`) multiplies the draft's F likeliest tokens, which are the ones cached, by
C, so that the residual is what is cached.  A round hits if the target's token is in the cache; two of them,
which behave oppositely under C, by name:

- `fixed`: the F likeliest tokens under q, whatever was rejected (proof of `ssd.thm15`).  The hit rate
  never falls as C falls.
- `without_rejected`: the F likeliest of those that were not rejected, since a rejected token cannot
  come back (`ssd.thm19`, and what a sensible cache does).  Here the hit rate may rise *or fall* with C.

Nor does the acceptance always fall with C, as the paper's section 4.2.3 has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policies.laws.law import FloatArray, law

Cached: TypeAlias = Literal["without_rejected", "fixed"]
CACHED: tuple[Cached, ...] = get_args(Cached)
DrawnFrom: TypeAlias = Sequence[ArrayLike | None]


def token_probs(name: str, values: ArrayLike) -> FloatArray:
    """[V] distribution over the vocabulary, normalised to the last bit.

    Raises:
        ValueError: Not [V], negative, or no sum of 1.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be [V] probabilities, got shape {array.shape}")
    if not ((array >= 0.0).all() and abs(float(array.sum()) - 1.0) <= 1e-6):  # false for NaN too
        raise ValueError(f"{name} must be probabilities that sum to 1, got sum {array.sum():g}")
    return np.asarray(array / array.sum(), dtype=np.float64)


def pair(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Two distributions over one vocabulary, checked."""
    p, q = token_probs("target_probs", target_probs), token_probs("draft_probs", draft_probs)
    if p.shape != q.shape:
        raise ValueError(
            f"target_probs and draft_probs have different vocabularies: {len(p)}, {len(q)} tokens"
        )
    return p, q


def one_hot(token: int, vocabulary: int) -> FloatArray:
    """[V] distribution of a candidate that was chosen; an error for a token outside the vocabulary."""
    if not 0 <= token < vocabulary:
        raise ValueError(f"token {token} outside the vocabulary of {vocabulary}")
    return np.asarray(np.eye(1, vocabulary, token)[0], dtype=np.float64)


@law(top="at least 0")
def top_tokens(draft_probs: ArrayLike, top: int) -> NDArray[np.int64]:
    """Ids of the `top` likeliest tokens, likeliest first; of equally likely ones the lower id.

    All of the vocabulary if `top` exceeds it.
    """
    return np.argsort(-token_probs("draft_probs", draft_probs), kind="stable")[:top].astype(np.int64)


def draw(probs: ArrayLike, uniform: float) -> int:
    """Token of a distribution by inverting its cumulated probabilities; never one of probability 0.

    Args:
        probs: [V].
        uniform: Coin in [0, 1).

    Raises:
        ValueError: A coin outside [0, 1).
    """
    if not 0.0 <= uniform < 1.0:
        raise ValueError(f"a coin lies in [0, 1), got {uniform:g}")
    cumulated = np.cumsum(np.asarray(probs, dtype=np.float64))
    total = float(cumulated[-1])
    below = min(uniform * total, math.nextafter(total, 0.0))  # the product may round up to the total
    return int(np.searchsorted(cumulated, below, side="right"))


# One drafted token


def acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Probability that a token drawn from q is accepted: sum min(p, q) = 1 - |p - q|_1 / 2 (`ssd.thm1`)."""
    p, q = pair(target_probs, draft_probs)
    return min(1.0, float(np.minimum(p, q).sum()))


def acceptance_printed(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Acceptance as A.3.1 prints it, 1 - |p - q|_1: without the half that `ssd.thm1` has.

    Off by |p - q|_1 / 2, and negative for distributions with little in common; the paper's own numbers have
    the half.
    """
    p, q = pair(target_probs, draft_probs)
    return 1.0 - float(np.abs(p - q).sum())


def accept_probability(target_probs: ArrayLike, draft_probs: ArrayLike) -> FloatArray:
    """[V] probability that a token is accepted once it was drawn: min(1, p/q)  (`rasd.accept`, `ssd.sd`).

    1 where q is 0: such a token is never drawn.
    """
    p, q = pair(target_probs, draft_probs)
    return np.where(q > 0.0, np.minimum(1.0, p / np.where(q > 0.0, q, 1.0)), 1.0)


def reject(target_probs: ArrayLike, draft_probs: ArrayLike) -> FloatArray:
    """[V] target's distribution after a candidate drawn from `draft_probs` failed: norm(max(p - q, 0)).

    p itself where p <= q everywhere (p = q): nothing is ever rejected there, and it is never used.
    """
    p, q = pair(target_probs, draft_probs)
    over = np.maximum(p - q, 0.0)
    total = float(over.sum())
    return over / total if total > 0.0 else p


def residual(target_probs: ArrayLike, draft_probs: ArrayLike) -> FloatArray:
    """[V] distribution of the target's token after a rejection: norm(max(p - q, 0))  (`ssd.sd`).

    As `reject`, but an error for p = q, by which nothing is ever rejected.
    """
    p, q = pair(target_probs, draft_probs)
    if not (p > q).any():
        raise ValueError("p and q are the same distribution: nothing is rejected, so there is no residual")
    return reject(p, q)


def emitted_probs(target_probs: ArrayLike, draft_probs: ArrayLike) -> FloatArray:
    """[V] probabilities of what a position emits: min(p, q) + (1 - sum min(p, q)) residual  (`ssd.sd`).

    It is p, which is why speculative decoding loses nothing.  Where p = q nothing is rejected: the residual
    is 0/0, but of probability 0.
    """
    p, q = pair(target_probs, draft_probs)
    accepted = np.minimum(p, q)
    return np.asarray(accepted + (1.0 - accepted.sum()) * reject(p, q), dtype=np.float64)


# Several candidates for one position


def verify_candidates(
    target_probs: ArrayLike,
    candidates: Sequence[int],
    uniforms: Sequence[float],
    drawn_from: DrawnFrom | None = None,
) -> tuple[int, int | None]:
    """The token emitted and the number of the candidate it is, None if none was accepted.

    Args:
        target_probs: [V] p.
        candidates: Tokens tried, in order.
        uniforms: [len(candidates) + 1] coins in [0, 1): one per candidate, the last for the residual.
        drawn_from: Distribution that each candidate was drawn from; None, for all or for one, if chosen.

    Raises:
        ValueError: Shapes that do not fit, or a token that cannot have been drawn from its distribution.
    """
    p = token_probs("target_probs", target_probs)
    if len(uniforms) != len(candidates) + 1:
        raise ValueError(f"{len(candidates)} candidates need one coin more, got {len(uniforms)}")
    for number, (token, sigma) in enumerate(_sigmas(candidates, drawn_from, len(p))):
        if uniforms[number] * sigma[token] < p[token]:
            return token, number
        p = reject(p, sigma)
    return draw(p, uniforms[-1]), None


def candidates_probs(
    target_probs: ArrayLike, first_tokens: Sequence[int], drawn_from: DrawnFrom | None = None
) -> FloatArray:
    """[V] exact distribution of what `verify_candidates` emits, for given candidates (`duo.verify`).

    With chosen candidates, as DuoDecoding's first tokens are, it is the target's distribution; with drawn
    ones it is so on average over their draws.  Arguments and errors are those of `verify_candidates`.
    """
    p = token_probs("target_probs", target_probs)
    emitted, reached = np.zeros_like(p), 1.0
    for token, sigma in _sigmas(first_tokens, drawn_from, len(p)):
        accepted = float(accept_probability(p, sigma)[token])
        emitted[token] += reached * accepted
        reached *= 1.0 - accepted
        p = reject(p, sigma)
    return np.asarray(emitted + reached * p, dtype=np.float64)


def candidates_probs_printed(
    target_probs: ArrayLike, draft_probs: ArrayLike, first_tokens: Sequence[int]
) -> FloatArray:
    """[V] what is emitted with min(1, p/q) for each candidate and one residual at the end (`duo.verify`).

    The literal reading of DuoDecoding: every candidate, distinct and the likeliest of q, is judged like a
    drawn one and p is not updated in between.  Not the target's distribution, e.g. for p = q it always emits
    the first candidate.
    """
    p, q = pair(target_probs, draft_probs)
    accept = accept_probability(p, q)
    emitted, reached = np.zeros_like(p), 1.0
    for token in first_tokens:
        one_hot(token, len(p))  # for its check
        emitted[token] += reached * accept[token]
        reached *= 1.0 - float(accept[token])
    return np.asarray(emitted + reached * reject(p, q), dtype=np.float64)


def acceptance_of_candidates(
    target_probs: ArrayLike, candidates: Sequence[int], drawn_from: DrawnFrom | None = None
) -> float:
    """Probability that one of the given candidates is accepted; of chosen ones, their mass under p."""
    p = token_probs("target_probs", target_probs)
    failed = 1.0
    for token, sigma in _sigmas(candidates, drawn_from, len(p)):
        failed *= 1.0 - float(accept_probability(p, sigma)[token])
        p = reject(p, sigma)
    return 1.0 - failed


def _sigmas(
    candidates: Sequence[int], drawn_from: DrawnFrom | None, vocabulary: int
) -> list[tuple[int, FloatArray]]:
    """Each candidate with the distribution it came from."""
    drawn: DrawnFrom = [None] * len(candidates) if drawn_from is None else drawn_from
    if len(drawn) != len(candidates):
        raise ValueError(f"{len(candidates)} candidates need as many distributions, got {len(drawn)}")
    pairs = []
    for token, sampled in zip(candidates, drawn, strict=True):
        chosen = one_hot(int(token), vocabulary)
        sigma = chosen if sampled is None else token_probs("draft_probs", sampled)
        if len(sigma) != vocabulary or sigma[int(token)] <= 0.0:
            raise ValueError(f"token {token} cannot have been drawn from its distribution")
        pairs.append((int(token), sigma))
    return pairs


# Saguaro sampling


@law()
def rescale(draft_probs: ArrayLike, top: int, saguaro_scale: float) -> FloatArray:
    """[V] Saguaro's q: its `top` likeliest tokens multiplied by C, normalised (`ssd.def14`).

    F = 0 and C = 1 leave q as it is; C = 0 never draws the top tokens.  Where that leaves nothing to draw,
    the definition is 0/0 and this an error.  The engine has to draw something: both worlds keep q there
    (`rescale` of the live engine, `simulator.tokens.sampled`).
    """
    q = token_probs("draft_probs", draft_probs)
    q[top_tokens(q, top)] *= saguaro_scale
    total = float(q.sum())
    if total <= 0.0:
        raise ValueError(f"C = {saguaro_scale:g} leaves nothing to draw: all mass is on the top {top} tokens")
    return q / total


def hit_given_rejection_fixed(
    target_probs: ArrayLike, draft_probs: ArrayLike, top: int, saguaro_scale: float
) -> float:
    """P(hit | rejection) with the `fixed` cache: in / (in + out), nonincreasing in C (`ssd.thm15`).

    in and out are the residual's mass on and off the F likeliest tokens of q, which are also the tokens
    rescaled.  Where nothing is ever rejected it is 1 by convention.
    """
    return _hit_given_rejection(target_probs, draft_probs, top, saguaro_scale, makes_room=False)


def hit_given_rejection(
    target_probs: ArrayLike, draft_probs: ArrayLike, top: int, saguaro_scale: float
) -> float:
    """P(hit | rejection) with the `without_rejected` cache; may rise or fall with C (`ssd.thm19`).

    in/s + (R_S/s) (u(g)/s): u = max(p - q', 0) with mass s, of which `in` lies on S, the F likeliest
    tokens of q; R_S the mass of max(q' - p, 0) on S, q' the rescaled draft.  A rejected token of S,
    probability R_S/s and independent of the target's token, makes room for g, the draft's next choice.
    Where nothing is ever rejected it is 1 by convention.
    """
    return _hit_given_rejection(target_probs, draft_probs, top, saguaro_scale, makes_room=True)


def _hit_given_rejection(
    target_probs: ArrayLike, draft_probs: ArrayLike, top: int, saguaro_scale: float, *, makes_room: bool
) -> float:
    """P(hit | rejection); whether a rejected token makes room for the draft's next choice."""
    p, q = pair(target_probs, draft_probs)
    drawn = rescale(q, top, saguaro_scale)
    under, over = np.maximum(p - drawn, 0.0), np.maximum(drawn - p, 0.0)
    # Both have the same mass but for rounding; a p that equals q' up to rounding rejects nothing.
    total = float(under.sum())
    if min(total, float(over.sum())) <= 1e-15:
        return 1.0
    ranked = top_tokens(q, top + 1)
    held = float(under[ranked[:top]].sum())
    if makes_room:
        held += float(over[ranked[:top]].sum()) / float(over.sum()) * float(under[ranked[top:]].sum())
    return min(1.0, held / total)


def round_weights(
    target_probs: ArrayLike, draft_probs: ArrayLike, fanout: Sequence[int], saguaro_scale: float
) -> FloatArray:
    """[K + 1] probability of k accepted tokens where position k is drafted with its own F_k.

    The last fan-out belongs to the bonus token after K accepted ones, where nothing is drafted.  The
    distributions are the same at every position, the draft's before rescaling.
    """
    if len(fanout) == 0:
        raise ValueError("needs a fan-out for at least one position")
    accepted = np.array(
        [acceptance(target_probs, rescale(draft_probs, f, saguaro_scale)) for f in fanout[:-1]]
    )
    reached = np.append(1.0, np.cumprod(accepted))
    return np.asarray(reached * np.append(1.0 - accepted, 1.0), dtype=np.float64)


def hit_rate_sampled(
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    fanout: Sequence[int],
    saguaro_scale: float,
    *,
    cached: Cached = "without_rejected",
) -> float:
    """p_hit,p with sampled tokens: sum_(k<K) w_k h(F_k) + w_K p(F_K likeliest of q)  (`ssd.thm19`).

    iid positions: one pair of distributions at all of them.  With all K tokens accepted (or K = 0) the target
    draws from p itself, and no token is left out of the cache.  (2,) * 6 is K = 5 with two guesses at each
    position; `cached` says which tokens are cached after a rejection.
    """
    if cached not in CACHED:
        raise ValueError(f"cached must be one of {', '.join(CACHED)}, got {cached!r}")
    weights = round_weights(target_probs, draft_probs, fanout, saguaro_scale)
    hit = hit_given_rejection if cached == "without_rejected" else hit_given_rejection_fixed
    after = {f: hit(target_probs, draft_probs, f, saguaro_scale) for f in set(fanout[:-1])}
    free = float(token_probs("target_probs", target_probs)[top_tokens(draft_probs, fanout[-1])].sum())
    return float((weights * np.array([*(after[f] for f in fanout[:-1]), free])).sum())


@law()
def saguaro_hit_rate(
    target_probs: ArrayLike, draft_probs: ArrayLike, top: int, lookahead: int, saguaro_scale: float
) -> float:
    """p_hit,p of a sampled round with one fan-out at all positions (`ssd.thm19`): `hit_rate_sampled`."""
    return hit_rate_sampled(target_probs, draft_probs, (top,) * (lookahead + 1), saguaro_scale)
