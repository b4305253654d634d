"""What a token model says of rounds, without any time: outcome weights, acceptance and hit curves.

Asked of the model itself, a batch of all rounds at once, so that the answers hold for recordings at any
temperature, for greedy and sampled drafts, for Saguaro's rescaling and for either cache set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from policies.laws.ssd import PowerLaw, fit_power_law
from policies.sampling import GREEDY, FloatArray, Sampling
from policies.values import IntArray, Source, Speculation

if TYPE_CHECKING:
    from simulator.tokens import TokenModel

P = ParamSpec("P")
T = TypeVar("T")
DEEPEST = 32
"""Largest fan-out of a curve."""
PRIOR_ROUNDS = 20.0
"""Rounds' worth of the pooled curve that is mixed into each."""


@dataclass(frozen=True, slots=True)
class DraftRule:
    """How tokens are drafted and cached in the rounds that are asked about.

    Attributes:
        shape: F_0 ... F_(K-1) of Saguaro's rescaling; None without.
        keep_rejected: Whether the cached set keeps the rejected token.
    """

    sampling: Sampling = GREEDY
    shape: tuple[int, ...] | None = None
    keep_rejected: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RoundStatistics:
    """Rounds of a lookahead on a token model.

    Attributes:
        weights: [K + 1] share of rounds that accept k = 0 ... K tokens of the primary draft; not iid.
        after_primary: [K + 1, F + 1] hit rate of F = 0, 1, ... outcomes prepared after k accepted tokens.
        after_nothing: [F + 1] the same in a round that verifies nothing, or tokens never accepted.
    """

    weights: FloatArray
    after_primary: FloatArray
    after_nothing: FloatArray

    @property
    def lookahead(self) -> int:
        """K."""
        return len(self.weights) - 1

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of a round that verifies the primary draft, with the bonus token."""
        return 1.0 + float((self.weights * np.arange(len(self.weights))).sum())


def _once(probe: Callable[Concatenate[TokenModel, P], T]) -> Callable[Concatenate[TokenModel, P], T]:
    """A function of a token model, whose answers are kept with the model."""

    @wraps(probe)
    def answer(tokens: TokenModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (probe.__name__, args, *kwargs.items())
        if key not in tokens.probed:
            tokens.probed[key] = probe(tokens, *args, **kwargs)
        found: T = tokens.probed[key]
        return found

    return answer


@_once
def round_statistics(
    tokens: TokenModel, lookahead: int, rule: DraftRule, *, deepest: int = DEEPEST
) -> RoundStatistics:
    """Roll all requests out with chains of `lookahead` primary tokens, and look at where rounds begin.

    A position that few rounds end at has a noisy curve, which an optimiser would exploit; so each curve is
    mixed with the pooled one of its kind: (n own + prior pooled) / (n + prior), n its rounds.

    `deepest` is the largest fan-out; less where the recording does not decide as much.

    Raises:
        ValueError: Every round reaches the end of its request.
    """
    starts = _round_starts(tokens, lookahead, rule)
    if len(starts.at) == 0:
        raise ValueError(f"no round of lookahead {lookahead} ends before its request does")
    deepest = min(deepest, tokens.max_fanout)
    accepted, after = _curves(tokens, starts, lookahead, rule, deepest)
    _, free = _curves(tokens, starts, 0, rule, deepest)
    rounds = np.bincount(accepted, minlength=lookahead + 1).astype(float)
    rejected = accepted < lookahead
    pooled = after[rejected].mean(axis=0) if rejected.any() else free.mean(axis=0)
    rows = [
        (after[accepted == k].sum(axis=0) + PRIOR_ROUNDS * (pooled if k < lookahead else free.mean(axis=0)))
        / (rounds[k] + PRIOR_ROUNDS)
        for k in range(lookahead + 1)
    ]
    return RoundStatistics(rounds / rounds.sum(), np.array(rows), free.mean(axis=0))


@_once
def mean_acceptance(tokens: TokenModel, rule: DraftRule) -> float:
    """Share of positions at which a token of the primary draft is accepted.

    Sampled, it estimates E[sum min(p, sigma)]; greedy, it is the share of positions whose token is the
    draft's first choice.
    """
    return float((_runs(tokens, 1, rule)[_all_positions(tokens).at] > 0).mean())


@_once
def rejection_power_law(tokens: TokenModel, rule: DraftRule) -> PowerLaw | None:
    """Power law fitted to P(miss | F) after a rejection, all positions pooled; None if that fails."""
    accepted, hits = _curves(tokens, _all_positions(tokens), 1, rule, min(DEEPEST, tokens.max_fanout))
    rejected = hits[accepted == 0]
    if len(rejected) == 0:
        return None
    try:
        return fit_power_law(range(1, hits.shape[1]), (1.0 - rejected.mean(axis=0)[1:]).tolist())
    except ValueError:
        return None


class _Starts(NamedTuple):
    """[n] where rounds begin in the token model's arrays, and tokens that each may still emit."""

    at: IntArray
    rooms: IntArray


