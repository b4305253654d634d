"""Fan-outs: how many outcomes a profile has time to prepare, and how they are spread over positions.

The budget that fits is found by timing one round of each operation; a shape spreads a budget over the numbers
of accepted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np

from policies.config import LawInputs
from policies.laws.fanout import (
    exact_fanout,
    geometric_fanout,
    power_law_table,
    round_fanout,
    uniform_fanout,
)
from policies.laws.ssd import outcome_weights
from policies.operation import Draft, Prespeculate, Verify
from policies.protocols import Steps
from policies.registry import SettingError, Settings
from policies.rows import Rows
from policies.sampling import FloatArray
from policies.values import Source, Speculation, View
from simulator.costs import TextbookCosts
from simulator.probe import RoundStatistics, primary_chains
from simulator.run import Scenario, simulate

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld

Shape: TypeAlias = Literal["uniform", "geometric", "exact"]
SHAPES: tuple[Shape, ...] = get_args(Shape)


def shape_after_primary(
    shape: Shape, known: RoundStatistics, budget: int, *, inputs: LawInputs, most: int, coins: bool = False
) -> tuple[int, ...]:
    """F_0 ... F_K for rounds that verify the primary draft's tokens.

    Args:
        shape: `uniform`; `geometric`, the closed form under iid acceptance and a power law (`ssd.thm12`),
            rounded; `exact`, the optimum on the recording's own weights and hit curves.
        known: Those weights and curves.
        budget: Outcomes per row, at least 1.
        inputs: The iid acceptance and the power law.
        most: Largest fan-out that the tokens can decide.
        coins: Whether the tokens are coin tosses: their law is known and needs no estimate.

    Raises:
        SettingError: No power law, which the shape needs, could be fitted.
    """
    lookahead = known.lookahead
    if shape == "uniform":
        return _capped(uniform_fanout(budget, lookahead + 1), most)
    if shape == "geometric":
        if inputs.exponent is None:
            raise SettingError(
                "no power law could be fitted to the hit curve, which shape 'geometric' needs; use 'exact'"
            )
        real = geometric_fanout(inputs.acceptance, inputs.exponent, lookahead, budget)
        return _capped(round_fanout(real, budget), most)
    weights, table = known.weights, known.after_primary
    if coins and inputs.exponent is not None:
        weights = outcome_weights(inputs.acceptance, lookahead)
        table = power_law_table(lookahead + 1, inputs.exponent, inputs.scale, min(most, budget))
    return _usable(exact_fanout(weights, table, budget))


def shape_after_backup(
    known: RoundStatistics, budget: int, *, most: int, weights: FloatArray | None = None
) -> tuple[int, ...]:
    """F_0 ... F_K for rounds that verify a backup's tokens or none.

    `weights` [K + 1] say how many tokens of the backup are accepted; None: it never has one accepted, so that
    the whole budget belongs to position 0.  The tokens decide fan-outs of up to `most`.
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


