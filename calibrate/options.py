"""Options that measuring commands share: trust in code of models, and time slicing.

A shared machine makes half as many tokens in one hour as in the next.  A calibration and a validation of it
that run one after the other compare two hours; those that share time slices of some seconds compare settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeAlias

import click

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""

TURN_S = 10.0
"""Length of a turn; what is begun is brought to its end."""
PASSING_S = 0.05
"""How long the file stays free for others, who wait for it."""

trust_option = click.option(
    "--trust-remote-code",
    is_flag=True,
    help="Run code that a model or tokenizer brings with it; without this, it never is.",
)

turns_option = click.option(
    "--turns",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Take turns, ten seconds each, with the measuring commands that are given the same file.",
)


class Turns:
    """A turn is a lock on a file, which the kernel takes from a process that ends, however it ends.

    Args:
        path: The file; made if it is not there, and left.
        turn_s: How long to keep a turn that others may wait for.
        clock: Seconds.
        sleep: Waits so many.

    Raises:
        RuntimeError: This system has no such locks.
    """

    def __init__(
        self,
        path: Path,
        *,
        turn_s: float = TURN_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.turn_s = turn_s
        self.taken = 0
        """Turns so far."""
        self._clock, self._sleep = clock, sleep
        self._file: BinaryIO | None = None
        self._since = 0.0

    def take(self) -> None:
        """Wait until nobody else has a turn, and begin one."""
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
        """End the turn, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def pause(self) -> None:
        """Between two measurements: let others have their turn if this one has lasted long enough."""
        if self._clock() - self._since >= self.turn_s:
            self.give()
            self._sleep(PASSING_S)
            self.take()


@contextmanager
def taking_turns(path: Path | None, progress: Progress) -> Iterator[Progress]:
    """The progress of a command that pauses for others wherever it reports, which is between measurements.

    Args:
        path: File that those have in common who take turns; None: it never pauses.
        progress: What shows it.
    """
    if path is None:
        yield progress
        return
    turns = Turns(path)

    def move(stage: str, done: int, total: int) -> None:
        progress(stage, done, total)
        turns.pause()

    turns.take()
    try:
        yield move
    finally:
        turns.give()
