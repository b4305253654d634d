"""Backup tokens under verification, guessed rather than drafted: which of them are the path's own.

Guesses that are known (n-gram lookup; random tokens when decoding greedily) are compared with the recorded
path one by one; for the others the distribution that they were drawn from decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from policies.operation import Prespeculate, Verify
from policies.values import BoolArray, IntArray, Source, Speculation

if TYPE_CHECKING:
    from simulator.tokens.model import TokenModel

_RANDOM, _NGRAM = int(Source.RANDOM), int(Source.NGRAM)


def accept_guesses(
    model: TokenModel, operation: Verify, slots: IntArray, here: IntArray, accepted: IntArray
) -> None:
    """Set `accepted` of the rows that verify a backup's tokens.

    Args:
        model: The outcomes.
        operation: What is verified.
        slots: [R] rows it is about.
        here: [R] flat position of each row's first token.
        accepted: [R] tokens accepted, so far as if all were the primary draft's.
    """
    known, drawn = _deciders(model, operation, slots)
    lengths = operation.speculation.lengths[slots]
    if drawn.any():
        assert model.sampled is not None
        run = model.sampled.outcomes(operation.sampling, Source.RANDOM).run
        accepted[drawn] = np.minimum(lengths[drawn], run[here[drawn]])
    if known.any():
        accepted[known] = _agreeing(model, operation.speculation, slots[known], here[known])


def leave_out_guesses(
    model: TokenModel,
    operation: Prespeculate,
    slots: IntArray,
    at: IntArray,
    accepted: IntArray,
    *,
    need: IntArray,
) -> None:
    """Set `need`, [R] the fan-out needed, of the rows that verified a backup's tokens and had one rejected.

    Args:
        model: The outcomes.
        operation: What was prepared meanwhile.
        slots: [R] rows it is about.
        at: [R] flat position of each row's first token that was not accepted.
        accepted: [R] tokens accepted.
        need: Changed in place.
    """
    known, drawn = _deciders(model, operation, slots)
    rejected = accepted < operation.speculation.lengths[slots]
    known, drawn = known & rejected, drawn & rejected
    if drawn.any():
        assert model.sampled is not None
        outcomes = model.sampled.outcomes(operation.sampling, Source.RANDOM)
        need[drawn] = outcomes.need_after(accepted[drawn], at[drawn])
    if known.any():
        need[known] = _need_without(model, operation.speculation, slots[known], at[known], accepted[known])


def _deciders(
    model: TokenModel, operation: Verify | Prespeculate, slots: IntArray
) -> tuple[BoolArray, BoolArray]:
    """Masks over `slots`: rows whose guessed tokens decide, and rows whose distribution decides.

    Sampled decoding does not look at random tokens: given the path, the verified token is no longer
    uniform, since the path's own token is all the likelier to be the one that was accepted.
    """
    sources = operation.speculation.sources[slots]
    random = sources == _RANDOM
    if model.sampled is None:
        return random | (sources == _NGRAM), np.zeros_like(random)
    return sources == _NGRAM, random


def _agreeing(model: TokenModel, speculation: Speculation, slots: IntArray, here: IntArray) -> IntArray:
    """Leading guessed tokens per row that are the path's own; without ids there are none."""
    if model.tokens is None or speculation.tokens is None:
        return np.zeros(len(here), dtype=np.int64)
    guessed = speculation.tokens[slots]
    at = here[:, None] + np.arange(guessed.shape[1])
    same = guessed == model.tokens[np.minimum(at, len(model.tokens) - 1)]
    same &= np.arange(guessed.shape[1]) < speculation.lengths[slots][:, None]
    accepted: IntArray = np.cumprod(same, axis=1).sum(axis=1)
    return accepted


def _need_without(
    model: TokenModel, speculation: Speculation, slots: IntArray, at: IntArray, accepted: IntArray
) -> IntArray:
    """Fan-out needed when a known token was rejected: it frees a place only if it outranks the path's.

    With rank(y) counted from 0 and s the rejected token, y is the (rank(y) + 1)-th choice, or the
    rank(y)-th once s, ranked above it, is left out.
    """
    need = model.need_free[at]
    if model.tokens is None or speculation.tokens is None:
        return need
    assert model.ranked is not None, "simulator.checks refuses such a setting"
    guessed = speculation.tokens[slots, accepted]
    is_guessed = model.ranked[at % len(model.ranked)] == guessed[:, None]
    outranks = is_guessed.any(axis=1) & (is_guessed.argmax(axis=1) < need - 1)
    return np.where(outranks, need - 1, need)
