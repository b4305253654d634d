"""What can go wrong between the policy's process and its workers.

simpy rebuilds an exception that crosses from an event into a process as `type(e)(*e.args)`, so every
class here keeps its constructor's arguments in `args` and builds its message only when printed.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_FRAME = re.compile(r"^  File .*\n", re.MULTILINE)
_FRAME_AT = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)


def last_error(traceback: str) -> str:
    """What a traceback, as text, ends with, in one line: the error, and its place if it is not ours.

    Ours are written for people and need no name; of others, it and the place help to find the cause.
    """
    *_, last = _FRAME.split(traceback.strip())
    lines = [line for line in last.splitlines() if not line.startswith("    ")]  # what follows is the source
    kind, _, message = " ".join(" ".join(lines).split()).partition(": ")
    if kind.startswith("calibrate.") and message:
        return message
    name = kind.rpartition(".")[2]
    text = f"{name}: {message}" if message else name
    places = _FRAME_AT.findall(traceback)
    return f"{text} ({PurePath(places[-1][0]).name}, line {places[-1][1]})" if places else text


class LiveError(RuntimeError):
    """Any failure of the live world."""


class WorkerError(LiveError):
    """An operation raised inside a worker; the worker lives on.

    Args:
        device: Name of the device.
        operation: Name of the operation.
        remote_traceback: The worker's traceback, as text.
    """

    def __init__(self, device: str, operation: str, remote_traceback: str) -> None:
        super().__init__(device, operation, remote_traceback)
        self.device = device
        self.operation = operation
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return f"{self.operation} failed on worker {self.device!r}: {last_error(self.remote_traceback)}"


class WorkerDied(LiveError):
    """A worker process ended while it was needed.

    Args:
        device: Name of the device.
        exit_code: Exit code of the process; negative: the signal that killed it; None if unknown.
        last_words: End of what it wrote to stderr.
    """

    def __init__(self, device: str, exit_code: int | None, last_words: str) -> None:
        super().__init__(device, exit_code, last_words)
        self.device = device
        self.exit_code = exit_code
        self.last_words = last_words

    def __str__(self) -> str:
        words = f"; it last wrote:\n{self.last_words}" if self.last_words else "; it wrote nothing to stderr"
        return f"worker {self.device!r} died with exit code {self.exit_code}{words}"


class StuckPolicy(LiveError):
    """A policy waits for something that nobody will ever do.

    Args:
        reason: What was found.
    """


class ModelError(LiveError):
    """A model cannot be used: it is not there, or the two do not fit together."""


class PlacementError(ValueError):
    """A placement that this machine cannot provide, or that cannot be read."""


class AuditError(AssertionError):
    """A worker's bookkeeping contradicts its KV cache or what the policy said; never to be ignored."""
