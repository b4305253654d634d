"""The simulated world: a target and its drafts on simpy's clock, answering from a token model.

Devices are first-in first-out servers whose work progresses at a rate.  It depends on what a device's
neighbours do (they share memory bandwidth, power, a chip), so it is constant between changes of who is busy
with what, and every change replans what is running (design.md, section 4).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping
from functools import cached_property
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, TypeAlias, cast, get_args

import simpy
from simpy.events import NORMAL, Event

from hardware_profiles.optime import Host, OperationTiming
from policies.operation import CostClass, Operation
from policies.protocols import Steps, role_of
from policies.timeline import Span
from simulator.costs import Costs, KeyedNoise, Priced
from simulator.replies import Replies, RowReplies, TimedWork
from simulator.tokens import TokenModel

Slowdowns: TypeAlias = Mapping[tuple[str, str, str, str | None], float]
"""(role, operation, other role, other operation) to the factor by which the first runs slower while the
second is busy; None as the other operation: anything that has no entry of its own."""


_NEVER = math.inf
_DOING = attrgetter("doing")


class Clock(simpy.Environment):
    """simpy's environment, beside whose queue stands what devices do next.

    That changes with every change of their neighbours, and a queue forgets nothing: there it would be an
    event per plan, most of them out of date when their time comes.  Where both are due at once, devices come
    first: what they do was planned before.
    """

    def __init__(self) -> None:
        super().__init__(0.0)
        self.devices: list[SimulatedDevice] = []

    def step(self) -> None:
        """See `simpy.Environment.step`."""
        due_s, first = _NEVER, None
        for device in self.devices:
            if device.due_s < due_s:
                due_s, first = device.due_s, device
        if first is None or (self._queue and self._queue[0][0] < due_s):
            super().step()
        else:
            self._now = due_s
            first.go_on(due_s)

    def finish(self, process: Event) -> None:
        """Step until a process has ended: `run(until=process)`, without a call per step.

        Raises:
            RuntimeError: There is nothing left to do before that.
            BaseException: What an event failed with that nobody handled, the process among them.
        """
        queue, devices = self._queue, self.devices
        while process.callbacks is not None:
            due_s, first = _NEVER, None
            for device in devices:
                if device.due_s < due_s:
                    due_s, first = device.due_s, device
            if first is not None and not (queue and queue[0][0] < due_s):
                self._now = due_s
                first.go_on(due_s)
            elif queue:
                self._now, _, _, event = heappop(queue)
                callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
                for callback in callbacks:
                    callback(event)
                if not event._ok and not hasattr(event, "_defused"):
                    raise event._value
            else:
                raise RuntimeError("the policy waits for an event that nothing will trigger")


class Machine:
    """Devices that can slow each other down, and the account of their time.

    Args:
        slowdowns: See `Slowdowns`; absent pairs do not interfere.

    Attributes:
        devices: All of them.
        overlap_s: Seconds in which devices of two roles worked at once, prefills left out.
    """

    def __init__(self, slowdowns: Slowdowns | None = None) -> None:
        self.slowdowns = dict(slowdowns or {})
        self.devices: list[SimulatedDevice] = []
        self.overlap_s = 0.0
        self._running: list[SimulatedDevice] = []
        self._since = 0.0
        self._overlap = False
        self._rates: dict[tuple[str, ...], tuple[list[float], bool]] = {}

    @property
    def busy_s(self) -> dict[str, float]:
        """Seconds of work per device, prefills left out."""
        return {device.name: device.busy_s for device in self.devices}

    def changed(self, now: float, device: SimulatedDevice) -> None:
        """A device has just started or stopped: charge the time since the last change to those that were
        busy in it, and replan every running operation.
        """
        running, elapsed = self._running, now - self._since
        if elapsed > 0.0:
            self._since = now
            for each in running:
                if each.counted:
                    each.busy_s += elapsed
            if self._overlap:
                self.overlap_s += elapsed
        if device.running is None:
            running.remove(device)
        else:
            running.append(device)
        if len(running) > 1:
            self._share(now)
        else:
            self._overlap = False
            if running and running[0].rate != 1.0:
                running[0].replan(now, 1.0)

    def _share(self, now: float) -> None:
        """Replan operations that run at once."""
        running = self._running
        doing = tuple(map(_DOING, running))
        found = self._rates.get(doing)
        if found is None:
            overlap = len({each.role for each in running if each.counted}) > 1
            found = self._rates[doing] = [self._rate(each) for each in running], overlap
        rates, self._overlap = found
        for each, rate in zip(running, rates, strict=True):
            if each.rate != rate:
                each.replan(now, rate)

    def _rate(self, device: SimulatedDevice) -> float:
        rate = 1.0
        for other in self._running:
            if other is not device:
                pair = device.role, device.cost_class, other.role
                always = self.slowdowns.get((*pair, None), 1.0)
                rate /= self.slowdowns.get((*pair, other.cost_class), always)
        return rate


class SimulatedTask(Event):
    """A submitted operation; fires once, with its answer."""

    def __init__(self, device: SimulatedDevice, operation: Operation) -> None:
        # As an event does, without the call.
        self.env = device.env
        self.callbacks = []
        self.device = device
        self.operation = operation
        self.form = device.work.form(operation)

    @cached_property
    def early(self) -> Event:
        """See `policies.protocols.Task`."""
        return Event(self.device.env)

    def stop(self) -> None:
        """End a draft at its next step boundary, with the tokens drafted so far; else a no-op."""
        self.device.stop(self)


def _fire(env: Clock, event: Event, value: Any, delay: float) -> None:
    event._ok = True
    event._value = value
    heappush(env._queue, (env._now + delay, NORMAL, next(env._eid), event))


class SimulatedDevice:
    """A first-in first-out server.

    Args:
        name: `target`, `draft`, `draft-1`, ...
        spans: Collects the timeline; None records nothing.

    Attributes:
        cost_class: Of the operation at hand.
        doing: Its role and that.
        counted: Whether it is none that reads prompts.
        rate: At which it proceeds.
        due_s: When it does something next by itself.
        busy_s: Seconds of work, prefills left out.
    """

    def __init__(
        self,
        env: Clock,
        name: str,
        work: Replies,
        machine: Machine,
        *,
        spans: list[Span] | None = None,
    ) -> None:
        self.env = env
        self.name = name
        self.role = role_of(name)
        self.work = work
        self.machine = machine
        self.spans = spans
        self.running: SimulatedTask | None = None
        self.cost_class, self.doing, self.counted = "", "", True
        self._queue: deque[SimulatedTask] = deque()
        self._starting: SimulatedTask | None = None
        self._work = TimedWork(Priced.of([]))
        self._started = 0.0
        self._ended = 0.0
        self._remaining = 0.0
        self.rate = 1.0
        self._since = 0.0
        self._completed: int | None = None
        self._end_s = self._early_s = self.due_s = _NEVER
        self.busy_s = 0.0
        self._kinds = {kind: (kind, f"{self.role} {kind}", kind != "prefill") for kind in get_args(CostClass)}
        machine.devices.append(self)
        env.devices.append(self)

    def submit(self, operation: Operation) -> SimulatedTask:
        """Queue an operation and return at once."""
        task = SimulatedTask(self, operation)
        if self.running is not None or self._starting is not None:
            self._queue.append(task)
            return task
        self._starting, self._completed = task, None
        if task.form.lead_s > 0.0:
            self.due_s = self.env._now + task.form.lead_s
        else:
            self._begin(self.env._now)
        return task

    def stop(self, task: SimulatedTask) -> None:
        """See `SimulatedTask.stop`."""
        if not task.operation.stoppable or task.triggered:
            return
        if task is not self.running:
            if task in self._queue:
                self._queue.remove(task)
                self._drop(task)
            elif task is self._starting:
                self._completed = 0
            return
        self._advance(self.env.now)
        steps, boundary = self._work.steps, 0.0
        done = self._work.total_s - self._remaining
        for index, (_, seconds) in enumerate(steps):
            boundary += seconds
            if boundary >= done - 1e-15 or index + 1 == len(steps):
                self._completed = index + 1
                self._remaining = max(0.0, boundary - done)
                self._schedule()
                return

    def replan(self, now: float, rate: float) -> None:
        """Go on at another rate from now on."""
        if rate != self.rate:
            if self.rate:  # else it begins only now
                self._advance(now)
            self.rate = rate
            if self._early_s == _NEVER:
                self._end_s = self.due_s = now + self._remaining / rate
            else:
                self._schedule()

    def go_on(self, now: float) -> None:
        """Do what is due now."""
        if self._starting is not None:
            self._begin(now)
        elif self._early_s < self._end_s:
            self._say_early()
        else:
            self._end(now)

    def _next(self, now: float) -> None:
        """Begin what waited."""
        self._starting, self._completed = self._queue.popleft(), None
        self._begin(now)

    def _begin(self, now: float) -> None:
        task, self._starting = self._starting, None
        assert task is not None
        self.due_s = _NEVER
        if self._completed == 0:  # stopped before it began
            self._drop(task)
            if self._queue:
                self._next(now)
            return
        self.running, operation = task, task.operation
        self.cost_class, self.doing, self.counted = self._kinds[operation.cost_class]
        self._work = work = self.work.work(self.name, operation, task.form, now - self._ended)
        self._remaining = work.total_s
        self.rate = 0.0
        self._started = self._since = now
        self._early_s = 0.0 if operation.early_reply is not None and operation.early else _NEVER
        self.machine.changed(now, self)

    def _drop(self, task: SimulatedTask) -> None:
        """Report what was stopped before it began."""
        work, operation = self.work, task.operation
        _fire(self.env, task, work.answer(operation, 0), work.after_s(operation, task.form))

    def _advance(self, now: float) -> None:
        self._remaining = max(0.0, self._remaining - (now - self._since) * self.rate)
        self._since = now

    def _schedule(self) -> None:
        self._end_s = self.due_s = self._since + self._remaining / self.rate
        if self._early_s != _NEVER:
            ahead = max(0.0, self._remaining - self._after_early_result())
            self._early_s = self._since + ahead / self.rate
            self.due_s = min(self._early_s, self._end_s)

    def _after_early_result(self) -> float:
        """Seconds of the steps that follow the running operation's early result."""
        assert self.running is not None
        steps, last = self._work.steps, self.running.operation.early_after
        names = [name for name, _ in steps]
        return sum([seconds for _, seconds in steps[names.index(last) + 1 if last in names else 0 :]])

    def _say_early(self) -> None:
        """Fire the early event of the running operation."""
        task = self.running
        assert task is not None
        self._early_s, self.due_s = _NEVER, self._end_s
        work, operation = self.work, task.operation
        _fire(self.env, task.early, work.early_answer(operation), work.mark_s(operation, task.form))

    def _end(self, now: float) -> None:
        if self._early_s != _NEVER:
            self._say_early()
        task = self.running
        assert task is not None
        if self.spans is not None:
            self._record(task, now)
        self._ended = now
        self.running = None
        self.due_s = _NEVER
        self.machine.changed(now, self)
        work, operation = self.work, task.operation
        answer = work.answer(operation, self._completed)
        _fire(self.env, task, answer, work.after_s(operation, task.form))
        if self._queue:
            self._next(now)

    def _record(self, task: SimulatedTask, now: float) -> None:
        assert self.spans is not None
        steps = [[name, seconds] for name, seconds in self._work.steps[: self._completed]]
        details = {"rows": len(task.operation.view.slots), "steps": steps}
        self.spans.append(Span(self.name, task.operation.kind, self._started, now, details))


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
        self.env = Clock()
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
        return self.env._now

    def until(self, at_s: float) -> Event:
        """A moment, or now where it has passed."""
        return self.env.timeout(max(0.0, at_s - self.now))

    def run(self, policy_steps: Steps) -> None:
        """Run a policy to its end.

        Raises:
            RuntimeError: The policy waits for something that nobody will do.
        """
        # A policy yields this world's own events, which are simpy's.
        self.env.finish(self.env.process(cast("Generator[Event, Any, Any]", policy_steps)))
