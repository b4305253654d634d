"""What the measuring commands are asked, and how two measurements alternate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import click

from calibrate.live.placement import TORCH
from policies.commandline import LONGEST_WAIT, NAME, POSITIVE, about, option
from policies.sampling import Sampling

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""

SLICE_S = 10.0
"""Length of a time slice; what is begun is brought to its end."""
TRUST = about("Run code that a model or tokenizer brings with it; without this, it never is.")
Result = TypeVar("Result")


class Alternating(NamedTuple, Generic[Result]):
    """The progress of the block's own measurement, and what waits for the other one's result."""

    progress: Progress
    result: Callable[[], Result]


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """What is to be calibrated, by names that this machine has to resolve."""

    hw: str = option("auto", "`auto`, or the name this machine must have.")
    target: str = option("pair:x20", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")
    prompts: str = option(
        "calibration", 'Shipped set, or a file of lines like {"prompt": "..."}, or Spec-Bench\'s.'
    )
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
    max_tokens: int = option(128, "Most tokens of a recorded reply.", type=POSITIVE)
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
    seed: int = option(0, "Same seed, same recording.")
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


class Abandoned(Exception):
    """Whom this party alternated with has failed."""


class Alternation:
    """Two measurements of one process that take turns on the machine, each in a thread of its own.

    A shared machine makes half as many tokens in one hour as in the next: two measurements one after the
    other compare two hours, two that share time slices of some seconds compare what they measure.  The first
    party begins; what is begun is brought to its end, since turns change where progress is reported.

    Args:
        slice_s: How long a turn lasts that the other one waits for.
        clock: Monotonic seconds.
    """

    def __init__(self, slice_s: float = SLICE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._slice_s, self._clock = slice_s, clock
        self._changed = threading.Condition()
        self._turn, self._since = 0, clock()
        self._there = {0, 1}
        self._failed = False

    def begin(self, party: int) -> None:
        """Wait for this party's first turn."""
        with self._changed:
            self._wait(party)

    def pause(self, party: int) -> None:
        """Between two measurements: let the other one go on if this turn has lasted long enough.

        Raises:
            Abandoned: The other one failed.
        """
        with self._changed:
            if self._failed:
                raise Abandoned
            if 1 - party in self._there and self._clock() - self._since >= self._slice_s:
                self._give(1 - party)
                self._wait(party)

    def leave(self, party: int, *, failed: bool = False) -> None:
        """This party is done, so that the other one goes on without a pause."""
        with self._changed:
            self._there.discard(party)
            self._failed = self._failed or failed
            self._give(1 - party)

    def _give(self, party: int) -> None:
        self._turn, self._since = party, self._clock()
        self._changed.notify_all()

    def _wait(self, party: int) -> None:
        self._changed.wait_for(lambda: self._turn == party or self._failed)
        if self._failed:
            raise Abandoned


@contextmanager
def alternating(other: Callable[[Progress], Result], progress: Progress) -> Iterator[Alternating[Result]]:
    """Begin another measurement beside the one in this block; its result may be asked for in there.

    Args:
        other: The measurement, called with its progress.
        progress: Of both, which change turns where they report.
    """
    turns = Alternation()

    def moving(party: int) -> Progress:
        def move(stage: str, done: int, total: int) -> None:
            progress(stage, done, total)
            turns.pause(party)

        return move

    def work() -> Result:
        try:
            turns.begin(1)
            return other(moving(1))
        except BaseException:
            turns.leave(1, failed=True)
            raise
        finally:
            turns.leave(1)

    def result() -> Result:
        turns.leave(0)
        return future.result()

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        try:
            yield Alternating(moving(0), result)
        except BaseException as error:
            turns.leave(0, failed=True)
            if isinstance(error, Abandoned):
                future.result()  # what it failed of
            raise
