"""Prompt lookup: what followed the same words earlier in the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_WORD = 4
"""Bytes of a token id."""
LONGEST = 3
"""Longest suffix that is searched for, in tokens."""


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
