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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from calibrate.journal import Journal, Json, pack, unpack
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
    """What to record.

    Attributes:
        target: Folder or name for `from_pretrained`.
        draft: Folder or name of the draft, too.
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
        rows.append(_columns(job.kept_ranks, token, p, q))
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


def token_law(logits: Any, temperature: float, top_p: float) -> tuple[Any, Any]:
    """The law that a model's token is sampled from, and its ranking of all tokens.

    softmax(logits / temperature), cut to the smallest set of most likely tokens whose mass reaches
    `top_p` and renormalised; among equals the lower id goes first.  At temperature 0 the law is that of
    temperature 1, uncut: what the log-probabilities of a greedy trace mean.

    Args:
        logits: [V], a torch tensor.
        temperature: At least 0.
        top_p: Mass kept, in (0, 1].

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
        from transformers import DynamicCache

        self.model = model
        self.job = job
        self.cache = DynamicCache(config=model.config)
        self.read(prompt)

    def read(self, ids: list[int]) -> None:
        """Feed tokens."""
        self.logprobs, self.order = self._law_after(ids)

    def peek(self, token: int) -> float:
        """Highest log-probability after `token`, without keeping it."""
        logprobs, order = self._law_after([token])
        self.cache.crop(-1)
        return float(logprobs[order[0]])

    def _law_after(self, ids: list[int]) -> tuple[Any, Any]:
        import torch

        device = self.model.device
        output = self.model(
            torch.tensor([ids], device=device), past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return token_law(output.logits[0, -1].cpu(), self.job.temperature, self.job.top_p)


class RunnerReader(Reader):
    """The same for a draft that another backend runs: what is recorded is what will draft."""

    def __init__(self, runner: Any, prompt: list[int], job: RecordingJob) -> None:
        self.runner = runner
        self.job = job
        runner.reset(0)
        self.read(prompt)

    def peek(self, token: int) -> float:
        """As `Reader.peek`."""
        logprobs, order = self._law_after([token])
        self.runner.rollback(0, len(self.runner.held(0)) - 1)
        return float(logprobs[order[0]])

    def _law_after(self, ids: list[int]) -> tuple[Any, Any]:
        logits = self.runner.forward([0], [ids], last_only=True)
        return token_law(logits[0, 0].cpu(), self.job.temperature, self.job.top_p)


def open_draft(job: RecordingJob) -> Any:
    """What runs the draft where that is not torch; None where it is."""
    if job.draft_backend == TORCH:
        return None
    from calibrate.live.backends import open_runner

    cores = available_cores()[: job.threads]
    return open_runner(
        WorkerSpec(
            "draft",
            job.draft,
            cores,
            job.precision,
            "draft",
            backend=job.draft_backend,
            trust_remote_code=job.trust_remote_code,
        )
    )


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
    changes what is written down.

    Args:
        prompts: What to continue; their order gives the request ids 0, 1, ...
        job: Models and settings; its own `prompts` are replaced by these.
        prompt_set: Name for the metadata.
        names: Names of target and draft for the metadata (the job holds folders).
        progress: Called with (prompts done, prompts in all).
        journal: Keeps every prompt that is done; those that are there are not recorded again.
        processes: How many recorders work side by side, each with both models in memory.
        when: Date and time for the metadata; by default now.

    Raises:
        SubprocessError: The recording failed.
    """
    journal = journal or Journal()
    facts, found = _record_all(prompts, job, journal, processes, progress)
    columns: dict[str, Any] = {
        name: _widen(np.concatenate([r.columns[name] for r in found])) for name in found[0].columns
    }
    sizes = [len(r.columns["token"]) for r in found]
    return Trace.of(
        requests=tuple(
            TraceRequest(
                id=r.request,
                question_id=p.question_id,
                category=p.category,
                prompt=r.prompt,
                source=p.source,
                ended=r.ended,
            )
            for r, p in zip(found, prompts, strict=True)
        ),
        meta=_describe(
            job,
            facts,
            digest=digest(prompts),
            prompt_set=prompt_set,
            names=names,
            widths=(columns["draft_top_ids"].shape[1], columns["target_top_ids"].shape[1]),
            when=when or now(),
        ),
        request=np.repeat([r.request for r in found], sizes),
        position=np.concatenate([np.arange(n) for n in sizes]),
        **columns,
    )


def _record_all(
    prompts: Sequence[Prompt],
    job: RecordingJob,
    journal: Journal,
    processes: int,
    progress: Callable[[int, int], None],
) -> tuple[PairFacts, list[Recording]]:
    """All recordings in the order of the prompts; what the journal has is taken from there."""
    key = (STAGE, job.temperature, job.top_p)

    def missing() -> list[int]:
        return [i for i in range(len(prompts)) if not journal.has(*key, i)]

    def collect(found: PairFacts | Recording) -> None:
        if isinstance(found, PairFacts):
            journal.once(lambda: _pack_facts(found), "pair")
            return
        journal.put(_pack(found), *key, found.request)
        progress(len(prompts) - len(missing()), len(prompts))

    todo = missing()
    progress(len(prompts) - len(todo), len(prompts))
    if todo or not journal.has("pair"):
        shares = [todo[i::processes] for i in range(min(processes, max(1, len(todo))))]
        run_many(
            record,
            [replace(job, prompts=tuple((i, prompts[i].text) for i in share)) for share in shares],
            collect,
        )
    facts = PairFacts(**{k: _tupled(v) for k, v in journal.get("pair").items()})
    return facts, [_unpack(i, journal.get(*key, i)) for i in range(len(prompts))]


def _pack(recording: Recording) -> Json:
    columns = {name: pack(values) for name, values in recording.columns.items()}
    return {"prompt": list(recording.prompt), "ended": recording.ended, "columns": columns}


def _unpack(request: int, kept: Json) -> Recording:
    columns = {name: unpack(values) for name, values in kept["columns"].items()}
    return Recording(request, tuple(kept["prompt"]), kept["ended"], columns)


def _pack_facts(facts: PairFacts) -> Json:
    return {
        "vocabulary": facts.vocabulary,
        "end_tokens": list(facts.end_tokens),
        "tokenizer": facts.tokenizer,
    }


def _tupled(value: Json) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _widen(values: np.ndarray) -> np.ndarray:
    """Flat integers as the int64 that `Trace` has in memory."""
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind == "i" else values


def digest(prompts: Sequence[Prompt]) -> str:
    """Hash of a list of prompts."""
    return hashlib.sha256("\x00".join(p.text for p in prompts).encode()).hexdigest()[:16]


def _describe(
    job: RecordingJob,
    facts: PairFacts,
    *,
    digest: str,
    prompt_set: str,
    names: tuple[str, str],
    widths: tuple[int, int],
    when: str,
) -> TraceMeta:
    """Metadata; `widths` are the ranks kept of draft and target: a vocabulary may have fewer than asked."""
    sampling: dict[str, Any] = {"temperature": job.temperature, "seed": job.seed}
    if job.temperature > 0.0:
        sampling["top_p"] = job.top_p
    return TraceMeta(
        target_model=names[0],
        draft_model=names[1],
        tokenizer=facts.tokenizer,
        vocabulary=facts.vocabulary,
        sampling=sampling,
        end_token=facts.end_tokens[0] if facts.end_tokens else None,
        draft_top=widths[0],
        target_top=widths[1],
        prompt_set=prompt_set,
        prompt_set_hash=digest,
        backend=backend_label(job.draft_backend),
        precision=own_precision(job.draft_backend) or job.precision,
        when=when,
        versions=versions(),
    )


def now() -> str:
    """Date and time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of what a measurement depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS_OF}}
