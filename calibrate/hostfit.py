"""Fits of host time on live runs (the model: `hardware_profiles.optime`).

Built-in operations (`fit_host`): all greedy runs are fitted together, of the target those in which the
draft is idle by design (AR, SD); what its operations take longer beside a busy draft then gives the
target's slow-downs. `scale` is free only where operations of equally many rows differ enough to tell it
from `row_s`. A draft chooses a token in every branch of every row, which is its `token_s`. Sampled runs
have a constant, a time per forward and one per token on top.

Operations that are replayed from recorded replies (`fit_timings`): all settings and batches of a decision
trace together, kind by kind, so that a setting that was not recorded on this machine is predicted from the
others. Steps first: of each name a factor and, where the expected seconds vary enough to tell, a constant.
What is left over is the kind's own host time.

How far whole operations scatter about the mean of their setting is kept too (`spread`): who waits for the
longer of two waits longer than either's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.hostrecords import LiveRecord, Observation, Tables, trimmed_mean, without_extremes
from hardware_profiles.decisions import Decisions, OperationTimings, costs_fingerprint, place_fingerprint
from hardware_profiles.optime import (
    Host,
    HostOperation,
    OperationHost,
    OperationTiming,
    StepTiming,
    StepTotal,
    Timed,
)
from hardware_profiles.profile import Overlap, Profile
from hardware_profiles.surface import LEVELS, FloatArray, Forward, GridCost, Quantiles

LEVER = 1.2
"""A slope is fitted if the longest expected operation is this many times the shortest."""
LEAST_TOLD = 0.2
"""A fit that says less of an operation than this share of what its run's take is taken to say so much."""
FEW = 50
"""Fewer samples than this cannot tell what idling costs."""
ON_TARGET = ("decode", "verify", "settle")
TINY = 1e-9
Bounds: TypeAlias = tuple[float, float]
ANY: Bounds = (-np.inf, np.inf)
POSITIVE: Bounds = (0.0, np.inf)
NONE: Bounds = (0.0, 0.0)
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
    chosen = _chosen(name, samples)
    kept = trimmed(chosen)
    expected, rows = (np.array([getattr(s, field) for s in kept]) for field in ("expected_s", "rows"))
    # A regressor that hardly varies explains nothing: its coefficient stays at its neutral value.
    several = any(_varies(expected[rows == count]) for count in np.unique(rows))
    cap = _idle_cap(kept)
    found = regression(
        [replace(s, idle_s=min(s.idle_s, cap)) for s in kept],
        [s.work_s for s in kept],
        usual_work(kept),
        extra_s=ANY,
        scale=(1 / MOST_SCALE, MOST_SCALE) if several else (1.0, 1.0),
        wake=(0.0, MOST_WAKE if _idles(kept) else 0.0),
        token_s=POSITIVE if name not in ON_TARGET and _tokens_vary(kept) else NONE,
        row_s=POSITIVE if rows.max() > 1 else NONE,
    )
    return with_spread(
        OperationHost().model_copy(update=found | waits(samples) | {"idle_cap_s": cap}), chosen
    )


def _chosen(name: str, samples: Sequence[Sample]) -> list[Sample]:
    """Of a target's operation those beside an idle draft, if there are any."""
    return [s for s in samples if s.alone or name not in ON_TARGET] or list(samples)


def _idle_cap(samples: Sequence[Sample]) -> float:
    return float(np.quantile([s.idle_s for s in samples], 0.95))


def _idles(samples: Sequence[Sample]) -> bool:
    """Whether idling varies enough, in enough samples, to tell what it costs."""
    shortest = float(np.quantile([s.idle_s for s in samples], 0.1))
    return _idle_cap(samples) > 2.0 * shortest and len(samples) > FEW


def _tokens_vary(samples: Sequence[Sample]) -> bool:
    """Whether they do enough to tell what a token costs."""
    tokens = [s.tokens for s in samples]
    return max(tokens) > 2.0 * min(tokens)


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
    chosen = _chosen(name, samples)
    slopes = (greedy or OperationHost()).model_copy(update={"extra_s": 0.0})
    kept = trimmed(chosen)
    calls = [s.calls for s in kept]
    found = regression(
        kept,
        [s.work_s - predicted(slopes, s) for s in kept],
        usual_work(kept),
        extra_s=ANY,
        step_s=POSITIVE if max(calls) > min(calls) else NONE,
        token_s=POSITIVE if _tokens_vary(kept) else NONE,
    )
    found["token_s"] += slopes.token_s
    entry = slopes.model_copy(update={**waits(samples), **found})
    entry = with_spread(entry, chosen)
    if any(s.tokens for s in kept):
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


