"""A live device: a worker process behind the policies' `Device` protocol."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from calibrate.live.errors import AuditError, LiveError, WorkerError
from calibrate.live.transport.environment import LiveEnvironment
from calibrate.live.transport.worker import WorkerLink
from calibrate.live.wire import (
    NO_ROWS,
    Early,
    Failure,
    Report,
    StepTime,
    Work,
    pack_operation,
    unpack_replies,
)
from policies.operation import Operation, Prefill, RowOperation
from policies.timeline import Span


@dataclass(frozen=True, slots=True)
class Timing:
    """When one operation was where, in seconds since the environment began.

    Attributes:
        submit_s: `submit` was called.
        start_s: The worker began.
        end_s: The worker was done.
        arrival_s: Its report was noticed here.
        queued: Whether the device was busy at submission; then `start_s - submit_s` is no overhead.
        steps: Model calls.
        context: Committed tokens at submission, mean over rows; 0 for calibration's own operations.
        rows: Rows that the operation was about; 0 for calibration's own.
        early_s: Its early result was noticed here; None without one.
    """

    device: str
    operation: str
    submit_s: float
    start_s: float
    end_s: float
    arrival_s: float
    queued: bool
    steps: tuple[StepTime, ...]
    context: float
    rows: int = 1
    early_s: float | None = None

    @property
    def tokens(self) -> int:
        """New tokens that went through the model."""
        return sum(step.tokens for step in self.steps)

    @property
    def width(self) -> int:
        """Most new tokens (or branches) of a row in any of the steps; 0 without a step."""
        return max((step.width for step in self.steps), default=0)

    @property
    def report_overhead_s(self) -> float:
        """From the worker's end to the report's arrival."""
        return self.arrival_s - self.end_s


class Miss(NamedTuple):
    """An operation of an emulated device that was not done in time, in the emulated machine's seconds.

    Attributes:
        work_s: What its real work took.
        since_s: From its beginning, for which its work may have been late, to the end of its work.
        had_s: What it lasts.
    """

    operation: str
    work_s: float
    since_s: float
    had_s: float


class Task(simpy.Event):
    """A submitted operation.  Fires exactly once, with the operation's answer or its failure."""

    def __init__(self, device: LiveDevice, number: int) -> None:
        super().__init__(device.environment)
        self._device = device
        self.number = number
        self.early = simpy.Event(device.environment)

    def stop(self) -> None:
        """Ask for an end at the next step boundary; a draft that had not begun answers with nothing."""
        self._device.stop(self)


@dataclass(slots=True)
class _Pending:
    """An operation under way; `early_s`: its early result was noticed, `early`: what each row said."""

    task: Task
    operation: Operation
    submit_s: float
    queued: bool
    early_s: float | None = None
    early: tuple[Any, ...] | None = None


