"""Several candidates for one position: accept one of them, or draw from what is left.

Used by `duo.verify` and `rasd.verify`.  A candidate c drawn from a law sigma is accepted with
min(1, p(c)/sigma(c)); after a failure the target's law p becomes the residual norm(max(p - sigma, 0)), and
the next candidate is judged by that.  A candidate that was chosen and not drawn (the top token of a draft, a
retrieved one) has the one-hot sigma, by which it is accepted with p(c).  The output then has exactly the
target's law, whatever the candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from policies.laws.ssd import FloatArray

Laws: TypeAlias = Sequence[ArrayLike | None]


def token_law(name: str, values: ArrayLike) -> FloatArray:
    """[V] law over the vocabulary, normalised to the last bit.

    Raises:
        ValueError: Not [V], negative, or no sum of 1.
    """
    law = np.asarray(values, dtype=np.float64)
    if law.ndim != 1 or law.size == 0:
        raise ValueError(f"{name} must be [V] probabilities, got shape {law.shape}")
    if not ((law >= 0.0).all() and abs(float(law.sum()) - 1.0) <= 1e-6):  # false for NaN too
        raise ValueError(f"{name} must be probabilities that sum to 1, got sum {law.sum():g}")
    return np.asarray(law / law.sum(), dtype=np.float64)


def one_hot(token: int, vocabulary: int) -> FloatArray:
    """[V] law of a candidate that was chosen and not drawn.

    Raises:
        ValueError: A token outside the vocabulary.
    """
    if not 0 <= token < vocabulary:
        raise ValueError(f"token {token} outside the vocabulary of {vocabulary}")
    law = np.zeros(vocabulary)
    law[token] = 1.0
    return law


def accept_probability(target_law: ArrayLike, draft_law: ArrayLike) -> FloatArray:
    """[V] probability that a token is accepted once it was drawn: min(1, p/q)  (`rasd.accept`, `ssd.sd`).

    1 where q is 0: such a token is never drawn.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    p, q = _pair(target_law, draft_law)
    return np.where(q > 0.0, np.minimum(1.0, p / np.where(q > 0.0, q, 1.0)), 1.0)


def reject(target_law: ArrayLike, draft_law: ArrayLike) -> FloatArray:
    """[V] target's law after a candidate drawn from `draft_law` failed: norm(max(p - q, 0)).

    p itself where p <= q everywhere (p = q): nothing is ever rejected there, and the law is never used.

    Raises:
        ValueError: Not two laws over one vocabulary.
    """
    p, q = _pair(target_law, draft_law)
    over = np.maximum(p - q, 0.0)
    total = float(over.sum())
    return over / total if total > 0.0 else p


def draw(law: ArrayLike, uniform: float) -> int:
    """Token of a law by inverting its cumulated probabilities; never one of probability 0.

    Args:
        law: [V].
        uniform: Coin in [0, 1).

    Raises:
        ValueError: A coin outside [0, 1).
    """
    if not 0.0 <= uniform < 1.0:
        raise ValueError(f"a coin lies in [0, 1), got {uniform:g}")
    cumulated = np.cumsum(np.asarray(law, dtype=np.float64))
    total = float(cumulated[-1])
    below = min(uniform * total, math.nextafter(total, 0.0))  # the product may round up to the total
    return int(np.searchsorted(cumulated, below, side="right"))


def verify_candidates(
    target_law: ArrayLike,
    candidates: Sequence[int],
    uniforms: Sequence[float],
    laws: Laws | None = None,
) -> tuple[int, int | None]:
    """The token emitted and the number of the candidate it is, None if none was accepted.

    Args:
        target_law: [V] p.
        candidates: Tokens tried, in order.
        uniforms: [len(candidates) + 1] coins in [0, 1): one per candidate, the last for the residual.
        laws: Law that each candidate was drawn from; None, for all or for one, if it was chosen.

    Raises:
        ValueError: Outside the domain.
    """
    p = token_law("target_law", target_law)
    if len(uniforms) != len(candidates) + 1:
        raise ValueError(f"{len(candidates)} candidates need one coin more, got {len(uniforms)}")
    for number, (token, sigma) in enumerate(_sigmas(candidates, laws, len(p))):
        if uniforms[number] * sigma[token] < p[token]:
            return token, number
        p = reject(p, sigma)
    return draw(p, uniforms[-1]), None


