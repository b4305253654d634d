"""What followed some words, counted: whole continuations, or their beginnings.

Continuations come as a matrix [n, span], sorted, so that equal ones and equal beginnings lie side by side; a
row that a text's end cuts short is filled up with `end`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
Continuation: TypeAlias = tuple[tuple[int, ...], int]
"""Tokens, and how many of the occurrences looked at they followed."""


def whole(follows: IntArray, end: int, most: int) -> list[Continuation]:
    """The most frequent continuations; equally frequent ones in their order.

    Args:
        follows: [n, span], n at least 1.
        end: What a row that was cut short is filled up with.
        most: How many at most.
    """
    starts = np.flatnonzero(_changes(follows)[:, -1])
    frequencies = np.diff(np.append(starts, len(follows)))
    something = follows[starts, 0] != end
    starts, frequencies = starts[something], frequencies[something]
    return [
        (tuple(token for token in follows[starts[i]].tolist() if token != end), int(frequencies[i]))
        for i in np.argsort(-frequencies, kind="stable")[:most]
    ]


def beginnings(follows: IntArray, end: int, most: int) -> tuple[list[Continuation], int]:
    """The most frequent beginnings, each before what it begins, and the number of distinct continuations.

    Args:
        follows: [n, span], n at least 1.
        end: As in `whole`.
        most: How many at most.
    """
    changes = _changes(follows)
    # A beginning goes on to the next change at its own depth, so that depths lie one after the other.
    depths, rows = np.nonzero(changes.T)
    stops = np.append(rows[1:], 0)
    stops[np.append(depths[1:] != depths[:-1], True)] = len(follows)
    real = follows[rows, depths] != end
    depths, rows, frequencies = depths[real], rows[real], (stops - rows)[real]
    order = np.lexsort((rows, depths, -frequencies))[:most]
    found = [(tuple(follows[rows[i], : depths[i] + 1].tolist()), int(frequencies[i])) for i in order]
    return found, int((changes[:, -1] & (follows[:, 0] != end)).sum())


def _changes(follows: IntArray) -> NDArray[np.bool_]:
    """[n, span] whether the beginning up to each token differs from that of the row before."""
    changes = np.ones(follows.shape, dtype=np.bool_)
    np.logical_or.accumulate(follows[1:] != follows[:-1], axis=1, out=changes[1:])
    return changes


def check_search(longest: int, shortest: int, span: int, count: int) -> None:
    """Refuse a search that is none.

    Raises:
        ValueError: Outside the domain.
    """
    if not 1 <= shortest <= longest or span < 1 or count < 0:
        raise ValueError(
            "needs 1 <= shortest <= longest, span >= 1 and a count of at least 0, "
            f"got {shortest}, {longest}, {span}, {count}"
        )
