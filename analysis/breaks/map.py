"""The map: every law at every point under every relaxation that touches it, and its file.

The same seed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from analysis.breaks.comparison import LEVEL, Law, LawError
from analysis.breaks.laws import LAWS
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.runs import PolicyRuns
from analysis.breaks.worlds import Case, LawPoint
from calibrate.options import Progress, quiet
from hardware_profiles.files import read_json, to_json

OWN_ASSUMPTIONS = "none"
"""Name of the relaxation that relaxes nothing."""
TOKENS = 10_000
"""Tokens of a run of the map."""
LONGER = (4, 12, 80)
"""How many times as long runs under the laws' own assumptions are, until agreement is decided."""
MARGIN = 0.02
"""Relative error within which a law counts as right."""


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One comparison of the map.

    Attributes:
        law: Name of the law.
        relaxation: What is relaxed; `OWN_ASSUMPTIONS` for nothing.
        size: How far.
        point: Label of the operating point.
        predicted: What the law says.
        simulated: What was seen.
        error: Signed relative error of the law (see `LawError`).
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


def agrees(result: LawError | MapEntry, *, margin: float = MARGIN, level: float = LEVEL) -> bool:
    """Whether the whole confidence interval of the error lies within the margin.

    A test of equivalence: too short a simulation fails it, where a test that merely does not refuse the
    law would pass.
    """
    return abs(result.error) + level * result.uncertainty <= margin


def differs(result: LawError | MapEntry) -> bool:
    """Whether the whole confidence interval of the error lies outside the margin."""
    return abs(result.error) - LEVEL * result.uncertainty > MARGIN


def sweep(
    laws: Sequence[Law],
    relaxations: Sequence[str],
    *,
    seed: int = 0,
    tokens: int = TOKENS,
    longer: Sequence[int] = LONGER,
    progress: Progress = quiet,
) -> list[MapEntry]:
    """Cells of some laws, each first under its own assumptions, and of the relaxations that touch them.

    Where nothing is relaxed runs are `longer`, so many times as long; each only if those before it were too
    short to tell.
    """
    benches = [PolicyRuns(tokens * times, seed) for times in (1, *longer)]
    work: list[tuple[Law, str, float, LawPoint]] = []
    for law in laws:
        work += [(law, OWN_ASSUMPTIONS, 0.0, point) for point in law.points]
        for name in relaxations:
            if name in law.relaxations:
                sizes = RELAXATIONS[name].sizes
                work += [(law, name, size, point) for size in sizes for point in law.points]
    cells: list[MapEntry] = []
    for done, (law, name, size, point) in enumerate(work):
        cell = _cell(benches, law, name, size, point)
        if cell is not None:
            cells.append(cell)
        progress("comparisons", done + 1, len(work))
    return cells


def under_own_assumptions(benches: Sequence[PolicyRuns], law: Law, point: LawPoint) -> LawError | None:
    """The comparison of a law where nothing is relaxed, in runs long enough to tell whether it agrees.

    The runs of the benches are longer and longer.
    """
    result: LawError | None = None
    for bench in benches:
        result = law.compare(bench, Case(point))
        if result is None or agrees(result) or differs(result):
            break
    return result


def _cell(
    benches: Sequence[PolicyRuns], law: Law, name: str, size: float, point: LawPoint
) -> MapEntry | None:
    if name == OWN_ASSUMPTIONS:
        case, result = Case(point), under_own_assumptions(benches[1:], law, point)
    else:
        case = RELAXATIONS[name].case(point, size)
        result = law.compare(benches[0], case)
    if result is None:
        return None
    label = case.point.label if name == "trace" else point.label
    # What lies beyond six digits is noise, and may differ by the machine's last bit.
    return MapEntry(law.name, name, size, label, *(float(f"{number:.6g}") for number in astuple(result)))


SCHEMA = "spectwin/breaks/1"
STORED = Path(__file__).resolve().parents[1] / "results" / "breaks" / "map.json"
"""The map that docs/results/breaks.md is written from."""


@dataclass(frozen=True)
class Map:
    """Errors of laws, and how they were found.

    Attributes:
        cells: The comparisons.
        seed: Of coins and jitter.
        tokens: Tokens of a run.
    """

    cells: tuple[MapEntry, ...]
    seed: int
    tokens: int

    @property
    def laws(self) -> list[str]:
        """Names of the laws in it, in order."""
        return list(dict.fromkeys(cell.law for cell in self.cells))

    @property
    def relaxations(self) -> list[str]:
        """Names of the relaxations in it, in the order of the catalogue; without `OWN_ASSUMPTIONS`."""
        seen = {cell.relaxation for cell in self.cells}
        return [name for name in RELAXATIONS if name in seen]

    def of(self, law: str, relaxation: str) -> list[MapEntry]:
        """The cells of a law under a relaxation."""
        return [c for c in self.cells if c.law == law and c.relaxation == relaxation]

    def worst(self, law: str, relaxation: str) -> MapEntry | None:
        """The cell of a law's largest |error| under a relaxation; None where it does not apply."""
        return max(self.of(law, relaxation), key=lambda c: abs(c.error), default=None)


def as_json(errors: Map) -> str:
    """One object, a cell per line."""
    laws = {name: LAWS[name] for name in errors.laws}
    relaxations = {name: RELAXATIONS[name] for name in errors.relaxations}
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": errors.seed,
        "tokens": errors.tokens,
        "tokens_under_own_assumptions": [errors.tokens * times for times in LONGER],
        "margin": MARGIN,
        "level": LEVEL,
        "laws": {
            name: {"form": law.form, "says": law.title, "kind": law.kind, "fault": law.fault or None}
            for name, law in laws.items()
        },
        "relaxations": {
            name: {"size": each.size, "sizes": list(each.sizes), "because": each.because}
            for name, each in relaxations.items()
        },
    }
    cells = ",\n  ".join(to_json(asdict(cell), ensure_ascii=False) for cell in errors.cells)
    opening = to_json(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{opening},\n "cells": [\n  {cells}\n ]\n}}\n'


def load_map(path: Path = STORED) -> Map:
    """Read a map.

    Raises:
        ValueError: The file is no map, or one of laws that are not there any more.
        OSError: There is none.
    """
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise ValueError(f"{path}: no map of this version ({SCHEMA}); make one with --json {path}")
    try:
        errors = Map(tuple(MapEntry(**cell) for cell in raw["cells"]), raw["seed"], raw["tokens"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: a field is missing or unknown ({error})") from error
    relaxations = {cell.relaxation for cell in errors.cells} - {*RELAXATIONS, OWN_ASSUMPTIONS}
    if unknown := [name for name in errors.laws if name not in LAWS] + sorted(relaxations):
        raise ValueError(f"{path}: {unknown[0]!r} is no longer among the laws and relaxations; make it anew")
    return errors
