"""Make a trace file: record in processes of its own, show progress, assemble, describe."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from calibrate.journal import Journal, Json, pack, unpack
from calibrate.live.placement import backend_label, own_precision
from calibrate.prompts import Prompt
from calibrate.recording import PairFacts, Recording, RecordingJob, record
from calibrate.subprocesses import run_many
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest

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
    return Trace(
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
