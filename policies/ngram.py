"""Prompt lookup: what followed the same words earlier in the text (SSD's n-gram backup)."""

from __future__ import annotations

from collections.abc import Sequence

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
    tokens = list(text)
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        suffix = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == suffix:
                follows = start + size
                return tuple(tokens[follows : follows + lookahead])
    return ()
