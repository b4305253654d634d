"""What one operation costs: a constant or a grid of measured points, and the durations between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.records import Count, FieldError, Frozen, Natural, Positive, Seconds, field, record

Axis: TypeAlias = Literal["batch", "new_tokens", "branches", "context"]
"""What a cost may depend on.

- ``batch``: rows that take part.
- ``new_tokens``: tokens computed per row.
- ``branches``: tokens computed by one step of a tree: per row, padded to the widest row, where the grid
  has the axis ``batch``; over all rows where it has not.
- ``context``: tokens already in the KV cache, per row (the mean, where rows differ).
"""

Quantiles: TypeAlias = tuple[float, float, float, float, float]
"""Seconds at the levels `LEVELS`, not decreasing."""

RoleName: TypeAlias = Literal["target", "draft"]
OperationName: TypeAlias = Literal[
    "target.forward", "target.prefill", "draft.forward", "draft.prefill", "draft.tree"
]
Forward: TypeAlias = Literal["forward", "prefill", "tree"]
"""An operation without the device's name."""

AXES: Mapping[OperationName, tuple[Axis, ...]] = {
    "target.forward": ("batch", "new_tokens", "context"),
    "target.prefill": ("batch", "new_tokens"),
    "draft.forward": ("batch", "new_tokens", "context"),
    "draft.prefill": ("batch", "new_tokens"),
    "draft.tree": ("batch", "branches", "context"),
}
"""Axes that the grid of each operation may have."""

