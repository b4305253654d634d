"""The serving loop of both worlds: requests come, steps are scheduled, an engine runs them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
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

    def run(self, step: Step) -> tuple[list[int], int | Mapping[int, int]]:
        """Run a step to its end.

        Returns:
            Of each verifying row, how many of its drafted tokens were accepted; and how many are to be
            verified next of every row that said something, or by its place.
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
    run = Run(traffic, options, max_concurrency=max_concurrency, progress=progress, watch=watch)
    while run.unfinished:
        step = run.begin(engine.now)
        if step is None:
            engine.wait_until(run.next_s)
        # A row that preempted itself leaves nothing to run: the next step admits it again.
        elif step.tokens:
            accepted, drafted = engine.run(step)
            run.end(step, accepted, drafted, engine.now)
    return run.served(engine.now)


class _Begun(NamedTuple):
    """What there was when a step began; `last_s` are the last tokens of its rows that have some."""

    at_s: float
    rows: int
    queued: int
    blocks: int
    last_s: list[float]


class Run:
    """A run, and the account of it; all times are seconds since its beginning.

    Args:
        traffic: As `serve` takes it, like the others.
        options: Of the engine.
        ahead: As `serving.scheduler.Scheduler` takes it.
    """

    def __init__(
        self,
        traffic: Traffic,
        options: EngineOptions,
        *,
        max_concurrency: int | None = None,
        progress: Callable[[int], None] | None = None,
        watch: Callable[[StepRecord], None] | None = None,
        ahead: int | None = None,
    ) -> None:
        self.traffic = traffic
        self.options = options
        self.watch = watch
        self.progress = progress
        self.users = max_concurrency or len(traffic.requests)
        self.scheduler = Scheduler(options, ahead)
        self.queue = _Queue.of(traffic)
        self.arrival_s, self.first_s, self.last_s = np.zeros((3, len(traffic.requests)))
        self.outputs = np.array([request.output for request in traffic.requests])
        self.under_way = self.done = 0
        self.steps = 0
        self.busy_s = self.running_s = self.waiting_s = 0.0
        self.freed_s = self.ended_s = 0.0
        self.unseen_s = 0.0  # of requests that came during a step, until it ended
        self._begun = _Begun(0.0, 0, 0, 0, [])
        self._gaps: dict[float, int] = {}

    @property
    def unfinished(self) -> bool:
        """Whether a request is under way, or still to come."""
        return self.under_way > 0 or bool(self.queue.open)

    @property
    def next_s(self) -> float:
        """When the next request comes, if nothing is under way."""
        return self.queue.open[0][0]

    def receive(self, now: float) -> None:
        """Submit what has come by now."""
        queue = self.queue.open
        while queue and self.under_way < self.users and queue[0][0] <= now:
            at, place = heapq.heappop(queue)
            # Where all users were busy, the request came when one was free again.
            came = max(at, self.freed_s)
            self.arrival_s[place] = came
            self.unseen_s += now - came
            self.scheduler.submit(Row(place, self.traffic.requests[place]))
            self.under_way += 1

    def begin(self, now: float) -> Step | None:
        """The next step; None where nothing is to be done before the next request comes."""
        scheduler = self.scheduler
        if now > self.ended_s and (scheduler.running or scheduler.waiting):  # a policy went on meanwhile
            self._pass(now - self.ended_s, len(scheduler.running), len(scheduler.waiting))
        self.receive(now)
        step = scheduler.schedule()
        if step is None:
            return None
        last_s = [row.last_s for row in step.decodes if row.first_s >= 0.0]
        last_s += [row.last_s for row, n, h in step.chunks if row.first_s >= 0.0 and n + h == row.known]
        rows, queued = len(scheduler.running), len(scheduler.waiting)
        self._begun = _Begun(now, rows, queued, scheduler.pool.used, last_s)
        return step

    def end(self, step: Step, accepted: list[int], drafted: int | Mapping[int, int], now: float) -> None:
        """Note what a step brought, which users see now; see `Scheduler.commit`."""
        begun, gaps = self._begun, self._gaps
        if self.watch is not None:
            counts = (len(step.decodes), step.chunk_tokens, begun.rows, begun.queued, begun.blocks)
            self.watch(StepRecord(begun.at_s, now, *counts))
        self.receive(now)  # what came meanwhile found all those here that end only now
        self.steps += 1
        self._pass(now - begun.at_s, begun.rows, begun.queued)
        self.ended_s = now
        finished = self.scheduler.commit(step, accepted, drafted, now)
        for last_s, count in Counter(begun.last_s).items():
            gap = now - last_s
            gaps[gap] = gaps.get(gap, 0) + count
        for row in finished:
            self._finish(row, now)
        if finished and self.progress is not None:
            self.progress(self.done)

    def _pass(self, seconds: float, rows: int, queued: int) -> None:
        self.busy_s += seconds
        self.running_s += rows * seconds
        self.waiting_s += queued * seconds

    def _finish(self, row: Row, now: float) -> None:
        self.first_s[row.place], self.last_s[row.place] = row.first_s, row.last_s
        self.outputs[row.place] = row.emitted
        if self.under_way == self.users:
            self.freed_s = now
        self.under_way -= 1
        self.done += 1
        for place in self.queue.after.pop(row.place, ()):
            heapq.heappush(self.queue.open, (now + self.traffic.requests[place].pause_s, place))

    def served(self, now: float) -> Served:
        """The finished run.

        Raises:
            AssertionError: Tokens, blocks or requests were lost or made.
        """
        self.audit()
        gaps = np.array(list(self._gaps.items())) if self._gaps else np.zeros((0, 2))
        return Served(
            arrival_s=self.arrival_s,
            first_s=self.first_s,
            last_s=self.last_s,
            prompt=np.array([request.prompt for request in self.traffic.requests]),
            output=self.outputs,
            gaps=gaps,
            end_s=now,
            steps=self.steps,
            busy_s=self.busy_s,
            running=self.running_s / self.busy_s if self.busy_s else 0.0,
            waiting=self.waiting_s / self.busy_s if self.busy_s else 0.0,
            most_blocks=self.scheduler.pool.most_used,
            counts=self.scheduler.counts,
        )

    def audit(self) -> None:
        """What holds of every finished run: all is served, given back, and computed exactly once.

        Every token but the last of a text is computed, found in the prefix cache, or was lost; and of L
        requests here in the mean, each for W seconds, n are served in T: L T = n W (Little), where those that
        come during a step are counted from its end on, and waited before.

        Raises:
            AssertionError: It does not hold.
        """
        counts, scheduler = self.scheduler.counts, self.scheduler
        if self.done != len(self.traffic.requests) or scheduler.running or scheduler.waiting:
            raise AssertionError(f"{self.done} of {len(self.traffic.requests)} requests were served")
        if scheduler.pool.used:
            raise AssertionError(f"{scheduler.pool.used} KV blocks were not given back")
        prompts = sum(request.prompt for request in self.traffic.requests)
        computed = counts.read + counts.hit + counts.verified - counts.rejected - counts.lost
        wanted = prompts + int(self.outputs.sum()) - self.done
        if computed != wanted or counts.emitted != self.outputs.sum():
            raise AssertionError(f"{computed} tokens are computed and kept where {wanted} are to be")
        spent = float((self.last_s - self.arrival_s).sum())
        here = self.running_s + self.waiting_s + self.unseen_s
        if abs(spent - here) > 1e-6 * (1.0 + here):
            raise AssertionError(f"requests spent {spent:g} s here, where {here:g} s were counted")
