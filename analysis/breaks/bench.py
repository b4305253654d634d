"""Running policies in the worlds of the map, and what is read off their rounds, with its error.

The error of a ratio of sums is that of independent stretches of text: every run is cut into `BLOCKS`
stretches with the same number of tokens.  Runs of one seed meet the same coins at the same positions, so
the stretches of two policies are paired, and the error of their ratio is that of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from analysis.breaks.relaxations import matches, recorded_rows
from analysis.breaks.worlds import Case, Point, scenario
from policies.operation import Continue, Draft, Verify
from policies.protocols import Steps
from policies.protocols import World as AnyWorld
from policies.registry import Settings, configure, start
from policies.rows import RoundLog, Rows, admit
from policies.sampling import FloatArray, Sampling
from policies.values import IntArray, Source, Speculation
from simulator.synthetic import Synthetic
from simulator.world import SimulatedWorld

BLOCKS = 32
AR_TOKENS = 24
"""Tokens of a plain decoding: every step of it costs the same."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number seen in a simulation.

    Attributes:
        value: The number.
        influence: [BLOCKS] relative influence of each stretch of text on it.
    """

    value: float
    influence: FloatArray

    @property
    def error(self) -> float:
        """Standard error."""
        return abs(self.value) * float(np.sqrt((self.influence**2).sum()))

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two estimates that met the same luck."""
        return Estimate(self.value / other.value, self.influence - other.influence)

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        return Estimate(self.value * factor, self.influence)


@dataclass(frozen=True, eq=False)
class Stretches:
    """Sums over stretches of text, [BLOCKS] each; rounds are counted per row.

    Attributes:
        sums: `tokens`, `seconds` (of a row), `rounds`, `rejected` (rounds that ended with a rejection),
            `hits` and `looked_up`, the last two over rounds that verified the primary's tokens, and
            `fallbacks` (rejections without a hit).
    """

    sums: dict[str, FloatArray]

    def ratio(self, above: str, below: str) -> Estimate:
        """A ratio of sums.

        Raises:
            ValueError: Nothing was counted.
        """
        a, b = self.sums[above], self.sums[below]
        if a.sum() <= 0.0 or b.sum() <= 0.0:
            raise ValueError(f"no {above} or no {below} in the whole run")
        return Estimate(float(a.sum() / b.sum()), a / a.sum() - b / b.sum())


