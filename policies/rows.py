"""The rows of a batch: which request sits in which slot, how far it is, and what each round did."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import add, sub

import numpy as np

from policies.operation import Prefill
from policies.protocols import Event, Steps, World
from policies.values import NO_SLOTS, IntArray, Request, Slots, Speculation, Verdict, View


class Rows:
    """A batch of `width` slots, refilled from a queue of requests as rows finish.

    Args:
        requests: What to serve, first come first served.
        width: Number of slots, at least 1 (the batch size).
        keep_tokens: Whether the world knows token ids; then `texts` collects what each request emitted.
    """

    def __init__(self, requests: Sequence[Request], width: int, *, keep_tokens: bool = False) -> None:
        if width < 1:
            raise ValueError(f"batch must be at least 1, got {width}")
        if not requests:
            raise ValueError("no request to serve")
        if keep_tokens and any(r.prompt is None for r in requests):
            raise ValueError("a live run needs the prompt of every request")
        self.width = width
        self.waiting = deque(requests)
        self.keep_tokens = keep_tokens
        self.texts: dict[int, list[int]] = {}
        self.log = RoundLog()
        self._prompts: dict[int, tuple[int, ...]] = {}
        nothing = [0] * width  # of each slot:
        self._requests, self._emitted, self._prompt_lengths, self._limits = (nothing[:] for _ in range(4))
        self._order: tuple[int, ...] = ()
        self.alive: Slots = NO_SLOTS
        """Slots that hold an unfinished request; replaced and never changed in place."""

    @property
    def active(self) -> bool:
        """Whether any request is unfinished, in a slot or waiting."""
        return bool(self.alive or self.waiting)

    def text(self, request: int) -> tuple[int, ...]:
        """Prompt and emitted tokens of a request, where tokens are kept."""
        if not self.keep_tokens:
            raise ValueError("this run keeps no token ids, which the policy needs (n-gram lookup)")
        return (*self._prompts[request], *self.texts[request])

    def admit(self, now: float = 0.0) -> Slots:
        """Put waiting requests into free slots; returns the slots filled just now.

        `now` is noted as the moment from which the time to the first token counts.
        """
        if not self.waiting or len(self.alive) == self.width:
            return NO_SLOTS
        free = [slot for slot in range(self.width) if slot not in self.alive][: len(self.waiting)]
        for slot in free:
            request = self.waiting.popleft()
            self._fill(slot, request.id, 0, request.prompt_length, request.limit)
            self.log.admitted_s[request.id] = now
            if self.keep_tokens and request.prompt is not None:
                self._prompts[request.id] = request.prompt
                self.texts[request.id] = []
        fresh = frozenset(free)
        self._set_alive(self.alive | fresh)
        return fresh

    def refill(self, world: World, *, drafts: bool, states: bool = False) -> Steps:
        """See `policies.rows.admit`."""
        if not self.waiting or len(self.alive) == self.width:
            return NO_SLOTS
        fresh = self.admit(world.now)
        if fresh:
            view = self.view(fresh)
            yield from self._read(world, Prefill(view, self.prompts(view), states=states), drafts=drafts)
        return fresh

    def _read(self, world: World, prefill: Prefill, *, drafts: bool) -> Steps:
        """Let the devices read prompts, and wait for all of them."""
        started = world.now
        everyone: Event = world.target.submit(prefill)
        for device in (*world.targets[1:], *(world.drafts if drafts else ())):
            everyone = everyone & device.submit(prefill)
        yield everyone
        self.log.prefill_s += world.now - started

    def view(self, rows: Slots | None = None) -> View:
        """Snapshot of some rows, by default of all unfinished ones."""
        slots = self._order if rows is None or len(rows) == len(self._order) else tuple(sorted(rows))
        columns = self._requests, self._emitted, self._prompt_lengths, self._limits
        if len(slots) < self.width:
            columns = tuple([[column[slot] for slot in slots] for column in columns])  # type: ignore[assignment]
        requests, emitted, prompts, limits = columns
        return View(
            slots,
            tuple(requests),
            tuple(emitted),
            tuple(map(add, prompts, emitted)),
            tuple(map(sub, limits, emitted)),
            tuple(map(self._tail, requests)) if self.keep_tokens else None,
        )

    def prompts(self, view: View) -> tuple[tuple[int, ...], ...] | None:
        """Prompt token ids of a view's rows; None in a world without token ids."""
        return tuple(self._prompts[r] for r in view.requests) if self.keep_tokens else None

    def commit(
        self,
        view: View,
        verified: Speculation,
        verdict: Verdict,
        *,
        hits: Slots | None = None,
        now: float,
    ) -> None:
        """Append a round's tokens and log the round.

        Args:
            view: The rows verified, as submitted.
            verified: The speculation that was verified.
            verdict: Its outcome.
            hits: Rows whose outcome was in the cache; None for policies without one.
            now: Seconds at which the verdict was acted on.
        """
        if verdict.tokens is not None and self.keep_tokens:
            for slot, request in zip(view.slots, view.requests, strict=True):
                self.texts[request].extend(verdict.tokens[slot])
        self.log.append(view, verified, verdict, hits, now)
        self._emitted = list(map(add, self._emitted, verdict.emitted))
        if verdict.ended:
            self._set_alive(self.alive - verdict.ended)

    def _fill(self, slot: int, request: int, emitted: int, prompt_length: int, limit: int) -> None:
        self._requests[slot], self._emitted[slot] = request, emitted
        self._prompt_lengths[slot], self._limits[slot] = prompt_length, limit

    def _set_alive(self, alive: Slots) -> None:
        self.alive, self._order = alive, tuple(sorted(alive))

    def _tail(self, request: int) -> tuple[int, ...]:
        text = self.texts[request]
        if len(text) >= 2:
            return tuple(text[-2:])
        return (*self._prompts[request], *text)[-2:]


