"""Validate predictions: the same settings simulated and live, on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.predictions import Prediction, nearest_measured, predict
from analysis.rounds import Agreement, compare_rounds
from calibrate.calibration import Job, record, requests_of
from calibrate.live.placement import pair_specs
from calibrate.live.world import LiveWorld
from calibrate.prompts import Prompt
from calibrate.runs import LiveRun, Measured, measure, run_matrix
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.records import Span
from policies.registry import Settings, configure

AR_PER_SETTINGS = 6
"""Plain decoding runs once per this many settings, among them, so that the baseline is as well known."""


@dataclass(frozen=True)
class Row:
    """One setting: three opinions and how far they are apart.

    Attributes:
        settings: The setting.
        prediction: Law and simulation given the prompts' own trace.
        from_calibration: The same given the calibration prompts' trace.
        nearest: Speedup of the nearest setting that the calibration ran live.
        measured: The live runs.
        measured_speedup_vs_ar: Over plain decoding interleaved with it.
        speedup_by_repeat: The same per repetition: the spread.
        agreement: Round-by-round comparison of simulated and live runs.
        identical: Whether every live text equals the recording by plain decoding.
    """

    settings: Settings
    prediction: Prediction
    from_calibration: Prediction
    nearest: float | None
    measured: Measured
    measured_speedup_vs_ar: float
    speedup_by_repeat: tuple[float, ...]
    agreement: Agreement
    identical: bool

    @property
    def error(self) -> float:
        """Of the simulation given the prompts' own trace: simulated / measured speedup - 1."""
        return self.prediction.simulated_speedup_vs_ar / self.measured_speedup_vs_ar - 1.0

    @property
    def calibration_error(self) -> float:
        """The same from the calibration prompts alone."""
        return self.from_calibration.simulated_speedup_vs_ar / self.measured_speedup_vs_ar - 1.0

    @property
    def law_error(self) -> float | None:
        """The same of the law."""
        law = self.prediction.law_speedup_vs_ar
        return None if law is None else law / self.measured_speedup_vs_ar - 1.0

    @property
    def nearest_error(self) -> float | None:
        """The same of the naive baseline."""
        return None if self.nearest is None else self.nearest / self.measured_speedup_vs_ar - 1.0

    @property
    def spread(self) -> float:
        """Half the range of the repetitions' speedups, relative to their mean."""
        values = np.array(self.speedup_by_repeat)
        return float((values.max() - values.min()) / 2 / values.mean())

    def as_dict(self) -> dict[str, Any]:
        """Flat values for JSON and CSV (docs/json.md)."""
        s, p = self.settings, self.prediction
        return {
            "policy": s.policy,
            "lookahead": s.lookahead,
            "fanout": None if s.fanout is None else ",".join(map(str, s.fanout)),
            "backup": s.backup,
            "law_tokens_per_second": p.law_tokens_per_second,
            "law_speedup_vs_ar": p.law_speedup_vs_ar,
            "simulated_tokens_per_second": p.simulated.tokens_per_second,
            "simulated_speedup_vs_ar": p.simulated_speedup_vs_ar,
            "measured_tokens_per_second": self.measured.tokens_per_second,
            "measured_speedup_vs_ar": self.measured_speedup_vs_ar,
            "measured_spread": self.spread,
            "error": self.error,
            "error_from_calibration_prompts": self.calibration_error,
            "law_error": self.law_error,
            "nearest_setting_error": self.nearest_error,
            "tokens_per_round": p.simulated.tokens_per_round,
            "cache_hit_rate": p.simulated.cache_hit_rate,
            "simulated_overlap_s": p.simulated.overlap_s,
            "measured_overlap_s": self.measured.overlap_s,
            "rounds_compared": self.agreement.rounds,
            "round_differences": len(self.agreement.differences),
            "unexcused_differences": sum(not d.excused for d in self.agreement.differences),
            "identical_to_plain_decoding": self.identical,
        }


@dataclass(frozen=True)
class Validation:
    """Outcome of a validation.

    Attributes:
        profile: What predicted.
        rows: One per setting, AR first.
        trace: Recording of the validation prompts.
        repeats: Live repetitions.
        live_spans: Timeline of the first prompt, live, per setting.
    """

    profile: Profile
    rows: list[Row]
    trace: Trace
    repeats: int
    live_spans: dict[Settings, list[Span]]


def validate(
    job: Job,
    profile: Profile,
    calibration_trace: Trace,
    settings: Sequence[Settings],
    prompts: tuple[Prompt, ...],
    *,
    prompt_set: str,
    repeats: int,
    progress: Callable[[str, int, int], None],
) -> Validation:
    """Record the prompts, predict, run live, compare.

    Args:
        job: Pair, machine and placement, as for a calibration.
        profile: Costs that predict.
        calibration_trace: What the calibration recorded, for predictions that never saw these prompts.
        settings: What to run; must contain AR.
        prompts: On what.
        prompt_set: Their name.
        repeats: Live repetitions of each setting and prompt.
        progress: (stage, done, total).
    """
    trace = record(job, prompts, prompt_set, progress)
    requests = requests_of(trace)
    # Predictions are made before anything is run live.
    own = predict(settings, profile, trace, seed=job.seed)
    elsewhere = predict(settings, profile, calibration_trace, limit=_limit(job, calibration_trace))
    plan = [("", s) for s in settings]
    plan += [("", configure("ar"))] * ((len(settings) - 1) // AR_PER_SETTINGS)
    with LiveWorld(*pair_specs(job.target, job.draft, job.placement)) as world:
        runs = run_matrix(
            {"": world},
            plan,
            requests,
            repeats=repeats,
            seed=job.seed,
            progress=lambda done, total: progress("live settings", done, total),
        )
    return Validation(
        profile=profile,
        rows=_rows(profile, own, elsewhere, runs, trace),
        trace=trace,
        repeats=repeats,
        live_spans=_first_spans(runs),
    )


def _limit(job: Job, trace: Trace) -> int | None:
    """The job's limit where the calibration trace reaches it, else all that was recorded."""
    return job.limit if int(np.diff(trace.offsets).max()) >= job.limit else None


def _rows(
    profile: Profile,
    own: Sequence[Prediction],
    elsewhere: Sequence[Prediction],
    runs: list[LiveRun],
    trace: Trace,
) -> list[Row]:
    measured = measure(runs)
    ar = measured["", configure("ar")]
    texts = {
        r.id: tuple(trace.token[a:b].tolist())
        for r, a, b in zip(trace.requests, trace.offsets, trace.offsets[1:], strict=False)
    }
    rows = []
    for prediction, other in zip(own, elsewhere, strict=True):
        settings = prediction.settings
        speed = measured["", settings]
        mine = [run for run in runs if run.settings == settings]
        first = {run.request: run.rounds for run in mine if run.repeat == 0}
        nearest = nearest_measured(settings, profile.measured_runs)
        rows.append(
            Row(
                settings=settings,
                prediction=prediction,
                from_calibration=other,
                nearest=None if nearest is None else nearest.speedup_vs_ar,
                measured=speed,
                measured_speedup_vs_ar=ar.seconds / speed.seconds,
                speedup_by_repeat=tuple(
                    a / b for a, b in zip(ar.by_repeat_s, speed.by_repeat_s, strict=True)
                ),
                agreement=compare_rounds(settings, prediction.rounds, first, trace),
                identical=all(run.text == texts[run.request] for run in mine),
            )
        )
    return rows


def _first_spans(runs: list[LiveRun]) -> dict[Settings, list[Span]]:
    first = min(run.request for run in runs)
    return {run.settings: run.spans for run in runs if run.request == first and run.repeat == 0}
