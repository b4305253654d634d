"""What an operation takes beyond its forwards, fitted: the ground of `calibrate.overheads` and `.pace`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import lsq_linear

from hardware_profiles.costs import LEVELS, Quantiles
from hardware_profiles.latency import FloatArray
from hardware_profiles.parts import Forward, OperationHost

LEVER = 1.2
"""A slope is fitted if the longest expected operation is this many times the shortest."""
LEAST_TOLD = 0.2
"""A fit that says less of an operation than this share of what its run's take is taken to say so much."""
FEW = 50
"""Fewer samples than this cannot tell what idling costs."""
ON_TARGET = ("decode", "verify", "settle")
TINY = 1e-9
MOST_WAKE = 0.5
MOST_SCALE = 3.0
"""A slope beyond this, or below its inverse, is noise: only the constant is fitted then."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation of a live run, with what the grids say of it.

    Attributes:
        run: What ran: the setting and the batch.
        rows: Rows that it was about.
        calls: Its steps.
        tokens: Tokens that went through its forwards, padding not counted: nothing is chosen there.
        lead_s: From the report that the policy acted on to the start of its work.
        work_s: From start to end.
        report_s: From the end to the policy.
        idle_s: How long its device did nothing before.
        expected_s: Seconds of its forwards by the grids, slow-downs by the neighbour included for the draft.
        alone: Whether the other device was idle by the policy's design.
        beside_s: Seconds of its work in which the other device worked, by what that did.
    """

    run: Hashable
    rows: int
    calls: int
    tokens: int
    lead_s: float
    work_s: float
    report_s: float
    idle_s: float
    expected_s: float
    alone: bool = True
    beside_s: Mapping[Forward, float] = field(default_factory=dict)


def fit_operation(name: str, samples: Sequence[Sample]) -> OperationHost:
    """Host time and work of one operation from greedy runs; see the module's first lines."""
    alone = [s for s in samples if s.alone]
    on_target = name in ON_TARGET
    chosen = alone if on_target and alone else list(samples)
    kept = trimmed(chosen)
    work, expected, idle, tokens, rows = np.array(
        [(s.work_s, s.expected_s, s.idle_s, s.tokens, s.rows - 1) for s in kept], dtype=np.float64
    ).T
    cap = float(np.quantile(idle, 0.95))
    idle = np.minimum(idle, cap)
    # A regressor that hardly varies explains nothing: its coefficient stays at its neutral value.
    free_scale = any(_varies(expected[rows == count]) for count in np.unique(rows))
    free_wake = cap > 2.0 * float(np.quantile(idle, 0.1)) and len(kept) > FEW
    free_token = not on_target and tokens.max() > 2.0 * tokens.min()
    low = [-np.inf, 1 / MOST_SCALE if free_scale else 1.0 - TINY, 0.0, 0.0, 0.0]
    high = [
        np.inf,
        MOST_SCALE if free_scale else 1.0 + TINY,
        MOST_WAKE if free_wake else TINY,
        np.inf if free_token else TINY,
        np.inf if rows.any() else TINY,
    ]
    design = np.column_stack([np.ones(len(kept)), expected, idle, tokens, rows])
    extra, scale, wake, token, row = solve(design, work, usual_work(kept), low, high)
    entry = OperationHost(
        extra_s=extra,
        row_s=row if rows.any() else 0.0,
        token_s=token if free_token else 0.0,
        scale=scale,
        wake=wake,
        idle_cap_s=cap,
    ).model_copy(update=waits(samples))
    return with_spread(entry, chosen)


def _varies(values: FloatArray) -> bool:
    """Whether there is enough of a range for a slope."""
    return bool(np.quantile(values, 0.9) > LEVER * np.quantile(values, 0.1))


def fit_sampled(name: str, samples: Sequence[Sample], greedy: OperationHost | None) -> OperationHost:
    """Host time of one operation in sampled runs: a constant, and times per forward and per token on top of
    the greedy fit.

    What no greedy run does (`settle`) has no slope to take over and is fitted like a greedy operation, or
    without one where it has no forward.
    """
    if greedy is None and any(s.calls for s in samples):
        return fit_operation(name, samples)
    alone = [s for s in samples if s.alone]
    chosen = alone if name in ON_TARGET and alone else list(samples)
    slopes = (greedy or OperationHost()).model_copy(update={"extra_s": 0.0})
    kept = trimmed(chosen)
    left = np.array([s.work_s - predicted(slopes, s) for s in kept])
    steps, tokens = np.array([(s.calls, s.tokens) for s in kept], dtype=np.float64).T
    free_step, free = (values.max() > least * values.min() for values, least in ((steps, 1.0), (tokens, 2.0)))
    design = np.column_stack([np.ones(len(kept)), steps, tokens])
    low, high = [-np.inf, 0.0, 0.0], [np.inf, np.inf if free_step else TINY, np.inf if free else TINY]
    extra, step, token = solve(design, left, usual_work(kept), low, high)
    entry = slopes.model_copy(
        update={
            **waits(samples),
            "extra_s": extra,
            "step_s": step if free_step else 0.0,
            "token_s": slopes.token_s + (token if free else 0.0),
        }
    )
    entry = with_spread(entry, chosen)
    if tokens.any():
        return entry
    # A settling feeds nothing, and does nothing where no row is open: the mean is what counts, and what it
    # costs more in a batch goes by rows.
    seconds = [s.work_s for s in kept if s.rows == 1] or [s.work_s for s in kept]
    entry = entry.model_copy(update={"extra_s": float(np.mean(seconds))})
    return entry.model_copy(update={"row_s": _row_seconds(entry, chosen)})