def admit(world: World, rows: Rows, *, drafts: bool = True, states: bool = False) -> Steps:
    """Admit waiting requests and prefill them; returns the new rows.

    `drafts`: whether the draft devices read the prompts too; a target-only policy pays for none.
    `states`: whether the target keeps the prompts' hidden states, for heads that read them.
    """
    return rows.refill(world, drafts=drafts, states=states)


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


PENDING = 1024
"""Rounds that a log keeps as they came before it writes them into its columns."""
COLUMNS = ("request", "position", "length", "source", "accepted", "emitted", "bonus", "hit")
"""Of a log's table, named like the fields of `Round`."""


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
        self._columns = tuple(array("q") for _ in COLUMNS)
        self._pending: list[tuple[View, Speculation, Verdict, Slots | None]] = []

    def append(
        self, view: View, verified: Speculation, verdict: Verdict, hits: Slots | None, now: float
    ) -> None:
        """Log one round of the batch."""
        self._pending.append((view, verified, verdict, hits))
        if len(self._pending) == PENDING:
            self._write()
        if 0 in view.positions:
            for own, at in zip(view.requests, view.positions, strict=True):
                if at == 0:
                    self.first_token_s[own] = now
        self.batch_rounds += 1
        self.ends.append(now)

    def _write(self) -> None:
        """Put what is pending into the columns, a column of all rounds at once."""
        request, position, length, source, accepted, emitted, bonus, hit = self._columns
        if not self._pending:
            return
        views, verified, verdicts, hits = zip(*self._pending, strict=True)
        self._pending.clear()
        # The others' numbers lie as they are needed.
        some = [(i, v.slots) for i, v in enumerate(views) if len(v.slots) < len(verified[i].lengths)]
        for column, of_rows in (
            (request, [view.requests for view in views]),
            (position, [view.positions for view in views]),
            (length, [speculation.lengths for speculation in verified]),
            (source, [speculation.sources for speculation in verified]),
            (accepted, [verdict.accepted for verdict in verdicts]),
            (emitted, [verdict.emitted for verdict in verdicts]),
            (bonus, [verdict.bonus for verdict in verdicts]),
        ):
            for i, slots in some if column is not request and column is not position else ():
                of_rows[i] = tuple([of_rows[i][slot] for slot in slots])
            column.extend(chain.from_iterable(of_rows))
        for view, verdict, found in zip(views, verdicts, hits, strict=True):
            if found is None:
                hit.extend([NO_CACHE] * len(view.slots))
            elif verdict.ended:
                hit.extend([NO_CACHE if slot in verdict.ended else slot in found for slot in view.slots])
            else:
                hit.extend(map(found.__contains__, view.slots))

    def times_to_first_token(self) -> list[float]:
        """Seconds from getting a slot to the first token, prefill included, of each request that has one."""
        return [now - self.admitted_s.get(r, 0.0) for r, now in self.first_token_s.items()]

    def table(self) -> dict[str, IntArray]:
        """The columns, one entry per row and round."""
        self._write()
        return {
            name: np.array(column, dtype=np.int64)
            for name, column in zip(COLUMNS, self._columns, strict=True)
        }

    def rounds(self, request: int) -> list[Round]:
        """The rounds of one request, in order."""
        table = self.table()
        chosen = np.flatnonzero(table["request"] == request)
        return [
            Round(round=i, **{name: int(column[row]) for name, column in table.items()})
            for i, row in enumerate(chosen)
        ]
