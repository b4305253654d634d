"""A predicted cell: what was known for it, the interval that leaves, fits of unknowns, and its simulation.

Paper speeds give one unknown by bisection and two by least squares.  The simulated value is of the papers'
own world, constant latencies and iid coins, event by event.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.optimize import brentq

from analysis.papers.cells import Paper, PaperCell
from policies.laws.double import pearl_speedup
from policies.laws.inverse import acceptance_from_tokens
from policies.laws.law import FloatArray
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin


@dataclass(frozen=True, slots=True)
class Band:
    """A prediction and the interval that the assumed ranges leave."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Band:
        """In another unit."""
        return Band(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Known:
    """A quantity that a law needs, and where it is from.

    Attributes:
        name: Symbol.
        source: `given` (printed), `fitted` (from baselines) or `assumed` (the paper withholds it).
        value: What the prediction uses.
        low: Least value that the paper leaves open.
        high: Largest one.
    """

    name: str
    source: Literal["given", "fitted", "assumed"]
    value: float
    low: float
    high: float

    @property
    def estimate(self) -> Band:
        """The quantity as a prediction."""
        return Band(self.value, self.low, self.high)

    @property
    def text(self) -> str:
        """For the identifiability column."""
        said = f"{self.name} {self.source} {self.value:.3g}"
        return said if self.low == self.high else f"{said} in {self.low:.3g}..{self.high:.3g}"


Quantities: TypeAlias = Mapping[str, Known]
"""What is known, by the names of a law's parameters; a law need not take all of it."""


def given(name: str, value: float, half_width: float = 0.0) -> Known:
    """A printed quantity, as exact as its digits."""
    return Known(name, "given", value, value - half_width, value + half_width)


def printed(name: str, cell: PaperCell) -> Known:
    """The quantity of a cell, give or take its rounding."""
    return given(name, cell.value, cell.rounding)


def fitted(name: str, value: float, low: float | None = None, high: float | None = None) -> Known:
    """A quantity that baselines determine."""
    return Known(name, "fitted", value, value if low is None else low, value if high is None else high)


def assumed(name: str, value: float, low: float, high: float) -> Known:
    """A quantity that the paper withholds."""
    return Known(name, "assumed", value, low, high)


def spread(law: Callable[..., float], known: Quantities) -> Band:
    """The law at the values used, and its extremes over low, used and high values of what it takes."""
    taken = {name: known[name] for name in inspect.signature(law).parameters}
    levels = [sorted({k.low, k.value, k.high}) for k in taken.values()]
    values = [law(**dict(zip(taken, corner, strict=True))) for corner in product(*levels)]
    middle = law(**{name: k.value for name, k in taken.items()})
    return Band(middle, min(values), max(values))


@dataclass(frozen=True, slots=True)
class Coin:
    """What the simulator is to toss coins for.

    Attributes:
        policy: As in the registry.
        acceptance: iid acceptance.
        lookahead: K.
        draft_step: Draft step / target step.
        hit: Probability that what is prepared beside the draft's first choice holds the target's token,
            however many guesses that is.
        factor: From a speedup to the cell's unit.
        knobs: The policy's other knobs, as `configure` takes them.
    """

    policy: str
    acceptance: float
    lookahead: int
    draft_step: float
    hit: float = 1.0
    factor: float = 1.0
    knobs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """A cell and what was predicted for it without looking at it.

    Attributes:
        cell: The printed value.
        law: Id of the statement, and how it was used.
        estimate: By law.
        known: What the law was told.
        used: Cells that entered; never the cell itself, never a flagged one.
        naive: Mean ratio of the other rows times this row's baseline; None where there are no others.
        printed: The law as the paper prints it, where it is wrong.
        coin: How to simulate it; None: it cannot be.
        simulated: Outcome of that.
        unsimulated: Why it cannot be; empty if it can.
    """

    cell: PaperCell
    law: str
    estimate: Band
    known: tuple[Known, ...]
    used: tuple[PaperCell, ...]
    naive: float | None = None
    printed: float | None = None
    coin: Coin | None = None
    simulated: float | None = None
    unsimulated: str = ""

    @property
    def error(self) -> float:
        """Relative error of the law."""
        return relative(self.estimate.value, self.cell.value)

    @property
    def inside(self) -> bool:
        """Whether the printed value, give or take its rounding, lies in the interval."""
        slack = self.cell.rounding + 1e-9
        return self.estimate.low - slack <= self.cell.value <= self.estimate.high + slack

    @property
    def identifiability(self) -> str:
        """What was given, fitted and assumed, and the interval that follows."""
        parts = "; ".join(k.text for k in self.known)
        return f"{parts} -> {self.estimate.low:.4g}..{self.estimate.high:.4g}"


def relative(predicted: float, reported: float) -> float:
    """Relative error, predicted / reported - 1; the difference where 0 was reported."""
    return predicted - reported if reported == 0.0 else predicted / reported - 1.0


def forecast(
    cell: PaperCell,
    name: str,
    law: Callable[..., float],
    known: Quantities,
    used: Iterable[PaperCell],
    *,
    unit: float = 1.0,
    **more: Any,
) -> Forecast:
    """A forecast by a law whose parameters are names of `known`.

    `unit` takes the law's value to the cell's; `more` are further fields of the forecast.
    """
    return Forecast(cell, name, spread(law, known).scaled(unit), tuple(known.values()), tuple(used), **more)


Base: TypeAlias = Callable[[PaperCell], PaperCell | float | None]
"""The baseline of a cell's row; None where there is none."""


def naive_guess(cell: PaperCell, rows: Iterable[PaperCell], base: Base = lambda _: 1.0) -> float | None:
    """Mean of cell / baseline over the other rows, times this row's baseline; None without either."""
    pairs = [(other.value, _number(base(other))) for other in rows if other.row != cell.row]
    ratios = [value / below for value, below in pairs if below is not None]
    mine = _number(base(cell))
    return math.fsum(ratios) / len(ratios) * mine if ratios and mine is not None else None


def _number(base: PaperCell | float | None) -> float | None:
    return base.value if isinstance(base, PaperCell) else base


_GRID, _REFINEMENTS = 100, 4


@cache
def acceptance_of_tokens(tokens: float, lookahead: int) -> float:
    """The iid acceptance a with E(a, K) = tokens; 0 or 1 where no a gives so few or so many."""
    return acceptance_from_tokens(min(max(tokens, 1.0), lookahead + 1.0), lookahead)


def acceptance_of_pearl(speedup: float, lookahead: int, speed_ratio: float) -> float:
    """The iid acceptance by which PEARL's law gives this speedup."""
    return float(brentq(lambda a: pearl_speedup(a, lookahead, speed_ratio) - speedup, 0.0, 1.0, xtol=1e-15))


def chain(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a, c) of the SD law E(a, K) / (1 + c K) nearest to points (K, speedup), c >= 0.

    Least squares of law / point - 1, inverted: for a given a that is linear in c, so that only a has to be
    searched for.  The residual has several minima where the points hardly tell the two apart, hence a grid
    that is refined and no descent.
    """
    depths = np.array([depth for depth, _ in points])
    speeds = np.array([speed for _, speed in points])

    def fit(accepted: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Squared residuals and costs by acceptance."""
        tokens = np.cumsum(accepted[:, None] ** np.arange(depths.max() + 1), axis=1)[:, depths]
        excess = speeds / tokens
        slope = excess * depths
        costs = np.maximum(0.0, ((1.0 - excess) * slope).sum(axis=1) / (slope**2).sum(axis=1))
        return ((excess + costs[:, None] * slope - 1.0) ** 2).sum(axis=1), costs

    low, high = 0.0, 1.0
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID + 1)
        best = int(np.argmin(fit(grid)[0]))
        low, high = float(grid[max(0, best - 1)]), float(grid[min(_GRID, best + 1)])
    acceptance = 0.5 * (low + high)
    return acceptance, float(fit(np.array([acceptance]))[1][0])


