"""Simulated devices: first-in first-out servers whose work progresses at a rate.

A device's rate depends on what its neighbours do (they share memory bandwidth, power, a chip), so it is
constant between changes of who is busy with what, and every change replans what is running
(design.md, section 4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import simpy
from simpy.events import Event

from policies.operations import Draft, Operation, Prespeculate, operation_name
from policies.rowwise import Rowwise
from policies.timeline import Span
from simulator.machine import Machine


class Work(Protocol):
    """What an operation costs and answers; one object serves all devices of a world."""

    def steps(self, device: str, operation: Operation | Rowwise, idle_s: float) -> list[tuple[str, float]]:
        """Named pieces of work in seconds at full rate; an operation may be stopped between them.

        `idle_s` is how long the device did nothing before.
        """
        ...

    def latency(self, operation: Operation | Rowwise) -> tuple[float, float]:
        """Seconds from submission to the start on an idle device, and from the end to the task's event."""
        ...

    def mark_latency(self, operation: Operation | Rowwise) -> float:
        """Seconds from the step that an operation announces after to its mark."""
        ...

    def answer(self, operation: Operation | Rowwise, completed: int | None) -> Any:
        """Answer of a finished operation; `completed` steps if it was stopped early, else None."""
        ...

    def announcement(self, operation: Operation | Rowwise) -> Any:
        """What an operation that announces something says on its way."""
        ...


ANNOUNCED_AFTER = "glue"
"""Step after which a pre-speculation announces its outcomes; without such a step, at its beginning."""


def likeness(operation: Operation | Rowwise) -> str:
    """The operation whose host time and contention one shares: its own name, or what it is like."""
    return operation.like if isinstance(operation, Rowwise) else operation_name(operation)


class SimulatedTask(Event):
    """A submitted operation; fires once, with its answer."""

    def __init__(self, device: SimulatedDevice, operation: Operation | Rowwise) -> None:
        super().__init__(device.env)
        self.device = device
        self.operation = operation
        self.mark = Event(device.env)

    @property
    def announces(self) -> bool:
        """Whether its mark will fire."""
        return isinstance(self.operation, Prespeculate | Rowwise) and self.operation.announce

    @property
    def interruptible(self) -> bool:
        """Whether `stop` does anything."""
        return isinstance(self.operation, Draft) or (
            self.announces and isinstance(self.operation, Prespeculate)
        )

    def stop(self) -> None:
        """End a draft at its next step boundary, with the tokens drafted so far; else a no-op."""
        self.device.stop(self)

    def _finish(self, answer: Any, delay: float) -> None:
        _fire(self, answer, delay)


def _fire(event: Event, value: Any, delay: float) -> None:
    event._ok = True
    event._value = value
    event.env.schedule(event, delay=delay)


