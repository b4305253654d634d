"""Which setting holds an SLO at a load, fastest, and up to which load: `recommend --rate`.

Every setting serves the same arrivals, which are drawn once per seed and scaled: at twice the load they come
twice as close.  A setting holds the SLO where the share of requests that meet it is at least `good`; the load
at which it stops is looked for near that of the setting before, for each seed on its own, whose spread is the
interval (Student's t).
Replicas share the load evenly, each with arrivals like those asked for.

The table of lookaheads is tuned offline: for each number of rows the K of most expected tokens a second at
the traffic's mean context, ties within 1 % for the smaller K (vllm PR#49163).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import click
import numpy as np

from analysis.intervals import Interval
from analysis.recommend.answer import Query
from calibrate.options import Progress, quiet
from policies.commandline import POSITIVE, about, option, split_counts
from policies.registry import SettingError, Settings, configure
from policies.sampling import keyed_generator
from serving.lookahead import Adapt, LookaheadByBatch, parse_lookaheads
from serving.metrics import metrics, parse_slo
from serving.rounds import POLICIES
from serving.traffic import Traffic
from simulator.flat_traffic import expect, serve_traffic
from simulator.needs import count_devices
from simulator.scenario import Scenario
from simulator.traffic import engine_of
from simulator.traffic_report import TrafficRequest

REQUESTS = 500
"""Of every run, by default."""
CLOSED = ("batch", "max_devices", "crossovers", "grid", "prompt_length")
"""Options of a recommendation for a full batch."""
TIE = 0.01
"""Share of goodput that a larger K has to bring."""
FARTHEST = 10
"""Doublings or halvings of the load that are tried before a setting always or never holds."""
RUNS = 8
"""Of a setting and seed, about, until it is known where it stops."""
STEADY = 3
"""Times as long as a request takes arrivals have to go on at the load where a setting stops."""
STEPS = 6
"""Halvings of a doubling: the load at which a setting stops is known to about 1 %."""
STEEP = 0.05
"""Share of requests that a load one step of those higher costs, about, where a setting stops."""
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""95 % two-sided of Student's t, by the number of values."""
SEEN = (
    "good_share", "request_goodput", "mean_e2el_ms", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms",
    "p99_tpot_ms", "output_throughput", "mean_running", "preemptions",
)  # fmt: skip
"""Metrics that are kept of every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan(TrafficRequest):
    """Options of `recommend` where requests arrive, beside those of `simulate`."""

    count: int | None = option(
        None,
        "Requests of each run; of --traffic the first ones.  [default: 500]",
        spelled=("--requests",),
        type=POSITIVE,
    )
    good: float = option(
        0.9, "Share of requests that have to meet --slo.", type=click.FloatRange(0, 1, min_open=True)
    )
    seeds: int = option(
        4,
        "Repetitions with other arrivals and luck, whose spread makes the intervals.",
        type=click.IntRange(2, 10),
    )
    lookaheads: tuple[int, ...] = option((1, 2, 3, 4, 5, 7), "K that are tried.", callback=split_counts)
    policies: tuple[str, ...] = option(
        ("ar", "sd"), "Policies that are tried; those but ar and sd take minutes.", names=POLICIES
    )
    export: Path | None = field(
        default=None,
        metadata=about(
            "Folder for what engines read: the table of lookaheads and a parameter sweep.",
            type=click.Path(file_okay=False, path_type=Path),
        ),
    )
    measured: Path | None = field(
        default=None,
        metadata=about(
            "Folder of that sweep's results, to compare with.",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
        ),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, or one whose lookahead depends on the load."""

    settings: Settings
    by_load: LookaheadByBatch | Adapt | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """Its name, for people."""
        return self.name or self.settings.label


@dataclass(frozen=True, slots=True)
class Held:
    """A setting under the load asked for.

    Attributes:
        choice: The setting.
        devices: Of a replica.
        stops_at: Requests a second at which a replica stops holding the SLO, with its interval; None where it
            holds it however closely requests come.
        stops: The same by seed; infinite where it always holds.
        replicas: The fewest that hold it at the rate asked for, by the mean over seeds, and at worst and best
            within the interval; None where none does.
        seen: Means of the metrics of a replica over seeds, at the load that it has in the answer.
        latencies_s: Mean latency of requests there, by seed.
    """

    choice: Choice
    devices: int
    stops_at: Interval | None
    stops: tuple[float, ...]
    replicas: tuple[int, int, int] | None
    seen: Mapping[str, float | None]
    latencies_s: tuple[float, ...]
    holds: bool


