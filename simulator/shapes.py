"""How a budget of outcomes per row is spread over the numbers of accepted tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np

from policies.laws.fanout import (
    exact_fanout,
    geometric_fanout,
    power_law_table,
    round_fanout,
    uniform_fanout,
)
from policies.laws.ssd import outcome_weights
from policies.registry import SettingError, Settings
from policies.sampling import FloatArray
from policies.values import Source
from simulator.costs import TextbookCosts
from simulator.law import Assumptions
from simulator.probe import DEEPEST, RoundStatistics
from simulator.run import Scenario, simulate

Shape: TypeAlias = Literal["uniform", "geometric", "exact"]
SHAPES: tuple[Shape, ...] = get_args(Shape)


def shape_after_primary(
    shape: Shape, known: RoundStatistics, budget: int, *, told: Assumptions, most: int, coins: bool = False
) -> tuple[int, ...]:
    """F_0 ... F_K for rounds that verify the primary draft's tokens.

    Args:
        shape: `uniform`; `geometric`, the closed form under iid acceptance and a power law (`ssd.thm12`),
            rounded; `exact`, the optimum on the recording's own weights and hit curves.
        known: Those weights and curves.
        budget: Outcomes per row, at least 1.
        told: The iid acceptance and the power law.
        most: Largest fan-out that the tokens can decide.
        coins: Whether the tokens are coin tosses: their law is known and needs no estimate.

    Raises:
        SettingError: No power law, which the shape needs, could be fitted.
    """
    lookahead = known.lookahead
    if shape == "uniform":
        return _capped(uniform_fanout(budget, lookahead + 1), most)
    if shape == "geometric":
        if told.exponent is None:
            raise SettingError(
                "no power law could be fitted to the hit curve, which shape 'geometric' needs; use 'exact'"
            )
        real = geometric_fanout(told.acceptance, told.exponent, lookahead, budget)
        return _capped(round_fanout(real, budget), most)
    weights, table = known.weights, known.after_primary
    if coins and told.exponent is not None:
        weights = outcome_weights(told.acceptance, lookahead)
        table = power_law_table(lookahead + 1, told.exponent, told.scale, min(most, budget))
    return _usable(exact_fanout(weights, table, budget))


def shape_after_backup(
    known: RoundStatistics, budget: int, *, most: int, weights: FloatArray | None = None
) -> tuple[int, ...]:
    """F_0 ... F_K for rounds that verify a backup's tokens or none.

    Args:
        known: Hit curves.
        budget: Outcomes per row.
        most: Largest fan-out that the tokens can decide.
        weights: [K + 1] how many tokens of the backup are accepted; None: it never has one accepted, so
            that the whole budget belongs to position 0.
    """
    if weights is None:
        return (min(budget, most), *[0] * known.lookahead)
    table = np.tile(known.after_nothing, (known.lookahead + 1, 1))
    return _usable(exact_fanout(weights, table, budget))


def ngram_weights(scenario: Scenario, settings: Settings) -> FloatArray:
    """[K + 1] share of rounds after an n-gram backup that accept k = 0 ... K of its tokens.

    From a run without time; a round with nothing to propose counts as k = 0.
    """
    timeless = replace(scenario, profile=None, textbook=TextbookCosts(1.0, 0.1), drift={})
    depth = settings.lookahead or 0
    table = simulate(timeless, settings.but(backup="ngram")).rows.log.table()
    accepted = table["accepted"][table["source"] != Source.PRIMARY]
    counts = np.bincount(accepted, minlength=depth + 1).astype(float)
    counts[0] += 1.0  # some weight where no round missed
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def _capped(fanout: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The fan-outs with what exceeds `most` moved to the first positions that have room."""
    spare = sum(max(0, f - most) for f in fanout)
    capped = [min(f, most) for f in fanout]
    for k, f in enumerate(capped):
        moved = min(spare, most - f)
        capped[k] += moved
        spare -= moved
    return tuple(capped)


def _usable(fanout: tuple[int, ...]) -> tuple[int, ...]:
    """A fan-out that prepares for at least one outcome."""
    return fanout if sum(fanout) else (1, *fanout[1:])


__all__ = ["DEEPEST", "SHAPES", "Shape", "ngram_weights", "shape_after_backup", "shape_after_primary"]
