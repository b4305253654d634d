"""What rounds accept, emit and find in their cache, without any time: once per token model and setting.

It follows from flat arrays: for every position and everything that a row may verify there, how many tokens
are accepted and whether the outcome was prepared for.  A request's rounds are a walk over these.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from policies.pearl import PearlConfig
from policies.pld import PldConfig
from policies.registry import Settings
from policies.sampling import keyed_uniforms
from policies.sd import SdConfig
from policies.ssd import SaguaroConfig
from policies.values import BoolArray, IntArray, Request, Source
from simulator.compiled.loops import CHAIN, GUESS, NOTHING, walk
from simulator.tokens import TokenModel, accepted_runs

KEPT_ROUNDS = 4_000_000
"""Rounds of rows that are kept of a token model, over all settings."""
KEPT_WALKS = 512
"""Settings of which that is."""
BACKUP_LONGEST = 3
"""Longest ending that an n-gram backup searches for, as `policies.pld.guess_from_text` has it."""


class Guesses(NamedTuple):
    """A backup's guess at each of m positions, request after request.

    Attributes:
        begins: [q] index of each request's first position.
        lengths: [m] tokens guessed; 0 where there is nothing to guess from.
        runs: [m] how many of them are accepted.
        needs: [m] fan-out needed for a hit after them.
    """

    begins: IntArray
    lengths: IntArray
    runs: IntArray
    needs: IntArray


class Rule:
    """How a setting's rounds follow from a token model.

    Raises:
        SettingError: The run's sampling is not that of the recording.
    """

    def __init__(self, tokens: TokenModel, settings: Settings) -> None:
        config = settings.config
        self.tokens = tokens
        self.sampling = settings.sampling
        self.shape: tuple[int, ...] | None = None
        self.longest = BACKUP_LONGEST
        self.depth = settings.lookahead or 0
        self.chain = self.depth
        self.guessed = ""
        self.first, self.missed = NOTHING, NOTHING
        knobs: tuple[Any, ...] = ()
        if isinstance(config, SdConfig):
            self.first = CHAIN
        elif isinstance(config, PldConfig):
            self.first, self.guessed, self.longest = GUESS, "ngram", config.longest_suffix
            knobs = (self.longest,)
        elif isinstance(config, PearlConfig):
            self.chain = self.depth - 1
        elif isinstance(config, SaguaroConfig):
            self.shape = config.shape(self.sampling)
            self.guessed = config.backup if config.backup in {"random", "ngram"} else ""
            self.missed = CHAIN if config.backup == "primary" else GUESS if self.guessed else NOTHING
            self.first = CHAIN if config.first == "primary" else self.missed
            knobs = (config.fanout, config.fanout_backup, config.backup, config.first, config.cache_set)
        self.cached = isinstance(config, PearlConfig | SaguaroConfig)
        self.config = config
        self.key = (settings.policy, self.depth, self.sampling, *knobs)
        tokens.check_sampling(self.sampling, self.shape)

    def identities(self, requests: Sequence[Request]) -> list[tuple[int, int, int]]:
        """[q] what each request's rounds depend on beside the rule."""
        keyed = self.guessed == "random" and self.tokens.sampled is None and self.tokens.tokens is not None
        starts = self.tokens.starts[[request.id for request in requests]].tolist()
        return [(s, r.limit, r.id if keyed else -1) for s, r in zip(starts, requests, strict=True)]

    def runs(self) -> IntArray:
        """[n] accepted runs of the draft's tokens."""
        return self.tokens.runs(self.sampling, self.shape)

    def chain_hits(self, runs: IntArray) -> BoolArray:
        """[n] whether a round that verifies a whole chain hits."""
        accepted = np.minimum(runs, self.chain)
        if isinstance(self.config, PearlConfig):
            return np.asarray(runs > self.chain)
        if not isinstance(self.config, SaguaroConfig):
            return np.zeros(len(runs), dtype=np.bool_)
        at = np.minimum(np.arange(len(runs)) + accepted, len(runs) - 1)
        need = self.tokens.need_free[at]
        if self.config.cache_set != "top":
            rejected = accepted < self.chain
            after = self.tokens.need_after(self.sampling, self.shape, accepted, at)
            need = np.where(rejected, after, need)
        return np.asarray(np.array(self.config.fanout)[accepted] >= need)

    def none_hits(self, runs: IntArray) -> BoolArray:
        """[n] whether a round that verifies nothing hits."""
        if isinstance(self.config, PearlConfig):
            return np.asarray(runs > 0)
        if not isinstance(self.config, SaguaroConfig):
            return np.zeros(len(runs), dtype=np.bool_)
        return np.asarray(self._backup_fanout[0] >= self.tokens.need_free)

    def guess_hits(self, guesses: Guesses) -> BoolArray:
        """[m] whether a round that verifies a backup's tokens hits."""
        if not isinstance(self.config, SaguaroConfig):
            return np.zeros(len(guesses.runs), dtype=np.bool_)
        return np.asarray(np.array(self._backup_fanout)[guesses.runs] >= guesses.needs)

    @property
    def _backup_fanout(self) -> tuple[int, ...]:
        assert isinstance(self.config, SaguaroConfig)
        return self.config.fanout_backup or self.config.fanout

    def guesses(self, requests: Sequence[Request]) -> Guesses:
        """What is guessed at every position of some requests; kept, since fan-outs do not change it."""
        kept, whole = _kept_of(self.tokens).guesses, tuple(self.identities(requests))
        key = (self.guessed, self.depth, self.longest, self.sampling, self._keeps_rejected, whole)
        if key in kept:
            return kept[key]
        found = self._guesses(requests)
        if len(kept) * len(found.runs) <= KEPT_ROUNDS // 8:  # most are of the same requests
            kept[key] = found
        return found

    @property
    def _keeps_rejected(self) -> bool:
        return isinstance(self.config, SaguaroConfig) and self.config.cache_set == "top"

    def _guesses(self, requests: Sequence[Request]) -> Guesses:
        tokens, limits = self.tokens, np.array([request.limit for request in requests])
        begins = np.cumsum(limits) - limits
        offsets = np.arange(int(limits.sum())) - np.repeat(begins, limits)
        here = np.repeat(tokens.starts[[request.id for request in requests]], limits) + offsets
        last = len(tokens.run) - 1
        if self.guessed == "ngram":
            parts = [self._looked_up(request) for request in requests]
            lengths, runs, rejected = (np.concatenate(column) for column in zip(*parts, strict=True))
            at = np.minimum(here + runs, last)
            need = tokens.need_free[at]
            if tokens.ranked is not None:
                need = need - self._outranks(at, rejected, need)
        elif tokens.sampled is not None:
            lengths = np.full(len(here), self.depth)
            outcomes = tokens.sampled.outcomes(self.sampling, Source.RANDOM)
            runs = np.minimum(outcomes.run[here], self.depth)
            at = np.minimum(here + runs, last)
            need = np.where(runs < lengths, outcomes.need_after(runs, at), tokens.need_free[at])
        elif tokens.tokens is None:  # without ids none is the path's own
            lengths, runs, at = np.full(len(here), self.depth), np.zeros_like(here), here
            need = tokens.need_free[here]
        else:
            lengths = np.full(len(here), self.depth)
            ids = np.repeat([request.id for request in requests], limits)
            drawn = self._random_tokens(ids, offsets)
            runs = accepted_runs(drawn == tokens.tokens[here], np.repeat(begins + limits, limits))
            runs = np.minimum(runs, self.depth)
            at = np.minimum(here + runs, last)
            need = tokens.need_free[at]
            if tokens.ranked is not None:
                rejected = self._random_tokens(ids, offsets + runs)
                need = need - self._outranks(at, rejected, need)
        whole = runs >= lengths
        needs = np.where(whole | self._keeps_rejected, tokens.need_free[at], need)
        return Guesses(begins, lengths, runs, needs)

    def _random_tokens(self, ids: IntArray, positions: IntArray) -> IntArray:
        """As `policies.sampling.random_tokens`, of many requests at once."""
        uniforms = keyed_uniforms(self.sampling.seed, "random-backup", ids, positions)
        return (uniforms * self.tokens.vocabulary).astype(np.int64)

    def _outranks(self, at: IntArray, rejected: IntArray, need: IntArray) -> BoolArray:
        """[m] whether the rejected token is listed above the path's (`TokenModel.hits`)."""
        ranked = self.tokens.ranked
        assert ranked is not None
        same = ranked[at % len(ranked)] == rejected[:, None]
        return np.asarray(same.any(axis=1) & (same.argmax(axis=1) < need - 1))

    def _looked_up(self, request: Request) -> tuple[IntArray, IntArray, IntArray]:
        """[limit] tokens that prompt lookup guesses, how many are right, the id of the first wrong one."""
        tokens, limit = self.tokens.tokens, request.limit
        assert tokens is not None and request.prompt is not None
        start, asked = int(self.tokens.starts[request.id]), len(request.prompt)
        text = np.concatenate([np.array(request.prompt, dtype=np.int64), tokens[start : start + limit]])
        known = np.arange(asked, asked + limit)  # tokens of the text before each position
        follows = _last_occurrences(text, self.longest)[known]
        lengths = np.where(follows >= 0, np.minimum(self.depth, known - follows), 0)
        ahead = np.arange(self.depth)
        guessed = text[np.minimum(np.maximum(follows, 0)[:, None] + ahead, len(text) - 1)]
        right = guessed == text[np.minimum(known[:, None] + ahead, len(text) - 1)]
        right &= (ahead < lengths[:, None]) & (known[:, None] + ahead < len(text))
        runs = np.cumprod(right, axis=1).sum(axis=1)
        wrong = guessed[np.arange(limit), np.minimum(runs, self.depth - 1)]
        return lengths, runs, wrong