def _curves(
    tokens: TokenModel, starts: _Starts, lookahead: int, rule: DraftRule, deepest: int
) -> tuple[IntArray, FloatArray]:
    """Of the rounds that do not end: [n] accepted tokens, and [n, deepest + 1] whether F outcomes hit."""
    accepted = np.minimum(_runs(tokens, lookahead, rule)[starts.at], lookahead)
    going = accepted + 1 < starts.rooms
    accepted, at = accepted[going], (starts.at + accepted)[going]
    need = tokens.need_free[at]
    if lookahead and not rule.keep_rejected:
        after = tokens.need_after(rule.sampling, _shape(lookahead, rule), accepted, at)
        need = np.where(accepted < lookahead, after, need)
    return accepted, (np.arange(deepest + 1) >= np.maximum(need, 1)[:, None]).astype(float)


def _shape(lookahead: int, rule: DraftRule) -> tuple[int, ...] | None:
    return None if rule.shape is None or lookahead == 0 else rule.shape[:lookahead]


def _runs(tokens: TokenModel, lookahead: int, rule: DraftRule) -> IntArray:
    """[n] accepted runs of chains of so many tokens."""
    tokens.check_sampling(rule.sampling, _shape(lookahead, rule))
    return tokens.runs(rule.sampling, _shape(lookahead, rule))


def primary_chains(width: int, lookahead: int, shape: tuple[int, ...] | None = None) -> Speculation:
    """`lookahead` tokens of the primary draft in each of `width` rows, none of which is known."""
    if lookahead == 0:
        return Speculation.empty(width)
    lengths, sources = (lookahead,) * width, (int(Source.PRIMARY),) * width
    return Speculation(lengths, sources, shape=None if shape is None else shape[:lookahead])


def _round_starts(tokens: TokenModel, lookahead: int, rule: DraftRule) -> _Starts:
    """Where each round but the requests' last ones begins."""
    runs, found = _runs(tokens, lookahead, rule), []
    at, rooms = _requests(tokens)
    while len(at):
        emitted = np.minimum(runs[at], lookahead) + 1
        going = emitted < rooms
        at, rooms, emitted = at[going], rooms[going], emitted[going]
        found.append(_Starts(at, rooms))
        at, rooms = at + emitted, rooms - emitted
    return _Starts(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _all_positions(tokens: TokenModel) -> _Starts:
    """Every position of every request."""
    at, limits = _requests(tokens)
    before = np.concatenate([np.arange(n) for n in limits])
    return _Starts(np.repeat(at, limits) + before, np.repeat(limits, limits) - before)


def _requests(tokens: TokenModel) -> _Starts:
    """Where each request begins."""
    ids = [request.id for request in tokens.requests]
    return _Starts(tokens.starts[ids], np.array([request.limit for request in tokens.requests]))
