"""The generation that comes with transformers, plain and assisted: a yardstick for our own engine.

`generate_once` runs in a process of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from calibrate.live.placement import Precision
from calibrate.processes import end_with_parent, process_context

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
    """What a generation gave: token ids after the prompt, and seconds, the prompt's prefill included."""

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
    """Generate greedily, `max_tokens` after a prompt unless an end token comes first.

    `lookahead` is the number of tokens drafted per round where the method is `assisted`.
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
def _models(place: Place) -> tuple[Any, ...]:
    import torch
    import transformers

    from calibrate.live.loading import load_model

    if place.core is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {place.core})
        torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()  # assistance calls itself in a deprecated way
    return tuple(
        load_model(name, place.precision, trust_remote_code=place.trust_remote_code)
        for name in (place.target, place.draft)
    )
