"""What a validation found of one setting: opinions, measurement, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.intervals import Interval
from analysis.predictions import Prediction
from analysis.rounds import Agreement
from calibrate.live_runs import Measured
from policies.registry import Settings


@dataclass(frozen=True)
class Subset:
    """A setting on some of the prompts, run live on their own.

    Attributes:
        prediction: Given these prompts' own trace.
        predicted: Interval of the speedup, from the calibration's prompts alone.
        measured_speedup_vs_ar: Live, over plain decoding interleaved with it.
    """

    prediction: Prediction
    predicted: Interval
    measured_speedup_vs_ar: float

    @property
    def covered(self) -> bool:
        """Whether the measured speedup lies in the predicted interval."""
        return self.measured_speedup_vs_ar in self.predicted


@dataclass(frozen=True)
class Row:
    """One setting: three opinions and how far they are apart.

    Attributes:
        settings: The setting, sampling included.
        batch: Rows served at once.
        law_tokens_per_second: The law's, told the means of the prompts' own trace.
        law_speedup_vs_ar: Likewise.
        interval: Of the speedup, from the calibration's prompts alone; its middle is the prediction.
        nearest: Speedup of the nearest setting that the calibration ran live.
        measured: The live runs, over all subsets.
        measured_speedup_vs_ar: Over plain decoding interleaved with it.
        speedup_by_repeat: The same per repetition: the spread.
        subsets: The setting on each subset of the prompts.
        agreement: Round-by-round comparison of simulated and live runs; None at a temperature above 0,
            where a live run takes another random path than the recording.
        identical: Whether every live text equals the recording by plain decoding; None likewise.
    """

    settings: Settings
    batch: int
    law_tokens_per_second: float | None
    law_speedup_vs_ar: float | None
    interval: Interval
    nearest: float | None
    measured: Measured
    measured_speedup_vs_ar: float
    speedup_by_repeat: tuple[float, ...]
    subsets: tuple[Subset, ...]
    agreement: Agreement | None
    identical: bool | None

    @property
    def label(self) -> str:
        """The setting and its batch, for tables."""
        return self.settings.label + (f" b={self.batch}" if self.batch > 1 else "")

    @property
    def extrapolated(self) -> list[str]:
        """Where the costs of the predictions lay outside the measured grid."""
        return sorted({found for p in self.predictions for found in p.extrapolated})

    @property
    def predictions(self) -> list[Prediction]:
        """Given the prompts' own trace, per subset."""
        return [subset.prediction for subset in self.subsets]

    @property
    def simulated_speedup_vs_ar(self) -> float:
        """Given the prompts' own trace: ratio of simulated seconds over all subsets."""
        return self._pooled([p.simulated_speedup_vs_ar for p in self.predictions])

    @property
    def alone_speedup_vs_ar(self) -> float:
        """The same with devices that do not slow each other."""
        return self._pooled([p.alone_speedup_vs_ar for p in self.predictions])

    @property
    def simulated_tokens_per_second(self) -> float:
        """Given the prompts' own trace."""
        runs = [p.simulated for p in self.predictions]
        return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)

    @property
    def error(self) -> float:
        """Of the simulation given the prompts' own trace: simulated / measured speedup - 1."""
        return self.simulated_speedup_vs_ar / self.measured_speedup_vs_ar - 1.0

    @property
    def error_without_contention(self) -> float:
        """The same with devices that do not slow each other."""
        return self.alone_speedup_vs_ar / self.measured_speedup_vs_ar - 1.0

    @property
    def calibration_error(self) -> float:
        """The same from the calibration prompts alone."""
        return self.interval.middle / self.measured_speedup_vs_ar - 1.0

    @property
    def law_error(self) -> float | None:
        """The same of the law."""
        law = self.law_speedup_vs_ar
        return None if law is None else law / self.measured_speedup_vs_ar - 1.0

    @property
    def nearest_error(self) -> float | None:
        """The same of the naive baseline."""
        return None if self.nearest is None else self.nearest / self.measured_speedup_vs_ar - 1.0

    @property
    def spread(self) -> float | None:
        """Half the range of the repetitions' speedups, relative to their mean; None of a single one."""
        values = np.array(self.speedup_by_repeat)
        if len(values) == 1:
            return None
        return float((values.max() - values.min()) / 2 / values.mean())

    def as_dict(self) -> dict[str, Any]:
        """Flat values for JSON and CSV (docs/reference/json.md)."""
        s, agreement = self.settings, self.agreement
        compared = agreement is not None
        runs = [p.simulated for p in self.predictions]
        return {
            "policy": s.policy,
            "lookahead": s.lookahead,
            "fanout": None if s.fanout is None else ",".join(map(str, s.fanout)),
            "backup": s.backup,
            "batch": self.batch,
            "temperature": s.temperature,
            "law_tokens_per_second": self.law_tokens_per_second,
            "law_speedup_vs_ar": self.law_speedup_vs_ar,
            "simulated_tokens_per_second": self.simulated_tokens_per_second,
            "simulated_speedup_vs_ar": self.simulated_speedup_vs_ar,
            "without_contention_speedup_vs_ar": self.alone_speedup_vs_ar,
            "predicted_low": self.interval.low,
            "predicted_middle": self.interval.middle,
            "predicted_high": self.interval.high,
            "measured_tokens_per_second": self.measured.tokens_per_second,
            "measured_speedup_vs_ar": self.measured_speedup_vs_ar,
            "measured_spread": self.spread,
            "error": self.error,
            "error_without_contention": self.error_without_contention,
            "error_from_calibration_prompts": self.calibration_error,
            "law_error": self.law_error,
            "nearest_setting_error": self.nearest_error,
            "subsets_covered": sum(subset.covered for subset in self.subsets),
            "subsets": len(self.subsets),
            "extrapolated": "; ".join(self.extrapolated),
            "tokens_per_round": sum(r.tokens for r in runs) / sum(r.rounds for r in runs),
            "cache_hit_rate": hit_rate(self.predictions),
            "simulated_overlap_s": sum(r.overlap_s for r in runs),
            "measured_overlap_s": self.measured.overlap_s,
            "rounds_compared": agreement.rounds if agreement is not None else None,
            "round_differences": len(agreement.differences) if agreement is not None else None,
            "unexcused_differences": (
                sum(not d.excused for d in agreement.differences) if agreement is not None else None
            ),
            "identical_to_plain_decoding": self.identical if compared else None,
        }

    def _pooled(self, speedups: Sequence[float]) -> float:
        """Ratio of summed seconds: a subset's plain decoding took its speedup times its seconds."""
        seconds = [p.simulated.seconds for p in self.predictions]
        return sum(s * x for s, x in zip(seconds, speedups, strict=True)) / sum(seconds)


def hit_rate(predictions: Sequence[Prediction]) -> float | None:
    """Simulated hits over look-ups, over all subsets; None without a cache."""
    hits = [r.hit for p in predictions for rounds in p.rounds.values() for r in rounds if r.hit >= 0]
    return float(np.mean(hits)) if hits else None
