"""Run settings in the simulated world: the scenario, the run, and the baselines beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from hardware_profiles.latency import LatencySurface
from hardware_profiles.profile import Profile
from policies.operations import Request
from policies.records import Span
from policies.registry import SettingError, Settings, configure, start
from policies.rows import Rows
from policies.summary import Summary, summarise
from simulator.costs import Costs, Effects, ProfileCosts, TextbookCosts
from simulator.tokens import TokenModel
from simulator.world import SimulatedWorld

SLOWED_BY_OVERLAP = {
    ("target", "forward"): ("verify",),
    ("draft", "forward"): ("draft", "continue"),
    ("draft", "tree"): ("prespeculate",),
}
"""Which operations each measured slow-down applies to."""


@dataclass(frozen=True)
class Scenario:
    """Everything about a simulated run but the policy.

    Attributes:
        tokens: What is accepted.
        profile: What operations cost; None for `textbook` costs.
        textbook: Constant costs in place of a profile.
        batch: Rows served at once.
        requests: How many requests are served; more than the token model has are served again from the
            first.
        prompt_length: Prompt tokens of every request in place of the recorded ones.
        effects: Which effects of real hardware are simulated.
        seed: Keys latency noise.
    """

    tokens: TokenModel
    profile: Profile | None = None
    textbook: TextbookCosts | None = None
    batch: int = 1
    requests: int | None = None
    prompt_length: int | None = None
    effects: Effects = field(default_factory=Effects)
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.profile is None) == (self.textbook is None):
            raise SettingError("give either a hardware profile or textbook latencies")
        if self.batch < 1:
            raise SettingError(f"batch must be at least 1, got {self.batch}")
        if self.requests is not None and self.requests < 1:
            raise SettingError(f"requests must be at least 1, got {self.requests}")

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
        settings: The policy and its knobs.
        summary: Metrics.
        rows: The batch, with its round log.
        spans: Timeline, if asked for.
        extrapolated: Operations whose cost lay outside the measured grid.
    """

    settings: Settings
    summary: Summary
    rows: Rows
    spans: list[Span]
    extrapolated: tuple[str, ...]


def simulate(scenario: Scenario, settings: Settings, *, timeline: bool = False) -> Simulated:
    """Run one configured policy to the end of its requests in simulated time.

    Raises:
        SettingError: The profile lacks an operation that the policy needs, or the trace cannot decide
            the fan-out.
    """
    tokens, requests = scenario.serving()
    _check_profile(scenario.profile, settings)
    costs = _costs(scenario)
    world = SimulatedWorld(
        tokens,
        costs,
        host=scenario.profile.host if scenario.profile and scenario.effects.host else None,
        slowdowns=_slowdowns(scenario),
        timeline=timeline,
    )
    rows = Rows(requests, min(scenario.batch, len(requests)))
    world.run(start(world, rows, settings))
    summary = summarise(
        rows.log,
        total_s=world.now,
        busy_s=world.machine.busy_s,
        overlap_s=world.machine.overlap_s,
    )
    extrapolated = tuple(sorted(costs.extrapolated)) if isinstance(costs, ProfileCosts) else ()
    return Simulated(settings, summary, rows, world.spans, extrapolated)


def baselines(scenario: Scenario, settings: Settings) -> tuple[Simulated, Simulated | None]:
    """AR and, for a policy with a lookahead, SD at the same lookahead, in the same scenario."""
    ar = simulate(scenario, configure("ar", seed=settings.seed))
    if settings.lookahead is None:
        return ar, None
    return ar, simulate(scenario, configure("sd", lookahead=settings.lookahead, seed=settings.seed))


def _check_profile(profile: Profile | None, settings: Settings) -> None:
    if profile is None:
        return
    needed = ["target.forward"]
    if settings.policy != "ar":
        needed.append("draft.forward")
    if settings.policy == "saguaro":
        needed.append("draft.tree")
    missing = [name for name in needed if name not in profile.operations]
    if missing:
        raise SettingError(
            f"profile {profile.name!r} has no {', '.join(missing)}, which policy {settings.policy!r} needs"
        )


def _costs(scenario: Scenario) -> Costs:
    if scenario.textbook is not None:
        return scenario.textbook
    return ProfileCosts(scenario.surfaces, effects=scenario.effects, seed=scenario.seed)


def _slowdowns(scenario: Scenario) -> dict[tuple[str, str, str], float]:
    if scenario.profile is None or not scenario.effects.overlap:
        return {}
    return {
        (entry.device, operation, entry.while_busy): entry.slowdown
        for entry in scenario.profile.overlap
        for operation in SLOWED_BY_OVERLAP.get((entry.device, entry.operation), ())
    }
