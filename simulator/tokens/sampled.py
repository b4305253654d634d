"""Sampled decoding on a recorded path: who is accepted, and what a rejection leaves in the cache.

A path y that was sampled from the target is a fair path for every lossless policy (design.md, section 3).
At one of its positions let p be the target's distribution, sigma the *proposal*, the distribution that
the verified token was drawn from, and *rank* the draft's ranking.  Given y,

- the token is accepted with probability min(1, sigma(y) / p(y));
- if it is not, it was some token s with distribution (sigma - p)+ / total, independent of y; leaving s out
  of the cached set moves y up by one place if s outranks it, which has the probability

      freed = sum of (sigma - p)+ over ranks above y's / total.

`total` runs over the whole vocabulary, of which the trace lists M tokens.  For sigma = q it is
1 - accept_mass and exact; else the unlisted tokens leave an interval, whose middle is taken and whose
half-width is kept as `slack`.  Each of the two probabilities meets one keyed uniform per position, whatever
the policy, so that a position is decided once and every policy and every proposal meets the same luck.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from hardware_profiles.trace import Trace
from policies.registry import SettingError
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.values import IntArray, Source
from simulator.tokens.outcomes import NEVER, Outcomes, accepted_runs, shaped_runs

BLOCK = 65_536
"""Positions handled at once, which bounds the memory taken."""
KEPT = 64
"""Settings whose outcomes are kept for the next run."""
ROUNDING = 1e-6
"""A mass below this is taken for what rounding to float32 left over."""

Drawn: TypeAlias = Literal["draft", "first", "uniform"]


class Proposal(NamedTuple):
    """sigma, the distribution that a verified token was drawn from.

    Attributes:
        drawn: From the draft's distribution q; its first choice (one-hot); or any token alike.
        scale: Saguaro's C by which q's `top` likeliest tokens are multiplied before normalising.
        top: F; 0 for q itself.
    """

    drawn: Drawn
    scale: float = 1.0
    top: int = 0


DRAFT, FIRST, UNIFORM = Proposal("draft"), Proposal("first"), Proposal("uniform")


class Chances(NamedTuple):
    """Probabilities given the recorded token y, at each of n positions.

    Attributes:
        accepted: [n] that a token of the proposal is accepted.
        freed: [n] that a rejected one outranks y.
        slack: [n] largest error of `freed`, owed to what the trace does not list.
    """

    accepted: FloatArray
    freed: FloatArray
    slack: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The probabilities at n recorded positions; M tokens are listed, the draft's likeliest.

    Attributes:
        rank: [n] rank of the recorded token y under the draft, from 0, before any top-p cut.
        target: [n] p(y).
        draft: [n] q(y).
        target_listed: [n, M] p of the listed tokens, in the draft's order.
        draft_listed: [n, M] q of the listed tokens.
        accept_mass: [n] sum of min(p, q) over the vocabulary.
        vocabulary: V.
    """

    rank: IntArray
    target: FloatArray
    draft: FloatArray
    target_listed: FloatArray
    draft_listed: FloatArray
    accept_mass: FloatArray
    vocabulary: int

    @classmethod
    def of(cls, trace: Trace, rows: slice) -> Recorded:
        """The distributions at some rows of a trace.

        Raises:
            TraceError: The trace lacks a column.
        """

        def probabilities(name: str) -> FloatArray:
            return np.exp(trace.column(name)[rows].astype(np.float64))

        return cls(
            rank=trace.column("draft_rank")[rows],
            target=probabilities("target_logprob"),
            draft=probabilities("draft_logprob"),
            target_listed=probabilities("target_at_draft_top_logprobs"),
            draft_listed=probabilities("draft_top_logprobs"),
            accept_mass=trace.column("accept_mass")[rows].astype(np.float64),
            vocabulary=trace.meta.vocabulary,
        )

    def unlisted(self, listed: FloatArray, own: FloatArray) -> FloatArray:
        """[n] mass of the tokens that are not listed, at least that of y if it is one of them."""
        rest = 1.0 - listed.sum(axis=1)
        rest = np.where(rest < ROUNDING, 0.0, rest)
        return np.where(self.rank >= listed.shape[1], np.maximum(rest, own), rest)


class _Sigma(NamedTuple):
    """sigma at n positions, and bounds of what it exceeds p by where nothing is listed.

    Attributes:
        own: [n] sigma(y).
        listed: [n, M] sigma of the listed tokens.
        least: [n] lower bound of the sum of (sigma - p)+ over the unlisted tokens.
        most: [n] its upper bound.
    """

    own: FloatArray
    listed: FloatArray
    least: FloatArray
    most: FloatArray


