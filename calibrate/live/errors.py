"""What can go wrong between the policy's process and its workers.

simpy rebuilds an exception that crosses from an event into a process as `type(e)(*e.args)`, so every
class here keeps its constructor's arguments in `args` and builds its message only when printed.
"""

from __future__ import annotations

from calibrate.processes import last_error


class LiveError(RuntimeError):
    """Any failure of the live world."""


class WorkerError(LiveError):
    """An operation raised inside a worker, which lives on; `remote_traceback` is the worker's, as text."""

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
        exit_code: Of the process; negative: the signal that killed it; None if unknown.
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


class DeadlineMissed(LiveError):
    """Real work took longer than the emulated operation.

    Args:
        device: Name of the device.
        operation: Kind of the operation that needs the largest scale.
        real_s: Real seconds that it took.
        had_s: Real seconds that it had.
        scale: The time scale that would have sufficed for every operation.
    """

    def __init__(self, device: str, operation: str, real_s: float, had_s: float, scale: float) -> None:
        super().__init__(device, operation, real_s, had_s, scale)
        self.device = device
        self.operation = operation
        self.real_s = real_s
        self.had_s = had_s
        self.scale = scale

    def __str__(self) -> str:
        return (
            f"{self.operation} on emulated device {self.device!r} took {1e3 * self.real_s:.1f} ms of real "
            f"time and had {1e3 * self.had_s:.1f} ms: the smallest usable time scale is {self.scale:.2g} "
            "here; give --time-scale that, and room"
        )


class StuckPolicy(LiveError):
    """A policy waits for something that nobody will ever do."""


class ModelError(LiveError):
    """A model cannot be used: it is not there, or the two do not fit together."""


class PlacementError(ValueError):
    """A placement that this machine cannot provide, or that cannot be read."""


class AuditError(AssertionError):
    """A worker's bookkeeping contradicts its KV cache or what the policy said; never to be ignored."""
