"""What a study is: a question, options with their defaults, what is compared, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from analysis.results import Results, Row
from calibrate.live_runs import Cell
from policies import commandline
from policies.commandline import split_counts
from policies.registry import Settings
from simulator.costs import Effects

SPLIT, SHARED = "split", "shared:0,1"
"""Placements: a core for each model, which profiles are measured on, or both models on both cores."""
RECORDED = "recorded"
"""In place of a prompt set: the prompts that the profile was calibrated on, as they were recorded then."""
option, POSITIVE = commandline.option, commandline.POSITIVE
MEASURED = commandline.about(
    "Predict the live runs that --out kept here, and run nothing.",
    type=click.Path(exists=True, path_type=Path),
)


@dataclass(frozen=True)
class Plan:
    """How a study is run; each may have further options, or other defaults."""

    hw: tuple[str, ...] = option(("cpu2-x5",), "Profiles that predict; the first one's pair runs live.")
    prompts: str = option("heldout", "Shipped set, a file, or `recorded`: the calibration's own.")
    count: int | None = option(8, "Prompts to use.", type=POSITIVE)
    max_tokens: int | None = option(64, "Most tokens per prompt.", type=POSITIVE)
    temperature: tuple[float, ...] = option((0.0,), "List.")
    batch: tuple[int, ...] = option((1,), "Rows served at once; a list.", callback=split_counts)
    live: bool = option(
        False, "Measure every setting; else the pair runs at most for its decisions, untimed."
    )
    repeats: int = option(3, "Live repetitions.", type=POSITIVE)
    until: float | None = option(
        None,
        "Repeat up to four times as often, until every speed repeats within this share.",
        type=click.FloatRange(0, 1, min_open=True),
    )
    seed: int = option(0, "Keys latency noise, sampling and the order of live runs.")
    measured: Path | None = field(default=None, metadata=MEASURED)

    @property
    def asked(self) -> Row:
        """Plain values, as they are kept with results."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in (values | plain).items()}


PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class Entry:
    """A setting to compare.

    Attributes:
        settings: The policy and its knobs.
        batch: Rows served at once.
        place: Placement of the models.
        tags: Further columns of its row, e.g. which part of a study it belongs to.
        drift: Factors on the costs of operations, by name; such an entry is never run live.
    """

    settings: Settings
    batch: int = 1
    place: str = SPLIT
    tags: tuple[tuple[str, Any], ...] = ()
    drift: tuple[tuple[str, float], ...] = ()

    @property
    def cell(self) -> Cell:
        """What runs live for it."""
        return Cell(self.place, self.settings, self.batch)


@dataclass(frozen=True)
class Picture:
    """A figure: what draws on it, and its size in inches."""

    draw: Callable[[Any], None]
    size: tuple[float, float] = (11.0, 4.6)


@dataclass(frozen=True)
class Study(Generic[PlanT]):
    """A question, and how it is answered.

    Attributes:
        name: On the command line.
        question: One line.
        plan: Its options.
        settings: What is compared, from the `Bench` of `analysis.execute`; needed unless `answer` is given.
        columns: Columns of a setting in one world (a `WorldView`), beyond those that all studies have.
        worlds: Effects of the simulated worlds, by name; the first is the prediction.
        timeline: Whether simulated runs keep their timelines, for `columns`.
        by_category: Whether prompts are also reported by category, where they ran one by one.
        answer: All rows; by default those of a comparison of `settings`.
        about: What is said of all rows together, for machines.
        show: Tables and lines for people.
        pictures: By the ending of their file's name.
        files: Further files, written to a folder.
        failed: Whether the command ends with status 1.
        command: How it is called; by default `python -m analysis run NAME`.
        examples: What follows it on command lines.
    """

    name: str
    question: str
    plan: type[PlanT]
    settings: Callable[[Any], Sequence[Entry]] | None = None
    columns: Callable[[Any], Row] = lambda view: {}
    worlds: Mapping[str, Effects] = field(default_factory=lambda: {"simulated": Effects()})
    timeline: bool = False
    by_category: bool = False
    answer: Callable[[Any], Sequence[Row]] | None = None
    about: Callable[[Results], Row] = lambda results: {}
    show: Callable[[Results], Iterable[Any]] = lambda results: ()
    pictures: Callable[[Results], Mapping[str, Picture]] = lambda results: {}
    files: Callable[[Results, Path], list[Path]] = lambda results, folder: []
    failed: Callable[[Results], bool] = lambda results: False
    command: str = ""
    examples: tuple[str, ...] = ()

    @property
    def epilog(self) -> str:
        """The examples as click shows them."""
        command = self.command or f"python -m analysis run {self.name}"
        lines = "\n".join(f"  {command} {example}" for example in self.examples)
        return f"\b\nExamples:\n{lines}" if self.examples else ""

    def rows(self, bench: Any) -> list[Row]:
        """Everything that it finds on one profile."""
        if self.answer is not None:
            return list(self.answer(bench))
        assert self.settings is not None, f"study {self.name} says neither what to compare nor how"
        rows: list[Row] = bench.compare(self.settings(bench))
        return rows
