"""Emulated devices: when operations begin and end, by hand and live, and that missed deadlines are errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from live_support import Prompts, Reference, worker_specs
from tiny_profiles import profile

from calibrate.live.errors import DeadlineMissed
from calibrate.live.transport.emulated import EmulatedWork, Emulation
from calibrate.live.transport.world import LiveWorld
from calibrate.live.wire import Early, Report, StepTime, Work
from calibrate.live_runs import LiveRun, run_in_time, run_live
from hardware_profiles.optime import Host
from policies.mirror import EarlyVerify
from policies.operation import Draft, Operation, Prespeculate
from policies.registry import configure
from policies.values import Request, Speculation, View
from simulator.run import Scenario
from simulator.tokens import coin


class PaperMachine:
    """Prices, and a clock that moves while someone waits or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.idle: list[float] = []
        self.replies: Sequence[Any] = ()
        self.prices = self

    def clock(self) -> float:
        return self.now

    def wait(self, until_s: float) -> None:
        self.now = max(self.now, until_s)

    def answered(self, replies: Sequence[Any]) -> None:
        self.replies = replies

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        self.idle.append(idle_s)
        if isinstance(operation, EarlyVerify):
            return [("early:0.4", 4.0), ("exit", 0.0), ("late:0.6", 6.0)] if self.replies else []
        return [("host", 0.5), ("glue", 1.0), ("tree", 2.0), ("tree", 2.0)]

    def latency(self, operation: Operation) -> tuple[float, float]:
        return 0.25, 0.125

    def early_latency(self, operation: Operation) -> float:
        return 0.0625


class Bench:
    """An emulated worker without a process: `do` works off an operation whose steps take real seconds."""

    def __init__(self, kind: type[EmulatedWork] = EmulatedWork) -> None:
        self.machine = PaperMachine()
        self.executor: Any = SimpleNamespace(steps=[])
        self.asked_to_stop = float("inf")
        self.sent: list[Early] = []
        machine: Any = self.machine
        self.work = kind(
            "draft", machine, self.executor, lambda by: self.asked_to_stop <= by, self.sent.append
        )

    def do(self, kind: Any, at_s: float, real: Sequence[float], early_after: int | None = None) -> Report:
        # Only what the worker asks of an operation.
        view, early = View((0,), *((1,),) * 4), early_after is not None
        if kind is Draft:
            operation: Any = Draft(view, 1, (1,))
        elif kind is Prespeculate:
            operation = Prespeculate(view, Speculation.empty(1), 1, (1,), early=early)
        else:
            operation = kind(view, 1, ((),), early=early)
        self.executor.steps = []
        self.work.begin(Work(len(self.machine.idle), kind.kind, b"", at_s), operation)
        for number, seconds in enumerate(real):
            if operation.stoppable and self.executor.stopped():
                break
            self.machine.now += seconds
            self.executor.steps.append(StepTime("tree", 0.0, 0.0, 1))
            if number == early_after:
                self.executor.say_early(["said"])
        return self.work.finish(["reply"], b"body")


def check_schedule(kind: type[EmulatedWork]) -> None:
    """Lead 0.25, then 0.5 + 1 + 2 + 2, then 0.125 until it is noticed; real work takes a tenth of that."""
    bench = Bench(kind)
    first = bench.do(Draft, 10.0, (0.1, 0.2, 0.2))
    assert (first.start, first.end, first.noticed_s) == (10.25, 15.75, 15.875)
    assert [(s.start_s, s.end_s) for s in first.steps] == [(10.75, 11.75), (11.75, 13.75), (13.75, 15.75)]
    # Submitted while the first one lasted: begins where that ended, and is behind it in real time, too.
    second = bench.do(Draft, 15.5, (0.1, 0.2, 0.2))
    assert (second.start, second.end, second.real_s) == (15.75, 21.25, pytest.approx((15.75, 16.25)))
    # On an idle device, whose idling from 21.25 to 30.25 has its price; the message takes until 30.125.
    bench.machine.now = 30.125
    third = bench.do(Draft, 30.0, (0.1, 0.2, 0.2))
    assert (third.start, third.end) == (30.25, 35.75)
    assert bench.machine.idle == [10.25, 0.0, 9.0]


def test_operations_last_as_priced() -> None:
    check_schedule(EmulatedWork)


class FromTheEndOfTheWork(EmulatedWork):
    """Planted bug: sleeps for the whole price once the work is done, on top of it."""

    def finish(self, replies: Sequence[Any], body: bytes) -> Report:
        self.begin_s = self.emulation.clock()
        return super().finish(replies, body)


class FromTheMessage(EmulatedWork):
    """Planted bug: the time that a message took counts."""

    def begin(self, work: Work, operation: Operation) -> None:
        late = Work(work.number, work.kind, work.body, max(work.at_s or 0.0, self.emulation.clock() + 0.01))
        super().begin(late, operation)


