"""Speculative decoding done directly on a `Chain`, token by token; it knows nothing of replay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from chains import NGRAM, NONE, PRIMARY, PROMPT, RANDOM, Chain, Law, Outcome, pick

from policies.pld import lookup
from policies.registry import Settings
from policies.values import Source


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
            found = lookup(self.text, self._depth, longest=self.settings.knobs["longest_suffix"])
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
        if backup == "primary" or (first and self.settings.knobs["first"] == "primary"):
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
            left_out = path[k + 1] if k < len(drafted) and self.settings.knobs["cache_set"] != "top" else None
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
