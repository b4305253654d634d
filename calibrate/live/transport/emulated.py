"""Emulated devices: a worker whose operations last as long as another machine's would.

The worker, its model and KV cache, its messages and the policy are the real ones; only how long an operation
lasts is somebody else's.  Every operation has a place in time that is fixed before its work is done, in the
emulated machine's seconds (`scale` real ones each):

    begin    = when it was submitted + lead on an idle device; else the end of the one before
    end      = begin + its steps, which the simulator's own code prices
    noticed  = end + what a report takes

The worker waits for `begin` on the monotonic clock (asleep, then spinning), does its work, and reports at
once; the report waits for `noticed` on the policy's side.  Deadlines are absolute, so that what the real
machine takes (work, messages, host time, a scheduler's whims) is gone as long as it fits in between, and does
not add up.  What does not fit is an error, once the run is over: `errors.DeadlineMissed`.

With a scale of 0 nobody waits for a clock: time is the environment's, which goes on to the next event when
every worker has said when its operation ends.  The machine at hand then has no part in what is measured,
however busy it is, and there is no deadline.  What may be stopped in the middle needs a clock.

Devices do not slow each other here.  An operation that policies stop because of what it said early takes its
steps one by one: a stop takes effect at the first boundary after it was asked for, as in the simulation, and
the worker waits for that boundary before it looks.  All others have the room of all their steps for their
work; nobody stops them, and they answer whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from calibrate.live.wire import Early, Report, Work, pack
from policies.operation import Operation, RowOperation

if TYPE_CHECKING:
    from calibrate.live.engine.executor import Executor

SPIN_S = 0.0003
"""Real seconds before a deadline in which a worker looks at the clock instead of sleeping."""
GRACE = 0.2
"""Of a step: how long a worker waits for a stop that was asked for before the step and is under way."""
SAME_S = 1e-9
"""Moments that are closer than this are the same."""


class Prices(Protocol):
    """What operations take on the emulated machine, s; workers are sent a `simulator.replies.LivePrices`.

    A row operation's steps are those of its `answered` replies.
    """

    def answered(self, replies: Sequence[Any]) -> None:
        """The next questions are about an operation with these replies; none: it is not done yet."""
        ...

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        """Named pieces of work; `host` first, where there is one."""
        ...

    def latency(self, operation: Operation) -> tuple[float, float]:
        """From submission to the start on an idle device, and from the end to its being noticed."""
        ...

    def early_latency(self, operation: Operation) -> float:
        """From the step that an early result follows to its being noticed."""
        ...


@dataclass(frozen=True, slots=True)
class Emulation:
    """The machine that live devices emulate.

    Attributes:
        prices: What its operations take.
        scale: Real seconds per second of it; 0: nobody waits.
    """

    prices: Prices
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale >= 0.0:
            raise ValueError(f"a time scale must not be negative, got {self.scale:g}")

    def clock(self) -> float:
        """The monotonic clock, in its seconds; it stands still where nobody waits for it."""
        return time.perf_counter() / self.scale if self.scale else 0.0

    def wait(self, until_s: float) -> None:
        """Sleep until shortly before a moment, then spin."""
        while (left_s := (until_s - self.clock()) * self.scale) > 0.0:
            if left_s > SPIN_S:
                time.sleep(left_s - SPIN_S)


class EmulatedWork:
    """Gives a worker's operations their places in time, one after the other.

    Args:
        device: Its name.
        emulation: What it emulates.
        executor: What does the work.
        stopped: Whether the running work was asked to stop before a moment.
        send: Takes an early result.
    """

    def __init__(
        self,
        device: str,
        emulation: Emulation,
        executor: Executor,
        stopped: Callable[[float], bool],
        send: Callable[[Early], None],
    ) -> None:
        self.device = device
        self.emulation = emulation
        self.prices = emulation.prices
        self.executor = executor
        self.send = send
        self.free_s = 0.0
        """End of the operation before."""
        self.began_s = 0.0
        """When this one's real work began."""
        self._stopped = stopped
        self._cut = False
        self._worked_s = 0.0
        self._early: Sequence[Any] | None = None
        executor.stopped = self.stopped

    def begin(self, work: Work, operation: Operation) -> None:
        """Wait for the beginning of an operation."""
        assert work.at_s is not None
        self.work, self.operation = work, operation
        self.prices.answered(())
        queued = work.at_s < self.free_s - SAME_S
        self.begin_s = self.free_s if queued else work.at_s + self.prices.latency(operation)[0]
        self.idle_s = self.begin_s - self.free_s
        self._cut, self._early = False, None
        self.steps = [] if isinstance(operation, RowOperation) else self._steps()
        self.executor.say_early = self.say_early
        self.emulation.wait(self.begin_s)
        self.began_s = self.emulation.clock()

    def finish(self, replies: Sequence[Any], body: bytes) -> Report:
        """The report of the operation whose work is done, with its place in time."""
        # What was cut waited for its stop after its work.
        done_s, operation = self._worked_s if self._cut else self.emulation.clock(), self.operation
        self.prices.answered(replies)
        if isinstance(operation, RowOperation):
            self.steps = self._steps()
        if self._early is not None:  # said while it was not known how long its steps last
            self._send_early(self._early, self._early_s())
        done = self.executor.steps
        end_s = self.boundary(len(done) if self._cut else len(self.steps))
        ends = [min(end_s, self.boundary(i)) for i in range(len(done) + 1)]
        stamped = tuple(s._replace(start_s=a, end_s=b) for s, a, b in zip(done, ends, ends[1:], strict=False))
        self.free_s = end_s
        noticed_s = end_s + self.prices.latency(operation)[1]
        return Report(self.work.number, self.begin_s, end_s, stamped, body, noticed_s, (self.began_s, done_s))

    def boundary(self, steps: int) -> float:
        """When so many of the operation's model calls are done."""
        ahead = steps + (self.steps[:1] != [] and self.steps[0][0] == "host")
        return self.begin_s + sum(seconds for _, seconds in self.steps[:ahead])

    def stopped(self) -> bool:
        """Asked between two steps: whether the operation was asked to stop before the first of them ended."""
        if not self.operation.early:
            return False
        done, self._worked_s = len(self.executor.steps), self.emulation.clock()
        boundary_s = self.boundary(done)
        self.emulation.wait(boundary_s + GRACE * (self.boundary(done + 1) - boundary_s))
        self._cut = self._stopped(boundary_s)
        return self._cut

    def say_early(self, replies: Sequence[Any]) -> None:
        """Send an early result now if the policy may stop the rest because of it; else with the report."""
        if self.operation.stoppable:
            self._send_early(replies, self._early_s())
        else:
            self._early = replies

    def _send_early(self, replies: Sequence[Any], said_s: float) -> None:
        noticed_s = said_s + self.prices.early_latency(self.operation)
        self.send(Early(self.work.number, pack(replies), noticed_s))

    def _early_s(self) -> float:
        names, last = [name for name, _ in self.steps], self.operation.early_after
        before = self.steps[: names.index(last) + 1] if last in names else []
        return self.begin_s + sum(seconds for _, seconds in before)

    def _steps(self) -> list[tuple[str, float]]:
        return self.prices.steps(self.device, self.operation, self.idle_s)