def line(
    values: Sequence[float], at: Sequence[int], middle: Callable[[list[float]], float] = trimmed_mean
) -> tuple[float, float]:
    """Intercept and slope, neither negative, of the middle values at each abscissa."""
    groups: dict[int, list[float]] = {}
    for value, x in zip(values, at, strict=True):
        groups.setdefault(x, []).append(value)
    weights = np.sqrt([len(group) for group in groups.values()])
    middles = np.array([middle(group) for group in groups.values()])
    if len(groups) == 1:
        return max(0.0, float(middles[0])), 0.0
    design = np.column_stack([np.ones(len(groups)), list(groups)])
    intercept, slope = solve(design, middles, 1.0 / weights, [POSITIVE, POSITIVE])
    return intercept, slope


def usual_work(samples: Sequence[Sample]) -> FloatArray:
    """What the operations of each sample's run take in the mean, s.

    A fit of deviations relative to what each took itself would favour what happened to be short: with times
    that scatter by a third it comes out a tenth below their mean.
    """
    return run_means(samples, [s.work_s for s in samples])


def run_means(samples: Sequence[Sample], values: Sequence[float]) -> FloatArray:
    """The mean of the values of each sample's run, one per sample."""
    of_run: dict[Hashable, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        of_run.setdefault(sample.run, []).append(value)
    means = {run: float(np.mean(found)) for run, found in of_run.items()}
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
    bias = run_means(samples, (told / usual).tolist())
    ratios = np.array([s.work_s for s in samples]) / told * bias
    p5, p25, p50, p75, p95 = (float(v) for v in np.quantile(ratios, LEVELS))
    return p5, p25, p50, p75, p95


def regression(
    samples: Sequence[Sample],
    values: Sequence[float],
    relative_to: FloatArray,
    **bounds: Bounds,
) -> dict[str, float]:
    """Bounded least squares of `values` on what the coefficients of `OperationHost` are multiplied by.

    Args:
        samples: Operations.
        values: What is to be explained of each, s.
        relative_to: Deviations count relative to this, s.
        bounds: By name of the coefficient; what has no room between them is taken as given.
    """
    columns: dict[str, Callable[[Sample], float]] = {
        "extra_s": lambda s: 1.0,
        "scale": lambda s: s.expected_s,
        "wake": lambda s: s.idle_s,
        "token_s": lambda s: s.tokens,
        "row_s": lambda s: s.rows - 1,
        "step_s": lambda s: s.calls,
    }
    design = np.array([[columns[name](s) for name in bounds] for s in samples], dtype=np.float64)
    found = solve(design, np.array(values), relative_to, list(bounds.values()))
    return dict(zip(bounds, found, strict=True))


def solve(
    design: FloatArray, values: FloatArray, relative_to: FloatArray, bounds: Sequence[Bounds]
) -> list[float]:
    """Bounded least squares of deviations relative to something, else the longest operations would decide.

    What its bounds leave no room is taken as given: beside a column like it, it would make the fit singular.
    """
    least, most = np.array(bounds, dtype=np.float64).T
    free = most > least
    given = np.where(free, 0.0, least)
    unit = np.maximum(relative_to, TINY)
    weighted = design[:, free] / unit[:, None]
    size = np.linalg.norm(weighted, axis=0)
    size[size == 0.0] = 1.0
    limits = (least[free] * size, most[free] * size)
    given[free] = lsq_linear(weighted / size, (values - design @ given) / unit, bounds=limits).x / size
    return [float(v) for v in given]


def predicted(host: OperationHost, sample: Sample) -> float:
    """Work of an operation by its fit, s."""
    return host.work_s(
        sample.expected_s, rows=sample.rows, calls=sample.calls, tokens=sample.tokens, idle_s=sample.idle_s
    )


def waited(host: OperationHost, sample: Sample) -> float:
    """Time before and after an operation's work by its fit, s."""
    return host.lead_s(sample.rows) + host.after_s(sample.tokens)


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
    return [
        sample
        for group in groups.values()
        for sample in without_extremes(group, [s.work_s / (s.expected_s or 1.0) for s in group])
    ]


LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.9, 2.0
"""In-situ factors are cut to these."""
FLAT = 1.005
"""Fits that differ by less do not tell slow-downs apart."""
STEPS = 9
"""Slow-downs that are tried."""

Slowdowns: TypeAlias = Mapping[tuple[str, str, Forward], float]
"""(device, operation, the other device's operation) to a factor."""


Samples: TypeAlias = dict[HostOperation, list[Sample]]


def fit_host(
    records: Sequence[LiveRecord],
    grids: Mapping[str, GridCost],
    overlap: Sequence[Overlap],
    latency: Quantiles | None = None,
) -> tuple[Host, list[Overlap]]:
    """Host time as it is in real rounds, and how the grids' forwards fare tsample.

    Target operations are fitted where the draft is idle by design (AR, SD); what they take longer beside a
    busy draft then gives the target's slow-downs, in place of the probes'.  Of the draft's slow-downs remains
    what makes its operations agree, which overlap for larger and smaller shares of their time.

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
    plain = [r for r in records if r.settings.temperature == 0.0]
    for kind, name in _TELLING:
        if factors.get(("draft", kind, "forward"), 1.0) > 1.0:
            factors["draft", kind, "forward"] = _confirmed(plain, surfaces, factors, (kind, name))
    greedy = _samples(plain, surfaces, factors)
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
    return host, in_situ([_as_found(entry, factors) for entry in overlap], greedy, fitted)


_TELLING: tuple[tuple[Forward, HostOperation], ...] = (("forward", "continue"), ("tree", "prespeculate"))
"""Kinds of the draft's forwards, and the operation whose live times tell what they suffer."""


def _confirmed(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    telling: tuple[Forward, HostOperation],
) -> float:
    """The slow-down of a kind of the draft's forwards, between none and the probes', that fits rounds best.

    A short probe of a machine that others use can be far off, and no scale or constant makes up for it where
    operations overlap for a third of their time in one setting and for all of it in another.
    """
    kind, name = telling
    key: tuple[str, str, Forward] = ("draft", kind, "forward")

    def misfit(slowdown: float) -> float:
        samples = _samples(records, surfaces, {**factors, key: slowdown}, only=name).get(name, [])
        if not samples:
            return 0.0
        fitted, kept = fit_operation(name, samples), trimmed(samples)
        left = np.array([s.work_s - predicted(fitted, s) for s in kept]) / usual_work(kept)
        return float(np.sqrt(np.mean(left**2)))

    probed = factors[key]
    tried = np.linspace(1.0, probed, STEPS)
    misfits = [misfit(float(slowdown)) for slowdown in tried]
    # Where rounds do not tell, since all overlap alike, the probes' stands.
    return probed if misfits[-1] <= FLAT * min(misfits) else float(tried[np.argmin(misfits)])


def _as_found(entry: Overlap, factors: Slowdowns) -> Overlap:
    """A slow-down of the draft, with the factor that is left of it."""
    if entry.device != "draft" or entry.while_operation is None:
        return entry
    found = factors.get((entry.device, entry.operation, entry.while_operation), entry.slowdown)
    return entry.model_copy(update={"slowdown": found})


def _samples(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    *,
    only: HostOperation | None = None,
) -> Samples:
    found: Samples = {}
    for record in records:
        for seen in record.observations:
            if only not in {None, seen.operation}:
                continue
            run = (record.settings, record.batch)
            expected_s = _expected(seen, surfaces, factors)
            found.setdefault(seen.operation, []).append(
                sample_of(run, seen, expected_s, alone=record.alone, beside_s=seen.beside_s)
            )
    return found


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
        for sample in trimmed([s for s in samples.get(name, []) if not s.alone])
    ]
    chains = [(s, h) for s, h in seen if "tree" not in s.beside_s]
    trees = [(s, h) for s, h in seen if "tree" in s.beside_s]
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
        work += waited(host, sample) + predicted(host, sample)
        took += sample.lead_s + sample.work_s + sample.report_s
        for other, shared_s in sample.beside_s.items():
            if other == kind:
                beside += shared_s
            else:
                took -= shared_s * (1.0 - 1.0 / known.get(other, 1.0))
    # Work done beside the neighbour, at full speed.
    done = work - took + beside
    if beside <= 0.0 or done <= 0.0:
        return None
    return float(np.clip(beside / done, LEAST_SLOWDOWN, MOST_SLOWDOWN))


