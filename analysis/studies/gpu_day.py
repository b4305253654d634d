"""What to measure on a GPU for an hour, in order of value, and within a stated time.

Each stage is a command of this project; what it writes says that it is done, so that a day that was cut short
goes on where it was.  `docs/how-to/gpu.md` says what the stages tell.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.study import Plan, Study, option
from calibrate.shipped import DATA
from policies.registry import SettingError

COMMANDS = {"calibrate": "calibrate.cli", "validate": "analysis.cli", "simulate": "simulator.cli"}
"""Modules of the commands that stages call."""


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: For people.
        tells: What is known afterwards.
        call: Its command line; `{name}` are the plan's, `{out}` the folder.
        makes: What it writes, in the folder; there once it is done.
        minutes: What it is expected to take, models of these sizes given.
    """

    name: str
    tells: str
    call: str
    makes: str
    minutes: float

    def arguments(self, plan: GpuDayPlan, out: Path) -> list[str]:
        """The command line, split."""
        return [part.format(**vars(plan), out=out) for part in shlex.split(self.call)]


PAIR = "--target {out}/target --draft {out}/draft"
SHAPES = "--target {target_shape} --draft {draft_shape}"
HERE = "--placement {placement} --precision {precision}"
STAGES = (
    Stage(
        "pair", "a trained pair in shapes of a GPU's size",
        "calibrate pair embed {target_embedding} --source {target_source} --out {out}/target",
        "target", 1.0,
    ),
    Stage(
        "draft", "its draft",
        "calibrate pair embed {draft_embedding} --source {draft_source} --out {out}/draft",
        "draft", 0.5,
    ),
    Stage(
        "latencies",
        "forwards of 1 to 16 query tokens, trees, contention, host time, sampler and rejection per row",
        f"calibrate {PAIR} {HERE} --mode compiled --batches {{batches}} --name pair --out {{out}}",
        "pair.json", 9.0,
    ),
    Stage(
        "live", "AR, SD, PEARL, SSD, Mirror and DOUBLE live, against prediction, at settings never measured",
        f"validate --hw {{out}}/pair.json {PAIR} --placement {{placement}} --policies {{policies}} "
        "--lookahead 2,5 --batch {batches} --count {count} --max-tokens {max_tokens} --out {out}/live",
        "live/validation.json", 10.0,
    ),
    Stage(
        "shapes", "the same of the target's real shape, whose acceptance is yours to state",
        f"calibrate {SHAPES} {HERE} --mode compiled --batches {{batches}} --name shapes --out {{out}}",
        "shapes.json", 7.0,
    ),
    Stage(
        "eager", "the floor of a launch, without compiled forwards",
        f"calibrate {SHAPES} {HERE} --mode eager --quick --name eager --out {{out}}",
        "eager.json", 3.0,
    ),
    Stage(
        "large", "a target that fills the memory, in batches",
        f"calibrate --target {{large_shape}} --draft {{draft_shape}} {HERE} --mode eager --batches 1,8,32 "
        "--name large --out {out}",
        "large.json", 6.0,
    ),
    Stage(
        "cpu-draft", "a draft on the host's cores, beside the GPU",
        f"calibrate {PAIR} --placement {{placement}}+cpu --precision {{precision}} --batches {{batches}} "
        "--name cpu-draft --out {out}",
        "cpu-draft.json", 5.0,
    ),
)  # fmt: skip
"""In order of value."""


