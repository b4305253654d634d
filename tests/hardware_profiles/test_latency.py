"""Durations between and beyond the measured points."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware_profiles.records import record
from hardware_profiles.surface import ConstantCost, GridCost, LatencySurface, Point, held_out_error

TICKS = {"batch": (1, 4), "new_tokens": (1, 2, 5), "context": (64, 256)}


def tabulate(function: Any, ticks: dict[str, tuple[int, ...]] = TICKS) -> GridCost:
    """The grid with a function's values."""
    points = tuple(Point(at=at, mean_s=function(*at)) for at in product(*ticks.values()))
    return record(GridCost, {"axes": tuple(ticks), "points": points})


def spread(*quantiles: float, mean: float = 1.0, samples: int = 1, at: int = 1) -> Point:
    """A point with quantiles."""
    return record(Point, {"at": (at,), "mean_s": mean, "quantiles_s": quantiles, "samples": samples})


def multilinear(batch: float, new_tokens: float, context: float) -> float:
    """Linear in each coordinate, with all products."""
    return 1e-3 * (3 + 2 * batch + new_tokens + 0.01 * context * batch + 0.1 * batch * new_tokens)


means = st.floats(1e-6, 10)


@given(values=st.lists(means, min_size=12, max_size=12))
def test_measured_points_are_reproduced_exactly(values: list[float]) -> None:
    cells = list(product(*TICKS.values()))
    table = dict(zip(cells, values, strict=True))
    # The floor of a tenth of the smallest mean can never lie above a mean.
    surface = LatencySurface(tabulate(lambda *at: table[at]))
    for at in cells:
        assert surface.seconds(**dict(zip(TICKS, at, strict=True))) == table[at]


@given(batch=st.floats(0, 10), new_tokens=st.floats(0, 20), context=st.floats(0, 2000))
def test_it_is_linear_between_the_points_and_beyond_them(
    batch: float, new_tokens: float, context: float
) -> None:
    surface = LatencySurface(tabulate(multilinear))
    at = {"batch": batch, "new_tokens": new_tokens, "context": context}
    assert surface.seconds(**at) == pytest.approx(multilinear(**at), rel=1e-9)


def test_halfway_by_hand() -> None:
    # (1 + 3) / 2 = 2 halfway, and one step of 3 - 1 = 2 per 10 beyond the end: 3 + 2 = 5.
    surface = LatencySurface(tabulate(lambda c: {0: 1.0, 10: 3.0}[c], {"context": (0, 10)}))
    assert surface.seconds(context=5) == 2.0
    assert surface.seconds(context=20) == 5.0


def test_a_duration_never_reaches_zero() -> None:
    # On the line through (100, 1) and (200, 3) the duration at 0 would be -1.
    surface = LatencySurface(tabulate(lambda c: {100: 1.0, 200: 3.0}[c], {"context": (100, 200)}))
    assert surface.seconds(context=0) == 0.1


@pytest.mark.parametrize("axis", list(TICKS))
def test_along_an_axis_is_a_table_of_the_same_values(axis: str) -> None:
    surface = LatencySurface(tabulate(multilinear))
    fixed: dict[str, float] = {"batch": 3, "new_tokens": 4, "context": 100}
    del fixed[axis]
    table = surface.along(axis, 300, **fixed)
    assert table.shape == (301,)
    for value in (0, 1, 150, 300):
        assert table[value] == surface.seconds(**fixed, **{axis: value})


def test_the_order_of_the_points_does_not_matter() -> None:
    cost = tabulate(multilinear)
    backwards = GridCost(axes=cost.axes, points=cost.points[::-1])
    at = {"batch": 2, "new_tokens": 3, "context": 77}
    assert LatencySurface(backwards).seconds(**at) == LatencySurface(cost).seconds(**at)


