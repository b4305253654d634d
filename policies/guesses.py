"""Speculations that no model drafts: random tokens, and what followed the same words earlier in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from policies.ngram import LONGEST, lookup
from policies.operations import UNKNOWN, BoolArray, Source, Speculation
from policies.randomness import random_tokens
from policies.rows import Rows

Propose: TypeAlias = Callable[[Rows, int, int, int], tuple[Source, tuple[int, ...]]]
"""(rows, request, position, lookahead) to the source and the tokens of a guess."""


def at_random(seed: int, vocabulary: int) -> Propose:
    """Uniform tokens, those of a position the same in both worlds."""

    def propose(_: Rows, request: int, position: int, lookahead: int) -> tuple[Source, tuple[int, ...]]:
        return Source.RANDOM, random_tokens(seed, request, position, lookahead, vocabulary)

    return propose


def from_text(longest: int = LONGEST) -> Propose:
    """What followed the text's own last words, at most `longest` of them, earlier in it."""

    def propose(rows: Rows, request: int, _: int, lookahead: int) -> tuple[Source, tuple[int, ...]]:
        return Source.NGRAM, lookup(rows.text(request), lookahead, longest=longest)

    return propose


def guess(rows: Rows, chosen: BoolArray, lookahead: int, propose: Propose) -> Speculation:
    """Guessed tokens for the rows marked in `chosen` [B], the same in both worlds."""
    tokens = np.full((rows.width, lookahead), UNKNOWN, dtype=np.int64)
    lengths, sources = np.zeros((2, rows.width), dtype=np.int64)
    view = rows.view(chosen)
    for slot, request, position in zip(view.slots, view.requests, view.positions, strict=True):
        source, guessed = propose(rows, int(request), int(position), lookahead)
        tokens[slot, : len(guessed)] = guessed
        lengths[slot] = len(guessed)
        sources[slot] = int(source) if guessed else int(Source.NONE)
    return Speculation(lengths, sources, tokens, has_guesses=True)


def unknown_guess(chosen: BoolArray, lookahead: int) -> Speculation:
    """Random tokens in a world without ids, for the rows marked in `chosen` [B]: never accepted."""
    return Speculation(
        np.where(chosen, lookahead, 0),
        np.where(chosen, int(Source.RANDOM), int(Source.NONE)),
        has_guesses=True,
    )