def chances(recorded: Recorded, proposal: Proposal) -> Chances:
    """What becomes of a token of `proposal` at every position.

    Raises:
        SettingError: Saguaro's F exceeds the tokens listed, so that their mass is unknown.
    """
    listed = recorded.draft_listed.shape[1]
    if proposal.top > listed:
        raise SettingError(
            f"Saguaro's F = {proposal.top} rescales more tokens than the {listed} that this trace lists"
        )
    if proposal.drawn == "first":
        first = (recorded.rank == 0).astype(np.float64)
        return Chances(first, 1.0 - first, np.zeros_like(first))
    sigma = _uniform(recorded) if proposal.drawn == "uniform" else _rescaled(recorded, proposal)
    over = np.maximum(sigma.listed - recorded.target_listed, 0.0)
    above = (over * (np.arange(listed) < recorded.rank[:, None])).sum(axis=1)
    above[recorded.rank >= listed] = 0.0  # no fan-out reaches those
    total = over.sum(axis=1)
    high, low = _share(above, total + sigma.least), _share(above, total + sigma.most)
    accepted = np.minimum(1.0, sigma.own / recorded.target)
    return Chances(accepted, (high + low) / 2, (high - low) / 2)


def _rescaled(recorded: Recorded, proposal: Proposal) -> _Sigma:
    """q, or Saguaro's rescaled q.

    Let a be the factor of the unlisted tokens.  Over them the sum of (a q - p)+ is a Q - g(a) with
    g(a) = sum min(p, a q), which is concave with g(0) = 0 and the known g(1): for a >= 1 it lies between
    g(1) and the smaller of a g(1) and P, the target's mass there.  At a = 1 the two meet.
    """
    q, p = recorded.draft_listed, recorded.target_listed
    q_rest, p_rest = recorded.unlisted(q, recorded.draft), recorded.unlisted(p, recorded.target)
    inside, outside = _factors(q, q_rest, proposal)
    ranks = np.arange(q.shape[1])
    listed = q * np.where(ranks < proposal.top, inside[:, None], outside[:, None])
    own = recorded.draft * np.where(recorded.rank < proposal.top, inside, outside)
    met = np.clip(recorded.accept_mass - np.minimum(p, q).sum(axis=1), 0.0, np.minimum(p_rest, q_rest))
    drawn = outside * q_rest
    return _Sigma(own, listed, drawn - np.minimum(p_rest, outside * met), drawn - met)


def _factors(q: FloatArray, q_rest: FloatArray, proposal: Proposal) -> tuple[FloatArray, FloatArray]:
    """[n] factors of the `top` likeliest tokens and of all others.

    With C = 0 nothing is left to draw where all mass is on the top tokens (a narrow top-p): there q stays
    as it is.
    """
    # Not 1 - (mass of the top): a difference of nearly equal numbers, where C = 0 divides by it.
    others = q[:, proposal.top :].sum(axis=1) + q_rest
    norm = proposal.scale * q[:, : proposal.top].sum(axis=1) + others
    if proposal.top == 0 or proposal.scale == 1.0:
        return np.ones_like(norm), np.ones_like(norm)
    nothing = norm <= 0.0
    outside = 1.0 / np.where(nothing, 1.0, norm)
    return np.where(nothing, 1.0, proposal.scale * outside), outside


def _uniform(recorded: Recorded) -> _Sigma:
    """1/V each.

    Unlisted tokens hold (V - M)/V of it, of which p covers the sum of min(p, 1/V): at least as if p's mass
    there were on one token, at most as if it were spread evenly.
    """
    p, count = recorded.target_listed, recorded.vocabulary
    rest = max(0, count - p.shape[1]) / count
    p_rest = recorded.unlisted(p, recorded.target)
    most, least = np.minimum(p_rest, rest), np.minimum(p_rest, min(rest, 1.0 / count))
    own, listed = np.full(len(p), 1.0 / count), np.full_like(p, 1.0 / count)
    return _Sigma(own, listed, rest - most, rest - least)


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    """[n] part / whole, at most 1; 0 where there is nothing."""
    return np.minimum(1.0, part / np.where(whole > 0.0, whole, 1.0))