REQUESTS, LENGTH = 4, 4096
"""Long outputs: the laws are long-run rates, and the first rounds of a request are not."""
FLAT = 1e-9
"""Exponent of a hit curve that is the same for any number of guesses: a coin's hit is that of all of them."""


@cache
def toss(tossed: Coin, seed: int = 0) -> float:
    """The simulated value, in the unit of the cell."""
    shape: dict[str, Any] = {"requests": REQUESTS, "length": LENGTH, "prompt_length": 1, "seed": seed}
    tokens = coin(tossed.acceptance, exponent=FLAT, scale=1.0 - tossed.hit, **shape)
    scenario = Scenario(tokens=tokens, textbook=TextbookCosts(1.0, tossed.draft_step))
    settings = configure(tossed.policy, lookahead=tossed.lookahead, **dict(tossed.knobs))
    # A plain step takes 1 s and yields a token: tokens per second are the speedup.
    return tossed.factor * simulate(scenario, settings).summary.tokens_per_second


def by_step_cost(
    paper: Paper, cell: PaperCell, tokens: str, *, law: str, unsimulated: str, own_token: float = 0.0
) -> list[Forecast]:
    """A speedup from the tokens of its steps and the step cost of the method's other data sets.

    Nothing where its own tokens or all other data sets are flagged.  `tokens` is what the table calls tokens
    per step; where they are without the target's own, `own_token` is 1.
    """
    block = {name: getattr(cell, name) for name in ("table", "target", "method", "temperature")}
    steps = {c.dataset: c for c in paper.sound(**block, value_name=tokens)}
    speeds = [c for c in paper.sound(**block, value_name=cell.value_name) if not c.dataset.endswith("Avg")]
    others = [c for c in speeds if c.row != cell.row and c.dataset in steps]
    if not others or cell.dataset not in steps:
        return []
    mine = steps[cell.dataset]
    costs = [(steps[c.dataset].value + own_token) / c.value for c in others]
    known = {
        "tokens": printed(mine.value_name, mine),
        "cost": fitted("step cost", math.fsum(costs) / len(costs), min(costs), max(costs)),
    }
    used = (mine, *others, *(steps[c.dataset] for c in others))
    guess = naive_guess(cell, speeds)

    def speed(tokens: float, cost: float) -> float:
        return (tokens + own_token) / cost

    return [forecast(cell, law, speed, known, used, naive=guess, unsimulated=unsimulated)]


