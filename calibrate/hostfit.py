"""Fits of host time on live runs (the model: `hardware_profiles.optime`).

Built-in operations (`fit_host`): all greedy runs are fitted together, of the target those in which the
draft is idle by design (AR, SD); what its operations take longer beside a busy draft then gives the
target's slow-downs, in place of the probes'. Of the draft's slow-downs remains what makes its operations
agree, which overlap for larger and smaller shares of their time. `scale` is free only where operations of
equally many rows differ enough to tell it from `row_s`. A draft chooses a token in every branch of every
row, which is its `token_s`. Sampled runs have a constant, a time per forward and one per token on top.

Operations that are replayed from recorded replies (`fit_timings`): all settings and batches of a decision
trace together, kind by kind, so that a setting that was not recorded on this machine is predicted from the
others. Steps first: of each name a factor and, where the expected seconds vary enough to tell, a constant.
What is left over is the kind's own host time.

How far whole operations scatter about the mean of their setting is kept too (`spread`): who waits for the
longer of two waits longer than either's mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import lsq_linear

from calibrate.hostrecords import (
    LiveRecord,
    Observation,
    Tables,
    trimmed_mean,
    wait_and_work_s,
    without_extremes,
)
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
from hardware_profiles.reply_trace import Decisions, OperationTimings, costs_fingerprint, place_fingerprint
from hardware_profiles.surface import LEVELS, FloatArray, Forward, GridCost, Quantiles

LEVER = 1.2
"""A slope is fitted if the longest expected operation is this many times the shortest."""
LEAST_PREDICTED = 0.2
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
"""What idling costs at most, as a share of the longest idling."""
MOST_CAPPED = 30.0
"""The longest idling over the shortest that is tried as that beyond which it costs no more."""
MOST_SCALE = 3.0
"""A slope beyond this, or below its inverse, is noise: only the constant is fitted then."""
NO_BOUND = 1e3
LEAST_SLOWDOWN, MOST_SLOWDOWN = 0.9, 2.0
"""In-situ factors are cut to these."""
FLAT = 1.005
"""Fits that differ by less do not tell slow-downs, or caps of idling, apart."""
STEPS = 9
"""Slow-downs, or caps of idling, that are tried."""


class Sample(NamedTuple):
    """An operation of a live run as the fits take it.

    Attributes:
        run: What ran: the setting and the batch.
        seen: Its rows, tokens and seconds.
        expected_s: What its forwards are expected to take, of a draft beside its neighbour.
        alone: Whether the other device was idle by the policy's design.
    """

    run: Hashable
    seen: Observation | Timed
    expected_s: float
    alone: bool = True


Samples: TypeAlias = dict[HostOperation, list[Sample]]
Slowdowns: TypeAlias = Mapping[tuple[str, str, Forward], float]
"""(device, operation, the other device's operation) to a factor."""
NEUTRAL = OperationHost()
Labelled: TypeAlias = tuple[str, Timed]
"""Label of the setting, and an operation of it."""


def predicted(host: OperationHost, sample: Sample) -> float:
    """Work of an operation by its fit, s."""
    return wait_and_work_s(host, sample.seen, sample.expected_s)[1]


def fit_operation(name: str, samples: Sequence[Sample]) -> OperationHost:
    """Host time and work of one operation from greedy runs; see the module's first lines."""
    chosen = _undisturbed(name, samples)
    kept = trimmed(chosen)
    expected, rows = np.array([(s.expected_s, s.seen.rows) for s in kept]).T
    # A regressor that hardly varies explains nothing: its coefficient stays at its neutral value.
    several = any(_varies(expected[rows == count]) for count in np.unique(rows))
    fitted = regression(
        kept,
        [s.seen.work_s for s in kept],
        usual_work(kept),
        extra_s=ANY,
        scale=(1 / MOST_SCALE, MOST_SCALE) if several else (1.0, 1.0),
        wake=_wake(kept),
        token_s=POSITIVE if name not in ON_TARGET and _tokens_vary(kept) else NONE,
        row_s=POSITIVE if rows.max() > 1 else NONE,
    )
    return with_spread(fitted | waits(samples), chosen)


def fit_sampled(name: str, samples: Sequence[Sample], greedy: OperationHost | None) -> OperationHost:
    """Host time of one operation in sampled runs: a constant, and times per forward and per token on top of
    the greedy fit.

    What no greedy run does (`settle`) has no slope to take over and is fitted like a greedy operation, or
    without one where it has no forward.
    """
    if greedy is None and any(s.seen.calls for s in samples):
        return fit_operation(name, samples)
    chosen = _undisturbed(name, samples)
    slopes = (greedy or NEUTRAL).but(extra_s=0.0)
    kept = trimmed(chosen)
    calls = [s.seen.calls for s in kept]
    fitted = regression(
        kept,
        [s.seen.work_s - predicted(slopes, s) for s in kept],
        usual_work(kept),
        extra_s=ANY,
        step_s=POSITIVE if max(calls) > min(calls) else NONE,
        token_s=POSITIVE if _tokens_vary(kept) else NONE,
    )
    fitted["token_s"] += slopes.token_s
    entry = with_spread(waits(samples) | fitted, chosen, slopes)
    if any(s.seen.tokens for s in kept):
        return entry
    # A settling feeds nothing, and does nothing where no row is open: the mean is what counts, and what it
    # costs more in a batch goes by rows.
    seconds = [s.seen.work_s for s in kept if s.seen.rows == 1] or [s.seen.work_s for s in kept]
    entry = entry.but(extra_s=float(np.mean(seconds)))
    several = trimmed([s for s in chosen if s.seen.rows > 1])
    rows = np.array([s.seen.rows - 1 for s in several], dtype=np.float64)
    left = np.array([s.seen.work_s - predicted(entry, s) for s in several])
    row_s = float((rows * left).sum() / (rows * rows).sum()) if several else 0.0
    return entry.but(row_s=row_s)


def fit_own(samples: Sequence[Sample], borrowed: OperationHost, *, drafts: bool) -> OperationHost:
    """A kind's own host time, on top of its steps; their scale is 1, since the steps have factors.

    What further rows cost is borrowed where every operation was about one.  A draft chooses a token in each
    branch.
    """
    kept = trimmed(samples)
    single = all(s.seen.rows == 1 for s in kept)
    expected, work = np.array([(s.expected_s, s.seen.work_s) for s in kept]).T
    fitted = regression(
        kept,
        (work - expected).tolist(),
        np.maximum(expected, 0.1 * np.median(work)),
        extra_s=ANY,
        row_s=NONE if single else POSITIVE,
        wake=_wake(kept),
        token_s=POSITIVE if drafts and _tokens_vary(kept) else NONE,
    )
    waiting = waits([s for s in samples if s.seen.lead_s >= 0.0] or samples)
    if single:
        fitted["row_s"], waiting["submit_row_s"] = borrowed.row_s, borrowed.submit_row_s
    return with_spread(fitted | waiting, samples)


def _undisturbed(name: str, samples: Sequence[Sample]) -> list[Sample]:
    """Of a target's operation those beside an idle draft, if there are any."""
    return [s for s in samples if s.alone or name not in ON_TARGET] or list(samples)


def _wake(samples: Sequence[Sample]) -> Bounds:
    """Of the cost of idling: none where it varies too little, or in too few samples, to tell."""
    shortest, longest = np.quantile([s.seen.idle_s for s in samples], [0.1, 0.95])
    varies = longest > 2.0 * shortest and len(samples) > FEW
    return (0.0, MOST_WAKE if varies else 0.0)


def _idle_caps(samples: Sequence[Sample]) -> list[float]:
    """Idling beyond which it may cost no more, s; the longest first: caches grow cold, and then are."""
    shortest, longest = np.quantile([s.seen.idle_s for s in samples], [0.1, 0.95]).tolist()
    if longest <= 0.0:
        return [0.0]
    return [float(cap) for cap in np.geomspace(longest, max(shortest, longest / MOST_CAPPED), STEPS)]


def _tokens_vary(samples: Sequence[Sample]) -> bool:
    """Whether they do enough to tell what a token costs."""
    tokens = [s.seen.tokens for s in samples]
    return max(tokens) > 2.0 * min(tokens)


def _varies(values: FloatArray) -> bool:
    """Whether there is enough of a range for a slope."""
    low, high = np.quantile(values, [0.1, 0.9])
    return bool(high > LEVER * low)


def waits(samples: Sequence[Sample]) -> dict[str, float]:
    """What passes before the work and after it: the first grows with the rows, the second with the tokens."""
    seen = [s.seen for s in samples]
    submit = line([s.lead_s for s in seen], [s.rows - 1 for s in seen])
    report = line([s.report_s for s in seen], [s.tokens for s in seen])
    return dict(zip(("submit_s", "submit_row_s", "report_s", "report_token_s"), submit + report, strict=True))


def line(
    values: Sequence[float], at: Sequence[int], middle: Callable[[list[float]], float] = trimmed_mean
) -> tuple[float, float]:
    """Intercept and slope, neither negative, of the middle values at each abscissa."""
    groups: dict[int, list[float]] = defaultdict(list)
    for value, x in zip(values, at, strict=True):
        groups[x].append(value)
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
    return _run_means(samples, [s.seen.work_s for s in samples])


def _run_means(samples: Sequence[Sample], values: Sequence[float]) -> FloatArray:
    """The mean of the values of each sample's run, one per sample."""
    of_run: dict[Hashable, list[float]] = defaultdict(list)
    for sample, value in zip(samples, values, strict=True):
        of_run[sample.run].append(value)
    means = {run: float(np.mean(own)) for run, own in of_run.items()}
    return np.array([means[sample.run] for sample in samples])


def with_spread(
    fitted: Mapping[str, float], samples: Sequence[Sample], others: OperationHost = NEUTRAL
) -> OperationHost:
    """The entry of fitted coefficients, the others taken over, with the spread of the samples about it.

    The spread, at `LEVELS`, is relative to the mean of each run: a setting that the fit has wrong does not
    scatter by that, nor does a batch whose rows become fewer.  Few samples have none.
    """
    host = others.but(**dict(fitted))
    if len(samples) <= FEW:
        return host
    usual = usual_work(samples)
    predicted_s = np.maximum([predicted(host, s) for s in samples], LEAST_PREDICTED * usual)
    bias = _run_means(samples, (predicted_s / usual).tolist())
    ratios = np.array([s.seen.work_s for s in samples]) / predicted_s * bias
    spread: Quantiles = tuple(np.quantile(ratios, LEVELS).tolist())
    return host.but(spread=spread)


def regression(
    samples: Sequence[Sample], values: Sequence[float], relative_to: FloatArray, **bounds: Bounds
) -> dict[str, float]:
    """Bounded least squares of `values`, s, on what the coefficients of `OperationHost` are multiplied by.

    Where `wake` is among them, `idle_cap_s` is, too: the longest that fits as well as any.
    """
    seen, given = [s.seen for s in samples], np.array(values)
    columns: dict[str, list[float]] = {
        "extra_s": [1.0] * len(seen),
        "scale": [s.expected_s for s in samples],
        "token_s": [s.tokens for s in seen],
        "row_s": [s.rows - 1 for s in seen],
        "step_s": [s.calls for s in seen],
    }
    caps = _idle_caps(samples) if "wake" in bounds else [0.0]
    fits: list[tuple[float, dict[str, float]]] = []
    for cap in caps if bounds.get("wake", NONE)[1] > 0.0 else caps[:1]:
        columns["wake"] = [min(s.idle_s, cap) for s in seen]
        # What idling costs in all is bounded, whatever the cap.
        steeper = {"wake": (0.0, bounds["wake"][1] * caps[0] / cap)} if cap > 0.0 else {}
        limits = {name: steeper.get(name, bound) for name, bound in bounds.items()}
        design = np.array([columns[name] for name in limits], dtype=np.float64).T
        found = solve(design, given, relative_to, list(limits.values()))
        misfit = float(np.sqrt(np.mean(((given - design @ found) / np.maximum(relative_to, TINY)) ** 2)))
        fitted = dict(zip(limits, found, strict=True))
        fits.append((misfit, fitted | ({"idle_cap_s": cap} if "wake" in bounds else {})))
    least = min(misfit for misfit, _ in fits)
    return next(fitted for misfit, fitted in fits if misfit <= FLAT * least)


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


def trimmed(samples: Sequence[Sample]) -> list[Sample]:
    """Every setting's samples without the longest and shortest 1 %, relative to what is expected."""
    groups: dict[Hashable, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.run].append(sample)
    return [
        sample
        for group in groups.values()
        for sample in without_extremes(group, [s.seen.work_s / (s.expected_s or 1.0) for s in group])
    ]


def fit_host(
    records: Sequence[LiveRecord],
    grids: Mapping[str, GridCost],
    overlap: Sequence[Overlap],
    latency: Quantiles | None = None,
) -> tuple[Host, list[Overlap]]:
    """Host time, and the probes' slow-downs (`overlap`) as they are in real rounds.

    Fitted on a calibration's own live runs and measured surfaces; the latency is that of messages, for the
    record.
    """
    surfaces = Tables(grids)
    factors: dict[tuple[str, str, Forward], float] = {
        (o.device, o.operation, o.while_operation): o.slowdown for o in overlap if o.while_operation
    }
    plain = [r for r in records if r.settings.temperature == 0.0]
    for kind, name in _WITNESSES:
        if factors.get(("draft", kind, "forward"), 1.0) > 1.0:
            factors["draft", kind, "forward"] = _confirmed(plain, surfaces, factors, kind, name)
    greedy = _samples(plain, surfaces, factors)
    hot = _samples([r for r in records if r.settings.temperature > 0.0], surfaces, factors)
    fitted = {name: fit_operation(name, samples) for name, samples in greedy.items()}
    host = Host(
        submit_s=float(np.mean([entry.submit_s for entry in fitted.values()])) if fitted else 0.0,
        report_s=float(np.mean([entry.report_s for entry in fitted.values()])) if fitted else 0.0,
        message_latency_s=latency,
        operations=fitted,
        sampled={name: fit_sampled(name, samples, fitted.get(name)) for name, samples in hot.items()},
    )
    factors |= _target_slowdowns(factors, greedy, fitted)
    return host, [
        o.but(slowdown=factors[o.device, o.operation, o.while_operation]) if o.while_operation else o
        for o in overlap
    ]


_WITNESSES: tuple[tuple[Forward, HostOperation], ...] = (("forward", "continue"), ("tree", "prespeculate"))
"""Kinds of the draft's forwards, and the operation whose live times tell what they suffer."""


def _confirmed(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    kind: Forward,
    name: HostOperation,
) -> float:
    """The slow-down of a kind of the draft's forwards, between none and the probes', that fits rounds best.

    A short probe of a machine that others use can be far off, and no scale or constant makes up for it where
    operations overlap for a third of their time in one setting and for all of it in another.
    """
    key: tuple[str, str, Forward] = ("draft", kind, "forward")

    def misfit(slowdown: float) -> float:
        samples = _samples(records, surfaces, {**factors, key: slowdown}, only=name).get(name, [])
        if not samples:
            return 0.0
        fitted, kept = fit_operation(name, samples), trimmed(samples)
        left = np.array([s.seen.work_s - predicted(fitted, s) for s in kept]) / usual_work(kept)
        return float(np.sqrt(np.mean(left**2)))

    probed = factors[key]
    tried = np.linspace(1.0, probed, STEPS)
    misfits = [misfit(float(slowdown)) for slowdown in tried]
    # Where rounds do not tell, since all overlap alike, the probes' stands.
    return probed if misfits[-1] <= FLAT * min(misfits) else float(tried[np.argmin(misfits)])


def _samples(
    records: Sequence[LiveRecord],
    surfaces: Tables,
    factors: Slowdowns,
    *,
    only: HostOperation | None = None,
) -> Samples:
    samples: Samples = defaultdict(list)
    for record in records:
        run = (record.settings, record.batch)
        for seen in record.observations:
            if only in {None, seen.operation}:
                sample = Sample(run, seen, _expected(seen, surfaces, factors), record.alone)
                samples[seen.operation].append(sample)
    return samples


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


def _target_slowdowns(
    probed: Slowdowns, samples: Samples, fitted: Mapping[HostOperation, OperationHost]
) -> Slowdowns:
    """The target's slow-downs as they are in real rounds, where those tell.

    A target operation is W seconds of work at full speed by its fit.  It took T seconds, O_f of them beside
    a draft that fed chains and O_t beside one that grew trees: W = T - O_f - O_t + O_f / f + O_t / t.
    Rounds without trees (PEARL) give f; the others (SSD, whose glue step is a chain) then give t.
    """
    beside_chains: list[tuple[Observation, float]] = []
    beside_trees: list[tuple[Observation, float]] = []
    for name in ("decode", "verify"):
        for sample in trimmed([s for s in samples.get(name, []) if not s.alone]):
            assert isinstance(sample.seen, Observation)
            work_s = sum(wait_and_work_s(fitted[name], sample.seen, sample.expected_s))
            group = beside_trees if "tree" in sample.seen.beside_s else beside_chains
            group.append((sample.seen, work_s))
    chain = _slowdown(beside_chains, "forward", 1.0)
    known = chain or probed.get(("target", "forward", "forward"), 1.0)
    factors = {"forward": chain, "tree": _slowdown(beside_trees, "tree", known)}
    return {
        key: slowdown
        for key in probed
        if key[:2] == ("target", "forward") and (slowdown := factors.get(key[2])) is not None
    }


def _slowdown(seen: Sequence[tuple[Observation, float]], kind: Forward, chain: float) -> float | None:
    """Slow-down beside one kind of work, that beside chains being known; None where it cannot be told."""
    work = took = beside = 0.0
    for each, full_s in seen:
        work += full_s
        took += each.lead_s + each.work_s + each.report_s
        beside += each.beside_s.get(kind, 0.0)
        if kind != "forward":
            took -= each.beside_s.get("forward", 0.0) * (1.0 - 1.0 / chain)
    # Work done beside the neighbour, at full speed.
    done = work - took + beside
    if beside <= 0.0 or done <= 0.0:
        return None
    return float(np.clip(beside / done, LEAST_SLOWDOWN, MOST_SLOWDOWN))


def fit_timings(profile: Profile, settings: Iterable[Decisions], *, sampled: bool) -> OperationTimings | None:
    """The timing of policies' operations from settings at one sampling that were timed beside this profile.

    None where none was.
    """
    timed = _timed_beside(profile, settings)
    if not timed:
        return None
    return OperationTimings(
        profile=profile.name,
        place=place_fingerprint(profile),
        costs=costs_fingerprint(profile),
        batches=tuple(sorted({each.batch for d in timed for each in d.timings})),
        policies={
            policy: _fit_settings(profile, [d for d in timed if d.policy == policy], sampled=sampled)
            for policy in dict.fromkeys(d.policy for d in timed)
        },
    )


def _timed_beside(profile: Profile, settings: Iterable[Decisions]) -> list[Decisions]:
    costs = costs_fingerprint(profile)
    return [d for d in settings if d.timed_beside == costs and d.timings]


def _fit_settings(
    profile: Profile, settings: Sequence[Decisions], *, sampled: bool
) -> dict[str, OperationTiming]:
    seen = [(d.label, each) for d in settings for each in d.timings]
    return fit_kinds(seen, lambda timed: borrowed_host(profile, timed, sampled=sampled))


def borrowed_host(profile: Profile, timed: Timed, *, sampled: bool) -> OperationHost:
    """Host time of an operation's cost class."""
    name: HostOperation = timed.cost_class  # type: ignore[assignment]
    return profile.host.of(name, sampled=sampled)


def fit_kinds(
    seen: Sequence[Labelled], borrowed: Callable[[Timed], OperationHost]
) -> dict[str, OperationTiming]:
    """The timing of each kind of operations of any settings and batches.

    What single rows cannot tell is borrowed from the host time of what an operation is like.
    """
    kinds: dict[str, list[Labelled]] = defaultdict(list)
    for label, timed in seen:
        kinds[timed.kind].append((label, timed))
    timings = {}
    for kind, mine in kinds.items():
        names = dict.fromkeys(step.name for _, timed in mine for step in timed.steps)
        bare = OperationTiming(steps={name: _fit_step(name, mine) for name in names})
        samples = [Sample((label, timed.batch), timed, stepped(bare, timed)) for label, timed in mine]
        marks = [timed.mark_s for _, timed in mine if timed.mark_s >= 0.0]
        first = mine[0][1]
        timings[kind] = OperationTiming(
            host=fit_own(samples, borrowed(first), drafts=first.role == "draft"),
            steps=bare.steps,
            mark_s=trimmed_mean(marks) if marks else None,
        )
    return timings


def stepped(timing: OperationTiming, timed: Timed) -> float:
    """What an operation's steps take by a timing, s."""
    return sum(timing.step(s.name).seconds(s.expected_s, timed.rows, s.calls) for s in timed.steps)


def _fit_step(name: str, seen: Sequence[Labelled]) -> StepTiming:
    steps = [
        (label, timed, step)
        for label, timed in seen
        for step in timed.steps
        if step.name == name and step.calls
    ]
    if not any(step.expected_s for _, _, step in steps):
        # What goes on in a lookup has a long tail that has nothing to do with it: medians.
        each_s = [step.seconds / step.calls for _, _, step in steps]
        extra, row = line(each_s, [timed.rows - 1 for _, timed, _ in steps], median)
        return StepTiming(extra_s=extra, row_s=row)
    groups: dict[tuple[str, int], list[StepTotal]] = defaultdict(list)
    for label, timed, step in steps:
        if step.expected_s > 0.0:
            groups[label, timed.batch].append(step)
    kept = [
        step
        for group in groups.values()
        for step in without_extremes(group, [s.seconds / s.expected_s for s in group], 0.05)
    ]
    calls, expected, seconds = np.array([(s.calls, s.expected_s, s.seconds) for s in kept]).T
    several = _varies(expected / calls)
    # A slope that a constant makes up for would mislead beyond the widths seen: it stays within bounds.
    slope = MOST_SCALE if several else NO_BOUND
    design = np.column_stack([calls, expected])
    # Relative to what is expected, not to what was measured: that would favour what happened to be short.
    bounds = [POSITIVE if several else NONE, (1.0 / slope, slope)]
    extra, factor = solve(design, seconds, expected, bounds)
    return StepTiming(factor=factor, extra_s=extra)


@dataclass(frozen=True, slots=True)
class Gain:
    """How well the time of a timed run's operations is told, over all of them together.

    Attributes:
        borrowed: Relative error with steps and host time of built-in operations.
        fitted: With the timing fitted on all settings.
        unseen: With that fitted on the other settings alone; None where there is no other.
    """

    label: str
    batch: int
    borrowed: float
    fitted: float
    unseen: float | None


def gains(profile: Profile, settings: Sequence[Decisions], *, sampled: bool) -> list[Gain]:
    """What measured timing buys, setting by setting and batch by batch, on the timed runs themselves."""
    timed = _timed_beside(profile, settings)
    every, gained = _fit_settings(profile, timed, sampled=sampled), []
    for decisions in timed:
        others = [d for d in timed if d.label != decisions.label]
        unseen = _fit_settings(profile, others, sampled=sampled) if others else None
        for batch in dict.fromkeys(each.batch for each in decisions.timings):
            run = [each for each in decisions.timings if each.batch == batch]
            # As a simulation without timing: steps as the profile says, medians of those without a model.
            plain = {
                each.kind: OperationTiming(
                    host=borrowed_host(profile, each, sampled=sampled),
                    steps={
                        step.name: StepTiming(extra_s=decisions.seconds.get(step.name, 0.0))
                        for step in each.steps
                        if step.expected_s == 0.0
                    },
                )
                for each in run
            }
            left_out = None if unseen is None else error_of(run, {**plain, **unseen})
            gained.append(Gain(decisions.label, batch, error_of(run, plain), error_of(run, every), left_out))
    return gained


def error_of(run: Sequence[Timed], kinds: Mapping[str, OperationTiming]) -> float:
    """Told over measured seconds of all operations of a run, waits included, less 1."""
    predicted_s = took = 0.0
    for timed in run:
        timing = kinds[timed.kind]
        predicted_s += sum(wait_and_work_s(timing.host, timed, stepped(timing, timed)))
        took += max(0.0, timed.lead_s) + timed.work_s + timed.report_s
        if timed.lead_s < 0.0:
            predicted_s -= timing.host.lead_s(timed.rows)
    return predicted_s / took - 1.0


def gains_line(gained: Sequence[Gain]) -> str:
    """One line on what measured timing buys."""

    def middle(errors: Iterable[float | None]) -> str:
        known = [abs(error) for error in errors if error is not None]
        return f"{median(known):.1%} (at most {max(known):.1%})" if known else "not known"

    line = (
        f"error of the operations' time in {len(gained)} timed runs: median "
        f"{middle(g.borrowed for g in gained)} with borrowed times, "
        f"{middle(g.fitted for g in gained)} with their own timing"
    )
    if all(gain.unseen is None for gain in gained):
        return f"{line}; record a second setting to see how far one is predicted from another"
    return f"{line}, {middle(g.unseen for g in gained)} with that of the other settings"
