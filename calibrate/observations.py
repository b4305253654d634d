"""Live runs, reduced to what the fits of host time need and the journal keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from calibrate.journal import Json
from calibrate.live.device import StepTime, Timing
from calibrate.runs import LiveRun
from hardware_profiles.profile import Forward, HostOperation, RoleName
from policies.registry import Settings, configure, find_policy


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of an operation.

    Attributes:
        kind: `forward` or `tree`.
        rows: Rows that took part.
        width: New tokens per row, or branches.
        context: Tokens in the cache before, per row (the mean, where rows differ).
        tokens: New tokens (or branches) of all rows, padding not counted.
    """

    kind: Forward
    rows: int
    width: int
    context: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One operation of a live run.

    Attributes:
        operation: What it was; a verification of nothing is a `decode`.
        device: Who did it.
        rows: Rows that it was about.
        lead_s: From the report that the policy acted on to the start of its work.
        work_s: From start to end.
        report_s: From the end to the policy.
        idle_s: How long its device did nothing before.
        beside_s: Seconds of its work in which the other device worked, by what that did.
        steps: Its forwards.
    """

    operation: HostOperation
    device: RoleName
    rows: int
    lead_s: float
    work_s: float
    report_s: float
    idle_s: float
    beside_s: Mapping[Forward, float]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """One live run, as far as it matters here.

    Attributes:
        settings: What ran.
        batch: Rows served at once.
        requests: Ids of the requests.
        repeat: Which repetition.
        tokens: Tokens emitted.
        seconds: Decode seconds.
        observations: Its operations, prefills left out.
    """

    settings: Settings
    batch: int
    requests: tuple[int, ...]
    repeat: int
    tokens: int
    seconds: float
    observations: tuple[Observation, ...]

    @property
    def alone(self) -> bool:
        """Whether the devices take turns by the policy's design."""
        return find_policy(self.settings.policy).collocated


def reduce_run(run: LiveRun) -> LiveRecord:
    """What is kept of a live run."""
    return LiveRecord(
        settings=run.settings,
        batch=run.batch,
        requests=tuple(int(r) for r in run.requests),
        repeat=run.repeat,
        tokens=round(run.summary.tokens),
        seconds=run.summary.seconds,
        observations=tuple(observe(run.timings)),
    )


def observe(timings: Sequence[Timing]) -> list[Observation]:
    """The operations of a run whose start and surroundings are known, prefills left out.

    Left out, too, is what waited for other work on its device, and what followed a prefill.
    """
    ordered = sorted(timings, key=lambda t: t.submit_s)
    arrivals = sorted((t.arrival_s, t.operation == "prefill") for t in ordered)
    found = []
    for timing in ordered:
        before = [arrival for arrival in arrivals if arrival[0] <= timing.submit_s]
        after_prefill = not before or before[-1][1]
        if timing.operation == "prefill" or timing.queued or timing.start_s < 0 or after_prefill:
            continue
        others = [t for t in ordered if t.device != timing.device and t.operation != "prefill"]
        ended = [t.end_s for t in ordered if t.device == timing.device and t.end_s <= timing.start_s]
        found.append(
            Observation(
                operation=_name(timing),
                device="target" if timing.device == "target" else "draft",
                rows=timing.rows,
                lead_s=timing.start_s - before[-1][0],
                work_s=timing.end_s - timing.start_s,
                report_s=timing.report_overhead_s,
                idle_s=timing.start_s - max(ended, default=timing.start_s),
                beside_s=_beside(timing, others),
                steps=_steps(timing),
            )
        )
    return found


def _name(timing: Timing) -> HostOperation:
    decode = timing.operation == "verify" and all(step.width == 1 for step in timing.steps)
    return cast("HostOperation", "decode" if decode else timing.operation)


def _kind(step: StepTime) -> Forward:
    return "tree" if step.name == "tree" else "forward"


def _steps(timing: Timing) -> tuple[Step, ...]:
    """Forwards with the context that each found: the committed text but its last token, then what was fed."""
    context, found = timing.context - 1, []
    for step in timing.steps:
        found.append(Step(_kind(step), step.rows, step.width, context, step.tokens))
        context += step.width
    return tuple(found)


def _beside(timing: Timing, others: Sequence[Timing]) -> dict[Forward, float]:
    """Seconds in which each kind of the others' work went on during an operation's.

    An operation is what its current step is, up to the next one's start.
    """
    found: dict[Forward, float] = {}
    for other in others:
        if other.end_s <= timing.start_s or other.start_s >= timing.end_s or not other.steps:
            continue
        starts = [other.start_s, *(step.start_s for step in other.steps[1:]), other.end_s]
        for step, start, end in zip(other.steps, starts[:-1], starts[1:], strict=True):
            shared = min(timing.end_s, end) - max(timing.start_s, start)
            if shared > 0.0:
                found[_kind(step)] = found.get(_kind(step), 0.0) + shared
    return found


def to_json(record: LiveRecord) -> Json:
    """A run as plain values."""
    kept = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "observations"}
    settings = record.settings
    kept["settings"] = {"policy": settings.policy, "knobs": settings.knobs}
    kept["settings"] |= {name: getattr(settings, name) for name in _SAMPLING}
    kept["observations"] = [
        [*(getattr(o, name) for name in _SCALARS), dict(o.beside_s), [list(_astuple(s)) for s in o.steps]]
        for o in record.observations
    ]
    return kept


def from_json(kept: Json) -> LiveRecord:
    """The run that `to_json` was given."""
    own: dict[str, Any] = dict(kept["settings"])
    own |= {k: tuple(v) if isinstance(v, list) else v for k, v in own.pop("knobs").items()}
    observations = [
        Observation(
            **dict(zip(_SCALARS, scalars, strict=True)),
            beside_s=beside,
            steps=tuple(Step(*step) for step in steps),
        )
        for *scalars, beside, steps in kept["observations"]
    ]
    plain: dict[str, Any] = {k: v for k, v in kept.items() if k not in {"settings", "observations"}}
    plain["requests"] = tuple(plain["requests"])
    return LiveRecord(settings=configure(**own), observations=tuple(observations), **plain)


_SAMPLING = ("temperature", "top_p", "seed")
_SCALARS = ("operation", "device", "rows", "lead_s", "work_s", "report_s", "idle_s")


def _astuple(step: Step) -> tuple[Any, ...]:
    return (step.kind, step.rows, step.width, step.context, step.tokens)