NO_BOUND = 1e3
Labelled = tuple[str, Timed]
"""Label of the setting, and an operation of it."""


@dataclass(frozen=True, slots=True)
class Gain:
    """How well the time of a timed run's operations is told, over all of them together.

    Attributes:
        label: Of the setting.
        batch: Of the run.
        borrowed: Relative error with steps and host time of built-in operations.
        fitted: With the timing fitted on all settings.
        unseen: With that fitted on the other settings alone; None where there is no other.
    """

    label: str
    batch: int
    borrowed: float
    fitted: float
    unseen: float | None


def fit_timings(profile: Profile, settings: Iterable[Decisions], *, sampled: bool) -> OperationTimings | None:
    """The timing of policies' operations; None where none was timed beside this profile.

    Args:
        profile: Beside which the settings were timed; those timed beside another are left out.
        settings: At one sampling.
        sampled: Whether that is at a temperature above 0.
    """
    costs = costs_fingerprint(profile)
    seen: dict[str, list[Labelled]] = {}
    for each in settings:
        if each.timed_beside == costs and each.timings:
            seen.setdefault(each.policy, []).extend((each.label, timed) for timed in each.timings)
    if not seen:
        return None
    return OperationTimings(
        profile=profile.name,
        place=place_fingerprint(profile),
        costs=costs,
        batches=tuple(sorted({timed.batch for found in seen.values() for _, timed in found})),
        policies={
            policy: fit_kinds(found, lambda timed: borrowed_host(profile, timed, sampled=sampled))
            for policy, found in seen.items()
        },
    )


