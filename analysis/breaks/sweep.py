"""The map: every law at every point under every relaxation that touches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from analysis.breaks.bench import Bench
from analysis.breaks.comparison import LEVEL, Comparison, Law
from analysis.breaks.points import Case, Point
from analysis.breaks.relaxations import RELAXATIONS

OWN_ASSUMPTIONS = "none"
"""Name of the relaxation that relaxes nothing."""
TOKENS = 10_000
"""Tokens of a run of the map."""
LONGER = (4, 12, 80)
"""How many times as long runs under the laws' own assumptions are, until agreement is decided."""
MARGIN = 0.02
"""Relative error within which a law counts as right."""

Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison of the map.

    Attributes:
        law: Name of the law.
        relaxation: What is relaxed; `OWN_ASSUMPTIONS` for nothing.
        size: How far.
        point: Label of the operating point.
        predicted: What the law says.
        simulated: What was seen.
        error: Signed relative error of the law (see `Comparison`).
        uncertainty: Its standard error.
    """

    law: str
    relaxation: str
    size: float
    point: str
    predicted: float
    simulated: float
    error: float
    uncertainty: float


def agrees(found: Comparison | Cell, *, margin: float = MARGIN, level: float = LEVEL) -> bool:
    """Whether the whole confidence interval of the error lies within the margin.

    A test of equivalence: too short a simulation fails it, where a test that merely does not refuse the
    law would pass.
    """
    return abs(found.error) + level * found.uncertainty <= margin


def differs(found: Comparison | Cell, *, margin: float = MARGIN, level: float = LEVEL) -> bool:
    """Whether the whole confidence interval of the error lies outside the margin."""
    return abs(found.error) - level * found.uncertainty > margin


def sweep(
    laws: Sequence[Law],
    relaxations: Sequence[str],
    *,
    seed: int = 0,
    tokens: int = TOKENS,
    longer: Sequence[int] = LONGER,
    progress: Progress = lambda stage, done, total: None,
) -> list[Cell]:
    """Cells of some laws and relaxations, each law first under its own assumptions.

    Args:
        laws: Which laws.
        relaxations: Names of relaxations; those that do not touch a law are left out.
        seed: Keys coins and jitter.
        tokens: Tokens of a run.
        longer: How many times as long runs are where nothing is relaxed; each only if those before it were
            too short to tell.
        progress: (stage, done, total).
    """
    benches = [Bench(tokens * times, seed) for times in (1, *longer)]
    work: list[tuple[Law, str, float, Point]] = []
    for law in laws:
        work += [(law, OWN_ASSUMPTIONS, 0.0, point) for point in law.points]
        for name in relaxations:
            if name in law.relaxations:
                sizes = RELAXATIONS[name].sizes
                work += [(law, name, size, point) for size in sizes for point in law.points]
    cells: list[Cell] = []
    for done, (law, name, size, point) in enumerate(work):
        cell = _cell(benches, law, name, size, point)
        if cell is not None:
            cells.append(cell)
        progress("comparisons", done + 1, len(work))
    return cells


def under_own_assumptions(benches: Sequence[Bench], law: Law, point: Point) -> Comparison | None:
    """The comparison of a law where nothing is relaxed, in runs long enough to tell whether it agrees.

    Args:
        benches: Of longer and longer runs.
        law: The law.
        point: The point.
    """
    found: Comparison | None = None
    for bench in benches:
        found = law.compare(bench, Case(point))
        if found is None or agrees(found) or differs(found):
            break
    return found


def _cell(benches: Sequence[Bench], law: Law, name: str, size: float, point: Point) -> Cell | None:
    if name == OWN_ASSUMPTIONS:
        case, found = Case(point), under_own_assumptions(benches[1:], law, point)
    else:
        case = RELAXATIONS[name].case(point, size)
        found = law.compare(benches[0], case)
    if found is None:
        return None
    label = case.point.label if name == "trace" else point.label
    numbers = (found.law, found.simulated, found.error, found.uncertainty)
    return Cell(law.name, name, size, label, *(_rounded(n) for n in numbers))


def _rounded(value: float) -> float:
    """Six digits: what lies beyond them is noise, and may differ by the machine's last bit."""
    return float(f"{value:.6g}")