@pytest.mark.parametrize("bug", [FromTheEndOfTheWork, FromTheMessage])
def test_a_planted_bug_is_caught(bug: type[EmulatedWork]) -> None:
    with pytest.raises(AssertionError):
        check_schedule(bug)


def test_a_stop_takes_effect_at_the_first_boundary_after_it() -> None:
    # Begins at 0.25; host until 0.75, glue until 1.75, said early then; trees until 3.75 and 5.75.
    for stop_s, end_s, steps in ((1.8, 3.75, 2), (3.75, 3.75, 2), (3.76, 5.75, 3), (99.0, 5.75, 3)):
        bench = Bench()
        bench.asked_to_stop = stop_s
        report = bench.do(Prespeculate, 0.0, (0.1, 0.1, 0.1), early_after=0)
        assert (report.end, len(report.steps)) == (end_s, steps), stop_s
        assert report.real_s is not None and report.real_s[1] <= end_s  # it waited, but worked in time
        assert [(early.number, early.noticed_s) for early in bench.sent] == [(0, 1.8125)]


def test_an_early_result_that_depends_on_the_replies_comes_with_them() -> None:
    bench = Bench()
    report = bench.do(EarlyVerify, 0.0, (0.1, 0.1, 0.1), early_after=0)
    assert (report.end, bench.sent[0].noticed_s) == (10.25, 0.25 + 4.0 + 0.0625)


SCALE = 0.15
LIMIT = 8
HOST = Host(submit_s=0.125, report_s=0.0625)


@pytest.fixture(scope="module")
def emulated(pair: tuple[str, str]) -> Iterator[LiveWorld]:
    """A target of 1 s, a draft of 0.25 s, tree steps that nobody can be in time for."""
    costs = profile(target_s=1.0, draft_s=0.25, tree_s=1e-6, host=HOST)
    tokens = coin(0.5, exponent=1.0, requests=1, length=LIMIT, prompt_length=3, seed=0)
    prices = Scenario(tokens, profile=costs).live_prices
    with LiveWorld(*worker_specs(pair), emulation=Emulation(prices, SCALE)) as world:
        yield world


def requests_of(prompts: Prompts) -> list[Request]:
    return [Request(i, len(prompt), LIMIT, prompt) for i, prompt in enumerate(prompts)]


def lasted(run: LiveRun) -> list[tuple[str, float, float]]:
    """(operation, wait since the operation before ended, duration) of every span, prefills left out."""
    spans = [span for span in run.spans if span.name != "prefill"]
    return [
        (span.name, round(span.start_s - before.end_s, 6), round(span.end_s - span.start_s, 6))
        for before, span in pairwise(spans)
    ]


def test_live_operations_last_as_priced_in_order(emulated: LiveWorld, reference: Reference) -> None:
    prompts, texts = reference.some(2, LIMIT)
    began = time.perf_counter()
    ar = run_in_time(emulated, configure("ar"), requests_of(prompts)[:1])
    real_s = time.perf_counter() - began
    between = HOST.submit_s + HOST.report_s
    assert lasted(ar) == [("verify", between, 1.0)] * (LIMIT - 1)
    # 8 verifications with a submission and a report each: real time has passed, and the run's is the clock's.
    assert real_s >= SCALE * LIMIT * (1.0 + between)
    assert ar.seconds == pytest.approx(LIMIT * (1.0 + between), abs=3.0)
    sd = run_in_time(emulated, configure("sd", lookahead=2), requests_of(prompts), batch=2)
    assert set(lasted(sd)) == {("draft", between, 0.5), ("verify", between, 1.0)}
    assert [list(sd.texts[i]) for i in range(2)] == texts
    assert list(ar.texts[0]) == texts[0]


def test_both_devices_work_at_once(emulated: LiveWorld, reference: Reference) -> None:
    run = run_in_time(emulated, configure("pearl", lookahead=3), requests_of(reference.some(1, LIMIT)[0]))
    assert [list(run.texts[0])] == reference.some(1, LIMIT)[1]
    starts = {name: [s.start_s for s in run.spans if s.name == name] for name in ("verify", "continue")}
    assert np.allclose(starts["verify"], starts["continue"], atol=1e-6)
    assert np.allclose(np.diff(starts["verify"]), 1.0 + HOST.submit_s + HOST.report_s, atol=1e-6)


def test_work_that_is_not_done_in_time_is_an_error(emulated: LiveWorld, prompts: Prompts) -> None:
    """After a glue step, forty tree steps of 1 microsecond."""
    settings = configure("saguaro", lookahead=40, fanout=(3,), backup="plain")
    with pytest.raises(
        DeadlineMissed, match=r"took .* of real time and had .*: the smallest usable time scale"
    ):
        run_live(emulated, settings, requests_of(prompts[-4:]), batch=4)
    assert emulated.missed >= 1
    # It is usable after that.
    assert run_in_time(emulated, configure("ar"), requests_of(prompts)[:1]).tokens == LIMIT


def test_a_time_scale_is_not_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        Emulation(PaperMachine(), -1.0)
