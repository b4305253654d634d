"""What a calibration measures: grids of shapes, overlap, and settings run live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from hardware_profiles.surface import Axis
from policies.ar import ArConfig
from policies.config import PolicyConfig, Settings
from policies.pearl import PearlConfig
from policies.pld import PldConfig
from policies.sd import SdConfig
from policies.ssd import SaguaroConfig

BATCHES = (1, 2, 4, 8)
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16)
TREES = (32, 48)
"""Further widths of the target's forwards: verified trees."""
CONTEXTS = (48, 240)
BRANCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48)
PROMPTS = (16, 64, 160)
SEVERAL = 4
WIDE = 8
"""Rows of the live settings that are run in a batch, and in a second one if the grids have it: what host time
grows by with the rows is a guess beyond the widest."""

HELD_FORWARD = ((1, 7, 96), (1, 1, 180), (1, 5, 96), (2, 7, 180), (3, 3, 96), (6, 5, 200), (6, 2, 64))
HELD_WIDE = ((1, 12, 96), (1, 24, 96), (1, 40, 180))
HELD_TREE = ((1, 3, 96), (1, 10, 180), (1, 20, 96), (1, 40, 180), (3, 10, 96), (6, 20, 180))

CALIBRATION_RUNS: tuple[PolicyConfig, ...] = (
    ArConfig(),
    SdConfig(lookahead=3),
    SdConfig(lookahead=6),
    PearlConfig(lookahead=3),
    PearlConfig(lookahead=6),
    SaguaroConfig.of(lookahead=3, fanout=(2,), backup="primary"),
    SaguaroConfig.of(lookahead=3, fanout=(2,), backup="plain"),
    SaguaroConfig.of(lookahead=6, fanout=(2,), backup="primary"),
    SaguaroConfig.of(lookahead=6, fanout=(2,), backup="plain"),
    SaguaroConfig.of(lookahead=3, fanout=(4,), backup="ngram"),
    SdConfig(lookahead=1),
    PldConfig(lookahead=4),
    PearlConfig(lookahead=1),
    SaguaroConfig.of(lookahead=6, fanout=(4,), backup="primary"),
)
"""Settings run live during calibration: they give the host's overheads, and whoever has no simulator
would extrapolate from them (the naive baseline of `validate`).  The last four are the shortest operations, a
target that never waits (`pld`) and the largest trees: what people ask for should lie between what was run,
as host times that were fitted on one side only go astray on the other."""

FEWER_RUNS = CALIBRATION_RUNS[:4] + CALIBRATION_RUNS[5:8] + CALIBRATION_RUNS[9:]
"""Without two whose neighbours are run: in batches, and at a temperature above 0."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Points of one operation, e.g. `target.forward`: values per axis.

    Held-out points are measured but kept out of the grid; they tell the interpolation error.
    """

    operation: str
    axes: tuple[Axis, ...]
    values: tuple[tuple[int, ...], ...]
    held_out: tuple[tuple[int, ...], ...] = ()

    @property
    def points(self) -> list[tuple[int, ...]]:
        """All points to measure, grid first."""
        return [*product(*self.values), *self.held_out]

    def most(self, axis: Axis) -> int:
        """Largest value of an axis on the grid; 0 without one."""
        return max(dict(zip(self.axes, self.values, strict=True)).get(axis, (0,)))

    @property
    def device(self) -> str:
        """`target` or `draft`."""
        return self.operation.split(".")[0]


