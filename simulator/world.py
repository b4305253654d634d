"""The simulated world: a target and its drafts on simpy's clock, answering from a token model.

Devices are first-in first-out servers whose work progresses at a rate.  It depends on what a device's
neighbours do (they share memory bandwidth, power, a chip), so it is constant between changes of who is busy
with what, and every change replans what is running (design.md, section 4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import simpy
from simpy.events import Event

from hardware_profiles.optime import Host, OperationTiming
from policies.operation import Operation, Prefill
from policies.protocols import Steps, role_of
from policies.timeline import Span
from simulator.costs import Costs, KeyedNoise
from simulator.replies import Replies, RowReplies
from simulator.tokens import TokenModel

Slowdowns: TypeAlias = Mapping[tuple[str, str, str, str | None], float]
"""(role, operation, other role, other operation) to the factor by which the first runs slower while the
second is busy; None as the other operation: anything that has no entry of its own."""


class Machine:
    """Devices that can slow each other down, and the account of their time.

    Args:
        slowdowns: See `Slowdowns`; absent pairs do not interfere.

    Attributes:
        busy_s: Seconds of work per device, prefills left out.
        overlap_s: Seconds in which devices of two roles worked at once, prefills left out.
    """

    def __init__(self, slowdowns: Slowdowns | None = None) -> None:
        self.slowdowns = dict(slowdowns or {})
        self.devices: list[SimulatedDevice] = []
        self.busy_s: dict[str, float] = {}
        self.overlap_s = 0.0
        self._since = 0.0
        self._counted: list[str] = []

    def account(self, now: float) -> None:
        """Charge the time since the last change to the devices that were busy in it."""
        elapsed = now - self._since
        self._since = now
        if elapsed > 0.0:
            for name in self._counted:
                self.busy_s[name] = self.busy_s.get(name, 0.0) + elapsed
            if len({role_of(name) for name in self._counted}) > 1:
                self.overlap_s += elapsed

    def changed(self, now: float) -> None:
        """Replan every running operation: someone has just started, stopped or gone on to something else."""
        self.account(now)
        busy = [d for d in self.devices if d.running is not None]
        self._counted = [d.name for d in busy if not isinstance(d.running.operation, Prefill)]  # type: ignore[union-attr]
        if self.slowdowns:
            for device in busy:
                device.replan(now, self._rate(device, busy))

    def _rate(self, device: SimulatedDevice, busy: list[SimulatedDevice]) -> float:
        mine, rate = (role_of(device.name), device.cost_class), 1.0
        for other in busy:
            if other is not device:
                its = role_of(other.name)
                always = self.slowdowns.get((*mine, its, None), 1.0)
                rate /= self.slowdowns.get((*mine, its, other.cost_class), always)
        return rate


class SimulatedTask(Event):
    """A submitted operation; fires once, with its answer."""

    def __init__(self, device: SimulatedDevice, operation: Operation) -> None:
        super().__init__(device.env)
        self.device = device
        self.operation = operation
        self.early = Event(device.env)

    def stop(self) -> None:
        """End a draft at its next step boundary, with the tokens drafted so far; else a no-op."""
        self.device.stop(self)


def _fire(event: Event, value: Any, delay: float) -> None:
    event._ok = True
    event._value = value
    event.env.schedule(event, delay=delay)


class SimulatedDevice:
    """A first-in first-out server on simpy's clock.

    Args:
        name: `target`, `draft`, `draft-1`, ...
        spans: Collects the timeline; None records nothing.
    """

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        work: Replies,
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
        self.cost_class = ""
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
        self._early_timer: Event | None = None
        machine.devices.append(self)
        machine.busy_s[name] = 0.0

    def submit(self, operation: Operation) -> SimulatedTask:
        """Queue an operation and return at once."""
        task = SimulatedTask(self, operation)
        self._queue.append(task)
        if self.running is None and self._starting is None:
            self._next(self.work.latency(operation)[0])
        return task

    def stop(self, task: SimulatedTask) -> None:
        """See `SimulatedTask.stop`."""
        if not task.operation.stoppable or task.triggered:
            return
        if task is not self.running:
            if task in self._queue:
                self._queue.remove(task)
                self._report(task, 0)
            elif task is self._starting:
                self._completed = 0
            return
        self._advance(self.env.now)
        done, boundary = _total(self._steps) - self._remaining, 0.0
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
        self.cost_class = task.operation.cost_class
        self._steps = self.work.steps(self.name, task.operation, now - self._ended)
        self._remaining = _total(self._steps)
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
        if task is not None and task.operation.early and not task.early.triggered:
            ahead = max(0.0, self._remaining - self._after_early_result())
            self._early_timer = self._after(ahead / self._rate, self._early)

    def _after_early_result(self) -> float:
        """Seconds of the steps that follow the running operation's early result."""
        assert self.running is not None
        names, last = [name for name, _ in self._steps], self.running.operation.early_after
        return _total(self._steps[names.index(last) + 1 if last in names else 0 :])

    def _early(self, timer: Event | None) -> None:
        """Fire the early event of the running operation; None: the step before it was the last."""
        if timer is not None and timer is not self._early_timer:
            return  # replanned since
        task, self._early_timer = self.running, None
        assert task is not None
        _fire(task.early, self.work.early_answer(task.operation), self.work.early_latency(task.operation))

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
        if task.operation.early and not task.early.triggered:
            self._early(None)
        self._record(task, now)
        self._ended = now
        self.running = None
        self.machine.changed(now)
        self._report(task, self._completed)
        if self._queue:
            self._next(0.0)

    def _report(self, task: SimulatedTask, completed: int | None) -> None:
        answer = self.work.answer(task.operation, completed)
        _fire(task, answer, self.work.latency(task.operation)[1])

    def _record(self, task: SimulatedTask, now: float) -> None:
        if self.spans is None:
            return
        steps = [[name, seconds] for name, seconds in self._steps[: self._completed]]
        details = {"rows": len(task.operation.view.slots), "steps": steps}
        self.spans.append(Span(self.name, task.operation.kind, self._started, now, details))


