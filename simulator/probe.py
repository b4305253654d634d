"""What a token model says of rounds, without any time: outcome weights, acceptance and hit curves.

Asked of the model itself, a batch of all rounds at once, so that the answers hold for recordings at any
temperature, for greedy and sampled drafts, for Saguaro's rescaling and for either cache set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from policies.laws.ssd import PowerLaw, fit_power_law
from policies.operation import Prespeculate, Verify
from policies.sampling import GREEDY, FloatArray, Sampling
from policies.values import BoolArray, IntArray, Source, Speculation, Verdict, View

if TYPE_CHECKING:
    from simulator.tokens import TokenModel

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
    view = _round_starts(tokens, lookahead, rule)
    if len(view.slots) == 0:
        raise ValueError(f"no round of lookahead {lookahead} ends before its request does")
    deepest = min(deepest, tokens.max_fanout)
    accepted, after = _curves(tokens, view, lookahead, rule, deepest)
    _, free = _curves(tokens, view, 0, rule, deepest)
    rounds = np.bincount(accepted, minlength=lookahead + 1).astype(float)
    rejected = accepted < lookahead
    pooled = after[rejected].mean(axis=0) if rejected.any() else free.mean(axis=0)
    rows = [
        (after[accepted == k].sum(axis=0) + PRIOR_ROUNDS * (pooled if k < lookahead else free.mean(axis=0)))
        / (rounds[k] + PRIOR_ROUNDS)
        for k in range(lookahead + 1)
    ]
    return RoundStatistics(rounds / rounds.sum(), np.array(rows), free.mean(axis=0))


def mean_acceptance(tokens: TokenModel, rule: DraftRule) -> float:
    """Share of positions at which a token of the primary draft is accepted.

    Sampled, it estimates E[sum min(p, sigma)]; greedy, it is the share of positions whose token is the
    draft's first choice.
    """
    view = _all_positions(tokens)
    verdict = tokens.verify(view, Verify(view, primary_chains(len(view.slots), 1, rule.shape), rule.sampling))
    return float(verdict.accepted.mean())


def rejection_power_law(tokens: TokenModel, rule: DraftRule) -> PowerLaw | None:
    """Power law fitted to P(miss | F) after a rejection, all positions pooled; None if that fails."""
    view = _all_positions(tokens)
    accepted, hits = _curves(tokens, view, 1, rule, min(DEEPEST, tokens.max_fanout))
    rejected = hits[accepted == 0]
    if len(rejected) == 0:
        return None
    try:
        return fit_power_law(range(1, hits.shape[1]), (1.0 - rejected.mean(axis=0)[1:]).tolist())
    except ValueError:
        return None


def _curves(
    tokens: TokenModel, view: View, lookahead: int, rule: DraftRule, deepest: int
) -> tuple[IntArray, FloatArray]:
    """Of the rows that do not end: [n] accepted tokens, and [n, deepest + 1] whether F outcomes hit."""
    sampling = rule.sampling
    speculation = primary_chains(len(view.slots), lookahead, rule.shape)
    verdict: Verdict = tokens.verify(view, Verify(view, speculation, sampling))
    going: BoolArray = ~verdict.ended
    columns = [np.zeros(len(view.slots), dtype=np.bool_)]
    for fanout in range(1, deepest + 1):
        ahead = max(1, lookahead)
        prepare = Prespeculate(
            view,
            speculation,
            ahead,
            (fanout,) * (ahead + 1),
            sampling=sampling,
            shape=rule.shape if lookahead else None,
            keep_rejected=rule.keep_rejected,
        )
        columns.append(tokens.hits(view, prepare, verdict))
    return verdict.accepted[going], np.stack(columns, axis=1)[going].astype(float)


def primary_chains(width: int, lookahead: int, shape: tuple[int, ...] | None = None) -> Speculation:
    """`lookahead` tokens of the primary draft in each of `width` rows, none of which is known."""
    if lookahead == 0:
        return Speculation.empty(width)
    lengths = np.full(width, lookahead, dtype=np.int64)
    sources = np.full(width, int(Source.PRIMARY), dtype=np.int64)
    return Speculation(lengths, sources, shape=None if shape is None else shape[:lookahead])


def _round_starts(tokens: TokenModel, lookahead: int, rule: DraftRule) -> View:
    """The rows at the beginning of each round but the requests' last ones, as one wide batch."""
    ids, prompts, limits = _facts(tokens)
    width = len(ids)
    position = np.zeros(width, dtype=np.int64)
    speculation = primary_chains(width, lookahead, rule.shape)
    slots, found = np.arange(width), []
    while len(slots):
        at = position[slots]
        view = View(slots, ids[slots], at, prompts[slots] + at, limits[slots] - at)
        verdict = tokens.verify(view, Verify(view, speculation, rule.sampling))
        slots = slots[~verdict.ended[slots]]
        found.append((ids[slots], position[slots], prompts[slots], limits[slots]))
        position = position + verdict.emitted
    return _wide(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _all_positions(tokens: TokenModel) -> View:
    """Every position of every request, as one wide batch."""
    ids, prompts, limits = _facts(tokens)
    positions = np.concatenate([np.arange(n) for n in limits])
    ids, prompts, limits = (np.repeat(each, limits) for each in (ids, prompts, limits))
    return _wide(ids, positions, prompts, limits)


def _facts(tokens: TokenModel) -> IntArray:
    """[3, R] ids, prompt lengths and limits of the requests."""
    facts = [(r.id, r.prompt_length, r.limit) for r in tokens.requests]
    return np.array(facts, dtype=np.int64).T


def _wide(ids: IntArray, positions: IntArray, prompts: IntArray, limits: IntArray) -> View:
    return View(np.arange(len(ids)), ids, positions, prompts + positions, limits - positions)
