"""simpy's environment in real time: waits for the next timeout or the next worker's report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from multiprocessing.connection import wait as wait_for_connections
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL, Event, EventPriority

from calibrate.live.errors import StuckPolicy

Clock = Callable[[], float]
Wait = Callable[[Sequence[Any], float | None], list[Any]]

SPIN_S = 0.0003
"""Real seconds before a held report's moment in which nothing is slept through."""


class Port(Protocol):
    """Where reports of one worker come in."""

    @property
    def handles(self) -> Sequence[Any]:
        """What to wait on: the pipe and the process sentinel."""
        ...

    @property
    def outstanding(self) -> int:
        """Operations that the worker still has to report."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether the report of any of these has not been received."""
        ...

    def receive(self) -> object:
        """Read the report that lies ready; `WorkerDied` if there is none, and there never will be."""
        ...

    def happens_s(self, report: object, arrival_s: float) -> float:
        """When a report happens that arrived now: now, or on an emulated device when it is to be noticed."""
        ...

    def deliver(self, report: object, arrival_s: float) -> None:
        """Trigger the task that `report` is about; `now` is already the time of its arrival."""
        ...


class LiveEnvironment(simpy.Environment):
    """An environment whose `now` is seconds since it began, of the moment the current event happened.

    A timeout happens when it is due, a report when it arrives here, or at the moment that it names (of an
    emulated device).  Both are worked off in the order
    of these moments, so that `now` never runs backwards even if this process was late to notice one.
    Events that a policy triggers itself happen at `now`.

    Args:
        clock: Monotonic seconds.
        scale: Real seconds per second of the clock; 0: `now` goes on to the next event at once, when
            every report that is under way has been received.
        wait: As `multiprocessing.connection.wait`; replaceable for tests.
    """

    def __init__(
        self, *, clock: Clock = time.perf_counter, wait: Wait = wait_for_connections, scale: float = 1.0
    ) -> None:
        super().__init__(0.0)
        self._clock = clock
        self._scale = scale
        self.waits = scale > 0.0
        """Whether time is a clock's."""
        self._wait = wait
        self.origin = clock()
        """The clock's reading at `now == 0`."""
        self._ports: list[Port] = []
        self._arrivals: list[tuple[float, int, Port, object]] = []
        self._numbers = itertools.count()
        self._held = False  # whether reports are held until they are to be noticed

    def attach(self, port: Port) -> None:
        """From now on wait for the reports of `port`, too."""
        self._ports.append(port)

    def elapsed(self) -> float:
        """Seconds since the environment began, by the clock: `now` or a little later."""
        return self._clock() - self.origin if self.waits else float(self._now)

    def catch_up(self) -> None:
        """Let `now` be the present, if nothing is under way; between runs it stands still."""
        if not self._queue and not self._arrivals:
            self._now = max(float(self._now), self.elapsed())

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """As simpy, which accepts a negative delay and lets time run backwards; here it is refused."""
        if not delay >= 0:
            raise ValueError(f"delay must be non-negative, got {delay}")
        super().schedule(event, priority, delay)

    def run(self, until: float | Event | None = None) -> Any:
        """As simpy, but always until an event, e.g. a process.

        A plain run would return silently from a stuck policy, and a run until a time would leave workers
        behind in the middle of their work.

        Raises:
            StuckPolicy: Nothing is scheduled and no worker has anything outstanding.
            WorkerDied: A worker process ended.
        """
        if not isinstance(until, Event):
            raise TypeError(f"run a live environment until an event, not until {until!r}")
        return super().run(until)

    def step(self) -> None:
        """Process the next event, waiting for it as long as it takes."""
        while not self._due():
            self._listen()
        super().step()

    def _due(self) -> bool:
        """Whether the head of the queue has happened; first moves an earlier arrival into the queue."""
        if not self.waits:
            return self._is_next()
        if self._held and self.peek() > self._now:
            self._take_in(0.0)  # what is to be noticed first may have arrived last
        if self._arrivals and self._arrivals[0][0] < self.peek() and self._arrivals[0][0] <= self.elapsed():
            arrival_s, _, port, report = heappop(self._arrivals)
            self._now = max(float(self._now), arrival_s)
            port.deliver(report, arrival_s)
        head = self.peek()
        # Events triggered at `now` need no look at the clock, which may be coarser than `now`.
        return head <= self._now or head <= self.elapsed()

    def _is_next(self) -> bool:
        """The same where nobody waits for a clock: what is under way may come before all that is known."""
        if self.peek() <= self._now:
            return True
        if any(port.awaited for port in self._ports):
            return False
        if self._arrivals and self._arrivals[0][0] < self.peek():
            happens_s, _, port, report = heappop(self._arrivals)
            self._now = max(float(self._now), happens_s)
            port.deliver(report, happens_s)
        return self.peek() < simpy.core.Infinity

    def _listen(self) -> None:
        """Wait until the head of the queue is due, a held report happens or others have arrived."""
        head = min(float(self.peek()), self._arrivals[0][0] if self._arrivals else simpy.core.Infinity)
        if head == simpy.core.Infinity or not self.waits:
            if not any(port.outstanding for port in self._ports):
                raise StuckPolicy(
                    "nothing is scheduled and no worker has anything outstanding: the policy waits for "
                    "an event that nobody will trigger"
                )
            self._take_in(None)
            return
        left_s = (head - self.elapsed()) * self._scale
        self._take_in(max(0.0, left_s - SPIN_S if self._held else left_s))

    def _take_in(self, timeout: float | None) -> None:
        """Wait for reports, in real seconds, and take in those that have arrived."""
        ready = self._wait([h for port in self._ports for h in port.handles], timeout)
        arrival_s = self.elapsed()
        for port in self._ports:
            if any(handle in ready for handle in port.handles):
                report = port.receive()
                happens_s = port.happens_s(report, arrival_s)
                self._held = self._held or happens_s != arrival_s
                heappush(self._arrivals, (happens_s, next(self._numbers), port, report))
