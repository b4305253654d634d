"""What each law of the map says at each of its points, before any simulation, and what is said about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.breaks.laws import LAWS
from analysis.breaks.runs import BLOCKS, Observation, PolicyRuns, Stretches
from analysis.breaks.worlds import Case

ONES = Stretches(defaultdict(lambda: np.ones(BLOCKS)))


class NothingRuns(PolicyRuns):
    """Sees ones wherever it looks."""

    def run(self, *_: Any, **__: Any) -> Stretches:
        return ONES

    def speedup(self, *_: Any, **__: Any) -> Observation:
        return Observation(1.0, np.zeros(BLOCKS))


def test_what_the_laws_of_the_map_say(golden: Callable[[str, Any], None]) -> None:
    bench, said = NothingRuns(1, 0), {}
    for name, law in LAWS.items():
        points = {}
        for point in law.points:
            found = law.compare(bench, Case(point))
            points[point.label] = None if found is None else [found.law, found.error]
        said[name] = {
            "form": law.form,
            "title": law.title,
            "kind": law.kind,
            "fault": law.fault,
            "relaxations": law.relaxations,
            "points": points,
        }
    golden("breaks", {"order": list(LAWS), "laws": said})
