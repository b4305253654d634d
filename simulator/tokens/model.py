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

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from policies.laws.ssd import PowerLaw
from policies.operation import Continue, Prespeculate, Settle, Verify
from policies.registry import SettingError
from policies.sampling import Sampling
from policies.values import UNKNOWN, BoolArray, IntArray, Request, Source, Speculation, Verdict, View
from simulator.tokens.outcomes import Outcomes

if TYPE_CHECKING:
    from simulator.tokens.sampled import SampledOutcomes


_RANDOM, _NGRAM = int(Source.RANDOM), int(Source.NGRAM)


def accept_guesses(
    model: TokenModel, operation: Verify, slots: IntArray, here: IntArray, accepted: IntArray
) -> None:
    """Set `accepted` of the rows that verify a backup's tokens.

    Args:
        model: The outcomes.
        operation: What is verified.
        slots: [R] rows it is about.
        here: [R] flat position of each row's first token.
        accepted: [R] tokens accepted, so far as if all were the primary draft's.
    """
    known, drawn = _deciders(model, operation, slots)
    lengths = operation.speculation.lengths[slots]
    if drawn.any():
        assert model.sampled is not None
        run = model.sampled.outcomes(operation.sampling, Source.RANDOM).run
        accepted[drawn] = np.minimum(lengths[drawn], run[here[drawn]])
    if known.any():
        accepted[known] = _agreeing(model, operation.speculation, slots[known], here[known])


def leave_out_guesses(
    model: TokenModel,
    operation: Prespeculate,
    slots: IntArray,
    at: IntArray,
    accepted: IntArray,
    *,
    need: IntArray,
) -> None:
    """Set `need`, [R] the fan-out needed, of the rows that verified a backup's tokens and had one rejected.

    Args:
        model: The outcomes.
        operation: What was prepared meanwhile.
        slots: [R] rows it is about.
        at: [R] flat position of each row's first token that was not accepted.
        accepted: [R] tokens accepted.
        need: Changed in place.
    """
    known, drawn = _deciders(model, operation, slots)
    rejected = accepted < operation.speculation.lengths[slots]
    known, drawn = known & rejected, drawn & rejected
    if drawn.any():
        assert model.sampled is not None
        outcomes = model.sampled.outcomes(operation.sampling, Source.RANDOM)
        need[drawn] = outcomes.need_after(accepted[drawn], at[drawn])
    if known.any():
        need[known] = _need_without(model, operation.speculation, slots[known], at[known], accepted[known])


def _deciders(
    model: TokenModel, operation: Verify | Prespeculate, slots: IntArray
) -> tuple[BoolArray, BoolArray]:
    """Masks over `slots`: rows whose guessed tokens decide, and rows whose distribution decides.

    Sampled decoding does not look at random tokens: given the path, the verified token is no longer
    uniform, since the path's own token is all the likelier to be the one that was accepted.
    """
    sources = operation.speculation.sources[slots]
    random = sources == _RANDOM
    if model.sampled is None:
        return random | (sources == _NGRAM), np.zeros_like(random)
    return sources == _NGRAM, random


def _agreeing(model: TokenModel, speculation: Speculation, slots: IntArray, here: IntArray) -> IntArray:
    """Leading guessed tokens per row that are the path's own; without ids there are none."""
    if model.tokens is None or speculation.tokens is None:
        return np.zeros(len(here), dtype=np.int64)
    guessed = speculation.tokens[slots]
    at = here[:, None] + np.arange(guessed.shape[1])
    same = guessed == model.tokens[np.minimum(at, len(model.tokens) - 1)]
    same &= np.arange(guessed.shape[1]) < speculation.lengths[slots][:, None]
    accepted: IntArray = np.cumprod(same, axis=1).sum(axis=1)
    return accepted


def _need_without(
    model: TokenModel, speculation: Speculation, slots: IntArray, at: IntArray, accepted: IntArray
) -> IntArray:
    """Fan-out needed when a known token was rejected: it frees a place only if it outranks the path's.

    With rank(y) counted from 0 and s the rejected token, y is the (rank(y) + 1)-th choice, or the
    rank(y)-th once s, ranked above it, is left out.
    """
    need = model.need_free[at]
    if model.tokens is None or speculation.tokens is None:
        return need
    assert model.ranked is not None, "simulator.checks refuses such a setting"
    guessed = speculation.tokens[slots, accepted]
    is_guessed = model.ranked[at % len(model.ranked)] == guessed[:, None]
    outranks = is_guessed.any(axis=1) & (is_guessed.argmax(axis=1) < need - 1)
    return np.where(outranks, need - 1, need)