@dataclass(frozen=True)
class TrafficAnswer:
    """The answer.

    Attributes:
        query: What was asked of the pair.
        plan: What was asked of the traffic.
        traffic: Of seed 0, at the rate asked for.
        rate: Requests a second in all.
        replicas: Groups that share it: the fewest with which any setting holds the SLO.
        held: All settings, the fastest one that holds it first.
        table: The tuned table of lookaheads, if SD can run.
        by_context: The same by context, too.
        over_plain: How much sooner requests end with the first one than by plain decoding.
        over_next: The same against the second one.
        models: Names of target and draft.
        warnings: What to know before believing anything else.
    """

    query: Query
    plan: TrafficPlan
    traffic: Traffic
    scenario: Scenario
    rate: float
    slo: Mapping[str, float]
    replicas: int
    held: Sequence[Held]
    table: LookaheadByBatch | None
    by_context: LookaheadByBatch | None
    over_plain: Interval | None
    over_next: Interval | None
    origins: Mapping[str, str]
    models: tuple[str, str]
    warnings: Sequence[str] = ()

    @property
    def winner(self) -> Held:
        """The fastest setting that holds the SLO; where none does, the one that comes closest."""
        return self.held[0]


class Load:
    """Traffic at any load, for each seed the same arrivals.

    Args:
        plan: What was asked.
        scenario: Of the pair.
        seed: Of the first repetition.

    Raises:
        SettingError: Options contradict each other.
        serving.traffic.TrafficError: The traffic is wrong.
    """

    def __init__(self, plan: TrafficPlan, scenario: Scenario, seed: int) -> None:
        assert scenario.profile is not None
        if not plan.slo:
            raise SettingError("say with --slo what has to hold, in seconds: --slo ttft=1,tpot=0.04")
        if plan.max_concurrency is not None:
            raise SettingError("--max-concurrency is a closed loop, whose load has no rate: leave it out")
        self.plan, self.slo, self.profile = plan, parse_slo(plan.slo), scenario.profile
        self.good = plan.good
        self.seeds = range(seed, seed + plan.seeds)
        self.traffics = [
            plan.requests(plan.count or (None if plan.traffic else REQUESTS), seed) for seed in self.seeds
        ]
        self.scenarios = [shuffled(scenario, seed) for seed in self.seeds]
        first = self.traffics[0]
        self.rate = plan.rate or (len(first.requests) - 1) / max(first.span_s, 1e-9)
        self._known: dict[tuple[int, int, float], dict[str, Any]] = {}
        self.runs = 0

    @property
    def context(self) -> int:
        """Mean tokens of a text halfway through its reply."""
        first = self.traffics[0]
        return int((first.prompt_tokens + first.output_tokens / 2) / len(first.requests))

    def served(self, number: int, choice: Choice, repeat: int, rate: float) -> dict[str, Any]:
        """Metrics of a setting under `rate` requests a second; `number` is the choice's."""
        key = (number, repeat, rate)
        if key not in self._known:
            traffic = self.traffics[repeat].scaled(self.rate / rate)
            options = self.plan.options_for(self.profile, choice.settings)
            served, beyond = serve_traffic(
                self.scenarios[repeat], choice.settings, traffic, options, choice.by_load
            )
            found = metrics(served, self.slo)
            self._known[key] = {name: found[name] for name in SEEN} | {"beyond": beyond}
            self.runs += 1
        return self._known[key]

    def margin(self, number: int, choice: Choice, repeat: int, place: int) -> float:
        """By how much more of the requests meet the SLO at a load than have to; below 0 it does not hold."""
        return float(self.served(number, choice, repeat, self.at(place))["good_share"]) - self.good

    def stops_at(self, number: int, choice: Choice, repeat: int, near: int | None = None) -> int | None:
        """The last of the loads `at` at which a setting holds; the lowest where it never does, None: at all.

        It is looked for from `near` on, or by doublings of the load, as far as the share of requests that
        meet the SLO suggests.  The answer is the same wherever the search begins, if what holds at a load
        holds at all lower ones.
        """
        fine, most = 1 << STEPS, FARTHEST << STEPS
        ends: dict[
            bool, tuple[int, float]
        ] = {}  # the closest loads at which it holds and does not, and by how much
        here, step = near or 0, 1
        while True:
            margin = self.margin(number, choice, repeat, here)
            ends[margin >= 0.0] = here, margin
            if len(ends) == 2:
                (low, above), (high, below) = ends[True], ends[False]
                if high - low <= 1:
                    return low
                here = low + round((high - low) * above / (above - below))
                here = min(max(here, low + 1), high - 1)
            elif abs(here) >= most:
                return None if margin >= 0.0 else -most
            else:
                likely = 2 * step if margin >= 1.0 - self.good else max(1, round(abs(margin) / STEEP))
                step = fine if near is None else min(fine, likely)
                here = max(-most, min(most, here + (step if margin >= 0.0 else -step)))

    def at(self, place: float) -> float:
        """Requests a second: 2^(1/64) apart, the load asked for at 0."""
        return float(self.rate * 2.0 ** (place / (1 << STEPS)))


