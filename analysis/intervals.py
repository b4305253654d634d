"""How sure is a prediction: intervals by resampling everything that a rerun would draw anew.

A *replicate* is one possible run of the size that is predicted.  Four things vary from one to the next:

- **prompts**: drawn with replacement from the calibration's; plain decoding and every policy get the same
  ones, since they are compared on the same traffic;
- **sampling luck**, at a temperature above 0: the recorded texts replayed with another seed;
- **latency**, in blocks: a machine is a little faster or slower for minutes, which averages of thousands
  of steps do not level out.  One factor per operation and replicate, drawn from the profile's
  `block_factors`; it too is the same for all settings;
- **model error**: what the simulator gets wrong of a setting however well it is measured, a lognormal
  factor whose spread is that of log(simulated / measured) over the calibration's own live settings
  (`model_error`), drawn for each setting on its own.  Plain decoding, which the others are measured
  against, has none.

One request at a time, requests do not touch each other: each prompt is simulated once, and a replicate is
a ratio of sums over the prompts drawn.  What latency factors do is then taken from elasticities
d log(seconds) / d log(factor), found by simulating with one operation slowed at a time.  In a batch
requests share rounds, so that every replicate is simulated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import msgspec
import numpy as np

from analysis.results import settings_of
from analysis.stats import grouped
from calibrate.prompts import spread
from hardware_profiles.profile import Profile
from hardware_profiles.surface import ConstantCost, GridCost
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure
from policies.sampling import FloatArray, keyed_generator
from policies.values import IntArray
from simulator.compiled.replay import ReplayedLog
from simulator.run import Scenario, Simulated, baseline_settings, simulate
from simulator.tokens import TokenModel, replay

LEVEL = 0.8
REPLICATES = 400
BATCH_REPLICATES = 40
SEEDS_PER_PROMPT = 3
"""Replays of every prompt at a temperature above 0, among which replicates choose (batch 1)."""
PROBE = 1.05
"""Slow-down by which elasticities are found."""
PROBED_PROMPTS = 12
MANY = 16
"""Requests of a replicate in a batch, at most, unless two per row are more."""
INSTANT_S = 1e-12
"""Seconds of a prefill that takes no time."""
USUAL_COUNTS = (6, 4)
"""Prompts that `calibrate` runs live, with and without `--quick`."""
LIMITS = (64, 32)
"""Limits under which it may run them."""
FALLBACK = 0.04
"""Taken where a profile measured no setting live: the median error over all validations so far."""


def block_factors(profile: Profile | None) -> dict[str, FloatArray]:
    """Block factors of the operations that a decode uses and that have any, of mean 1."""
    relative: dict[str, FloatArray] = {}
    for name, cost in (profile.operations if profile else {}).items():
        if isinstance(cost, GridCost) and len(cost.block_factors) > 1 and not name.endswith("prefill"):
            factors = np.array(cost.block_factors, dtype=np.float64)
            relative[name] = factors / factors.mean()
    return relative


def outside_grid(run: Simulated) -> tuple[str, ...]:
    """Operations of a decode whose cost lay outside the measured grid, in words."""
    return tuple(str(each) for each in run.extrapolated if not each.operation.endswith("prefill"))


def chosen_requests(tokens: TokenModel, indices: IntArray) -> TokenModel:
    """The token model serving some of its requests, in that order; one drawn twice is served twice."""
    copies = int(np.bincount(indices).max())
    pool = tokens.repeated(copies * len(tokens.requests)) if copies > 1 else tokens
    seen: dict[int, int] = {}
    requests = []
    for index in indices.tolist():
        requests.append(pool.requests[seen.get(index, 0) * len(tokens.requests) + index])
        seen[index] = seen.get(index, 0) + 1
    return replace(pool, requests=tuple(requests))


def evenly_chosen(tokens: TokenModel, count: int) -> TokenModel:
    """The token model serving so many of its requests at most, spread evenly over them."""
    indices = np.linspace(0, len(tokens.requests) - 1, min(count, len(tokens.requests)))
    return chosen_requests(tokens, np.unique(indices.astype(np.int64)))


def varied(original: Scenario, **changes: Any) -> Scenario:
    """The scenario with other fields; with the same profile it uses the latency surfaces already built."""
    copy = replace(original, **changes)
    if copy.profile is original.profile:
        copy.__dict__["surfaces"] = original.surfaces
    return copy


def seconds_by_request(run: Simulated) -> tuple[FloatArray, FloatArray]:
    """([n] tokens, [n] decode seconds) of each request of a run at batch 1, in the order served.

    A request takes from getting its slot to its last round; what is left of prefills (messages) is the
    same for all and taken off.
    """
    log, table = run.rows.log, run.rows.log.table()
    requests = table["request"].tolist()
    last = dict(zip(requests, log.ends, strict=True))
    tokens = np.bincount(table["request"], weights=table["emitted"])[list(last)].astype(np.float64)
    prefill = log.prefill_s / len(last)
    return tokens, np.array([end - log.admitted_s[request] - prefill for request, end in last.items()])


def sums_by_request(run: Simulated) -> tuple[FloatArray, FloatArray]:
    """([n] tokens, [n] seconds) of each request of a run, in the order served; they sum to the run's.

    The rows of a round share its seconds; where rounds are not laid out beforehand, every row's round takes
    as long as another.
    """
    log, summary = run.rows.log, run.summary
    if isinstance(log, ReplayedLog):
        lineup, count = log.lineup, len(log.ends)
        first, tokens = lineup.admitted, lineup.limits.astype(np.float64)
        last = np.minimum(first + lineup.ends - lineup.begins, count)
        came, went = (np.bincount(each, minlength=count + 1) for each in (first, last))
        rows = np.maximum(np.cumsum(came - went)[:count], 1)
        until = np.concatenate([[0.0], np.cumsum(np.diff(log.ends, prepend=0.0) / rows)])
        shares = until[last] - until[first]
    elif run.rows.width == 1:
        tokens, shares = seconds_by_request(run)
    else:
        table, order = log.table(), list(log.admitted_s)
        tokens = np.bincount(table["request"], weights=table["emitted"])[order]
        shares = np.bincount(table["request"])[order].astype(np.float64)
    return tokens, shares * (summary.seconds / shares.sum())


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a value will lie with probability `level`, and its middle (the replicates' median)."""

    low: float
    middle: float
    high: float
    level: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def interval(values: FloatArray, level: float = LEVEL) -> Interval:
    """The interval that leaves (1 - level) / 2 of the replicates [R] on either side.

    Raises:
        ValueError: No replicate, or a level outside 0..1.
    """
    if len(values) == 0 or not 0.0 < level < 1.0:
        raise ValueError(f"needs replicates and a level between 0 and 1, got {len(values)} and {level:g}")
    low, middle, high = np.quantile(values, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return Interval(float(low), float(middle), float(high), level)


@dataclass
class Bootstrap:
    """Replicates of runs of any setting on the same traffic.

    Args:
        scenario: Traffic, costs and effects; its batch is replaced.
        size: Requests of the run that is predicted; by default as many as the token model has.
        batch: Rows served at once.
        model_error: Standard deviation of log(simulated / measured speedup).
        level: Of the intervals.
        replicates: How many; by default `REPLICATES`, or `BATCH_REPLICATES` in a batch.
        seed: Keys every draw.
    """

    scenario: Scenario
    size: int | None = None
    batch: int = 1
    model_error: float = 0.0
    level: float = LEVEL
    replicates: int | None = None
    seed: int = 0
    extrapolated: set[str] = field(default_factory=set)
    """Where costs lay outside the measured grid in any of the runs, prefills left out."""
    _speeds: dict[tuple[Settings, int], FloatArray] = field(default_factory=dict)
    _weights: dict[int, FloatArray] = field(default_factory=dict)

    @cached_property
    def count(self) -> int:
        """R, the number of replicates."""
        return self.replicates or (REPLICATES if self.batch == 1 else BATCH_REPLICATES)

    @cached_property
    def prompts(self) -> IntArray:
        """[R, n] indices into the token model's requests."""
        requests = len(self.scenario.tokens.requests)
        shape = (self.count, self.size or requests)
        return keyed_generator(self.seed, "bootstrap-prompts").integers(0, requests, shape)

    @cached_property
    def factors(self) -> dict[str, FloatArray]:
        """The [R] latency factors of every operation that has block factors."""
        known = block_factors(self.scenario.profile)
        chosen = {
            n: keyed_generator(self.seed, f"bootstrap-{n}").integers(0, len(known[n]), self.count)
            for n in known
        }
        return {name: known[name][which] for name, which in chosen.items()}

    def speeds(self, settings: Settings, batch: int | None = None) -> FloatArray:
        """[R] tokens per second in each replicate, model error left out."""
        width = batch or self.batch
        if (settings, width) not in self._speeds:
            speeds = self._alone(settings) if width == 1 else self._together(settings, width)
            self._speeds[settings, width] = speeds
        return self._speeds[settings, width]

    def predicted_speeds(self, settings: Settings, batch: int | None = None) -> FloatArray:
        """[R] tokens per second in each replicate, model error included."""
        return self.speeds(settings, batch) * self.error_factors(settings)

    def speedups(self, settings: Settings) -> FloatArray:
        """[R] speed over that of plain decoding on the same prompts and machine."""
        return self.predicted_speeds(settings) / self.predicted_speeds(plain(settings))

    def speedup(self, settings: Settings) -> Interval:
        """Interval of the speedup over plain decoding."""
        return interval(self.speedups(settings), self.level)

    def speedup_of_several(self, settings: Settings, runs: int) -> Interval:
        """Interval of the speedup of several runs in a row, each with prompts and latencies of its own.

        The model error, which they share, stays whole.
        """
        order = keyed_generator(self.seed, "bootstrap-several")
        chosen = np.array([order.permutation(self.count) for _ in range(runs)])
        ratios = [1.0 / (1.0 / self.speeds(s)[chosen]).mean(axis=0) for s in (settings, plain(settings))]
        return interval(ratios[0] / ratios[1] * self.error_factors(settings), self.level)

    def weights(self, requests: int) -> FloatArray:
        """[R, n] how often each replicate draws each of so many requests: the same for every setting."""
        if requests not in self._weights:
            self._weights[requests] = self._drawn(requests)
        return self._weights[requests]

    def _drawn(self, requests: int) -> FloatArray:
        luck = keyed_generator(self.seed, f"bootstrap-{requests}")
        drawn = luck.integers(0, requests, (self.count, requests))
        places = drawn + requests * np.arange(self.count)[:, None]
        counts = np.bincount(places.ravel(), minlength=self.count * requests)
        return counts.reshape(self.count, requests).astype(np.float64)

    def error_factors(self, settings: Settings) -> FloatArray:
        """[R] what the simulator gets wrong of a setting."""
        if settings.plain or self.model_error == 0.0:
            return np.ones(self.count)
        normal = self._keyed("model-error", settings).standard_normal(self.count)
        return np.asarray(np.exp(self.model_error * normal), dtype=np.float64)

    def _keyed(self, what: str, settings: Settings) -> np.random.Generator:
        return keyed_generator(self.seed, f"bootstrap-{what}", zlib.crc32(settings.label.encode()))

    def _alone(self, settings: Settings) -> FloatArray:
        """One request at a time: ratio of sums over the prompts drawn."""
        seeds = SEEDS_PER_PROMPT if settings.temperature > 0.0 else 1
        variants = [replace(settings, seed=settings.seed + k) for k in range(seeds)]
        runs = [self._per_request(variant, self.scenario.tokens) for variant in variants]
        tokens, seconds = (np.array([run[i] for run in runs]) for i in (0, 1))
        # A luck for each prompt drawn, not for the replicate: the runs of two prompts are independent.
        which = self._keyed("choice", settings).integers(0, seeds, self.prompts.shape)
        drawn = (which, self.prompts)
        speeds = tokens[drawn].sum(axis=1) / seconds[drawn].sum(axis=1)
        few = evenly_chosen(self.scenario.tokens, PROBED_PROMPTS)
        return self._drifted(settings, speeds, lambda drift: self._per_request(settings, few, drift)[1].sum())

    def _drifted(
        self, settings: Settings, speeds: FloatArray, seconds: Callable[[Mapping[str, float]], float]
    ) -> FloatArray:
        """[R] speeds as the latency factors change them, by the elasticity of each operation.

        Args:
            settings: The setting.
            speeds: [R] tokens per second without factors.
            seconds: Of a run whose operations take longer by such factors.
        """
        used = [n for n in self.factors if settings.policy != "ar" or not n.startswith("draft")]
        before = seconds({}) if used else 1.0
        for name in used:
            elasticity = np.log(seconds({name: PROBE}) / before) / np.log(PROBE)
            speeds = speeds * self.factors[name] ** -elasticity
        return np.asarray(speeds, dtype=np.float64)

    def _per_request(
        self, settings: Settings, tokens: TokenModel, drift: Mapping[str, float] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """([n] tokens, [n] decode seconds) of every request, served one after the other."""
        scenario = varied(self._instant_prefill, tokens=tokens, batch=1, requests=None, drift=drift or {})
        return seconds_by_request(self._run(scenario, settings))

    def _together(self, settings: Settings, batch: int) -> FloatArray:
        """In a batch: one simulation per replicate.

        Where the run is long, replicates are of its first `MANY` requests, or two per row, and their
        deviations from the whole run are scaled down accordingly (an m-out-of-n bootstrap).
        """
        size = self.prompts.shape[1]
        served = min(size, max(MANY, 2 * batch))
        short = served < size
        seeds = keyed_generator(self.seed, "bootstrap-lucks").integers(0, 2**31, self.count).tolist()
        speeds = np.array(
            [
                self._batch_speed(
                    settings,
                    batch,
                    prompts,
                    seed,
                    {} if short else {name: float(values[i]) for name, values in self.factors.items()},
                )
                for i, (prompts, seed) in enumerate(zip(self.prompts[:, :served], seeds, strict=True))
            ]
        )
        if not short:
            return speeds
        every = np.arange(len(self.scenario.tokens.requests))
        whole = self._batch_speed(settings, batch, every, self.seed, {})
        off = np.log(speeds) - np.mean(np.log(speeds))
        return self._drifted(
            settings,
            whole * np.exp(off * np.sqrt(served / size)),
            lambda drift: 1.0 / self._batch_speed(settings, batch, every, self.seed, drift),
        )

    def _batch_speed(
        self, settings: Settings, batch: int, prompts: IntArray, seed: int, drift: Mapping[str, float]
    ) -> float:
        scenario = varied(
            self.scenario,
            tokens=chosen_requests(self.scenario.tokens, prompts),
            batch=min(batch, len(prompts)),
            requests=None,
            drift=drift,
            seed=seed,
        )
        seeded = replace(settings, seed=seed) if settings.temperature > 0.0 else settings
        return self._run(scenario, seeded).summary.tokens_per_second

    def _run(self, scenario: Scenario, settings: Settings) -> Simulated:
        run = simulate(scenario, settings)
        self.extrapolated.update(outside_grid(run))
        return run

    @cached_property
    def _instant_prefill(self) -> Scenario:
        """The scenario with prefills that take no time: decode speeds leave them out anyway."""
        profile = self.scenario.profile
        if profile is None:
            return self.scenario
        instant = ConstantCost(seconds=INSTANT_S)
        operations = {n: instant if n.endswith("prefill") else cost for n, cost in profile.operations.items()}
        return replace(self.scenario, profile=profile.but(operations=operations))


def plain(settings: Settings) -> Settings:
    """Plain decoding at the same sampling setting and seed."""
    return baseline_settings(settings)[0]


def known_model_error(profile: Profile, traces: Mapping[float, Trace]) -> float:
    """The profile's own `model_error`, or else `model_error(...)`, or else `FALLBACK`.

    A profile of constant costs is a world, not a model of one: 0.
    """
    if profile.model_error is not None:
        return profile.model_error
    if profile.provenance.kind == "synthetic":
        return 0.0
    error = model_error(profile, traces)
    return FALLBACK if error is None else error


def model_error(profile: Profile, traces: Mapping[float, Trace]) -> float | None:
    """Root mean square of log(simulated / measured speedup) over the settings that calibration ran live.

    About zero, not about the mean: what is wrong in the same direction everywhere is wrong too.  The host
    times were fitted on these runs, so that it errs on the small side.  None with fewer than two settings.

    Args:
        profile: With `measured_runs`.
        traces: Calibration traces by temperature; runs at another temperature are left out.
    """
    errors = list(log_errors(profile, traces).values())
    return float(np.sqrt(np.mean(np.square(errors)))) if len(errors) > 1 else None


def log_errors(profile: Profile, traces: Mapping[float, Trace]) -> dict[tuple[Settings, int], float]:
    """log(simulated / measured speedup) by (setting, batch), plain decoding left out.

    The runs at one batch and temperature are simulated on the prompts that they ran on, if those are known.
    """
    known = (run for run in profile.measured_runs if run.policy != "ar" and run.temperature in traces)
    errors: dict[tuple[Settings, int], float] = {}
    for (temperature, batch), runs in grouped(known, lambda run: (run.temperature, run.batch)).items():
        part, limit = ran_on(traces[temperature], runs[0].tokens)
        scenario = Scenario(tokens=replay(part, limit=limit), profile=profile, batch=batch)
        ar = simulate(scenario, configure("ar", temperature=temperature)).summary.tokens_per_second
        for run in runs:
            settings = settings_of(msgspec.structs.asdict(run))
            speed = simulate(scenario, settings).summary.tokens_per_second
            errors[settings, batch] = float(np.log(speed / ar / run.speedup_vs_ar))
    return errors


def ran_on(trace: Trace, tokens: int) -> tuple[Trace, int | None]:
    """The requests that calibration ran live, and their limit: the pass that has just this many tokens.

    Prompts are taken in turn from every category, as calibration does.  All of the trace where no such pass
    fits.
    """
    lengths = {request.id: int(n) for request, n in zip(trace.requests, np.diff(trace.offsets), strict=True)}
    order = [request.id for request in spread(trace.requests)]
    for count, limit in product((*USUAL_COUNTS, *range(1, len(order) + 1)), (None, *LIMITS)):
        chosen = order[:count]
        if count <= len(order) and sum(min(lengths[i], limit or lengths[i]) for i in chosen) == tokens:
            return trace.slice([r.id for r in trace.requests if r.id in chosen]), limit
    return trace, None
