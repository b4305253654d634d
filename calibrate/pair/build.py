"""From text to weights: the stages of the build, each of them resumable.

    corpus -> tokenizer -> target -> loop fix -> what the target writes -> draft -> prompts, report

Everything in progress lies in a work folder; a second call with the same folder goes on where the
first one stopped. The stages repeat exactly for a given seed, machine and Python when no limit in
minutes is given, but for the loop fix when it was interrupted: it learns from what the model wrote
at the time, which is written anew on resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from calibrate.corpus import collect, of_split
from calibrate.pair.train import Plan, Report, Status, Streams, encode_streams

SEED = 20240
# Stage: steps, peak learning rate, share of the minutes (the rest is for what is not training).
_STAGES = {
    "target": (4000, 2e-3, 0.66),
    "loop fix": (240, 4e-4, 0.14),
    "recovery": (48, 3e-4, 0.03),
    "draft": (3000, 3e-3, 0.17),
}
_POOL_BATCHES = 14
Bars: TypeAlias = Callable[[str], AbstractContextManager[Report]]
"""A bar on the screen for the stage of a name."""


@contextmanager
def stage_bars() -> Iterator[Bars]:
    """Bars for stages that show the running mean of the loss and the speed."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress:

        @contextmanager
        def bar(name: str) -> Iterator[Report]:
            task = progress.add_task(name, total=1.0, note="")
            mean, first = 0.0, 0

            def report(status: Status) -> None:
                nonlocal mean, first
                first = first or status.step
                keep = min(0.98, 1.0 - 1.0 / (status.step - first + 1))
                speed = status.elapsed_s / status.step
                mean = keep * mean + (1.0 - keep) * status.loss
                note = f"step {status.step}, loss {mean:.3f}, {speed:.2f} s/step"
                progress.update(task, completed=min(1.0, status.progress), note=note)

            yield report
            progress.update(task, completed=1.0)

        yield bar


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


def _target(job: Job, streams: Streams, bars: Bars) -> Any:
    """The trained target, its loops fixed.

    It is the mean of the weights after the loop fix and after the recovery: the first repeats itself
    least, the second models text best, and their mean has nearly both.
    """
    import torch

    from calibrate.pair.train import TARGET, LoopFix, cross_entropy, fit, logits_of, new_model

    model = new_model(TARGET, seed=job.seed)

    def text_loss(step: int) -> Any:
        batch = streams.batch(step)
        return cross_entropy(logits_of(model, batch), batch)

    with bars("target") as report:
        fit(model, text_loss, job.plan("target"), job.work / "target.pt", report)
    # This ends the loops at some cost in quality; a second, short pass wins back what it cost in tables.
    loop_fix = LoopFix(model, streams, weight=1.0, spared=())
    with bars("loop fix") as report:
        fit(model, loop_fix, job.plan("loop fix"), job.work / "loop-fix.pt", report)
    fixed = [parameter.detach().clone() for parameter in model.parameters()]
    recovery = LoopFix(model, streams, weight=0.5, spared=("tables",))
    with bars("recovery") as report:
        fit(model, recovery, job.plan("recovery"), job.work / "recovery.pt", report)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), fixed, strict=True):
            parameter.lerp_(before, 0.5)
    return model


def _draft(job: Job, target: Any, streams: Streams, bars: Bars) -> Any:
    from calibrate.pair.train import DRAFT, distillation, fit, new_model, write_pool

    with bars("writing") as report:
        pool = write_pool(
            target,
            streams,
            job.pool_batches,
            job.work / "pool.npy",
            lambda done: report(Status(done, 0.0, done / job.pool_batches, 0.0)),
        )
    draft = new_model(DRAFT, seed=job.seed + 1)
    with bars("draft") as report:
        loss = distillation(target, draft, streams, pool)
        fit(draft, loss, job.plan("draft"), job.work / "draft.pt", report)
    return draft


def build(job: Job, bars: Bars) -> None:
    """Build the pair and write ``target/``, ``draft/``, ``prompts/``, ``report.json`` to the job's
    output folder.
    """
    from calibrate.live.loading import load_model, load_tokenizer
    from calibrate.pair.corpus import cut_prompts, train_tokenizer, write_prompts
    from calibrate.pair.report import measure_pair
    from calibrate.pair.train import save_model

    job.work.mkdir(parents=True, exist_ok=True)
    documents = collect()
    training = of_split(documents, "train")
    folder = job.work / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(training).save_pretrained(str(folder))
    tokenizer = load_tokenizer(folder)
    streams = encode_streams(tokenizer, training, seed=job.seed)
    target = _target(job, streams, bars)
    save_model(target, tokenizer, job.out / "target")
    # The draft learns from the target as it ships, after rounding.
    draft = _draft(job, load_model(job.out / "target"), streams, bars)
    save_model(draft, tokenizer, job.out / "draft")
    for split in ("calibration", "heldout"):
        write_prompts(cut_prompts(tokenizer, documents, split), job.out / "prompts" / f"{split}.jsonl")
    report = measure_pair(job.out, documents=documents)
    (job.out / "report.json").write_text(report.to_json(), encoding="utf-8")
