"""Trace recording by plain decoding of the target (design.md, sections 3 and 5).

This module holds no speculative code and runs in processes of its own: what it writes down is what plain
decoding does, so that replaying it is a test and not a tautology.  The draft is only ever asked what it
would have said at each position of the target's path.

At a temperature above 0 the path is sampled from the target's distribution p, and both distributions are
recorded as they are after the cut to `top_p`: a log-probability of minus infinity says that a token was cut.
Ranks are those of the uncut distribution, since a speculation cache is filled by them.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from calibrate.journal import Journal, pack, unpack
from calibrate.live.placement import (
    TORCH,
    Precision,
    WorkerSpec,
    available_cores,
    backend_label,
    own_precision,
)
from calibrate.processes import run_many
from calibrate.prompts import Prompt
from hardware_profiles.trace import COLUMNS, Trace, TraceMeta, TraceRequest
from policies.sampling import Sampling, keyed_generator

RANKS = 16
"""M of a greedy trace: the draft's choices kept per position."""
SAMPLED_RANKS = 32
"""M of a sampled one, where rejected tokens come from the tail and its mass should be small."""


@dataclass(frozen=True, slots=True)
class RecordingJob:
    """What to record, and the models to do it with: folders, or names for `from_pretrained`.

    Attributes:
        prompts: (request id, prompt text) of each prompt.
        max_tokens: Per prompt.
        temperature: 0 for greedy; else tokens are sampled from softmax(logits / temperature).
        top_p: Mass of both distributions that is kept at a temperature above 0; see `token_logprobs`.
        ranks: M, choices kept per position; None: `RANKS`, or `SAMPLED_RANKS` at a temperature above 0.
        seed: Keys the sampling, by request and position.
        threads: Threads of torch; the results do not depend on it beyond rounding.
        devices: Where torch has target and draft.
    """

    target: str
    draft: str
    prompts: tuple[tuple[int, str], ...]
    max_tokens: int = 128
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
    """What a recorder finds in the models, reported before anything else; `tokenizer` is its class."""

    vocabulary: int
    end_tokens: tuple[int, ...]
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One prompt's part of a trace: its id and token ids, how its text ended, and columns of n positions."""

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
            if not ids:
                raise ValueError(f"prompt {request} has no token")
            for model in (target, draft):
                most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
                if most is not None and len(ids) + job.max_tokens > most:
                    raise ValueError(
                        f"prompt {request} has {len(ids)} tokens, which with {job.max_tokens} new ones "
                        f"outgrow the {most} positions of {model.config.name_or_path}; lower --max-tokens or "
                        "use shorter prompts"
                    )
            report(_record_one(job, (target, runner or draft), request, ids, set(ends)))


def _record_one(
    job: RecordingJob, models: tuple[Any, Any], request: int, ids: list[int], ends: set[int]
) -> Recording:
    target, draft = models
    p = Reader(target, ids, job)
    q = Reader(draft, ids, job) if job.draft_backend == TORCH else RunnerReader(draft, ids, job)
    rows: list[dict[str, Any]] = []
    ended: Literal["end_token", "limit"] = "limit"
    for position in range(job.max_tokens):
        token = int(p.order[0])
        if job.temperature > 0.0:
            uniform = keyed_generator(job.seed, "target-sample", request, position).random()
            token = draw(np.exp(p.logprobs.numpy()), uniform)
        rows.append(_columns(job.kept_ranks, token, p, q))
        if token in ends:
            ended = "end_token"
            break
        if position + 1 < job.max_tokens:
            p.read([token])
            q.read([token])
    columns = {name: np.array([row[name] for row in rows], dtype=COLUMNS[name].dtype) for name in rows[0]}
    return Recording(request, tuple(ids), ended, columns)


def draw(probabilities: np.ndarray, uniform: float) -> int:
    """The token at `uniform` of the cumulative distribution [V]; never one of probability zero."""
    cumulative = np.cumsum(probabilities)
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(found, int(np.flatnonzero(probabilities)[-1]))


