"""Lookahead by load: how many tokens are drafted, or verified, by what a step serves.

- `LookaheadByBatch`: a table by rows, or by rows and their mean context (vllm#48627);
- `GoodputLookahead`: in every step the K of most expected tokens a second (SmartSpec, Liu et al. 2024;
  TurboSpec);
- `AdaptiveVerification`: K are drafted, and of all rows' drafted tokens those are verified that are most
  likely to survive, as many as a cost curve says (vLLM's `enable_adaptive_verification`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol, TypeAlias, get_args

from hardware_profiles.files import parse_json
from serving.traffic import TrafficError

Adapt: TypeAlias = Literal["goodput", "verification"]
ADAPTS: tuple[Adapt, ...] = get_args(Adapt)
LARGEST_CONTEXT = 1_048_576
"""End of a table's last range of contexts."""
MEMORY = 0.9
"""Weight of the past in a row's acceptance, after each drafted token that was looked at."""
PRIOR, TRUST = 0.7, 4.0
"""Acceptance before anything is known, and how many looked-at tokens what is known of others counts for."""

StepSeconds: TypeAlias = Callable[[int, int, int, int], float]
"""Seconds of a step by rows, tokens verified in all, tokens in caches in all, tokens drafted for each row."""


class Lookaheads(Protocol):
    """Chooses how many tokens are verified next, when a step has ended."""

    @property
    def most(self) -> int:
        """Most tokens drafted for a row."""
        ...

    def choose(self, places: Sequence[int], context: int) -> tuple[int, int | Mapping[int, int]]:
        """Tokens drafted for each row, and verified: of all, or by place.

        Args:
            places: Of the requests that said something.
            context: Tokens in their caches, in all.
        """
        ...

    def learn(self, place: int, verified: int, accepted: int) -> None:
        """Of a row's drafted tokens, so many were verified and accepted."""
        ...


@dataclass(frozen=True, slots=True)
class LookaheadByBatch:
    """K from so many rows, and so long a mean context, on, up to the next entry.

    K = 0 is not plain decoding: the draft reads what the target says, so that it can go on when K rises.

    Attributes:
        rows: Rows from which on each line holds; the first is 1, and they rise.
        lookaheads: K of each line; where there are several contexts, one for each of them.
        contexts: Mean contexts from which on they hold; the first is 0, and they rise.
    """

    rows: tuple[int, ...]
    lookaheads: tuple[int, ...]
    contexts: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        rising = all(low < high for axis in (self.rows, self.contexts) for low, high in pairwise(axis))
        begins = self.rows[:1] == (1,) and self.contexts[:1] == (0,)
        full = len(self.lookaheads) == len(self.rows) * len(self.contexts)
        if not begins or not rising or not full or min(self.lookaheads) < 0:
            raise TrafficError(
                "lookaheads by batch begin at 1 row and context 0, rise in both, are full, and at least 0"
            )

    @property
    def most(self) -> int:
        """See `Lookaheads`."""
        return max(self.lookaheads)

    def of(self, rows: int, context: int = 0) -> int:
        """K for so many rows that have so many tokens in all."""
        line = max(bisect_right(self.rows, rows) - 1, 0)
        column = max(bisect_right(self.contexts, context / max(rows, 1)) - 1, 0)
        return self.lookaheads[line * len(self.contexts) + column]

    def choose(self, places: Sequence[int], context: int) -> tuple[int, int]:
        """See `Lookaheads`."""
        k = self.of(len(places), context)
        return k, k

    def learn(self, place: int, verified: int, accepted: int) -> None:
        """See `Lookaheads`; a table learns nothing."""

    def as_vllm(self, largest: int) -> list[list[int]]:
        """VLLM's `num_speculative_tokens_per_batch_size`: first and last batch, and K.

        By context, too, as vllm#48627 proposes it: first and last batch, first and last context, and K.
        """
        last = [*(first - 1 for first in self.rows[1:]), largest]
        ends = [*(first - 1 for first in self.contexts[1:]), LARGEST_CONTEXT]
        entries = []
        for i, (first, end) in enumerate(zip(self.rows, last, strict=True)):
            for j, (start, stop) in enumerate(zip(self.contexts, ends, strict=True)):
                k = self.lookaheads[i * len(self.contexts) + j]
                if first <= largest:
                    context = [start, stop] if len(self.contexts) > 1 else []
                    entries.append([first, min(end, largest), *context, k])
        return entries


def parse_lookaheads(text: str) -> LookaheadByBatch:
    """`1:4,8:2,32:0`, or vLLM's `[[1, 7, 4], [8, 31, 2], [32, 64, 0]]`, with ranges of contexts or without.

    Raises:
        TrafficError: It is neither, or has gaps.
    """
    try:
        if text.lstrip().startswith("["):
            return _from_vllm([[int(value) for value in entry] for entry in parse_json(text)], text)
        pairs = [(int(rows), int(k)) for rows, k in (part.split(":") for part in text.split(","))]
    except TrafficError:
        raise
    except (ValueError, TypeError):
        raise TrafficError(f"{text[:80]!r} is no list of rows and lookaheads such as 1:4,8:2,32:0") from None
    return LookaheadByBatch(tuple(rows for rows, _ in pairs), tuple(k for _, k in pairs))


