"""What the measuring commands are asked, and their time slicing.

A shared machine makes half as many tokens in one hour as in the next.  A calibration and a validation of it
that run one after the other compare two hours; those that share time slices of some seconds compare settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import click

from calibrate.live.placement import TORCH
from policies.commandline import LONGEST_WAIT, NAME, POSITIVE, about, option
from policies.sampling import Sampling

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""

SLICE_S = 10.0
"""Length of a time slice; what is begun is brought to its end."""
PAUSE_S = 0.05
"""How long the file stays free for others, who wait for it."""
TRUST = about("Run code that a model or tokenizer brings with it; without this, it never is.")
TURNS = about(
    "Take turns, ten seconds each, with the measuring commands that are given the same file.",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
)


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """What is to be calibrated, by names that this machine has to resolve."""

    hw: str = option("auto", "`auto`, or the name this machine must have.")
    target: str = option("pair:x20", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")
    prompts: str = option("calibration", "Shipped set or a Spec-Bench JSONL file.")
    count: int | None = option(None, "Use this many of the prompts, of all categories.", type=POSITIVE)
    placement: str = option(
        "split",
        "split, shared:0 / shared:0,1 (cores), cuda:0 (both), cuda:0+cuda:1, cuda:0+cpu (target+draft).",
    )


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How a pair is calibrated."""

    draft_backend: str = option(
        TORCH,
        "torch, openvino:CPU, openvino:GPU, openvino:NPU, llamacpp:fp16, llamacpp:q8_0, llamacpp:q4_0.",
    )
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = option(
        "fp32", "Of both models; replay is exact in fp32."
    )
    temperature: tuple[float, ...] = option((0.0, 1.0), "Of the recorded traces, a list; 0 is greedy.")
    top_p: float = option(1.0, "Mass of both distributions kept where tokens are sampled.")
    ranks: int | None = option(
        None,
        "Draft choices kept per position.  [default: 16, or 32 where tokens are sampled]",
        type=POSITIVE,
    )
    max_tokens: int = option(128, "", type=POSITIVE)
    batches: tuple[int, ...] = option((1, 2, 4, 8), "Batches to measure.")
    quick: bool = option(False, "Two to three minutes: batch 1 only, half of the prompts.")
    passes: int = option(
        1,
        "Measure everything so often, pass after pass: what drifts from one quarter of an hour to the next "
        "evens out, and shows in the intervals.",
        type=POSITIVE,
    )
    apart: float = option(
        0.0,
        "Begin the passes at least this far apart; the machine is free in between.",
        type=click.FloatRange(min=0.0, max=LONGEST_WAIT),
        metavar="MINUTES",
    )
    mode: Literal["eager", "compiled"] = option("eager", "How the models are called.")
    until_error: float | None = option(
        None,
        "Choose the grids' points by measuring, until interpolation is off by at most this share.",
        metavar="E",
    )
    time_budget: float | None = option(
        None,
        "Seconds that the grids may take with --until-error, by estimate.  [default: 300]",
        metavar="S",
    )
    name: str | None = option(
        None, "Name of the profile.  [default: from machine, target and placement]", type=NAME
    )
    seed: int = option(0, "")
    trust_remote_code: bool = field(default=False, metadata=TRUST)

    def __post_init__(self) -> None:
        for each in self.temperature:
            Sampling(each, self.top_p)  # refuses what is out of its domain
        if self.top_p != 1.0 and not any(self.temperature):
            raise ValueError(
                "--top-p changes nothing at temperature 0; give a temperature, e.g. --temperature 0,1"
            )
        if self.ranks is not None and self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")
        if self.until_error is not None and not 0.0 < self.until_error < 1.0:
            raise ValueError(f"--until-error must be above 0 and below 1, got {self.until_error:g}")
        if self.time_budget is not None and self.until_error is None:
            raise ValueError("--time-budget changes nothing without --until-error")
        if self.time_budget is not None and self.time_budget <= 0.0:
            raise ValueError(f"--time-budget must be above 0 s, got {self.time_budget:g}")


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest(Choices, Named):
    """What `calibrate` is asked."""


class TimeSlices:
    """A time slice is a lock on a file, which the kernel takes from a process that ends, however it ends.

    The file is made if it is not there, and left.  `slice_s` is how long a slice lasts that others wait for.
    """

    def __init__(
        self,
        path: Path,
        *,
        slice_s: float = SLICE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.slice_s = slice_s
        self.taken = 0
        """Time slices so far."""
        self._clock, self._sleep = clock, sleep
        self._file: BinaryIO | None = None
        self._since = 0.0

    def take(self) -> None:
        """Wait until nobody else has a time slice, and begin one.

        Raises:
            RuntimeError: This system has no locks on files.
        """
        try:
            import fcntl
        except ImportError as error:
            raise RuntimeError("--turns needs file locks, which this system does not have") from error
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.taken += 1
        self._since = self._clock()

    def give(self) -> None:
        """End the time slice, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def pause(self) -> None:
        """Between two measurements: let others have theirs if this slice has lasted long enough."""
        if self._clock() - self._since >= self.slice_s:
            self.give()
            self._sleep(PAUSE_S)
            self.take()


@contextmanager
def time_sliced(path: Path | None, progress: Progress) -> Iterator[Progress]:
    """The progress of a command that pauses for others wherever it reports, which is between measurements.

    Those who share the machine's time have the file in common; without one it never pauses.
    """
    if path is None:
        yield progress
        return
    slices = TimeSlices(path)

    def move(stage: str, done: int, total: int) -> None:
        progress(stage, done, total)
        slices.pause()

    slices.take()
    try:
        yield move
    finally:
        slices.give()
