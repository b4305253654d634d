"""Continuations of a batch of prompts, greedy or sampled, with a KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.pair.train import Streams

if TYPE_CHECKING:
    import torch

PROMPT = 64
CONTINUATION = 160


def continue_batch(
    model: Any,
    prompts: torch.Tensor,
    new: int,
    *,
    end: int = 0,
    sampled_rows: int = 0,
    seed: int = 0,
) -> torch.Tensor:
    """``new`` tokens for each of the equally long ``prompts`` ``(rows, length)``.

    Args:
        model: a causal language model of transformers.
        prompts: token ids; no padding, so that a row's result does not depend on its neighbours.
        new: tokens to add to every row.
        end: after this token a row holds end tokens only.
        sampled_rows: this many rows, from the first, are sampled at temperature 1; others greedy.
        seed: of the sampling.

    Returns:
        Token ids ``(rows, new)``.
    """
    import torch

    random = torch.Generator().manual_seed(seed)
    chosen, ended = [], torch.zeros(len(prompts), dtype=torch.bool)
    tokens, cache = prompts, None
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for _ in range(new):
            out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, logits = out.past_key_values, out.logits[:, -1].float()
            following = logits.argmax(-1)
            if sampled_rows:
                shares = logits[:sampled_rows].softmax(-1)
                following[:sampled_rows] = torch.multinomial(shares, 1, generator=random)[:, 0]
            following = torch.where(ended, torch.full_like(following, end), following)
            ended |= following == end
            chosen.append(following)
            tokens = following[:, None]
    model.train(was_training)
    return torch.stack(chosen, dim=1).clone()


def training_prompts(streams: Streams, step: int, *, rows: int) -> torch.Tensor:
    """Prompts ``(rows, PROMPT)`` from training documents, with equal shares of the categories."""
    import torch

    random = np.random.default_rng([streams.seed, step, 1])
    names = list(streams.tokens)
    out = np.empty((rows, PROMPT), dtype=np.int64)
    for row in range(rows):
        stream = streams.tokens[names[row % len(names)]]
        start = int(random.integers(0, len(stream) - PROMPT))
        out[row] = stream[start : start + PROMPT]
    return torch.from_numpy(out)