def _from_vllm(entries: list[list[int]], text: str) -> LookaheadByBatch:
    """A table of ranges; entries of three numbers hold for all contexts."""
    by_rows: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for first, last, *context, k in entries:
        start, stop = context or (0, LARGEST_CONTEXT)
        start = 0 if start == 1 else start  # vllm PR#48944 counts contexts from 1
        by_rows.setdefault((first, last), []).append((start, stop, k))
    axes = [list(by_rows), *([each[:2] for each in line] for line in by_rows.values())]
    if any(a[1] + 1 != b[0] for axis in axes for a, b in pairwise(axis)):
        raise TrafficError(f"{text[:80]!r}: every entry begins where the one before it ends")
    contexts = sorted({start for line in by_rows.values() for start, _, _ in line})
    lookaheads = []
    for line in by_rows.values():
        starts = [start for start, _, _ in line]
        lookaheads += [line[max(bisect_right(starts, context) - 1, 0)][2] for context in contexts]
    return LookaheadByBatch(tuple(first for first, _ in by_rows), tuple(lookaheads), tuple(contexts))


@dataclass(slots=True)
class Acceptances:
    """Acceptance of every row so far: a moving mean of its drafted tokens that were looked at.

    A rejection hides what comes after it: of `verified` tokens one more than `accepted` was looked at, or
    all.  A row of which little is known is like all rows so far.

    Attributes:
        overall: Weight and weighted sum of all rows.
        known: The same by place.
    """

    overall: list[float] = field(default_factory=lambda: [TRUST, TRUST * PRIOR])
    known: dict[int, list[float]] = field(default_factory=dict)

    def learn(self, place: int, verified: int, accepted: int) -> None:
        """See `Lookaheads`."""
        entry = self.known.setdefault(place, [0.0, 0.0])
        for hit in [1.0] * accepted + [0.0] * (accepted < verified):
            entry[0] = MEMORY * entry[0] + 1.0
            entry[1] = MEMORY * entry[1] + hit
            self.overall[0] += 1.0
            self.overall[1] += hit

    def of(self, place: int) -> float:
        """In 0..1."""
        weight, hits = self.known.get(place, (0.0, 0.0))
        return (hits + TRUST * self.overall[1] / self.overall[0]) / (weight + TRUST)


@dataclass(slots=True)
class GoodputLookahead:
    """One K for all rows: that of most expected tokens a second.

    Rows are expected to accept as each did so far, independently; a step takes what `seconds` says.  While K
    is 0 nothing is learned.

    Attributes:
        most: Largest K.
        seconds: Of a step.
    """

    most: int
    seconds: StepSeconds
    rows: Acceptances = field(default_factory=Acceptances)

    def choose(self, places: Sequence[int], context: int) -> tuple[int, int]:
        """See `Lookaheads`."""
        count = len(places)
        if not count:
            return self.most, self.most
        rates = [self.rows.of(place) for place in places]
        best, expected, survive = (0.0, 0), float(count), [1.0] * count
        for k in range(self.most + 1):
            if k:
                survive = [chance * rate for chance, rate in zip(survive, rates, strict=True)]
                expected += sum(survive)
            goodput = expected / self.seconds(count, count * (1 + k), context, k)
            if goodput > best[0]:
                best = (goodput, k)
        return best[1], best[1]

    def learn(self, place: int, verified: int, accepted: int) -> None:
        """See `Lookaheads`."""
        self.rows.learn(place, verified, accepted)


@dataclass(slots=True)
class AdaptiveVerification:
    """K are drafted for every row, and the slots most likely to survive are verified.

    A row's j-th slot survives with the j-th power of its acceptance so far: vLLM's estimate per position and
    request, without a confidence head.  Slots are taken in falling order of that, and their number is that of
    most expected tokens a second; since survival falls along a row, what is taken of it is its beginning.

    Attributes:
        most: K.
        seconds: Of a step.
    """

    most: int
    seconds: StepSeconds
    rows: Acceptances = field(default_factory=Acceptances)

    def choose(self, places: Sequence[int], context: int) -> tuple[int, Mapping[int, int]]:
        """See `Lookaheads`."""
        count = len(places)
        slots = sorted(
            (-(self.rows.of(place) ** j), j, place) for place in places for j in range(1, self.most + 1)
        )
        expected, best, taken = float(count), (0.0, 0), 0
        for taken in range(len(slots) + 1) if count else ():
            expected -= slots[taken - 1][0] if taken else 0.0
            goodput = expected / self.seconds(count, count + taken, context, self.most)
            if goodput > best[0]:
                best = (goodput, taken)
        found = dict.fromkeys(places, 0)
        for _, _, place in slots[: best[1]]:
            found[place] += 1
        return self.most, found

    def learn(self, place: int, verified: int, accepted: int) -> None:
        """See `Lookaheads`."""
        self.rows.learn(place, verified, accepted)


def adaptive(kind: Adapt, most: int, seconds: StepSeconds) -> Lookaheads:
    """What chooses by load, of at most `most` tokens a row."""
    return (GoodputLookahead if kind == "goodput" else AdaptiveVerification)(most, seconds)
