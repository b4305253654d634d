"""The golden set: what the product said, kept as files and compared value by value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
TOLERANCE = 1e-9
"""Relative: what a reordered sum may change, and nothing else."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew.")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a JSON-like value with `data/NAME.json`; `--update-golden` writes it instead.

    With `part`, several tests share the file, each with an entry of its own.
    """

    def compare(name: str, value: Any, part: str | None = None) -> None:
        path = DATA / f"{name}.json"
        said = json.loads(json.dumps(value))
        kept = json.loads(path.read_text()) if path.exists() else {}
        if request.config.getoption("--update-golden", default=False):
            kept = said if part is None else kept | {part: said}
            path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        old, where = (kept, name) if part is None else (kept.get(part), f"{name}.{part}")
        differences = list(_differences(old, said, where))
        assert not differences, "\n".join(differences[:20])

    return compare


def _differences(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{where}.{key}: only in the {'new' if key in new else 'golden'} value"
            else:
                yield from _differences(old[key], new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{where}[{index}]")
    elif isinstance(old, float) and isinstance(new, int | float):
        if not (
            math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=1e-12) or (math.isnan(old) and math.isnan(new))
        ):
            yield f"{where}: {new!r}, golden {old!r}"
    elif old != new:
        yield f"{where}: {new!r}, golden {old!r}"
