"""Tiny languages in which everything about sampled decoding can be done directly, by brute force.

A `Chain` is a pair of models whose next token depends on the last one alone.  `sampled_trace` records the
target's plain decoding of it as `calibrate` would; `Direct` runs speculative decoding on it token by token,
with real drafts, rejections, residuals and caches, and knows nothing of replay.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from hardware_profiles.trace import Trace, TraceMeta, TraceRequest
from policies.ngram import lookup
from policies.operations import Source
from policies.registry import Settings, start
from policies.rows import Rows
from simulator.costs import TextbookCosts
from simulator.tokens import TokenModel
from simulator.world import SimulatedWorld

PROMPT = (0, 1, 2, 0, 1)
PRIMARY, RANDOM, NGRAM, NONE = Source.PRIMARY, Source.RANDOM, Source.NGRAM, Source.NONE

Law: TypeAlias = tuple[float, ...]
Outcome: TypeAlias = tuple[int, int, int, int, int]
"""(source, length, accepted, emitted, hit) of a round; hit is -1 where the request ended with it."""


@dataclass(frozen=True)
class Chain:
    """p[a] and q[a] are the laws [V] after token a, before the top-p cut."""

    p: np.ndarray
    q: np.ndarray
    top_p: float = 1.0

    @classmethod
    def drawn(
        cls, seed: int, vocabulary: int = 5, *, likeness: float = 1.5, top_p: float = 1.0, iid: bool = False
    ) -> Chain:
        """Random laws; the larger `likeness`, the more draft and target agree."""
        rng = np.random.default_rng(seed)
        rows = 1 if iid else vocabulary
        base = rng.normal(size=(rows, vocabulary)) * likeness
        laws = [np.exp(base + rng.normal(size=base.shape)) for _ in range(2)]
        p, q = (np.broadcast_to(w / w.sum(axis=1, keepdims=True), (vocabulary,) * 2) for w in laws)
        return cls(p, q, top_p)

    @property
    def vocabulary(self) -> int:
        return len(self.p)

    @cached_property
    def target(self) -> list[Law]:
        return [cut(law, self.top_p) for law in self.p]

    @cached_property
    def draft(self) -> list[Law]:
        return [cut(law, self.top_p) for law in self.q]

    @cached_property
    def ranking(self) -> list[list[int]]:
        """Tokens after each token, the draft's likeliest first, before the cut."""
        return [np.argsort(-law, kind="stable").tolist() for law in self.q]


def cut(law: np.ndarray, top_p: float) -> Law:
    """The smallest set of likeliest tokens whose mass reaches `top_p`, renormalised."""
    order = np.argsort(-law, kind="stable")
    before = np.cumsum(law[order]) - law[order]
    kept = np.zeros_like(law)
    kept[order[before < top_p]] = law[order[before < top_p]]
    return tuple((kept / kept.sum()).tolist())


def sampled_trace(chain: Chain, *, requests: int, length: int, ranks: int, seed: int) -> Trace:
    """Plain decoding of the target at temperature 1, `ranks` tokens listed per position."""
    rng = random.Random(seed)
    token, before = [], []
    for _ in range(requests):
        last = PROMPT[-1]
        for _ in range(length):
            before.append(last)
            last = pick(chain.target[last], rng)
            token.append(last)
    return trace_of(chain, np.array(before), np.array(token), length=length, ranks=ranks)


def trace_of(chain: Chain, before: np.ndarray, token: np.ndarray, *, length: int, ranks: int) -> Trace:
    """The trace of texts `token` [n], each preceded by the token in `before` [n]."""
    p, q = np.array(chain.target)[before], np.array(chain.draft)[before]
    ranking = np.array(chain.ranking)[before]
    rows, top = np.arange(len(token)), ranking[:, :ranks]
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log(q)
    columns = {
        "target_logprob": log_p[rows, token],
        "draft_logprob": log_q[rows, token],
        "draft_top_logprobs": np.take_along_axis(log_q, top, axis=1),
        "target_at_draft_top_logprobs": np.take_along_axis(log_p, top, axis=1),
        "accept_mass": np.minimum(p, q).sum(axis=1),
    }
    count = len(token) // length
    return Trace(
        requests=tuple(
            TraceRequest(id=i, question_id=i, category="chain", prompt=PROMPT, ended="limit")
            for i in range(count)
        ),
        meta=TraceMeta(
            target_model="p",
            draft_model="q",
            tokenizer="none",
            vocabulary=chain.vocabulary,
            sampling={"temperature": 1.0, "top_p": chain.top_p, "seed": 0},
            draft_top=ranks,
        ),
        request=np.repeat(np.arange(count), length),
        position=np.tile(np.arange(length), count),
        token=token,
        draft_rank=(ranking == token[:, None]).argmax(axis=1),
        draft_top_ids=top.astype(np.int32),
        **{name: values.astype(np.float32) for name, values in columns.items()},
    )


