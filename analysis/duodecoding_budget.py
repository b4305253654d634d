"""How many tokens DuoDecoding should draft: the cost ratio, the law and simulation, as costs grow less even.

The printed budget is the cost ratio c (`duo.budget`), which is right where a target step takes the same time
whatever it verifies and every time.  Here verification grows with the budget and both devices jitter, by as
much as one likes; and on a profile, effect after effect of the hardware it was measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from policies.laws.duo import best_budget, duo_speedup
from policies.operation import Operation, Prefill, Work
from policies.registry import configure, start
from policies.rows import Rows
from policies.sampling import keyed_generator
from policies.values import View
from simulator.contents import Synthetic
from simulator.costs import Effects
from simulator.law import law_inputs
from simulator.run import Scenario, simulate
from simulator.tokens import coin
from simulator.waterfall import NO_EFFECT
from simulator.world import SimulatedWorld

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""

LENGTH = 2_000
"""Tokens per text of the coins' world."""
LEAST_FACTOR = 0.05
"""No operation takes less than this share of its mean, however it jitters."""


@dataclass(frozen=True, slots=True)
class World:
    """A pair of devices by a few numbers, in target steps.

    Attributes:
        name: For tables.
        acceptance: iid acceptance a.
        ratio: c, a target step over a draft step.
        growth: What a drafted token adds to a verification.
        jitter: Coefficient of variation of a verification's time and of that of a whole draft.
    """

    name: str
    acceptance: float = 0.8
    ratio: float = 24.0
    growth: float = 0.0
    jitter: float = 0.0


PAPERS_WORLDS = (
    World("even"),
    World("verification grows by 0.5 % per token", growth=0.005),
    World("jitter of 10 %", jitter=0.1),
    World("both", growth=0.005, jitter=0.1),
)
"""The paper's budget of 24 tokens, even and uneven."""


class UnevenCosts:
    """Textbook costs that grow with what is verified, and jitter (`simulator.costs.Costs`).

    Args:
        world: How much.
        lookahead: K, by which the mean of a verification is that of the law, 1 + growth * K.
        seed: Keys the jitter, by device and ordinal number of the operation.
    """

    def __init__(self, world: World, lookahead: int, seed: int) -> None:
        self.world = world
        self.lookahead = lookahead
        self.seed = seed
        self._done: dict[str, int] = {}

    @property
    def steady(self) -> UnevenCosts:
        """See `Costs`: of operations with a spread of their own, which no world of these has."""
        return self

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Prefills cost nothing here; DuoDecoding asks for nothing else."""
        assert isinstance(operation, Prefill)
        return [("prefill", 0.0)]

    def worked(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`."""
        world, steps = self.world, work[0]
        mean = 1.0 + world.growth * self.lookahead if device == "target" else 1.0 / world.ratio
        factor = self._factor(device)
        return [(name, mean * factor) for name, _ in steps]

    def _factor(self, device: str) -> float:
        number = self._done.get(device, 0)
        self._done[device] = number + 1
        if self.world.jitter == 0.0:
            return 1.0
        draw = keyed_generator(self.seed, f"uneven-{device}", number).standard_normal()
        return max(LEAST_FACTOR, 1.0 + self.world.jitter * float(draw))


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a world by each opinion.

    Attributes:
        world: Its name.
        ratio: c, which is the printed budget.
        law: Best by the law; None where it knows nothing of the world's effects.
        simulated: Best by simulation.
        speedups: Simulated speedup over plain decoding by budget.
        law_speedups: The law's.
    """

    world: str
    ratio: float
    law: int | None
    simulated: int
    speedups: dict[int, float]
    law_speedups: dict[int, float]

    @property
    def loss(self) -> float:
        """Share of the best simulated speed that the printed budget (the nearest one tried) misses."""
        printed = min(self.speedups, key=lambda k: abs(k - self.ratio))
        return 1.0 - self.speedups[printed] / self.speedups[self.simulated]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "loss_of_printed": self.loss}


def uneven_budget(world: World, budgets: Sequence[int], *, tokens: int, seed: int) -> Budget:
    """Law and simulation of a world at several budgets, with one sequence.

    Args:
        world: Its numbers.
        budgets: K to try.
        tokens: Tokens to simulate per budget; all budgets meet the same coins.
        seed: Keys the coins and the jitter.
    """
    requests = max(1, tokens // LENGTH)
    coins = coin(world.acceptance, exponent=1.0, requests=requests, length=LENGTH, prompt_length=1, seed=seed)
    speedups = {}
    for lookahead in budgets:
        simulated = SimulatedWorld(coins, UnevenCosts(world, lookahead, seed), contents=Synthetic(coins))
        rows = Rows(coins.requests, 1)
        simulated.run(start(simulated, rows, configure("duo", lookahead=lookahead, sequences="1")))
        speedups[lookahead] = requests * LENGTH / simulated.now  # plain decoding emits one token per step
    best = best_budget(
        world.acceptance,
        world.ratio,
        verify_growth=world.growth,
        jitter_target=world.jitter,
        jitter_draft=world.jitter,
    )
    return Budget(
        world=world.name,
        ratio=world.ratio,
        law=best,
        simulated=max(speedups, key=lambda k: speedups[k]),
        speedups=speedups,
        law_speedups={k: _law(world, k) for k in budgets},
    )


def _law(world: World, lookahead: int) -> float:
    return duo_speedup(
        world.acceptance,
        lookahead,
        world.ratio,
        verify_growth=world.growth,
        jitter_target=world.jitter,
        jitter_draft=world.jitter,
    )


STAGES: tuple[tuple[str, Effects], ...] = (
    ("constant times", NO_EFFECT),
    ("verification grows", replace(NO_EFFECT, verify_width=True)),
    ("jitter", replace(NO_EFFECT, jitter=True)),
    ("everything measured", Effects()),
)
"""Effects of real hardware under which a profile's budget is looked for."""


def profile_budgets(
    scenario: Scenario, budgets: Sequence[int], *, progress: Progress = lambda stage, done, total: None
) -> list[Budget]:
    """The budget of a profile on its recorded texts, under more and more of what was measured.

    With one sequence DuoDecoding is PEARL, decision for decision, and any recording replays that at every
    lookahead: so PEARL is what is simulated here.

    Args:
        scenario: Tokens and profile.
        budgets: K to try.
        progress: (stage, done, total).
    """
    told = law_inputs(scenario)
    ratio = told.target_s / told.draft_s
    law = {k: duo_speedup(told.acceptance, k, ratio) for k in budgets}
    found = []
    for done, (name, effects) in enumerate(STAGES):
        progress("budgets", done, len(STAGES))
        stage = replace(scenario, effects=effects)
        plain = simulate(stage, configure("ar")).summary.tokens_per_second
        speedups = {
            k: simulate(stage, configure("pearl", lookahead=k)).summary.tokens_per_second / plain
            for k in budgets
        }
        best = max(speedups, key=lambda k: speedups[k])
        known = best_budget(told.acceptance, ratio) if effects == NO_EFFECT else None
        found.append(Budget(name, ratio, known, best, speedups, law))
    progress("budgets", len(STAGES), len(STAGES))
    return found


def around(ratio: float, most: int) -> tuple[int, ...]:
    """Budgets to try: 1 to c + 2, in steps that leave about a dozen, and each of c - 2 to c + 2."""
    middle = max(1, round(ratio))
    step = max(1, middle // 8)
    near = range(max(1, middle - 2), middle + 3)
    return tuple(sorted({k for k in (*range(1, middle + 2, step), *near) if k <= most}))
