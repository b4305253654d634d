"""Fits of pace: what steps take beside what the profile says of them, and each kind's own host time.

All settings and batches of a decision trace are fitted together, kind by kind, so that a setting that was not
recorded on this machine is predicted from the others.  Steps first: of each name a factor and, where the
expected seconds vary enough to tell, a constant.  What an operation takes beyond its steps by that fit is
then split into a constant and prices per row, per second of idling and, of a draft, per token, as host time
of built-in operations is (`calibrate.fitting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from calibrate.fitting import (
    FEW,
    LEVER,
    MOST_SCALE,
    MOST_WAKE,
    TINY,
    Sample,
    predicted,
    solve,
    trimmed,
    trimmed_mean,
    waited,
    waits,
    with_spread,
)
from hardware_profiles.decisions import Decisions
from hardware_profiles.pace import (
    KindPace,
    Pace,
    StepPace,
    StepTotal,
    Timed,
    costs_fingerprint,
    place_fingerprint,
)
from hardware_profiles.parts import HostOperation, OperationHost
from hardware_profiles.profile import Profile

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
        paced: With the pace fitted on all settings.
        unseen: With that fitted on the other settings alone; None where there is no other.
    """

    label: str
    batch: int
    borrowed: float
    paced: float
    unseen: float | None


def fit_pace(profile: Profile, settings: Iterable[Decisions], *, sampled: bool) -> Pace | None:
    """The pace of policies' operations; None where none was timed beside this profile.

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
    return Pace(
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


def fit_kinds(seen: Sequence[Labelled], borrowed: Callable[[Timed], OperationHost]) -> dict[str, KindPace]:
    """The pace of each kind.

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


def _fit_kind(seen: Sequence[Labelled], borrowed: OperationHost) -> KindPace:
    names = dict.fromkeys(step.name for _, timed in seen for step in timed.steps)
    steps = {name: _fit_step(name, seen) for name in names}
    bare = KindPace(steps=steps)
    samples = [sample_of(label, timed, stepped(bare, timed)) for label, timed in seen]
    marks = [timed.mark_s for _, timed in seen if timed.mark_s >= 0.0]
    return KindPace(
        host=fit_own(samples, borrowed, drafts=seen[0][1].role == "draft"),
        steps=steps,
        mark_s=trimmed_mean(marks) if marks else None,
    )


def sample_of(label: str, timed: Timed, expected_s: float) -> Sample:
    """An operation as the fits of host time take it."""
    return Sample(
        run=(label, timed.batch),
        rows=timed.rows,
        calls=sum(step.calls for step in timed.steps),
        tokens=timed.tokens,
        lead_s=timed.lead_s,
        work_s=timed.work_s,
        report_s=timed.report_s,
        idle_s=timed.idle_s,
        expected_s=expected_s,
    )


def stepped(pace: KindPace, timed: Timed) -> float:
    """What an operation's steps take by a pace, s."""
    return sum(pace.step(s.name).seconds(s.expected_s, timed.rows, s.calls) for s in timed.steps)


def _fit_step(name: str, seen: Sequence[Labelled]) -> StepPace:
    found = [
        (label, timed, step)
        for label, timed in seen
        for step in timed.steps
        if step.name == name and step.calls
    ]
    if not any(step.expected_s for _, _, step in found):
        return _without_model([(timed.rows, step) for _, timed, step in found])
    groups: dict[tuple[str, int], list[StepTotal]] = {}
    for label, timed, step in found:
        if step.expected_s > 0.0:
            groups.setdefault((label, timed.batch), []).append(step)
    kept = [step for group in groups.values() for step in _without_extremes(group)]
    calls, expected, seconds = np.array([(s.calls, s.expected_s, s.seconds) for s in kept]).T
    narrow, wide = np.quantile(expected / calls, [0.1, 0.9])
    several = bool(wide > LEVER * narrow)
    # A slope that a constant makes up for would mislead beyond the widths seen: it stays within bounds.
    slope = MOST_SCALE if several else NO_BOUND
    design = np.column_stack([calls, expected])
    low, high = [0.0, 1.0 / slope], [np.inf if several else TINY, slope]
    # Relative to what is expected, not to what was measured: that would favour what happened to be short.
    extra, factor = solve(design, seconds, expected, low, high)
    return StepPace(factor=factor, extra_s=extra if several else 0.0)


def _without_model(found: Sequence[tuple[int, StepTotal]]) -> StepPace:
    """Medians: what goes on in a lookup has a long tail that has nothing to do with it."""
    by_rows: dict[int, list[float]] = {}
    for rows, step in found:
        by_rows.setdefault(rows, []).append(step.seconds / step.calls)
    middle = {rows: median(values) for rows, values in by_rows.items()}
    if len(middle) == 1:
        return StepPace(extra_s=max(0.0, *middle.values()))
    weights = np.sqrt([len(by_rows[rows]) for rows in middle])
    design = np.column_stack([np.ones(len(middle)), np.array(list(middle)) - 1.0])
    values, ones = np.array(list(middle.values())) * weights, np.ones(len(middle))
    extra, row = solve(design * weights[:, None], values, ones, [0.0, 0.0], [np.inf, np.inf])
    return StepPace(extra_s=extra, row_s=row)