@dataclass(frozen=True, slots=True)
class LivePart:
    """Settings that are run live, interleaved with each other, plain decoding among them.

    So many prompts are taken, of all categories; at batch 1 every prompt runs on its own.
    """

    configs: tuple[PolicyConfig, ...]
    prompts: int
    repeats: int
    batch: int = 1
    temperature: float = 0.0

    def settings(self, *, top_p: float = 1.0, seed: int = 0) -> list[Settings]:
        """The settings; `top_p` applies where tokens are sampled."""
        mass = top_p if self.temperature > 0.0 else 1.0
        return [Settings(config, self.temperature, mass, seed) for config in self.configs]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how often; slow points of the grids get fewer repetitions.

    All of that is done in so many passes, one after the other: the machine of one quarter of an hour is not
    that of the next.
    """

    grids: tuple[Grid, ...]
    repeats: int
    overlap_repeats: int
    live: tuple[LivePart, ...] = ()
    passes: int = 1

    def upto(self, number: int) -> Plan:
        """What is done when the first `number` passes are: repetitions of the later follow on the earlier."""
        return replace(
            self,
            repeats=number * self.repeats,
            overlap_repeats=number * self.overlap_repeats,
            live=tuple(replace(part, repeats=number * part.repeats) for part in self.live),
            passes=1,
        )

    @property
    def longest(self) -> int:
        """Most tokens that any probe has in a cache, new ones included."""
        most = 0
        for grid in self.grids:
            for point in grid.points:
                at = dict(zip(grid.axes, point, strict=True))
                most = max(most, at.get("context", 0) + at.get("new_tokens", 1))
        return most

    @property
    def largest_batch(self) -> int:
        """Most rows of any probe or live setting."""
        rows = [grid.most("batch") for grid in self.grids]
        return max([1, *rows, *(part.batch for part in self.live)])


def plan(
    *,
    quick: bool = False,
    batches: Sequence[int] = BATCHES,
    temperatures: Sequence[float] = (0.0, 1.0),
    passes: int = 1,
) -> Plan:
    """What a calibration measures; `quick` is batch 1 only and fewer repetitions, else 1 is among batches.

    Settings are run live greedily, and at the first temperature of the traces that is above 0.

    Raises:
        ValueError: A batch below 1.
    """
    if min(batches, default=0) < 1:
        raise ValueError(f"batches must be at least 1, got {', '.join(map(str, batches)) or 'none'}")
    rows = (1,) if quick else tuple(sorted({1, *batches}))
    return Plan(
        grids=_grids(rows),
        repeats=5 if quick else 6,
        overlap_repeats=8 if quick else 16,
        live=_live(rows, temperatures, quick=quick),
        passes=passes,
    )


def _grids(rows: tuple[int, ...]) -> tuple[Grid, ...]:
    forward: tuple[Axis, ...] = ("batch", "new_tokens", "context")
    prefill: tuple[Axis, ...] = ("batch", "new_tokens")
    tree: tuple[Axis, ...] = ("batch", "branches", "context")
    held = tuple(point for point in HELD_FORWARD if point[0] <= rows[-1])
    # A prefill's cost is nearly linear in its tokens, and a large one takes seconds.
    few = tuple(sorted({1, min(rows[-1], SEVERAL)}))
    return (
        Grid("target.forward", forward, (rows, (*WIDTHS, *TREES), CONTEXTS), (*held, *HELD_WIDE)),
        Grid("target.prefill", prefill, (few, PROMPTS)),
        Grid("draft.forward", forward, (rows, WIDTHS, CONTEXTS), held),
        Grid("draft.prefill", prefill, (few, PROMPTS)),
        Grid("draft.tree", tree, (rows, BRANCHES, CONTEXTS), tuple(p for p in HELD_TREE if p[0] <= rows[-1])),
    )


def _live(rows: tuple[int, ...], temperatures: Sequence[float], *, quick: bool) -> tuple[LivePart, ...]:
    """Greedy settings alone and in batches, and fewer of both at a temperature above 0."""
    several = max((b for b in rows if 1 < b <= SEVERAL), default=rows[min(1, len(rows) - 1)])
    wide = max((b for b in rows if b <= WIDE), default=several)
    parts: list[LivePart] = []
    # Greedy first, always: host times of sampled runs are fitted on top of those of greedy ones.
    for temperature in (0.0, *[t for t in temperatures if t > 0.0][:1]):
        greedy = temperature == 0.0
        runs = CALIBRATION_RUNS if greedy else FEWER_RUNS
        # What drawing costs is told by sampled runs alone, and from little more than the weather.
        repeats = 1 if quick and greedy else 2
        prompts = 2 if quick else 4
        parts.append(LivePart(runs, prompts, repeats, temperature=temperature))
        # Twice as many prompts as rows: some are replaced as they finish, as in service.
        # A batch is done sooner than its rows one by one, and a machine's moments weigh as much more.
        if several > 1:
            parts.append(LivePart(FEWER_RUNS, 2 * several, repeats + 1, several, temperature))
        if wide > several:
            parts.append(LivePart(FEWER_RUNS, 2 * wide, repeats + 1, wide, temperature))
    return tuple(parts)
