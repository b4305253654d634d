"""The law's opinion on a setting.

The law is given what a reader of the papers would give it: an iid acceptance, a power-law hit curve, the
cost of one target step and of one draft step.  Why the simulated world differs from what it says is
explained by `simulator.waterfall`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.duo import DuoConfig, mean_sequences, most_sequences
from policies.laws.double import pearl_speedup, psd_ceiling
from policies.laws.ssd import (
    expected_tokens,
    hit_rate,
    hit_rate_primary,
    power_law_hit,
    sd_speedup,
    ssd_speedup,
    ssd_speedup_printed,
)
from policies.registry import Settings
from policies.ssd import SaguaroConfig
from simulator.probe import Manner, mean_acceptance, rejection_law
from simulator.run import Scenario

STATEMENTS = {
    "ar": "-",
    "pld": "none",
    "sd": "double.thm1 + mirror.eq5",
    "pearl": "S_PEARL under double.thm3",
    "duo": "duo.budget",
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the law is told.

    Attributes:
        acceptance: iid acceptance of a drafted token: greedy, the share of positions where the draft's
            first choice is the target's token; sampled, the mean of sum min(p, sigma).
        exponent: r of the hit curve's power law; None without a usable curve.
        scale: c of the power law.
        target_s: Seconds of one target step, whatever it verifies.
        draft_s: Seconds of one draft step, however many branches it drafts.
    """

    acceptance: float
    exponent: float | None
    scale: float
    target_s: float
    draft_s: float


@dataclass(frozen=True, slots=True)
class Opinion:
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
    assumptions: Assumptions
    reason: str | None = None
    ceiling: float | None = None


def manner_of(settings: Settings) -> Manner:
    """How a setting drafts and caches tokens."""
    sampling = settings.sampling
    if not isinstance(settings.config, SaguaroConfig):
        return Manner(sampling)
    config = settings.config
    return Manner(sampling, config.shape(sampling), keep_rejected=config.cache_set == "top")


def assume(scenario: Scenario, settings: Settings | None = None) -> Assumptions:
    """What the law is told about a scenario: means of the recording, step costs of the profile.

    Args:
        scenario: Its tokens and costs.
        settings: How tokens are drafted; greedily by default.
    """
    tokens = scenario.tokens
    manner = Manner() if settings is None else manner_of(settings)
    curve = tokens.law or rejection_law(tokens, manner)
    if scenario.textbook is not None:
        target_s, draft_s = scenario.textbook.target_s, scenario.textbook.draft_s
    else:
        context = int(np.mean([r.prompt_length + r.limit / 2 for r in scenario.serving()[1]]))
        at = {"batch": 1, "new_tokens": 1, "context": context}
        target_s = scenario.surfaces["target.forward"].seconds(**at)
        draft = scenario.surfaces.get("draft.forward")
        draft_s = draft.seconds(**at) if draft is not None else 0.0
    return Assumptions(
        acceptance=mean_acceptance(tokens, manner),
        exponent=None if curve is None else curve.exponent,
        scale=1.0 if curve is None else curve.scale,
        target_s=target_s,
        draft_s=draft_s,
    )


def opinion(settings: Settings, assumptions: Assumptions, *, batch: int) -> Opinion:
    """The papers' closed form for a setting."""
    a, k = assumptions.acceptance, settings.lookahead or 0
    t_draft = assumptions.draft_s / assumptions.target_s
    hits: float | None = None
    tokens: float | None = expected_tokens(a, k)
    statement = STATEMENTS.get(settings.policy, "none")
    reason = None
    speedup: float | None
    if settings.policy == "ar":
        speedup = 1.0
    elif settings.policy == "sd":
        speedup = sd_speedup(a, k, t_draft)
    elif settings.policy == "pearl":
        speedup, hits, reason = _pearl(a, k, t_draft, batch)
        tokens = pearl_speedup(a, k, float(k)) if reason is None else tokens
    elif settings.policy == "duo":
        speedup, hits, reason = _duo(settings, assumptions, batch)
        tokens = pearl_speedup(a, k, float(k)) if reason is None else tokens
    elif settings.policy == "pld":
        speedup, reason = None, "the papers give no law for prompt lookup"
    elif settings.policy != "saguaro":
        speedup, tokens = None, None
        reason = f"no closed form gives the speed of {settings.policy!r} from an acceptance alone"
    else:
        statement, speedup, hits, tokens, reason = _saguaro(settings, assumptions, batch)
    return Opinion(
        statement=statement,
        speedup_vs_ar=speedup,
        tokens_per_second=None if speedup is None else speedup * batch / assumptions.target_s,
        tokens_per_round=tokens if speedup is not None else None,
        cache_hit_rate=hits,
        assumptions=assumptions,
        reason=reason,
        ceiling=psd_ceiling(1.0 / t_draft) if settings.policy == "pearl" and t_draft > 0.0 else None,
    )


