"""What one operation costs, as a profile states it: a constant, or a grid of measured points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    field_validator,
    model_validator,
)
from pydantic import NonNegativeFloat as Seconds
from pydantic_core import PydanticCustomError

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

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of all quantiles of a profile."""


class Frozen(BaseModel):
    """Base of everything in a profile: immutable, no unknown field, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True)


def field_error(path: str, message: str) -> PydanticCustomError:
    """The error to raise in a validator for a field *below* the one it validates.

    Args:
        path: Dotted path of the bad field, relative to the validated one.
        message: What is wrong with it.
    """
    return PydanticCustomError("field", "{message}", {"path": path, "message": message})


def check_quantiles(quantiles: Quantiles | None) -> Quantiles | None:
    """The quantiles, unchanged.

    Raises:
        ValueError: They are not positive or decrease.
    """
    if quantiles is not None and (quantiles[0] <= 0 or list(quantiles) != sorted(quantiles)):
        raise ValueError(f"must be 5 numbers > 0 that do not decrease, got {list(quantiles)}")
    return quantiles


class Provenance(Frozen):
    """Where numbers come from.

    Attributes:
        kind: `measured` (on the named machine), `paper` (fitted from a paper's table), `roofline`
            (extrapolated from a model of the hardware) or `synthetic` (made up).
        when: Date or date and time, ISO 8601.
        machine: What they were measured on.
        versions: Version of each package involved.
        command: What made the profile.
        note: Anything else; for `paper`, which table.
    """

    kind: Literal["measured", "paper", "roofline", "synthetic"]
    when: str | None = None
    machine: str | None = None
    versions: Mapping[str, str] = Field(default_factory=dict)
    command: str | None = None
    note: str | None = None


class InterpolationError(Frozen):
    """Relative error |interpolated - measured| / measured on points that the grid was not built from.

    Attributes:
        median: Middle one of the errors.
        p95: Their 95 % quantile.
        worst: The largest.
        held_out_points: How many there are, at least 1.
    """

    median: Seconds
    p95: Seconds
    worst: Seconds
    held_out_points: PositiveInt


class Point(Frozen):
    """One measured cell of a grid.

    Attributes:
        at: Its coordinate on each axis of the grid.
        mean_s: Mean duration, s.
        quantiles_s: Durations at `LEVELS`, s; None where only the mean is known.
        samples: Number of durations behind them.
    """

    at: tuple[NonNegativeInt, ...]
    mean_s: PositiveFloat
    quantiles_s: Quantiles | None = None
    samples: PositiveInt = 1

    _check_quantiles = field_validator("quantiles_s")(check_quantiles)


class ConstantCost(Frozen):
    """An operation that always takes the same time.

    Attributes:
        seconds: Its duration, s.
        interpolation_error: Error of this entry on points held out, if it stands for measurements.
        provenance: Where the number comes from, if not from where the profile says.
    """

    seconds: PositiveFloat
    interpolation_error: InterpolationError | None = None
    provenance: Provenance | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """No axes: a constant depends on nothing."""
        return ()


class GridCost(Frozen):
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
    block_factors: tuple[PositiveFloat, ...] = ()
    interpolation_error: InterpolationError | None = None
    provenance: Provenance | None = None

    @field_validator("axes")
    @classmethod
    def _axes_differ(cls, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        if repeated := [axis for axis, count in Counter(axes).items() if count > 1]:
            raise ValueError(f"{repeated[0]!r} is named twice")
        return axes

    @model_validator(mode="after")
    def _grid_is_full(self) -> GridCost:
        for name in ("axes", "points"):
            # Not a constraint of the field, which would also be reported when an item is bad.
            if not getattr(self, name):
                raise field_error(name, "must not be empty")
        for index, point in enumerate(self.points):
            if len(point.at) != len(self.axes):
                message = f"must have {len(self.axes)} coordinates {self.axes}, got {len(point.at)}"
                raise field_error(f"points.{index}.at", message)
        first: dict[tuple[int, ...], int] = {}
        for index, point in enumerate(self.points):
            if first.setdefault(point.at, index) != index:
                raise field_error(f"points.{index}.at", f"same cell as points.{first[point.at]}")
        for cell in product(*self.ticks()):
            if cell not in first:
                raise field_error("points", f"no point at {_name_cell(self.axes, cell)}")
        return self

    def ticks(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates of the grid on each axis, rising."""
        columns = zip(*(point.at for point in self.points), strict=True)
        return tuple(tuple(sorted(set(column))) for column in columns)


def _name_cell(axes: Iterable[str], cell: Iterable[int]) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in zip(axes, cell, strict=True))


def _kind(entry: Any) -> str:
    names = entry if isinstance(entry, Mapping) else vars(entry) if isinstance(entry, Frozen) else ()
    return "<grid>" if "axes" in names or "points" in names else "<constant>"


# The tags are in angle brackets so that they can be told from fields in an error's path.
OperationCost: TypeAlias = Annotated[
    Annotated[ConstantCost, Tag("<constant>")] | Annotated[GridCost, Tag("<grid>")],
    Discriminator(_kind),
]