MOST_PER_POSITION = 32
"""Largest mean fan-out that is tried."""
_TIE = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest budget whose pre-speculation is done when the verification is.

    Attributes:
        budget: Outcomes per row.
        verify_s: Seconds of the verification beside it.
        prepare_s: Seconds of the pre-speculation.
        bound: What kept it from being larger: `time`, `grid` (the profile measured no wider tree), `tokens`
            (the recording decides no larger fan-out), `cap`; or `late` if even one outcome per position
            takes longer than a verification.
    """

    budget: int
    verify_s: float
    prepare_s: float
    bound: str

    @property
    def in_time(self) -> bool:
        """Whether it is done when the verification is."""
        return self.prepare_s <= self.verify_s * _TIE


REASONS = {
    "time": "the most that can be prepared for while the target verifies",
    "grid": "the widest tree that the profile has measured",
    "tokens": "the most that the recording can decide",
    "cap": "as much as is ever tried: it is done before the verification",
    "late": "one per position, although even that takes longer than the verification",
}
"""What kept a `Fit` from being larger, for people."""


def fitting_budget(scenario: Scenario, settings: Settings, *, most: int) -> Fit:
    """The largest budget per row that can be prepared for during a verification of K tokens.

    The jitter of the scenario should be off; `most` is the largest fan-out that the tokens can decide.
    """
    positions = (settings.lookahead or 1) + 1
    bounds = {"cap": MOST_PER_POSITION * positions, "tokens": most * positions}
    if (widest := _measured_branches(scenario)) is not None:
        bounds["grid"] = max(1, widest * (settings.draft_devices or 1))
    bound = min(bounds, key=bounds.__getitem__)

    def fit(budget: int, bound: str) -> Fit:
        return Fit(budget, *_race(scenario, settings, budget), bound)

    low = fit(1, "time")
    if not low.in_time:
        return fit(min(positions, bounds[bound]), "late")
    high = fit(bounds[bound], bound)
    if high.in_time:
        return high
    while high.budget - low.budget > 1:
        middle = fit((low.budget + high.budget) // 2, "time")
        low, high = (middle, high) if middle.in_time else (low, middle)
    return low


class StepTimes(NamedTuple):
    """Seconds of single operations at a scenario's batch, host time included."""

    verify_s: float
    draft_s: float


def step_times(scenario: Scenario, settings: Settings) -> StepTimes:
    """Seconds of a verification of K tokens and of a redraft, each alone, at the scenario's batch."""

    def alone(operation: Verify | Draft) -> float:
        def steps() -> Steps:
            yield (world.target if isinstance(operation, Verify) else world.draft).submit(operation)

        world = _stage(scenario, settings)[0]
        world.run(steps())
        return world.now

    _, view, speculation = _stage(scenario, settings)
    unseen = (1,) * len(view.slots)
    return StepTimes(
        alone(Verify(view, speculation, settings.sampling)),
        alone(Draft(view, settings.lookahead or 1, unseen, settings.sampling)),
    )


def _measured_branches(scenario: Scenario) -> int | None:
    """Most branches per row that the profile's tree grid has measured; None for a constant."""
    surface = scenario.surfaces.get("draft.tree")
    if surface is None or "branches" not in surface.axes:
        return None
    widest = int(surface.bounds()["branches"][1])
    return widest if "batch" in surface.axes else widest // scenario.batch


def _race(scenario: Scenario, settings: Settings, budget: int) -> tuple[float, float]:
    """Seconds of a verification and of the pre-speculation beside it."""
    world, view, speculation = _stage(scenario, settings)
    depth, sampling = settings.lookahead or 1, settings.sampling
    fanout = (budget, *[0] * depth)  # the cost depends on the sum alone
    ends: list[float] = []

    def round_of_both() -> Steps:
        verify = world.target.submit(Verify(view, speculation, sampling))
        verify.callbacks.append(lambda _: ends.append(world.now))
        everything: Any = None
        for i, device in enumerate(world.drafts):
            part = (i, len(world.drafts))
            prepare = device.submit(
                Prespeculate(view, speculation, depth, fanout, sampling=sampling, part=part)
            )
            everything = prepare if everything is None else everything & prepare
        yield everything
        prepared = world.now
        yield verify
        ends.append(prepared)

    world.run(round_of_both())
    return ends[0], ends[1]


def _stage(scenario: Scenario, settings: Settings) -> tuple[SimulatedWorld, View, Speculation]:
    """A world, a full batch half-way through its texts, and a primary speculation for it."""
    tokens, requests = scenario.serving()
    rows = Rows(requests, min(scenario.batch, len(requests)))
    rows.admit()
    view = rows.view()
    middle = [c + room // 2 for c, room in zip(view.contexts, view.rooms, strict=True)]
    view = msgspec.structs.replace(view, contexts=tuple(middle))
    world = scenario.world(tokens, settings.draft_devices)
    return world, view, primary_chains(len(view.slots), settings.lookahead or 1)