class SimulatedDevice:
    """A first-in first-out server on simpy's clock.

    Args:
        env: Clock.
        name: `target`, `draft`, `draft-1`, ...
        work: Costs and answers.
        machine: Whom it shares its hardware with.
        spans: Collects the timeline; None records nothing.
    """

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        work: Work,
        machine: Machine,
        *,
        spans: list[Span] | None = None,
    ) -> None:
        self.env = env
        self.name = name
        self.work = work
        self.machine = machine
        self.spans = spans
        self.running: SimulatedTask | None = None
        self.operation_name = self.likeness = ""
        self._queue: deque[SimulatedTask] = deque()
        self._starting: SimulatedTask | None = None
        self._steps: list[tuple[str, float]] = []
        self._started = 0.0
        self._ended = 0.0
        self._remaining = 0.0
        self._rate = 1.0
        self._since = 0.0
        self._completed: int | None = None
        self._timer: Event | None = None
        self._announcing: Event | None = None
        machine.devices.append(self)
        machine.busy_s[name] = 0.0

    def submit(self, operation: Operation | Rowwise) -> SimulatedTask:
        """Queue an operation and return at once."""
        task = SimulatedTask(self, operation)
        self._queue.append(task)
        if self.running is None and self._starting is None:
            self._next(self.work.latency(operation)[0])
        return task

    def stop(self, task: SimulatedTask) -> None:
        """See `SimulatedTask.stop`."""
        if not task.interruptible or task.triggered:
            return
        if task is not self.running:
            if task in self._queue:
                self._queue.remove(task)
                self._report(task, 0)
            elif task is self._starting:
                self._completed = 0
            return
        self._advance(self.env.now)
        total = sum(seconds for _, seconds in self._steps)
        done, boundary = total - self._remaining, 0.0
        for index, (_, seconds) in enumerate(self._steps):
            boundary += seconds
            if boundary >= done - 1e-15:
                self._completed = index + 1
                self._remaining = max(0.0, boundary - done)
                self._schedule()
                return

    def replan(self, now: float, rate: float) -> None:
        """Go on at another rate from now on."""
        if rate != self._rate:
            self._advance(now)
            self._rate = rate
            self._schedule()

    def _next(self, delay: float) -> None:
        self._starting = self._queue.popleft()
        self._completed = None
        if delay > 0.0:
            self._after(delay, self._begin)
        else:
            self._begin(None)

    def _begin(self, _: Event | None) -> None:
        task, self._starting = self._starting, None
        assert task is not None
        now = self.env.now
        if self._completed == 0:  # stopped before it began
            self._report(task, 0)
            if self._queue:
                self._next(0.0)
            return
        self.running = task
        self.operation_name, self.likeness = operation_name(task.operation), likeness(task.operation)
        self._steps = self.work.steps(self.name, task.operation, now - self._ended)
        self._remaining = sum(seconds for _, seconds in self._steps)
        self._rate = 1.0
        self._started = self._since = now
        self._schedule()
        self.machine.changed(now)

    def _advance(self, now: float) -> None:
        self._remaining = max(0.0, self._remaining - (now - self._since) * self._rate)
        self._since = now

    def _schedule(self) -> None:
        self._timer = self._after(self._remaining / self._rate, self._end)
        task = self.running
        if task is not None and task.announces and not task.mark.triggered:
            ahead = max(0.0, self._remaining - self._after_announcement())
            self._announcing = self._after(ahead / self._rate, self._announce)

    def _after_announcement(self) -> float:
        """Seconds of the steps that follow the running operation's announcement."""
        names = [name for name, _ in self._steps]
        operation = self.running.operation if self.running is not None else None
        last = operation.announced_after if isinstance(operation, Rowwise) else ANNOUNCED_AFTER
        first = names.index(last) + 1 if last in names else 0
        return sum(seconds for _, seconds in self._steps[first:])

    def _announce(self, timer: Event) -> None:
        if timer is not self._announcing:
            return  # replanned since
        self._say()

    def _say(self) -> None:
        """Fire the mark of the running operation."""
        task = self.running
        assert task is not None
        self._announcing, operation = None, task.operation
        _fire(task.mark, self.work.announcement(operation), self.work.mark_latency(operation))

    def _after(self, delay: float, callback: Callable[[Event], None]) -> Event:
        timer = self.env.timeout(delay)
        timer.callbacks.append(callback)
        return timer

    def _end(self, timer: Event) -> None:
        if timer is not self._timer:
            return  # replanned since
        task = self.running
        assert task is not None
        now = self.env.now
        if task.announces and not task.mark.triggered:  # the step announced after was the last
            self._say()
        self._record(task, now)
        self._ended = now
        self.running = None
        self.machine.changed(now)
        self._report(task, self._completed)
        if self._queue:
            self._next(0.0)

    def _report(self, task: SimulatedTask, completed: int | None) -> None:
        answer = self.work.answer(task.operation, completed)
        task._finish(answer, self.work.latency(task.operation)[1])

    def _record(self, task: SimulatedTask, now: float) -> None:
        if self.spans is None:
            return
        steps = self._steps if self._completed is None else self._steps[: self._completed]
        details = {
            "rows": len(task.operation.view.slots),
            "steps": [[name, seconds] for name, seconds in steps],
        }
        self.spans.append(Span(self.name, self.operation_name, self._started, now, details))
