"""Decoding without this engine: greedy plain decoding, and the generation that comes with transformers.

Plain decoding is the recorder of traces and the reference of losslessness.  It contains no speculative code
and shares none with the live engine, so that an error there cannot hide here; it runs in a process of its
own or in tests.  The generation of transformers, plain and assisted, is a yardstick for our own engine;
`generate_once` runs in a process of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from transformers import DynamicCache, PreTrainedModel

from calibrate.live.placement import Precision
from calibrate.processes import end_with_parent, process_context


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


Method: TypeAlias = Literal["plain", "assisted", "assisted-default"]
"""`assisted` drafts a fixed number of tokens per round, `assisted-default` as transformers comes."""


@dataclass(frozen=True, slots=True)
class Place:
    """What runs where.

    Attributes:
        target: Folder or hub name.
        draft: Of the draft, as `target`.
        core: The one core of both models, which take turns; None: as the process is.
        precision: Of both.
        trust_remote_code: Run code that comes with them.
    """

    target: str
    draft: str
    core: int | None = None
    precision: Precision = "fp32"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generation gave.

    Attributes:
        tokens: Token ids after the prompt.
        seconds: From the call to its return, the prompt's prefill included.
    """

    tokens: tuple[int, ...]
    seconds: float


@contextmanager
def generation_process() -> Iterator[ProcessPoolExecutor]:
    """A process that keeps its models from call to call: `submit(generate_once, place, ...)`."""
    with ProcessPoolExecutor(1, mp_context=process_context(), initializer=end_with_parent) as pool:
        yield pool


def generate_once(
    place: Place, method: Method, prompt: Sequence[int], max_tokens: int, lookahead: int
) -> Generated:
    """Generate greedily.

    Args:
        place: Models and core.
        method: How.
        prompt: Token ids.
        max_tokens: Most tokens to generate; an end token ends earlier.
        lookahead: Tokens drafted per round where the method is `assisted`.
    """
    import torch

    target, draft = _models(place)
    options: dict[str, Any] = {}
    if method != "plain":
        config = draft.generation_config
        # None: what transformers puts there by default, 20 tokens unless the draft is unsure before.
        pinned = method == "assisted"
        config.num_assistant_tokens = lookahead if pinned else None
        config.num_assistant_tokens_schedule = "constant" if pinned else None
        config.assistant_confidence_threshold = 0.0 if pinned else None
        options["assistant_model"] = draft
    ids = torch.tensor([list(prompt)], device=target.device)
    start = time.perf_counter()
    with torch.inference_mode():
        whole = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,  # never used with one row; unset, transformers warns
            **options,
        )
    tokens = tuple(whole[0, len(prompt) :].tolist())
    return Generated(tokens, time.perf_counter() - start)


def tokenize(place: Place, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of each text."""
    from calibrate.live.loading import load_tokenizer

    tokenizer = load_tokenizer(place.target, trust_remote_code=place.trust_remote_code)
    return [tuple(tokenizer(text)["input_ids"]) for text in texts]


@cache
def _models(place: Place) -> tuple[Any, Any]:
    import torch
    import transformers

    from calibrate.live.loading import load_model

    if place.core is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {place.core})
        torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # assistance calls itself in a deprecated way
    target, draft = (
        load_model(name, place.precision, trust_remote_code=place.trust_remote_code)
        for name in (place.target, place.draft)
    )
    return target, draft
