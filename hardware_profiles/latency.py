"""Durations between and beyond the measured points of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.costs import (
    LEVELS,
    Axis,
    ConstantCost,
    GridCost,
    InterpolationError,
    OperationCost,
    Point,
)

FloatArray: TypeAlias = NDArray[np.float64]

# Linear extrapolation far below a grid can fall below zero, and an event must not happen before its
# cause.  No operation is taken to be faster than this share of the fastest measured point.
_FLOOR = 0.1


class LatencySurface:
    """Duration of one operation as a function of its coordinates (see `costs.Axis`).

    Multilinear between the points of a grid and linear beyond them, but never less than a tenth of the
    smallest mean; an axis with a single point has no influence.  Coordinates that the operation does
    not depend on are ignored, so that a caller passes all it has and need not know the profile's axes.
    """

    def __init__(self, cost: OperationCost) -> None:
        """Build the surface of one entry of `Profile.operations`."""
        self.axes: tuple[Axis, ...] = cost.axes
        self._ticks: dict[str, FloatArray] = {}
        if isinstance(cost, ConstantCost):
            self._means = np.array(cost.seconds)
            self._spread = np.ones(len(LEVELS))
        else:
            ticks = cost.ticks()
            self._ticks = {a: np.array(t, dtype=np.float64) for a, t in zip(cost.axes, ticks, strict=True)}
            # The grid is full, so that the points in the order of their coordinates are its values.
            means = [point.mean_s for point in sorted(cost.points, key=lambda point: point.at)]
            self._means = np.reshape(means, [len(tick) for tick in ticks])
            self._spread = _pooled_spread(cost.points)
        self._free = [axis for axis in self.axes if len(self._ticks[axis]) > 1]
        self._interpolate: Any = None

    def seconds(self, **coordinates: float) -> float:
        """Mean duration, s, at the given coordinates.

        Raises:
            ValueError: An axis of this surface is not given.
        """
        self._require(coordinates)
        at = [[coordinates[axis] for axis in self._free]]
        return float(self._evaluate(np.array(at, dtype=np.float64))[0])

    def along(self, axis: str, upto: int, *, start: int = 0, **fixed: float) -> FloatArray:
        """[upto + 1 - start] mean durations, s, at the integers start ... upto of one axis, the others fixed.

        This is the simulator's fast path: one call here replaces a thousand interpolations.  Along an
        axis that the operation does not depend on the durations are all the same.

        Raises:
            ValueError: Another axis of this surface is not given.
        """
        values = np.arange(start, upto + 1, dtype=np.float64)
        self._require({**fixed, axis: 0.0})
        at = np.empty((len(values), len(self._free)))
        for column, name in enumerate(self._free):
            at[:, column] = values if name == axis else fixed[name]
        return self._evaluate(at)

    def covers(self, **coordinates: float) -> bool:
        """Whether the coordinates lie within the measured grid, so that nothing is extrapolated.

        A constant covers everything.

        Raises:
            ValueError: An axis of this surface is not given.
        """
        self._require(coordinates)
        return all(bool(t[0] <= coordinates[axis] <= t[-1]) for axis, t in self._ticks.items())

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest measured coordinate on each axis; none for a constant."""
        return {axis: (float(self._ticks[axis][0]), float(self._ticks[axis][-1])) for axis in self.axes}

    def relative_spread(self) -> FloatArray:
        """[5] ratios quantile / mean at `LEVELS`, pooled over the grid; ones where no spread is known.

        Pooled with the number of samples as weight, since a handful of samples says little about the
        tails of one cell.
        """
        return self._spread.copy()

    def noise(self, uniform: NDArray[np.floating[Any]]) -> FloatArray:
        """Factors on the mean duration, of mean exactly 1, from uniforms in [0, 1) of any shape.

        They follow the inverse of the distribution function that is linear between the pooled quantiles
        and flat beyond the outer two: five quantiles say nothing about the tails.
        """
        return varied(self._spread, uniform)

    def _require(self, coordinates: dict[str, float]) -> None:
        if missing := [axis for axis in self.axes if axis not in coordinates]:
            raise ValueError(f"{', '.join(missing)} must be given: the duration depends on it")

    def _evaluate(self, at: FloatArray) -> FloatArray:
        """[n] durations at [n, free axes] coordinates."""
        if not self._free:
            return np.full(len(at), float(self._means.flat[0]))
        if self._interpolate is None:
            # Here and not at the top: it takes longer to import than all else together, and a
            # simulation with constant costs never needs it.
            from scipy.interpolate import RegularGridInterpolator

            self._interpolate = RegularGridInterpolator(
                [self._ticks[axis] for axis in self._free],
                self._means.squeeze(),
                bounds_error=False,
                fill_value=None,
            )
        seconds: FloatArray = np.maximum(self._interpolate(at), _FLOOR * self._means.min())
        return seconds


def varied(spread: Sequence[float] | FloatArray, uniform: NDArray[np.floating[Any]]) -> FloatArray:
    """Factors of mean exactly 1, from uniforms in [0, 1) of any shape.

    They follow the inverse of the distribution function that is linear between the quantiles `spread` at
    `LEVELS` and flat beyond the outer two.
    """
    levels = np.asarray(spread, dtype=np.float64)
    # The integral of the inverse over [0, 1]: two rectangles outside, four trapezia inside.
    outside = LEVELS[0] * levels[0] + (1 - LEVELS[-1]) * levels[-1]
    mean = float(outside + np.trapezoid(levels, LEVELS))
    return np.asarray(np.interp(uniform, LEVELS, levels) / mean, dtype=np.float64)


def _pooled_spread(points: Sequence[Point]) -> FloatArray:
    ratios, weights = [], []
    for point in points:
        if point.quantiles_s is not None:
            ratios.append(np.array(point.quantiles_s) / point.mean_s)
            weights.append(point.samples)
    return np.average(ratios, axis=0, weights=weights) if ratios else np.ones(len(LEVELS))


def held_out_error(cost: GridCost, held_out: Sequence[Point]) -> InterpolationError:
    """How far the surface of a grid is from points that it was not built from.

    Args:
        cost: The grid.
        held_out: Points on the same axes; outside the grid they test the extrapolation.

    Raises:
        ValueError: There is no point, or one has other axes.
    """
    if not held_out:
        raise ValueError("no held-out points to compare with")
    surface = LatencySurface(cost)
    errors = []
    for point in held_out:
        predicted = surface.seconds(**dict(zip(cost.axes, point.at, strict=True)))
        errors.append(abs(predicted - point.mean_s) / point.mean_s)
    return InterpolationError(
        median=float(np.median(errors)),
        p95=float(np.quantile(errors, 0.95)),
        worst=max(errors),
        held_out_points=len(errors),
    )
