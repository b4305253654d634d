"""simpy's environment in real time: waits for the next timeout or the next worker's report."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait as wait_for_connections
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL, Event, EventPriority

from calibrate.live.errors import StuckPolicy

Clock = Callable[[], float]
Wait = Callable[[Sequence[Any], float | None], list[Any]]


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

    def receive(self) -> object:
        """Read the report that lies ready; `WorkerDied` if there is none, and there never will be."""
        ...

    def deliver(self, report: object, arrival_s: float) -> None:
        """Trigger the task that `report` is about; `now` is already the time of its arrival."""
        ...


class LiveEnvironment(simpy.Environment):
    """An environment whose `now` is seconds since it began, of the moment the current event happened.

    A timeout happens when it is due, a report when it arrives here.  Both are worked off in the order
    of these moments, so that `now` never runs backwards even if this process was late to notice one.
    Events that a policy triggers itself happen at `now`.

    Args:
        clock: Monotonic seconds.
        wait: As `multiprocessing.connection.wait`; replaceable for tests.
    """

    def __init__(self, *, clock: Clock = time.perf_counter, wait: Wait = wait_for_connections) -> None:
        super().__init__(0.0)
        self._clock = clock
        self._wait = wait
        self.origin = clock()
        """The clock's reading at `now == 0`."""
        self._ports: list[Port] = []
        self._arrivals: deque[tuple[float, Port, object]] = deque()

    def attach(self, port: Port) -> None:
        """From now on wait for the reports of `port`, too."""
        self._ports.append(port)

    def elapsed(self) -> float:
        """Seconds since the environment began, by the clock: `now` or a little later."""
        return self._clock() - self.origin

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
        if self._arrivals and self._arrivals[0][0] < self.peek():
            arrival_s, port, report = self._arrivals.popleft()
            self._now = max(float(self._now), arrival_s)
            port.deliver(report, arrival_s)
        head = self.peek()
        # Events triggered at `now` need no look at the clock, which may be coarser than `now`.
        return head <= self._now or head <= self.elapsed()

    def _listen(self) -> None:
        """Wait until the head of the queue is due or reports have arrived; take in the reports."""
        head = float(self.peek())
        if head == simpy.core.Infinity:
            if not any(port.outstanding for port in self._ports):
                raise StuckPolicy(
                    "nothing is scheduled and no worker has anything outstanding: the policy waits for "
                    "an event that nobody will trigger"
                )
            timeout = None
        else:
            timeout = max(0.0, head - self.elapsed())
        ready = self._wait([h for port in self._ports for h in port.handles], timeout)
        arrival_s = self.elapsed()
        for port in self._ports:
            if any(handle in ready for handle in port.handles):
                self._arrivals.append((arrival_s, port, port.receive()))
