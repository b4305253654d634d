"""Lookahead by load: how many tokens are drafted, by the rows that a step serves."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from hardware_profiles.files import parse_json
from serving.traffic import TrafficError


@dataclass(frozen=True, slots=True)
class LookaheadByBatch:
    """K from so many rows on, up to the next entry.

    K = 0 is not plain decoding: the draft reads what the target says, so that it can go on when K rises.

    Attributes:
        rows: Rows from which on each entry holds; the first is 1, and they rise.
        lookaheads: K of each.
    """

    rows: tuple[int, ...]
    lookaheads: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise(self.rows))
        if not self.rows or self.rows[0] != 1 or not rising or min(self.lookaheads) < 0:
            raise TrafficError("lookaheads by batch begin at 1 row, rise in rows, and are at least 0")

    def of(self, rows: int) -> int:
        """K for so many rows."""
        return self.lookaheads[max(bisect_right(self.rows, rows) - 1, 0)]

    def as_vllm(self, largest: int) -> list[list[int]]:
        """VLLM's `num_speculative_tokens_per_batch_size`: first and last batch, and K."""
        last = [*(first - 1 for first in self.rows[1:]), largest]
        entries = zip(self.rows, last, self.lookaheads, strict=True)
        return [[first, min(end, largest), k] for first, end, k in entries if first <= largest]


def parse_lookaheads(text: str) -> LookaheadByBatch:
    """`1:4,8:2,32:0`, or vLLM's `[[1, 7, 4], [8, 31, 2], [32, 64, 0]]`.

    Raises:
        TrafficError: It is neither, or has gaps.
    """
    try:
        if text.lstrip().startswith("["):
            entries = [(int(first), int(last), int(k)) for first, last, k in parse_json(text)]
            if any(a[1] + 1 != b[0] for a, b in pairwise(entries)):
                raise TrafficError(f"{text[:80]!r}: every entry begins where the one before it ends")
            pairs = [(first, k) for first, _, k in entries]
        else:
            pairs = [(int(rows), int(k)) for rows, k in (part.split(":") for part in text.split(","))]
    except TrafficError:
        raise
    except (ValueError, TypeError):
        raise TrafficError(f"{text[:80]!r} is no list of rows and lookaheads such as 1:4,8:2,32:0") from None
    return LookaheadByBatch(tuple(rows for rows, _ in pairs), tuple(k for _, k in pairs))
