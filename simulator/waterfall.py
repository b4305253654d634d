"""Why the simulated world differs from the law's prediction.

The effects of real hardware and text are switched on one after another: a *waterfall* of simulations from
the law's assumptions to the full world.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from policies.config import LawInputs
from policies.registry import Settings
from policies.ssd import SaguaroConfig
from simulator.costs import Effects, TextbookCosts
from simulator.law import LawPrediction
from simulator.run import Scenario, Simulated, baseline_settings, simulate
from simulator.tokens import coin

NO_EFFECT = Effects(
    verify_width=False,
    draft_width=False,
    batch_width=False,
    context=False,
    host=False,
    overlap=False,
    jitter=False,
)
LONG = 12_000
"""Tokens of a simulation that is to show a long-run rate; about 1 % of sampling error remains."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the waterfall: speedup over AR once `effect` and all before it are on."""

    effect: str
    speedup_vs_ar: float


def waterfall(scenario: Scenario, settings: Settings, law: LawPrediction) -> list[Stage]:
    """Speedup over AR from the law's assumptions to the simulated world, one effect at a time.

    The last stage is the speedup of the scenario itself.  Empty without a law, whose `reason` says why.
    """
    if law.speedup_vs_ar is None:
        return []
    inputs = law.assumptions
    lengths = [r.limit for r in scenario.tokens.requests]
    ideal = _coin_speedup(scenario, settings, inputs, max(LONG // scenario.batch, *lengths))
    stages = [Stage("law", law.speedup_vs_ar), Stage("simulated, law's assumptions", ideal)]
    speedup = _Speedup(scenario, settings)
    effects = NO_EFFECT
    outputs = "recorded tokens" if scenario.tokens.power_law is None else "short outputs"
    stages.append(Stage(f"{outputs}; start, end, drain", speedup(effects)))
    if scenario.textbook is None:
        for name, parts in _EFFECTS:
            if on := {part: True for part in parts if getattr(scenario.effects, part)}:
                effects = replace(effects, **on)
                stages.append(Stage(name, speedup(effects)))
    return stages


def _full_batch_speed(run: Simulated) -> float:
    """Tokens per second while no row has finished: without the drain at the end, which no law knows."""
    width = run.rows.width
    table = run.rows.log.table()
    counts = np.bincount(table["request"])
    if len(counts) > width:  # rows are replaced: the batch drains only in the last of many requests
        return run.summary.tokens_per_second
    full = int(counts.min())
    return float(table["emitted"][: full * width].sum() / run.rows.log.ends[full - 1])


def _coin_speedup(scenario: Scenario, settings: Settings, inputs: LawInputs, length: int) -> float:
    """Speedup in the law's own world, with outputs of `length` tokens; AR takes a step per token there."""
    tokens = coin(
        inputs.acceptance,
        exponent=inputs.exponent or 1.0,
        scale=inputs.scale,
        requests=max(scenario.batch, LONG // length),
        length=length,
        prompt_length=1,
        seed=settings.seed,
    )
    textbook = TextbookCosts(inputs.target_s, inputs.draft_s)
    world = Scenario(tokens=tokens, textbook=textbook, batch=scenario.batch)
    if settings.plain:
        return 1.0
    return _full_batch_speed(simulate(world, tossed(settings))) * inputs.target_s / scenario.batch


def tossed(settings: Settings) -> Settings:
    """A setting as coins can run it: they have no distributions to rescale nor words to look up."""
    if not isinstance(settings.config, SaguaroConfig):
        return settings
    return settings.but(scale=1.0, backup="plain" if settings.backup == "ngram" else settings.backup)


_EFFECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batch and context length", ("batch_width", "context")),
    ("verification grows with its width", ("verify_width",)),
    ("drafting grows with its branches", ("draft_width",)),
    ("host and messages", ("host",)),
    ("devices slow each other", ("overlap",)),
    ("jitter", ("jitter",)),
)


class _Speedup:
    """Speedup of a setting under given effects; plain decoding is simulated once per what it can feel."""

    def __init__(self, scenario: Scenario, settings: Settings) -> None:
        self.scenario = scenario
        self.settings = settings
        self._ar: dict[Effects, float] = {}

    def __call__(self, effects: Effects) -> float:
        felt = replace(effects, verify_width=True, draft_width=True, overlap=True)
        if felt not in self._ar:
            self._ar[felt] = self._speed(felt, baseline_settings(self.settings)[0])
        return self._speed(effects, self.settings) / self._ar[felt]

    def _speed(self, effects: Effects, settings: Settings) -> float:
        return simulate(replace(self.scenario, effects=effects), settings).summary.tokens_per_second