def candidates_law(target_law: ArrayLike, candidates: Sequence[int], laws: Laws | None = None) -> FloatArray:
    """[V] exact law of the token that `verify_candidates` emits, for given candidates.

    With chosen candidates it is the target's law; with drawn ones it is so on average over their draws.

    Args:
        target_law: [V] p.
        candidates: Tokens tried, in order.
        laws: As in `verify_candidates`.

    Raises:
        ValueError: Outside the domain.
    """
    p = token_law("target_law", target_law)
    emitted, reached = np.zeros_like(p), 1.0
    for token, sigma in _sigmas(candidates, laws, len(p)):
        accepted = float(accept_probability(p, sigma)[token])
        emitted[token] += reached * accepted
        reached *= 1.0 - accepted
        p = reject(p, sigma)
    return np.asarray(emitted + reached * p, dtype=np.float64)


def acceptance_of_candidates(
    target_law: ArrayLike, candidates: Sequence[int], laws: Laws | None = None
) -> float:
    """Probability that one of the given candidates is accepted; of chosen ones, their mass under p.

    Raises:
        ValueError: Outside the domain.
    """
    p = token_law("target_law", target_law)
    failed = 1.0
    for token, sigma in _sigmas(candidates, laws, len(p)):
        failed *= 1.0 - float(accept_probability(p, sigma)[token])
        p = reject(p, sigma)
    return 1.0 - failed


def candidates_law_printed(
    target_law: ArrayLike, draft_law: ArrayLike, candidates: Sequence[int]
) -> FloatArray:
    """[V] law emitted with min(1, p/q) for each candidate and one residual at the end (`duo.verify`).

    The literal reading of DuoDecoding: every candidate is judged like a drawn one and the law is not
    updated in between.  Not the target's law, e.g. for p = q it always emits the first candidate.

    Args:
        target_law: [V] p.
        draft_law: [V] q.
        candidates: Distinct tokens tried, in order; DuoDecoding's are the likeliest of q.

    Raises:
        ValueError: Outside the domain.
    """
    p, q = _pair(target_law, draft_law)
    accept = accept_probability(p, q)
    emitted, reached = np.zeros_like(p), 1.0
    for token in candidates:
        one_hot(token, len(p))  # for its check
        emitted[token] += reached * accept[token]
        reached *= 1.0 - float(accept[token])
    return np.asarray(emitted + reached * reject(p, q), dtype=np.float64)


def _sigmas(candidates: Sequence[int], laws: Laws | None, vocabulary: int) -> list[tuple[int, FloatArray]]:
    """Each candidate with the law it came from."""
    drawn: Laws = [None] * len(candidates) if laws is None else laws
    if len(drawn) != len(candidates):
        raise ValueError(f"{len(candidates)} candidates need as many laws, got {len(drawn)}")
    pairs = []
    for token, law in zip(candidates, drawn, strict=True):
        chosen = one_hot(int(token), vocabulary)
        sigma = chosen if law is None else token_law("draft_law", law)
        if len(sigma) != vocabulary or sigma[int(token)] <= 0.0:
            raise ValueError(f"token {token} cannot have been drawn from its law")
        pairs.append((int(token), sigma))
    return pairs


def _pair(target_law: ArrayLike, draft_law: ArrayLike) -> tuple[FloatArray, FloatArray]:
    p, q = token_law("target_law", target_law), token_law("draft_law", draft_law)
    if p.shape != q.shape:
        raise ValueError(f"target_law and draft_law differ in their vocabularies: {len(p)}, {len(q)} tokens")
    return p, q
