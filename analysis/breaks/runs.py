"""Running policies in the worlds of the map, and what is read off their rounds, with its error.

The error of a ratio of sums is that of independent stretches of text: every run is cut into `BLOCKS`
stretches with the same number of tokens.  Runs of one seed meet the same coins at the same positions, so
the stretches of two policies are paired, and the error of their ratio is that of the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.breaks.relaxations import matches
from analysis.breaks.worlds import Case, LawPoint, replies_of, scenario
from policies.operation import Continue, Draft, Verify
from policies.protocols import Steps, World
from policies.registry import configure
from policies.rows import RoundLog, Rows, admit
from policies.sampling import FloatArray, Sampling
from policies.values import IntArray, Speculation
from simulator.run import Scenario, simulate
from simulator.world import SimulatedWorld

BLOCKS = 32
AR_TOKENS = 24
"""Tokens of a plain decoding: every step of it costs the same."""
PIPELINE, TWO_SEQUENCES, RASD = "pipeline", "duo of two", "rasd"
"""The plain pipeline, DuoDecoding with two sequences, and RASD's trees, which are no runs of their policy."""


@dataclass(frozen=True, eq=False)
class Observation:
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

    def over(self, other: Observation) -> Observation:
        """The ratio of two estimates that met the same luck."""
        return Observation(self.value / other.value, self.influence - other.influence)

    def times(self, factor: float) -> Observation:
        """The estimate in another unit."""
        return Observation(self.value * factor, self.influence)


@dataclass(frozen=True, eq=False)
class Stretches:
    """Sums over stretches of text, [BLOCKS] each; rounds are counted per row.

    Attributes:
        sums: `tokens`, `seconds` (of a row), `rounds`, `rejected` (rounds that ended with a rejection),
            `fallbacks` (such rounds without a hit), `hits` and `looked_up`, and `primary_hits` and
            `primary_looked_up`, those of rounds that verified the primary's tokens.
    """

    sums: dict[str, FloatArray]

    def ratio(self, above: str, below: str) -> Observation:
        """A ratio of sums.

        Raises:
            ValueError: Nothing was counted.
        """
        a, b = self.sums[above], self.sums[below]
        if a.sum() <= 0.0 or b.sum() <= 0.0:
            raise ValueError(f"no {above} or no {below} in the whole run")
        return Observation(float(a.sum() / b.sum()), a / a.sum() - b / b.sum())


class NotSeen(LookupError):
    """What a law is about cannot be seen in a case."""