def pick(weights: Sequence[float], rng: random.Random) -> int:
    """A token with probability proportional to its weight."""
    heights = list(accumulate(weights))
    return min(bisect(heights, rng.random() * heights[-1]), len(heights) - 1)


@dataclass
class Direct:
    """Speculative decoding as the papers have it, one request at a time.

    `emitted` collects every token emitted after every token, to check that the target's law survives.
    """

    chain: Chain
    settings: Settings
    length: int
    rng: random.Random
    emitted: Counter[tuple[int, int]] = field(default_factory=Counter)

    def request(self) -> list[Outcome]:
        """The rounds of one request."""
        self.text: list[int] = list(PROMPT)
        self.left = self.length
        self.rounds: list[Outcome] = []
        getattr(self, f"_{self.settings.policy}")()
        self.emitted.update(pairwise(self.text[len(PROMPT) - 1 :]))
        return self.rounds

    def _sd(self) -> None:
        while self.left:
            drafted = self._draft(self.text[-1], self._depth)
            self._round(PRIMARY, drafted, *self._verify(drafted), hit=-1)

    def _pld(self) -> None:
        while self.left:
            found = lookup(self.text, self._depth, longest=self.settings.longest_suffix or 0)
            drafted = [(token, one_hot(token, self.chain.vocabulary)) for token in found]
            self._round(NGRAM if drafted else NONE, drafted, *self._verify(drafted), hit=-1)

    def _pearl(self) -> None:
        pending: list[tuple[int, Law]] = []
        while self.left:
            last = pending[-1][0] if pending else self.text[-1]
            ahead = self._draft(last, self._depth)
            accepted, bonus = self._verify(pending, bonus=False)
            hit = 0
            if bonus is None:  # all accepted: the target now looks at the first token past the block
                passed, bonus = self._verify(ahead[:1], after=last)
                assert bonus is not None
                hit, bonus = (1, ahead[0][0]) if passed else (0, bonus)
            self._round(PRIMARY if pending else NONE, pending, accepted, bonus, hit=hit)
            pending = ahead[1:] if hit else []

    def _saguaro(self) -> None:
        drafted, source = self._backup(first=True)
        while self.left:
            prepared = self._prepared(drafted, source)
            accepted, bonus = self._verify(drafted)
            hit = int((accepted, bonus) in prepared)
            self._round(source, drafted, accepted, bonus, hit=hit)
            if hit:
                drafted, source = self._draft(self.text[-1], self._depth), PRIMARY
            else:
                drafted, source = self._backup(first=False)

    def _backup(self, *, first: bool) -> tuple[list[tuple[int, Law]], Source]:
        backup = self.settings.backup
        if backup == "primary" or (first and self.settings.first == "primary"):
            return self._draft(self.text[-1], self._depth), PRIMARY
        size = self.chain.vocabulary
        tokens: Sequence[int] = ()
        if backup == "random":
            tokens = [self.rng.randrange(size) for _ in range(self._depth)]
            return [(token, (1.0 / size,) * size) for token in tokens], RANDOM
        if backup == "ngram":
            tokens = lookup(self.text, self._depth)
        return [(t, one_hot(t, size)) for t in tokens], NGRAM if tokens else NONE

    def _prepared(self, drafted: list[tuple[int, Law]], source: Source) -> set[tuple[int, int]]:
        fanout = self.settings.fanout
        if source != PRIMARY and self.settings.fanout_backup is not None:
            fanout = self.settings.fanout_backup
        assert fanout is not None
        path = [self.text[-1], *(token for token, _ in drafted)]
        prepared = set()
        for k, last in enumerate(path):
            left_out = path[k + 1] if k < len(drafted) and self.settings.cache_set != "top" else None
            others = [token for token in self.chain.ranking[last] if token != left_out]
            prepared |= {(k, token) for token in others[: fanout[k]]}
        return prepared

    def _draft(self, last: int, count: int) -> list[tuple[int, Law]]:
        drafted = []
        for depth in range(count):
            law = self._sigma(last, depth)
            last = pick(law, self.rng)
            drafted.append((last, law))
        return drafted

    def _sigma(self, last: int, depth: int) -> Law:
        law, order, settings = self.chain.draft[last], self.chain.ranking[last], self.settings
        if settings.draft_sampling == "greedy":
            return one_hot(order[0], len(order))
        if settings.policy != "saguaro" or settings.scale in {None, 1.0}:
            return law
        assert settings.fanout is not None and settings.scale is not None
        top = order[: settings.fanout[depth]]
        weights = [x * (settings.scale if token in top else 1.0) for token, x in enumerate(law)]
        total = sum(weights)
        return tuple(w / total for w in weights) if total > 0.0 else law

    def _verify(
        self, drafted: list[tuple[int, Law]], *, bonus: bool = True, after: int | None = None
    ) -> tuple[int, int | None]:
        """Accepted tokens, and the target's own token after them (None if left open and not rejected)."""
        last = self.text[-1] if after is None else after
        for accepted, (token, sigma) in enumerate(drafted):
            p = self.chain.target[last]
            if not self.rng.random() * sigma[token] < p[token]:
                left = [max(0.0, a - b) for a, b in zip(p, sigma, strict=True)]
                return accepted, pick(left, self.rng)
            last = token
        return len(drafted), pick(self.chain.target[last], self.rng) if bonus else None

    def _round(
        self, source: Source, drafted: list[tuple[int, Law]], accepted: int, bonus: int | None, *, hit: int
    ) -> None:
        assert bonus is not None
        tokens = [*(token for token, _ in drafted[:accepted]), bonus][: self.left]
        self.text += tokens
        self.left -= len(tokens)
        accepted = min(accepted, len(tokens))
        looked_up = hit if self.left else -1
        self.rounds.append((int(source), len(drafted), accepted, len(tokens), looked_up))

    @property
    def _depth(self) -> int:
        assert self.settings.lookahead is not None
        return self.settings.lookahead


