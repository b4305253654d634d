"""Greedy plain decoding: the recorder of traces and the reference of losslessness.

Contains no speculative code and shares none with the live engine, so that an error there cannot hide
here.  Imports torch; runs in a process of its own or in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def plain_decode(
    model: PreTrainedModel,
    prompt: Sequence[int],
    limit: int,
    end_token_ids: Collection[int] = (),
) -> list[int]:
    """The tokens that greedy decoding emits after `prompt`, one forward each.

    Args:
        model: In evaluation mode.
        prompt: At least one token.
        limit: Most tokens to emit.
        end_token_ids: Decoding stops after one of these; it is part of the result.
    """
    if not prompt or limit < 1:
        raise ValueError(f"prompt of {len(prompt)} tokens and limit {limit}; both must be at least 1")
    cache = DynamicCache(config=model.config)
    feed = torch.tensor([list(prompt)], device=model.device)
    emitted: list[int] = []
    while len(emitted) < limit:
        output = model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best = output.logits[:, -1].argmax(dim=-1)
        emitted.append(int(best))
        if emitted[-1] in end_token_ids:
            break
        feed = best[:, None]
    return emitted


def plain_decode_many(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    limit: int,
    end_token_ids: Collection[int] = (),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """`plain_decode` of each prompt; `progress(done, total)` is called after each."""
    texts = []
    for done, prompt in enumerate(prompts, start=1):
        texts.append(plain_decode(model, prompt, limit, end_token_ids))
        if progress is not None:
            progress(done, len(prompts))
    return texts
