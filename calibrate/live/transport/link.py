"""The policy's end of a worker process: starting it, its pipe, and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from calibrate.live.errors import LiveError, WorkerDied, WorkerError
from calibrate.live.transport.worker import WorkerPlan, worker_main
from calibrate.live.wire import (
    Echo,
    Exit,
    Failure,
    FromWorker,
    Ready,
    Report,
    Stop,
    ToWorker,
    Work,
    pack,
    unpack,
)
from calibrate.processes import process_context

WINDOW_BYTES = 32_768
"""Bytes under way to a busy worker; a pipe holds more than that, so that sending never blocks."""

LAST_WORDS_BYTES = 4_000
LAST_MOMENT_S = 2.0


class WorkerLink:
    """Starts a worker and talks to it."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.spec = plan.spec
        self.stderr = Path(plan.stderr)
        self._window: deque[int] = deque()
        self._backlog: deque[bytes] = deque()
        context = process_context()
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=worker_main, args=(plan, theirs), name=f"worker-{plan.spec.name}", daemon=True
        )
        self.process.start()
        theirs.close()  # else the worker's end stays open here, and its death closes nothing

    @property
    def handles(self) -> Sequence[Any]:
        """What to wait on: the pipe and the process sentinel."""
        return (self.connection, self.process.sentinel)

    def wait_ready(self, timeout_s: float) -> Ready:
        """Wait until the model is loaded; what went wrong, or took longer than `timeout_s`, is raised."""
        if not wait(list(self.handles), timeout_s):
            raise LiveError(f"worker {self.spec.name!r} was not ready after {timeout_s:g} s")
        report = self.receive()
        if isinstance(report, Failure):
            raise WorkerError(self.spec.name, f"loading {self.spec.model!r}", report.traceback)
        assert isinstance(report, Ready)
        return report

    def ask(self, number: int, payload: tuple[int, ...]) -> Report:
        """Send an echo and wait for its report; for the clock handshake, before any device exists."""
        self._send(Work(number, Echo.kind, pack(Echo(payload))))
        report = self.receive()
        assert isinstance(report, Report)
        return report

    def receive(self) -> FromWorker:
        """Read one report; waits if none lies ready, raises `WorkerDied` if then the worker ended."""
        try:
            report: FromWorker = unpack(self.connection.recv_bytes(), FromWorker)
        except (EOFError, OSError):
            raise self._obituary() from None
        return report

    def post(self, work: Work) -> None:
        """Send work without ever blocking; what exceeds the window waits for `acknowledge`."""
        self._backlog.append(pack(work))
        self._flush()

    def acknowledge(self) -> None:
        """The oldest work was reported, so it has left the pipe."""
        self._window.popleft()
        self._flush()

    def stop(self, number: int) -> None:
        """Ask for the end of work `number`; overtakes all work."""
        self._send(Stop(number))

    def dismiss(self) -> None:
        """Ask the worker to end when it has nothing else to do; does not wait."""
        if not self.connection.closed:
            with suppress(OSError):  # it is dead already
                self.connection.send_bytes(pack(Exit()))

    def close(self, *, patience_s: float) -> None:
        """End the process, at the latest after `patience_s`.  Does nothing the second time."""
        if self.connection.closed:
            return
        self.process.join(patience_s)
        self.process.terminate()
        self.process.join(LAST_MOMENT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()

    def _flush(self) -> None:
        while self._backlog:
            frame = self._backlog[0]
            if self._window and sum(self._window) + len(frame) > WINDOW_BYTES:
                return
            self._backlog.popleft()
            self._window.append(len(frame))
            self._send_bytes(frame)

    def _send(self, message: ToWorker) -> None:
        self._send_bytes(pack(message))

    def _send_bytes(self, frame: bytes) -> None:
        try:
            self.connection.send_bytes(frame)
        except OSError:
            raise self._obituary() from None

    def _obituary(self) -> WorkerDied:
        self.process.join(LAST_MOMENT_S)  # the pipe closes a moment before the process is gone
        return WorkerDied(self.spec.name, self.process.exitcode, self.last_words())

    def last_words(self) -> str:
        """End of what the worker wrote to stderr."""
        try:
            written = self.stderr.read_bytes()
        except OSError:
            return ""
        return written[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
