"""What the grids leave out, fitted on live runs: host time, waking up, and what overlap costs in real rounds.

A probe repeats one warm forward; in a round a worker wakes up with cold caches, builds masks and answers,
reads messages, and the policy thinks in between.  Per operation the live work is taken to be

    extra_s + scale * (what the grids say) + wake * (idling before)
            + row_s * (rows - 1) + step_s * (forwards) + token_s * (tokens fed)

Of the target greedy runs of one row give `extra_s`, `scale` and `wake`, and the residuals of greedy batches
`row_s`, which could not be told from `scale` otherwise, since a batch's grids grow with its rows too.  A
draft chooses a token in every branch of every row: its greedy runs of all batches give `token_s` instead.
Sampled runs have a constant, a time per forward and one per token on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.observations import LiveRecord, Observation, Step
from hardware_profiles.costs import GridCost, Quantiles
from hardware_profiles.latency import FloatArray, LatencySurface
from hardware_profiles.profile import Forward, Host, HostOperation, OperationHost, Overlap
from policies.registry import Settings

LEVER = 1.2
"""A slope is fitted if the longest expected operation is this many times the shortest."""
FEW = 50
"""Fewer samples than this cannot tell what idling costs."""
ON_TARGET: tuple[HostOperation, ...] = ("decode", "verify", "settle")
TINY = 1e-9
MOST_WAKE = 0.5
MOST_SCALE = 3.0
"""A slope beyond this, or below its inverse, is noise: only the constant is fitted then."""
LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.9, 2.0
"""In-situ factors are cut to these."""

Slowdowns: TypeAlias = Mapping[tuple[str, str, Forward], float]
"""(device, operation, the other device's operation) to a factor."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation of a live run, with what the grids say of it.

    Attributes:
        settings: The setting and the batch that it ran in.
        alone: Whether the other device was idle by the policy's design.
        seen: What was measured.
        expected_s: Seconds of its forwards by the grids, slow-downs by the neighbour included for the draft.
    """

    settings: tuple[Settings, int]
    alone: bool
    seen: Observation
    expected_s: float

    @property
    def tokens(self) -> int:
        """Tokens that went through its forwards, padding not counted: nothing is chosen there."""
        return sum(step.tokens for step in self.seen.steps)


Samples: TypeAlias = dict[HostOperation, list[Sample]]


def fit_host(
    records: Sequence[LiveRecord],
    grids: Mapping[str, GridCost],
    overlap: Sequence[Overlap],
    latency: Quantiles | None = None,
) -> tuple[Host, list[Overlap]]:
    """Host time as it is in real rounds, and how the grids' forwards fare there.

    Target operations are fitted where the draft is idle by design (AR, SD); what they take longer beside a
    busy draft then gives the target's slow-downs, in place of the probes'.

    Args:
        records: Live runs of the calibration's own settings.
        grids: Measured surfaces.
        overlap: Slow-downs measured by probes.
        latency: Message latency, for the record.

    Returns:
        The host's entry, and the slow-downs with the target's replaced.
    """
    surfaces = Tables(grids)
    factors: dict[tuple[str, str, Forward], float] = {
        (o.device, o.operation, o.while_operation): o.slowdown for o in overlap if o.while_operation
    }
    greedy = _samples([r for r in records if r.settings.temperature == 0.0], surfaces, factors)
    hot = _samples([r for r in records if r.settings.temperature > 0.0], surfaces, factors)
    fitted = {name: fit_operation(name, found) for name, found in greedy.items()}
    sampled = {name: fit_sampled(name, found, fitted.get(name)) for name, found in hot.items()}
    host = Host(
        submit_s=float(np.mean([entry.submit_s for entry in fitted.values()])) if fitted else 0.0,
        report_s=float(np.mean([entry.report_s for entry in fitted.values()])) if fitted else 0.0,
        message_latency_s=latency,
        operations=fitted,
        sampled=sampled,
    )
    return host, in_situ(overlap, greedy, fitted)


def _samples(records: Sequence[LiveRecord], surfaces: Tables, factors: Slowdowns) -> Samples:
    found: Samples = {}
    for record in records:
        for seen in record.observations:
            sample = Sample(
                (record.settings, record.batch), record.alone, seen, _expected(seen, surfaces, factors)
            )
            found.setdefault(seen.operation, []).append(sample)
    return found


class Tables:
    """Seconds of forwards by context, looked up once per shape: a run has tens of thousands of steps.

    Args:
        grids: Measured surfaces by operation.
    """

    def __init__(self, grids: Mapping[str, GridCost]) -> None:
        self._surfaces = {name: LatencySurface(cost) for name, cost in grids.items()}
        self._tables: dict[tuple[str, int, int], FloatArray] = {}

    def seconds(self, device: str, step: Step) -> float:
        """What the grids say of one forward."""
        name, context = f"{device}.{step.kind}", round(step.context)
        key = (name, step.rows, step.width)
        if key not in self._tables or len(self._tables[key]) <= context:
            shape = {"branches" if step.kind == "tree" else "new_tokens": step.width}
            upto = max(1023, 2 * context)
            self._tables[key] = self._surfaces[name].along("context", upto, batch=step.rows, **shape)
        return float(self._tables[key][context])


def _expected(seen: Observation, surfaces: Tables, factors: Slowdowns) -> float:
    """What the grids say of an operation's forwards, s.

    A draft's forwards are charged with the neighbour for the share of the time in which it worked; a
    target's are not, since its factors are what is to be found.
    """
    total = 0.0
    for step in seen.steps:
        seconds = surfaces.seconds(seen.device, step)
        if seen.device == "draft" and seen.work_s > 0.0:
            rate = 1.0
            for other, shared_s in seen.beside_s.items():
                slowdown = factors.get((seen.device, step.kind, other), 1.0)
                rate -= min(1.0, shared_s / seen.work_s) * (1.0 - 1.0 / slowdown)
            seconds /= rate
        total += seconds
    return total


def fit_operation(name: HostOperation, samples: Sequence[Sample]) -> OperationHost:
    """Host time and work of one operation from greedy runs; see the module's first lines."""
    alone = [s for s in samples if s.alone]
    on_target = name in ON_TARGET
    chosen = alone if on_target and alone else list(samples)
    single = [s for s in chosen if s.seen.rows == 1] or chosen
    # A draft chooses a token in every branch: rows of a batch tell what that costs.
    kept = _trimmed(single if on_target else chosen)
    work, expected, idle, tokens = np.array(
        [(s.seen.work_s, s.expected_s, s.seen.idle_s, s.tokens) for s in kept]
    ).T
    cap = float(np.quantile(idle, 0.95))
    idle = np.minimum(idle, cap)
    # A regressor that hardly varies explains nothing: its coefficient stays at its neutral value.
    free_scale = np.quantile(expected, 0.9) > LEVER * np.quantile(expected, 0.1)
    free_wake = cap > 2.0 * float(np.quantile(idle, 0.1)) and len(kept) > FEW
    free_token = not on_target and tokens.max() > 2.0 * tokens.min()
    low = [-np.inf, 1 / MOST_SCALE if free_scale else 1.0 - TINY, 0.0, 0.0]
    high = [
        np.inf,
        MOST_SCALE if free_scale else 1.0 + TINY,
        MOST_WAKE if free_wake else TINY,
        np.inf if free_token else TINY,
    ]
    design = np.column_stack([np.ones(len(kept)), expected, idle, tokens])
    extra, scale, wake, token = _solve(design, work, work, low, high)
    entry = OperationHost(
        **_waits(samples),
        extra_s=extra,
        token_s=token if free_token else 0.0,
        scale=scale,
        wake=wake,
        idle_cap_s=cap,
    )
    return entry.model_copy(update={"row_s": _row_seconds(entry, chosen)}) if on_target else entry


def fit_sampled(
    name: HostOperation, samples: Sequence[Sample], greedy: OperationHost | None
) -> OperationHost:
    """Host time of one operation in sampled runs: a constant, and times per forward and per token on top of
    the greedy fit.

    What no greedy run does (`settle`) has no slope to take over and is fitted like a greedy operation, or
    without one where it has no forward.
    """
    if greedy is None and any(s.seen.steps for s in samples):
        return fit_operation(name, samples)
    alone = [s for s in samples if s.alone]
    chosen = alone if name in ON_TARGET and alone else list(samples)
    slopes = (greedy or OperationHost()).model_copy(update={"extra_s": 0.0})
    kept = _trimmed(chosen)
    left = np.array([s.seen.work_s - predicted(slopes, s) for s in kept])
    steps, tokens = np.array([(len(s.seen.steps), s.tokens) for s in kept], dtype=np.float64).T
    free_step, free = (values.max() > least * values.min() for values, least in ((steps, 1.0), (tokens, 2.0)))
    design = np.column_stack([np.ones(len(kept)), steps, tokens])
    work = np.array([s.seen.work_s for s in kept])
    low, high = [-np.inf, 0.0, 0.0], [np.inf, np.inf if free_step else TINY, np.inf if free else TINY]
    extra, step, token = _solve(design, left, work, low, high)
    entry = slopes.model_copy(
        update={
            **_waits(samples),
            "extra_s": extra,
            "step_s": step if free_step else 0.0,
            "token_s": slopes.token_s + (token if free else 0.0),
        }
    )
    if tokens.any():
        return entry
    # A settling feeds nothing, and does nothing where no row is open: the mean is what counts, and what it
    # costs more in a batch goes by rows.
    seconds = [s.seen.work_s for s in kept if s.seen.rows == 1] or [s.seen.work_s for s in kept]
    entry = entry.model_copy(update={"extra_s": float(np.mean(seconds))})
    return entry.model_copy(update={"row_s": _row_seconds(entry, chosen)})


def _waits(samples: Sequence[Sample]) -> dict[str, float]:
    """What passes before the work and after it: the first grows with the rows, the second with the tokens."""
    submit, submit_row = _line([s.seen.lead_s for s in samples], [s.seen.rows - 1 for s in samples])
    report, report_token = _line([s.seen.report_s for s in samples], [s.tokens for s in samples])
    return {
        "submit_s": submit,
        "submit_row_s": submit_row,
        "report_s": report,
        "report_token_s": report_token,
    }


def _line(values: Sequence[float], at: Sequence[int]) -> tuple[float, float]:
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


def _solve(
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
    rows, idle = sample.seen.rows - 1, min(sample.seen.idle_s, host.idle_cap_s)
    fed = host.step_s * len(sample.seen.steps) + host.token_s * sample.tokens
    return host.extra_s + host.row_s * rows + host.wake * idle + host.scale * sample.expected_s + fed


def _wait(host: OperationHost, sample: Sample) -> float:
    """Time before and after an operation's work by its fit, s."""
    before = host.submit_s + host.submit_row_s * (sample.seen.rows - 1)
    return before + host.report_s + host.report_token_s * sample.tokens


def _row_seconds(host: OperationHost, samples: Sequence[Sample]) -> float:
    """Seconds per further row that a fit on single rows leaves over; 0 if no batch was run."""
    several = _trimmed([s for s in samples if s.seen.rows > 1])
    if not several:
        return 0.0
    rows = np.array([s.seen.rows - 1 for s in several], dtype=np.float64)
    left = np.array([s.seen.work_s - predicted(host, s) for s in several])
    return float((rows * left).sum() / (rows * rows).sum())


def _trimmed(samples: Sequence[Sample]) -> list[Sample]:
    """Every setting's samples without the longest and shortest 5 %, relative to what is expected."""
    groups: dict[tuple[Settings, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.settings, []).append(sample)
    kept = []
    for group in groups.values():
        ratio = np.array([s.seen.work_s / (s.expected_s or 1.0) for s in group])
        low, high = np.quantile(ratio, [0.05, 0.95])
        kept += [s for s, r in zip(group, ratio, strict=True) if low <= r <= high]
    return kept


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and lowest 5 %, which on a shared machine belong to other processes."""
    samples = np.array(values)
    low, high = np.quantile(samples, [0.05, 0.95])
    kept = samples[(samples >= low) & (samples <= high)]
    return float((kept if kept.size else samples).mean())  # of two, neither lies between


def in_situ(
    overlap: Sequence[Overlap], samples: Samples, fitted: Mapping[HostOperation, OperationHost]
) -> list[Overlap]:
    """The entries, with the target's slow-downs as they are in real rounds where those tell.

    A target operation is W seconds of work at full speed by its fit.  It took T seconds, O_f of them beside
    a draft that fed chains and O_t beside one that grew trees: W = T - O_f - O_t + O_f / f + O_t / t.
    Rounds without trees (PEARL) give f; the others (SSD, whose glue step is a chain) then give t.
    """
    seen = [
        (sample, fitted[name])
        for name in ("decode", "verify")
        if name in fitted
        for sample in _trimmed([s for s in samples.get(name, []) if not s.alone])
    ]
    chains = [(s, h) for s, h in seen if "tree" not in s.seen.beside_s]
    trees = [(s, h) for s, h in seen if "tree" in s.seen.beside_s]
    probed = {o.while_operation: o.slowdown for o in overlap if (o.device, o.operation) == _FORWARD}
    beside_chain = _factor(chains, "forward", {}) or probed.get("forward", 1.0)
    found = {"forward": beside_chain, "tree": _factor(trees, "tree", {"forward": beside_chain})}

    def replaced(entry: Overlap) -> Overlap:
        slowdown = found.get(entry.while_operation or "")
        if (entry.device, entry.operation) != _FORWARD or slowdown is None:
            return entry
        return entry.model_copy(update={"slowdown": slowdown})

    return [replaced(entry) for entry in overlap]


_FORWARD = ("target", "forward")


def _factor(
    seen: Sequence[tuple[Sample, OperationHost]], kind: Forward, known: Mapping[Forward, float]
) -> float | None:
    """Slow-down beside one kind of work, the others' being known; None where it cannot be told."""
    work = took = beside = 0.0
    for sample, host in seen:
        here = sample.seen
        work += _wait(host, sample) + predicted(host, sample)
        took += here.lead_s + here.work_s + here.report_s
        for other, shared_s in here.beside_s.items():
            if other == kind:
                beside += shared_s
            else:
                took -= shared_s * (1.0 - 1.0 / known.get(other, 1.0))
    # Work done beside the neighbour, at full speed.
    done = work - took + beside
    if beside <= 0.0 or done <= 0.0:
        return None
    return float(np.clip(beside / done, LEAST_SLOWDOWN, MOST_SLOWDOWN))