def borrowed_host(profile: Profile, timed: Timed, *, sampled: bool) -> OperationHost:
    """Host time of the built-in operation that an operation is like."""
    like: HostOperation = timed.like  # type: ignore[assignment]
    return profile.host.of(like, sampled=sampled)


def fit_kinds(
    seen: Sequence[Labelled], borrowed: Callable[[Timed], OperationHost]
) -> dict[str, OperationTiming]:
    """The timing of each kind.

    Args:
        seen: Operations of any settings and batches.
        borrowed: Host time of what an operation is like: what single rows cannot tell is taken from there.
    """
    kinds = dict.fromkeys(timed.kind for _, timed in seen)
    return {
        kind: _fit_kind(mine, borrowed(mine[0][1]))
        for kind in kinds
        for mine in [[each for each in seen if each[1].kind == kind]]
    }


def _fit_kind(seen: Sequence[Labelled], borrowed: OperationHost) -> OperationTiming:
    names = dict.fromkeys(step.name for _, timed in seen for step in timed.steps)
    steps = {name: _fit_step(name, seen) for name in names}
    bare = OperationTiming(steps=steps)
    samples = [sample_of((label, timed.batch), timed, stepped(bare, timed)) for label, timed in seen]
    marks = [timed.mark_s for _, timed in seen if timed.mark_s >= 0.0]
    return OperationTiming(
        host=fit_own(samples, borrowed, drafts=seen[0][1].role == "draft"),
        steps=steps,
        mark_s=trimmed_mean(marks) if marks else None,
    )


def sample_of(
    run: Hashable,
    seen: Observation | Timed,
    expected_s: float,
    *,
    alone: bool = True,
    beside_s: Mapping[Forward, float] = MappingProxyType({}),
) -> Sample:
    """An operation as the fits take it, with what its forwards are expected to take."""
    own = {name: getattr(seen, name) for name in _OWN}
    return Sample(run=run, expected_s=expected_s, alone=alone, beside_s=beside_s, **own)


_OWN = ("rows", "calls", "tokens", "lead_s", "work_s", "report_s", "idle_s")


def stepped(timing: OperationTiming, timed: Timed) -> float:
    """What an operation's steps take by a timing, s."""
    return sum(timing.step(s.name).seconds(s.expected_s, timed.rows, s.calls) for s in timed.steps)


def _fit_step(name: str, seen: Sequence[Labelled]) -> StepTiming:
    found = [
        (label, timed, step)
        for label, timed in seen
        for step in timed.steps
        if step.name == name and step.calls
    ]
    if not any(step.expected_s for _, _, step in found):
        # What goes on in a lookup has a long tail that has nothing to do with it: medians.
        each_s = [step.seconds / step.calls for _, _, step in found]
        extra, row = line(each_s, [timed.rows - 1 for _, timed, _ in found], median)
        return StepTiming(extra_s=extra, row_s=row)
    groups: dict[tuple[str, int], list[StepTotal]] = {}
    for label, timed, step in found:
        if step.expected_s > 0.0:
            groups.setdefault((label, timed.batch), []).append(step)
    kept = [
        step
        for group in groups.values()
        for step in without_extremes(group, [s.seconds / s.expected_s for s in group], 0.05)
    ]
    calls, expected, seconds = np.array([(s.calls, s.expected_s, s.seconds) for s in kept]).T
    narrow, wide = np.quantile(expected / calls, [0.1, 0.9])
    several = bool(wide > LEVER * narrow)
    # A slope that a constant makes up for would mislead beyond the widths seen: it stays within bounds.
    slope = MOST_SCALE if several else NO_BOUND
    design = np.column_stack([calls, expected])
    # Relative to what is expected, not to what was measured: that would favour what happened to be short.
    bounds = [POSITIVE if several else NONE, (1.0 / slope, slope)]
    extra, factor = solve(design, seconds, expected, bounds)
    return StepTiming(factor=factor, extra_s=extra)


