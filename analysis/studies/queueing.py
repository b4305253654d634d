"""The serving loop against queueing theory: one row at a time, requests of one step, whose time is drawn.

A server whose steps take S with a mean of 1 s, and requests that come at `rate` a second, keep them for

    M/G/1, by Pollaczek and Khinchine    1 + rate E[S^2] / (2 (1 - rate))

of which M/D/1 (E[S^2] = 1) and M/M/1 (E[S^2] = 2) are cases; N users who wait for their replies, N s each.
Intervals are 99 % by Student's t over batches of consecutive requests, the first tenth left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.study import POSITIVE, Plan, Study, option
from policies.sampling import FloatArray
from serving.loop import serve
from serving.metrics import Served
from serving.scheduler import EngineOptions, Step
from serving.traffic import arrival_times, generated

BATCHES = 24
STUDENT = 2.807
"""99 % two-sided with 23 degrees of freedom."""
Draw = Callable[[np.random.Generator, int], FloatArray]


def constant(random: np.random.Generator, count: int) -> FloatArray:
    """[count] steps of a second."""
    return np.ones(count)


def exponential(random: np.random.Generator, count: int) -> FloatArray:
    """[count] steps of a second in the mean."""
    return random.exponential(1.0, count)


def two_kinds(random: np.random.Generator, count: int) -> FloatArray:
    """[count] steps of 0.5 s, every tenth of 5.5 s: mean 1, E[S^2] = 0.9 * 0.25 + 0.1 * 30.25 = 3.25."""
    return np.where(random.random(count) < 0.9, 0.5, 5.5)


class System(NamedTuple):
    """A queue: times of its server, their mean square, and requests a second, or users."""

    name: str
    draw: Draw
    square: float
    rate: float = 0.0
    users: int = 0

    @property
    def expected_s(self) -> float:
        """Mean time of a request in it."""
        return float(self.users) or 1.0 + self.rate * self.square / (2.0 * (1.0 - self.rate))


SYSTEMS = (
    System("M/D/1", constant, 1.0, 0.7),
    System("M/M/1", exponential, 2.0, 0.6),
    System("M/G/1", two_kinds, 3.25, 0.5),
    System("closed, 5 users", exponential, 2.0, users=5),
)


@dataclass
class Server:
    """An engine whose steps take what is drawn."""

    seconds: Iterator[float]
    now: float = 0.0
    lookahead: int = field(default=0, init=False)

    def wait_until(self, at_s: float) -> None:
        """See `serving.loop.Engine`."""
        self.now = at_s

    def run(self, step: Step) -> tuple[list[int], int]:
        """See `serving.loop.Engine`."""
        self.now += next(self.seconds)
        return [0] * len(step.decodes), 0


def served(system: System, count: int, seed: int) -> Served:
    """`count` requests through a system."""
    times = np.zeros(count) if system.users else arrival_times(count, system.rate, seed=seed)
    engine = Server(iter(system.draw(np.random.default_rng([seed, 5]), count).tolist()))
    options = EngineOptions(max_num_seqs=1)
    return serve(generated(count, 1, 1, times), options, engine, max_concurrency=system.users or None)


def row_of(system: System, count: int, seed: int) -> Row:
    """Time in the system as served and as expected, and how busy the server was."""
    found = served(system, count, seed)
    kept = found.e2el_s[count // 10 :]
    means = kept[len(kept) % BATCHES :].reshape(BATCHES, -1).mean(axis=1)
    half = STUDENT * float(means.std(ddof=1)) / BATCHES**0.5
    mean = float(means.mean())
    return {
        "system": system.name,
        "rate": system.rate or None,
        "expected_s": system.expected_s,
        "served_s": mean,
        "half_s": half,
        "inside": abs(mean - system.expected_s) <= half,
        "busy": found.busy_s / found.end_s,
    }


@dataclass(frozen=True)
class QueueingPlan(Plan):
    """How many requests."""

    hw: tuple[str, ...] = ()
    count: int | None = option(48_000, "Requests of every system.", type=POSITIVE)


def answer(bench: Bench) -> Iterator[Row]:
    """A row per system."""
    plan = bench.plan_as(QueueingPlan)
    for done, system in enumerate(SYSTEMS):
        yield row_of(system, max(10 * BATCHES, plan.count or 0), plan.seed)
        bench.progress("queues", done + 1, len(SYSTEMS))


def show(results: Results) -> Iterator[Any]:
    """A line per system."""
    yield table(
        "Mean seconds of a request in the system, 99 % intervals",
        (
            Column("system", "system"),
            Column("load", lambda row: "" if row["rate"] is None else f"{row['rate']:g}"),
            Column("theory", "expected_s", "{:.3f}"),
            Column("served", lambda row: f"{row['served_s']:.3f} ± {row['half_s']:.3f}"),
            Column("inside", lambda row: "yes" if row["inside"] else "no"),
            Column("busy", "busy", "{:.3f}"),
        ),
        results.rows,
    )


STUDY = Study(
    name="queueing",
    question="Does the serving loop queue as theory says?",
    plan=QueueingPlan,
    answer=lambda bench: list(answer(bench)),
    show=show,
    failed=lambda results: not all(row["inside"] for row in results.rows),
    examples=("", "--count 240000 --seed 1"),
)
