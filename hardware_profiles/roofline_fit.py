"""Efficiencies of a roofline fitted to measured grids, with the errors that they leave on points left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.costs import ConstantCost, GridCost, InterpolationError, OperationCost, Point
from hardware_profiles.roofline import Efficiency, RooflineError, Setting, communication_s, terms

FOLDS = 3
"""A third of the grid is left out at a time."""
SEED = 0
FloatArray: TypeAlias = NDArray[np.float64]
IndexArray: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RooflineFit:
    """Efficiencies fitted to the grid of one operation.

    Attributes:
        operation: Which.
        efficiency: Fitted to all points.
        error: Relative error on points left out, a third of the grid at a time.
        beyond: The same on the third of the points with the most FLOPs, from the others: how it reaches.
        points: How many there are.
    """

    operation: str
    efficiency: Efficiency
    error: InterpolationError
    beyond: InterpolationError
    points: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.efficiency.as_dict(),
            "points": self.points,
            "held_out_error": self.error.model_dump(),
            "beyond_error": self.beyond.model_dump(),
        }


def fit_roofline(operation: str, cost: OperationCost, setting: Setting) -> RooflineFit:
    """Fit the efficiencies of one operation to its measured grid, and say how well they predict.

    Raises:
        RooflineError: The operation is no grid of at least two points for each of three unknowns.
    """
    if isinstance(cost, ConstantCost) or len(cost.points) < 6:
        raise RooflineError(f"{operation} has no grid of at least 6 points to fit a roofline to")
    table, fixed, measured = _columns(operation, cost, setting)
    every = np.arange(len(measured))
    order = np.random.default_rng(SEED).permutation(len(measured))
    folds = [order[k::FOLDS] for k in range(FOLDS)]
    work = np.array([setting.work(operation, _at(cost, point)).flops for point in cost.points])
    largest = np.argsort(work, kind="stable")[-(len(measured) // FOLDS) :]

    def errors(left_out: IndexArray) -> FloatArray:
        kept = np.setdiff1d(every, left_out)
        costs = _least_squares(table[kept], fixed[kept], measured[kept])
        return np.asarray(np.abs((table[left_out] @ costs + fixed[left_out]) / measured[left_out] - 1.0))

    costs = _least_squares(table, fixed, measured)
    return RooflineFit(
        operation,
        Efficiency(*(float(c) for c in costs)),
        summary_of(np.concatenate([errors(fold) for fold in folds])),
        summary_of(errors(largest)),
        len(measured),
    )


def carried_error(
    operation: str, cost: GridCost, setting: Setting, efficiency: Efficiency
) -> InterpolationError:
    """Error of efficiencies fitted elsewhere (another model, another machine) on a measured grid."""
    table, fixed, measured = _columns(operation, cost, setting)
    costs = np.array([efficiency.flop_cost, efficiency.byte_cost, efficiency.layer_s])
    return summary_of(np.abs((table @ costs + fixed) / measured - 1.0))


def summary_of(errors: Sequence[float] | FloatArray) -> InterpolationError:
    """Median, 95 % quantile and worst of relative errors."""
    return InterpolationError(
        median=float(np.median(errors)),
        p95=float(np.quantile(errors, 0.95)),
        worst=float(np.max(errors)),
        held_out_points=len(errors),
    )


def _at(cost: GridCost, point: Point) -> dict[str, float]:
    return {str(axis): float(value) for axis, value in zip(cost.axes, point.at, strict=True)}


def _columns(operation: str, cost: GridCost, setting: Setting) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[n, 3] what the unknowns are multiplied with, [n] communication, [n] measured seconds."""
    works = [setting.work(operation, _at(cost, point)) for point in cost.points]
    table = np.array([terms(work, setting.device, setting.devices) for work in works])
    fixed = np.array([communication_s(work, setting.devices, setting.device) for work in works])
    return table, fixed, np.array([point.mean_s for point in cost.points])


def _least_squares(table: FloatArray, fixed: FloatArray, measured: FloatArray) -> FloatArray:
    """[3] unknowns, at least 0, of least squares in log(predicted / measured).

    It starts from the least squares of the relative error, a linear problem with one answer: the search in
    log space, where a factor too slow counts as much as a factor too fast, then cannot end elsewhere.
    """
    from scipy.optimize import least_squares, nnls

    scale = table.mean(axis=0)
    scaled = table / scale
    start, _ = nnls(scaled / measured[:, None], np.maximum(0.0, 1.0 - fixed / measured))
    floor = 1e-9 * float(measured.min())

    def residuals(x: FloatArray) -> FloatArray:
        return np.asarray(np.log((scaled @ x + fixed + floor) / measured))

    found = least_squares(
        residuals, np.maximum(start, floor), bounds=(0.0, np.inf), x_scale=float(np.median(measured))
    )
    # A cost that ends at the bound is one that the points do not show.
    unknown = np.where(found.x < 1e-6 * measured.min(), 0.0, found.x)
    return np.asarray(unknown / scale, dtype=np.float64)