def fit_own(samples: Sequence[Sample], borrowed: OperationHost, *, drafts: bool) -> OperationHost:
    """A kind's own host time, on top of its steps; their scale is 1, since the steps have factors.

    Args:
        samples: Operations, with what their steps take as `expected_s`.
        borrowed: Gives what further rows cost where every operation was about one.
        drafts: Whether a draft did them, which chooses a token in each branch.
    """
    kept = trimmed(samples)
    cap = _idle_cap(kept)
    single = all(s.rows == 1 for s in kept)
    expected = np.array([s.expected_s for s in kept])
    found = regression(
        [replace(s, idle_s=min(s.idle_s, cap)) for s in kept],
        [s.work_s - s.expected_s for s in kept],
        np.maximum(expected, 0.1 * np.median([s.work_s for s in kept])),
        extra_s=ANY,
        row_s=NONE if single else POSITIVE,
        wake=(0.0, MOST_WAKE if _idles(kept) else 0.0),
        token_s=POSITIVE if drafts and _tokens_vary(kept) else NONE,
    )
    waiting = waits([s for s in samples if s.lead_s >= 0.0] or samples)
    if single:
        found["row_s"], waiting["submit_row_s"] = borrowed.row_s, borrowed.submit_row_s
    return with_spread(OperationHost().model_copy(update=found | waiting | {"idle_cap_s": cap}), samples)


def gains(profile: Profile, settings: Sequence[Decisions], *, sampled: bool) -> list[Gain]:
    """What measured timing buys, setting by setting and batch by batch, on the timed runs themselves."""
    costs = costs_fingerprint(profile)
    timed = [d for d in settings if d.timed_beside == costs and d.timings]

    def host(each: Timed) -> OperationHost:
        return borrowed_host(profile, each, sampled=sampled)

    def kinds(of: Sequence[Decisions]) -> dict[str, OperationTiming]:
        return fit_kinds([(d.label, each) for d in of for each in d.timings], host)

    every, found = kinds(timed) if timed else {}, []
    for decisions in timed:
        others = [d for d in timed if d.label != decisions.label]
        unseen = kinds(others) if others else None
        for batch in dict.fromkeys(each.batch for each in decisions.timings):
            run = [each for each in decisions.timings if each.batch == batch]
            plain = borrowed_kinds(decisions, run, host)
            errors = [error_of(run, timing) for timing in (plain, every)]
            left_out = None if unseen is None else error_of(run, {**plain, **unseen})
            found.append(Gain(decisions.label, batch, errors[0], errors[1], left_out))
    return found


def borrowed_kinds(
    decisions: Decisions, run: Sequence[Timed], host: Callable[[Timed], OperationHost]
) -> dict[str, OperationTiming]:
    """What a simulation without timing uses: steps as the profile says, medians of those without a model."""
    return {
        timed.kind: OperationTiming(
            host=host(timed),
            steps={
                step.name: StepTiming(extra_s=decisions.seconds.get(step.name, 0.0))
                for step in timed.steps
                if step.expected_s == 0.0
            },
        )
        for timed in run
    }


def error_of(run: Sequence[Timed], kinds: Mapping[str, OperationTiming]) -> float:
    """Told over measured seconds of all operations of a run, waits included, less 1."""
    told = took = 0.0
    for timed in run:
        timing = kinds[timed.kind]
        scaled = sample_of(None, timed, stepped(timing, timed))
        told += waited(timing.host, scaled) + predicted(timing.host, scaled)
        took += max(0.0, timed.lead_s) + timed.work_s + timed.report_s
        if timed.lead_s < 0.0:
            told -= timing.host.submit_s + timing.host.submit_row_s * (timed.rows - 1)
    return told / took - 1.0


def told(found: Sequence[Gain]) -> str:
    """One line on what measured timing buys."""

    def middle(errors: Iterable[float | None]) -> str:
        known = [abs(error) for error in errors if error is not None]
        return f"{median(known):.1%} (at most {max(known):.1%})" if known else "not known"

    line = (
        f"error of the operations' time in {len(found)} timed runs: median "
        f"{middle(g.borrowed for g in found)} with borrowed times, "
        f"{middle(g.fitted for g in found)} with their own timing"
    )
    if all(gain.unseen is None for gain in found):
        return f"{line}; record a second setting to see how far one is predicted from another"
    return f"{line}, {middle(g.unseen for g in found)} with that of the other settings"
