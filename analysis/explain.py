"""Why a predicted speed and a measured one differ: a setting's error, split into named parts that sum to it.

Every live run is simulated again on its own rounds, while what the model says of its operations is replaced,
one thing after the other, by what they took live.  Each replacement changes the seconds per token; these
changes, as logarithms, are the parts, and what is left at the end is what no operation explains:

| part | replaced |
|---|---|
| content | the rounds: those of the live run in place of the predicted ones |
| waiting | noise of the model by none; at the end, means of operations by what each of them took |
| forwards | steps by their kind's mean where the other device was idle |
| contention | the model's slow-downs by none, and steps by their kind's mean as it was |
| host | time of operations beside their steps, by its mean |
| messages | time from submission to start, and from end to notice, by their means |
| rest | everything by the live run: admission, and the policy's own work |

A speedup's parts are plain decoding's minus the setting's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from analysis.execute import Comparison
from analysis.intervals import varied
from analysis.results import Row
from calibrate.live.transport.device import Timing
from calibrate.live_runs import LiveRun
from policies.operation import Operation, Prefill
from policies.registry import find_policy, start
from policies.rows import Rows
from policies.summary import summarise
from simulator.costs import Effects, Priced
from simulator.replies import Form, Replies, TimedWork
from simulator.run import Scenario, decided

PARTS = ("content", "waiting", "forwards", "contention", "host", "messages", "rest")
ALONE = 0.05
"""Share of an operation in which the other device may work for it to count as alone."""
ENOUGH = 5
"""Operations of a kind whose mean is taken."""
MEANS = Effects(jitter=False)
UNDISTURBED = Effects(jitter=False, overlap=False)


class Seen(NamedTuple):
    """An operation of a live run beside what the model says of it, s; live ones in the usual weather.

    Attributes:
        alone: Whether the other device was idle.
    """

    kind: str
    forwards_s: float
    model_forwards_s: float
    host_s: float
    model_host_s: float
    lead_s: float | None
    after_s: float
    alone: bool


class Means(NamedTuple):
    """Of one kind of operation: live over the model's forwards, and seconds."""

    forwards: float
    host_s: float
    lead_s: float
    after_s: float


@dataclass(frozen=True)
class Replaced:
    """What the live run says in place of the model; None, or False: the model stands.

    Attributes:
        forwards: Factors on steps, by kind of operation.
        host, messages: Means by kind.
        each: Whether every operation takes what it took itself.
    """

    forwards: Mapping[str, float] | None = None
    host: Mapping[str, Means] | None = None
    messages: Mapping[str, Means] | None = None
    each: bool = False


