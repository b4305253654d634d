"""Suffix arrays: where the endings of a token list stand in their sorted order.

By the library libdivsufsort (`pydivsufsort`, the extra `datastore`), in seconds for ten million tokens;
without it by prefix doubling (Manber and Myers 1993) in numpy, in minutes.  Both give the same array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def suffix_array(tokens: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """[n] start of every suffix, in lexical order of the suffixes; a beginning comes before what it begins.

    Args:
        tokens: [n] of less than 2**31 bytes.
    """
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        return by_doubling(tokens)
    if not len(tokens):
        return np.empty(0, dtype=np.uint32)
    # Bytes in reading order sort as the tokens do; starts inside a token are left out.
    width = tokens.dtype.itemsize
    letters = np.ascontiguousarray(tokens.astype(tokens.dtype.newbyteorder(">"))).view(np.uint8)
    starts = divsufsort(letters)
    return np.asarray(starts[starts % width == 0] // width, dtype=np.uint32)


def by_doubling(tokens: NDArray[np.unsignedinteger]) -> NDArray[np.uint32]:
    """As `suffix_array`, in numpy alone: sorted by 1, 2, 4, ... tokens until all suffixes differ.

    Args:
        tokens: [n].
    """
    count, length = len(tokens), 1
    if not count:
        return np.empty(0, dtype=np.uint32)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    while True:
        # What begins `length` tokens later is ranked already; 0 is for "nothing any more".
        later = np.zeros(count, dtype=np.int64)
        later[: max(0, count - length)] = rank[length:] + 1
        keys = rank * (count + 1) + later
        order = np.argsort(keys, kind="stable")
        steps = np.diff(keys[order]) > 0
        rank[order] = np.concatenate([[0], np.cumsum(steps)])
        if steps.all():
            return order.astype(np.uint32)
        length *= 2
