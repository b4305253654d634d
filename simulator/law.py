"""What the papers' law says of a setting.

The law is given what a reader of the papers would give it: an iid acceptance, a power-law hit curve, the
cost of one target step and of one draft step.  Why the simulated world differs from what it says is
explained by `simulator.waterfall`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.config import LawInputs, Settings
from policies.ssd import SaguaroConfig
from simulator.probe import DraftRule, mean_acceptance, rejection_power_law
from simulator.run import Scenario


@dataclass(frozen=True, slots=True)
class LawPrediction:
    """The law's answer.

    Attributes:
        statement: Id of the formal statement(s) used.
        speedup_vs_ar: Its speedup; None where the law does not apply, with `reason`.
        tokens_per_second: `speedup_vs_ar` over the step time it was told, for the whole batch.
        tokens_per_round: Its mean tokens per round.
        cache_hit_rate: Its long-run hit rate; None without a cache.
        assumptions: What it was told.
        reason: Why it has no answer.
        ceiling: C, target step over draft step, which PEARL's speedup cannot exceed (as printed; a draft
            slower than its target can); None for other policies.
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
    sampling = settings.sampling
    if not isinstance(settings.config, SaguaroConfig):
        return DraftRule(sampling)
    config = settings.config
    return DraftRule(sampling, config.shape(sampling), keep_rejected=config.cache_set == "top")


def law_inputs(scenario: Scenario, settings: Settings | None = None) -> LawInputs:
    """What the law is told about a scenario: means of the recording, step costs of the profile.

    Args:
        scenario: Its tokens and costs.
        settings: How tokens are drafted; greedily by default.
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
