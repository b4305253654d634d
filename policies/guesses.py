"""Speculations that no model drafts: random tokens, and prompt lookup (what followed the same words)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import numpy as np

from policies.config import About
from policies.rows import Rows
from policies.sampling import random_tokens
from policies.values import UNKNOWN, BoolArray, Source, Speculation

_WORD = 4
"""Bytes of a token id."""
LONGEST = 3
"""Longest suffix that is searched for, in tokens."""
LongestSuffix: TypeAlias = Annotated[
    int, About(help="Longest ending that prompt lookup searches for, in tokens.", least=1)
]


def lookup(text: Sequence[int], lookahead: int, *, longest: int = LONGEST) -> tuple[int, ...]:
    """Up to `lookahead` tokens that followed the text's own ending where it last occurred before.

    The longest suffix of at most `longest` tokens that occurs earlier decides; among its occurrences the
    latest one.  Empty if not even the last token occurred before.

    Args:
        text: Prompt and emitted tokens.
        lookahead: Most tokens to return, at least 1.
        longest: Longest suffix to search for, at least 1.
    """
    # As bytes, which are searched in C: a round of a live run waits for this.
    words = np.asarray(text, dtype="<u4").tobytes()
    for size in range(min(longest, len(text) - 1), 0, -1):
        suffix = words[-_WORD * size :]
        end = len(words) - 1  # an occurrence before the ending itself
        while (found := words.rfind(suffix, 0, end)) >= 0:
            if found % _WORD == 0:
                follows = found // _WORD + size
                return tuple(text[follows : follows + lookahead])
            end = found + len(suffix) - 1
    return ()


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
