"""Serving in simulated time: what the steps of a schedule cost, and what they accept.

A step is one forward of the target over its verifying rows and the chunks of prompts beside them, then the
draft's turn: its own forward over the same chunks and the tokens that it has not seen, and K - 1 single
steps.  Tokens reach their users when the step has ended.  By the surfaces of a profile, with m tokens in all,
B verifying rows of w tokens over contexts of c in the mean, and chunks of n_i tokens after h_i,

    matrix(m)      max(prefill(1, m) - a (m^2 - sum n_i^2) / 2, forward(B, w, c_0))
    chunks         + a sum n_i h_i
    decode         + forward(B, w, c) - forward(B, w, c_0)

where c_0 is the shortest context measured and `a`, the seconds that a token of a prompt takes for each token
before it, is the curvature of the measured prefill times.  A step without chunks is forward(B, w, c).  Where
layers or kernels are known one by one, `hardware_profiles.mixed` puts the forward together instead.

That is for plain decoding and SD.  A policy whose devices work at the same time serves traffic with its own
generator in the simulated world; its prompts are read in forwards of their own before a round.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from hardware_profiles.mixed import MixedLayers
from hardware_profiles.optime import Host, HostOperation
from hardware_profiles.surface import Line
from policies.config import LookaheadConfig, SettingError
from policies.registry import Settings
from serving.lookahead import Adapt, LookaheadByBatch, Lookaheads, adaptive
from serving.loop import serve
from serving.metrics import Served
from serving.rounds import check_rounds, serve_rounds
from serving.scheduler import EngineOptions, Step
from serving.traffic import Traffic
from simulator.compiled.content import Rule
from simulator.costs import Extrapolation, KeyedNoise, ProfileCosts, TextbookCosts, curvature
from simulator.needs import check_profile, check_tokens
from simulator.scenario import Scenario
from simulator.tokens import TokenModel

STEPPED = ("ar", "sd")
"""Policies whose rounds are steps of the engine; others run their own (`serving.rounds`)."""
BLOCK = 1024
"""Factors of noise that are drawn at once."""


class StepTimes(Protocol):
    """Seconds of the forwards of a step."""

    def target_s(self, step: Step) -> float:
        """The target's."""
        ...

    def draft_s(self, step: Step, lookahead: int, unseen: int) -> float:
        """The draft's: `lookahead` for every row that said something, of which `unseen` are new to it."""
        ...

    def expected_s(self, rows: int, tokens: int, context: int, drafted: int) -> float:
        """Both, as a cost curve says them; see `serving.lookahead.StepSeconds`."""
        ...


@dataclass(slots=True)
class TextbookTimes:
    """Constants: a forward takes the same time whatever its width, prompts included."""

    costs: TextbookCosts

    def target_s(self, step: Step) -> float:
        """See `StepTimes`."""
        return self.costs.target_s

    def draft_s(self, step: Step, lookahead: int, unseen: int) -> float:
        """See `StepTimes`."""
        return max(1, lookahead) * self.costs.draft_s

    def expected_s(self, rows: int, tokens: int, context: int, drafted: int) -> float:
        """See `StepTimes`."""
        return self.costs.target_s + max(1, drafted) * self.costs.draft_s