def _columns(ranks: int, token: int, p: Reader, q: Reader) -> dict[str, Any]:
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


def token_logprobs(logits: Any, temperature: float, top_p: float) -> tuple[Any, Any]:
    """The distribution that a model's token is sampled from, and its ranking of all tokens, of logits [V].

    softmax(logits / temperature), cut to the smallest set of most likely tokens whose mass reaches
    `top_p` and renormalised; among equals the lower id goes first.  At temperature 0 it is that of
    temperature 1, uncut: what the log-probabilities of a greedy trace mean.

    Returns:
        [V] log-probabilities in double precision, minus infinity for what was cut; [V] ids, most likely
        first, nothing left out.
    """
    import torch

    logits = logits.double()
    # Ties go to the lower id, as argmax does; a stable sort keeps ranks consistent with it.
    order = torch.sort(logits, descending=True, stable=True).indices
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if top_p < 1.0:
        mass = logprobs[order].exp().cumsum(dim=-1)
        kept = 1 + int((mass[:-1] < top_p).sum())
        logprobs[order[kept:]] = -torch.inf
        logprobs = logprobs - torch.log(mass[kept - 1])
    return logprobs, order


class Reader:
    """A model that reads one sequence token by token.

    Attributes:
        logprobs: [V] of the next token, at the sampling setting.
        order: [V] its ids, most likely first.
    """

    def __init__(self, model: Any, prompt: list[int], job: RecordingJob) -> None:
        self.model = model
        self.job = job
        self._clear()
        self.read(prompt)

    def read(self, ids: list[int]) -> None:
        """Feed tokens."""
        self.logprobs, self.order = self._logprobs_after(ids)

    def peek(self, token: int) -> float:
        """Highest log-probability after `token`, without keeping it."""
        logprobs, order = self._logprobs_after([token])
        self._forget()
        return float(logprobs[order[0]])

    def _logprobs_after(self, ids: list[int]) -> tuple[Any, Any]:
        return token_logprobs(self._logits(ids).cpu(), self.job.temperature, self.job.top_p)

    def _clear(self) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)

    def _logits(self, ids: list[int]) -> Any:
        import torch

        tokens = torch.tensor([ids], device=self.model.device)
        output = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1]

    def _forget(self) -> None:
        self.cache.crop(-1)


class RunnerReader(Reader):
    """A draft that another backend runs: what is recorded is what will draft."""

    def _clear(self) -> None:
        self.model.reset(0)

    def _logits(self, ids: list[int]) -> Any:
        return self.model.forward([0], [ids], last_only=True)[0, 0]

    def _forget(self) -> None:
        self.model.rollback(0, len(self.model.held(0)) - 1)


def open_draft(job: RecordingJob) -> Any:
    """What runs the draft where that is not torch; None where it is."""
    if job.draft_backend == TORCH:
        return None
    from calibrate.live.backends import open_runner

    spec = WorkerSpec(
        "draft",
        job.draft,
        available_cores()[: job.threads],
        job.precision,
        "draft",
        backend=job.draft_backend,
        trust_remote_code=job.trust_remote_code,
    )
    return open_runner(spec)


VERSIONS_OF = ("torch", "transformers", "numpy")
STAGE = "trace"
"""Under which the journal keeps recorded prompts."""