def _without_extremes(group: Sequence[StepTotal]) -> list[StepTotal]:
    """Without the longest and the shortest 5 %, relative to what is expected."""
    ratio = np.array([step.seconds / step.expected_s for step in group])
    low, high = np.quantile(ratio, [0.05, 0.95])
    return [step for step, r in zip(group, ratio, strict=True) if low <= r <= high] or list(group)


def fit_own(samples: Sequence[Sample], borrowed: OperationHost, *, drafts: bool) -> OperationHost:
    """A kind's own host time, on top of its steps; their scale is 1, since the steps have factors.

    Args:
        samples: Operations, with what their steps take as `expected_s`.
        borrowed: Gives what further rows cost where every operation was about one.
        drafts: Whether a draft did them, which chooses a token in each branch.
    """
    kept = trimmed(samples)
    work, expected, idle, rows, tokens = np.array(
        [(s.work_s, s.expected_s, s.idle_s, s.rows - 1, s.tokens) for s in kept], dtype=np.float64
    ).T
    cap = float(np.quantile(idle, 0.95))
    idle = np.minimum(idle, cap)
    single = not rows.any()
    design = np.column_stack([np.ones(len(kept)), rows, idle, tokens])
    high = [
        np.inf,
        TINY if single else np.inf,
        MOST_WAKE if cap > 2.0 * float(np.quantile(idle, 0.1)) and len(kept) > FEW else TINY,
        np.inf if drafts and tokens.max() > 2.0 * tokens.min() else TINY,
    ]
    relative_to = np.maximum(expected, 0.1 * np.median(work))
    found = solve(design, work - expected, relative_to, [-np.inf, 0.0, 0.0, 0.0], high)
    extra, row, wake, token = (0.0 if most <= TINY else v for v, most in zip(found, high, strict=True))
    waiting = waits([s for s in samples if s.lead_s >= 0.0] or samples)
    if single:
        row, waiting["submit_row_s"] = borrowed.row_s, borrowed.submit_row_s
    entry = OperationHost(extra_s=extra, row_s=row, wake=wake, token_s=token, idle_cap_s=cap)
    return with_spread(entry.model_copy(update=waiting), samples)


def gains(profile: Profile, settings: Sequence[Decisions], *, sampled: bool) -> list[Gain]:
    """What the pace buys, setting by setting and batch by batch, on the timed runs themselves."""
    costs = costs_fingerprint(profile)
    timed = [d for d in settings if d.timed_beside == costs and d.timings]

    def host(each: Timed) -> OperationHost:
        return borrowed_host(profile, each, sampled=sampled)

    def kinds(of: Sequence[Decisions]) -> dict[str, KindPace]:
        return fit_kinds([(d.label, each) for d in of for each in d.timings], host)

    every, found = kinds(timed) if timed else {}, []
    for decisions in timed:
        others = [d for d in timed if d.label != decisions.label]
        unseen = kinds(others) if others else None
        for batch in dict.fromkeys(each.batch for each in decisions.timings):
            run = [each for each in decisions.timings if each.batch == batch]
            plain = borrowed_kinds(decisions, run, host)
            errors = [error_of(run, pace) for pace in (plain, every)]
            left_out = None if unseen is None else error_of(run, {**plain, **unseen})
            found.append(Gain(decisions.label, batch, errors[0], errors[1], left_out))
    return found


def borrowed_kinds(
    decisions: Decisions, run: Sequence[Timed], host: Callable[[Timed], OperationHost]
) -> dict[str, KindPace]:
    """What a simulation without pace goes by: steps as the profile says, medians of those without a model."""
    return {
        timed.kind: KindPace(
            host=host(timed),
            steps={
                step.name: StepPace(extra_s=decisions.seconds.get(step.name, 0.0))
                for step in timed.steps
                if step.expected_s == 0.0
            },
        )
        for timed in run
    }


def error_of(run: Sequence[Timed], kinds: Mapping[str, KindPace]) -> float:
    """Told over measured seconds of all operations of a run, waits included, less 1."""
    told = took = 0.0
    for timed in run:
        pace = kinds[timed.kind]
        scaled = sample_of("", timed, stepped(pace, timed))
        told += waited(pace.host, scaled) + predicted(pace.host, scaled)
        took += max(0.0, timed.lead_s) + timed.work_s + timed.report_s
        if timed.lead_s < 0.0:
            told -= pace.host.submit_s + pace.host.submit_row_s * (timed.rows - 1)
    return told / took - 1.0


def told(found: Sequence[Gain]) -> str:
    """One line on what the pace buys."""

    def middle(errors: Iterable[float | None]) -> str:
        known = [abs(error) for error in errors if error is not None]
        return f"{median(known):.1%} (at most {max(known):.1%})" if known else "not known"

    line = (
        f"error of the operations' time in {len(found)} timed runs: median "
        f"{middle(g.borrowed for g in found)} with borrowed times, "
        f"{middle(g.paced for g in found)} at their own pace"
    )
    if all(gain.unseen is None for gain in found):
        return f"{line}; record a second setting to see how far one is predicted from another"
    return f"{line}, {middle(g.unseen for g in found)} at that of the other settings"
