"""Simulated devices: order, stopping, and work that slows down while the neighbour is busy."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy.events import Event, Process

from hardware_profiles.optime import OperationHost
from policies.operation import Draft, Operation, Verify
from policies.values import Speculation, View
from simulator.costs import Priced
from simulator.replies import Form, TimedWork
from simulator.world import Clock, Machine, SimulatedDevice

ROLES = ("target", "draft")
ONE = (1,)
VIEW = View((0,), ONE, ONE, ONE, ONE)
VERIFY = Verify(VIEW, Speculation.empty(1))


class Seconds:
    """Work of given step lengths per device; the answer is the number of steps completed, or None."""

    def __init__(self, *, host: tuple[float, float] = (0.0, 0.0), **steps: list[float]) -> None:
        self.by_device = steps
        self.host = host

    def form(self, operation: Operation) -> Form:
        return Form(OperationHost(), operation.kind, 1, None, self.host[0])

    def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
        return TimedWork(Priced.of([("step", seconds) for seconds in self.by_device[device]]))

    def after_s(self, operation: Operation, form: Form) -> float:
        return self.host[1]

    mark_s = after_s

    def answer(self, operation: Operation, completed: int | None) -> Any:
        return completed


def draft(lookahead: int) -> Draft:
    return Draft(VIEW, lookahead, ONE)


def test_first_in_first_out() -> None:
    env = Clock()
    device = SimulatedDevice(env, "a", Seconds(a=[1.0]), Machine())
    order: list[tuple[int, float]] = []
    for number in range(3):
        task = device.submit(VERIFY)
        task.callbacks.append(lambda _, n=number: order.append((n, env.now)))
    env.run()
    assert order == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_host_time_delays_an_idle_device_but_hides_behind_a_busy_one() -> None:
    # Submit .1, work 1, report .01.  The second operation was submitted long before the device is free.
    env = Clock()
    device = SimulatedDevice(env, "a", Seconds(a=[1.0], host=(0.1, 0.01)), Machine())
    ends: list[float] = []
    for _ in range(2):
        device.submit(VERIFY).callbacks.append(lambda _: ends.append(env.now))
    env.run()
    assert ends == pytest.approx([0.1 + 1.0 + 0.01, 0.1 + 2.0 + 0.01])


def test_work_slows_down_while_the_neighbour_is_busy() -> None:
    # a, the target: 10 s of work from 0; half as fast while b, the draft, is busy.  b: 4 s from 2 to 6,
    # undisturbed.
    # a does 2 s by t = 2, 2 s more by t = 6, and the remaining 6 s by t = 12.
    env = Clock()
    machine = Machine({("target", "verify", "draft", None): 2.0})
    work = Seconds(target=[10.0], draft=[4.0])
    a, b = (SimulatedDevice(env, name, work, machine) for name in ("target", "draft"))
    ends: dict[str, float] = {}

    def user() -> Any:
        first = a.submit(VERIFY)
        first.callbacks.append(lambda _: ends.update(target=env.now))
        yield env.timeout(2.0)
        yield b.submit(VERIFY)
        ends["draft"] = env.now
        yield first

    env.run(env.process(user()))
    assert ends == {"target": 12.0, "draft": 6.0}
    assert machine.busy_s == {"target": 12.0, "draft": 4.0}
    assert machine.overlap_s == 4.0


def test_the_slowdown_depends_on_what_the_neighbour_does_and_switches_midway() -> None:
    # a: 10 s of work from 0.  b drafts from 0 (4 s of work), then verifies (2 s).
    # Beside a draft a runs at half speed, beside anything else at 1/1.25 = .8; b is not disturbed.
    # a does 4/2 = 2 s by t = 4 and 2 x .8 = 1.6 s more by t = 6; the other 6.4 s take until 12.4.
    env = Clock()
    machine = Machine(
        {("target", "verify", "draft", "draft"): 2.0, ("target", "verify", "draft", None): 1.25}
    )
    pending = [4.0, 2.0]

    class Each(Seconds):
        def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
            return TimedWork(Priced.of([("step", pending.pop(0) if device == "draft" else 10.0)]))

    a, b = (SimulatedDevice(env, name, Each(), machine) for name in ("target", "draft"))
    ends: list[tuple[str, float]] = []
    for name, task in (
        ("target", a.submit(VERIFY)),
        ("draft", b.submit(draft(1))),
        ("draft", b.submit(VERIFY)),
    ):
        task.callbacks.append(lambda _, n=name: ends.append((n, env.now)))
    env.run()
    assert ends == [("draft", 4.0), ("draft", 6.0), ("target", pytest.approx(12.4))]


def test_both_slow_each_other_and_each_speeds_up_when_the_other_is_done() -> None:
    # a: 6 s, twice slower beside b; b: 2 s, 1.5 times slower beside a.  b ends at 3, when a has done 1.5 s;
    # the other 4.5 s run at full speed: 7.5.
    env = Clock()
    machine = Machine(
        {("target", "verify", "draft", None): 2.0, ("draft", "verify", "target", "verify"): 1.5}
    )
    a, b = (
        SimulatedDevice(env, name, Seconds(target=[6.0], draft=[2.0]), machine)
        for name in ("target", "draft")
    )
    ends: dict[str, float] = {}
    for device in (a, b):
        device.submit(VERIFY).callbacks.append(lambda _, n=device.name: ends.update({n: env.now}))
    env.run()
    assert ends == {"draft": pytest.approx(3.0), "target": pytest.approx(7.5)}


def test_two_draft_devices_are_one_role() -> None:
    # Both drafts slow the target: 2 x 2 = 4 times while both work.  Overlap is target beside any draft.
    # target: 4 s; drafts 1 s and 2 s: .25 s done by t = 1, .5 s more by t = 2, 3.25 s alone: 5.25.
    env = Clock()
    machine = Machine({("target", "verify", "draft", None): 2.0})
    work = Seconds(**{"target": [4.0], "draft": [1.0], "draft-1": [2.0]})
    ends: dict[str, float] = {}
    for name in ("target", "draft", "draft-1"):
        task = SimulatedDevice(env, name, work, machine).submit(VERIFY)
        task.callbacks.append(lambda _, n=name: ends.update({n: env.now}))
    env.run()
    assert ends == {"draft": 1.0, "draft-1": 2.0, "target": 5.25}
    assert machine.overlap_s == 2.0


def test_work_without_steps_costs_host_time_alone() -> None:
    env = Clock()
    device = SimulatedDevice(env, "a", Seconds(a=[], host=(0.1, 0.01)), Machine())
    task = device.submit(VERIFY)
    env.run(task)
    assert env.now == pytest.approx(0.11)
    assert device.machine.busy_s == {"a": 0.0}


def test_a_draft_stops_at_its_next_step_boundary() -> None:
    # Steps of 1 s; asked at 1.5 it ends at 2 with two steps done.
    env = Clock()
    device = SimulatedDevice(env, "a", Seconds(a=[1.0] * 5), Machine())
    answers: list[tuple[Any, float]] = []

    def user() -> Any:
        task = device.submit(draft(5))
        yield env.timeout(1.5)
        task.stop()
        answers.append(((yield task), env.now))
        task.stop()  # once done it is a no-op
        answers.append(((yield device.submit(draft(5))), env.now))

    env.run(env.process(user()))
    assert answers == [(2, 2.0), (None, 7.0)]


def test_a_waiting_draft_stops_with_nothing_and_a_verification_does_not_stop() -> None:
    env = Clock()
    device = SimulatedDevice(env, "a", Seconds(a=[1.0, 1.0]), Machine())
    answers: list[tuple[Any, float]] = []

    def user() -> Any:
        verify, waiting = device.submit(VERIFY), device.submit(draft(2))
        verify.stop()
        waiting.stop()
        answers.append(((yield waiting), env.now))
        answers.append(((yield verify), env.now))

    env.run(env.process(user()))
    assert answers == [(0, 0.0), (None, 2.0)]


@given(
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=6),
    st.floats(1.0, 3.0),
    st.floats(1.0, 3.0),
)
def test_no_work_is_lost_or_invented(
    a_work: list[float], b_work: list[float], slow_a: float, slow_b: float
) -> None:
    """Busy time = work + what overlap cost; with no slow-down it is the work itself."""
    env = Clock()
    machine = Machine({("a", "verify", "b", None): slow_a, ("b", "verify", "a", None): slow_b})
    pending = {"a": list(a_work), "b": list(b_work)}

    class Each(Seconds):
        def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
            return TimedWork(Priced.of([("step", pending[device].pop(0))]))

    a, b = (SimulatedDevice(env, name, Each(), machine) for name in "ab")
    for _ in a_work:
        a.submit(VERIFY)
    for _ in b_work:
        b.submit(VERIFY)
    env.run()
    overlap = machine.overlap_s
    assert machine.busy_s["a"] == pytest.approx(sum(a_work) + overlap * (1 - 1 / slow_a))
    assert machine.busy_s["b"] == pytest.approx(sum(b_work) + overlap * (1 - 1 / slow_b))


@given(
    st.lists(
        st.tuples(st.sampled_from(("target", "draft", "")), st.floats(0.0, 2.0), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.floats(1.0, 3.0),
)
def test_a_policy_runs_as_in_simpys_own_loop(moves: list[tuple[str, float, bool]], slower: float) -> None:
    """`finish` is `run(until=process)`: the same values at the same times, whatever is waited for when."""

    def told(whole: Callable[[Clock, Process], object]) -> list[tuple[float, Any]]:
        env, found = Clock(), list[tuple[float, Any]]()
        machine = Machine({("target", "verify", "draft", None): slower})
        lengths = {name: [s for which, s, _ in moves if which == name] for name in ROLES}

        class Each(Seconds):
            def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
                return TimedWork(Priced.of([("step", lengths[device].pop(0))]))

        on = {name: SimulatedDevice(env, name, Each(host=(0.25, 0.125)), machine) for name in ROLES}

        def policy() -> Generator[Event, Any, None]:
            pending = []
            for which, seconds, waits in moves:
                pending.append(env.timeout(seconds) if not which else on[which].submit(VERIFY))
                if waits:
                    found.append((env.now, (yield pending.pop(0))))
            for event in pending:
                found.append((env.now, (yield event)))
            found.append((env.now, machine.busy_s))

        whole(env, env.process(policy()))
        return found

    assert told(Clock.finish) == told(lambda env, process: env.run(until=process))


def test_what_a_policy_fails_with_is_raised_as_it_is() -> None:
    env = Clock()

    def policy(waits: bool) -> Generator[Event, Any, None]:
        yield env.timeout(1.0)
        if waits:
            yield env.event()
        raise LookupError(1, 2)

    with pytest.raises(LookupError) as raised:
        env.finish(env.process(policy(waits=False)))
    assert raised.value.args == (1, 2)
    with pytest.raises(RuntimeError, match="nothing will trigger"):
        env.finish(env.process(policy(waits=True)))
