"""The map as a file: the same bytes for the same seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.breaks.catalogue import LAWS
from analysis.breaks.comparison import LEVEL
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.sweep import LONGER, MARGIN, OWN_ASSUMPTIONS, Cell
from hardware_profiles.files import atomic_write, read_json, to_json

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

    cells: tuple[Cell, ...]
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

    def of(self, law: str, relaxation: str) -> list[Cell]:
        """The cells of a law under a relaxation."""
        return [c for c in self.cells if c.law == law and c.relaxation == relaxation]

    def worst(self, law: str, relaxation: str) -> Cell | None:
        """The cell of a law's largest |error| under a relaxation; None where it does not apply."""
        return max(self.of(law, relaxation), key=lambda c: abs(c.error), default=None)


def as_json(found: Map) -> str:
    """One object, a cell per line."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": found.seed,
        "tokens": found.tokens,
        "tokens_under_own_assumptions": [found.tokens * times for times in LONGER],
        "margin": MARGIN,
        "level": LEVEL,
        "laws": {name: _law(name) for name in found.laws},
        "relaxations": {name: _relaxation(name) for name in found.relaxations},
    }
    cells = ",\n  ".join(to_json(asdict(cell), ensure_ascii=False) for cell in found.cells)
    opening = to_json(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{opening},\n "cells": [\n  {cells}\n ]\n}}\n'


def _law(name: str) -> dict[str, Any]:
    law = LAWS[name]
    return {"form": law.form, "says": law.title, "kind": law.kind, "fault": law.fault or None}


def _relaxation(name: str) -> dict[str, Any]:
    relaxation = RELAXATIONS[name]
    return {"size": relaxation.size, "sizes": list(relaxation.sizes), "because": relaxation.because}


def save_map(found: Map, path: Path) -> None:
    """Write a map; the file appears complete or not at all.

    Raises:
        OSError: The file system refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(as_json(found))


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
        found = Map(tuple(Cell(**cell) for cell in raw["cells"]), raw["seed"], raw["tokens"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: a field is missing or unknown ({error})") from error
    unknown = [n for n in found.laws if n not in LAWS] + _strange({c.relaxation for c in found.cells})
    if unknown:
        raise ValueError(f"{path}: {unknown[0]!r} is no longer among the laws and relaxations; make it anew")
    return found


def _strange(relaxations: set[str]) -> list[str]:
    return sorted(relaxations - set(RELAXATIONS) - {OWN_ASSUMPTIONS})
