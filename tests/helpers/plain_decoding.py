"""Greedy plain decoding, the reference of losslessness: it shares no code with the live engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def plain_decode(
    model: PreTrainedModel, prompt: Sequence[int], limit: int, end_token_ids: Collection[int] = ()
) -> list[int]:
    """The tokens emitted after `prompt`, one forward each; an end token is the last of them."""
    cache = DynamicCache(config=model.config)
    feed = torch.tensor([list(prompt)])
    emitted: list[int] = []
    while len(emitted) < limit and not {*emitted[-1:]} & {*end_token_ids}:
        output = model(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        feed = output.logits[:, -1].argmax(dim=-1)[:, None]
        emitted.append(int(feed))
    return emitted


def plain_decode_many(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    limit: int,
    end_token_ids: Collection[int] = (),
) -> list[list[int]]:
    """`plain_decode` of each prompt."""
    return [plain_decode(model, prompt, limit, end_token_ids) for prompt in prompts]