_FANOUT, _BEFORE = 0, 1
_PRIMARY = int(Source.PRIMARY)


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Outcomes of every position, request after request, in flat arrays of n positions.

    Attributes:
        starts: [largest request id + 1] index of each request's first position; -1 for unknown ids.
        lengths: [largest request id + 1] positions of each request.
        run: [n] accepted run of the primary draft from each position, within the request; with sampled
            decoding that of a draft that samples from q itself, in a run of seed 0.
        need_rejected: [n] fan-out needed for a hit after a rejection there; likewise.
        need_free: [n] fan-out needed for a hit where nothing is left out of the cached set.
        tokens: [n] the target's token; None without ids.
        ranked: [m, M] the draft's first M choices; None without ids.  m is n, or that of the recording
            if n is a multiple of it.
        max_fanout: Largest F_k that the ranks recorded can decide.
        vocabulary: Number of token ids; 0 without ids.
        requests: What can be served, in order.
        power_law: The hit curve that coins are tossed by; None for a recording.
        setting: (temperature, top_p) of the target that the outcomes belong to; None for any.
        sampled: Outcomes of sampled decoding by the distribution of what is verified; None where `run` and
            `need_rejected` are all there is (greedy decoding, coins).
        by_depth: What a rejection needs where that depends on the tokens accepted before it (histograms);
            None where it does not.
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

    @property
    def decides_guesses(self) -> bool:
        """Whether a rejected guess's rank under the draft is known, or nothing is known of any token."""
        return self.tokens is None or self.ranked is not None

    def verify(self, view: View, operation: Verify) -> Verdict:
        """Outcome of a verification for the rows of `view`.

        Raises:
            SettingError: The run's sampling is not that of the recording, or there are no token ids for a
                policy that needs them.
        """
        speculation, slots = operation.speculation, view.slots
        self._check(operation.sampling, speculation)
        here = self.starts[view.requests] + view.positions
        lengths = speculation.lengths[slots]
        accepted = np.minimum(lengths, self._run(operation.sampling, speculation)[here])
        if speculation.has_guesses:
            accept_guesses(self, operation, slots, here, accepted)
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
                leave_out_guesses(self, operation, slots, at, accepted, need=need)
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
        and n-grams.  Averaged over the rejections on the recorded path.

        Args:
            sampling: Of the run.
            shape: F_0 ... F_(K-1) that rescale the draft's distributions; None for none.
            source: Of the tokens rejected.
        """
        if self.sampled is None or source == Source.NGRAM:
            return 0.0
        return self.sampled.slack(sampling, source, shape)

    def repeated(self, count: int) -> TokenModel:
        """The same model serving `count` requests: its own, then the same texts again under new ids.

        With sampled decoding each of them meets luck of its own.
        """
        base, ids = len(self.starts), [r.id for r in self.requests]
        rounds = -(-count // len(ids))
        again = [
            replace(request, id=request.id + base * k) for k in range(rounds) for request in self.requests
        ]
        longer = replace(
            self,
            starts=np.tile(self.starts, rounds),
            lengths=np.tile(self.lengths, rounds),
            requests=tuple(again[:count]),
        )
        return longer if self.sampled is None else longer._with_own_luck(rounds)

    def _with_own_luck(self, rounds: int) -> TokenModel:
        """This model, its `rounds` copies of each request moved to positions of their own."""
        assert self.sampled is not None and self.setting is not None and self.tokens is not None
        sampled = self.sampled.repeated(self.sampled.copies * rounds)
        plain = sampled.outcomes(Sampling(*self.setting), Source.PRIMARY)
        copy = np.repeat(np.arange(rounds), len(self.starts) // rounds)
        return replace(
            self,
            starts=np.where(self.starts < 0, self.starts, self.starts + copy * len(self.tokens)),
            run=plain.run,
            need_rejected=plain.need[0],
            need_free=np.tile(self.need_free, rounds),
            tokens=np.tile(self.tokens, rounds),
            sampled=sampled,
        )

    def _check(self, sampling: Sampling, speculation: Speculation) -> None:
        """Refuse what the outcomes do not belong to."""
        if self.setting is not None and (sampling.temperature, sampling.top_p) != self.setting:
            if sampling.temperature == self.setting[0] == 0.0:
                return
            raise other_sampling(self.setting, (sampling.temperature, sampling.top_p))
        if speculation.shape is not None and self.sampled is None:
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
        """See `_fanout_table`; refuses what the ranks recorded cannot decide."""
        if max(fanout) > self.max_fanout:
            raise SettingError(
                f"fan-out {max(fanout)} is more than this trace can decide: it records the draft's first "
                f"{self.max_fanout + 1} choices, enough for a fan-out of {self.max_fanout}"
            )
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
    temperature, top_p = wanted
    more = f" --top-p {top_p:g}" if temperature > 0.0 and top_p < 1.0 else ""
    how = " (greedily)" if recorded[0] == 0.0 else ""
    record = f"calibrate --temperature {temperature:g}{more}"
    return SettingError(
        f"this trace was recorded at {_describe(*recorded)}{how} and decides no run at {_describe(*wanted)}; "
        f"record one with `{record}` and give it with --trace"
    )


def _describe(temperature: float, top_p: float) -> str:
    cut = f" and top-p {top_p:g}" if temperature > 0.0 and top_p < 1.0 else ""
    return f"temperature {temperature:g}{cut}"