def waits(samples: Sequence[Sample]) -> dict[str, float]:
    """What passes before the work and after it: the first grows with the rows, the second with the tokens."""
    submit, submit_row = line([s.lead_s for s in samples], [s.rows - 1 for s in samples])
    report, report_token = line([s.report_s for s in samples], [s.tokens for s in samples])
    return {
        "submit_s": submit,
        "submit_row_s": submit_row,
        "report_s": report,
        "report_token_s": report_token,
    }


def line(values: Sequence[float], at: Sequence[int]) -> tuple[float, float]:
    """Intercept and slope, neither negative, of the trimmed means at each abscissa."""
    groups: dict[int, list[float]] = {}
    for value, x in zip(values, at, strict=True):
        groups.setdefault(x, []).append(value)
    weights = np.sqrt([len(group) for group in groups.values()])
    means = np.array([trimmed_mean(group) for group in groups.values()])
    design = np.column_stack([np.ones(len(groups)), list(groups)]) * weights[:, None]
    if len(groups) == 1:
        return float(means[0]), 0.0
    intercept, slope = lsq_linear(design, means * weights, bounds=(0.0, np.inf)).x
    return float(intercept), float(slope)


def usual_work(samples: Sequence[Sample]) -> FloatArray:
    """What the operations of each sample's run take in the mean, s.

    A fit of deviations relative to what each took itself would favour what happened to be short: with times
    that scatter by a third it comes out a tenth below their mean.
    """
    taken: dict[Hashable, list[float]] = {}
    for sample in samples:
        taken.setdefault(sample.run, []).append(sample.work_s)
    means = {run: float(np.mean(found)) for run, found in taken.items()}
    return np.array([means[sample.run] for sample in samples])


def with_spread(host: OperationHost, samples: Sequence[Sample]) -> OperationHost:
    """The entry with the spread of the samples about it; few of them leave it as it is."""
    if len(samples) <= FEW:
        return host
    return host.model_copy(update={"spread": spread_of(samples, host)})


def spread_of(samples: Sequence[Sample], host: OperationHost) -> Quantiles:
    """What operations take over what the fit says of them, at `LEVELS`.

    Relative to the mean of that in each run: a setting that the fit has wrong does not scatter by that, nor
    does a batch whose rows become fewer.
    """
    usual = usual_work(samples)
    told = np.maximum([predicted(host, s) for s in samples], LEAST_TOLD * usual)
    shares: dict[Hashable, list[float]] = {}
    for sample, seconds, mean_s in zip(samples, told, usual, strict=True):
        shares.setdefault(sample.run, []).append(seconds / mean_s)
    bias = np.array([np.mean(shares[sample.run]) for sample in samples])
    ratios = np.array([s.work_s for s in samples]) / told * bias
    p5, p25, p50, p75, p95 = (float(v) for v in np.quantile(ratios, LEVELS))
    return p5, p25, p50, p75, p95


def solve(
    design: FloatArray, values: FloatArray, work: FloatArray, low: Sequence[float], high: Sequence[float]
) -> list[float]:
    """Bounded least squares of deviations relative to `work`, else the longest operations would decide.

    What its bounds leave no room is taken as given: beside a column like it, it would make the fit singular.
    """
    least, most = np.array(low), np.array(high)
    free = most - least > 3.0 * TINY
    given = np.where(free, 0.0, least)
    weighted = design[:, free] / np.maximum(work, TINY)[:, None]
    size = np.linalg.norm(weighted, axis=0)
    size[size == 0.0] = 1.0
    left = (values - design @ given) / np.maximum(work, TINY)
    bounds = (least[free] * size, most[free] * size)
    given[free] = lsq_linear(weighted / size, left, bounds=bounds).x / size
    return [float(v) for v in given]


def predicted(host: OperationHost, sample: Sample) -> float:
    """Work of an operation by its fit, s."""
    rows, idle = sample.rows - 1, min(sample.idle_s, host.idle_cap_s)
    fed = host.step_s * sample.calls + host.token_s * sample.tokens
    return host.extra_s + host.row_s * rows + host.wake * idle + host.scale * sample.expected_s + fed


def waited(host: OperationHost, sample: Sample) -> float:
    """Time before and after an operation's work by its fit, s."""
    before = host.submit_s + host.submit_row_s * (sample.rows - 1)
    return before + host.report_s + host.report_token_s * sample.tokens


def _row_seconds(host: OperationHost, samples: Sequence[Sample]) -> float:
    """Seconds per further row that a fit on single rows leaves over; 0 if no batch was run."""
    several = trimmed([s for s in samples if s.rows > 1])
    if not several:
        return 0.0
    rows = np.array([s.rows - 1 for s in several], dtype=np.float64)
    left = np.array([s.work_s - predicted(host, s) for s in several])
    return float((rows * left).sum() / (rows * rows).sum())


def trimmed(samples: Sequence[Sample]) -> list[Sample]:
    """Every setting's samples without the longest and shortest 1 %, relative to what is expected."""
    groups: dict[Hashable, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.run, []).append(sample)
    kept = []
    for group in groups.values():
        ratio = np.array([s.work_s / (s.expected_s or 1.0) for s in group])
        low, high = np.quantile(ratio, [0.01, 0.99])
        # Of two, neither lies between.
        kept += [s for s, r in zip(group, ratio, strict=True) if low <= r <= high] or group
    return kept


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and lowest 1 %, which on a shared machine belong to other processes."""
    samples = np.array(values)
    low, high = np.quantile(samples, [0.01, 0.99])
    kept = samples[(samples >= low) & (samples <= high)]
    return float((kept if kept.size else samples).mean())  # of two, neither lies between
