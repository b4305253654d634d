"""A worker process, and the policy's end of it: starting it, its pipe, and its end.

The process loads a model, then executes what comes through its pipe, first-in first-out.  Torch is imported
inside the functions that run there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.live.errors import LiveError, WorkerDied, WorkerError
from calibrate.live.placement import WorkerSpec
from calibrate.live.shared_probs import ProbsReader, ProbsWriter, Segment
from calibrate.live.transport.emulated import EmulatedWork, Emulation
from calibrate.live.wire import (
    Early,
    Echo,
    Envelope,
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
from calibrate.processes import end_with_parent, process_context

if TYPE_CHECKING:
    from calibrate.live.engine.executor import Executor

LOADING = -1
"""Number under which a failure to load the model is reported."""
WINDOW_BYTES = 32_768
"""Bytes under way to a busy worker; a pipe holds more than that, so that sending never blocks."""

LAST_WORDS_BYTES = 4_000
LAST_MOMENT_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is told at its start.

    Attributes:
        spec: What to load and where.
        stderr: File that receives its stderr, and is kept while it lives.
        end_token_ids: Tokens that end a request; None: as the model says.
        rings: Memory for the distributions of sampled tokens, of each draft.
        draft: Which of the drafts this worker is; None for the target.
        emulation: The machine whose times its operations take; None: their own.
    """

    spec: WorkerSpec
    stderr: str
    end_token_ids: tuple[int, ...] | None
    rings: tuple[Segment, ...] = ()
    draft: int | None = None
    emulation: Emulation | None = None


class ParentGone(Exception):
    """The other end of the pipe is closed."""


class Inbox:
    """Messages to this worker: a queue of work, and stop requests that overtake it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: deque[Work | Exit] = deque()
        self._stopped: dict[int, float] = {}
        self._running = -1
        self._poller: Any = None
        if hasattr(select, "poll"):
            # `Connection.poll` builds a selector per call, which a 1 ms draft step would feel.
            self._poller = select.poll()
            self._poller.register(connection.fileno(), select.POLLIN | select.POLLHUP)

    def next(self) -> Work | Exit:
        """The next work, waiting for it; it is the running one from now on."""
        while not self._queue:
            self._read()
        work = self._queue.popleft()
        if isinstance(work, Work):
            self._running = work.number
            self._stopped = {n: at_s for n, at_s in self._stopped.items() if n >= work.number}
        return work

    def stopped(self, by_s: float = math.inf) -> bool:
        """Whether the running work was asked to stop, on an emulated device until a moment; reads what has
        arrived, without waiting.
        """
        while self._ready():
            self._read()
        return self._stopped.get(self._running, math.inf) <= by_s and self._running in self._stopped

    def _ready(self) -> bool:
        return bool(self._poller.poll(0)) if self._poller is not None else self._connection.poll()

    def _read(self) -> None:
        try:
            message: ToWorker = unpack(self._connection.recv_bytes(), ToWorker)
        except (EOFError, OSError):
            raise ParentGone from None
        if isinstance(message, Stop):
            self._stopped[message.number] = -math.inf if message.at_s is None else message.at_s
        else:
            self._queue.append(message)


def worker_main(plan: WorkerPlan, connection: Connection) -> None:
    """Entry point of the process."""
    _settle_in(plan)
    try:
        executor, ready = _load(plan)
    except Exception:
        now = time.perf_counter()
        _send(connection, Failure(LOADING, now, now, traceback.format_exc()))
        return
    inbox = Inbox(connection)
    executor.stopped = inbox.stopped
    try:
        _send(connection, ready)
        emulated = None
        if plan.emulation is not None:
            send = partial(_send, connection)
            emulated = EmulatedWork(plan.spec.name, plan.emulation, executor, inbox.stopped, send)
        serve(inbox, executor, connection, emulated)
    except (ParentGone, BrokenPipeError, ConnectionResetError):
        return  # nobody is left to tell


def serve(
    inbox: Inbox, executor: Executor, connection: Connection, emulated: EmulatedWork | None = None
) -> None:
    """Execute work until told to exit.  An operation that raises is reported; the worker lives on."""
    from calibrate.live.engine.executor import handled

    while isinstance(work := inbox.next(), Work):
        start, number = time.perf_counter(), work.number
        executor.say_early = partial(_say_early, connection, number)
        try:
            operation = unpack(work.body, handled(work.kind).operation)
            placed = emulated if work.at_s is not None else None
            if placed is not None:
                placed.begin(work, operation)
            replies = executor.execute(operation)
        except ParentGone:
            raise
        except Exception:
            _send(connection, Failure(number, start, time.perf_counter(), traceback.format_exc()))
        else:
            end, body = time.perf_counter(), pack(replies)
            if placed is not None:
                _send(connection, placed.finish(replies, body))
            else:
                _send(connection, Report(number, start, end, tuple(executor.steps), body))


def _say_early(connection: Connection, number: int, replies: Sequence[Any]) -> None:
    _send(connection, Early(number, pack(replies)))


def _send(connection: Connection, envelope: Envelope) -> None:
    connection.send_bytes(pack(envelope))


def _settle_in(plan: WorkerPlan) -> None:
    """Signals, stderr and cores; before torch starts a thread, so that its threads inherit the cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    end_with_parent()
    with Path(plan.stderr).open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan.spec.cores)
    _keep_memory()


def _keep_memory() -> None:
    """Tell glibc's allocator to keep what is freed; elsewhere, nothing.

    Tensors of a few megabytes come and go with every step.  Given back to the system and taken anew, their
    pages are zeroed each time, at sizes that only large batches reach: no probe of single forwards shows it.
    """
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**30)


def _load(plan: WorkerPlan) -> tuple[Executor, Ready]:
    """Load the model; torch and transformers come into the process here."""
    import torch
    import transformers

    from calibrate.live.backends import open_runner
    from calibrate.live.engine.executor import Executor
    from calibrate.live.loading import model_end_tokens

    spec = plan.spec
    torch.set_num_threads(len(spec.cores))
    torch.set_num_interop_threads(1)
    runner = open_runner(spec)
    model = runner.model
    end_tokens = model_end_tokens(model) if plan.end_token_ids is None else plan.end_token_ids
    # The first forward of a kind would otherwise stall a run for as long as compiling takes.
    runner.warm([(rows, count) for rows in ((1,) if spec.slots == 1 else (1, 2)) for count in (1, 2)])
    ready = Ready(
        vocabulary=int(runner.config.get_text_config().vocab_size),
        end_token_ids=end_tokens,
        versions=(("torch", str(torch.__version__)), ("transformers", transformers.__version__)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
    writer = None if plan.draft is None else ProbsWriter(plan.rings[plan.draft], plan.draft)
    executor = Executor(
        runner,
        end_token_ids=end_tokens,
        writer=writer,
        reader=ProbsReader(plan.rings if writer is None else ()),
    )
    return executor, ready


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

    def stop(self, number: int, at_s: float | None = None) -> None:
        """Ask for the end of work `number`; overtakes all work.  `at_s`: see `Work`."""
        self._send(Stop(number, at_s))

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
