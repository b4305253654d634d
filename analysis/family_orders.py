"""Predicted and measured speedups of policies: how far apart they are, and which order they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from policies.registry import Settings

Speeds: TypeAlias = dict[str, tuple[float, float]]
"""Per category tokens and seconds."""
EVERY = "all"
"""Stands for all categories."""


@dataclass(frozen=True)
class Member:
    """One setting.

    Attributes:
        settings: The policy and its knobs.
        law_speedup_vs_ar: The law's; None where none is implemented for a whole setting.
        ignored_speedup_vs_ar: Simulated with content ignored; see `content_ignored`.
        simulated: By category, on the content of the live runs.
        simulated_ar: The same of plain decoding.
        measured: By category, one per repetition.
        measured_ar: The same of plain decoding.
        identical: Whether every greedy live text is plain decoding's; None at a temperature above 0.
    """

    settings: Settings
    law_speedup_vs_ar: float | None
    ignored_speedup_vs_ar: float
    simulated: Speeds
    simulated_ar: Speeds
    measured: tuple[Speeds, ...]
    measured_ar: tuple[Speeds, ...]
    identical: bool | None

    def simulated_speedup(self, category: str | None = None) -> float:
        """Over plain decoding; of one category, or of all."""
        return _speed(self.simulated, category) / _speed(self.simulated_ar, category)

    def measured_speedups(self, category: str | None = None) -> tuple[float, ...]:
        """Over plain decoding in the same repetition, one per repetition."""
        pairs = zip(self.measured, self.measured_ar, strict=True)
        return tuple(_speed(mine, category) / _speed(plain, category) for mine, plain in pairs)

    def measured_speedup(self, category: str | None = None) -> float:
        """Over plain decoding: ratio of sums over all repetitions."""
        return _pooled(self.measured, category) / _pooled(self.measured_ar, category)

    @property
    def error(self) -> float:
        """Simulated over measured speedup, less 1."""
        return self.simulated_speedup() / self.measured_speedup() - 1.0

    @property
    def law_error(self) -> float | None:
        """The law's over measured speedup, less 1."""
        if self.law_speedup_vs_ar is None:
            return None
        return self.law_speedup_vs_ar / self.measured_speedup() - 1.0

    @property
    def ignored_error(self) -> float:
        """Speedup with content ignored over the measured one, less 1."""
        return self.ignored_speedup_vs_ar / self.measured_speedup() - 1.0

    @property
    def spread(self) -> float | None:
        """Half the range of the repetitions, relative to the speedup; None of a single one."""
        found = self.measured_speedups()
        if len(found) == 1:
            return None
        return (max(found) - min(found)) / 2.0 / self.measured_speedup()


@dataclass(frozen=True, slots=True)
class Order:
    """Predicted against measured order of the policies on one category of prompts.

    Attributes:
        category: Of the prompts; `EVERY` for all of them together.
        temperature: Of the runs.
        pairs: Pairs of settings whose repetitions do not overlap, so that the live runs tell them apart.
        right: Those of them that the simulation orders alike.
        predicted: The fastest setting by simulation.
        best: The fastest measured.
        regret: Share of the fastest one's speed that trusting the prediction misses.
    """

    category: str
    temperature: float
    pairs: int
    right: int
    predicted: str
    best: str
    regret: float


def _speed(speeds: Speeds, category: str | None) -> float:
    chosen = list(speeds.values()) if category is None else [speeds[category]]
    return sum(tokens for tokens, _ in chosen) / sum(seconds for _, seconds in chosen)


def _pooled(repeats: Sequence[Speeds], category: str | None) -> float:
    chosen = [s[c] for s in repeats for c in (s if category is None else (category,))]
    return sum(tokens for tokens, _ in chosen) / sum(seconds for _, seconds in chosen)


def orders(members: Sequence[Member]) -> list[Order]:
    """Predicted against measured order, of all prompts and by category, of settings at one temperature."""
    return [_order(members, category) for category in (None, *members[0].simulated)]


def _order(members: Sequence[Member], category: str | None) -> Order:
    pairs = right = 0
    for one, other in combinations(members, 2):
        first, second = one.measured_speedups(category), other.measured_speedups(category)
        if min(first) <= max(second) and min(second) <= max(first):
            continue  # the repetitions overlap
        pairs += 1
        faster = min(first) > max(second)
        right += faster == (one.simulated_speedup(category) > other.simulated_speedup(category))
    predicted = max(members, key=lambda m: m.simulated_speedup(category))
    best = max(members, key=lambda m: m.measured_speedup(category))
    return Order(
        category=category or EVERY,
        temperature=members[0].settings.temperature,
        pairs=pairs,
        right=right,
        predicted=predicted.settings.label,
        best=best.settings.label,
        regret=1.0 - predicted.measured_speedup(category) / best.measured_speedup(category),
    )


def error_summary(members: Sequence[Member]) -> Mapping[str, Any]:
    """Median and largest error of the simulated speedups, and the spread of the live ones."""
    errors, ignored = (
        [abs(e) for e in found] for found in zip(*((m.error, m.ignored_error) for m in members), strict=True)
    )
    spreads = [m.spread for m in members if m.spread is not None]
    return {
        "settings": float(len(members)),
        "median_error": float(np.median(errors)),
        "largest_error": max(errors),
        "median_error_content_ignored": float(np.median(ignored)),
        "largest_error_content_ignored": max(ignored),
        "median_spread": float(np.median(spreads)) if spreads else None,
        "largest_spread": max(spreads, default=None),
    }
