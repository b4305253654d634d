"""Choosing drafted tokens: the draft's first choice, or draws whose laws are kept for the verification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrate.live.arena import Block, LawWriter
from calibrate.live.choice import DRAFTED, drafted_weights, draw
from calibrate.live.errors import AuditError
from policies.sampling import GREEDY, Sampling, keyed_uniforms
from policies.values import NO_LAW


class DraftSampler:
    """Chooses the tokens of N texts that grow side by side, one token each per step.

    A draw is keyed by request and position.  Branches of one request share it, as they share nothing else:
    at most one of them is what the target continues.

    Args:
        requests: [N] request of each text.
        positions: [N] position of the first token to be chosen.
        depth: Most tokens per text.
        sampling: How tokens are chosen.
        shape: F_0, F_1, ... for Saguaro sampling; None to draw from q itself.
        writer: Where laws are kept; needed where tokens are drawn.
    """

    def __init__(
        self,
        requests: Sequence[int],
        positions: Sequence[int],
        depth: int,
        sampling: Sampling = GREEDY,
        *,
        shape: tuple[int, ...] | None = None,
        writer: LawWriter | None = None,
    ) -> None:
        if sampling.draft_sampled and writer is None:
            raise AuditError("this worker drafts at random but was given no memory for its laws")
        self.requests = np.array(requests, dtype=np.int64)
        self.positions = np.array(positions, dtype=np.int64)
        self.depth = depth
        self.sampling = sampling
        self.shape = shape
        self.steps = 0
        self._writer = writer
        self._block: Block | None = None

    def choose(self, logits: Tensor) -> Tensor:
        """[N] the next token of every text, from its logits [N, V]."""
        step, self.steps = self.steps, self.steps + 1
        if not self.sampling.draft_sampled:
            return logits.argmax(dim=-1)
        weights = drafted_weights(logits, self.sampling, 0 if self.shape is None else self.shape[step])
        positions = self.positions + step
        tokens = draw(weights, keyed_uniforms(self.sampling.seed, DRAFTED, self.requests, positions))
        if self._block is None:
            assert self._writer is not None, "checked at the start"
            self._block = self._writer.reserve(len(self.requests), self.depth, logits.shape[-1])
        totals = weights.sum(dim=-1, dtype=torch.float64)
        self._block.write(
            step,
            weights.cpu().numpy(),
            totals.cpu().numpy(),
            (self.requests, positions, tokens.cpu().numpy()),
        )
        return tokens

    def seal(self) -> list[int]:
        """[N] handle of each text's laws; NO_LAW where nothing was drawn."""
        return [NO_LAW] * len(self.requests) if self._block is None else self._block.seal()
