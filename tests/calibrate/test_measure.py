"""Measuring grids on a machine whose cost is known: a formula."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.journal import Journal
from calibrate.measure import Repetition, Samples, Timer, measure_grids, robust, shape_of
from calibrate.plan import Grid, Plan, plan
from hardware_profiles.surface import LatencySurface

FORWARD = Grid(
    "target.forward", ("batch", "new_tokens", "context"), ((1, 2), (1, 4), (0, 100)), ((1, 2, 50),)
)
TREE = Grid("draft.tree", ("batch", "branches", "context"), ((1,), (1, 8), (0, 100)))
VISITS = 8 + 1 + 4


def bilinear(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
    """1 ms, plus .1 ms per new token, plus 1 us per token of context; half of it on the draft."""
    tokens = shape["batch"] * shape.get("new_tokens", shape.get("branches", 0))
    seconds = 1e-3 + 1e-4 * tokens + 1e-6 * shape["context"]
    return [seconds * (1.0 if device == "target" else 0.5)] * repeats


def quiet(done: int, total: int) -> None:
    """No progress."""


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
    tree = LatencySurface(grids["draft.tree"])
    assert tree.seconds(batch=1, branches=4, context=0) == pytest.approx(0.7e-3)
    error = grids["target.forward"].interpolation_error
    assert error is not None and error.worst < 1e-9 and error.held_out_points == 1
    assert seen[-1] == (2 * VISITS, 2 * VISITS)


def test_every_visit_is_made_and_both_devices_take_turns() -> None:
    visits: list[str] = []

    def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        visits.append(device)
        return [0.01] * repeats

    measure_grids(Plan((FORWARD, TREE), 1, 1), timer, seed=0, progress=quiet)
    assert visits.count("target") == 9 and visits.count("draft") == 4
    # 4 draft visits among 9 target visits: never more than 3 of the target's in a row.
    assert "target target target target" not in " ".join(visits)


def drifting(*, stop_after: int = 10**9) -> Timer:
    """A machine that is 1 % slower with every repetition of the grids, and fails at some visit."""
    visits = 0

    def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        nonlocal visits
        if visits == stop_after:
            raise InterruptedError
        factor = 1.0 + 0.01 * (visits // VISITS)
        visits += 1
        return [factor * s for s in bilinear(device, kind, shape, repeats)]

    return timer


def test_the_drift_of_the_repetitions_is_kept() -> None:
    grids = measure_grids(Plan((FORWARD, TREE), 3, 1), drifting(), seed=0, progress=quiet)
    for cost in grids.values():
        # 1, 1.01, 1.02 over their mean 1.01
        assert cost.block_factors == pytest.approx((1 / 1.01, 1.0, 1.02 / 1.01))


@pytest.mark.parametrize("visits", [0, 5, VISITS, 2 * VISITS + 1])
def test_an_interrupted_measurement_keeps_its_repetitions(visits: int) -> None:
    what, journal = Plan((FORWARD, TREE), 3, 1), Journal()
    with pytest.raises(InterruptedError):
        measure_grids(what, drifting(stop_after=visits), seed=0, progress=quiet, journal=journal)
    done = journal.stage("grids")
    assert len(done) == visits // VISITS
    seen: list[str] = []

    def fast(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        seen.append(device)
        return [1e-6] * repeats

    grids = measure_grids(what, fast, seed=0, progress=quiet, journal=journal)
    assert journal.stage("grids")[: len(done)] == done
    assert len(seen) == (3 - len(done)) * VISITS
    assert len(grids["target.forward"].points) == 8


def test_the_order_of_a_repetition_does_not_depend_on_those_before() -> None:
    orders: list[list[tuple[str, ...]]] = []
    for interrupted in (False, True):
        order: list[tuple[str, ...]] = []
        journal = Journal()
        if interrupted:
            with pytest.raises(InterruptedError):
                measure_grids(
                    Plan((FORWARD,), 2, 1), drifting(stop_after=9), seed=5, progress=quiet, journal=journal
                )

        def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
            order.append((device, kind, *map(str, shape.values())))  # noqa: B023
            return [1e-3] * repeats

        measure_grids(Plan((FORWARD,), 2, 1), timer, seed=5, progress=quiet, journal=journal)
        orders.append(order[-9:])
    assert orders[0] == orders[1]


def test_slow_points_are_visited_less_often_but_each_is_there() -> None:
    counts: dict[int, int] = {}

    def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        counts[shape["new_tokens"]] = counts.get(shape["new_tokens"], 0) + 1
        return [{1: 0.01, 2: 0.2, 3: 0.9}[shape["new_tokens"]]] * repeats

    grid = Grid("target.prefill", ("batch", "new_tokens"), ((1,), (1, 2, 3)))
    cost = measure_grids(Plan((grid,), 5, 1), timer, seed=0, progress=quiet)["target.prefill"]
    # two warm samples of a visit: .02, .4 and 1.8 s, so repetitions 0 1 2 3 4, 0 2 4 and 0 3
    assert counts == {1: 5, 2: 3, 3: 2}
    assert [p.samples for p in cost.points] == [10, 6, 4]
    assert len(cost.block_factors) == 5


def test_stragglers_are_left_out() -> None:
    assert robust(np.array([1.0, 1.1, 0.9, 50.0])).tolist() == [1.0, 1.1, 0.9]
    # and an interrupted point does not make a whole repetition look slow
    quick: Repetition = {("t.f", (i,)): [1.0] for i in range(3)}
    assert Samples([quick, quick | {("t.f", (0,)): [9.0]}]).block_factors("t.f") == (1.0, 1.0)


def test_a_prefill_starts_from_an_empty_cache() -> None:
    grid = Grid("draft.prefill", ("batch", "new_tokens"), ((1,), (16,)))
    assert shape_of(grid, (1, 16)) == {"batch": 1, "new_tokens": 16, "context": 0}


@pytest.mark.parametrize("what", [plan(quick=True), plan(), plan(batches=(2, 16)), plan(batches=(1,))])
def test_held_out_points_lie_inside_their_grid_but_not_on_it(what: Plan) -> None:
    for grid in what.grids:
        for point in grid.held_out:
            assert all(min(v) <= x <= max(v) for x, v in zip(point, grid.values, strict=True))
            assert any(x not in v for x, v in zip(point, grid.values, strict=True))


def test_plans_say_how_large_they_are() -> None:
    full, quick = plan(), plan(quick=True)
    assert full.longest == 240 + 48 and (full.largest_batch, quick.largest_batch) == (8, 1)
    assert [(p.batch, p.temperature) for p in full.live] == [
        (batch, temperature) for temperature in (0.0, 1.0) for batch in (1, 4, 8)
    ]
    assert [(p.batch, p.temperature) for p in quick.live] == [(1, 0.0), (1, 1.0)]
    assert [p.batch for p in plan(batches=(16,), temperatures=(0.0,)).live] == [1, 16]
    with pytest.raises(ValueError, match="batches must be at least 1"):
        plan(batches=(0, 4))


def test_a_second_pass_adds_to_the_first_and_repeats_nothing() -> None:
    visits: list[tuple[str, str, tuple[tuple[str, int], ...]]] = []

    def timer(device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        visits.append((device, kind, tuple(shape.items())))
        return [0.01] * repeats

    whole = Plan((FORWARD, TREE), repeats=2, overlap_repeats=1, passes=2)
    journal = Journal()
    measure_grids(whole.upto(1), timer, seed=0, progress=quiet, journal=journal)
    assert len(visits) == 2 * VISITS
    apart = measure_grids(whole.upto(2), timer, seed=0, progress=quiet, journal=journal)
    in_passes, visits = visits, []
    assert measure_grids(Plan((FORWARD, TREE), 4, 2), timer, seed=0, progress=quiet) == apart
    assert visits == in_passes
