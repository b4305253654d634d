"""Sampled decoding on a recorded path: who is accepted, and what a rejection leaves in the cache.

Two probabilities per position and proposal decide that (`simulator.tokens.chances`).  Each meets one keyed
uniform per position, whatever the policy, so that a position is decided once and every policy and every
proposal meets the same luck.
"""

from __future__ import annotations

import numpy as np

from hardware_profiles.trace import Trace
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.values import IntArray, Source
from simulator.tokens.chances import DRAFT, FIRST, UNIFORM, Chances, Proposal, Recorded, chances
from simulator.tokens.outcomes import NEVER, Outcomes, accepted_runs, shaped_runs

BLOCK = 65_536
"""Positions handled at once, which bounds the memory taken."""
KEPT = 64
"""Settings whose outcomes are kept for the next run."""


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
