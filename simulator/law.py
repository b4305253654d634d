"""What the papers' law says of a setting, and why the simulated world differs.

The law is given what a reader of the papers would give it: an iid acceptance, a power-law hit curve, the
cost of one target step and of one draft step.  Then the effects of real hardware and text are switched on one
after another: a *waterfall* of simulations from the law's assumptions to the full world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from policies.config import LawInputs, Settings
from policies.ssd import SaguaroConfig
from simulator.costs import Effects, TextbookCosts
from simulator.probe import DraftRule, mean_acceptance, rejection_power_law
from simulator.run import Scenario, Simulated, baseline_settings, simulate
from simulator.tokens import TokenModel, coin

NO_EFFECT = Effects(*[False] * 7)
_EFFECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batch and context length", ("batch_width", "context")),
    ("verification grows with its width", ("verify_width",)),
    ("drafting grows with its branches", ("draft_width",)),
    ("host and messages", ("host",)),
    ("devices slow each other", ("overlap",)),
    ("jitter", ("jitter",)),
)
LEAST_EXPONENT = 1e-3
"""Of the hit curve of coins."""
LONG = 12_000
"""Tokens of a simulation that is to show a long-run rate; about 1 % of sampling error remains."""


@dataclass(frozen=True, slots=True)
class LawPrediction:
    """The law's answer.

    Attributes:
        statement: Id of the formal statement(s) used.
        speedup_vs_ar: Its speedup; None where the law does not apply, with `reason`.
        tokens_per_second: `speedup_vs_ar` over the step time it was told, for the whole batch.
        tokens_per_round: Its mean tokens per round.
        ceiling: See `policies.config.LawValue`.
    """

    statement: str
    speedup_vs_ar: float | None
    tokens_per_second: float | None
    tokens_per_round: float | None
    cache_hit_rate: float | None
    assumptions: LawInputs
    reason: str | None = None
    ceiling: float | None = None


def draft_rule(settings: Settings) -> DraftRule:
    """How a setting drafts and caches tokens."""
    sampling, config = settings.sampling, settings.config
    if not isinstance(config, SaguaroConfig):
        return DraftRule(sampling)
    return DraftRule(sampling, config.shape(sampling), keep_rejected=config.cache_set == "top")


def law_inputs(scenario: Scenario, settings: Settings | None = None) -> LawInputs:
    """What the law is told about a scenario: means of the recording, step costs of the profile.

    `settings` say how tokens are drafted; greedily by default.
    """
    tokens = scenario.tokens
    rule = DraftRule() if settings is None else draft_rule(settings)
    curve = tokens.power_law or rejection_power_law(tokens, rule)
    if scenario.textbook is not None:
        target_s, draft_s = scenario.textbook.target_s, scenario.textbook.draft_s
    else:
        context = int(np.mean([r.prompt_length + r.limit / 2 for r in scenario.serving()[1]]))
        at = {"batch": 1, "new_tokens": 1, "context": context}
        target_s = scenario.surfaces["target.forward"].seconds(**at)
        draft = scenario.surfaces.get("draft.forward")
        draft_s = draft.seconds(**at) if draft is not None else 0.0
        target_s *= scenario.drift.get("target.forward", 1.0)
        draft_s *= scenario.drift.get("draft.forward", 1.0)
    return LawInputs(
        acceptance=mean_acceptance(tokens, rule),
        exponent=None if curve is None else curve.exponent,
        scale=1.0 if curve is None else curve.scale,
        target_s=target_s,
        draft_s=draft_s,
    )


def law_prediction(settings: Settings, assumptions: LawInputs, *, batch: int) -> LawPrediction:
    """The papers' closed form for a setting."""
    value = settings.config.law(assumptions, batch)
    return LawPrediction(
        statement=value.statement,
        speedup_vs_ar=value.speedup,
        tokens_per_second=None if value.speedup is None else value.speedup * batch / assumptions.target_s,
        tokens_per_round=value.tokens,
        cache_hit_rate=value.hits,
        assumptions=assumptions,
        reason=value.reason,
        ceiling=value.ceiling,
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the waterfall: speedup over AR once `effect` and all before it are on."""

    effect: str
    speedup_vs_ar: float


def waterfall(
    scenario: Scenario, settings: Settings, law: LawPrediction, known: Iterable[Simulated] = ()
) -> list[Stage]:
    """Speedup over AR from the law's assumptions to the simulated world, one effect at a time.

    The last stage is the speedup of the scenario itself.  Empty without a law, whose `reason` says why.
    `known` are runs of the scenario itself, which are not made again.
    """
    if law.speedup_vs_ar is None:
        return []
    lengths = [r.limit for r in scenario.tokens.requests]
    ideal = _coin_speedup(scenario, settings, law.assumptions, max(LONG // scenario.batch, *lengths))
    stages = [Stage("law", law.speedup_vs_ar), Stage("simulated, law's assumptions", ideal)]
    speedup, effects = _speedup(scenario, settings, known), NO_EFFECT
    outputs = "recorded tokens" if scenario.tokens.power_law is None else "short outputs"
    stages.append(Stage(f"{outputs}; start, end, drain", speedup(effects)))
    for name, parts in _EFFECTS if scenario.textbook is None else ():
        if on := {part: True for part in parts if getattr(scenario.effects, part)}:
            effects = replace(effects, **on)
            stages.append(Stage(name, speedup(effects)))
    return stages


def _speedup(
    scenario: Scenario, settings: Settings, known: Iterable[Simulated]
) -> Callable[[Effects], float]:
    """Speedup of a setting under given effects; each is simulated once per what it can feel."""
    plain = baseline_settings(settings)[0]
    found = {
        (run.settings, _felt(scenario, run.settings, scenario.effects)): run.summary.tokens_per_second
        for run in known
    }

    def speed(effects: Effects, settings: Settings) -> float:
        key = settings, _felt(scenario, settings, effects)
        if key not in found:
            run = simulate(replace(scenario, effects=effects), settings)
            found[key] = run.summary.tokens_per_second
        return found[key]

    return lambda effects: speed(effects, settings) / speed(effects, plain)


def _felt(scenario: Scenario, settings: Settings, effects: Effects) -> Effects:
    """The effects, with those on that a setting does not feel or that have nothing to act on here."""
    if settings.plain:
        effects = replace(effects, verify_width=True, draft_width=True, overlap=True)
    alone = scenario.profile is not None and not scenario.profile.overlap
    return replace(effects, overlap=effects.overlap or alone, jitter=effects.jitter or not scenario.varies)


def _coin_speedup(scenario: Scenario, settings: Settings, inputs: LawInputs, length: int) -> float:
    """Speedup in the law's own world, with outputs of `length` tokens; AR takes a step per token there."""
    if settings.plain:
        return 1.0
    requests = max(scenario.batch, LONG // length)
    tokens = coins_of(inputs, requests=requests, length=length, prompt_length=1, seed=settings.seed)
    textbook = TextbookCosts(inputs.target_s, inputs.draft_s)
    world = Scenario(tokens=tokens, textbook=textbook, batch=scenario.batch, engine=scenario.engine)
    return _full_batch_speed(simulate(world, _tossed(settings))) * inputs.target_s / scenario.batch


def coins_of(inputs: LawInputs, *, requests: int, length: int, prompt_length: int, seed: int) -> TokenModel:
    """Coins of a law's acceptance and hit curve: r is 1 where there is no curve, and never as low as 0."""
    exponent = max(inputs.exponent or 1.0, LEAST_EXPONENT)
    shape = {"requests": requests, "length": length, "prompt_length": prompt_length, "seed": seed}
    return coin(inputs.acceptance, exponent=exponent, scale=inputs.scale, **shape)


def _full_batch_speed(run: Simulated) -> float:
    """Tokens per second while no row has finished: without the drain at the end, which no law knows."""
    width = run.rows.width
    table = run.rows.log.table()
    counts = np.bincount(table["request"])
    if len(counts) > width:  # rows are replaced: the batch drains only in the last of many requests
        return run.summary.tokens_per_second
    full = int(counts.min())
    return float(table["emitted"][: full * width].sum() / run.rows.log.ends[full - 1])


def _tossed(settings: Settings) -> Settings:
    """A setting as coins can run it: they have no distributions to rescale nor words to look up."""
    if not isinstance(settings.config, SaguaroConfig):
        return settings
    return settings.but(scale=1.0, backup="plain" if settings.backup == "ngram" else settings.backup)
