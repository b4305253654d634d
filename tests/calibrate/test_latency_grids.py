"""Measuring grids on a machine whose cost is known: a formula."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.latency import Grid, Plan, measure_grids, plan, robust, shape_of
from hardware_profiles.latency import LatencySurface

FORWARD = Grid(
    "target.forward", ("batch", "new_tokens", "context"), ((1, 2), (1, 4), (0, 100)), ((1, 2, 50),)
)
TREE = Grid("draft.tree", ("branches", "context"), ((1, 8), (0, 100)))


def bilinear(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
    """1 ms, plus .1 ms per new token, plus 1 us per token of context; half of it on the draft."""
    tokens = shape.get("batch", 1) * shape.get("new_tokens", shape.get("branches", 0))
    seconds = 1e-3 + 1e-4 * tokens + 1e-6 * shape["context"]
    return [seconds * (1.0 if device == "target" else 0.5)] * repeats


def test_a_known_machine_is_recovered() -> None:
    seen: list[tuple[int, int]] = []
    grids = measure_grids(
        Plan((FORWARD, TREE), repeats=2, overlap_repeats=1),
        bilinear,
        seed=0,
        progress=lambda a, b: seen.append((a, b)),
    )
    surface = LatencySurface(grids["target.forward"])
    # 2 rows x 3 tokens, 40 of context: 1 + .6 + .04 ms, linear between the grid's points
    assert surface.seconds(batch=2, new_tokens=3, context=40) == pytest.approx(1.64e-3)
    assert LatencySurface(grids["draft.tree"]).seconds(branches=4, context=0) == pytest.approx(0.7e-3)
    error = grids["target.forward"].interpolation_error
    assert error is not None and error.worst < 1e-9 and error.held_out_points == 1
    assert seen[-1] == (2 * (8 + 1 + 4), 2 * (8 + 1 + 4))


def test_every_visit_is_made_and_both_devices_take_turns() -> None:
    visits: list[str] = []

    def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        visits.append(device)
        return [1.0] * repeats

    measure_grids(Plan((FORWARD, TREE), 1, 1), timer, seed=0, progress=lambda *_: None)
    assert visits.count("target") == 9 and visits.count("draft") == 4
    # 4 draft visits among 9 target visits: never more than 3 of the target's in a row.
    assert "target target target target" not in " ".join(visits)


def test_stragglers_are_left_out() -> None:
    assert robust(np.array([1.0, 1.1, 0.9, 50.0])).tolist() == [1.0, 1.1, 0.9]


def test_a_prefill_starts_from_an_empty_cache() -> None:
    grid = Grid("draft.prefill", ("batch", "new_tokens"), ((1,), (16,)))
    assert shape_of(grid, (1, 16)) == {"batch": 1, "new_tokens": 16, "context": 0}


@pytest.mark.parametrize("quick", [True, False])
def test_held_out_points_lie_inside_their_grid_but_not_on_it(quick: bool) -> None:
    for grid in plan(quick=quick).grids:
        for point in grid.held_out:
            assert all(min(v) <= x <= max(v) for x, v in zip(point, grid.values, strict=True))
            assert any(x not in v for x, v in zip(point, grid.values, strict=True))