@dataclass
class Walks:
    """The rounds of requests in one setting, request after request; more are appended as they are asked for.

    Attributes:
        requests: Index of each request in `begins` and `ends`, by what its rounds depend on.
        begins: [q] each one's first round.
        ends: [q] the round after its last.
        positions: [m] tokens emitted before each round; the next ones are of rounds, too.
        states: What was verified: `NOTHING`, `CHAIN` or `GUESS`.
        lengths: Tokens verified.
        accepted: Tokens accepted.
        hits: Whether the outcome was prepared for; -1 where nothing was looked up.
        lined_up: Batches of these requests (`simulator.compiled.batches`), by which and how wide.
    """

    requests: dict[Hashable, int] = field(default_factory=dict)
    begins: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    ends: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    states: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    lengths: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    accepted: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int16))
    hits: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int8))
    lined_up: dict[Hashable, Any] = field(default_factory=dict)

    def columns(self) -> tuple[np.ndarray, ...]:
        """All that loops read of them."""
        return self.positions, self.states, self.lengths, self.accepted, self.hits

    def of(self, rule: Rule, requests: Sequence[Request]) -> IntArray:
        """[q] index of each request; `rule` is of the token model that has them."""
        keys = rule.identities(requests)
        new = {k: request for k, request in zip(keys, requests, strict=True) if k not in self.requests}
        if new:
            _append(self, rule, list(new), list(new.values()))
        return np.array([self.requests[key] for key in keys], dtype=np.int64)


