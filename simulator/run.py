"""Run settings in the simulated world: the scenario, the run, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hardware_profiles.optime import Host, OperationTiming
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import (
    NOT_TIMED,
    DecisionTrace,
    OperationTimings,
    joined_timings,
    read_timings,
)
from hardware_profiles.store import decisions_name, find_decisions
from hardware_profiles.surface import OPERATIONS, LatencySurface
from hardware_profiles.trace import TraceError
from policies.ar import ArConfig
from policies.config import LookaheadConfig
from policies.registry import POLICIES, SettingError, Settings, find_policy, start
from policies.rows import Rows
from policies.sd import SdConfig
from policies.summary import Summary, summarise
from policies.timeline import Span
from policies.values import Request
from simulator.costs import STRATA, Costs, Effects, Extrapolation, KeyedNoise, ProfileCosts, TextbookCosts
from simulator.needs import MemoryNeed, check_memory, check_profile, check_tokens
from simulator.replies import Recorded, RowReplies
from simulator.synthetic import Synthetic
from simulator.tokens import TokenModel
from simulator.world import SimulatedWorld, Slowdowns


@dataclass(frozen=True)
class Scenario:
    """Everything about a simulated run but the policy.

    Attributes:
        tokens: What is accepted.
        profile: What operations cost; None for `textbook` costs.
        requests: How many requests are served; more than the token model has are served again from the
            first.
        prompt_length: Prompt tokens of every request in place of the recorded ones.
        seed: Keys latency noise.
        decisions: What the real pair decided, by label of the setting, for policies that a recorded path
            cannot replay; None where there is no such recording.
        drift: Factors on the durations of a profile's operations, by name (`target.forward`): how fast the
            machine is today, as drawn from `GridCost.block_factors`.  None by default.
        measured_timings: What operations stated row by row take in real rounds (`find_timings`), where the
            decision trace does not say; None where nothing is known.
    """

    tokens: TokenModel
    profile: Profile | None = None
    textbook: TextbookCosts | None = None
    batch: int = 1
    requests: int | None = None
    prompt_length: int | None = None
    effects: Effects = field(default_factory=Effects)
    seed: int = 0
    drift: Mapping[str, float] = field(default_factory=dict)
    decisions: DecisionTrace | None = None
    measured_timings: OperationTimings | None = None

    def __post_init__(self) -> None:
        if (self.profile is None) == (self.textbook is None):
            raise SettingError("give either a hardware profile or textbook latencies")
        if self.batch < 1:
            raise SettingError(f"batch must be at least 1, got {self.batch}")
        if self.requests is not None and self.requests < 1:
            raise SettingError(f"requests must be at least 1, got {self.requests}")

    @property
    def host(self) -> Host | None:
        """Host time; None where none is simulated."""
        return self.profile.host if self.profile is not None and self.effects.host else None

    @property
    def slowdowns(self) -> Slowdowns:
        """What devices cost each other, by the operations of policies."""
        if self.profile is None or not self.effects.overlap:
            return {}
        found: dict[tuple[str, str, str, str | None], float] = {}
        for entry in self.profile.overlap:
            busy, other = entry.while_busy, entry.while_operation
            others = (None,) if other is None else OPERATIONS[busy, other]
            for mine in OPERATIONS[entry.device, entry.operation]:
                found |= {(entry.device, mine, busy, each): entry.slowdown for each in others}
        return found

    def timings(self, policy: str) -> Mapping[str, OperationTiming]:
        """What a policy's operations take in real rounds, by kind.

        Empty where that is not known of the profile's machine and pair, or no host time is simulated.
        """
        found = self._timings(policy)
        if found is None or self.profile is None or not self.effects.host:
            return {}
        return found.of(self.profile, policy)

    def timing_note(self, policy: str) -> str:
        """Whether the times of a policy's operations are known here, for people."""
        found = self._timings(policy)
        return NOT_TIMED if found is None or self.profile is None else found.note(self.profile)

    def _timings(self, policy: str) -> OperationTimings | None:
        recorded = self.decisions.operation_timings if self.decisions is not None else None
        known = (found for found in (recorded, self.measured_timings) if found is not None)
        return next((found for found in known if policy in found.policies), None)

    @property
    def costs(self) -> Costs:
        """A fresh account of what operations cost."""
        if self.profile is None:
            assert self.textbook is not None
            return self.textbook
        origins: dict[str, str] = {
            name: self.profile.provenance_of(name).kind for name in self.profile.operations
        }
        return ProfileCosts(
            self.surfaces, effects=self.effects, seed=self.seed, drift=self.drift, origins=origins
        )

    def world(self, tokens: TokenModel, draft_devices: int | None = None, **more: Any) -> SimulatedWorld:
        """A fresh world with these costs, host time and contention; `more` as `SimulatedWorld` takes it."""
        return SimulatedWorld(
            tokens,
            self.costs,
            host=self.host,
            slowdowns=self.slowdowns,
            draft_devices=draft_devices or 1,
            **more,
        )

    @cached_property
    def surfaces(self) -> dict[str, LatencySurface]:
        """Latency surfaces of the profile, by operation."""
        if self.profile is None:
            return {}
        return {name: LatencySurface(cost) for name, cost in self.profile.operations.items()}

    def serving(self) -> tuple[TokenModel, list[Request]]:
        """The token model and the requests in the order in which they are served."""
        tokens = self.tokens
        wanted = self.requests or len(tokens.requests)
        if wanted > len(tokens.requests):
            tokens = tokens.repeated(wanted)
        requests = list(tokens.requests[:wanted])
        if self.prompt_length is not None:
            requests = [replace(r, prompt_length=self.prompt_length) for r in requests]
        return tokens, requests


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcome of one simulated run.

    Attributes:
        extrapolated: Where costs lay outside the measured grid.
        memory: What each device had to hold, as far as the profile states sizes.
    """

    settings: Settings
    summary: Summary
    rows: Rows
    spans: list[Span]
    extrapolated: tuple[Extrapolation, ...]
    memory: tuple[MemoryNeed, ...] = ()


def simulate(scenario: Scenario, settings: Settings, *, timeline: bool = False) -> Simulated:
    """Run one configured policy to the end of its requests in simulated time.

    Raises:
        SettingError: The profile lacks an operation that the policy needs or memory for the setting, or the
            tokens cannot decide the fan-out or the backup.
    """
    tokens, requests = scenario.serving()
    contents = None
    if find_policy(settings.policy).needs_decisions:
        contents, requests = decided(replace(scenario, tokens=tokens), settings, requests)
    batch = min(scenario.batch, len(requests))
    memory: tuple[MemoryNeed, ...] = ()
    if scenario.profile is not None:
        check_profile(scenario.profile, settings)
    check_tokens(tokens, settings)
    if scenario.profile is not None:
        longest = max(r.prompt_length + r.limit for r in requests)
        memory = check_memory(scenario.profile, settings, batch, longest, vocabulary=tokens.vocabulary)
    world = scenario.world(
        tokens,
        settings.draft_devices,
        timeline=timeline,
        rows=contents,
        timings=scenario.timings(settings.policy),
        noise=KeyedNoise(scenario.seed, strata=STRATA) if scenario.effects.jitter else None,
    )
    keep = settings.config.reads_text or isinstance(contents, Recorded)
    rows = Rows(requests, batch, keep_tokens=keep)
    world.run(start(world, rows, settings))
    machine = world.machine
    summary = summarise(rows.log, total_s=world.now, busy_s=machine.busy_s, overlap_s=machine.overlap_s)
    extrapolated = world.costs.extrapolated() if isinstance(world.costs, ProfileCosts) else ()
    return Simulated(settings, summary, rows, world.spans, extrapolated, memory)


def decided(
    scenario: Scenario, settings: Settings, requests: list[Request]
) -> tuple[RowReplies, list[Request]]:
    """What answers a policy's row operations, and the requests it serves.

    The decision trace does if it has the setting; else a recorded path where it decides everything, and coins
    where the scenario's tokens are coins.

    Raises:
        SettingError: Nothing does.
    """
    trace, path = scenario.decisions, scenario.tokens.tokens is not None
    found = None if trace is None else trace.settings.get(settings.label)
    if found is None and path and settings.config.follows_path(settings.sampling):
        return Synthetic(scenario.tokens), requests
    if trace is None:
        if not path:
            return Synthetic(scenario.tokens), requests
        if "live" not in find_policy(settings.policy).worlds:
            raise SettingError(
                f"policy {settings.policy!r} has no model here, so that there is no recording of it: it runs "
                "on coin tosses (--acceptance) or a histogram alone"
            )
        raise SettingError(
            f"policy {settings.policy!r} is fed by tokens off the recorded path: its replay needs a "
            f"decision trace.  Record one with `calibrate decide --policy {settings.policy}` and give it "
            "with --decisions"
        )
    if found is None:
        known = ", ".join(map(repr, trace.settings))
        raise SettingError(
            f"the decision trace has no {settings.label!r}; it has {known}.  Record it with "
            "`calibrate decide`"
        )
    base = 1 + max(entry.id for entry in trace.requests)
    return Recorded(found, base), _served(scenario, trace, requests, base, settings.temperature)


def _served(
    scenario: Scenario, trace: DecisionTrace, requests: list[Request], base: int, temperature: float
) -> list[Request]:
    """The scenario's own requests where the decision trace has them, else those of the decision trace."""
    known = {entry.id: entry.prompt for entry in trace.requests}
    if all(known.get(request.id % base) == request.prompt for request in requests):
        if temperature == 0.0:
            return requests
        # Texts differ from those of the recorded path, whose lengths bind nobody.
        longest = max(request.limit for request in requests)
        return [replace(request, limit=longest) for request in requests]
    served = []
    for i in range(scenario.requests or len(trace.requests)):
        again, place = divmod(i, len(trace.requests))
        entry = trace.requests[place]
        length = scenario.prompt_length or len(entry.prompt)
        served.append(Request(entry.id + base * again, length, trace.limit, entry.prompt))
    return served


