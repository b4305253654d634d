"""How far a profile's predictions are off: on what it covers, on what several cover, and beyond its grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.predictions import Setting


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predicted speedups are off, over some settings.

    Attributes:
        settings: How many.
        median: Median of |simulated / measured speedup - 1|.
        p95: 95 % quantile of it.
        largest: Its maximum.
        bias: Mean of log(simulated / measured speedup).
    """

    settings: int
    median: float
    p95: float
    largest: float
    bias: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Errors | None:
        """From simulated over measured speedups; None without any."""
        if not ratios:
            return None
        off = np.abs(np.array(ratios) - 1.0)
        return cls(
            settings=len(ratios),
            median=float(np.median(off)),
            p95=float(np.quantile(off, 0.95)),
            largest=float(off.max()),
            bias=float(np.mean(np.log(ratios))),
        )


@dataclass(frozen=True)
class Effort:
    """How well a profile predicts.

    Attributes:
        profile: Name or file.
        command: What made it.
        minutes: How long that took, as the user says; None if he does not.
        ratios: Simulated over measured speedup, by live setting that it can predict.
        inside: Those of them whose costs all lie within its grids.
        interpolation: By operation, the profile's own error on held-out points of its grid: (median, worst).
        alone: As `ratios`, simulated with devices that do not slow each other.
    """

    profile: str
    command: str
    minutes: float | None
    ratios: Mapping[Setting, float]
    inside: frozenset[Setting]
    interpolation: Mapping[str, tuple[float, float]]
    alone: Mapping[Setting, float]

    def errors(self, settings: Iterable[Setting] | None = None) -> Errors | None:
        """Over the settings that it covers, or over some of them."""
        chosen = self.inside if settings is None else self.inside & frozenset(settings)
        return Errors.of([ratio for setting, ratio in self.ratios.items() if setting in chosen])

    @property
    def errors_alone(self) -> Errors | None:
        """Over the settings that it covers, without contention."""
        return Errors.of([ratio for setting, ratio in self.alone.items() if setting in self.inside])

    @property
    def errors_beyond(self) -> Errors | None:
        """Over the settings for which it had to extrapolate."""
        return Errors.of([ratio for setting, ratio in self.ratios.items() if setting not in self.inside])


def covered_by_all(efforts: Sequence[Effort]) -> frozenset[Setting]:
    """The settings that every profile covers, on which they are compared."""
    return frozenset.intersection(*(effort.inside for effort in efforts))
