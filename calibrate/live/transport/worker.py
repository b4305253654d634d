"""A worker process: loads a model, then executes what comes through its pipe, first-in first-out.

This module is imported by the policy's process too (to name `worker_main`), so torch is imported inside
the functions that run in the worker.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.live.placement import WorkerSpec
from calibrate.live.shared_probs import ProbsReader, ProbsWriter, Segment
from calibrate.live.wire import (
    Early,
    Envelope,
    Exit,
    Failure,
    Ready,
    Report,
    Stop,
    ToWorker,
    Work,
    pack,
    unpack,
)
from calibrate.processes import end_with_parent

if TYPE_CHECKING:
    from calibrate.live.engine.executor import Executor

LOADING = -1
"""Number under which a failure to load the model is reported."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is told at its start.

    Attributes:
        spec: What to load and where.
        stderr: File that receives its stderr, and is kept while it lives.
        end_token_ids: Tokens that end a request; None: as the model says.
        rings: Memory for the distributions of sampled tokens, of each draft.
        draft: Which of the drafts this worker is; None for the target.
    """

    spec: WorkerSpec
    stderr: str
    end_token_ids: tuple[int, ...] | None
    rings: tuple[Segment, ...] = ()
    draft: int | None = None


class ParentGone(Exception):
    """The other end of the pipe is closed."""


class Inbox:
    """Messages to this worker: a queue of work, and stop requests that overtake it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: deque[Work | Exit] = deque()
        self._stopped: set[int] = set()
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
            self._stopped = {number for number in self._stopped if number >= work.number}
        return work

    def stopped(self) -> bool:
        """Whether the running work was asked to stop; reads what has arrived, without waiting."""
        while self._ready():
            self._read()
        return self._running in self._stopped

    def _ready(self) -> bool:
        return bool(self._poller.poll(0)) if self._poller is not None else self._connection.poll()

    def _read(self) -> None:
        try:
            message: ToWorker = unpack(self._connection.recv_bytes(), ToWorker)
        except (EOFError, OSError):
            raise ParentGone from None
        if isinstance(message, Stop):
            self._stopped.add(message.number)
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
        serve(inbox, executor, connection)
    except (ParentGone, BrokenPipeError, ConnectionResetError):
        return  # nobody is left to tell


def serve(inbox: Inbox, executor: Executor, connection: Connection) -> None:
    """Execute work until told to exit.  An operation that raises is reported; the worker lives on."""
    from calibrate.live.engine.executor import handled

    while isinstance(work := inbox.next(), Work):
        start, number = time.perf_counter(), work.number
        executor.say_early = partial(_say_early, connection, number)
        try:
            replies = executor.execute(unpack(work.body, handled(work.kind).operation))
        except ParentGone:
            raise
        except Exception:
            _send(connection, Failure(number, start, time.perf_counter(), traceback.format_exc()))
        else:
            end = time.perf_counter()
            _send(connection, Report(number, start, end, tuple(executor.steps), pack(replies)))


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