class Forwards:
    """A role's forwards, looked up one at a time.

    Args:
        costs: With its surfaces.
        role: `target` or `draft`.

    Raises:
        SettingError: A surface is missing.
    """

    def __init__(self, costs: ProfileCosts, role: str) -> None:
        for kind in ("forward", "prefill"):
            if f"{role}.{kind}" not in costs.surfaces:
                raise SettingError(f"this profile has no {role}.{kind}, which steps of traffic consist of")
        self.costs = costs
        self.name, self.prefill_name = f"{role}.forward", f"{role}.prefill"
        self.surface, self.prefills = costs.surfaces[self.name], costs.surfaces[self.prefill_name]
        self.drift = costs.drift.get(self.name, 1.0)
        self.prefill_drift = costs.drift.get(self.prefill_name, 1.0)
        bounds = self.surface.bounds()
        self.shortest = int(bounds.get("context", (0, 0))[0])
        self.curve = curvature(self.prefills)
        self._lines: dict[tuple[int, int], Line] = {}
        self._prompts: dict[int, float] = {}
        self._most = [0, 0, 0]
        self._noise: list[float] = []

    def seconds(self, rows: int, width: int, context: int) -> float:
        """A forward over `rows` rows of `width` tokens at a mean context."""
        key = (rows, width)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self.surface.lines.one(rows, width)
            self._most = [max(self._most[0], rows), max(self._most[1], width), self._most[2]]
        cuts_at, pieces_of = line
        start, slope = pieces_of[bisect_right(cuts_at, context)] if cuts_at else pieces_of[0]
        self._most[2] = max(self._most[2], context)
        return self.drift * max(start + slope * context, self.surface.least_s)

    def over(self, rows: int, tokens: int, context: int) -> float:
        """A forward over `tokens` tokens of `rows` rows: between those over as many in each."""
        width, rest = divmod(tokens, rows)
        seconds = self.seconds(rows, width, context)
        if rest:
            seconds += rest / rows * (self.seconds(rows, width + 1, context) - seconds)
        return seconds

    def mixed(self, rows: int, tokens: int, contexts: int, chunks: Sequence[tuple[Any, int, int]]) -> float:
        """A forward over `tokens` tokens of `rows` verifying rows, and over chunks of prompts beside them."""
        if rows:
            whole = self.over(rows, tokens, contexts // rows)
            if not chunks:
                return whole * self._factor()
            least = self.over(rows, tokens, self.shortest)
        else:
            whole = least = 0.0
        own, before, squares = tokens, 0, 0
        for _, n, history in chunks:
            own += n
            before += n * history
            squares += n * n
        matrix = self._prompt(own) - 0.5 * self.curve * (own * own - squares)
        return (max(matrix, least) + self.curve * before + whole - least) * self._factor()

    def _prompt(self, tokens: int) -> float:
        found = self._prompts.get(tokens)
        if found is None:
            (seconds, _), *_ = self.prefills.lines.one(1, tokens).pieces
            found = self._prompts[tokens] = max(seconds, self.prefills.least_s) * self.prefill_drift
        return found

    def _factor(self) -> float:
        """Noise of the next forward."""
        if not self.costs.effects.jitter:
            return 1.0
        if not self._noise:
            factors = self.costs.noise_factors(self.name, BLOCK)
            self._noise = [1.0] * BLOCK if factors is None else factors[::-1].tolist()
        return self._noise.pop()

    def saw(self, rows: int, width: int, context: int, prompt: int) -> None:
        """Note the largest coordinates that somebody else asked for in its name."""
        self._most = [rows, width, context]
        if prompt:
            self._prompts[prompt] = 0.0

    def noted(self) -> None:
        """Let the costs know the largest coordinates asked for."""
        rows, width, context = (np.array([value]) for value in self._most)
        if rows[0]:
            self.costs.forwards(self.name, rows, width, context)
        if self._prompts:
            self.costs.prefills(self.prefill_name, np.array([1]), np.array([max(self._prompts)]))


class _Work(NamedTuple):
    """Of a device in a step; see `hardware_profiles.optime.OperationHost.work_s`."""

    expected_s: float
    rows: int
    calls: int
    tokens: int
    idle_s: float = 0.0


class ProfileTimes:
    """Of a profile's surfaces, with its host time and noise.

    Args:
        costs: Fresh costs of the run.
        host: Its host time; None for none.
        noise: Of whole operations; None: they take their means.
        settings: The policy.
    """

    def __init__(
        self, costs: ProfileCosts, host: Host | None, noise: KeyedNoise | None, settings: Settings
    ) -> None:
        self.host = host or Host()
        self.noise = noise
        self.sampled = settings.temperature > 0.0
        self.target = Forwards(costs, "target")
        self.draft = Forwards(costs, "draft") if settings.lookahead else None
        self._idle_s = 0.0

    def extrapolated(self) -> tuple[Extrapolation, ...]:
        """Where what was asked for so far lay outside what was measured."""
        for forwards in (self.target, self.draft):
            if forwards is not None:
                forwards.noted()
        return self.target.costs.extrapolated()

    def target_s(self, step: Step) -> float:
        """See `StepTimes`."""
        rows = len(step.decodes)
        seconds = self.target.mixed(rows, step.decode_tokens, step.contexts, step.chunks)
        kind: HostOperation = "verify" if step.decode_tokens > rows else "decode"
        work = _Work(seconds, rows + len(step.chunks), 1, step.tokens, self._idle_s)
        return self._with_host("target", kind, work)

    def draft_s(self, step: Step, lookahead: int, unseen: int) -> float:
        """See `StepTimes`."""
        assert self.draft is not None
        rows = len(step.decodes)
        fed = rows * unseen
        seconds = self.draft.mixed(rows, fed, step.contexts, step.chunks)
        rows += step.finishing
        contexts = step.contexts + sum(n + h for row, n, h in step.chunks if n + h == row.known)
        if rows and lookahead > 1:
            mean = contexts // rows + (lookahead + 1) // 2
            seconds += (lookahead - 1) * self.draft.seconds(rows, 1, mean)
        calls = max(1, lookahead)
        fed += step.chunk_tokens + rows * (calls - 1)
        self._idle_s = self._with_host("draft", "draft", _Work(seconds, rows, calls, fed))
        return self._idle_s

    def expected_s(self, rows: int, tokens: int, context: int, drafted: int) -> float:
        """See `StepTimes`."""
        assert self.draft is not None
        mean, calls = context // rows, max(1, drafted)
        target = self.target.over(rows, tokens, mean)
        draft = calls * self.draft.seconds(rows, 1, mean)
        kind: HostOperation = "verify" if tokens > rows else "decode"
        return self._with_host("", kind, _Work(target, rows, 1, tokens)) + self._with_host(
            "", "draft", _Work(draft, rows, calls, rows * calls)
        )

    def _with_host(self, device: str, kind: HostOperation, work: _Work) -> float:
        """Of a device's work; without a device, its mean."""
        host, rows = self.host.of(kind, sampled=self.sampled), max(1, work.rows)
        seconds = host.work_s(
            work.expected_s, rows=rows, calls=work.calls, tokens=work.tokens, idle_s=work.idle_s
        )
        if device and self.noise is not None and host.spread is not None:
            seconds *= self.noise.factor(f"{device}-{kind}", host.spread)
        return host.lead_s(rows) + seconds + host.after_s(work.tokens)


@dataclass(slots=True)
class SimulatedEngine:
    """Steps in simulated time.

    The n-th request has the outcomes of the token model's n-th one, a recording or coins: from the first
    again where that has fewer, and from its beginning again where a reply is longer.

    Attributes:
        times: Of forwards.
        runs: [positions] accepted run of the draft's tokens from each; next ones by request.
        starts: Its first position.
        lengths: How many it has.
        lookahead: K, the largest one where it depends on the load.
        by_load: Chooses K by what a step serves; None: always the same.
        now: Seconds.
    """

    times: StepTimes
    runs: list[int]
    starts: list[int]
    lengths: list[int]
    lookahead: int
    by_load: Lookaheads | None = None
    now: float = 0.0

    @classmethod
    def of(
        cls,
        times: StepTimes,
        tokens: TokenModel,
        settings: Settings,
        by_load: Lookaheads | None = None,
    ) -> SimulatedEngine:
        """An engine that accepts what a token model says of a policy.

        Raises:
            SettingError: The run's sampling is not that of the recording.
        """
        rule = Rule(tokens, settings)
        ids = [request.id for request in tokens.requests]
        starts, lengths = tokens.starts[ids].tolist(), tokens.lengths[ids].tolist()
        return cls(times, rule.runs().tolist(), starts, lengths, settings.lookahead or 0, by_load)

    def wait_until(self, at_s: float) -> None:
        """See `serving.loop.Engine`."""
        self.now = max(self.now, at_s)

    def run(self, step: Step) -> tuple[list[int], int | Mapping[int, int]]:
        """See `serving.loop.Engine`."""
        accepted, unseen = [0] * len(step.decodes), 1
        if step.decode_tokens > len(step.decodes):
            runs, starts, lengths = self.runs, self.starts, self.lengths
            for i, (row, width) in enumerate(zip(step.decodes, step.widths, strict=True)):
                which = row.place % len(starts)
                run = runs[starts[which] + row.emitted % lengths[which]]
                accepted[i] = run if run < width - 1 else width - 1
                if run >= width - 1:
                    unseen = 2  # the last drafted token was never fed to the draft
        self.now += self.times.target_s(step)
        drafted: int = self.lookahead
        verified: int | Mapping[int, int] = drafted
        if self.by_load is not None:
            drafted, verified = self._choose(self.by_load, step, accepted)
        if self.lookahead:  # with none now, the draft still reads what was said
            self.now += self.times.draft_s(step, drafted, unseen)
        return accepted, verified

    @staticmethod
    def _choose(by_load: Lookaheads, step: Step, accepted: list[int]) -> tuple[int, int | Mapping[int, int]]:
        """Let it learn of this step and choose for the rows that said something."""
        read = [(row.place, n + h) for row, n, h in step.chunks if n + h == row.known]
        for row, width, run in zip(step.decodes, step.widths, accepted, strict=True):
            if width > 1:
                by_load.learn(row.place, width - 1, run)
        places = [*(row.place for row in step.decodes), *(place for place, _ in read)]
        return by_load.choose(places, step.contexts + sum(tokens for _, tokens in read))


def serve_traffic(
    scenario: Scenario,
    settings: Settings,
    traffic: Traffic,
    options: EngineOptions,
    by_load: LookaheadByBatch | Adapt | None = None,
    *,
    rounds: bool | None = None,
    **more: Any,
) -> tuple[Served, tuple[Extrapolation, ...]]:
    """Serve traffic with a policy in simulated time; also where its costs lay outside what was measured.

    Args:
        scenario: What is accepted, and what forwards take; its batch and requests are not used.
        settings: The policy.
        traffic: Requests and when they come.
        options: Of the engine.
        by_load: K by the rows of a step, in place of the policy's, or what chooses it, at most the policy's.
        rounds: Whether the policy's own rounds serve it, and not steps of the engine; None: if they have to.
        more: As `serving.loop.serve` takes it.

    Raises:
        SettingError: The policy is not served, or the profile lacks what its steps consist of.
        serving.traffic.TrafficError: A request can never be served.
    """
    if rounds or (rounds is None and settings.policy not in STEPPED):
        if by_load is not None:
            raise SettingError(f"K by load goes with sd, not with {settings.policy!r}")
        return _serve_rounds(scenario, settings, traffic, options, **more)
    engine = engine_of(scenario, settings, by_load)
    served = serve(traffic, options, engine, **more)
    times = engine.times
    return served, times.extrapolated() if isinstance(times, ProfileTimes) else ()


def engine_of(
    scenario: Scenario, settings: Settings, by_load: LookaheadByBatch | Adapt | None = None
) -> SimulatedEngine:
    """The engine of a policy; see `serve_traffic`."""
    if settings.policy not in STEPPED:
        raise SettingError(
            f"an engine's steps are rounds of {' or '.join(STEPPED)}, not of {settings.policy!r}"
        )
    if by_load is not None and not isinstance(settings.config, LookaheadConfig):
        raise SettingError(f"policy {settings.policy!r} has no lookahead")
    if isinstance(by_load, LookaheadByBatch) and isinstance(settings.config, LookaheadConfig):
        settings = replace(settings, config=settings.config.deeper(max(1, by_load.most)))
    times: StepTimes
    costs = scenario.costs
    if isinstance(costs, ProfileCosts):
        times = ProfileTimes(costs, scenario.host, scenario.noise, settings)
    else:
        assert isinstance(costs, TextbookCosts)
        times = TextbookTimes(costs)
    if isinstance(by_load, str):
        chooser: Lookaheads = adaptive(by_load, settings.lookahead or 0, times.expected_s)
        return SimulatedEngine.of(times, scenario.tokens, settings, chooser)
    return SimulatedEngine.of(times, scenario.tokens, settings, by_load)


def _serve_rounds(
    scenario: Scenario, settings: Settings, traffic: Traffic, options: EngineOptions, **more: Any
) -> tuple[Served, tuple[Extrapolation, ...]]:
    """See `serve_traffic`."""
    check_rounds(settings, options)
    keep = settings.config.reads_text
    tokens = arriving_texts(scenario.tokens, traffic, keep_tokens=keep)
    if scenario.profile is not None:
        if "target.prefill" not in scenario.profile.operations:
            raise SettingError("this profile has no target.prefill: it does not say how long prompts take")
        check_profile(scenario.profile, settings)
    check_tokens(tokens, settings)
    world = scenario.world(tokens, settings.draft_devices, noise=scenario.noise)
    served, _ = serve_rounds(world, settings, traffic, options, tokens.requests, keep_tokens=keep, **more)
    return served, world.costs.extrapolated() if isinstance(world.costs, ProfileCosts) else ()


def arriving_texts(tokens: TokenModel, traffic: Traffic, *, keep_tokens: bool = False) -> TokenModel:
    """A token model of the requests of some traffic: the texts of another one in turn, as long as asked.

    A longer reply goes on from its text's beginning, as in `SimulatedEngine`.

    Raises:
        SettingError: A reply is longer than its text, and its tokens are looked at or sampled.
    """
    count, served = len(traffic.requests), traffic.requests
    tokens = tokens.repeated(count) if count > len(tokens.requests) else tokens
    pairs = list(zip(tokens.requests[:count], served, strict=True))
    requests = [replace(text, prompt_length=each.prompt, limit=each.output) for text, each in pairs]
    lengths = tokens.lengths[[text.id for text in requests]]
    beyond = np.flatnonzero(lengths < [request.limit for request in requests])
    if not len(beyond):
        return replace(tokens, requests=tuple(requests))
    if keep_tokens or tokens.sampled is not None or tokens.by_depth is not None:
        place = int(beyond[0])
        raise SettingError(
            f"request {place} has a reply of {requests[place].limit} tokens, its recorded text has "
            f"{lengths[place]}: this policy or sampling needs the text itself; ask for shorter replies "
            "(--output), or give --acceptance"
        )
    starts = tokens.starts[[text.id for text in requests]]
    spans = zip(starts, lengths, (request.limit for request in requests), strict=True)
    at = np.concatenate([start + np.arange(limit) % length for start, length, limit in spans])
    return TokenModel.of(
        requests,
        [request.limit for request in requests],
        run=tokens.run[at],
        need_rejected=tokens.need_rejected[at],
        need_free=tokens.need_free[at],
        max_fanout=tokens.max_fanout,
        tokens=None if tokens.tokens is None else tokens.tokens[at],
        ranked=None if tokens.ranked is None else tokens.ranked[at % len(tokens.ranked)],
        vocabulary=tokens.vocabulary,
        power_law=tokens.power_law,
        setting=tokens.setting,
    )


@dataclass(slots=True)
class LayerTimes:
    """Of layers that were timed one by one; there is no draft.

    Attributes:
        layers: The target's.
        gap_s: What the host takes between two steps.
    """

    layers: MixedLayers
    gap_s: float = 0.0

    def target_s(self, step: Step) -> float:
        """See `StepTimes`."""
        rows = len(step.decodes)
        context = (step.contexts + step.decode_tokens) / rows if rows else 0.0
        chunks = [(tokens, history) for _, tokens, history in step.chunks]
        return self.gap_s + self.layers.step_s(
            rows, step.decode_tokens, chunks, context=context, longest=step.longest + 1, answers=step.answers
        )

    def draft_s(self, step: Step, lookahead: int, unseen: int) -> float:
        """See `StepTimes`."""
        raise SettingError("these layers are the target's alone")

    def expected_s(self, rows: int, tokens: int, context: int, drafted: int) -> float:
        """See `StepTimes`."""
        raise SettingError("these layers are the target's alone")
