"""Where a prediction's numbers come from: a profile, and a calibration trace per sampling temperature."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.intervals import Bootstrap, known_model_error
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.reply_trace import DecisionTrace, read_decisions
from hardware_profiles.store import (
    decisions_name,
    find_decisions,
    find_profile,
    find_trace,
    name_beside,
    origin,
    other_pair,
    trace_name,
)
from hardware_profiles.trace import Trace, TraceError, read_trace
from policies.registry import POLICIES, SettingError
from simulator.run import Scenario
from simulator.tokens import TokenModel, replay


@dataclass(frozen=True)
class Sources:
    """A profile and its calibration traces.

    Attributes:
        profile: Costs.
        traces: By temperature.
        model_error: Standard deviation of log(simulated / measured speedup).
        category: The only category of prompts that is kept; None for all.
        hw: How the user called the profile.
        files: Trace files by temperature, where `simulate` would not find them by the profile's name.
        decisions: By temperature, of policies that the traces cannot replay, on the same prompts.
        undecided: By temperature, why a policy that the traces cannot replay has no decisions here.
        origins: Which files the profile and the traces by temperature are, for people.
        given: Options of `simulate` that stand for traffic that was not recorded.
        tokens: What is accepted, where a trace cannot tell it (acceptance by position); None: the trace's.
    """

    profile: Profile
    traces: Mapping[float, Trace]
    model_error: float
    category: str | None = None
    hw: str = ""
    files: Mapping[float, str] = field(default_factory=dict)
    decisions: Mapping[float, DecisionTrace] = field(default_factory=dict)
    undecided: Mapping[float, Mapping[str, str]] = field(default_factory=dict)
    origins: Mapping[str | float, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    tokens: TokenModel | None = None

    def trace(self, temperature: float) -> Trace:
        """The trace recorded at a temperature.

        Raises:
            SettingError: There is none: acceptance at one temperature says nothing of another.
        """
        if temperature not in self.traces:
            known = ", ".join(f"{t:g}" for t in sorted(self.traces))
            raise SettingError(
                f"no trace at temperature {temperature:g} beside profile {self.profile.name!r} (there is: "
                f"{known}); record one with `calibrate --temperature {temperature:g}` (and name it: --trace)"
            )
        return self.traces[temperature]

    def scenario(
        self, temperature: float, *, batch: int = 1, limit: int | None = None, seed: int = 0
    ) -> Scenario:
        """The recorded traffic at a temperature on the profile's hardware."""
        return Scenario(
            tokens=self.tokens or replay(self.trace(temperature), limit=limit, seed=seed),
            profile=self.profile,
            batch=batch,
            seed=seed,
            decisions=self.decisions.get(temperature),
        )

    def bootstrap(
        self, temperature: float, *, batch: int = 1, limit: int | None = None, seed: int = 0, **more: Any
    ) -> Bootstrap:
        """Replicates of runs on this traffic; `more` are fields of `analysis.intervals.Bootstrap`."""
        scenario = self.scenario(temperature, batch=batch, limit=limit, seed=seed)
        return Bootstrap(scenario, batch=batch, model_error=self.model_error, seed=seed, **more)


def temperature_of(trace: Trace) -> float:
    """Temperature that a trace was recorded at."""
    return float(str(trace.meta.sampling.get("temperature", 0.0)))


def load_sources(
    hw: str,
    *,
    trace: str | None = None,
    category: str | None = None,
    temperatures: Iterable[float] = (),
    decided: Iterable[float] | None = None,
) -> Sources:
    """Profile and traces by name.

    Args:
        hw: Name or file of the profile.
        trace: Name or file of its greedy trace, or of one recorded at any temperature; by default the
            profile's name.
        category: Keep the prompts of this category only.
        temperatures: Look for traces at these too, e.g. `<trace>-t0.7`; temperature 1 is always looked for.
        decided: Temperatures at which decisions are read, which takes a second each; None: all there are.

    Raises:
        ProfileError: No such profile, or a bad one.
        TraceError: No such trace, a bad one, or one without prompts of that category.
    """
    profile = load_profile(find_profile(hw))
    named = name_beside(hw, profile.name)
    beside = Path(hw).with_suffix(".parquet")  # of a profile that is a file
    own_file = Path(hw).name != hw and beside.is_file()
    first = trace or (str(beside) if own_file else named)
    by_name = {first: read_trace(find_trace(first))}
    for temperature in dict.fromkeys([1.0, *temperatures]):
        name = trace_name(first.removesuffix(".parquet"), temperature)
        name = f"{name}.parquet" if Path(name).name != name else name
        with contextlib.suppress(TraceError):  # whoever asks for that temperature is told what to do
            by_name.setdefault(name, read_trace(find_trace(name)))
    # The trace that was named wins over another one at its temperature.
    names = {temperature_of(each): name for name, each in reversed(by_name.items())}
    traces = {temperature: by_name[name] for temperature, name in names.items()}
    decisions, undecided = {}, {}
    for temperature in traces if decided is None else [t for t in decided if t in traces]:
        known, undecided[temperature] = _decisions(named, hw, temperature, traces[temperature])
        if known is not None:
            decisions[temperature] = known
    # Another pair's recording says nothing of how wrong this profile's predictions of its own runs are.
    own = {t: recorded for t, recorded in traces.items() if other_pair(profile, recorded.meta) is None}
    sources = Sources(
        profile,
        traces,
        known_model_error(profile, own),
        hw=hw,
        files={} if first == named else names,  # `simulate` finds them alone
        decisions=decisions,
        undecided=undecided,
        origins={
            "profile": origin(find_profile(hw)),
            **{temperature: origin(find_trace(name)) for temperature, name in names.items()},
        },
    )
    return sources if category is None else only(sources, category)


def _decisions(
    profile: str, hw: str, temperature: float, trace: Trace
) -> tuple[DecisionTrace | None, dict[str, str]]:
    """What policies decided on the prompts of a trace, and of whom that is not known, and why."""
    merged: DecisionTrace | None = None
    missing: dict[str, str] = {}
    sampled = f" --temperature {temperature:g}" if temperature else ""
    prompts = [request.prompt for request in trace.requests]
    for info in POLICIES.values():
        if not info.needs_decisions or "live" not in info.worlds:
            continue
        name = decisions_name(profile, info.name, temperature)
        way_out = f"`calibrate decide --hw {hw} --policy {info.name}{sampled}` records them"
        try:
            path = find_decisions(name)
        except TraceError:
            missing[info.name] = f"no decisions are recorded; {way_out}"
            continue
        try:
            one = read_decisions(path)
            if [request.prompt for request in one.requests] == prompts:
                merged = one if merged is None else merged.merged(one)
            else:
                missing[info.name] = (
                    f"its decisions ({name}) are of {len(one.requests)} prompts that are not the trace's "
                    f"{len(prompts)}; {way_out} on these"
                )
        except TraceError as error:
            missing[info.name] = f"its decisions ({name}) are of no use: {error}"
    return merged, missing


def only(sources: Sources, category: str) -> Sources:
    """The sources with the prompts of one category.

    Raises:
        TraceError: There is none; the message lists the categories.
    """
    kept = {temperature: trace.of_category(category) for temperature, trace in sources.traces.items()}
    decisions = {
        temperature: recorded.slice([request.id for request in kept[temperature].requests])
        for temperature, recorded in sources.decisions.items()
    }
    return replace(sources, traces=kept, category=category, decisions=decisions)