WITHOUT_A_DRAFT = ("Lookahead", "Recycling", "PLD", "REST")
"""Methods whose tokens per step depend on the text, and not on how well a draft fits its target."""


def by_other_target(paper: Paper, cell: PaperCell, targets: Sequence[str]) -> Forecast:
    """A speedup from that of the table's other target on the same text: tokens per step x step cost.

    Tokens per step are of a method and a text, a step's cost of a method and a target; what one target's step
    costs more than the other's is known from the other texts.  None of both is printed by itself.
    """
    (other,) = set(targets) - {cell.target}
    block = {name: getattr(cell, name) for name in ("table", "method", "temperature", "value_name")}
    mine, theirs = (
        {c.dataset: c for c in paper.sound(**block, target=target) if c.dataset != "Avg"}
        for target in (cell.target, other)
    )
    tasks = [task for task in mine if task in theirs and task != cell.dataset]
    ratios = [mine[task].value / theirs[task].value for task in tasks]
    known = {
        "there": printed(f"S with {other}", theirs[cell.dataset]),
        "cost": fitted("ratio of step costs", math.fsum(ratios) / len(ratios), min(ratios), max(ratios)),
    }
    used = (theirs[cell.dataset], *(c for task in tasks for c in (mine[task], theirs[task])))

    def law(there: float, cost: float) -> float:
        return there * cost

    guess = naive_guess(cell, mine.values())
    reason = "neither tokens per step nor a step's cost is printed"
    return forecast(
        cell, "tokens by text x cost by target", law, known, used, naive=guess, unsimulated=reason
    )
