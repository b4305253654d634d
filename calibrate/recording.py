"""Record a trace by plain decoding of the target (design.md, sections 3 and 5).

This module holds no speculative code and runs in a process of its own: what it writes down is what plain
decoding does, so that replaying it is a test and not a tautology.  The draft is only ever asked what it
would have said at each position of the target's path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrate.live.placement import Precision, is_local_model

DEFAULT_RANKS = 16


@dataclass(frozen=True, slots=True)
class RecordingJob:
    """What to record.

    Attributes:
        target: Folder or name for `from_pretrained`.
        draft: Likewise.
        prompts: (request id, prompt text) of each prompt.
        limit: Most tokens per prompt.
        temperature: 0 for greedy; else tokens are sampled from softmax(logits / temperature).
        ranks: M, choices kept per position.
        seed: Keys the sampling, by request and position.
        threads: Threads of torch; the results do not depend on it beyond rounding.
        precision: Of the weights.
    """

    target: str
    draft: str
    prompts: tuple[tuple[int, str], ...]
    limit: int = 128
    temperature: float = 0.0
    ranks: int = DEFAULT_RANKS
    seed: int = 0
    threads: int = 1
    precision: Precision = "fp32"


@dataclass(frozen=True, slots=True)
class Recording:
    """One prompt's part of a trace.

    Attributes:
        request: Its id.
        prompt: Its token ids.
        ended: `end_token` or `limit`.
        columns: By trace column, arrays of n positions.
    """

    request: int
    prompt: tuple[int, ...]
    ended: Literal["end_token", "limit"]
    columns: dict[str, np.ndarray]


def record(job: RecordingJob, report: Callable[[Recording], None]) -> dict[str, Any]:
    """Record every prompt of a job, calling `report` after each; returns facts about the models.

    Raises:
        ValueError: The models' vocabularies differ, or a prompt is too long for them.
    """
    import torch
    import transformers
    from transformers import AutoTokenizer

    from calibrate.live.loading import load_model, model_end_tokens

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(job.threads)
    target, draft = (
        load_model(name, job.precision, local=is_local_model(name)) for name in (job.target, job.draft)
    )
    tokenizer = AutoTokenizer.from_pretrained(job.target)
    if target.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            f"target and draft have {target.config.vocab_size} and {draft.config.vocab_size} token ids; "
            "a pair must share its vocabulary"
        )
    ends = set(model_end_tokens(target))
    with torch.inference_mode():
        for request, text in job.prompts:
            ids = tokenizer(text)["input_ids"]
            report(_record_one(job, (target, draft), request, ids, ends))
    return {
        "vocabulary": int(target.config.vocab_size),
        "end_tokens": sorted(ends),
        "tokenizer": type(tokenizer).__name__,
    }


class _Reader:
    """A model that reads one sequence token by token."""

    def __init__(self, model: Any, prompt: list[int], temperature: float) -> None:
        from transformers import DynamicCache

        self.model = model
        self.scale = temperature or 1.0
        self.cache = DynamicCache(config=model.config)
        self.logprobs = self.read(prompt)

    def read(self, ids: list[int]) -> Any:
        """Feed tokens; log-probabilities [V] of the next one, kept in `logprobs`."""
        import torch

        output = self.model(torch.tensor([ids]), past_key_values=self.cache, use_cache=True)
        self.logprobs = torch.log_softmax(output.logits[0, -1].float() / self.scale, dim=-1)
        return self.logprobs

    def peek(self, token: int) -> float:
        """Highest log-probability after `token`, without keeping it."""
        kept = self.logprobs
        best = float(self.read([token]).max())
        self.cache.crop(-1)
        self.logprobs = kept
        return best


def _record_one(
    job: RecordingJob, models: tuple[Any, Any], request: int, ids: list[int], ends: set[int]
) -> Recording:
    p, q = (_Reader(model, ids, job.temperature) for model in models)
    rows: list[dict[str, Any]] = []
    ended: Literal["end_token", "limit"] = "limit"
    for position in range(job.limit):
        token = _choose(job, p.logprobs, request, position)
        rows.append(_describe(job.ranks, token, p.logprobs, q))
        if token in ends:
            ended = "end_token"
            break
        if position + 1 < job.limit:
            p.read([token])
            q.read([token])
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return Recording(request, tuple(ids), ended, columns)


def _choose(job: RecordingJob, logprobs: Any, request: int, position: int) -> int:
    if job.temperature == 0.0:
        return int(logprobs.argmax())
    from policies.randomness import keyed_generator

    uniform = keyed_generator(job.seed, "target-sample", request, position).random()
    cumulative = np.cumsum(np.exp(logprobs.double().numpy()))
    return int(np.searchsorted(cumulative, uniform * cumulative[-1]))


def _describe(ranks: int, token: int, p: Any, q: _Reader) -> dict[str, Any]:
    import torch

    # Ties go to the lower id, as argmax does; a stable sort keeps ranks consistent with it.
    order = torch.sort(q.logprobs, descending=True, stable=True).indices
    best = torch.sort(p, descending=True, stable=True).indices[:ranks]
    top = order[:ranks]
    return {
        "token": token,
        "target_logprob": float(p[token]),
        "draft_logprob": float(q.logprobs[token]),
        "draft_rank": int((order == token).nonzero()[0, 0]),
        "draft_top_ids": top.tolist(),
        "draft_top_logprobs": q.logprobs[top].tolist(),
        "target_at_draft_top_logprobs": p[top].tolist(),
        "target_top_ids": best.tolist(),
        "target_top_logprobs": p[best].tolist(),
        "accept_mass": float(torch.minimum(p, q.logprobs).exp().sum()),
        "draft_next_top1_logprob": q.peek(int(top[0])),
    }


def model_facts(folder: str) -> dict[str, Any]:
    """Name and number of parameters of a model, from its files alone."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    path = Path(folder)
    return {
        "name": path.name if path.is_dir() else folder,
        "parameters": count_parameters(config),
        "layers": int(config.num_hidden_layers),
        "hidden": int(config.hidden_size),
    }


def count_parameters(config: Any) -> int:
    """Number of weights of a causal model of this configuration; builds it without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
