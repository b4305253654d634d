"""What becomes of a verified token, given the path that was recorded: two probabilities per position.

A path y that was sampled from the target is a fair path for every lossless policy (design.md, section 3).
At one of its positions let p be the target's distribution, sigma the *proposal*, the distribution that
the verified token was drawn from, and *rank* the draft's ranking.  Given y,

- the token is accepted with probability min(1, sigma(y) / p(y));
- if it is not, it was some token s with distribution (sigma - p)+ / total, independent of y; leaving s out
  of the cached set moves y up by one place if s outranks it, which has the probability

      freed = sum of (sigma - p)+ over ranks above y's / total.

`total` runs over the whole vocabulary, of which the trace lists M tokens.  For sigma = q it is
1 - accept_mass and exact; else the unlisted tokens leave an interval, whose middle is taken and whose
half-width is kept as `slack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from hardware_profiles.trace import Trace
from policies.registry import SettingError
from policies.sampling import FloatArray
from policies.values import IntArray

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
