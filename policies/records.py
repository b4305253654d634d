"""What a run leaves behind: its rounds, row by row, and its timeline, device by device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policies.operations import BoolArray, IntArray, Speculation, Verdict, View

NO_CACHE = -1
"""`hit` of a round without a speculation cache, or whose row ended with it (nothing was looked up)."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one row.

    Attributes:
        request: The row's request.
        round: Number of the row's round, from 0.
        position: Tokens emitted before it.
        length: Drafted tokens that were verified.
        source: `Source` of these tokens.
        accepted: How many were accepted and emitted.
        emitted: Tokens emitted, bonus included.
        bonus: Id of the bonus token, UNKNOWN if none or without ids.
        hit: 1 if the outcome was in the speculation cache, 0 if not, NO_CACHE if nothing was looked up.
    """

    request: int
    round: int
    position: int
    length: int
    source: int
    accepted: int
    emitted: int
    bonus: int
    hit: int


class RoundLog:
    """Rounds in the order in which they were committed.

    Attributes:
        batch_rounds: Rounds of the batch so far.
        prefill_s: Seconds during which the batch waited for prefills; not part of decode speed.
        ends: Seconds at which each round of the batch was committed.
        runs_on: Whether a hit's bonus token is a drafted one, so that runs go on past a block (PEARL).
        admitted_s: Seconds at which each request got its slot.
        first_token_s: Seconds at which each request's first tokens were committed.
    """

    def __init__(self) -> None:
        self.batch_rounds = 0
        self.prefill_s = 0.0
        self.ends: list[float] = []
        self.runs_on = False
        self.admitted_s: dict[int, float] = {}
        self.first_token_s: dict[int, float] = {}
        self._columns: list[tuple[IntArray, ...]] = []

    def append(
        self, view: View, verified: Speculation, verdict: Verdict, hits: BoolArray | None, now: float
    ) -> None:
        """Log one round of the batch."""
        slots = view.slots
        if hits is None:
            looked_up = np.full(len(slots), NO_CACHE, dtype=np.int64)
        else:
            looked_up = np.where(verdict.ended[slots], NO_CACHE, hits[slots])
        self._columns.append(
            (
                view.requests,
                view.positions,
                verified.lengths[slots],
                verified.sources[slots],
                verdict.accepted[slots],
                verdict.emitted[slots],
                verdict.bonus[slots],
                looked_up,
            )
        )
        for request in view.requests[view.positions == 0]:
            self.first_token_s[int(request)] = now
        self.batch_rounds += 1
        self.ends.append(now)

    def times_to_first_token(self) -> list[float]:
        """Seconds from getting a slot to the first token, prefill included, of each request that has one."""
        return [now - self.admitted_s.get(r, 0.0) for r, now in self.first_token_s.items()]

    def table(self) -> dict[str, IntArray]:
        """Columns named like the fields of `Round`, one entry per row and round."""
        names = ("request", "position", "length", "source", "accepted", "emitted", "bonus", "hit")
        if not self._columns:
            return {name: np.zeros(0, dtype=np.int64) for name in names}
        return {
            name: np.concatenate(parts)
            for name, parts in zip(names, zip(*self._columns, strict=True), strict=True)
        }

    def rounds(self, request: int) -> list[Round]:
        """The rounds of one request, in order."""
        table = self.table()
        chosen = np.flatnonzero(table["request"] == request)
        return [
            Round(round=i, **{name: int(column[row]) for name, column in table.items()})
            for i, row in enumerate(chosen)
        ]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of work of one device.

    Attributes:
        device: Name of the device.
        name: What it did, e.g. `verify`, `draft`, `glue`, `tree`.
        start_s: Seconds since the world began.
        end_s: Likewise.
        details: Anything worth showing in a viewer.
    """

    device: str
    name: str
    start_s: float
    end_s: float
    details: dict[str, Any] = field(default_factory=dict)