class Bench:
    """Runs policies in worlds, each run once.

    Args:
        tokens: Tokens emitted in all by a batch-1 run; of a recording all there are.
        seed: Keys coins and jitter.
    """

    def __init__(self, tokens: int, seed: int) -> None:
        self.tokens = tokens
        self.seed = seed
        self._runs: dict[tuple[object, ...], Stretches] = {}

    def ar(self, case: Case) -> Stretches:
        """Plain decoding."""
        point = Point(0.5, 1, 1.0, batch=case.point.batch)
        return self._policy(Case(point, case.world), "ar")

    def sd(self, case: Case) -> Stretches:
        """Vanilla speculative decoding."""
        return self._policy(_without_cache(case), "sd", lookahead=case.point.lookahead)

    def pearl(self, case: Case) -> Stretches:
        """PEARL."""
        return self._policy(_without_cache(case), "pearl", lookahead=case.point.lookahead)

    def saguaro(self, case: Case) -> Stretches:
        """Saguaro with the point's fan-outs and backup."""
        point = case.point
        return self._policy(
            case, "saguaro", lookahead=point.lookahead, fanout=point.fanout, backup=point.backup
        )

    def pipeline(self, case: Case) -> Stretches:
        """The plain pipeline."""
        case = _without_cache(case)
        sampling = Sampling(temperature=case.world.temperature or 0.0, seed=self.seed)
        run = partial(plain_pipeline, lookahead=case.point.lookahead, sampling=sampling)
        return self._run(("pipeline", case), case, self.tokens, run)

    def mirror(self, case: Case) -> Stretches | None:
        """Mirror-SD with the point's candidates at an exit in the middle."""
        return self._system(case, "mirror", lookahead=case.point.lookahead, kappa=case.point.kappa)

    def double(self, case: Case) -> Stretches | None:
        """DOUBLE whose two models retrieve alike."""
        case, coins = _without_cache(case), {"matched_length": case.point.matched}
        return self._system(case, "double", coins, lookahead=case.point.lookahead)

    def duo(self, case: Case, *, sequences: str = "1") -> Stretches | None:
        """DuoDecoding; in place of one sequence, the recording has as many as the threshold opens."""
        alone = sequences == "1"
        case = _without_cache(case) if alone else case
        how = "dynamic" if alone and case.world.replies else sequences
        return self._system(case, "duo", lookahead=case.point.lookahead, sequences=how)

    def rasd_trees(self, case: Case) -> Stretches:
        """Matches of a drafted tree, a retrieved one and both: `drafted`, `retrieved`, `fused`, per round."""
        lengths = matches(case, self.tokens, self.seed)
        block = _blocks(np.ones(len(lengths["fused"])))
        return Stretches({name: _summed(block, column) for name, column in lengths.items()})

    def _system(
        self, case: Case, name: str, coins: Mapping[str, object] | None = None, **knobs: object
    ) -> Stretches | None:
        """A policy that a recorded path cannot replay; None where its decisions were not recorded.

        `coins` are the knobs that it has in worlds of coins alone.
        """
        if not case.world.replies:
            return self._policy(case, name, **(knobs | dict(coins or {})))  # type: ignore[arg-type]
        settings: Settings = configure(name, seed=self.seed, **knobs)  # type: ignore[arg-type]
        if (settings, case) not in self._runs:
            rows = recorded_rows(case, settings, self.seed)
            if rows is None:
                return None
            self._runs[settings, case] = stretches(rows.log, 1, whole=False)
        return self._runs[settings, case]

    def speedup(self, run: Stretches, case: Case) -> Estimate:
        """Tokens per second of a row over those of plain decoding in the same world and batch."""
        return run.ratio("tokens", "seconds").times(self._step_s(case))

    def _step_s(self, case: Case) -> float:
        """Mean seconds of a plain decoding step; jitter has mean one, and an output's end no part in it."""
        world = replace(
            case.world, jitter=0.0, temperature=None, falling=0.0, clones=1, output=None, replies=False
        )
        point = Point(0.5, 1, 1.0, batch=case.point.batch)
        run = self._policy(Case(point, world), "ar", tokens=AR_TOKENS + 2)
        return 1.0 / run.ratio("tokens", "seconds").value

    def _policy(self, case: Case, name: str, *, tokens: int | None = None, **knobs: object) -> Stretches:
        temperature = case.world.temperature or 0.0
        settings: Settings = configure(name, temperature=temperature, seed=self.seed, **knobs)  # type: ignore[arg-type]
        length = tokens or max(self.tokens // min(case.point.batch, 4), 200)
        return self._run(
            (settings, case, length), case, length, lambda world, rows: start(world, rows, settings)
        )

    def _run(
        self,
        key: tuple[object, ...],
        case: Case,
        tokens: int,
        policy: Callable[[AnyWorld, Rows], Steps],
    ) -> Stretches:
        if key not in self._runs:
            setting = scenario(case, tokens, self.seed)
            model, requests = setting.serving()
            world = SimulatedWorld(model, setting.costs, slowdowns=setting.slowdowns, rows=Synthetic(model))
            rows = Rows(requests, case.point.batch)
            world.run(policy(world, rows))
            self._runs[key] = stretches(rows.log, case.point.batch, whole=case.world.output is not None)
        return self._runs[key]


def _without_cache(case: Case) -> Case:
    """The case without what a policy that has no cache cannot see, so that cases share runs."""
    point = replace(case.point, fanout=(), exponent=1.0, scale=1.0, backup="primary", budget=0, kappa=0)
    return replace(case, point=point)


def stretches(log: RoundLog, batch: int, *, whole: bool) -> Stretches:
    """Sums over stretches of text while the batch is full: no law knows of the drain at a run's end.

    Args:
        log: Of the run.
        batch: Rows of a full batch.
        whole: Whether outputs count from the first draft to the cut at their end; else the very first and
            the last full round are left out.
    """
    table = log.table()
    first = 0 if whole else 1
    last = _full_rounds(table["request"], batch) - (0 if whole else 1)
    shape = (last - first, batch)
    seconds = np.diff(np.concatenate([[0.0], log.ends]))[first:last]
    per_row = {name: column[first * batch : last * batch].reshape(shape) for name, column in table.items()}
    emitted, accepted, hit = per_row["emitted"], per_row["accepted"], per_row["hit"]
    columns = {
        "tokens": emitted,
        "rounds": np.ones(shape),
        "rejected": (accepted < per_row["length"]) & (emitted > accepted),
        "hits": hit == 1,
        "looked_up": hit >= 0,
        "fallbacks": (accepted < per_row["length"]) & (emitted > accepted) & (hit == 0),
        "primary_hits": (hit == 1) & (per_row["source"] == 1),
        "primary_looked_up": (hit >= 0) & (per_row["source"] == 1),
    }
    sums = {name: column.sum(axis=1).astype(float) for name, column in columns.items()}
    sums["seconds"] = seconds * batch
    block = _blocks(sums["tokens"])
    return Stretches({name: _summed(block, values) for name, values in sums.items()})


def _summed(block: IntArray, values: FloatArray) -> FloatArray:
    """[BLOCKS] sums of the values of each stretch."""
    return np.bincount(block, values, minlength=BLOCKS).astype(np.float64)


def _full_rounds(requests: IntArray, batch: int) -> int:
    """Rounds of the batch until the first row that ended and was not replaced."""
    _, from_behind = np.unique(requests[::-1], return_index=True)
    ends = np.sort(len(requests) - 1 - from_behind)
    return int(ends[len(ends) - batch]) // batch + 1


def _blocks(tokens: FloatArray) -> IntArray:
    """[rounds] the stretch that each round belongs to."""
    before = np.cumsum(tokens) - tokens
    blocks: IntArray = np.minimum(BLOCKS - 1, (before * BLOCKS / tokens.sum()).astype(np.int64))
    return blocks


def plain_pipeline(world: AnyWorld, rows: Rows, *, lookahead: int, sampling: Sampling) -> Steps:
    """The plain draft/verify pipeline of `double.thm3`: verify a block while drafting the next one.

    No engine here offers it, since PEARL is the same with a better use of the bubble; it is what the printed
    S_PSD comes closest to.  Nobody looks at a block's first token beforehand: a full block emits its
    `lookahead` tokens without a bonus; after a rejection a new block is drafted while the target waits.  One
    row only: rows that reject would have to wait for each other's bubbles.
    """
    unseen = np.ones(rows.width, dtype=np.int64)
    block = Speculation(
        np.full(rows.width, lookahead, dtype=np.int64),
        np.full(rows.width, int(Source.PRIMARY), dtype=np.int64),
    )
    drafted = False
    while rows.active:
        yield from admit(world, rows)
        view = rows.view()
        if not drafted:
            yield world.draft.submit(Draft(view, lookahead, unseen, sampling))
        verify = world.target.submit(Verify(view, block, sampling, leave_open=True))
        prepare = world.draft.submit(Continue(view, block, lookahead, sampling))
        verdict = yield verify
        yield prepare
        rows.commit(view, block, verdict, now=world.now)
        drafted = bool((verdict.accepted == block.lengths).all() and not verdict.ended.any())
