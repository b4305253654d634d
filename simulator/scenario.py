"""A scenario: everything about a simulated run but the policy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hardware_profiles.optime import Host, OperationTiming
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import NOT_TIMED, DecisionTrace, OperationTimings
from hardware_profiles.surface import OPERATIONS, LatencySurface
from policies.registry import SettingError
from policies.values import Request
from simulator.costs import STRATA, Costs, Effects, KeyedNoise, ProfileCosts, TextbookCosts
from simulator.replies import LivePrices
from simulator.tokens import TokenModel

if TYPE_CHECKING:
    from simulator.compiled.scripts import Script
    from simulator.world import SimulatedWorld, Slowdowns

Engine: TypeAlias = Literal["event", "compiled", "auto"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""The event world, the compiled replay, or the latter where it covers a run."""


KEPT = 16
"""Ways of serving that are kept for the copies of a scenario."""


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
        built: Surfaces by the identity of their profile, which is kept with them; copies share them.
        served: What is served by the identity of its tokens, which are kept with it; copies share it.
        scripts: What policies of row operations submit, by request and setting; copies share them.
        engine: Who simulates it.
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
    built: dict[int, tuple[Profile, dict[str, LatencySurface]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    served: dict[tuple[int, int | None, int | None], tuple[TokenModel, TokenModel, list[Request]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    scripts: dict[Hashable, Script] = field(default_factory=dict, repr=False, compare=False)
    engine: Engine = "auto"

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
            self.surfaces,
            effects=self.effects,
            seed=self.seed,
            drift=self.drift,
            origins=origins,
            packed=self.profile.verification == "packed",
        )

    @property
    def live_prices(self) -> LivePrices:
        """What live devices that emulate this scenario's hardware make their operations last."""
        return LivePrices(self.costs, self.host or Host())

    def world(self, tokens: TokenModel, draft_devices: int | None = None, **more: Any) -> SimulatedWorld:
        """A fresh world with these costs, host time and contention; `more` as `SimulatedWorld` takes it."""
        from simulator.world import SimulatedWorld

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
        """Latency surfaces of the profile, by operation; copies with the same profile share them."""
        if self.profile is None:
            return {}
        if id(self.profile) not in self.built:
            made: dict[str, LatencySurface] = {
                name: LatencySurface(cost) for name, cost in self.profile.operations.items()
            }
            self.built[id(self.profile)] = (self.profile, made)
        return self.built[id(self.profile)][1]

    @property
    def varies(self) -> bool:
        """Whether jitter has anything to act on: a spread of a surface or of an operation."""
        if self.profile is None or self.decisions is not None or self.measured_timings is not None:
            return True
        host = self.profile.host
        spreads = [each.spread for each in (*host.operations.values(), *host.sampled.values())]
        return any(spreads) or any(set(surface.spread) != {1.0} for surface in self.surfaces.values())

    @property
    def noise(self) -> KeyedNoise | None:
        """Fresh noise of whole operations; None where latencies do not vary."""
        return KeyedNoise(self.seed, strata=STRATA) if self.effects.jitter else None

    def serving(self) -> tuple[TokenModel, list[Request]]:
        """The token model and the requests in the order in which they are served; not to be changed."""
        key = (id(self.tokens), self.requests, self.prompt_length)
        if key not in self.served:
            if len(self.served) >= KEPT:
                self.served.pop(next(iter(self.served)))
            self.served[key] = (self.tokens, *self._serve())
        return self.served[key][1:]

    def _serve(self) -> tuple[TokenModel, list[Request]]:
        tokens = self.tokens
        wanted = self.requests or len(tokens.requests)
        if wanted > len(tokens.requests):
            tokens = tokens.repeated(wanted)
        requests = list(tokens.requests[:wanted])
        if self.prompt_length is not None:
            requests = [replace(r, prompt_length=self.prompt_length) for r in requests]
        return tokens, requests
