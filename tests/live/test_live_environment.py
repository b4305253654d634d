"""The environment's sense of time, on a clock and pipes of paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import simpy

from calibrate.live.errors import StuckPolicy, WorkerDied, WorkerError
from calibrate.live.transport.environment import LiveEnvironment


class Scene:
    """A clock that moves only while someone waits; `reports` are the times at which reports arrive."""

    def __init__(self, *reports: float, tardy: float = 0.0) -> None:
        self.time = 100.0
        self.reports = [100.0 + report for report in reports]
        self.tardy = tardy
        self.waits = 0

    def clock(self) -> float:
        return self.time

    def wait(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        """Return the first handle when the next report arrives, none at the timeout; `tardy` late."""
        self.waits += 1
        deadline = float("inf") if timeout is None else self.time + timeout
        if self.reports and self.reports[0] <= deadline + self.tardy:
            self.time = max(self.time, self.reports.pop(0))
            return list(handles[:1])
        self.time = deadline + self.tardy
        return []


class PaperPort:
    """A port whose reports are consecutive numbers."""

    handles = ("pipe", "sentinel")

    def __init__(self, environment: LiveEnvironment, outstanding: int) -> None:
        self.tasks = [environment.event() for _ in range(outstanding)]
        self.received = self.delivered = 0

    @property
    def outstanding(self) -> int:
        return len(self.tasks) - self.delivered

    def receive(self) -> object:
        self.received += 1
        if self.received > len(self.tasks):
            raise WorkerDied("paper", -9, "last words")
        return self.received

    def happens_s(self, report: object, arrival_s: float) -> float:
        return arrival_s

    def deliver(self, report: object, arrival_s: float) -> None:
        self.delivered += 1
        self.tasks[self.delivered - 1].succeed((report, arrival_s))


def stage(*reports: float, tasks: int, tardy: float = 0.0) -> tuple[LiveEnvironment, PaperPort, Scene]:
    scene = Scene(*reports, tardy=tardy)
    environment = LiveEnvironment(clock=scene.clock, wait=scene.wait)
    port = PaperPort(environment, tasks)
    environment.attach(port)
    return environment, port, scene


def run_log(environment: LiveEnvironment, events: dict[str, simpy.Event]) -> list[tuple[str, float]]:
    """Name and `now` of each event, in the order in which they happened."""
    log: list[tuple[str, float]] = []

    def watch(name: str, event: simpy.Event) -> Iterator[simpy.Event]:
        yield event
        log.append((name, environment.now))

    processes = [environment.process(watch(name, event)) for name, event in events.items()]
    environment.run(until=environment.all_of(processes))
    return log


def test_timeouts_and_reports_happen_in_the_order_of_their_times() -> None:
    environment, port, _ = stage(0.5, 2.5, tasks=2)
    events = {"second report": port.tasks[1], "report": port.tasks[0]}
    events |= {f"{t} s": environment.timeout(t) for t in (2.0, 1.0)}
    log = run_log(environment, events)
    assert log == [("report", 0.5), ("1.0 s", 1.0), ("2.0 s", 2.0), ("second report", 2.5)]
    assert port.tasks[1].value == (2, 2.5)


def test_time_does_not_run_backwards_when_a_timeout_is_noticed_late() -> None:
    environment, port, _ = stage(1.0625, tasks=1, tardy=0.1)
    log = run_log(environment, {"report": port.tasks[0], "timeout": environment.timeout(1.0)})
    assert log == [("timeout", 1.0), ("report", 1.0625)]


def test_events_triggered_now_need_no_waiting() -> None:
    environment, _, scene = stage(tasks=0)

    def chain() -> Iterator[simpy.Event]:
        for _ in range(3):
            yield environment.event().succeed()

    environment.run(until=environment.process(chain()))
    assert (environment.now, scene.waits) == (0.0, 0)


def test_a_stuck_policy_is_an_error() -> None:
    environment, _, _ = stage(tasks=0)
    with pytest.raises(StuckPolicy, match="nobody will trigger"):
        environment.run(until=environment.event())


def test_a_dead_worker_ends_the_run() -> None:
    environment, port, _ = stage(0.5, 0.7, tasks=1)
    environment.run(until=port.tasks[0])
    with pytest.raises(WorkerDied, match="'paper' died with exit code -9"):
        environment.run(until=environment.timeout(1.0))


def test_runs_need_an_event_and_delays_a_sign() -> None:
    environment, _, _ = stage(tasks=0)
    for until in (None, 3.0):
        with pytest.raises(TypeError, match="until an event"):
            environment.run(until=until)
    for delay in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="non-negative"):
            environment.schedule(environment.event(), delay=delay)


def test_errors_survive_that_simpy_rebuilds_them() -> None:
    environment, port, _ = stage(tasks=1)

    def policy() -> Iterator[simpy.Event]:
        yield port.tasks[0]

    process = environment.process(policy())
    port.tasks[0].fail(WorkerError("draft", "verify", "Traceback: the reason"))
    with pytest.raises(WorkerError, match="the reason") as caught:
        environment.run(until=process)
    assert (caught.value.device, caught.value.operation) == ("draft", "verify")
    died = WorkerDied("draft", 3, "words")
    assert str(type(died)(*died.args)) == str(died)


def test_catching_up_skips_the_idle_time_between_runs() -> None:
    moments = [10.0]
    environment = LiveEnvironment(clock=lambda: moments[0], wait=lambda handles, timeout: [])
    moments[0] = 13.5
    assert environment.now == 0.0
    environment.catch_up()
    assert environment.now == 3.5
    environment.schedule(environment.event())  # something is under way: its time must not be jumped over
    moments[0] = 20.0
    environment.catch_up()
    assert environment.now == 3.5
