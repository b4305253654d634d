"""Settings worth trying: a coarse grid, and the neighbours of a good one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hardware_profiles.decisions import Decisions
from policies.laws.fanout import exact_fanout
from policies.registry import MAX_LOOKAHEAD, Settings, configure
from policies.sampling import Sampling
from simulator.probe import Manner, round_statistics
from simulator.run import Scenario
from simulator.tokens import TokenModel

LOOKAHEADS = (1, 2, 3, 4, 6, 8)
FANOUTS = (1, 3)
"""Uniform fan-outs of the coarse grid."""
GUESSES = (1, 2)
"""Budgets of the exact shapes of the coarse grid, in guesses per position."""
BACKUPS = ("primary", "plain")
OTHER_BACKUPS = ("random", "ngram")
"""Tried beside a good setting only."""
FEW = {"lookaheads": (1, 3, 6), "fanouts": (1, 3), "guesses": ()}
"""A small grid, for sweeps over traffic."""


def grid(
    tokens: TokenModel,
    temperature: float,
    *,
    draft_devices: int = 1,
    lookaheads: Sequence[int] = LOOKAHEADS,
    fanouts: Sequence[int] = FANOUTS,
    guesses: Sequence[int] = GUESSES,
    policies: Sequence[str] = ("ar", "sd", "pld", "pearl", "saguaro"),
) -> list[Settings]:
    """The coarse grid: every policy over the lookahead, Saguaro over shape, budget and backup too.

    Args:
        tokens: For shapes that fit its hit curves.
        temperature: Of the target.
        draft_devices: Most draft devices.
        lookaheads: K.
        fanouts: Uniform fan-outs.
        guesses: Budgets of exact shapes, in guesses per position.
        policies: Which to try.
    """
    found: list[Settings] = []
    if "ar" in policies:
        found.append(configure("ar", temperature=temperature))
    for name in ("sd", "pld", "pearl"):
        if name in policies and (name != "pld" or tokens.vocabulary > 0):
            found += [configure(name, lookahead=k, temperature=temperature) for k in lookaheads]
    if "saguaro" in policies:
        for k in lookaheads:
            shapes = [(f,) * (k + 1) for f in fanouts if f <= tokens.max_fanout]
            shapes += [exact_shape(tokens, k, g * (k + 1), temperature) for g in guesses]
            found += list(_saguaro(k, shapes, temperature, range(1, draft_devices + 1)))
    return list(dict.fromkeys(found))


def decided(scenario: Scenario, temperature: float) -> list[Settings]:
    """Settings whose decisions are recorded: those of policies that a recorded path cannot replay."""
    if scenario.decisions is None:
        return []
    return [
        configure(found.policy, temperature=temperature, **_knobs(found))
        for found in scenario.decisions.settings.values()
    ]


def _knobs(found: Decisions) -> dict[str, Any]:
    """The knobs of a recorded setting; a file's lists are tuples again."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.knobs.items()}


def _saguaro(
    lookahead: int, shapes: Iterable[tuple[int, ...]], temperature: float, devices: Iterable[int]
) -> Iterator[Settings]:
    for shape in dict.fromkeys(shapes):
        for backup in BACKUPS:
            for count in devices:
                yield configure(
                    "saguaro",
                    lookahead=lookahead,
                    fanout=shape,
                    backup=backup,
                    draft_devices=count,
                    temperature=temperature,
                )


def neighbours(settings: Settings, tokens: TokenModel) -> list[Settings]:
    """Settings a step away: the next lookaheads, other budgets and shapes, other backups."""
    k = settings.lookahead
    if k is None:
        return []
    depths = [d for d in (k - 1, k + 1) if 1 <= d <= MAX_LOOKAHEAD]
    if settings.fanout is None:
        return [settings.but(lookahead=d) for d in depths]
    budget = sum(settings.fanout)
    found = [_reshape(settings, tokens, d, max(1, round(budget * (d + 1) / (k + 1)))) for d in depths]
    near = dict.fromkeys((max(1, round(budget * 0.7)), budget, round(budget * 1.4) + 1))
    found += [_reshape(settings, tokens, k, b) for b in near]
    if len(set(settings.fanout)) == 1:
        uniform = {f for f in (settings.fanout[0] - 1, settings.fanout[0] + 1) if 1 <= f <= tokens.max_fanout}
        found += [settings.but(fanout=(f,) * (k + 1)) for f in sorted(uniform)]
    found += [_with_backup(settings, name) for name in (*BACKUPS, *OTHER_BACKUPS)]
    if settings.backup != "primary":
        first = min(budget, tokens.max_fanout)  # nothing is drafted, or accepted: all guesses on position 0
        found.append(settings.but(fanout_backup=(first, *(0,) * k)))
    if settings.temperature > 0.0:
        found += [settings.but(scale=c) for c in (0.5, 0.8) if settings.draft_sampling != "greedy"]
    return [s for s in dict.fromkeys(found) if s != settings]


def _reshape(settings: Settings, tokens: TokenModel, lookahead: int, budget: int) -> Settings:
    fanout = exact_shape(tokens, lookahead, budget, settings.temperature)
    return settings.but(lookahead=lookahead, fanout=fanout, fanout_backup=None)


def _with_backup(settings: Settings, backup: Any) -> Settings:
    return settings.but(backup=backup, fanout_backup=None)


def exact_shape(tokens: TokenModel, lookahead: int, budget: int, temperature: float = 0.0) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate within a budget, over the rounds of the recorded text.

    One guess on the likeliest outcome at least: a cache without any is no Saguaro.
    """
    known = round_statistics(tokens, lookahead, Manner(Sampling(temperature)))
    fanout = exact_fanout(known.weights, known.after_primary, budget)
    if sum(fanout) == 0:
        best = int(np.argmax(known.weights))
        return tuple(int(k == best) for k in range(lookahead + 1))
    return fanout