def _pearl(a: float, k: int, t_draft: float, batch: int) -> tuple[float | None, float | None, str | None]:
    """Speedup and hit rate; pearl_speedup(a, k, k) is its tokens per round, as rounds then last 1."""
    if batch > 1:
        return None, None, "the papers give no law for PEARL in batches"
    ratio = 1.0 / t_draft if t_draft > 0 else float("inf")
    per_round = pearl_speedup(a, k, float(k))
    speedup = per_round / max(1.0, k / ratio) if ratio != float("inf") else per_round
    # A miss is followed by a plain decode (hit with a), a hit by a block (hit with a^k).
    hits = a / (1.0 + a - a**k) if a < 1.0 else 1.0
    return speedup, hits, None


def _duo(settings: Settings, told: Assumptions, batch: int) -> tuple[float | None, float | None, str | None]:
    """As `_pearl`, which DuoDecoding is with one sequence: its law knows no other."""
    config = settings.config
    assert isinstance(config, DuoConfig)
    most = most_sequences(config.lookahead, config.count)
    static = config.count > 0
    count = most if static else mean_sequences(told.acceptance, told.exponent, told.scale, most)
    if count > 1:
        return None, None, f"the paper gives no law for several sequences ({count} here)"
    return _pearl(told.acceptance, settings.lookahead or 0, told.draft_s / told.target_s, batch)


def _saguaro(
    settings: Settings, told: Assumptions, batch: int
) -> tuple[str, float | None, float | None, float | None, str | None]:
    statement = "ssd.thm7 + ssd.eq1" if batch == 1 else "ssd.cor16 + ssd.eq1"
    config = settings.config
    assert isinstance(config, SaguaroConfig)
    if told.exponent is None:
        return statement, None, None, None, "no power law could be fitted to the hit curve"
    if config.stall == "rows" and batch > 1:
        return (
            statement,
            None,
            None,
            None,
            "the papers give no law for a batch that goes on without the misses",
        )
    k, fanout = config.lookahead, config.fanout
    t_draft = told.draft_s / told.target_s
    p_primary = hit_rate_primary(told.acceptance, fanout, told.exponent, told.scale)
    e_hit = expected_tokens(told.acceptance, k)
    if settings.backup in {"primary", "primary-all"}:
        p_backup, e_miss, t_backup = p_primary, e_hit, k * t_draft
    else:  # a plain decode, or guesses that are taken never to be accepted: position 0 alone can hit
        first = (settings.fanout_backup or fanout)[0]
        p_backup = float(power_law_hit([first], told.exponent, told.scale)[0])
        e_miss, t_backup = 1.0, 0.0
    try:
        p_hit = hit_rate(p_primary, p_backup)
    except ValueError as error:
        return statement, None, None, None, str(error)
    # As printed a miss waits for no tree, which is what aborting it does.
    law = ssd_speedup_printed if config.tree == "abort" and batch == 1 else ssd_speedup
    speedup = law(p_hit, e_hit, e_miss, k * t_draft, t_backup, batch=batch)
    return statement, speedup, p_hit, p_hit * e_hit + (1.0 - p_hit) * e_miss, None
