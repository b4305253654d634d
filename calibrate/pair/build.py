"""From text to weights: the stages of the build, each of them resumable.

    corpus -> tokenizer -> target -> loop fix -> what the target writes -> draft -> prompts, report

Everything in progress lies in a work folder; a second call with the same folder goes on where the
first one stopped. The stages repeat exactly for a given seed, machine and Python when no limit in
minutes is given, but for the loop fix when it was interrupted: it learns from what the model wrote
at the time, which is written anew on resuming.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.corpus import Document, collect, of_split
from calibrate.pair.train import Plan, Report, Status, Streams, encode_streams

if TYPE_CHECKING:
    from rich.progress import Progress
    from transformers import PreTrainedTokenizerFast

SEED = 20240
# Stage: steps, peak learning rate, share of the minutes (the rest is for what is not training).
_STAGES = {
    "target": (4000, 2e-3, 0.66),
    "loop fix": (240, 4e-4, 0.14),
    "recovery": (48, 3e-4, 0.03),
    "draft": (3000, 3e-3, 0.17),
}
_POOL_BATCHES = 14


@dataclass(frozen=True)
class Job:
    """Where and how a pair is built."""

    out: Path
    work: Path
    seed: int = SEED
    minutes: float | None = None
    pool_batches: int = _POOL_BATCHES

    def plan(self, stage: str) -> Plan:
        """The plan of a stage, which gets its share of the minutes."""
        steps, rate, share = _STAGES[stage]
        minutes = None if self.minutes is None else share * self.minutes
        return Plan(steps=steps, learning_rate=rate, minutes=minutes)


@contextmanager
def _bar(progress: Progress, name: str) -> Iterator[Report]:
    """A bar for one stage that shows the running mean of the loss and the speed."""
    task = progress.add_task(name, total=1.0, note="")
    mean, first = 0.0, 0

    def report(status: Status) -> None:
        nonlocal mean, first
        first = first or status.step
        keep = min(0.98, 1.0 - 1.0 / (status.step - first + 1))
        speed = status.elapsed_s / status.step
        mean = keep * mean + (1.0 - keep) * status.loss
        progress.update(
            task,
            completed=min(1.0, status.progress),
            note=f"step {status.step}, loss {mean:.3f}, {speed:.2f} s/step",
        )

    yield report
    progress.update(task, completed=1.0)


def _tokenizer(job: Job, documents: list[Document]) -> PreTrainedTokenizerFast:
    from calibrate.live.loading import load_tokenizer
    from calibrate.pair.corpus import train_tokenizer

    folder = job.work / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(documents).save_pretrained(str(folder))
    return load_tokenizer(folder)


def _target(job: Job, streams: Streams, progress: Progress) -> Any:
    """The trained target, its loops fixed.

    It is the mean of the weights after the loop fix and after the recovery: the first repeats itself
    least, the second models text best, and their mean has nearly both.
    """
    import torch

    from calibrate.pair.train import TARGET, cross_entropy, fit, logits_of, loop_fix, new_model, recovery

    model = new_model(TARGET, seed=job.seed)

    def text_loss(step: int) -> Any:
        batch = streams.batch(step)
        return cross_entropy(logits_of(model, batch), batch)

    with _bar(progress, "target") as report:
        fit(model, text_loss, job.plan("target"), job.work / "target.pt", report)
    with _bar(progress, "loop fix") as report:
        fit(model, loop_fix(model, streams), job.plan("loop fix"), job.work / "loop-fix.pt", report)
    fixed = [parameter.detach().clone() for parameter in model.parameters()]
    with _bar(progress, "recovery") as report:
        fit(model, recovery(model, streams), job.plan("recovery"), job.work / "recovery.pt", report)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), fixed, strict=True):
            parameter.lerp_(before, 0.5)
    return model


def _draft(job: Job, target: Any, streams: Streams, progress: Progress) -> Any:
    from calibrate.pair.train import DRAFT, distillation, fit, new_model, write_pool

    with _bar(progress, "writing") as report:
        pool = write_pool(
            target,
            streams,
            job.pool_batches,
            job.work / "pool.npy",
            lambda done: report(Status(done, 0.0, done / job.pool_batches, 0.0)),
        )
    draft = new_model(DRAFT, seed=job.seed + 1)
    with _bar(progress, "draft") as report:
        loss = distillation(target, draft, streams, pool)
        fit(draft, loss, job.plan("draft"), job.work / "draft.pt", report)
    return draft


def build(job: Job, progress: Progress) -> None:
    """Build the pair and write ``target/``, ``draft/``, ``prompts/``, ``report.json`` to the job's
    output folder.
    """
    from calibrate.live.loading import load_model
    from calibrate.pair.corpus import cut_prompts, write_prompts
    from calibrate.pair.report import measure_pair
    from calibrate.pair.train import save_model

    job.work.mkdir(parents=True, exist_ok=True)
    documents = collect()
    training = of_split(documents, "train")
    tokenizer = _tokenizer(job, training)
    streams = encode_streams(tokenizer, training, seed=job.seed)
    target = _target(job, streams, progress)
    save_model(target, tokenizer, job.out / "target")
    # The draft learns from the target as it ships, after rounding.
    draft = _draft(job, load_model(job.out / "target"), streams, progress)
    save_model(draft, tokenizer, job.out / "draft")
    for split in ("calibration", "heldout"):
        write_prompts(cut_prompts(tokenizer, documents, split), job.out / "prompts" / f"{split}.jsonl")
    report = measure_pair(job.out, documents=documents)
    (job.out / "report.json").write_text(report.to_json(), encoding="utf-8")