def one_hot(token: int, size: int) -> Law:
    return tuple(float(i == token) for i in range(size))


def directly(
    chain: Chain, settings: Settings, *, requests: int, length: int, seed: int
) -> list[list[Outcome]]:
    """The rounds of many independent requests, decoded directly."""
    engine = Direct(chain, settings, length, random.Random(seed))
    return [engine.request() for _ in range(requests)]


def replayed(tokens: TokenModel, settings: Settings, *, batch: int = 500) -> list[list[Outcome]]:
    """The rounds of every request of a token model, under the real policy in the simulated world."""
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), draft_devices=settings.draft_devices or 1)
    rows = Rows(tokens.requests, min(batch, len(tokens.requests)), keep_tokens=settings.reads_text)
    world.run(start(world, rows, settings))
    table = rows.log.table()
    columns = [table[name].tolist() for name in ("source", "length", "accepted", "emitted", "hit")]
    rounds: dict[int, list[Outcome]] = {request.id: [] for request in tokens.requests}
    for request, *outcome in zip(table["request"].tolist(), *columns, strict=True):
        rounds[request].append(tuple(outcome))
    return list(rounds.values())


def disagreement(one: list[list[Outcome]], other: list[list[Outcome]]) -> tuple[float, str]:
    """Largest z-score of any difference between two sets of independent requests, and where it is.

    Compared are the mean numbers per request of each outcome of a round, and of each pair (accepted, hit)
    followed by (accepted, hit).  What occurs fewer than 50 times in all is left out.
    """
    counts = [[_events(request) for request in requests] for requests in (one, other)]
    total = sum((Counter(c) for side in counts for c in side), Counter[object]())
    worst = (0.0, "")
    for event in (e for e, n in total.items() if n >= 50):
        a, b = (np.array([c[event] for c in side], dtype=float) for side in counts)
        error = np.sqrt(a.var() / len(a) + b.var() / len(b))
        worst = max(worst, (abs(a.mean() - b.mean()) / error, f"{event}: {a.mean():.4f} {b.mean():.4f}"))
    return worst


def _events(rounds: list[Outcome]) -> Counter[object]:
    events: Counter[object] = Counter(rounds)
    coarse = [(accepted, hit) for _, _, accepted, _, hit in rounds]
    events.update(pairwise(coarse))
    return events