def baseline_settings(settings: Settings) -> tuple[Settings, Settings | None]:
    """Plain decoding and, for a policy with a lookahead, SD at the same lookahead and sampling."""
    ar = replace(settings, config=ArConfig())
    config = settings.config
    if not isinstance(config, LookaheadConfig):
        return ar, None
    draft = settings.draft_sampling or "sampled"
    return ar, replace(settings, config=SdConfig(config.lookahead, draft))


def baselines(scenario: Scenario, settings: Settings) -> tuple[Simulated, Simulated | None]:
    """AR and, for a policy with a lookahead, SD at the same lookahead, in the same scenario."""
    ar, sd = baseline_settings(settings)
    return simulate(scenario, ar), None if sd is None else simulate(scenario, sd)


def find_timings(
    profile: Profile, temperature: float = 0.0, top_p: float = 1.0, *, name: str | None = None
) -> OperationTimings | None:
    """The times of all policies' operations, as measured beside a profile (`calibrate decide`); or None.

    What sampling costs hardly depends on the temperature: where there is no recording at this one, that at
    temperature 1 stands in.

    They are looked for by `name` (`store.name_beside`), the profile's own by default.
    """
    found: OperationTimings | None = None
    for sampling in [*([(1.0, 1.0)] if temperature > 0.0 else []), (temperature, top_p)]:
        for info in POLICIES.values():
            if info.needs_decisions:
                with suppress(TraceError):
                    recorded = decisions_name(name or profile.name, info.name, *sampling)
                    found = joined_timings(found, read_timings(find_decisions(recorded)))
    return found