@dataclass
class Retimed:
    """Answers as the simulated device's own replies, in other times.

    Args:
        inner: These replies.
        live: Operations of the live run by kind, in order of submission.
        replaced: What they say.
    """

    inner: Replies
    live: Mapping[str, Sequence[Timing]]
    replaced: Replaced
    weather: float
    seen: list[Seen] = field(default_factory=list)
    _matched: dict[int, tuple[Operation, Timing | None]] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def match(self, operation: Operation) -> Timing | None:
        """The live operation that this one is; None where there is none any more, and of prefills."""
        if id(operation) not in self._matched:
            found, mine = None, self.live.get(operation.kind, ())
            if not isinstance(operation, Prefill) and self._used[operation.kind] < len(mine):
                found = mine[self._used[operation.kind]]
                self._used[operation.kind] += 1
            self._matched[id(operation)] = operation, found
        return self._matched[id(operation)][1]

    def form(self, operation: Operation) -> Form:
        """See `simulator.replies.OperationTimes`; asked when an operation is submitted."""
        form, timing, replaced = self.inner.form(operation), self.match(operation), self.replaced
        lead_s = form.lead_s
        if timing is not None and replaced.each:
            lead_s = lead_s if timing.queued else (timing.start_s - timing.submit_s) / self.weather
        elif (mean := self._message(timing)) is not None:
            lead_s = mean.lead_s
        return replace(form, lead_s=max(0.0, lead_s))

    def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
        """See `simulator.replies.OperationTimes`."""
        said = self.inner.work(device, operation, form, idle_s)
        timing, replaced = self.match(operation), self.replaced
        if timing is None:
            return said
        kind = kind_of(timing)
        model_host_s = sum(s for name, s in said.steps if name == "host")
        forwards = [(name, s) for name, s in said.steps if name != "host"]
        model_s, (live_s, live_host_s) = sum(s for _, s in forwards), parts_of(timing, self.weather)
        lead_s = None if timing.queued else (timing.start_s - timing.submit_s) / self.weather
        after_s = timing.report_overhead_s / self.weather
        self.seen.append(
            Seen(kind, live_s, model_s, live_host_s, model_host_s, lead_s, after_s, self._alone(timing))
        )
        host_s = model_host_s
        if replaced.each:
            factor, host_s = (live_s / model_s if model_s > 0.0 else 1.0), live_host_s
        else:
            factor = (replaced.forwards or {}).get(kind, 1.0)
            if replaced.host is not None and kind in replaced.host:
                host_s = replaced.host[kind].host_s
        return TimedWork(Priced.of(forwards), factor, host_s)

    def after_s(self, operation: Operation, form: Form) -> float:
        """See `simulator.replies.OperationTimes`."""
        timing = self.match(operation)
        if timing is not None and self.replaced.each:
            return max(0.0, timing.report_overhead_s / self.weather)
        mean = self._message(timing)
        return self.inner.after_s(operation, form) if mean is None else mean.after_s

    def _message(self, timing: Timing | None) -> Means | None:
        """Of its kind, where these are replaced."""
        if timing is None or self.replaced.messages is None:
            return None
        return self.replaced.messages.get(kind_of(timing))

    def _alone(self, timing: Timing) -> bool:
        lasted_s = timing.end_s - timing.start_s
        beside_s = sum(
            max(0.0, min(timing.end_s, other.end_s) - max(timing.start_s, other.start_s))
            for mine in self.live.values()
            for other in mine
            if other.device != timing.device
        )
        return beside_s <= ALONE * lasted_s


def kind_of(timing: Timing) -> str:
    """Name of an operation; a verification of nothing is a `decode`."""
    decodes = timing.operation == "verify" and all(step.width == 1 for step in timing.steps)
    return "decode" if decodes else timing.operation


def parts_of(timing: Timing, weather: float = 1.0) -> tuple[float, float]:
    """Seconds of an operation's steps, and of it beside them."""
    forwards_s = sum(step.end_s - step.start_s for step in timing.steps)
    return forwards_s / weather, max(0.0, timing.end_s - timing.start_s - forwards_s) / weather


@dataclass(frozen=True)
class Told:
    """A live run, and the scenario that tells its rounds again."""

    run: LiveRun
    scenario: Scenario

    def seconds(self, effects: Effects, replaced: Replaced | None = None) -> tuple[float, list[Seen]]:
        """Decode seconds of the simulation, and what was seen of its operations."""
        run, live = self.run, defaultdict(list)
        for timing in sorted(run.timings, key=lambda timing: timing.submit_s):
            live[timing.operation].append(timing)
        scenario = varied(self.scenario, effects=effects, engine="event")
        tokens, requests = scenario.serving()
        contents = None
        if find_policy(run.settings.policy).needs_decisions:
            contents, requests = decided(scenario, run.settings, requests)
        stage = scenario.world(
            tokens,
            run.settings.draft_devices,
            rows=contents,
            timings=scenario.timings(run.settings.policy),
            noise=scenario.noise,
        )
        retimed = Retimed(stage.target.work, live, replaced or Replaced(), run.weather)
        for device in (stage.target, *stage.drafts):
            device.work = retimed  # type: ignore[assignment]
        rows = Rows(requests, min(run.batch, len(requests)), keep_tokens=True)
        stage.run(start(stage, rows, run.settings))
        found = summarise(rows.log, total_s=stage.now, busy_s=stage.machine.busy_s, overlap_s=0.0)
        return found.seconds, retimed.seen


