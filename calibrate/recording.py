"""Record a trace by plain decoding of the target (design.md, sections 3 and 5).

This module holds no speculative code and runs in a process of its own: what it writes down is what plain
decoding does, so that replaying it is a test and not a tautology.  The draft is only ever asked what it
would have said at each position of the target's path.

At a temperature above 0 the path is sampled from the target's law p, and both laws are recorded as they
are after the cut to `top_p`: a log-probability of minus infinity says that a token was cut.  Ranks are
those of the uncut law, since a speculation cache is filled by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrate.live.placement import TORCH, Precision, is_local_model
from calibrate.reading import Reader, RunnerReader, open_draft
from hardware_profiles.trace_schema import COLUMNS
from policies.sampling import Sampling, keyed_generator

RANKS = 16
"""M of a greedy trace: the draft's choices kept per position."""
SAMPLED_RANKS = 32
"""M of a sampled one, where rejected tokens come from the tail and its mass should be small."""


@dataclass(frozen=True, slots=True)
class RecordingJob:
    """What to record.

    Attributes:
        target: Folder or name for `from_pretrained`.
        draft: Likewise.
        prompts: (request id, prompt text) of each prompt.
        limit: Most tokens per prompt.
        temperature: 0 for greedy; else tokens are sampled from softmax(logits / temperature).
        top_p: Mass of both laws that is kept at a temperature above 0; see `token_law`.
        ranks: M, choices kept per position; None: `RANKS`, or `SAMPLED_RANKS` at a temperature above 0.
        seed: Keys the sampling, by request and position.
        threads: Threads of torch; the results do not depend on it beyond rounding.
        precision: Of the weights.
        devices: Where torch has target and draft.
        draft_backend: What runs the draft: `torch`, or `openvino:CPU`, `llamacpp:q8_0` and the like.
        trust_remote_code: Run code that comes with the models.
    """

    target: str
    draft: str
    prompts: tuple[tuple[int, str], ...]
    limit: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    ranks: int | None = None
    seed: int = 0
    threads: int = 1
    precision: Precision = "fp32"
    devices: tuple[str, str] = ("cpu", "cpu")
    draft_backend: str = TORCH
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        Sampling(self.temperature, self.top_p)  # refuses what is out of its domain
        if self.top_p != 1.0 and self.temperature == 0.0:
            raise ValueError("top_p changes nothing at temperature 0; give a temperature, e.g. 1")
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")

    @property
    def kept_ranks(self) -> int:
        """M."""
        return self.ranks or (RANKS if self.temperature == 0.0 else SAMPLED_RANKS)


@dataclass(frozen=True, slots=True)
class PairFacts:
    """What a recorder finds in the models; reported before anything else.

    Attributes:
        vocabulary: Number of token ids.
        end_tokens: Ids that end a text.
        tokenizer: Its class.
    """

    vocabulary: int
    end_tokens: tuple[int, ...]
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One prompt's part of a trace.

    Attributes:
        request: Its id.
        prompt: Its token ids.
        ended: `end_token` or `limit`.
        columns: By trace column, arrays of n positions in the precision of the file.
    """

    request: int
    prompt: tuple[int, ...]
    ended: Literal["end_token", "limit"]
    columns: dict[str, np.ndarray]


def record(job: RecordingJob, report: Callable[[PairFacts | Recording], None]) -> None:
    """Record every prompt of a job; reports the `PairFacts`, then a `Recording` of each prompt in turn.

    Raises:
        ValueError: The models' vocabularies differ, or a prompt is empty or too long for them.
    """
    import torch

    from calibrate.live.loading import load_model, load_tokenizer, model_end_tokens

    torch.set_num_threads(job.threads)
    target, draft = (
        load_model(
            name,
            job.precision,
            local=is_local_model(name),
            device=device,
            trust_remote_code=job.trust_remote_code,
        )
        for name, device in zip((job.target, job.draft), job.devices, strict=True)
    )
    tokenizer = load_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    if target.config.vocab_size != draft.config.vocab_size:
        raise ValueError(
            f"target and draft have {target.config.vocab_size} and {draft.config.vocab_size} token ids; "
            "a pair must share its vocabulary"
        )
    ends = model_end_tokens(target)
    runner = open_draft(job)
    report(PairFacts(int(target.config.vocab_size), ends, type(tokenizer).__name__))
    with torch.inference_mode():
        for request, text in job.prompts:
            ids = list(tokenizer(text)["input_ids"])
            _check_length(request, ids, job.limit, (target, draft))
            report(_record_one(job, (target, runner or draft), request, ids, set(ends)))


def _check_length(request: int, ids: list[int], limit: int, models: tuple[Any, Any]) -> None:
    if not ids:
        raise ValueError(f"prompt {request} has no token")
    for model in models:
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if most is not None and len(ids) + limit > most:
            raise ValueError(
                f"prompt {request} has {len(ids)} tokens, which with {limit} new ones outgrow the "
                f"{most} positions of {model.config.name_or_path}; lower --max-tokens or use shorter prompts"
            )


def _record_one(
    job: RecordingJob, models: tuple[Any, Any], request: int, ids: list[int], ends: set[int]
) -> Recording:
    target, draft = models
    p = Reader(target, ids, job)
    q = Reader(draft, ids, job) if job.draft_backend == TORCH else RunnerReader(draft, ids, job)
    rows: list[dict[str, Any]] = []
    ended: Literal["end_token", "limit"] = "limit"
    for position in range(job.limit):
        token = _choose(job, p, request, position)
        rows.append(_describe(job.kept_ranks, token, p, q))
        if token in ends:
            ended = "end_token"
            break
        if position + 1 < job.limit:
            p.read([token])
            q.read([token])
    columns = {name: np.array([row[name] for row in rows], dtype=COLUMNS[name].dtype) for name in rows[0]}
    return Recording(request, tuple(ids), ended, columns)


def _choose(job: RecordingJob, p: Reader, request: int, position: int) -> int:
    if job.temperature == 0.0:
        return int(p.order[0])
    uniform = keyed_generator(job.seed, "target-sample", request, position).random()
    return draw(np.exp(p.logprobs.numpy()), uniform)


def draw(probabilities: np.ndarray, uniform: float) -> int:
    """The token at `uniform` of the cumulative law [V]; never one of probability zero."""
    cumulative = np.cumsum(probabilities)
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(found, int(np.flatnonzero(probabilities)[-1]))


def _describe(ranks: int, token: int, p: Reader, q: Reader) -> dict[str, Any]:
    import torch

    top, best = q.order[:ranks], p.order[:ranks]
    return {
        "token": token,
        "target_logprob": float(p.logprobs[token]),
        "draft_logprob": float(q.logprobs[token]),
        "draft_rank": int((q.order == token).nonzero()[0, 0]),
        "draft_top_ids": top.tolist(),
        "draft_top_logprobs": q.logprobs[top].tolist(),
        "target_at_draft_top_logprobs": p.logprobs[top].tolist(),
        "target_top_ids": best.tolist(),
        "target_top_logprobs": p.logprobs[best].tolist(),
        "accept_mass": float(torch.minimum(p.logprobs, q.logprobs).exp().sum()),
        "draft_next_top1_logprob": q.peek(int(top[0])),
    }