def where_they_stop(load: Load, choices: Sequence[Choice], progress: Progress) -> list[tuple[float, ...]]:
    """Requests a second at which each setting stops holding, by seed; 0 where it never does, or infinite.

    A seed whose arrivals are hard for one setting is hard for the next one, too: each search begins where the
    one before it and the seeds before it say.
    """
    found: list[list[int | None]] = []
    for number, choice in enumerate(choices):
        own: list[int | None] = []
        for repeat in range(len(load.seeds)):
            before = found[-1] if found else own
            pairs = [(a, b) for a, b in zip(own, before, strict=False) if a is not None and b is not None]
            base = before[repeat] if repeat < len(before) else (own[-1] if own else None)
            shift = round(sum(a - b for a, b in pairs) / len(pairs)) if pairs else 0
            own.append(load.stops_at(number, choice, repeat, None if base is None else base + shift))
        found.append(own)
        progress(f"{load.rate:g} requests/s", number + 1, len(choices))
    most = FARTHEST << STEPS
    return [
        tuple(float("inf") if i is None else 0.0 if i <= -most else load.at(i + 0.5) for i in own)
        for own in found
    ]


def shuffled(scenario: Scenario, seed: int) -> Scenario:
    """With other luck: noise keyed by the seed, and recorded or tossed replies in another order."""
    requests = scenario.tokens.requests
    order = keyed_generator(seed, "traffic-replies", 0).permutation(len(requests))
    tokens = replace(scenario.tokens, requests=tuple(requests[i] for i in order))
    return replace(scenario, tokens=tokens, seed=seed)


def plan_traffic(query: Query, plan: TrafficPlan, progress: Progress = quiet) -> TrafficAnswer:
    """Serve the load with every setting, find where each stops, and rank them.

    Raises:
        SettingError: Options contradict each other, or no setting can run.
        serving.traffic.TrafficError: The traffic is wrong, or can never be served.
    """
    for each in fields(Query):
        if each.name in CLOSED and getattr(query, each.name) != each.default:
            raise SettingError(
                f"--{each.name.replace('_', '-')} is of a full batch: it says nothing of traffic"
            )
    sources = query.sources()
    scenario = sources.scenario(query.temperature, limit=query.max_tokens, seed=query.seed)
    meta = sources.trace(query.temperature).meta
    load = Load(plan, scenario, query.seed)
    table, by_context = tables = tuned(load, plan.lookaheads)
    choices = list(candidates(plan, tables, query.temperature))
    expect(RUNS * len(choices) * len(load.seeds) * load.traffics[0].output_tokens)
    stops = where_they_stop(load, choices, progress)
    replicas = min((counted[0] for each in stops if (counted := _replicas(load.rate, each))), default=1)
    held = [
        _held(load, number, choice, stops[number], load.rate / replicas)
        for number, choice in enumerate(choices)
    ]
    held.sort(
        key=lambda each: (not each.holds, -_stop(each) if not each.holds else np.mean(each.latencies_s))
    )
    plain = next((each for each in held if each.choice.settings.policy == "ar"), None)
    return TrafficAnswer(
        query=query,
        plan=plan,
        traffic=load.traffics[0],
        scenario=scenario,
        rate=load.rate,
        slo=load.slo,
        replicas=replicas,
        held=held,
        table=table,
        by_context=by_context,
        over_plain=None if plain is None or plain is held[0] else sooner(held[0], plain),
        over_next=sooner(held[0], held[1]) if len(held) > 1 else None,
        origins={str(name): text for name, text in sources.origins.items()},
        models=(meta.target_model, meta.draft_model),
        warnings=_beyond(load, held),
    )


def _stop(held: Held) -> float:
    return float(np.mean(held.stops))


def candidates(
    plan: TrafficPlan, tables: tuple[LookaheadByBatch, LookaheadByBatch | None], temperature: float
) -> Iterator[Choice]:
    """Settings that are compared."""
    depths, (table, by_context) = plan.lookaheads, tables
    for policy in plan.policies:
        if policy == "sd":
            for depth in depths:
                yield Choice(configure("sd", lookahead=depth, temperature=temperature))
            yield Choice(configure("sd", temperature=temperature), table, "sd K by batch, tuned")
            if by_context is not None:
                yield Choice(configure("sd", temperature=temperature), by_context, "sd K by batch, context")
        else:
            yield Choice(configure(policy, temperature=temperature))
    if plan.lookahead_by_batch:
        given = parse_lookaheads(plan.lookahead_by_batch)
        yield Choice(configure("sd", temperature=temperature), given, "sd K by batch, as given")
    if plan.adapt:
        deepest = configure("sd", lookahead=max(depths), temperature=temperature)
        yield Choice(deepest, plan.adapt, f"sd adaptive {plan.adapt}")


