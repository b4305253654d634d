"""Which rows make up each round of a batch: first come first served, whatever the clock says.

Rounds wait for all their rows, so that who sits where follows from how many rounds each request takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from policies.registry import Settings
from policies.ssd import SaguaroConfig
from policies.summary import RoundCounts, count_rounds
from policies.values import UNKNOWN, IntArray, Request, Source
from simulator.compiled.content import Rule, Walks, walks_of
from simulator.compiled.loops import CHAIN, FIELDS, line_up
from simulator.tokens import TokenModel

CHUNK = 12_288
"""Rounds of a batch laid out, priced and timed at once: as many as fit a cache."""
KEPT_CHUNKS = 40
"""Of a line-up that is kept for the next run; longer ones are laid out anew."""
KEPT_LINEUPS = 8
"""Of a setting."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Consecutive rounds of a batch.

    Attributes:
        fields: [fields, n] what each consists of (`FIELDS`).
        first: Number of the first one.
    """

    fields: IntArray
    first: int

    @property
    def context(self) -> tuple[IntArray, IntArray, IntArray]:
        """([n] sum of the rows' contexts, [n] rows, [n] prompt of the first row)."""
        return self.contexts, self.rows, self.first_prompt

    def __len__(self) -> int:
        return int(self.fields.shape[1])

    def __getattr__(self, name: str) -> IntArray:
        """[n] a field of every round."""
        if name not in FIELDS:
            raise AttributeError(name)
        field: IntArray = self.fields[FIELDS.index(name)]
        return field


@dataclass
class Lineup:
    """Requests in a batch, in one setting.

    Attributes:
        rule: How their rounds follow from a token model.
        walks: Their rounds.
        requests: In the order served.
        width: Rows of the batch.
    """

    rule: Rule
    settings: Settings
    walks: Walks
    requests: Sequence[Request]
    width: int

    def __post_init__(self) -> None:
        facts = [(request.id, request.prompt_length, request.limit) for request in self.requests]
        self.ids, self.prompts, self.limits = np.array(facts, dtype=np.int64).T.copy()
        self.tokens = self.rule.tokens
        self.own = self.walks.of(self.rule, self.requests)
        self.begins = self.walks.begins[self.own]
        self.ends = self.walks.ends[self.own]
        self.rounds = int((self.ends - self.begins).sum())
        self.admitted = np.zeros(len(self.own), dtype=np.int64)
        """[q] round of the batch at whose beginning each request gets its slot; known once laid out."""
        self._kept: list[tuple[np.ndarray, int]] | None = None

    def chunks(self) -> Iterator[Rounds]:
        """The rounds of the batch."""
        if self._kept is not None:
            for fields, first in self._kept:
                yield Rounds(fields.astype(np.int64), first)
            return
        kept: list[tuple[np.ndarray, int]] = []  # in half the memory
        keeps = self.rounds <= KEPT_CHUNKS * CHUNK * self.width
        for chunk in self._laid_out():
            if keeps:
                kept.append((chunk.fields.astype(np.int32), chunk.first))
            yield chunk
        self._kept = kept if keeps else None

    def _laid_out(self, listed: tuple[np.ndarray, np.ndarray] | None = None) -> Iterator[Rounds]:
        if listed is None and self.rounds <= 2 * CHUNK and not line_up.compiles and not self._rows_wait:
            yield Rounds(self._summed(), 0)
        else:
            yield from self._looped(listed)

    @property
    def _rows_wait(self) -> bool:
        config = self.settings.config
        return isinstance(config, SaguaroConfig) and config.stall == "rows"

    def _summed(self) -> IntArray:
        """[fields, n] the rounds, where every row takes part in all: faster than the loop in Python."""
        counts = self.ends - self.begins
        starts, slots = np.zeros((2, len(counts)), dtype=np.int64)
        free = [(0, slot) for slot in range(self.width)]  # by round and slot
        for request, count in enumerate(counts.tolist()):
            starts[request], slots[request] = at, slot = heappop(free)
            heappush(free, (at + count, slot))
        self.admitted = starts
        n, redrafts = int((starts + counts).max()), self._redrafts
        owners = np.repeat(np.arange(len(counts)), counts)
        offsets = np.arange(self.rounds) - np.repeat(np.cumsum(counts) - counts, counts)
        at, rounds = starts[owners] + offsets, self.begins[owners] + offsets
        positions, states, lengths, accepted, hits = (
            column[rounds].astype(np.int64) for column in self.walks.columns()
        )
        prompts = self.prompts[owners]
        chain, guess = _branches(self.settings)
        branches = np.where(states == CHAIN, chain[lengths], guess[lengths])
        whole = np.concatenate([[False], (accepted == lengths)[:-1]])
        unseen = np.where((offsets > 0) & whole, 2, 1)
        fields = dict.fromkeys(FIELDS, np.zeros(n, dtype=np.int64))

        def summed(rows: np.ndarray, /, **columns: IntArray) -> None:
            where = at[rows]
            for name, column in columns.items():
                fields[name] = np.bincount(where, column[rows], minlength=n).astype(np.int64)

        def most(rows: np.ndarray, /, **columns: IntArray) -> None:
            for name, column in columns.items():
                fields[name] = np.zeros(n, dtype=np.int64)
                np.maximum.at(fields[name], at[rows], column[rows])

        def first(rows: np.ndarray, name: str) -> None:
            order = rows[np.lexsort((-slots[owners[rows]], at[rows]))]
            fields[name] = np.zeros(n, dtype=np.int64)
            fields[name][at[order]] = prompts[
                order
            ]  # of those of a round the last one stays: the lowest slot

        every, one = np.arange(self.rounds), np.ones(self.rounds, dtype=np.int64)
        summed(
            every, rows=one, contexts=prompts + positions, drafted=lengths, branches=branches, unseen=unseen
        )
        most(every, longest=lengths, widest=branches, most_unseen=unseen)
        first(every, "first_prompt")
        fresh = np.flatnonzero(offsets == 0)
        summed(fresh, fresh=one, fresh_contexts=prompts)
        most(fresh, fresh_longest=prompts)
        first(fresh, "fresh_first")
        missed = np.flatnonzero(hits == 0) if redrafts else fresh[:0]
        after = np.concatenate([positions[1:], [0]])
        summed(missed, missed=one, missed_contexts=prompts + after)
        first(missed, "missed_first")
        return np.stack([fields[name] for name in FIELDS])

    @property
    def _redrafts(self) -> bool:
        config = self.settings.config
        return isinstance(config, SaguaroConfig) and config.backup == "primary"

    def _looped(self, listed: tuple[np.ndarray, np.ndarray] | None) -> Iterator[Rounds]:
        chain, guess = _branches(self.settings)
        width, begun = self.width, np.zeros(4, dtype=np.int64)
        longest = int((self.ends - self.begins).max())
        most = min(CHUNK, 2 * (self.rounds // width + 1 + longest))
        seats = [np.full(width, -1, dtype=np.int64), *np.zeros((2, width), dtype=np.int64)]
        order, owners = listed or np.zeros((2, 1), dtype=np.int32)
        while True:
            first = int(begun[1])
            totals = np.empty(most * len(FIELDS), dtype=np.int64)
            made = line_up(
                min(most * width, self.rounds),
                most,
                width,
                self.begins,
                self.ends,
                self.prompts,
                *self.walks.columns(),
                chain,
                guess,
                self._redrafts,
                self._redrafts and self._rows_wait,
                listed is not None,
                *seats,
                begun,
                totals,
                self.admitted,
                order,
                owners,
            )
            if made == 0:
                return
            yield Rounds(totals.reshape(len(FIELDS), most)[:, :made], first)

    @cached_property
    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """([rounds of all rows] their indices, [..] their requests' places) as they are committed."""
        order, owners = np.zeros((2, self.rounds), dtype=np.int32)
        for _ in self._laid_out((order, owners)):
            pass
        return order, owners

    def table(self) -> dict[str, IntArray]:
        """The columns of a `RoundLog`, as the event world writes them."""
        return self._columns(*self.order)

    @cached_property
    def counts(self) -> RoundCounts:
        """What a summary counts of them: each round of each text once, however often it is served."""
        walks = self.walks
        own, first, often = np.unique(self.own, return_index=True, return_counts=True)
        lengths = walks.ends[own] - walks.begins[own]
        rounds = np.repeat(walks.begins[own] - np.cumsum(lengths) + lengths, lengths)
        rounds += np.arange(len(rounds))
        accepted = walks.accepted[rounds].astype(np.int64)
        left = np.repeat(self.limits[first], lengths) - walks.positions[rounds]
        table = {
            "length": walks.lengths[rounds],
            "source": _sources(self.settings)[walks.states[rounds]],
            "accepted": accepted,
            "emitted": np.minimum(accepted + 1, left),
            "hit": walks.hits[rounds],
        }
        return count_rounds(table, runs_on=self.settings.policy == "pearl", times=np.repeat(often, lengths))

    def _columns(self, rounds: np.ndarray, owners: np.ndarray) -> dict[str, IntArray]:
        walks, tokens = self.walks, self.tokens.tokens
        positions, accepted = (
            column[rounds].astype(np.int64) for column in (walks.positions, walks.accepted)
        )
        emitted = np.minimum(accepted + 1, self.limits[owners] - positions)
        bonus = np.full(len(rounds), UNKNOWN, dtype=np.int64)
        if tokens is not None:
            last = np.minimum(self.tokens.starts[self.ids[owners]] + positions + accepted, len(tokens) - 1)
            bonus = np.where(emitted > accepted, tokens[last], bonus)
        return {
            "request": self.ids[owners],
            "position": positions,
            "length": walks.lengths[rounds].astype(np.int64),
            "source": _sources(self.settings)[walks.states[rounds]],
            "accepted": accepted,
            "emitted": emitted,
            "bonus": bonus,
            "hit": walks.hits[rounds].astype(np.int64),
        }


def line_up_of(tokens: TokenModel, settings: Settings, requests: Sequence[Request], width: int) -> Lineup:
    """The requests in a batch of so many rows, kept for the next run that asks for the same.

    Raises:
        SettingError: The run's sampling is not that of the recording.
    """
    rule = Rule(tokens, settings)
    walks = walks_of(rule)
    # The list is kept, so that no other one gets its identity.
    key = (width, settings, id(requests))
    if key not in walks.lined_up:
        if len(walks.lined_up) >= KEPT_LINEUPS:
            walks.lined_up.pop(next(iter(walks.lined_up)))
        walks.lined_up[key] = Lineup(rule, settings, walks, requests, width)
    found: Lineup = walks.lined_up[key]
    return found


def _branches(settings: Settings) -> tuple[IntArray, IntArray]:
    """[K + 1] branches per draft device of a row that verifies so many of the draft's tokens, or others.

    As `policies.operation.Prespeculate.branches`.
    """
    config = settings.config
    if not isinstance(config, SaguaroConfig):
        return (np.zeros((settings.lookahead or 0) + 1, dtype=np.int64),) * 2
    chain, guess = (
        -(-np.cumsum(fanout) // config.draft_devices)
        for fanout in (config.fanout, config.fanout_backup or config.fanout)
    )
    return chain, guess


def _sources(settings: Settings) -> IntArray:
    """[states] where the tokens of each come from."""
    guess = Source.RANDOM if settings.backup == "random" else Source.NGRAM
    return np.array([Source.NONE, Source.PRIMARY, guess], dtype=np.int64)