OPERATIONS: Mapping[tuple[RoleName, Forward], tuple[str, ...]] = {
    ("target", "forward"): ("verify",),
    ("target", "prefill"): ("prefill",),
    ("draft", "forward"): ("draft", "continue"),
    ("draft", "prefill"): ("prefill",),
    ("draft", "tree"): ("prespeculate",),
}
"""The operations of policies that each measured forward stands for, where devices slow each other down."""

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of all quantiles of a profile."""


def check_quantiles(name: str, quantiles: Quantiles | None) -> None:
    """Refuse the quantiles of a field.

    Raises:
        FieldError: They are not positive or decrease.
    """
    if quantiles is not None and (quantiles[0] <= 0 or list(quantiles) != sorted(quantiles)):
        raise FieldError(name, f"must be 5 numbers > 0 that do not decrease, got {list(quantiles)}")


class Provenance(Frozen, frozen=True, kw_only=True):
    """Where numbers come from.

    Attributes:
        kind: `measured` (on the named machine), `composed` (put together from kernel times that others
            measured), `paper` (fitted from a paper's table), `roofline`
            (extrapolated from a model of the hardware) or `synthetic` (made up).
        when: Date or date and time, ISO 8601.
        machine: What they were measured on.
        versions: Version of each package involved.
        command: What made the profile.
        note: Anything else; for `paper`, which table.
    """

    kind: Literal["measured", "composed", "paper", "roofline", "synthetic"]
    when: str | None = None
    machine: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    note: str | None = None


class InterpolationError(Frozen, frozen=True, kw_only=True):
    """Relative error |interpolated - measured| / measured on points that the grid was not built from."""

    median: Seconds
    p95: Seconds
    worst: Seconds
    held_out_points: Count


class Point(Frozen, frozen=True, kw_only=True):
    """One measured cell of a grid.

    Attributes:
        at: Its coordinate on each axis of the grid.
        mean_s: Mean duration, s.
        quantiles_s: Durations at `LEVELS`, s; None where only the mean is known.
        samples: Number of durations behind them.
    """

    at: tuple[Natural, ...]
    mean_s: Positive
    quantiles_s: Quantiles | None = None
    samples: Count = 1

    def __post_init__(self) -> None:
        """Check what types do not say."""
        check_quantiles("quantiles_s", self.quantiles_s)


class ConstantCost(Frozen, frozen=True, kw_only=True):
    """An operation that always takes the same time."""

    seconds: Positive
    interpolation_error: InterpolationError | None = None
    provenance: Provenance | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """No axes: a constant depends on nothing."""
        return ()


class GridCost(Frozen, frozen=True, kw_only=True):
    """An operation measured on a full grid.

    Attributes:
        axes: What the duration depends on.
        points: One point per cell of the grid that their coordinates span, in any order.
        block_factors: How fast the machine was in each repetition of the measurement: mean ratio of a
            repetition's durations to their points' means.  A slow drift, to be drawn anew for each
            simulated run, where the quantiles are noise from one duration to the next.
        interpolation_error: Error of the interpolation on points held out.
        provenance: Where the points come from, if not from where the profile says.
    """

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    block_factors: tuple[Positive, ...] = ()
    interpolation_error: InterpolationError | None = None
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        """Check that it is a full grid."""
        if repeated := [axis for axis, count in Counter(self.axes).items() if count > 1]:
            raise FieldError("axes", f"{repeated[0]!r} is named twice")
        for name in ("axes", "points"):
            # Not a constraint of the field, which would also be reported when an item is bad.
            if not getattr(self, name):
                raise FieldError(name, "must not be empty")
        for index, point in enumerate(self.points):
            if len(point.at) != len(self.axes):
                message = f"must have {len(self.axes)} coordinates {self.axes}, got {len(point.at)}"
                raise FieldError(f"points.{index}.at", message)
        first: dict[tuple[int, ...], int] = {}
        for index, point in enumerate(self.points):
            if first.setdefault(point.at, index) != index:
                raise FieldError(f"points.{index}.at", f"same cell as points.{first[point.at]}")
        for cell in product(*self.ticks()):
            if cell not in first:
                raise FieldError("points", f"no point at {_name_cell(self.axes, cell)}")

    def where(self, point: Point) -> dict[str, float]:
        """The coordinates of a point, by axis."""
        return {axis: float(value) for axis, value in zip(self.axes, point.at, strict=True)}

    def ticks(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates of the grid on each axis, rising."""
        columns = zip(*(point.at for point in self.points), strict=True)
        return tuple(tuple(sorted(set(column))) for column in columns)


def _name_cell(axes: Iterable[str], cell: Iterable[int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in zip(axes, cell, strict=True))


def cost_of(entry: Any) -> ConstantCost | GridCost:
    """The cost that an operation of a file states: a grid where it names axes or points.

    Raises:
        RecordError: It is none.
    """
    named = entry if isinstance(entry, Mapping) else {}
    grid = "axes" in named or "points" in named
    return record(GridCost, entry) if grid else record(ConstantCost, entry)


if TYPE_CHECKING:
    OperationCost: TypeAlias = ConstantCost | GridCost
else:
    OperationCost = Any  # a file's entry has no tag by which msgspec tells them apart; see `cost_of`


FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

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
            self.spread: tuple[float, ...] = (1.0,) * len(LEVELS)
        else:
            ticks = cost.ticks()
            self._ticks = {a: np.array(t, dtype=np.float64) for a, t in zip(cost.axes, ticks, strict=True)}
            # The grid is full, so that the points in the order of their coordinates are its values.
            means = [point.mean_s for point in sorted(cost.points, key=lambda point: point.at)]
            self._means = np.reshape(means, [len(tick) for tick in ticks])
            self.spread = _pooled_spread(cost.points)
        self._free = [axis for axis in self.axes if len(self._ticks[axis]) > 1]

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

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest measured coordinate on each axis; none for a constant."""
        return {axis: (float(self._ticks[axis][0]), float(self._ticks[axis][-1])) for axis in self.axes}

    def ticks(self, axis: Axis) -> list[float]:
        """Measured coordinates on an axis, rising; none where the duration does not depend on it."""
        return [float(tick) for tick in self._ticks.get(axis, ())]

    def noise(self, uniform: NDArray[np.floating[Any]]) -> FloatArray:
        """Factors on the mean duration, of mean exactly 1, from uniforms in [0, 1); see `varied`."""
        return varied(self.spread, uniform)

    def _require(self, coordinates: dict[str, float]) -> None:
        if missing := [axis for axis in self.axes if axis not in coordinates]:
            raise ValueError(f"{', '.join(missing)} must be given: the duration depends on it")

    @cached_property
    def lines(self) -> SurfaceLines:
        """The same, for many look-ups at a time."""
        return SurfaceLines(self)

    @cached_property
    def least_s(self) -> float:
        """No duration is less, s."""
        return 0.0 if not self._free else _FLOOR * float(self._means.min())

    def line(self, **fixed: float) -> tuple[FloatArray, FloatArray]:
        """Durations along the context, the other coordinates fixed, before `least_s` cuts them.

        Returns:
            [m] contexts at which one piece ends and the next begins, and [m + 1, 2] the duration at 0 and the
            slope of each piece.

        Raises:
            ValueError: Another axis of this surface is not given.
        """
        self._require({**fixed, "context": 0.0})
        if "context" not in self._free:
            at = np.array([[fixed[axis] for axis in self._free]], dtype=np.float64)
            return np.zeros(0), np.array([[float(self._interpolated(at)[0]), 0.0]])
        ticks = self._ticks["context"]
        at = np.empty((len(ticks), len(self._free)))
        for column, name in enumerate(self._free):
            at[:, column] = ticks if name == "context" else fixed[name]
        values = self._interpolated(at)
        slopes = np.diff(values) / np.diff(ticks)
        return ticks[1:-1], np.stack([values[:-1] - slopes * ticks[:-1], slopes], axis=1)

    def _evaluate(self, at: FloatArray) -> FloatArray:
        """[n] durations at [n, free axes] coordinates."""
        return np.asarray(np.maximum(self._interpolated(at), self.least_s))

    def _interpolated(self, at: FloatArray) -> FloatArray:
        """[n] durations at [n, free axes] coordinates, linear beyond the grid.

        Not by scipy, whose interpolators take longer to import than all else that a simulation needs.
        """
        if not self._free:
            return np.full(len(at), float(self._means.flat[0]))
        means = self._means.squeeze()
        cells, shares = [], []
        for column, axis in enumerate(self._free):
            ticks = self._ticks[axis]
            cell = np.clip(np.searchsorted(ticks, at[:, column], side="right") - 1, 0, len(ticks) - 2)
            cells.append(cell)
            shares.append((at[:, column] - ticks[cell]) / (ticks[cell + 1] - ticks[cell]))
        seconds = np.zeros(len(at))
        for corner in product((0, 1), repeat=len(cells)):
            weight = np.ones(len(at))
            for high, share in zip(corner, shares, strict=True):
                weight = weight * (share if high else 1.0 - share)
            seconds += weight * means[tuple(c + high for c, high in zip(cells, corner, strict=True))]
        return seconds


class Line(NamedTuple):
    """Durations along the context; see `LatencySurface.line`."""

    cuts: list[float]
    pieces: list[list[float]]


class SurfaceLines:
    """A surface as lines along the context, one for each shape that was asked for: many look-ups at a time.

    Between the measured contexts durations are linear, whatever the other coordinates, so that a look-up is a
    multiplication and an addition.
    """

    def __init__(self, surface: LatencySurface) -> None:
        self.surface = surface
        self._numbers: dict[tuple[int, int], int] = {}
        self._found: dict[tuple[int, int], Line] = {}
        self._cuts, self._lines = np.zeros(0), np.zeros((0, 1, 2))

    def seconds(self, batch: IntArray, width: IntArray, context: IntArray) -> FloatArray:
        """[n] mean durations, s, at [n] coordinates; `width` is the number of new tokens or of branches."""
        numbers = self._numbers_of(batch, width)
        cells = np.searchsorted(self._cuts, context, side="right") if len(self._cuts) else 0
        line = self._lines[numbers, cells]
        return np.asarray(np.maximum(line[:, 0] + line[:, 1] * context, self.surface.least_s))

    def one(self, batch: int, width: int) -> Line:
        """The line of one shape."""
        found = self._found.get((batch, width))
        if found is None:
            cuts, pieces = self.surface.line(batch=batch, new_tokens=width, branches=width)
            found = self._found[batch, width] = Line(cuts.tolist(), pieces.tolist())
        return found

    def _numbers_of(self, batch: IntArray, width: IntArray) -> IntArray:
        """[n] number of the line of each shape."""
        stride = int(width.max()) + 1
        codes = batch * stride + width
        low, high = int(codes.min()), int(codes.max())
        if low == high:
            return np.full(len(codes), self._number(*divmod(low, stride)))
        there = np.zeros(high - low + 1, dtype=np.bool_)
        there[codes - low] = True
        numbers = np.zeros(high - low + 1, dtype=np.int64)
        for offset in np.flatnonzero(there).tolist():
            numbers[offset] = self._number(*divmod(low + offset, stride))
        return np.asarray(numbers[codes - low])

    def _number(self, batch: int, width: int) -> int:
        if (batch, width) not in self._numbers:
            self._cuts, line = self.surface.line(batch=batch, new_tokens=width, branches=width)
            self._lines = np.concatenate([self._lines.reshape(-1, *line.shape), line[None]])
            self._numbers[batch, width] = len(self._lines) - 1
        return self._numbers[batch, width]


def varied(spread: Sequence[float] | FloatArray, uniform: NDArray[np.floating[Any]]) -> FloatArray:
    """Factors of mean exactly 1, from uniforms in [0, 1) of any shape.

    They follow the inverse of the distribution function that is linear between the quantiles `spread` at
    `LEVELS` and flat beyond the outer two: five quantiles say nothing about the tails.
    """
    levels = np.asarray(spread, dtype=np.float64)
    # The integral of the inverse over [0, 1]: two rectangles outside, four trapezia inside.
    outside = LEVELS[0] * levels[0] + (1 - LEVELS[-1]) * levels[-1]
    mean = float(outside + np.trapezoid(levels, LEVELS))
    return np.asarray(np.interp(uniform, LEVELS, levels) / mean, dtype=np.float64)


def _pooled_spread(points: Sequence[Point]) -> tuple[float, ...]:
    ratios, weights = [], []
    for point in points:
        if point.quantiles_s is not None:
            ratios.append(np.array(point.quantiles_s) / point.mean_s)
            weights.append(point.samples)
    return tuple(np.average(ratios, axis=0, weights=weights).tolist()) if ratios else (1.0,) * len(LEVELS)


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
    return summary_of([abs(surface.seconds(**cost.where(p)) - p.mean_s) / p.mean_s for p in held_out])


def summary_of(errors: Sequence[float] | FloatArray) -> InterpolationError:
    """Median, 95 % quantile and worst of relative errors."""
    return InterpolationError(
        median=float(np.median(errors)),
        p95=float(np.quantile(errors, 0.95)),
        worst=float(np.max(errors)),
        held_out_points=len(errors),
    )
