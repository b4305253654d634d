"""Verification of sampled chains: which drafted tokens are accepted, and which token comes after them.

Lossless whatever the draft does, provided that sigma is the very law that a token was drawn from:

- sampled primary draft: the law kept in the arena, as it was after top-p and Saguaro's rescaling;
- the draft's first choice, and an n-gram: one-hot;
- random tokens: uniform.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.arena import LawReader
from calibrate.live.choice import ACCEPTED, BONUS, accepted_run, draw, residual
from calibrate.live.engine.rows import Row
from policies.sampling import FloatArray, Sampling, keyed_uniforms
from policies.values import BoolArray, IntArray, Source


class Proposals:
    """Drafted tokens of R rows, and the laws sigma that they were drawn from.

    Args:
        rows: What is verified.
        sampling: How the tokens were chosen.
        vocabulary: V.
        reader: Finds the laws of sampled tokens.

    Attributes:
        requests: [R].
        positions: [R] position of the first drafted token.
        lengths: [R] drafted tokens.
        tokens: [R, m] their ids, 0 beyond a row's length.
    """

    def __init__(self, rows: Sequence[Row], sampling: Sampling, vocabulary: int, reader: LawReader) -> None:
        self.sampling = sampling
        self.vocabulary = vocabulary
        self.requests = _array([row.request for row in rows])
        self.positions = _array([row.position for row in rows])
        self.lengths = _array([len(row.tokens) for row in rows])
        width = int(self.lengths.max())
        self.tokens = _array([(*row.tokens, *[0] * (width - len(row.tokens))) for row in rows])
        sources = _array([row.source for row in rows])
        self._random: BoolArray = sources == Source.RANDOM
        self._drawn: BoolArray = (sources == Source.PRIMARY) & sampling.draft_sampled
        self._handles = _array([row.law for row in rows])
        self._reader = reader

    def masses(self) -> FloatArray:
        """[R, m] sigma of each drafted token; 1 beyond a row's length."""
        masses = np.where(self._random, 1.0 / self.vocabulary, 1.0)[:, None].repeat(self.tokens.shape[1], 1)
        within = np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        row, at = np.nonzero(within & self._drawn[:, None])
        if len(row):
            masses[row, at] = self._reader.masses(
                self._handles_at(row, at),
                self.requests[row],
                self.positions[row] + at,
                self.tokens[row, at],
                self.vocabulary,
            )
        return masses

    def laws(self, row: IntArray, at: IntArray) -> FloatArray:
        """[n, V] sigma of the tokens `at` [n] of the rows `row` [n]."""
        laws = np.zeros((len(row), self.vocabulary))
        laws[np.arange(len(row)), self.tokens[row, at]] = 1.0
        laws[self._random[row]] = 1.0 / self.vocabulary
        drawn = np.flatnonzero(self._drawn[row])
        if len(drawn):
            laws[drawn] = self._reader.laws(self._handles_at(row[drawn], at[drawn]), self.vocabulary)
        return laws

    def _handles_at(self, row: IntArray, at: IntArray) -> IntArray:
        """Handles of the laws of single tokens; a missing handle stays one."""
        handles = self._handles[row]
        return np.where(handles < 0, handles, handles + at)


def judge_chains(
    p: Tensor, proposals: Proposals, leave_open: BoolArray
) -> tuple[list[int], list[int | None]]:
    """Accepted tokens of each row, and the token that follows them.

    Args:
        p: [R, n, V] the target's laws after the committed text and after each drafted token; where all of a
            row's tokens are accepted and its end stays open, the last one is not needed.
        proposals: What was drafted.
        leave_open: [R] rows whose next token is not chosen if everything is accepted.

    Returns:
        [R] accepted tokens; [R] the next token, None where it stays open.
    """
    run, seed = _accepted(p, proposals), proposals.sampling.seed
    rejected = run < proposals.lengths
    chosen = np.flatnonzero(rejected | ~leave_open)
    following: list[int | None] = [None] * len(run)
    if len(chosen):
        weights = p[torch.from_numpy(chosen).to(p.device), torch.from_numpy(run[chosen]).to(p.device)]
        corrected = np.flatnonzero(rejected[chosen])
        if len(corrected):
            rows = chosen[corrected]
            sigma = torch.from_numpy(proposals.laws(rows, run[rows])).to(p.device)
            index = torch.from_numpy(corrected).to(p.device)
            weights[index] = residual(weights[index], sigma)
        uniforms = keyed_uniforms(
            seed, BONUS, proposals.requests[chosen], proposals.positions[chosen] + run[chosen]
        )
        for row, token in zip(chosen.tolist(), draw(weights, uniforms).tolist(), strict=True):
            following[row] = token
    accepted: list[int] = run.tolist()
    return accepted, following


def _accepted(p: Tensor, proposals: Proposals) -> IntArray:
    """[R] length of each row's accepted run."""
    width = proposals.tokens.shape[1]
    if not width:
        return np.zeros(len(proposals.lengths), dtype=np.int64)
    tokens = torch.from_numpy(proposals.tokens).to(p.device)
    under_p = p[:, :width].gather(-1, tokens[..., None])[..., 0].cpu().numpy()
    uniforms = keyed_uniforms(
        proposals.sampling.seed,
        ACCEPTED,
        proposals.requests[:, None],
        proposals.positions[:, None] + np.arange(width),
    )
    return accepted_run(under_p, proposals.masses(), uniforms, proposals.lengths)


def _array(values: Sequence[object]) -> IntArray:
    return np.array(values, dtype=np.int64)