def test_an_axis_with_one_point_has_no_influence() -> None:
    ticks = {"batch": (1,), "context": (0, 10)}
    surface = LatencySurface(tabulate(lambda batch, context: 1.0 + context, ticks))
    assert surface.seconds(batch=8, context=5) == 6.0
    single = LatencySurface(tabulate(lambda *_: 7.0, {"batch": (2,), "context": (5,)}))
    assert single.along("context", 2, batch=9).tolist() == [7.0, 7.0, 7.0]


def test_a_missing_axis_is_named_and_others_are_ignored() -> None:
    surface = LatencySurface(tabulate(multilinear))
    with pytest.raises(ValueError, match="context must be given"):
        surface.seconds(batch=1, new_tokens=1)
    with pytest.raises(ValueError, match="context must be given"):
        surface.along("batch", 3, new_tokens=1)
    at = {"batch": 1, "new_tokens": 1, "context": 64}
    assert surface.seconds(**at, branches=9) == surface.seconds(**at)


def test_a_constant_is_the_same_everywhere() -> None:
    surface = LatencySurface(ConstantCost(seconds=0.025))
    assert surface.seconds() == surface.seconds(batch=4, context=1000) == 0.025
    assert surface.along("context", 2, batch=1).tolist() == [0.025] * 3
    assert surface.noise(np.array([0.0, 0.5, 0.999])).tolist() == [1.0, 1.0, 1.0]


def test_spread_is_pooled_by_the_number_of_samples() -> None:
    # Ratios of the first: .8 .9 1 1.1 1.2, of the second (mean 2): .5 .75 1 1.5 2, one sample to three.
    cost = GridCost(
        axes=("batch",),
        points=(
            spread(0.8, 0.9, 1.0, 1.1, 1.2, samples=1),
            spread(1.0, 1.5, 2.0, 3.0, 4.0, mean=2.0, samples=3, at=2),
            Point(at=(3,), mean_s=5.0, samples=100),  # no quantiles: says nothing about the spread
        ),
    )
    # E.g. the first: (0.8 + 3 * 0.5) / 4 = 0.575.
    assert LatencySurface(cost).spread == pytest.approx([0.575, 0.7875, 1.0, 1.4, 1.8])


def test_noise_by_hand() -> None:
    # All ratios 1 but the last, 2.  Mean of the inverse: 0.05 + 0.7 (flat at 1 up to .75)
    # + 0.2 * (1 + 2) / 2 + 0.05 * 2 = 1.15.
    cost = GridCost(axes=("batch",), points=(spread(1, 1, 1, 1, 2),))
    factors = LatencySurface(cost).noise(np.array([0.0, 0.5, 0.85, 0.95, 1.0]))
    assert factors == pytest.approx(np.array([1, 1, 1.5, 2, 2]) / 1.15)


@given(ratios=st.lists(st.floats(0.01, 100), min_size=5, max_size=5))
def test_noise_has_mean_one_and_keeps_the_order(ratios: list[float]) -> None:
    cost = GridCost(axes=("batch",), points=(spread(*sorted(ratios)),))
    surface = LatencySurface(cost)
    # The midpoint rule is exact on every linear piece, as all levels are multiples of 1/20000.
    uniform = (np.arange(20_000) + 0.5) / 20_000
    factors = surface.noise(uniform.reshape(100, 200))
    assert factors.shape == (100, 200)
    assert factors.mean() == pytest.approx(1, abs=1e-9)
    assert (np.diff(factors.ravel()) >= 0).all()


def test_held_out_error_by_hand() -> None:
    # The grid is 1 + c.  Held out: 6 against 5 (error .2), 3 against 3 (0), 11 against 10 (.1).
    cost = tabulate(lambda c: 1.0 + c, {"context": (0, 10)})
    held_out = [Point(at=(c,), mean_s=mean) for c, mean in ((5, 5.0), (2, 3.0), (10, 10.0))]
    error = held_out_error(cost, held_out)
    assert error.median == pytest.approx(0.1)
    assert error.worst == pytest.approx(0.2)
    assert error.p95 == pytest.approx(0.19)
    assert error.held_out_points == 3
    with pytest.raises(ValueError, match="no held-out points"):
        held_out_error(cost, [])