def record_trace(
    prompts: Sequence[Prompt],
    job: RecordingJob,
    *,
    prompt_set: str,
    names: tuple[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
    journal: Journal | None = None,
    processes: int = 1,
    when: str | None = None,
) -> Trace:
    """Record `prompts` by plain decoding in separate processes.

    Every prompt is recorded alone and on one thread, so that neither their number nor an interruption
    changes what is written down.  So many processes work side by side, each with both models in memory.

    Args:
        prompts: In place of the job's; their order gives the request ids 0, 1, ...
        job: Models and settings.
        prompt_set: Name for the metadata.
        names: Of target and draft, for the metadata (the job holds folders).
        progress: Called with (prompts done, prompts in all).
        journal: Keeps every prompt that is done; those that are there are not recorded again.
        processes: Of recorders.
        when: Date and time for the metadata; by default now.

    Raises:
        SubprocessError: The recording failed.
    """
    journal = journal or Journal()
    _record_missing(prompts, job, journal, processes, progress)
    facts = journal.get("pair")
    kept = [journal.get(*_key(job), i) for i in range(len(prompts))]
    columns: dict[str, Any] = {
        name: np.concatenate([unpack(each["columns"][name]) for each in kept]) for name in kept[0]["columns"]
    }
    for name, values in columns.items():
        if values.ndim == 1 and values.dtype.kind == "i":
            columns[name] = values.astype(np.int64)  # as `Trace` has them in memory
    sizes = [each["columns"]["token"]["shape"][0] for each in kept]
    sampling: dict[str, Any] = {"temperature": job.temperature, "seed": job.seed}
    if job.temperature > 0.0:
        sampling["top_p"] = job.top_p
    meta = TraceMeta(
        target_model=names[0],
        draft_model=names[1],
        tokenizer=facts["tokenizer"],
        vocabulary=facts["vocabulary"],
        sampling=sampling,
        end_token=next(iter(facts["end_tokens"]), None),
        # A vocabulary may have fewer than asked.
        draft_top=columns["draft_top_ids"].shape[1],
        target_top=columns["target_top_ids"].shape[1],
        prompt_set=prompt_set,
        prompt_set_hash=digest(prompts),
        backend=backend_label(job.draft_backend),
        precision=own_precision(job.draft_backend) or job.precision,
        when=when or now(),
        versions=versions(),
    )
    requests = [
        trace_request(i, prompt, tuple(each["prompt"]), each["ended"])
        for i, (prompt, each) in enumerate(zip(prompts, kept, strict=True))
    ]
    return Trace.of(
        requests=tuple(requests),
        meta=meta,
        request=np.repeat(np.arange(len(kept)), sizes),
        position=np.concatenate([np.arange(n) for n in sizes]),
        **columns,
    )


def trace_request(
    number: int, prompt: Prompt, ids: tuple[int, ...], ended: Literal["end_token", "limit"]
) -> TraceRequest:
    """What a trace says of a prompt with these token ids."""
    return TraceRequest(
        id=number,
        question_id=prompt.question_id,
        category=prompt.category,
        prompt=ids,
        source=prompt.source,
        ended=ended,
    )


def _key(job: RecordingJob) -> tuple[str, float, float]:
    return (STAGE, job.temperature, job.top_p)


def _record_missing(
    prompts: Sequence[Prompt],
    job: RecordingJob,
    journal: Journal,
    processes: int,
    progress: Callable[[int, int], None],
) -> None:
    """Let the journal have the recordings of all prompts, and the facts of the pair."""

    def missing() -> list[int]:
        return [i for i in range(len(prompts)) if not journal.has(*_key(job), i)]

    def collect(found: PairFacts | Recording) -> None:
        if isinstance(found, PairFacts):
            journal.once(lambda: asdict(found), "pair")
            return
        columns = {name: pack(values) for name, values in found.columns.items()}
        piece = {"prompt": list(found.prompt), "ended": found.ended, "columns": columns}
        journal.put(piece, *_key(job), found.request)
        progress(len(prompts) - len(missing()), len(prompts))

    todo = missing()
    progress(len(prompts) - len(todo), len(prompts))
    if todo or not journal.has("pair"):
        shares = [todo[i::processes] for i in range(min(processes, max(1, len(todo))))]
        jobs = [replace(job, prompts=tuple((i, prompts[i].text) for i in share)) for share in shares]
        run_many(record, jobs, collect)


def digest(prompts: Sequence[Prompt]) -> str:
    """Hash of a list of prompts."""
    return hashlib.sha256("\x00".join(p.text for p in prompts).encode()).hexdigest()[:16]


def now() -> str:
    """Date and time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of what a measurement depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS_OF}}
