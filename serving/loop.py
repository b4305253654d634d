"""The serving loop of both worlds: requests come, steps are scheduled, an engine runs them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from serving.metrics import Served
from serving.scheduler import EngineOptions, Row, Scheduler, Step
from serving.traffic import Traffic


class Engine(Protocol):
    """What runs steps: in simulated time, or on a machine."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        ...

    @property
    def lookahead(self) -> int:
        """Most tokens drafted for a row."""
        ...

    def wait_until(self, at_s: float) -> None:
        """Do nothing until then."""
        ...

    def run(self, step: Step) -> tuple[list[int], int]:
        """Run a step to its end.

        Returns:
            Of each verifying row, how many of its drafted tokens were accepted; and how many were drafted
            then for every row that said something.
        """
        ...


class StepRecord(NamedTuple):
    """A step as it was: when, verifying rows, tokens of prompts; rows, waiting requests and blocks in use."""

    began_s: float
    ended_s: float
    verifying: int
    chunk_tokens: int
    running: int
    waiting: int
    blocks: int


@dataclass(slots=True)
class _Queue:
    """Requests that have not come yet.

    Attributes:
        open: (seconds, place) of those whose time is known.
        after: By place, those that wait for a reply.
    """

    open: list[tuple[float, int]]
    after: dict[int, list[int]]

    @classmethod
    def of(cls, traffic: Traffic) -> _Queue:
        queue = cls([], {})
        for place, request in enumerate(traffic.requests):
            if request.after is None:
                queue.open.append((request.arrival_s, place))
            else:
                queue.after.setdefault(request.after, []).append(place)
        heapq.heapify(queue.open)
        return queue


def serve(
    traffic: Traffic,
    options: EngineOptions,
    engine: Engine,
    *,
    max_concurrency: int | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[StepRecord], None] | None = None,
) -> Served:
    """Serve all requests.

    Args:
        traffic: Requests and when they come.
        options: Of the engine.
        engine: Runs the steps.
        max_concurrency: Users: so many requests at most are under way, and the next one comes when one ends,
            not before its own time (a closed loop).
        progress: Told how many requests are finished.
        watch: Told of every step.

    Raises:
        TrafficError: A request can never be served.
    """
    options.check(traffic, engine.lookahead)
    run = _Run(traffic, options, engine, max_concurrency, watch)
    done = 0
    while True:
        run.receive()
        step = run.scheduler.schedule()
        if step is None:
            if not run.queue.open:
                break
            engine.wait_until(run.queue.open[0][0])
            continue
        # A row that preempted itself leaves nothing to run: the next step admits it again.
        finished = run.step(step) if step.tokens else 0
        if finished and progress is not None:
            done += finished
            progress(done)
    return run.served()


class _Run:
    """A run, and the account of it."""

    def __init__(
        self,
        traffic: Traffic,
        options: EngineOptions,
        engine: Engine,
        max_concurrency: int | None,
        watch: Callable[[StepRecord], None] | None,
    ) -> None:
        self.traffic = traffic
        self.watch = watch
        self.engine = engine
        self.users = max_concurrency or len(traffic.requests)
        self.scheduler = Scheduler(options)
        self.queue = _Queue.of(traffic)
        self.arrival_s, self.first_s, self.last_s = np.zeros((3, len(traffic.requests)))
        self.under_way = 0
        self.steps = 0
        self.busy_s = self.running_s = self.waiting_s = 0.0
        self.freed_s = 0.0
        self._gaps: dict[float, int] = {}

    def receive(self) -> None:
        """Submit what has come by now."""
        queue, now = self.queue.open, self.engine.now
        while queue and self.under_way < self.users and queue[0][0] <= now:
            at, place = heapq.heappop(queue)
            # Where all users were busy, the request came when one was free again.
            self.arrival_s[place] = max(at, self.freed_s)
            self.scheduler.submit(Row(place, self.traffic.requests[place]))
            self.under_way += 1

    def step(self, step: Step) -> int:
        """Run a step; returns how many requests it finished."""
        scheduler, began = self.scheduler, self.engine.now
        rows, queued = len(scheduler.running), len(scheduler.waiting)
        before = [row.last_s for row in step.decodes]
        before += [row.last_s for row, n, h in step.chunks if row.first_s >= 0.0 and n + h == row.known]
        blocks = scheduler.pool.used
        accepted, drafted = self.engine.run(step)
        now = self.engine.now
        if self.watch is not None:
            self.watch(StepRecord(began, now, len(step.decodes), step.chunk_tokens, rows, queued, blocks))
        self.receive()  # what came meanwhile found all those here that end only now
        self.steps += 1
        self.busy_s += now - began
        self.running_s += rows * (now - began)
        self.waiting_s += queued * (now - began)
        finished = scheduler.commit(step, accepted, drafted, now)
        gaps = self._gaps
        for last_s, count in Counter(before).items():
            gap = now - last_s
            gaps[gap] = gaps.get(gap, 0) + count
        for row in finished:
            self._finish(row, now)
        return len(finished)

    def _finish(self, row: Row, now: float) -> None:
        self.first_s[row.place], self.last_s[row.place] = row.first_s, row.last_s
        if self.under_way == self.users:
            self.freed_s = now
        self.under_way -= 1
        for place in self.queue.after.pop(row.place, ()):
            heapq.heappush(self.queue.open, (now + self.traffic.requests[place].pause_s, place))

    def served(self) -> Served:
        """The finished run."""
        requests = self.traffic.requests
        gaps = np.array(list(self._gaps.items())) if self._gaps else np.zeros((0, 2))
        return Served(
            arrival_s=self.arrival_s,
            first_s=self.first_s,
            last_s=self.last_s,
            prompt=np.array([request.prompt for request in requests]),
            output=np.array([request.output for request in requests]),
            gaps=gaps,
            end_s=self.engine.now,
            steps=self.steps,
            busy_s=self.busy_s,
            running=self.running_s / self.busy_s if self.busy_s else 0.0,
            waiting=self.waiting_s / self.busy_s if self.busy_s else 0.0,
            most_blocks=self.scheduler.pool.most_used,
            counts=self.scheduler.counts,
        )
