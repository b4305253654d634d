"""The token model: outcomes of verifications, in flat arrays that a round only has to index.

Whatever the policy does, three numbers per position of a request decide its rounds:

- `run`: how many consecutive tokens from here are accepted;
- `need_rejected`: the smallest fan-out whose cached set holds the target's token, given that a token was
  verified here and rejected, which the set leaves out;
- `need_free`: the same when nothing is left out (nothing was rejected, or the set keeps the rejected one).

With greedy decoding they are facts of the recording, for the primary draft.  With sampled decoding `run` and
`need_rejected` depend on what the verified tokens were drawn from (`simulator.tokens.sampled`).
What was guessed rather than drafted (random tokens, n-grams) is known, and compared with the path.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from policies.laws.ssd import PowerLaw
from policies.operation import Continue, Prespeculate, Settle, Verify
from policies.registry import SettingError
from policies.sampling import Sampling
from policies.values import NO_SLOTS, UNKNOWN, IntArray, Ints, Request, Slots, Source, Verdict, View
from simulator.tokens.outcomes import NEVER, Outcomes
from simulator.tokens.sampled import SampledOutcomes

_PRIMARY, _RANDOM = int(Source.PRIMARY), int(Source.RANDOM)
_GUESSED = (_RANDOM, int(Source.NGRAM))


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Outcomes of every position, request after request, in flat arrays of n positions.

    Attributes:
        starts: [largest request id + 1] index of each request's first position; -1 for unknown ids.
        lengths: [largest request id + 1] positions of each request.
        run: [n] accepted run of the primary draft from each position, within the request; with sampled
            decoding that of a draft that samples from q itself, in a run of seed 0.
        need_rejected: [n] fan-out needed for a hit after a rejection there, of the draft that `run` is of.
        need_free: [n] fan-out needed for a hit where nothing is left out of the cached set.
        tokens: [n] the target's token; None without ids.
        ranked: [m, M] the draft's first M choices; None without ids.  m is n, or that of the recording
            if n is a multiple of it.
        max_fanout: Largest F_k that the ranks recorded can decide.
        vocabulary: Number of token ids; 0 without ids.
        power_law: The hit curve that coins are tossed by; None for a recording.
        setting: (temperature, top_p) of the target that the outcomes belong to; None for any.
        sampled: Outcomes of sampled decoding by the distribution of what is verified; None where `run` and
            `need_rejected` are all there is (greedy decoding, coins).
        by_depth: What a rejection needs where that depends on the tokens accepted before it (histograms);
            None where it does not.
        replays: What compiled replays laid out of these arrays, by setting; copies that serve other requests
            share it.
        probed: What was asked of all rounds of these requests (`simulator.probe`); of this copy alone.
    """

    starts: IntArray
    lengths: IntArray
    run: IntArray
    need_rejected: IntArray
    need_free: IntArray
    tokens: IntArray | None
    ranked: IntArray | None
    max_fanout: int
    vocabulary: int
    requests: tuple[Request, ...]
    power_law: PowerLaw | None = None
    setting: tuple[float, float] | None = None
    sampled: SampledOutcomes | None = None
    by_depth: Outcomes | None = None
    replays: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    looked_up: list[Any] = field(default_factory=list, init=False, compare=False, repr=False)
    """The table that rows looked something up in last, and what it is of."""
    probed: dict[Hashable, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        lengths: Sequence[int] | IntArray,
        *,
        tokens: IntArray | None = None,
        ranked: IntArray | None = None,
        vocabulary: int = 0,
        **outcomes: Any,
    ) -> TokenModel:
        """A model of requests that lie one after the other, each of so many positions."""
        ids = [request.id for request in requests]
        starts = np.full(max(ids) + 1, -1, dtype=np.int64)
        sizes = np.zeros(max(ids) + 1, dtype=np.int64)
        starts[ids] = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        sizes[ids] = lengths
        return cls(
            starts=starts,
            lengths=sizes,
            tokens=tokens,
            ranked=ranked,
            vocabulary=vocabulary,
            requests=tuple(requests),
            **outcomes,
        )

    @property
    def decides_guesses(self) -> bool:
        """Whether a rejected guess's rank under the draft is known, or nothing is known of any token."""
        return self.tokens is None or self.ranked is not None

    def check_fanout(self, widest: int) -> None:
        """Refuse a fan-out that the tokens cannot decide.

        Raises:
            SettingError: It is such a one.
        """
        if widest > self.max_fanout:
            raise SettingError(
                f"fan-out {widest} is more than this trace can decide: it records the draft's first "
                f"{self.max_fanout + 1} choices, enough for a fan-out of {self.max_fanout}"
                if self.vocabulary
                else f"fan-out {widest} is more than the given acceptance can decide: its hit curve reaches "
                f"to {self.max_fanout}"
            )

    def verify(self, view: View, operation: Verify) -> Verdict:
        """Outcome of a verification for the rows of `view`.

        Raises:
            SettingError: The run's sampling is not that of the recording, or there are no token ids for a
                policy that needs them.
        """
        speculation, slots, leave_open = operation.speculation, view.slots, operation.leave_open
        table = self._table_of(operation.sampling, speculation.shape)
        start, run, token, last = table.start, table.run, table.token, table.last
        lengths, guesses = speculation.lengths, speculation.has_guesses
        places: list[int] = []
        accepted: list[int] = []
        emitted: list[int] = []
        bonus: list[int] = []
        ended = []
        for slot, request, position, room in zip(
            slots, view.requests, view.positions, view.rooms, strict=True
        ):
            here, length = start[request] + position, lengths[slot]
            count = self._accepted_guess(operation, slot, here, run[here]) if guesses else run[here]
            if count > length:  # noqa: PLR1730 - `min` takes as long as all else
                count = length
            # Runs end with the request, so the accepted tokens fit in its room unless the limit is lower.
            if count < room:
                said = count if leave_open and count == length else count + 1
            else:
                count = said = room
            if said == room:
                ended.append(slot)
            places.append(here)
            accepted.append(count)
            emitted.append(said)
            if token is not None and said > count:
                here += count
                bonus.append(token[here if here < last else last])
            else:
                bonus.append(UNKNOWN)
        table.view, table.places = view, places
        texts = None
        if view.tails is not None:
            texts = [self._ids(here, said) for here, said in zip(places, emitted, strict=True)]
        if len(slots) < len(lengths):
            rows = slots, len(lengths)
            accepted, emitted = _spread(accepted, *rows, 0), _spread(emitted, *rows, 0)
            bonus = _spread(bonus, *rows, UNKNOWN)
            texts = None if texts is None else _spread(texts, *rows, ())
        return Verdict(
            tuple(accepted),
            tuple(emitted),
            frozenset(ended) if ended else NO_SLOTS,
            tuple(bonus),
            None if texts is None else tuple(texts),
        )

    def settle(self, operation: Settle) -> Verdict:
        """The verdict of a verification that left its bonus open, completed.

        Exact, although the proposal is not looked at: accepted or not, what is emitted there is the path's
        own token.  Whether it was accepted is for `continues` to say, from the same luck.
        """
        return self.verify(operation.view, Verify(operation.view, operation.speculation, operation.sampling))

    def hits(self, view: View, operation: Prespeculate, verdict: Verdict) -> Slots:
        """The rows whose outcome is one of those that `operation` prepared for.

        Raises:
            SettingError: A fan-out is more than the ranks recorded can decide.
        """
        speculation, keep, (share, devices) = operation.speculation, operation.keep_rejected, operation.part
        table = self._table_of(operation.sampling, speculation.shape)
        primary = backup = table.fanouts.get(operation.fanout) or self._fanout(table, operation.fanout)
        if operation.fanout_backup is not None:
            backup = self._fanout(table, operation.fanout_backup)
        need_free, rejected, last = table.need_free, table.need_rejected, table.last
        deepest, guesses, ended, found = len(rejected) - 1, speculation.has_guesses, verdict.ended, []
        lengths, sources, accepted_of = speculation.lengths, speculation.sources, verdict.accepted
        for slot, here in zip(view.slots, table.placed(view), strict=True):
            if slot in ended:
                continue
            accepted, source = accepted_of[slot], sources[slot]
            at = here + accepted if here + accepted < last else last
            if keep or accepted == lengths[slot]:
                need = need_free[at]
            elif guesses and source in _GUESSED:
                need = self._need_after_guess(operation, slot, accepted, at)
            else:
                need = rejected[accepted if accepted < deepest else deepest][at]
            counts, before = primary if source == _PRIMARY else backup
            # The target's token is the need-th of the outcomes with its number accepted.
            if counts[accepted] >= need and (
                devices == 1 or (before[accepted] + need - 1) % devices == share
            ):
                found.append(slot)
        return frozenset(found)

    def continues(self, view: View, operation: Continue, verdict: Verdict) -> Slots:
        """The rows of which all was accepted, and then the draft's next token too (PEARL)."""
        speculation = operation.speculation
        table = self._table_of(operation.sampling, speculation.shape)
        lengths, accepted, ended, run = speculation.lengths, verdict.accepted, verdict.ended, table.run
        return frozenset(
            slot
            for slot, here in zip(view.slots, table.placed(view), strict=True)
            if slot not in ended and accepted[slot] == (length := lengths[slot]) and run[here] > length
        )

    def tail_error(
        self, sampling: Sampling, shape: tuple[int, ...] | None = None, source: Source = Source.PRIMARY
    ) -> float:
        """Largest error of the hit rate after rejections that unrecorded tails may cause, in 0..1.

        It is 0 where replay is exact: for greedy decoding, greedy drafts, drafts that sample from q itself
        and n-grams.  Averaged over the rejections on the recorded path.  `shape` are the F_0 ... F_(K-1)
        that rescale the draft's distributions, `source` is that of the tokens rejected.
        """
        if self.sampled is None or source == Source.NGRAM:
            return 0.0
        return self.sampled.slack(sampling, source, shape)

    def repeated(self, count: int) -> TokenModel:
        """The same model serving `count` requests: its own, then the same texts again under new ids.

        With sampled decoding each of them meets luck of its own.
        """
        base, rounds = len(self.starts), -(-count // len(self.requests))
        again = [
            Request(r.id + base * k, r.prompt_length, r.limit, r.prompt)
            for k in range(rounds)
            for r in self.requests
        ]
        longer = replace(
            self,
            starts=np.tile(self.starts, rounds),
            lengths=np.tile(self.lengths, rounds),
            requests=tuple(again[:count]),
        )
        if self.sampled is None:
            return longer
        assert self.setting is not None and self.tokens is not None
        # Each copy of a request has positions of its own.
        sampled = self.sampled.repeated(self.sampled.copies * rounds)
        plain = sampled.outcomes(Sampling(*self.setting), Source.PRIMARY)
        moved = longer.starts + np.repeat(np.arange(rounds), base) * len(self.tokens)
        return replace(
            longer,
            starts=np.where(longer.starts < 0, longer.starts, moved),
            run=plain.run,
            need_rejected=plain.need[0],
            need_free=np.tile(self.need_free, rounds),
            tokens=np.tile(self.tokens, rounds),
            sampled=sampled,
            replays=sampled.replays,
        )

    def check_sampling(self, sampling: Sampling, shape: tuple[int, ...] | None) -> None:
        """Refuse what the outcomes do not belong to; `shape` is that of rescaled distributions.

        Raises:
            SettingError: The run samples otherwise than the recording, or rescales what there is not.
        """
        if self.setting is not None and (sampling.temperature, sampling.top_p) != self.setting:
            if sampling.temperature == self.setting[0] == 0.0:
                return
            raise other_sampling(self.setting, (sampling.temperature, sampling.top_p))
        if shape is not None and self.sampled is None:
            raise SettingError(
                "Saguaro's C rescales distributions, which coin tosses do not have; give a sampled trace"
            )

    def _table_of(self, sampling: Sampling, shape: Ints | None) -> _Table:
        """What rows look up, one at a time.

        Raises:
            SettingError: See `check_sampling`.
        """
        known = self.looked_up
        if known and known[0] is sampling and known[1] == shape:
            found: _Table = known[2]
            return found
        self.check_sampling(sampling, shape)
        needs = self._needs(sampling, shape)
        which = (0,) if needs.proposal_at is None else needs.proposal_at.tolist()
        table = _Table(
            self.starts.data,
            self.runs(sampling, shape).data,
            self.need_free.data,
            [np.ascontiguousarray(needs.need[each]).data for each in which],
            None if self.tokens is None else np.ascontiguousarray(self.tokens).data,
            len(self.need_free) - 1,
        )
        known[:] = sampling, shape, table
        return table

    def runs(self, sampling: Sampling, shape: tuple[int, ...] | None) -> IntArray:
        """[n] accepted runs of the primary draft's tokens; `shape` as in `Speculation`."""
        if self.sampled is None:
            return self.run
        return self.sampled.outcomes(sampling, Source.PRIMARY, shape).run

    def need_after(
        self, sampling: Sampling, shape: tuple[int, ...] | None, accepted: IntArray, at: IntArray
    ) -> IntArray:
        """[r] fan-out needed where the primary token after `accepted` [r] ones was rejected at `at` [r]."""
        return self._needs(sampling, shape).need_after(accepted, at)

    def _needs(self, sampling: Sampling, shape: tuple[int, ...] | None) -> Outcomes:
        if self.by_depth is not None:
            return self.by_depth
        if self.sampled is None:
            return Outcomes(self.run, self.need_rejected[None])
        return self.sampled.outcomes(sampling, Source.PRIMARY, shape)

    def _fanout(self, table: _Table, fanout: Ints) -> tuple[Ints, Ints]:
        """[K + 1] outcomes prepared with k tokens accepted, and with fewer."""
        if fanout not in table.fanouts:
            self.check_fanout(max(fanout))
            table.fanouts[fanout] = fanout, tuple(accumulate(fanout, initial=0))[:-1]
        return table.fanouts[fanout]

    def _ids(self, here: int, count: int) -> Ints:
        """So many ids from a position on."""
        if self.tokens is None:
            raise SettingError("coin tosses have no token ids, which this run keeps; replay a trace")
        return tuple(self.tokens[here : here + count].tolist())

    def _by_distribution(self, operation: Verify | Prespeculate, slot: int) -> bool:
        """Whether a guess is decided by the distribution that it was drawn from, and not by its tokens.

        Sampled decoding does not look at random tokens: given the path, the verified token is no longer
        uniform, since the path's own token is all the likelier to be the one that was accepted.
        """
        return self.sampled is not None and operation.speculation.sources[slot] == _RANDOM

    def _accepted_guess(self, operation: Verify, slot: int, here: int, run: int) -> int:
        """How many tokens are accepted from a position on, the draft's `run` where a row verifies those."""
        speculation = operation.speculation
        if speculation.sources[slot] not in _GUESSED:
            return run
        if self._by_distribution(operation, slot):
            assert self.sampled is not None
            return self.sampled.outcomes(operation.sampling, Source.RANDOM).run.item(here)
        if self.tokens is None or speculation.tokens is None:  # without ids none is the path's own
            return 0
        guessed = speculation.tokens[slot]
        path, count = self._ids(here, len(guessed)), 0
        while count < len(path) and path[count] == guessed[count]:
            count += 1
        return count

    def _need_after_guess(self, operation: Prespeculate, slot: int, accepted: int, at: int) -> int:
        """Fan-out needed where a backup's token was rejected at a position.

        A known token frees a place only if it outranks the path's: with rank(y) counted from 0 and s the
        rejected token, y is the (rank(y) + 1)-th choice, or the rank(y)-th once s, ranked above it, is left
        out.
        """
        if self._by_distribution(operation, slot):
            assert self.sampled is not None
            outcomes = self.sampled.outcomes(operation.sampling, Source.RANDOM)
            return int(outcomes.need_after(np.array([accepted]), np.array([at]))[0])
        need, guesses = self.need_free.item(at), operation.speculation.tokens
        if self.tokens is None or guesses is None:
            return need
        assert self.ranked is not None, "simulator.needs refuses such a setting"
        above: list[int] = self.ranked[at % len(self.ranked), : max(0, min(need, NEVER) - 1)].tolist()
        return need - (guesses[slot][accepted] in above)


@dataclass(slots=True)
class _Table:
    """Numbers by request and by position, as `TokenModel` has them; of needs after a rejection one column for
    each number of accepted tokens.

    Views of the arrays: a look-up in them takes half the time of one in numpy's, and they take no memory.
    Beside them what was prepared by fan-out (`TokenModel.hits`).
    """

    start: Any
    run: Any
    need_free: Any
    need_rejected: list[Any]
    token: Any
    last: int
    fanouts: dict[Ints, tuple[Ints, Ints]] = field(default_factory=dict)
    view: View | None = None
    places: list[int] = field(default_factory=list)

    def placed(self, view: View) -> list[int]:
        """[n] index of each row's next position; those of the view seen last are kept."""
        if view is not self.view:
            start, rows = self.start, zip(view.requests, view.positions, strict=True)
            self.view, self.places = view, [start[request] + position for request, position in rows]
        return self.places


_Each = TypeVar("_Each")


def _spread(values: list[_Each], slots: Ints, width: int, elsewhere: _Each) -> list[_Each]:
    """[B] of [n] values of some rows, `elsewhere` in others."""
    spread = [elsewhere] * width
    for slot, value in zip(slots, values, strict=True):
        spread[slot] = value
    return spread


def other_sampling(recorded: tuple[float, float], wanted: tuple[float, float]) -> SettingError:
    """The error of a run whose target samples otherwise than the trace's did; each (temperature, top_p)."""

    def described(temperature: float, top_p: float, cut: str) -> str:
        return f"{temperature:g}" + (f"{cut} {top_p:g}" if temperature > 0.0 and top_p < 1.0 else "")

    how = " (greedily)" if recorded[0] == 0.0 else ""
    ran, runs = (described(*setting, " and top-p") for setting in (recorded, wanted))
    return SettingError(
        f"this trace was recorded at temperature {ran}{how} and decides no run at temperature {runs}; "
        f"record one with `calibrate --temperature {described(*wanted, ' --top-p')}` and give it with --trace"
    )