class LiveDevice:
    """Serves operations first-in first-out on a worker process.

    Args:
        environment: Where its tasks fire; it has to be attached there.
        link: The worker.
        clock_offset_s: Worker's clock plus this is this process's clock.
        emulated: Whether it lasts as another machine's would; its worker was told so, too.

    Attributes:
        misses: Operations but prefills whose real work took longer than they last, where that is not nothing.
        behind_s: By how much each report came after it was to be noticed, 0 where it was waiting for that.
        timings: Every finished operation, in order.
        spans: The same as spans of a timeline.
        replies: Every finished `RowOperation` with its rows' replies, and with their early ones.
    """

    def __init__(
        self,
        environment: LiveEnvironment,
        link: WorkerLink,
        clock_offset_s: float = 0.0,
        *,
        emulated: bool = False,
    ) -> None:
        self.environment = environment
        self.link = link
        self.clock_offset_s = clock_offset_s
        self.emulated = emulated
        self.misses: list[Miss] = []
        self.behind_s: list[float] = []
        self.timings: list[Timing] = []
        self.spans: list[Span] = []
        self.replies: list[tuple[RowOperation, tuple[Any, ...], tuple[Any, ...] | None]] = []
        self._pending: deque[_Pending] = deque()
        self._received = 0
        self._numbers = itertools.count()

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.link.spec.name

    @property
    def handles(self) -> Any:
        """What the environment waits on."""
        return self.link.handles

    @property
    def outstanding(self) -> int:
        """Operations submitted and not yet answered."""
        return len(self._pending)

    @property
    def awaited(self) -> bool:
        """See `environment.Port`."""
        return len(self._pending) > self._received

    @property
    def tasks(self) -> list[Task]:
        """Tasks that have not fired, oldest first."""
        return [pending.task for pending in self._pending]

    def submit(self, operation: Operation) -> Task:
        """Queue an operation and return at once; see `pack_operation` for what is refused."""
        if operation.early and operation.stoppable and not self.environment.waits:
            raise LiveError(f"{operation.kind} may be stopped midway, which takes a time scale above 0")
        submit_s = self._present_s()
        at_s = submit_s - self._shift if self.emulated and operation.view is not NO_ROWS else None
        work = Work(next(self._numbers), operation.kind, pack_operation(operation), at_s)
        task = Task(self, work.number)
        self._pending.append(_Pending(task, operation, submit_s, queued=bool(self._pending)))
        self.link.post(work)
        return task

    def stop(self, task: Task) -> None:
        """See `Task.stop`."""
        if any(pending.task is task for pending in self._pending):
            self.link.stop(task.number, self._present_s() - self._shift if self.emulated else None)

    @property
    def _shift(self) -> float:
        """Worker's clock plus this is the environment's time."""
        return self.clock_offset_s - self.environment.origin

    def _present_s(self) -> float:
        """When the policy does what it is doing: on the clock, or of an emulated one at once."""
        return float(self.environment.now) if self.emulated else self.environment.elapsed()

    def receive(self) -> object:
        """Read one report; see `environment.Port`."""
        report = self.link.receive()
        self._received += not isinstance(report, Early)
        return report

    def happens_s(self, report: object, arrival_s: float) -> float:
        """See `environment.Port`."""
        noticed_s = getattr(report, "noticed_s", None)
        if noticed_s is None:
            return arrival_s
        happens_s = float(noticed_s + self._shift)
        self.behind_s.append(max(0.0, arrival_s - happens_s))
        return happens_s

    def deliver(self, report: object, arrival_s: float) -> None:
        """Fire the task (or its early event) that a report is about: the oldest, since the worker is FIFO."""
        assert isinstance(report, Report | Early | Failure)
        pending = self._pending[0]
        task, operation = pending.task, pending.operation
        if report.number != task.number:
            raise AuditError(f"{self.name}: report of work {report.number}, expected {task.number}")
        if isinstance(report, Early):
            pending.early_s, pending.early = arrival_s, unpack_replies(operation, report.body, early=True)
            task.early.succeed(operation.answer(pending.early))
            return
        self._pending.popleft()
        self._received -= 1
        self.link.acknowledge()
        self._record(pending, report, arrival_s)
        if isinstance(report, Failure):
            task.fail(WorkerError(self.name, operation.kind, report.traceback))
            return
        replies = unpack_replies(operation, report.body)
        if isinstance(operation, RowOperation):
            self.replies.append((operation, replies, pending.early))
        task.succeed(operation.answer(replies))

    def clear_records(self) -> None:
        """Forget timings, spans, replies and missed deadlines."""
        self.misses.clear()
        self.replies.clear()
        self.timings.clear()
        self.spans.clear()

    def _record(self, pending: _Pending, report: Report | Failure, arrival_s: float) -> None:
        shift = self._shift
        if isinstance(report, Report) and report.real_s is not None:
            (began_s, done_s), had_s = report.real_s, report.end - report.start
            kind = pending.operation.kind
            # A late prefill delays what follows, which has to be in time; decode time leaves prefills out.
            if done_s > report.end > report.start and not isinstance(pending.operation, Prefill):
                self.misses.append(Miss(kind, done_s - began_s, done_s - report.start, had_s))
        steps = report.steps if isinstance(report, Report) else ()
        view = pending.operation.view
        timing = Timing(
            device=self.name,
            operation=pending.operation.kind,
            submit_s=pending.submit_s,
            start_s=report.start + shift,
            end_s=report.end + shift,
            arrival_s=arrival_s,
            queued=pending.queued,
            steps=tuple(s._replace(start_s=s.start_s + shift, end_s=s.end_s + shift) for s in steps),
            context=sum(view.contexts) / len(view.slots) if view.slots else 0.0,
            rows=len(view.slots),
            early_s=pending.early_s,
        )
        self.timings.append(timing)
        details: dict[str, Any] = {
            "steps": [[s.name, s.end_s - s.start_s] for s in timing.steps],
            "tokens": timing.tokens,
        }
        if timing.rows:
            details |= {
                "rows": timing.rows,
                "requests": list(view.requests),
                "context": timing.context,
            }
        if isinstance(report, Failure):
            details["failed"] = True
        self.spans.append(Span(self.name, timing.operation, timing.start_s, timing.end_s, details))
