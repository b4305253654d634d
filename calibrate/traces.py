"""Make a trace file: record in a process of its own, show progress, assemble, describe."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from calibrate.prompts import Prompt
from calibrate.recording import Recording, RecordingJob, record
from calibrate.subprocesses import run_apart
from hardware_profiles.trace import Trace, TraceMeta, TraceRequest

VERSIONS_OF = ("torch", "transformers", "numpy")


def record_trace(
    prompts: Sequence[Prompt],
    job: RecordingJob,
    *,
    prompt_set: str,
    names: tuple[str, str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trace:
    """Record `prompts` by plain decoding in a separate process.

    Args:
        prompts: What to continue; their order gives the request ids 0, 1, ...
        job: Models and settings; its own `prompts` are replaced by these.
        prompt_set: Name for the metadata.
        names: Names of target and draft for the metadata (the job holds folders).
        progress: Called with (prompts done, prompts in all).

    Raises:
        SubprocessError: The recording failed.
    """
    numbered = tuple((i, p.text) for i, p in enumerate(prompts))
    job = RecordingJob(**{f: getattr(job, f) for f in job.__dataclass_fields__} | {"prompts": numbered})
    done: list[Recording] = []

    def collect(recording: Recording) -> None:
        done.append(recording)
        progress(len(done), len(prompts))

    progress(0, len(prompts))
    facts = run_apart(record, job, collect)
    columns: dict[str, Any] = {
        name: np.concatenate([r.columns[name] for r in done]) for name in done[0].columns
    }
    sizes = [len(r.columns["token"]) for r in done]
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
            for r, p in zip(done, prompts, strict=True)
        ),
        meta=_describe(job, facts, prompts, prompt_set, names),
        request=np.repeat([r.request for r in done], sizes),
        position=np.concatenate([np.arange(n) for n in sizes]),
        **columns,
    )


def _describe(
    job: RecordingJob,
    facts: dict[str, Any],
    prompts: Sequence[Prompt],
    prompt_set: str,
    names: tuple[str, str],
) -> TraceMeta:
    digest = hashlib.sha256("\x00".join(p.text for p in prompts).encode()).hexdigest()[:16]
    return TraceMeta(
        target_model=names[0],
        draft_model=names[1],
        tokenizer=facts["tokenizer"],
        vocabulary=facts["vocabulary"],
        sampling={"temperature": job.temperature, "seed": job.seed},
        end_token=facts["end_tokens"][0] if facts["end_tokens"] else None,
        draft_top=job.ranks,
        target_top=job.ranks,
        prompt_set=prompt_set,
        prompt_set_hash=digest,
        backend="torch-eager",
        precision=job.precision,
        when=now(),
        versions=versions(),
    )


def now() -> str:
    """Date and time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of what a measurement depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in VERSIONS_OF}}