class SampledOutcomes:
    """Outcomes of verification in a sampled recording, by the distribution of what is verified.

    Positions are flat, request after request, the whole recording `copies` times over; each copy meets
    luck of its own.

    Args:
        seed: Keys the luck, beside the seed of the run.
        copies: How often the recording is served.
        known: Chances of another number of copies, which are the same.
    """

    def __init__(
        self, trace: Trace, seed: int, *, copies: int = 1, known: dict[Proposal, Chances] | None = None
    ) -> None:
        self.trace = trace
        self.seed = seed
        self.copies = copies
        self.replays: dict[Hashable, Any] = {}
        """See `TokenModel.replays`."""
        self._chances: dict[Proposal, Chances] = {} if known is None else known
        self._outcomes: dict[tuple[int, tuple[Proposal, ...]], Outcomes] = {}
        self._luck: tuple[int, FloatArray, FloatArray] | None = None
        self._repeated: dict[int, SampledOutcomes] = {}

    def repeated(self, copies: int) -> SampledOutcomes:
        """The same recording, served `copies` times."""
        if copies not in self._repeated:
            self._repeated[copies] = SampledOutcomes(
                self.trace, self.seed, copies=copies, known=self._chances
            )
        return self._repeated[copies]

    def outcomes(self, sampling: Sampling, source: Source, shape: tuple[int, ...] | None = None) -> Outcomes:
        """Outcomes of tokens of `source`, PRIMARY or RANDOM.

        `shape` are the F_0 ... F_(K-1) that rescaled the distributions of primary tokens; None for none.

        Raises:
            SettingError: The trace lists too few tokens for the shape.
        """
        key = (sampling.seed, proposals_of(sampling, source, shape))
        if key not in self._outcomes:
            if len(self._outcomes) >= KEPT:
                self._outcomes.pop(next(iter(self._outcomes)))
            self._outcomes[key] = self._decide(*key)
        return self._outcomes[key]

    def chances(self, proposal: Proposal) -> Chances:
        """[n] probabilities at the recorded positions (of one copy)."""
        if proposal not in self._chances:
            blocks = [slice(at, at + BLOCK) for at in range(0, len(self.trace), BLOCK)]
            parts = [chances(Recorded.of(self.trace, rows), proposal) for rows in blocks]
            self._chances[proposal] = Chances(
                *(np.concatenate(column) for column in zip(*parts, strict=True))
            )
        return self._chances[proposal]

    def slack(self, sampling: Sampling, source: Source, shape: tuple[int, ...] | None = None) -> float:
        """Largest error of P(freed | rejected), averaged over the rejections on the path; as `outcomes`."""
        worst = 0.0
        for proposal in set(proposals_of(sampling, source, shape)):
            found = self.chances(proposal)
            rejected = 1.0 - found.accepted
            if rejected.any():
                worst = max(worst, float((rejected * found.slack).sum() / rejected.sum()))
        return worst

    def _decide(self, seed: int, proposals: tuple[Proposal, ...]) -> Outcomes:
        different = list(dict.fromkeys(proposals))
        accept_luck, reject_luck = self._luck_of(seed)
        rank = self._tiled(self.trace.column("draft_rank"))
        listed = self.trace.meta.draft_top
        accepts, needs = [], []
        for proposal in different:
            found = self.chances(proposal)
            accepts.append(accept_luck < self._tiled(found.accepted))
            freed = reject_luck < self._tiled(found.freed)
            needs.append(np.where(rank < listed, rank + 1 - freed, NEVER))
        ends = self._ends()
        if len(different) == 1:
            return Outcomes(accepted_runs(accepts[0], ends), np.stack(needs))
        proposal_at = np.array([different.index(proposal) for proposal in proposals])
        return Outcomes(shaped_runs(tuple(accepts), proposal_at, ends), np.stack(needs), proposal_at)

    def _luck_of(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """[N] uniforms that decide acceptances, and what was rejected."""
        if self._luck is None or self._luck[0] != seed:
            ids = np.array([request.id for request in self.trace.requests])
            stride = int(ids.max()) + 1  # the ids of the next copy follow (see `TokenModel.repeated`)
            requests = self._tiled(self.trace.request)
            requests = requests + stride * np.repeat(np.arange(self.copies), len(self.trace))
            key = (self.seed, requests, self._tiled(self.trace.position))
            accept, reject = (keyed_uniforms(seed, stream, *key) for stream in ("acceptance", "rejected"))
            self._luck = (seed, accept, reject)
        return self._luck[1:]

    def _ends(self) -> IntArray:
        """[N] flat position at which the request of each position ends."""
        n = len(self.trace)
        return self._tiled(self.trace.ends) + n * np.repeat(np.arange(self.copies), n)

    def _tiled(self, values: np.ndarray) -> np.ndarray:
        return values if self.copies == 1 else np.tile(values, self.copies)


def proposals_of(sampling: Sampling, source: Source, shape: tuple[int, ...] | None) -> tuple[Proposal, ...]:
    """Proposal of a token of `source` at each depth; a single one if the depth does not matter."""
    if source == Source.RANDOM:
        return (UNIFORM,)
    if not sampling.draft_sampled:
        return (FIRST,)
    if shape is None or sampling.scale == 1.0:
        return (DRAFT,)
    return tuple(Proposal("draft", sampling.scale, top) if top > 0 else DRAFT for top in shape)
