"""Adaptive grids on surfaces that are known: planes, kinks, walls of memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.adaptive import At, fitting, held_out_errors, middle, next_values, probes, refine, scattered
from calibrate.plan import Grid
from hardware_profiles.surface import GridCost, LatencySurface, Point

GRID = Grid("target.forward", ("batch", "new_tokens", "context"), ((1, 64), (1, 16), (0, 1024)))


def never() -> bool:
    return False


def plane(at: At) -> float:
    """Linear in each axis: two ticks per axis are exact."""
    batch, tokens, context = at
    return 1e-3 + 1e-4 * batch + 2e-4 * tokens + 1e-6 * context


def roof(at: At) -> float:
    """Flat until 24 tokens, then rising: what a memory-bound device does."""
    batch, tokens, _ = at
    return 1e-3 * max(1.0, batch * tokens / 24)


class Machine:
    """Counts what it is asked, and refuses points beyond its memory."""

    def __init__(self, cost: Callable[[At], float], most: float = math.inf) -> None:
        self.cost, self.most = cost, most
        self.asked: list[At] = []

    def __call__(self, at: At) -> float | None:
        self.asked.append(at)
        batch, tokens, context = at
        return None if batch * (tokens + context) > self.most else self.cost(at)


def test_a_plane_needs_the_ends_of_the_axes_only() -> None:
    machine = Machine(plane)
    found = refine(GRID, machine, until_error=0.01, spent=never)
    assert found.grid.values == ((1, 64), (1, 16), (0, 1024))
    assert found.ended == "error" and found.error is not None and found.error < 1e-9
    # 8 corners; a middle of each axis with the others low, high and central, the centre being the same for
    # all: 3 * 2 + 1; and 16 scattered ones.
    assert len(machine.asked) == 8 + 7 + 16
    assert len(found.grid.held_out) == 7 + 16


def test_a_kink_is_found_and_is_cheaper_than_everywhere() -> None:
    machine = Machine(roof)
    found = refine(GRID, machine, until_error=0.05, spent=never)
    assert found.ended == "error" and found.error is not None and found.error <= 0.05
    # At 1 token per row the kink is at batch 24, at 16 tokens at batch 1.5: ticks crowd below 24.
    batches = found.grid.values[0]
    assert sum(x <= 32 for x in batches) > sum(x > 32 for x in batches)
    assert any(20 <= x <= 28 for x in batches)
    # Context does not matter, and gets no tick.
    assert found.grid.values[2] == (0, 1024)
    # Over the whole volume 95 % of the points are under the bound; of evenly spaced ticks, they are not.
    chosen, even = errors_of(found.grid.values), errors_of(tuple(map(evenly, found.grid.values)))
    assert np.quantile(chosen, 0.95) < 0.05 < np.quantile(even, 0.95)
    assert chosen.max() < 0.6 * even.max()


def evenly(ticks: At) -> At:
    """As many ticks between the same ends, at equal distances."""
    return tuple(sorted({round(x) for x in np.linspace(ticks[0], ticks[-1], len(ticks))}))


def errors_of(values: tuple[At, ...]) -> np.ndarray:
    """Relative errors at all batches and token counts."""
    points = tuple(Point(at=at, mean_s=roof(at)) for at in product(*values))
    surface = LatencySurface(GridCost(axes=GRID.axes, points=points))
    inside = product(range(1, 65), range(1, 17), (512,))
    return np.array(
        [abs(surface.seconds(batch=b, new_tokens=n, context=c) / roof((b, n, c)) - 1.0) for b, n, c in inside]
    )


@given(st.integers(2, 60), st.floats(0.02, 0.3))
def test_the_stated_error_is_that_of_points_the_grid_does_not_know(kink: int, bound: float) -> None:
    def cost(at: At) -> float:
        return max(1.0, at[0] / kink)

    grid = Grid("target.forward", ("batch",), ((1, 64),))
    found = refine(grid, cost, until_error=bound, spent=never)
    known = set(product(*found.grid.values))
    assert not known & set(found.grid.held_out)
    if found.error is not None:
        seconds = {at: cost(at) for at in known}
        held = {at: cost(at) for at in found.grid.held_out}
        assert found.error == max(held_out_errors(found.grid, seconds, held).values())
        assert found.error <= bound


def test_no_point_is_measured_twice() -> None:
    machine = Machine(roof)
    refine(GRID, machine, until_error=0.02, spent=never)
    assert len(machine.asked) == len(set(machine.asked))


def test_time_ends_it_with_the_error_that_is_left() -> None:
    steps = iter([False, False, True])
    found = refine(GRID, Machine(roof), until_error=1e-6, spent=lambda: next(steps))
    assert found.ended == "budget" and found.error is not None and found.error > 1e-6
    assert sum(map(len, found.grid.values)) == 6 + 2  # two ticks were added


def test_an_axis_without_room_ends_it() -> None:
    grid = Grid("target.forward", ("batch",), ((1, 3),))
    # Ticks 1 and 3, a probe at 2; it is off, becomes a tick, and nothing lies between the ticks.
    found = refine(grid, lambda at: 1.0 if at[0] < 3 else 9.0, until_error=0.0, spent=never)
    assert (found.grid.values, found.ended, found.error) == (((1, 2, 3),), "full", None)


def test_what_does_not_fit_is_recorded_and_the_grid_stays_full() -> None:
    machine = Machine(plane, most=20_000)
    found = refine(GRID, machine, until_error=0.01, spent=never)
    # 64 rows of 1024 + 1 tokens are 65600, too many, and so is anything larger, which is not tried.
    assert found.out_of_memory == ((64, 1, 1024),)
    assert (64, 16, 1024) not in machine.asked
    assert found.grid.values == ((1,), (1, 16), (0, 1024))
    assert all(machine(at) is not None for at in product(*found.grid.values))


def test_nothing_fits() -> None:
    with pytest.raises(ValueError, match="not even the smallest"):
        refine(GRID, Machine(plane, most=0.5), until_error=0.01, spent=never)


def test_ticks_go_by_the_share_of_points_that_do_not_fit() -> None:
    # Of batch 8 half the points are too large (context 100 alone), of context 100 half, too: the batch goes.
    assert fitting(((1, 8), (0, 100)), [(8, 100)]) == ((1,), (0, 100))
    # Of batch 8 one of three, of context 100 one of two.
    assert fitting(((1, 8), (0, 50, 100)), [(8, 100)]) == ((1, 8), (0, 50))


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1, 2, None), (1, 3, 2), (1, 64, 8), (0, 1024, 32), (7, 9, 8)]
)
def test_the_middle_is_that_of_the_ratio(low: int, high: int, expected: int | None) -> None:
    assert middle(low, high) == expected


def test_probes_and_next_values_by_hand() -> None:
    values = ((1, 4), (0, 9))
    # Batch 2 at contexts 0 and 9 and the centre, 3; context 3 at batches 1 and 4 and the centre, 2.
    assert probes(values)[:5] == [(2, 0), (2, 9), (2, 3), (1, 3), (4, 3)]
    # Halton: (1/2, 1/3) is 4 ** (1/2) and 9 ** (1/3) = 2.08, (1/4, 2/3) is 1.41 and 4.33, ...
    assert scattered(values)[:2] == [(2, 2), (1, 4)]
    assert set(probes(values)[5:]) <= set(scattered(values))
    errors = {(2, 0): 0.1, (2, 9): 0.4, (2, 3): 0.2, (1, 3): 0.2, (4, 3): 0.3}
    # Along batch the cost doubles, along context it rises by a half.
    seconds = {(1, 0): 2.0, (4, 0): 4.0, (1, 9): 3.0, (4, 9): 6.0}
    assert next_values(values, errors, seconds) == ((1, 2, 4), (0, 9))
    # The centre is worst, and batch's own probes are worse than context's: batch is to blame, alone.
    assert next_values(values, {**errors, (2, 3): 0.9}, seconds) == ((1, 2, 4), (0, 9))
    assert next_values(values, {**errors, (2, 3): 0.9, (2, 9): 0.0}, seconds) == ((1, 4), (0, 3, 9))
    # No axis is off by itself: the one along which the cost changes more is to blame.
    assert next_values(values, {(2, 3): 0.9}, seconds) == ((1, 2, 4), (0, 9))
