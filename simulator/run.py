"""Run settings in the simulated world: the scenario, the run, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hardware_profiles.optime import Host, OperationTiming
from hardware_profiles.profile import Profile
from hardware_profiles.reply_trace import DecisionTrace, OperationTimings, joined_timings, read_timings
from hardware_profiles.store import decisions_name, find_decisions
from hardware_profiles.trace import TraceError
from policies.ar import ArConfig
from policies.config import LookaheadConfig
from policies.registry import POLICIES, SettingError, Settings, find_policy, start
from policies.rows import Rows
from policies.sd import SdConfig
from policies.summary import Summary, summarise
from policies.timeline import Span
from policies.values import Request
from simulator.compiled.replay import World, not_covered, replay_run
from simulator.costs import Costs, Extrapolation, ProfileCosts, TextbookCosts
from simulator.needs import MemoryNeed, check_memory, check_profile, check_tokens
from simulator.replies import Recorded, RowReplies
from simulator.scenario import ENGINES, Engine, Scenario
from simulator.synthetic import Synthetic

__all__ = [
    "ENGINES",
    "Engine",
    "Scenario",
    "Simulated",
    "baseline_settings",
    "baselines",
    "decided",
    "find_timings",
    "simulate",
]


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcome of one simulated run.

    Attributes:
        extrapolated: Where costs lay outside the measured grid.
        memory: What each device had to hold, as far as the profile states sizes.
        engine: Who answered: `event` or `compiled`.
    """

    settings: Settings
    summary: Summary
    rows: Rows
    spans: list[Span]
    extrapolated: tuple[Extrapolation, ...]
    memory: tuple[MemoryNeed, ...] = ()
    engine: str = "event"


def simulate(scenario: Scenario, settings: Settings, *, timeline: bool = False) -> Simulated:
    """Run one configured policy to the end of its requests in simulated time.

    The compiled replay answers where it covers the run, unless the scenario asks for another engine.

    Raises:
        SettingError: The profile lacks an operation that the policy needs or memory for the setting, or the
            tokens cannot decide the fan-out or the backup; or the compiled replay is asked for and does not
            cover the setting.
    """
    tokens, requests = scenario.serving()
    contents = None
    if find_policy(settings.policy).needs_decisions or settings.config.follows_path(settings.sampling):
        contents, requests = decided(replace(scenario, tokens=tokens), settings, requests)
    batch = min(scenario.batch, len(requests))
    memory: tuple[MemoryNeed, ...] = ()
    if scenario.profile is not None:
        check_profile(scenario.profile, settings)
    check_tokens(tokens, settings)
    if scenario.profile is not None:
        longest = max(r.prompt_length + r.limit for r in requests)
        memory = check_memory(scenario.profile, settings, batch, longest, vocabulary=tokens.vocabulary)
    timings = scenario.timings(settings.policy)
    keep = settings.config.reads_text or isinstance(contents, Recorded)
    if scenario.engine != "event":
        found, reason = _compiled(
            replace(scenario, tokens=tokens),
            settings,
            requests,
            batch,
            contents=contents,
            timings=timings,
            keep=keep,
            timeline=timeline,
        )
        if found is not None:
            return replace(found, memory=memory)
        if scenario.engine == "compiled":
            raise SettingError(f"the compiled engine does not cover this run: {reason}; use --engine event")
    stage = scenario.world(
        tokens,
        settings.draft_devices,
        target_devices=settings.target_devices or 1,
        timeline=timeline,
        rows=contents,
        timings=timings,
        noise=scenario.noise,
    )
    rows = Rows(requests, batch, keep_tokens=keep)
    stage.run(start(stage, rows, settings))
    machine = stage.machine
    summary = summarise(rows.log, total_s=stage.now, busy_s=machine.busy_s, overlap_s=machine.overlap_s)
    return Simulated(settings, summary, rows, stage.spans, _extrapolated(stage.costs), memory)


def _compiled(
    scenario: Scenario,
    settings: Settings,
    requests: list[Request],
    batch: int,
    *,
    contents: RowReplies | None,
    timings: Mapping[str, OperationTiming],
    keep: bool,
    timeline: bool,
) -> tuple[Simulated | None, str]:
    """The run without events; None and the reason where it takes them."""
    costs = scenario.costs
    world = World(costs, scenario.host, scenario.slowdowns, scenario.noise)
    reason = not_covered(settings, timeline=timeline, scripted=contents is not None, timed=bool(timings))
    if type(costs) not in {TextbookCosts, ProfileCosts}:  # what subclasses change, it does not know
        reason = "its costs are of a kind of their own"
    if reason is not None:
        return None, reason
    if contents is None:
        summary, rows = replay_run(scenario.tokens, settings, requests, batch, world)
        return Simulated(settings, summary, rows, [], _extrapolated(costs), engine="compiled"), ""
    from simulator.compiled.scripts import NotScriptedError, ScriptPrices, replay_script, scripts_of

    about = (
        ("recorded", id(contents.decisions))
        if isinstance(contents, Recorded)
        else ("synthetic", id(scenario.tokens.run))
    )
    prices = ScriptPrices(
        costs,
        scenario.host or Host(),
        timings,
        scenario.noise,
        settings.temperature > 0.0,
        contents.seconds,
    )
    try:
        script = scripts_of(
            scenario.scripts,
            scenario.tokens,
            settings,
            contents,
            about,
            requests=requests,
            batch=batch,
            keep_tokens=keep,
        )
        summary, rows = replay_script(script, requests, batch, prices, scenario.slowdowns)
    except NotScriptedError as error:
        return None, str(error)
    return Simulated(settings, summary, rows, [], _extrapolated(costs), engine="compiled"), ""


def _extrapolated(costs: Costs) -> tuple[Extrapolation, ...]:
    return costs.extrapolated() if isinstance(costs, ProfileCosts) else ()


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