def explained(comparison: Comparison, rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, float]]:
    """The parts of every setting's error at one temperature, by label and batch.

    Args:
        comparison: Its live runs.
        rows: Of whole settings.
    """
    told = {
        entry: [Told(run, comparison.told([run])) for run in comparison.runs if run.cell == entry.cell]
        for entry in comparison.entries
    }
    seen = {e: [one for each in mine for one in each.seconds(UNDISTURBED)[1]] for e, mine in told.items()}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for done, (entry, mine) in enumerate(told.items()):
        row = next(r for r in rows if (r["setting"], r["batch"]) == (entry.settings.label, entry.batch))
        beside = (one for e, ones in seen.items() if e.batch == entry.batch for one in ones if one.alone)
        simulated_s, measured_s = (1.0 / row[f"{w}_tokens_per_second"] for w in ("simulated", "measured"))
        key = entry.settings.label, entry.batch
        found[key] = parts(mine, simulated_s, measured_s, seen[entry], ratios(beside))
        comparison.bench.progress("explanations", done + 1, len(told))
    plain = {e.batch: found[e.settings.label, e.batch] for e in told if e.settings.plain}
    return {
        (label, batch): {name: plain[batch][name] - own[name] for name in PARTS}
        for (label, batch), own in found.items()
    }


def ratios(seen: Iterable[Seen]) -> dict[str, float]:
    """Live over the model's forwards, by kind of operation: ratios of sums."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in seen:
        sums[each.kind][0] += each.forwards_s
        sums[each.kind][1] += each.model_forwards_s
    return {kind: live_s / model_s for kind, (live_s, model_s) in sums.items() if model_s > 0.0}


def means_of(seen: Sequence[Seen]) -> dict[str, Means]:
    """Means by kind of operation."""
    factors, by_kind = ratios(seen), defaultdict(list)
    for each in seen:
        by_kind[each.kind].append(each)
    found = {}
    for kind, mine in by_kind.items():
        leads = [each.lead_s for each in mine if each.lead_s is not None]
        found[kind] = Means(
            factors.get(kind, 1.0),
            sum(each.host_s for each in mine) / len(mine),
            max(0.0, sum(leads) / len(leads)) if leads else 0.0,
            max(0.0, sum(each.after_s for each in mine) / len(mine)),
        )
    return found


def parts(
    told: Sequence[Told],
    predicted_s: float,
    measured_s: float,
    seen: Sequence[Seen],
    others: Mapping[str, float],
) -> dict[str, float]:
    """Log of the predicted over the measured seconds per token of one setting, part by part.

    Args:
        told: Its live runs.
        predicted_s: Seconds per token, predicted.
        measured_s: The same, measured.
        seen: Operations of its live runs.
        others: Live over the model's forwards, by kind, of all settings' operations beside which nothing ran:
            they stand in where this one has fewer than `ENOUGH`.
    """
    tokens = sum(each.run.tokens for each in told)

    def per_token(effects: Effects, replaced: Replaced | None = None) -> float:
        return sum(each.seconds(effects, replaced)[0] for each in told) / tokens

    means = means_of(seen)
    own = {kind: mean.forwards for kind, mean in means.items()}
    lone = [each for each in seen if each.alone]
    enough = {kind for kind in own if sum(each.kind == kind for each in lone) >= ENOUGH}
    undisturbed = {
        k: ratios(lone).get(k, factor) if k in enough else others.get(k, factor) for k, factor in own.items()
    }
    stages = [
        ("", predicted_s),
        ("content", per_token(Effects())),
        ("waiting", per_token(MEANS)),
        ("contention", per_token(UNDISTURBED)),
        ("forwards", per_token(UNDISTURBED, Replaced(undisturbed))),
        ("contention", per_token(UNDISTURBED, Replaced(own))),
        ("host", per_token(UNDISTURBED, Replaced(own, means))),
        ("messages", per_token(UNDISTURBED, Replaced(own, means, means))),
        ("waiting", per_token(UNDISTURBED, Replaced(each=True))),
        ("rest", measured_s),
    ]
    found = dict.fromkeys(PARTS, 0.0)
    for (_, before_s), (name, after_s) in pairwise(stages):
        found[name] += math.log(before_s / after_s)
    return found
