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
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from policies.laws.ssd import PowerLaw
from policies.operation import Continue, Prespeculate, Settle, Verify
from policies.registry import SettingError
from policies.sampling import Sampling
from policies.values import UNKNOWN, BoolArray, IntArray, Request, Source, Speculation, Verdict, View
from simulator.tokens.outcomes import Outcomes
from simulator.tokens.sampled import SampledOutcomes

_PRIMARY, _RANDOM, _NGRAM = int(Source.PRIMARY), int(Source.RANDOM), int(Source.NGRAM)
_FANOUT, _BEFORE = 0, 1


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
        speculation, slots = operation.speculation, view.slots
        self.check_sampling(operation.sampling, speculation.shape)
        here = self.starts[view.requests] + view.positions
        lengths = speculation.lengths[slots]
        accepted = np.minimum(lengths, self._run(operation.sampling, speculation)[here])
        if speculation.has_guesses:
            self._accept_guesses(operation, here, accepted)
        # Runs end with the request, so the accepted tokens fit in its room unless the limit is lower.
        accepted = np.minimum(accepted, view.rooms)
        emitted = np.minimum(accepted + 1, view.rooms)
        if operation.leave_open:
            emitted = np.where(accepted == lengths, accepted, emitted)
        bonus = np.full(len(slots), UNKNOWN, dtype=np.int64)
        if self.tokens is not None:
            last = np.minimum(here + accepted, len(self.tokens) - 1)
            bonus = np.where(emitted > accepted, self.tokens[last], bonus)
        width = len(speculation.lengths)
        return Verdict(
            _spread(accepted, slots, width),
            _spread(emitted, slots, width),
            _spread(emitted == view.rooms, slots, width),
            _spread(bonus, slots, width, UNKNOWN),
            None if view.tails is None else self._emitted_ids(here, emitted, slots, width),
        )

    def settle(self, operation: Settle) -> Verdict:
        """The verdict of a verification that left its bonus open, completed.

        Exact, although the proposal is not looked at: accepted or not, what is emitted there is the path's
        own token.  Whether it was accepted is for `continues` to say, from the same luck.
        """
        return self.verify(operation.view, Verify(operation.view, operation.speculation, operation.sampling))

    def hits(self, view: View, operation: Prespeculate, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome is one of those that `operation` prepared for.

        Raises:
            SettingError: A fan-out is more than the ranks recorded can decide.
        """
        speculation, slots = operation.speculation, view.slots
        here = self.starts[view.requests] + view.positions
        accepted = verdict.accepted[slots]
        at = np.minimum(here + accepted, len(self.need_free) - 1)
        need = self.need_free[at]
        if not operation.keep_rejected:
            rejected = accepted < speculation.lengths[slots]
            need = np.where(rejected, self._need_after(operation, accepted, at), need)
            if speculation.has_guesses:
                self._leave_out_guesses(operation, at, accepted, rejected, need=need)
        hit = (self._prepared(_FANOUT, operation, accepted, slots) >= need) & ~verdict.ended[slots]
        share, count = operation.part
        if count > 1:  # the target's token is the need-th of the outcomes with its number accepted
            hit &= (self._prepared(_BEFORE, operation, accepted, slots) + need - 1) % count == share
        return _spread(hit, slots, len(speculation.lengths))

    def continues(self, view: View, operation: Continue, verdict: Verdict) -> BoolArray:
        """[B] whether all was accepted, and then the draft's next token too (PEARL)."""
        speculation, slots = operation.speculation, view.slots
        here = self.starts[view.requests] + view.positions
        lengths = speculation.lengths[slots]
        run = self._run(operation.sampling, speculation)
        hit = (run[here] > lengths) & (verdict.accepted[slots] == lengths) & ~verdict.ended[slots]
        return _spread(hit, slots, len(speculation.lengths))

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

    def _run(self, sampling: Sampling, speculation: Speculation) -> IntArray:
        """[n] accepted runs of the primary draft's tokens."""
        if self.sampled is None:
            return self.run
        return self.sampled.outcomes(sampling, Source.PRIMARY, speculation.shape).run

    def _need_after(self, operation: Prespeculate, accepted: IntArray, at: IntArray) -> IntArray:
        """Fan-out needed where the primary draft's token after `accepted` ones was rejected."""
        if self.by_depth is not None:
            return self.by_depth.need_after(accepted, at)
        if self.sampled is None:
            return self.need_rejected[at]
        outcomes = self.sampled.outcomes(operation.sampling, Source.PRIMARY, operation.speculation.shape)
        return outcomes.need_after(accepted, at)

    def _prepared(self, line: int, operation: Prespeculate, accepted: IntArray, slots: IntArray) -> IntArray:
        """A line of `_fanout_table` at each row's number of accepted tokens; see `Prespeculate.fanout_of`."""
        values = self._table(operation.fanout)[line][accepted]
        if operation.fanout_backup is None:
            return values
        primary = operation.speculation.sources[slots] == _PRIMARY
        return np.where(primary, values, self._table(operation.fanout_backup)[line][accepted])

    def _table(self, fanout: tuple[int, ...]) -> tuple[IntArray, IntArray]:
        self.check_fanout(max(fanout))
        return _fanout_table(fanout)

    def _emitted_ids(
        self, here: IntArray, emitted: IntArray, slots: IntArray, width: int
    ) -> tuple[tuple[int, ...], ...]:
        """Per slot the ids emitted."""
        if self.tokens is None:
            raise SettingError("coin tosses have no token ids, which this run keeps; replay a trace")
        texts: list[tuple[int, ...]] = [()] * width
        for slot, start, count in zip(slots.tolist(), here.tolist(), emitted.tolist(), strict=True):
            texts[slot] = tuple(self.tokens[start : start + count].tolist())
        return tuple(texts)

    def _accept_guesses(self, operation: Verify, here: IntArray, accepted: IntArray) -> None:
        """Set `accepted` [R] of the rows that verify a backup's tokens; `here` are their first positions."""
        speculation, slots = operation.speculation, operation.view.slots
        known, drawn = self._deciders(operation)
        if drawn.any():
            assert self.sampled is not None
            run = self.sampled.outcomes(operation.sampling, Source.RANDOM).run
            accepted[drawn] = np.minimum(speculation.lengths[slots[drawn]], run[here[drawn]])
        if not known.any():
            return
        if self.tokens is None or speculation.tokens is None:  # without ids none is the path's own
            accepted[known] = 0
            return
        guessed = speculation.tokens[slots[known]]
        at = here[known][:, None] + np.arange(guessed.shape[1])
        same = guessed == self.tokens[np.minimum(at, len(self.tokens) - 1)]
        same &= np.arange(guessed.shape[1]) < speculation.lengths[slots[known]][:, None]
        accepted[known] = np.cumprod(same, axis=1).sum(axis=1)

    def _leave_out_guesses(
        self,
        operation: Prespeculate,
        at: IntArray,
        accepted: IntArray,
        rejected: BoolArray,
        *,
        need: IntArray,
    ) -> None:
        """Set `need`, [R] fan-outs needed, of the rows that verified a backup's tokens and had one rejected.

        A known token frees a place only if it outranks the path's: with rank(y) counted from 0 and s the
        rejected token, y is the (rank(y) + 1)-th choice, or the rank(y)-th once s, ranked above it, is left
        out.  `at` are the positions of the rejected tokens.
        """
        speculation, slots = operation.speculation, operation.view.slots
        known, drawn = (mask & rejected for mask in self._deciders(operation))
        if drawn.any():
            assert self.sampled is not None
            outcomes = self.sampled.outcomes(operation.sampling, Source.RANDOM)
            need[drawn] = outcomes.need_after(accepted[drawn], at[drawn])
        if not known.any():
            return
        need[known] = self.need_free[at[known]]
        if self.tokens is not None and speculation.tokens is not None:
            assert self.ranked is not None, "simulator.needs refuses such a setting"
            guessed = speculation.tokens[slots[known], accepted[known]]
            is_guessed = self.ranked[at[known] % len(self.ranked)] == guessed[:, None]
            need[known] -= is_guessed.any(axis=1) & (is_guessed.argmax(axis=1) < need[known] - 1)

    def _deciders(self, operation: Verify | Prespeculate) -> tuple[BoolArray, BoolArray]:
        """[R] masks: rows whose guessed tokens decide, and rows whose distribution decides.

        Sampled decoding does not look at random tokens: given the path, the verified token is no longer
        uniform, since the path's own token is all the likelier to be the one that was accepted.
        """
        sources = operation.speculation.sources[operation.view.slots]
        random, ngram = sources == _RANDOM, sources == _NGRAM
        return (random | ngram, np.zeros_like(random)) if self.sampled is None else (ngram, random)


PerRow = TypeVar("PerRow", IntArray, BoolArray)


def _spread(values: PerRow, slots: IntArray, width: int, elsewhere: int = 0) -> PerRow:
    """Per-row values of `slots` as an array of the whole batch, `elsewhere` in other rows."""
    if len(slots) == width:
        return values
    spread: PerRow = np.full(width, elsewhere, dtype=values.dtype)
    spread[slots] = values
    return spread


@lru_cache(maxsize=1024)
def _fanout_table(fanout: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """[K + 1] outcomes prepared with k tokens accepted, and with fewer; not to be changed."""
    counts = np.asarray(fanout, dtype=np.int64)
    return counts, np.cumsum(counts) - counts


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
