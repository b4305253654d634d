"""Tiny languages in which everything about sampled decoding can be done directly, by brute force.

A `Chain` is a pair of models whose next token depends on the last one alone.  `sampled_trace` records the
target's plain decoding of it as `calibrate` would; `direct.Direct` runs speculative decoding on it token by
token, with real drafts, rejections, residuals and caches.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from hardware_profiles.trace import Trace, TraceMeta, TraceRequest
from policies.registry import Settings, start
from policies.rows import Rows
from policies.values import Source
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
    return Trace.of(
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


def replayed(tokens: TokenModel, settings: Settings, *, batch: int = 500) -> list[list[Outcome]]:
    """The rounds of every request of a token model, under the real policy in the simulated world."""
    world = SimulatedWorld(tokens, TextbookCosts(1.0, 0.1), draft_devices=settings.draft_devices or 1)
    rows = Rows(tokens.requests, min(batch, len(tokens.requests)), keep_tokens=settings.config.reads_text)
    world.run(start(world, rows, settings))
    table = rows.log.table()
    columns = [table[name].tolist() for name in ("source", "length", "accepted", "emitted", "hit")]
    rounds: dict[int, list[Outcome]] = {request.id: [] for request in tokens.requests}
    for request, *outcome in zip(table["request"].tolist(), *columns, strict=True):
        rounds[request].append(tuple(outcome))
    return list(rounds.values())