def _total(steps: Sequence[tuple[str, float]]) -> float:
    return sum(seconds for _, seconds in steps)


class SimulatedWorld:
    """Target and drafts in simulated time (`policies.protocols.World`).

    Args:
        draft_devices: How many draft devices there are: `draft`, `draft-1`, ...  All cost the same.
        target_devices: How many target devices: `target`, `target-1`, ...
        rows: Replies of row operations; None where no policy asks for any.
        timings: See `Replies`, as is the noise.
        noise: Of whole operations.
    """

    def __init__(
        self,
        tokens: TokenModel,
        costs: Costs,
        *,
        host: Host | None = None,
        slowdowns: Slowdowns | None = None,
        timeline: bool = False,
        draft_devices: int = 1,
        target_devices: int = 1,
        rows: RowReplies | None = None,
        timings: Mapping[str, OperationTiming] | None = None,
        noise: KeyedNoise | None = None,
    ) -> None:
        self.env = simpy.Environment()
        self.machine = Machine(slowdowns)
        self.spans: list[Span] = []
        self.vocabulary = tokens.vocabulary
        self.costs = costs
        work = Replies(costs, tokens, host or Host(), rows=rows, timings=timings, noise=noise)
        spans = self.spans if timeline else None

        def devices(role: str, count: int) -> tuple[SimulatedDevice, ...]:
            names = [role, *(f"{role}-{i}" for i in range(1, count))]
            return tuple(SimulatedDevice(self.env, n, work, self.machine, spans=spans) for n in names)

        self.targets, self.drafts = devices("target", target_devices), devices("draft", draft_devices)
        self.target, self.draft = self.targets[0], self.drafts[0]

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return float(self.env.now)

    def until(self, at_s: float) -> Event:
        """A moment, or now where it has passed."""
        return self.env.timeout(max(0.0, at_s - self.now))

    def run(self, policy_steps: Steps) -> None:
        """Run a policy to its end.

        Raises:
            RuntimeError: The policy waits for something that nobody will do.
        """
        # A policy yields this world's own events, which are simpy's.
        process = self.env.process(cast("Generator[Event, Any, Any]", policy_steps))
        try:
            self.env.run(until=process)
        except RuntimeError as error:
            if process.triggered:
                raise
            raise RuntimeError("the policy waits for an event that nothing will trigger") from error