class PolicyRuns:
    """Runs policies in worlds, each run once.

    Args:
        tokens: Tokens emitted in all by a batch-1 run; of a recording all there are.
        seed: Keys coins and jitter.
    """

    def __init__(self, tokens: int, seed: int) -> None:
        self.tokens = tokens
        self.seed = seed
        self._runs: dict[tuple[object, ...], Stretches] = {}

    def run(self, policy: str, case: Case, *, tokens: int | None = None) -> Stretches:
        """A policy of the registry, with the knobs that the point states, in the case's world.

        Or the `PIPELINE`, `TWO_SEQUENCES`, or `RASD`, of which the matches of a drafted tree, a retrieved one
        and both are counted as `drafted`, `retrieved` and `fused`.

        Raises:
            NotSeen: The case is of recorded decisions, and the setting was not recorded.
        """
        case = _as_seen(policy, case)
        tokens = tokens or max(self.tokens // min(case.point.batch, 4), 200)
        key = (policy, case, tokens)
        if key not in self._runs:
            self._runs[key] = self._run(policy, case, tokens)
        return self._runs[key]

    def _run(self, policy: str, case: Case, tokens: int) -> Stretches:
        point, world = case.point, case.world
        if policy == RASD:
            lengths = matches(case, tokens, self.seed)
            block = _blocks(lengths["rounds"])
            return Stretches({name: _summed(block, column) for name, column in lengths.items()})
        setting = scenario(case, tokens, self.seed)
        sampling: dict[str, Any] = {"temperature": world.temperature or 0.0, "seed": self.seed}
        if policy == PIPELINE:
            log = _pipeline_log(setting, point.lookahead, Sampling(**sampling))
        else:
            settings = configure(policy.partition(" ")[0], **sampling, **_knobs(policy, case))
            if world.replies:
                decisions = replies_of(settings.policy)
                setting = replace(setting, decisions=decisions)
                if settings.label not in decisions.settings:
                    raise NotSeen(f"{settings.label} was not recorded")
            log = simulate(setting, settings).rows.log
        return stretches(log, point.batch, whole=world.output is not None)

    def speedup(self, policy: str, case: Case) -> Observation:
        """Tokens per second of a row over those of plain decoding in the same world and batch.

        The latter at its mean: jitter has mean one, and an output's end no part in it.
        """
        plain = replace(
            case.world, jitter=0.0, temperature=None, falling=0.0, clones=1, output=None, replies=False
        )
        steps = self.run("ar", replace(case, world=plain), tokens=AR_TOKENS + 2)
        step_s = 1.0 / steps.ratio("tokens", "seconds").value
        return self.run(policy, case).ratio("tokens", "seconds").times(step_s)


def _as_seen(policy: str, case: Case) -> Case:
    """The case without what a policy cannot see, so that cases share runs."""
    point = case.point
    if policy == "ar":
        point = LawPoint(0.5, 1, 1.0, batch=point.batch)
    elif policy not in ("saguaro", "mirror", TWO_SEQUENCES, RASD):
        point = replace(point, fanout=(), exponent=1.0, scale=1.0, backup="primary", budget=0, kappa=0)
    return replace(case, point=point)


def _knobs(policy: str, case: Case) -> dict[str, Any]:
    """Knobs of a policy by the point.

    What DOUBLE retrieves and how many sequences DuoDecoding drafts are the pair's own where replies are.
    """
    point, recorded = case.point, case.world.replies
    knobs: dict[str, Any] = {} if policy == "ar" else {"lookahead": point.lookahead}
    match policy:
        case "saguaro":
            knobs |= {"fanout": point.fanout, "backup": point.backup}
        case "mirror":
            knobs["kappa"] = point.kappa
        case "double" if not recorded:
            knobs["matched_length"] = point.matched
        case "duo":
            knobs["sequences"] = "dynamic" if recorded else "1"
        case "duo of two":
            knobs["sequences"] = "2"
    return knobs


def stretches(log: RoundLog, batch: int, *, whole: bool) -> Stretches:
    """Sums over stretches of text while the batch is full: no law knows of the drain at a run's end.

    With `whole` outputs count from the first draft to the cut at their end; else the very first and the last
    full round are left out.
    """
    table = log.table()
    first = 0 if whole else 1
    last = _full_rounds(table["request"], batch) - (0 if whole else 1)
    shape = (last - first, batch)
    seconds = np.diff(np.concatenate([[0.0], log.ends]))[first:last]
    per_row = {name: column[first * batch : last * batch].reshape(shape) for name, column in table.items()}
    emitted, accepted, hit = per_row["emitted"], per_row["accepted"], per_row["hit"]
    rejected, primary = (accepted < per_row["length"]) & (emitted > accepted), per_row["source"] == 1
    columns = {
        "tokens": emitted,
        "rounds": np.ones(shape),
        "rejected": rejected,
        "fallbacks": rejected & (hit == 0),
        "hits": hit == 1,
        "looked_up": hit >= 0,
        "primary_hits": (hit == 1) & primary,
        "primary_looked_up": (hit >= 0) & primary,
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


def _pipeline_log(setting: Scenario, lookahead: int, sampling: Sampling) -> RoundLog:
    tokens, requests = setting.serving()
    world = SimulatedWorld(tokens, setting.costs, slowdowns=setting.slowdowns)
    rows = Rows(requests, setting.batch)
    world.run(plain_pipeline(world, rows, lookahead=lookahead, sampling=sampling))
    return rows.log


def plain_pipeline(world: World, rows: Rows, *, lookahead: int, sampling: Sampling) -> Steps:
    """The plain draft/verify pipeline of `double.thm3`: verify a block while drafting the next one.

    No engine here offers it, since PEARL is the same with a better use of the bubble; it is what the printed
    S_PSD comes closest to.  Nobody looks at a block's first token beforehand: a full block emits its
    `lookahead` tokens without a bonus; after a rejection a new block is drafted while the target waits.  One
    row only: rows that reject would have to wait for each other's bubbles.
    """
    unseen = (1,) * rows.width
    block = Speculation.primary(rows.width, dict.fromkeys(range(rows.width), lookahead))
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
        drafted = verdict.accepted == block.lengths and not verdict.ended
