"""The draft: trained to match the target's distribution on text and on the target's own writing.

Acceptance is measured on what the target writes, so half of every batch is that: continuations of
training prompts by the final target, a third of them sampled, the others greedy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate.pair.generate import CONTINUATION, PROMPT, continue_batch, training_prompts
from calibrate.pair.train import Loss, Streams, logits_of

if TYPE_CHECKING:
    import torch

_POOL_BATCH = 64
_TEXT_ROWS = 4
_WRITTEN_ROWS = 10


def write_pool(
    target: Any, streams: Streams, batches: int, path: Path, report: Callable[[int], None]
) -> NDArray[np.uint16]:
    """Prompts continued by ``target``: ``(rows, PROMPT + CONTINUATION)``, kept in ``path``."""
    if path.exists():
        pool: NDArray[np.uint16] = np.load(path)
        return pool
    import torch

    rows = []
    for index in range(batches):
        prompts = training_prompts(streams, 2_000_000 + index, rows=_POOL_BATCH)
        written = continue_batch(target, prompts, CONTINUATION, sampled_rows=_POOL_BATCH // 3, seed=index)
        rows.append(torch.cat([prompts, written], dim=1).numpy().astype(np.uint16))
        report(index + 1)
    pool = np.concatenate(rows)
    np.save(path, pool)
    return pool


def divergence(target_logits: torch.Tensor, draft_logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean KL(target || draft) in nats over the masked positions; logits ``(rows, window, v)``."""
    log_p, log_q = target_logits.log_softmax(-1), draft_logits.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return (kl * mask).sum() / mask.sum().clamp(min=1)


def distillation(target: Any, draft: Any, streams: Streams, pool: NDArray[np.uint16]) -> Loss:
    """The draft's loss as a function of the step, to hand to `calibrate.pair.train.fit`."""
    import torch

    # Positions that predict a written token: not the prompt's, and none after an end token.
    tokens = torch.from_numpy(pool.astype(np.int64))
    open_ = (tokens[:, PROMPT:] == 0).cumsum(1) == 0
    predicts = torch.zeros_like(tokens, dtype=torch.bool)
    predicts[:, PROMPT - 1] = True
    predicts[:, PROMPT : PROMPT + CONTINUATION - 1] = open_[:, :-1]

    def match(batch: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = logits_of(target, batch)
        return divergence(wanted, logits_of(draft, batch), mask)

    def loss(step: int) -> torch.Tensor:
        text = streams.batch(3_000_000 + step, rows=_TEXT_ROWS)
        random = np.random.default_rng([streams.seed, step, 2])
        rows = torch.from_numpy(random.choice(len(tokens), size=_WRITTEN_ROWS, replace=False))
        everywhere = torch.ones_like(text, dtype=torch.bool)
        return match(text, everywhere) + match(tokens[rows], predicts[rows])

    return loss
