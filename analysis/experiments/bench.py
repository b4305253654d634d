"""What all experiments share: settings in, rows of law, simulation and live measurement out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from analysis.intervals import plain
from analysis.predictions import Setting
from analysis.serving import outside_grid
from analysis.sources import Sources
from hardware_profiles.trace import Trace
from policies.registry import Settings
from policies.summary import Summary
from simulator.law import Assumptions, assume, manner_of, opinion
from simulator.probe import Manner
from simulator.run import Scenario, simulate
from simulator.tokens import replay

if TYPE_CHECKING:
    from analysis.experiments.lab import Lab

Row: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass
class Bench:
    """Where an experiment runs.

    Args:
        sources: Profile and traces.
        lab: Runs settings live; None: simulation only.
        count: Prompts, of all categories; None for all that were recorded.
        limit: Most tokens per request; None: as recorded.
        seed: Keys latency noise and luck.
        progress: (stage, done, total).
    """

    sources: Sources
    lab: Lab | None = None
    count: int | None = None
    limit: int | None = None
    seed: int = 0
    progress: Progress = lambda stage, done, total: None
    _scenarios: dict[float, Scenario] = field(default_factory=dict)
    _curves: dict[tuple[float, Manner], Assumptions] = field(default_factory=dict)
    _plain: dict[tuple[Settings, int, tuple[tuple[str, float], ...]], Summary] = field(default_factory=dict)

    def trace(self, temperature: float) -> Trace:
        """The prompts that the experiment runs on."""
        return spread_requests(self.sources.trace(temperature), self.count)

    def scenario(self, temperature: float, batch: int = 1) -> Scenario:
        """These prompts on the profile's hardware."""
        if temperature not in self._scenarios:
            tokens = replay(self.trace(temperature), limit=self.limit, seed=self.seed)
            self._scenarios[temperature] = Scenario(
                tokens=tokens, profile=self.sources.profile, seed=self.seed
            )
        return replace(self._scenarios[temperature], batch=batch)

    def compare(self, settings: Sequence[Setting]) -> list[Row]:
        """Law, simulation and, with a lab, measurement of every setting, each over its plain decoding."""
        wanted = list(dict.fromkeys(settings))
        rows = []
        for done, setting in enumerate(wanted):
            rows.append(self.row(setting))
            self.progress("simulations", done + 1, len(wanted))
        if self.lab is not None:
            traces = {t: self.trace(t) for t in dict.fromkeys(s.temperature for s, _ in wanted)}
            live = self.lab.measure(wanted, traces, limit=self.limit, progress=self.progress)
            for setting, row in zip(wanted, rows, strict=True):
                row.update(live[setting])
        return rows

    def row(self, setting: Setting, drift: Mapping[str, float] | None = None) -> Row:
        """Law and simulation of a setting; `drift` scales the costs of operations."""
        settings, batch = setting
        scenario = replace(self.scenario(settings.temperature, batch), drift=dict(drift or {}))
        run = simulate(scenario, settings)
        told = self._told(settings)
        factors = drift or {}
        told = replace(
            told,
            target_s=told.target_s * factors.get("target.forward", 1.0),
            draft_s=told.draft_s * factors.get("draft.forward", 1.0),
        )
        law = opinion(settings, told, batch=batch)
        ar = self._ar(settings, batch, dict(drift or {}))
        return {
            **describe(settings, batch),
            "law_speedup_vs_ar": law.speedup_vs_ar,
            "law_cache_hit_rate": law.cache_hit_rate,
            "law_acceptance": told.acceptance,
            "simulated_speedup_vs_ar": run.summary.tokens_per_second / ar.tokens_per_second,
            **figures("simulated", run.summary),
            "measured_speedup_vs_ar": None,
            **dict.fromkeys(f"measured_{name}" for name in FIGURES),
            "measured_low": None,
            "measured_high": None,
            "extrapolated": "; ".join(outside_grid(run)),
        }

    def _told(self, settings: Settings) -> Assumptions:
        """What the law is told: means of the experiment's prompts, but the hit curve of all prompts recorded.

        Few prompts have few rejections at large fan-outs, and a power law fitted to them is a lottery.
        """
        told = assume(self.scenario(settings.temperature), settings)
        manner = (settings.temperature, manner_of(settings))
        if manner not in self._curves:
            every = replay(self.sources.trace(settings.temperature), seed=self.seed)
            scenario = replace(self.scenario(settings.temperature), tokens=every)
            self._curves[manner] = assume(scenario, settings)
        curve = self._curves[manner]
        return replace(told, exponent=curve.exponent, scale=curve.scale)

    def _ar(self, settings: Settings, batch: int, drift: Mapping[str, float]) -> Summary:
        key = (plain(settings), batch, tuple(sorted(drift.items())))
        if key not in self._plain:
            scenario = replace(self.scenario(settings.temperature, batch), drift=drift)
            self._plain[key] = simulate(scenario, key[0]).summary
        return self._plain[key]


FIGURES = ("tokens_per_second", "cache_hit_rate", "acceptance_rate", "tokens_per_round")
"""Figures of a summary that rows carry, once simulated and once measured."""


def figures(world: str, summary: Summary) -> Row:
    """The figures of a run, named after the world it ran in."""
    return {f"{world}_{name}": getattr(summary, name) for name in FIGURES}


def describe(settings: Settings, batch: int) -> Row:
    """The columns that say which setting a row is of."""
    return {
        "setting": settings.label,
        "policy": settings.policy,
        "lookahead": settings.lookahead,
        "fanout": None if settings.fanout is None else ",".join(map(str, settings.fanout)),
        "backup": settings.backup,
        "batch": batch,
        "temperature": settings.temperature,
        "scale": settings.scale,
        "draft_devices": settings.draft_devices,
    }


def spread_requests(trace: Trace, count: int | None) -> Trace:
    """`count` requests taken in turn from every category; all of them for None."""
    if count is None or count >= len(trace.requests):
        return trace
    by_category: dict[str, list[int]] = {}
    for request in trace.requests:
        by_category.setdefault(request.category, []).append(request.id)
    turns = [ids[turn] for turn in range(count) for ids in by_category.values() if turn < len(ids)]
    return trace.slice(turns[:count])


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """A column as numbers; NaN where there is none."""
    return np.array([np.nan if row[name] is None else float(row[name]) for row in rows])