@dataclass(frozen=True)
class GpuDayPlan(Plan):
    """Where, what, and for how long."""

    hw: tuple[str, ...] = ()
    minutes: float = option(
        40.0, "A stage begins only if it should end within this.", type=click.FloatRange(0)
    )
    stages: tuple[str, ...] = option(tuple(stage.name for stage in STAGES), "List, in this order.")
    placement: str = option("cuda:0", "Of both models; see calibrate.")
    precision: str = option("bf16", "Of both models.")
    batches: str = option("1,4,16", "Rows served at once; a list.")
    policies: str = option("ar,sd,pearl,saguaro,mirror,double", "Run live; a list.")
    count: int | None = option(32, "Prompts of the live runs.")
    target_embedding: str = option("16x6x21", "Shape of the trained target; see calibrate pair embed.")
    draft_embedding: str = option("28/5x12x12", "Of its draft.")
    target_source: str = option(str(DATA / "target"), "What is embedded.", show_default=False)
    draft_source: str = option(str(DATA / "draft"), "Of the draft.", show_default=False)
    target_shape: str = option("shape:llama-3.1-8b", "Random weights: latencies alone.")
    draft_shape: str = option("shape:qwen2.5-0.5b,vocab_size=128256", "Of the draft.")
    large_shape: str = option("shape:qwen2.5-32b,vocab_size=128256", "The largest target.")


def run_command(arguments: Sequence[str]) -> None:
    """Run one of the project's commands here; what it says goes to stderr.

    Raises:
        click.ClickException: It refused.
    """
    command: click.Command = import_module(COMMANDS[arguments[0]]).main
    with redirect_stdout(sys.stderr):
        command.main(args=list(arguments[1:]), prog_name=arguments[0], standalone_mode=False)


def run_stages(
    stages: Sequence[Stage],
    plan: GpuDayPlan,
    out: Path,
    *,
    call: Callable[[Sequence[str]], None] = run_command,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Row]:
    """Run what is not done yet and should end in time; a stage that fails does not keep the next from it.

    Yields:
        Per stage its `command`, `state` (done, kept, no time, or what failed), `seconds` and `files`.
    """
    began = clock()
    for stage in stages:
        arguments = stage.arguments(plan, out)
        row: Row = {"stage": stage.name, "tells": stage.tells, "command": shlex.join(arguments)}
        before, started = set(out.rglob("*")), clock()
        if (out / stage.makes).exists():
            state = "kept"
        elif (started - began) / 60.0 + stage.minutes > plan.minutes:
            state = "no time"
        else:
            try:
                call(arguments)
                state = "done"
            except (click.ClickException, RuntimeError, ValueError, OSError) as error:
                state = f"failed: {getattr(error, 'message', error)}".splitlines()[0]
        files = sorted(str(p.relative_to(out)) for p in set(out.rglob("*")) - before if p.is_file())
        yield {**row, "state": state, "seconds": clock() - started, "files": files}


def answer(bench: Bench) -> list[Row]:
    """A row per stage.

    Raises:
        SettingError: There is no folder to work in, or no stage of a name.
    """
    plan = bench.plan_as(GpuDayPlan)
    known = {stage.name: stage for stage in STAGES}
    if bench.out is None:
        raise SettingError("give --out, the folder in which the day is kept and goes on")
    if unknown := [name for name in plan.stages if name not in known]:
        raise SettingError(f"no stage {', '.join(unknown)}; there are {', '.join(known)}")
    bench.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in run_stages([known[name] for name in plan.stages], plan, bench.out):
        rows.append(row)
        bench.progress("stages", len(rows), len(plan.stages))
        # Kept as it goes: a machine is taken away without a word.
        Results("gpu-day", tuple(rows), plan.asked).write(bench.out)
    return rows


def show(results: Results) -> Iterator[Any]:
    """Stages, time and files."""
    columns = (
        Column("stage", "stage"),
        Column("state", "state"),
        Column("seconds", "seconds", "{:.0f}"),
        Column("files", lambda row: str(len(row["files"]))),
        Column("what it tells", "tells"),
    )
    yield table("", columns, results.rows)
    for row in results.rows:
        if row["state"] in {"no time"} or row["state"].startswith("failed"):
            yield f"{row['stage']}, {row['state']}: {row['command']}"


STUDY = Study(
    "gpu-day",
    "What is worth measuring on a GPU in 40 minutes?  Stages in order of value, resumable.",
    GpuDayPlan,
    answer=answer,
    show=show,
    failed=lambda results: any(row["state"].startswith("failed") for row in results.rows),
    examples=("--out gpu", "--out gpu --minutes 20 --stages pair,draft,latencies,live"),
)
