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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrate.job import Job, recorders, worker_specs
from calibrate.journal import Journal, pack, unpack
from calibrate.live.placement import TORCH, available_cores, backend_label, own_precision
from calibrate.machine import versions
from calibrate.options import Progress, quiet
from calibrate.processes import run_many
from calibrate.prompts import Prompt
from hardware_profiles.trace import COLUMNS, Trace, TraceMeta, TraceRequest
from policies.sampling import keyed_generator

RANKS = 16
"""M of a greedy trace: the draft's choices kept per position."""
SAMPLED_RANKS = 32
"""M of a sampled one, where rejected tokens come from the tail and its mass should be small."""


class Share(NamedTuple):
    """What one process records: prompts of a job, by their numbers, at a temperature.

    The job's seed keys the sampling, by request and position.
    """

    job: Job
    temperature: float
    numbers: tuple[int, ...]

    @property
    def top_p(self) -> float:
        """Mass of both distributions that is kept; see `token_logprobs`."""
        return self.job.top_p if self.temperature > 0.0 else 1.0

    @property
    def kept_ranks(self) -> int:
        """M, choices kept per position."""
        return self.job.ranks or (RANKS if self.temperature == 0.0 else SAMPLED_RANKS)


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


def record(share: Share, report: Callable[[PairFacts | Recording], None]) -> None:
    """Record prompts; reports the `PairFacts`, then a `Recording` of each prompt in turn.

    Raises:
        ValueError: The models' vocabularies differ, or a prompt is empty or too long for them.
    """
    import torch

    from calibrate.live.loading import load_model, load_tokenizer, model_end_tokens

    torch.set_num_threads(1)
    job = share.job
    target, draft = (
        load_model(name, job.precision, device=device, trust_remote_code=job.trust_remote_code)
        for name, device in zip((job.target, job.draft), job.placement.devices, strict=True)
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
        for request in share.numbers:
            ids = list(tokenizer(job.prompts[request].text)["input_ids"])
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
            report(_record_one(share, (target, runner or draft), request, ids, set(ends)))


def _record_one(
    share: Share, models: tuple[Any, Any], request: int, ids: list[int], ends: set[int]
) -> Recording:
    (target, draft), job = models, share.job
    p = Reader(target, ids, share)
    q = (Reader if job.draft_backend == TORCH else RunnerReader)(draft, ids, share)
    rows: list[dict[str, Any]] = []
    ended: Literal["end_token", "limit"] = "limit"
    for position in range(job.max_tokens):
        token = int(p.order[0])
        if share.temperature > 0.0:
            uniform = keyed_generator(job.seed, "target-sample", request, position).random()
            token = draw(np.exp(p.logprobs.numpy()), uniform)
        rows.append(_columns(share.kept_ranks, token, p, q))
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
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probabilities)[-1]))


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

    def __init__(self, model: Any, prompt: list[int], share: Share) -> None:
        self.model = model
        self.share = share
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
        return token_logprobs(self._logits(ids).cpu(), self.share.temperature, self.share.top_p)

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


def open_draft(job: Job) -> Any:
    """What runs the draft where that is not torch, on one core; None where it is."""
    if job.draft_backend == TORCH:
        return None
    from calibrate.live.backends import open_runner

    return open_runner(replace(worker_specs(job)[1], cores=available_cores()[:1]))


STAGE = "trace"
"""Under which the journal keeps recorded prompts."""


def record_trace(
    job: Job,
    temperature: float,
    progress: Progress = quiet,
    journal: Journal | None = None,
    *,
    processes: int | None = None,
) -> Trace:
    """Record a trace of a job's prompts by plain decoding in separate processes.

    Every prompt is recorded alone and on one thread, so that neither their number nor an interruption
    changes what is written down.

    Args:
        job: Models, prompts and settings; the order of the prompts gives the request ids 0, 1, ...
        temperature: 0 for greedy; else tokens are sampled from softmax(logits / temperature).
        progress: Called with (stage, prompts done, prompts in all).
        journal: Keeps every prompt that is done; those that are there are not recorded again.
        processes: Recorders side by side, each with both models in memory; None: see `job.recorders`.

    Raises:
        SubprocessError: The recording failed.
    """
    journal = journal or Journal()
    share = Share(job, temperature, tuple(range(len(job.prompts))))
    stage = f"trace at T={temperature:g}" if temperature > 0.0 else "trace"
    _record_missing(share, journal, processes or recorders(job), partial(progress, stage))
    facts = journal.get("pair")
    kept = [journal.get(*_key(share), i) for i in share.numbers]
    columns: dict[str, Any] = {
        name: np.concatenate([unpack(each["columns"][name]) for each in kept]) for name in kept[0]["columns"]
    }
    for name, values in columns.items():
        if values.ndim == 1 and values.dtype.kind == "i":
            columns[name] = values.astype(np.int64)  # as `Trace` has them in memory
    sizes = [each["columns"]["token"]["shape"][0] for each in kept]
    sampling: dict[str, Any] = {"temperature": temperature, "seed": job.seed}
    if temperature > 0.0:
        sampling["top_p"] = job.top_p
    meta = TraceMeta(
        target_model=job.names[0],
        draft_model=job.names[1],
        tokenizer=facts["tokenizer"],
        vocabulary=facts["vocabulary"],
        sampling=sampling,
        end_token=next(iter(facts["end_tokens"]), None),
        # A vocabulary may have fewer than asked.
        draft_top=columns["draft_top_ids"].shape[1],
        target_top=columns["target_top_ids"].shape[1],
        prompt_set=job.prompt_set,
        prompt_set_hash=digest(job.prompts),
        backend=backend_label(job.draft_backend),
        precision=own_precision(job.draft_backend) or job.precision,
        when=journal.get("started") if journal.has("started") else now(),
        versions=versions(),
    )
    requests = [
        trace_request(i, prompt, tuple(each["prompt"]), each["ended"])
        for i, (prompt, each) in enumerate(zip(job.prompts, kept, strict=True))
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


def _key(share: Share) -> tuple[str, float, float]:
    return (STAGE, share.temperature, share.top_p)


def _record_missing(
    share: Share, journal: Journal, processes: int, progress: Callable[[int, int], None]
) -> None:
    """Let the journal have the recordings of all prompts, and the facts of the pair."""

    def missing() -> list[int]:
        return [i for i in share.numbers if not journal.has(*_key(share), i)]

    def collect(recorded: PairFacts | Recording) -> None:
        if isinstance(recorded, PairFacts):
            journal.once(lambda: asdict(recorded), "pair")
            return
        columns = {name: pack(values) for name, values in recorded.columns.items()}
        piece = {"prompt": list(recorded.prompt), "ended": recorded.ended, "columns": columns}
        journal.put(piece, *_key(share), recorded.request)
        progress(len(share.numbers) - len(missing()), len(share.numbers))

    todo = missing()
    progress(len(share.numbers) - len(todo), len(share.numbers))
    if todo or not journal.has("pair"):
        parts = [todo[i::processes] for i in range(min(processes, max(1, len(todo))))]
        run_many(record, [share._replace(numbers=tuple(part)) for part in parts], collect)


def digest(prompts: Sequence[Prompt]) -> str:
    """Hash of a list of prompts."""
    return hashlib.sha256("\x00".join(p.text for p in prompts).encode()).hexdigest()[:16]


def now() -> str:
    """Date and time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