@dataclass
class _Kept:
    """What is kept of a token model: batches, profiles, seeds of latency and resamples share it.

    Attributes:
        walks: By what a setting's rounds depend on.
        guesses: By backup, lookahead, sampling and requests.
        rounds: Of all walks, as counted last.
    """

    walks: dict[Hashable, Walks] = field(default_factory=dict)
    guesses: dict[Hashable, Guesses] = field(default_factory=dict)
    rounds: int = 0


def _kept_of(tokens: TokenModel) -> _Kept:
    kept: _Kept = tokens.replays.setdefault("content", _Kept())
    return kept


def walks_of(rule: Rule) -> Walks:
    """The rounds of a setting, kept with the token model."""
    kept = _kept_of(rule.tokens)
    if rule.key not in kept.walks:
        while kept.walks and (kept.rounds > KEPT_ROUNDS or len(kept.walks) > KEPT_WALKS):
            kept.rounds -= len(kept.walks.pop(next(iter(kept.walks))).positions)
        kept.walks[rule.key] = Walks()
    return kept.walks[rule.key]


def _last_occurrences(text: IntArray, longest: int) -> IntArray:
    """[n + 1] for the first k tokens of a text, where it goes on after the latest earlier place that ends
    like them, by the longest ending of at most `longest` tokens that has one (`policies.pld.lookup`); -1 if
    none has.
    """
    n = len(text)
    found = np.full(n + 1, -1, dtype=np.int64)
    for size in range(1, min(longest, n - 1) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(text, size)
        order = np.lexsort((np.arange(len(windows)), *windows.T[::-1]))
        same = (windows[order[1:]] == windows[order[:-1]]).all(axis=1)
        # Windows in the order of their tokens and then of their place: the one before is the latest before.
        found[order[1:][same] + size] = order[:-1][same] + size
    return found


def _append(walks: Walks, rule: Rule, keys: list[Hashable], requests: list[Request]) -> None:
    """Walk requests that are new."""
    tokens = rule.tokens
    starts = tokens.starts[[request.id for request in requests]]
    limits = np.array([request.limit for request in requests], dtype=np.int64)
    runs = rule.runs()
    nothing = np.zeros(1, dtype=np.int64)
    guesses = rule.guesses(requests) if rule.guessed else Guesses(np.zeros_like(starts), *[nothing] * 3)
    most = int(limits.sum())
    fresh = Walks(
        positions=np.zeros(most, dtype=np.int32),
        states=np.zeros(most, dtype=np.int8),
        lengths=np.zeros(most, dtype=np.int16),
        accepted=np.zeros(most, dtype=np.int16),
        hits=np.zeros(most, dtype=np.int8),
        ends=np.zeros(len(requests), dtype=np.int64),
    )
    count = walk(
        most,
        starts,
        guesses.begins,
        limits,
        rule.first,
        rule.missed,
        rule.cached,
        rule.chain,
        runs,
        rule.chain_hits(runs).view(np.int8),
        rule.none_hits(runs).view(np.int8),
        guesses.lengths,
        guesses.runs,
        rule.guess_hits(guesses).view(np.int8),
        fresh.ends,
        *fresh.columns(),
    )
    before = len(walks.positions)
    _kept_of(tokens).rounds += count
    for name in ("positions", "states", "lengths", "accepted", "hits"):
        setattr(walks, name, np.concatenate([getattr(walks, name), getattr(fresh, name)[:count]]))
    walks.ends = np.concatenate([walks.ends, before + fresh.ends])
    begins = np.concatenate([[0], fresh.ends[:-1]]) + before
    walks.begins = np.concatenate([walks.begins, begins])
    walks.requests.update({key: len(walks.requests) + i for i, key in enumerate(keys)})