def tuned(load: Load, depths: Sequence[int]) -> tuple[LookaheadByBatch, LookaheadByBatch | None]:
    """Tables of lookaheads by rows, and by rows and context if that differs; see above.

    Raises:
        SettingError: SD cannot run here.
    """
    scenario, most = load.scenarios[0], load.plan.options.max_num_seqs
    engine = engine_of(scenario, configure("sd", lookahead=max(depths), temperature=_heat(scenario)))
    rows = sorted({1, most, *(1 << i for i in range(most.bit_length()))})
    contexts = [0, *(1 << i for i in range(10, 18) if 1 << i <= 4 * load.context)]
    tokens = {k: 1.0 + float(np.minimum(engine.runs, k).mean()) for k in (0, *depths)}

    def best(count: int, context: int) -> int:
        goodput = {
            k: count * tokens[k] / engine.times.expected_s(count, count * (1 + k), count * context, k)
            for k in sorted(tokens)
        }
        return next(k for k in goodput if goodput[k] >= (1.0 - TIE) * max(goodput.values()))

    plain = LookaheadByBatch(tuple(rows), tuple(best(count, load.context) for count in rows))
    lines = [tuple(best(count, 3 * context // 2 or 512) for context in contexts) for count in rows]
    if all(len(set(line)) == 1 for line in lines):
        return joined(plain), None
    kept = [place for place, line in enumerate(lines) if place == 0 or line != lines[place - 1]]
    cells = tuple(k for place in kept for k in lines[place])
    return joined(plain), LookaheadByBatch(tuple(rows[place] for place in kept), cells, tuple(contexts))


def _heat(scenario: Scenario) -> float:
    return scenario.tokens.setting[0] if scenario.tokens.setting else 0.0


def joined(table: LookaheadByBatch) -> LookaheadByBatch:
    """Without lines that say what the one before them says."""
    kept = [
        place for place, k in enumerate(table.lookaheads) if place == 0 or k != table.lookaheads[place - 1]
    ]
    return LookaheadByBatch(
        tuple(table.rows[place] for place in kept), tuple(table.lookaheads[place] for place in kept)
    )


def interval_of(values: Sequence[float]) -> Interval:
    """The mean of some values, and 95 % by Student's t."""
    mean, count = float(np.mean(values)), len(values)
    half = STUDENT[count] * float(np.std(values, ddof=1)) / sqrt(count)
    return Interval(mean - half, mean, mean + half, 0.95)


def sooner(first: Held, other: Held) -> Interval:
    """How much sooner requests end with the first one, on the same arrivals (paired)."""
    pairs = zip(first.latencies_s, other.latencies_s, strict=True)
    return interval_of([theirs / mine for mine, theirs in pairs])


def _replicas(rate: float, stops: Sequence[float]) -> tuple[int, int, int] | None:
    """Replicas by the mean of where one stops, and by the ends of its interval."""
    if not all(stops):
        return None
    if np.isinf(stops).any():
        return (1, 1, 1)
    known = interval_of(stops)
    low = max(known.low, min(stops) / 2.0)
    return tuple(ceil(rate / at - 1e-9) for at in (known.middle, low, known.high))  # type: ignore[return-value]


def _held(load: Load, number: int, choice: Choice, stops: tuple[float, ...], rate: float) -> Held:
    found = [load.served(number, choice, repeat, rate) for repeat in range(len(load.seeds))]
    values = {name: [each[name] for each in found] for name in SEEN}
    known = {name: [value for value in each if value is not None] for name, each in values.items()}
    seen = {name: float(np.mean(each)) if each else None for name, each in known.items()}
    return Held(
        choice=choice,
        devices=count_devices(choice.settings, load.profile).total,
        stops_at=None if np.isinf(stops).any() else interval_of(stops),
        stops=stops,
        replicas=_replicas(load.rate, stops),
        seen=seen,
        latencies_s=tuple(1e-3 * each["mean_e2el_ms"] for each in found),
        holds=bool((seen["good_share"] or 0.0) >= load.good),
    )


def _beyond(load: Load, held: Sequence[Held]) -> list[str]:
    """Where costs lay outside what was measured."""
    entries = {entry.operation for found in load._known.values() for entry in found["beyond"]}
    said = [f"beyond what was measured: {', '.join(sorted(entries))}"] if entries else []
    first = load.traffics[0]
    slowest = max(float(np.mean(each.latencies_s)) for each in held)
    fastest = max(_stop(each) for each in held)
    if len(first.requests) < STEADY * slowest * fastest:
        said.append(
            f"{len(first.requests)} requests are a burst at the loads where settings stop, no steady load: "
            "more of them stop earlier (--requests, a longer trace)"
        )
    return said
