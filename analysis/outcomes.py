"""What a setting did in one world: tokens, seconds and rounds, which the columns of studies are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.study import Entry
from calibrate.live_runs import LiveRun, Measured, measure
from hardware_profiles.reply_trace import Decisions
from hardware_profiles.trace import Trace
from policies.config import LawInputs
from policies.registry import Settings
from policies.summary import Summary
from policies.values import IntArray
from simulator.run import Scenario, Simulated

MEASURED = "measured"
"""Name of the live world."""


@dataclass(frozen=True)
class Performance(Measured):
    """A setting on some prompts in one world; `repeats` are live ones, `runs` what it is made of."""

    runs: tuple[LiveRun | Simulated, ...] = ()

    @property
    def summaries(self) -> list[Summary]:
        """Of its runs."""
        return [run.summary for run in self.runs]

    @classmethod
    def pooled(cls, parts: Sequence[Performance]) -> Performance:
        """One set of prompts after the other: sums."""
        repeats = zip(*(part.repeats for part in parts), strict=True)
        return cls(
            sum(part.tokens for part in parts),
            sum(part.seconds for part in parts),
            tuple((sum(t for t, _ in each), sum(s for _, s in each)) for each in repeats),
            sum(part.overlap_s for part in parts),
            tuple(run for part in parts for run in part.runs),
        )

    @classmethod
    def live(cls, runs: Sequence[LiveRun]) -> Performance:
        """Of the live runs of one cell."""
        return cls(**vars(measure(runs)), runs=tuple(runs))

    @classmethod
    def simulated(cls, runs: Sequence[Simulated], *, retold: bool = False) -> Performance:
        """Mean of several simulations; `retold`: each is of a live repetition."""
        names = ("tokens", "seconds", "overlap_s")
        tokens, seconds, overlap = (float(np.mean([getattr(r.summary, n) for r in runs])) for n in names)
        repeats = tuple((float(r.summary.tokens), r.summary.seconds) for r in runs) if retold else ()
        return cls(tokens, seconds, repeats, overlap, tuple(runs))

    def speedups(self, unit: Performance) -> list[float]:
        """By repetition, over plain decoding."""
        pairs = zip(self.repeats, unit.repeats, strict=True)
        return [(t / s) / (unit_t / unit_s) for (t, s), (unit_t, unit_s) in pairs]


@dataclass(frozen=True)
class WorldView:
    """A setting in one world: what the columns of a study are read from.

    Attributes:
        entry: The setting.
        world: `measured`, or a simulated one.
        own: What the setting did.
        unit: What plain decoding did there.
        trace: Recording of these prompts.
        inputs: Of the law.
        decisions: What was decided, where that is replayed or was live.
        scenario: Tokens and costs of the simulated world.
    """

    entry: Entry
    world: str
    own: Performance
    unit: Performance
    trace: Trace
    inputs: LawInputs
    decisions: tuple[Decisions, ...]
    scenario: Scenario

    @property
    def settings(self) -> Settings:
        """The policy and its knobs."""
        return self.entry.settings

    @property
    def live(self) -> bool:
        """Whether it was measured."""
        return self.world == MEASURED

    def total(self, name: str) -> float:
        """Sum of a figure over all runs."""
        return float(sum(getattr(summary, name) for summary in self.own.summaries))

    def rounds(self) -> Mapping[str, IntArray]:
        """Columns of all rounds (`RoundLog.table`)."""
        tables = [_rounds(run) for run in self.own.runs]
        return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _rounds(run: LiveRun | Simulated) -> Mapping[str, IntArray]:
    if isinstance(run, Simulated):
        return run.rows.log.table()
    rounds = [each for own in run.rounds.values() for each in own]
    names = ("accepted", "length", "emitted", "hit", "source", "request")
    return {name: np.array([getattr(each, name) for each in rounds], dtype=np.int64) for name in names}


def pooled_figure(summaries: Sequence[Summary], figure: str) -> float | None:
    """A figure over several runs as a ratio of sums, weighted by what its denominator counts.

    That is positions verified for the acceptance rate, rounds for all others.
    """
    known, weights = [], []
    for each in summaries:
        if (value := getattr(each, figure)) is not None:
            known.append(value)
            verified = figure == "acceptance_rate" and value
            weights.append(each.rounds * (each.accepted_per_round / value if verified else 1.0))
    return float(np.average(known, weights=weights)) if known else None
