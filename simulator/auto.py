"""Settings with open ends: what a user leaves to `auto`, and how it is decided.

Laws propose, simulations on the profile at hand check.  Every decision is returned with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from policies.config import LawInputs, LookaheadConfig
from policies.laws.double import balanced_lookahead
from policies.laws.fanout import expected_hit
from policies.laws.ssd import switch_batch, switch_batch_printed
from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, configure, find_policy
from policies.ssd import FAST, AnyBackup, SaguaroConfig
from simulator.fanout import (
    REASONS,
    SHAPES,
    Fit,
    Shape,
    fitting_budget,
    ngram_weights,
    shape_after_backup,
    shape_after_primary,
    step_times,
)
from simulator.law import draft_rule, law_inputs, law_prediction
from simulator.needs import GUESSES
from simulator.probe import RoundStatistics, round_statistics
from simulator.run import Scenario, simulate

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = get_args(Auto)[0]
CLEARLY = 1.01
"""A simulation overrules a law only by more than this factor: less is noise."""
LONGEST_LAW = 24
"""Largest lookahead that the law is asked about; the search by simulation may go on from there."""
LARGEST_SWITCH = 128
"""Largest batch at which the switch of backups is looked for by simulation."""


@dataclass(frozen=True, slots=True)
class SettingsQuery:
    """Settings with open ends, made by `settings_query`.

    Attributes:
        settings: What is given; the backup may be `auto`.
        open_lookahead: Whether K is to be chosen: see `LookaheadRule`.  That of `settings` is then a
            placeholder.
        shape: How the budget is spread over the outcomes; None with explicit fan-outs, or `exact` where a
            budget is given.
        budget: Outcomes per row; `auto` (the default with a shape): as many as can be prepared for
            while the target verifies.
        find_switch: Whether to look for the batch at which the backups change places by simulation, too.
    """

    settings: Settings
    open_lookahead: bool = False
    shape: Shape | None = None
    budget: int | Auto | None = None
    find_switch: bool = False

    @property
    def shaped(self) -> bool:
        """Whether fan-outs are to be computed."""
        return self.shape is not None or self.budget is not None

    @property
    def open_backup(self) -> bool:
        """Whether the backup is to be chosen."""
        return self.settings.backup == AUTO

    def at(self, lookahead: int | None = None, backup: AnyBackup | None = None) -> Settings:
        """The settings with this lookahead and backup; what only a redraft has is left out of a fast one.

        Raises:
            SettingError: They contradict each other.
        """
        config = self.settings.config
        if isinstance(config, LookaheadConfig) and lookahead is not None:
            config = config.deeper(lookahead)
        if isinstance(config, SaguaroConfig) and backup is not None:
            stall = "batch" if self.open_backup and backup in FAST else config.stall
            config = replace(config, backup=backup, stall=stall)
        config.check(self.settings.sampling)
        return replace(self.settings, config=config)


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision."""

    knob: str
    value: Any
    why: str
    numbers: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; infinities as None."""
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in self.numbers.items()
        }
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"knob": self.knob, "value": value, "why": self.why, "numbers": finite}


@dataclass(frozen=True, slots=True)
class Resolution:
    """A setting that can run, and what was decided on the way to it."""

    settings: Settings
    choices: tuple[Choice, ...]


def settings_query(
    policy: str = "saguaro",
    lookahead: int | Auto | None = None,
    shape: Shape | None = None,
    budget: int | Auto | None = None,
    *,
    find_switch: bool = False,
    **knobs: Any,
) -> SettingsQuery:
    """What a user asks for (see `SettingsQuery`), checked as far as no scenario is needed.

    `knobs` are all others and the sampling, as `configure` takes them; `backup` may be `auto`.

    Raises:
        SettingError: A contradiction, a knob that the policy does not have, or a value out of its domain.
    """
    info, shaped = find_policy(policy), shape is not None or budget is not None
    if shaped and "fanout" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no fan-out (a shape or budget would change nothing)")
    if lookahead == AUTO and "lookahead" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no lookahead (it would change nothing)")
    if shape is not None and shape not in SHAPES:
        raise SettingError(f"unknown shape {shape!r}; choices: {', '.join(SHAPES)}")
    if isinstance(budget, int) and budget < 1:
        raise SettingError(f"budget must be at least 1, got {budget}")
    fanouts = [given for name in ("fanout", "fanout_backup") if (given := knobs.get(name)) is not None]
    if shaped and fanouts:
        raise SettingError("give either fan-outs or a shape and budget for them, not both")
    if lookahead == AUTO and any(len(fanout) > 1 for fanout in fanouts):
        raise SettingError(
            "one fan-out per position needs a lookahead; with lookahead 'auto' give a single one"
        )
    if find_switch and knobs.get("backup") != AUTO:
        raise SettingError("the switch of backups is looked for with backup 'auto' only")
    # While K is open, one that has room for everything else stands for it.
    roomy = MAX_LOOKAHEAD if knobs.get("sequences") else None
    depth = roomy if lookahead == AUTO else lookahead
    settings = configure(policy, lookahead=depth, **knobs)
    return SettingsQuery(settings, lookahead == AUTO, shape, budget, find_switch)


def resolve(scenario: Scenario, query: SettingsQuery) -> Resolution:
    """Decide everything that a query leaves open, for the scenario in which it will run.

    Raises:
        SettingError: An option that would change nothing in this scenario.
    """
    _refuse_idle(scenario, query.settings)
    return _Resolver(scenario, query).resolve()


def _refuse_idle(scenario: Scenario, settings: Settings) -> None:
    """Refuse options that would change nothing."""
    config = settings.config
    if not isinstance(config, SaguaroConfig):
        return
    if config.backup in {"primary", "primary-all"}:
        usual = {"fanout_backup": None, "first": "primary"}
        for knob in (name for name, value in usual.items() if getattr(config, name) != value):
            raise SettingError(
                f"{knob} changes nothing with backup {config.backup!r}, after which the draft's own tokens "
                "are verified; choose another backup"
            )
    if config.stall == "rows" and scenario.batch == 1:
        raise SettingError("stall 'rows' changes nothing at batch 1: there is no other row to go on")
    if scenario.textbook is not None and config.draft_devices > 1:
        raise SettingError("draft_devices change nothing with constant times: a tree costs what a step costs")


class _Resolver:
    """One resolution: what is decided, among which settings; keeps what it computes.

    Attributes:
        steady: The scenario with mean latencies: one luck for all.
    """

    def __init__(self, scenario: Scenario, query: SettingsQuery) -> None:
        self.scenario = scenario
        self.query = query
        self.steady = replace(scenario, effects=replace(scenario.effects, jitter=False))
        self.most = scenario.tokens.max_fanout
        # With which other knobs are searched while the backup is open; None: the one that is asked for.
        self.first_backup: AnyBackup | None = "primary" if query.open_backup else None
        self._speeds: dict[tuple[Settings, int], float] = {}
        self._statistics: dict[int, RoundStatistics] = {}
        self._fits: dict[int, Fit] = {}

    def resolve(self) -> Resolution:
        """Decide, in the order in which decisions rest on each other."""
        choices: dict[str, Choice] = {}
        lookahead: int | None = None
        backup: AnyBackup | None = None
        if self.query.open_lookahead:
            choices["lookahead"] = self._lookahead(self.first_backup)
            lookahead = choices["lookahead"].value
        if self.query.open_backup:
            choices["backup"] = self._backup(lookahead)
            backup = choices["backup"].value
        if {"lookahead", "backup"} <= choices.keys() and backup != "primary":  # searched with the primary
            choices["lookahead"] = self._lookahead(backup)
            if choices["lookahead"].value != lookahead:
                lookahead = choices["lookahead"].value
                choices["backup"] = self._backup(lookahead)
                backup = choices["backup"].value
        settings = self.settings(lookahead, backup)
        if self.query.shaped:
            choices["fanout"] = self._fanout_choice(settings)
        return Resolution(settings, tuple(choices.values()))

    def settings(self, lookahead: int | None, backup: AnyBackup | None) -> Settings:
        """The settings with this lookahead and backup; fan-outs computed where they are to be."""
        plain = self.query.at(lookahead, backup)
        if not self.query.shaped or not isinstance(plain.config, SaguaroConfig):
            return plain
        known, budget = self._known(plain), self._budget(plain)
        after_backup = None
        if plain.config.backup in FAST:
            weights = ngram_weights(self.scenario, plain) if plain.config.reads_text else None
            after_backup = shape_after_backup(known, budget, most=self.most, weights=weights)
        fanout = shape_after_primary(
            self.query.shape or "exact",
            known,
            budget,
            inputs=self.inputs,
            most=self.most,
            coins=self.scenario.tokens.power_law is not None,
        )
        return plain.but(fanout=fanout, fanout_backup=after_backup)

    def speed(self, settings: Settings, batch: int | None = None) -> float:
        """Tokens per second of a setting, simulated with mean latencies: one luck for all."""
        at = self.scenario.batch if batch is None else batch
        if (settings, at) not in self._speeds:
            requests = max(self.scenario.requests or 0, at) if batch is not None else self.scenario.requests
            world = replace(self.steady, batch=at, requests=requests)
            self._speeds[settings, at] = simulate(world, settings).summary.tokens_per_second
        return self._speeds[settings, at]

    def _budget(self, settings: Settings) -> int:
        return self.query.budget if isinstance(self.query.budget, int) else self._fit(settings).budget

    def _fit(self, settings: Settings) -> Fit:
        depth = settings.lookahead or 1
        if depth not in self._fits:
            self._fits[depth] = fitting_budget(self.steady, settings, most=self.most)
        return self._fits[depth]

    def _known(self, settings: Settings) -> RoundStatistics:
        """What is known of rounds of the setting's lookahead."""
        depth = settings.lookahead or 1
        if depth not in self._statistics:
            self._statistics[depth] = round_statistics(self.scenario.tokens, depth, draft_rule(settings))
        return self._statistics[depth]

    @cached_property
    def inputs(self) -> LawInputs:
        """What the law is told of the scenario."""
        return law_inputs(self.scenario, self.query.at(backup=self.first_backup))

    def _fanout_choice(self, settings: Settings) -> Choice:
        """How the fan-outs of a setting came about."""
        assert settings.fanout is not None
        shape, budget = self.query.shape or "exact", self._budget(settings)
        numbers: dict[str, Any] = {"shape": shape, "budget": budget}
        why = f"{shape} shape of a budget of {budget} per row"
        if not isinstance(self.query.budget, int):
            fit = self._fit(settings)
            numbers |= {"verify_s": fit.verify_s, "prepare_s": fit.prepare_s, "bound": fit.bound}
            why += f", {REASONS[fit.bound]}"
        if settings.fanout_backup is not None:
            numbers["fanout_backup"] = list(settings.fanout_backup)
        return Choice("fanout", settings.fanout, why, numbers)

    def _fast_ones(self, lookahead: int | None) -> list[Settings]:
        """Settings with the backups that cost the draft nothing, as far as they can be replayed here."""
        tokens = self.scenario.tokens
        readable = tokens.vocabulary > 0 and tokens.requests[0].prompt is not None
        known = {"plain", *(GUESSES if tokens.decides_guesses else ())} - (set() if readable else {"ngram"})
        return [self.settings(lookahead, name) for name in FAST if name in known]

    def _lookahead(self, backup: AnyBackup | None) -> Choice:
        inputs, given = self.inputs, self.query.settings
        target_s, draft_s = inputs.target_s, inputs.draft_s
        if given.config.lookahead_rule == "balanced":
            if draft_s <= 0.0:
                raise SettingError("a draft step that takes no time balances no lookahead: give one")
            balanced = min(MAX_LOOKAHEAD, balanced_lookahead(target_s / draft_s))
            why = "balanced: a block is drafted while the target takes a step, ceil(target_s / draft_s)"
            return Choice("lookahead", balanced, why, {"target_s": target_s, "draft_s": draft_s})
        if given.config.lookahead_rule == "cost ratio":
            # What simulation makes of it: verification that grows, jitter, real texts.  Simulated with one
            # sequence, which is PEARL: any recording replays that at every lookahead.
            alike = given.config.single_sequence
            assert isinstance(alike, LookaheadConfig)
            ratio = target_s / draft_s if draft_s > 0.0 else float(MAX_LOOKAHEAD)
            printed = min(MAX_LOOKAHEAD, max(1, int(ratio)))
            best, speeds = self._fastest(printed, lambda k: replace(given, config=alike.deeper(k)))
            why = f"the cost ratio is {ratio:.3g}; the fastest of {len(speeds)} simulated with one sequence"
            return Choice("lookahead", best, why, {"cost_ratio": ratio, "tokens_per_second": speeds})

        def lawful_speedup(lookahead: int) -> float:
            # Cheap enough to ask at every lookahead: a budget is spread evenly.
            settings = self.query.at(lookahead, backup)
            if isinstance(self.query.budget, int):
                share = max(1, self.query.budget // (lookahead + 1))
                settings = settings.but(fanout=(share,) * (lookahead + 1))
            return law_prediction(settings, inputs, batch=self.scenario.batch).speedup_vs_ar or 0.0

        law = max(range(1, LONGEST_LAW + 1), key=lawful_speedup)
        best, speeds = self._fastest(law, lambda k: self.settings(k, backup))
        why = f"the law says {law}; the fastest of {len(speeds)} simulated"
        return Choice("lookahead", best, why, {"law": law, "tokens_per_second": speeds})

    def _fastest(self, start: int, settings: Callable[[int], Settings]) -> tuple[int, dict[str, float]]:
        """The lookahead at the top of the hill of speeds that `start` lies on, and the speeds looked at."""
        tried: dict[int, float] = {}

        def speed(lookahead: int) -> float:
            tried[lookahead] = self.speed(settings(lookahead))
            return tried[lookahead]

        best, top = start, speed(start)
        for step in (1, -1):
            here = best + step
            while 1 <= here <= MAX_LOOKAHEAD and (found := speed(here)) > top:
                best, top = here, found
                here += step
            if best != start:
                break
        return best, {str(k): tried[k] for k in sorted(tried)}

    def _backup(self, lookahead: int | None) -> Choice:
        slow = self.settings(lookahead, "primary")
        fast = max(self._fast_ones(lookahead), key=self.speed)
        numbers = self._switch(slow, fast)
        batch = min(self.scenario.batch, len(self.scenario.serving()[1]))
        by_law = slow if batch < numbers["b_corrected"] else fast
        other = fast if by_law is slow else slow
        speeds = {s.backup: self.speed(s) for s in (slow, fast)}
        overruled = speeds[other.backup] > CLEARLY * speeds[by_law.backup]
        chosen = other if overruled else by_law
        if self.query.find_switch:
            numbers["b_simulated"] = self._simulated_switch(slow, fast)
        b_star = "never" if math.isinf(numbers["b_corrected"]) else f"{numbers['b_corrected']:.2f}"
        why = f"primary below b* = {b_star}, {fast.backup} from there on, batch is {batch}; simulation " + (
            "overrules the law" if overruled else "agrees"
        )
        numbers |= {"fast": fast.backup, "by_law": by_law.backup, "batch": batch, "tokens_per_second": speeds}
        return Choice("backup", chosen.backup, why, numbers)

    def _switch(self, slow: Settings, fast: Settings) -> dict[str, Any]:
        """b* as printed and corrected, from measured rates and this profile's own times."""
        assert slow.fanout is not None and fast.fanout is not None
        known = self._known(slow)
        p_primary = expected_hit(known.weights, known.after_primary, _within(slow.fanout, known))
        first = (fast.fanout_backup or fast.fanout)[:1]
        p_backup = expected_hit([1.0], known.after_nothing[None, :], _within(first, known))
        e_hit, e_miss = known.tokens_per_round, 1.0
        if fast.backup == "ngram":
            weights = ngram_weights(self.scenario, fast)
            e_miss += float(sum(k * w for k, w in enumerate(weights)))
        times = step_times(self.steady, slow)
        t_primary = times.draft_s / times.verify_s
        return {
            "b_printed": switch_batch_printed(min(p_primary, 1.0), e_hit, e_miss, t_primary),
            "b_corrected": switch_batch(p_primary, p_backup, e_hit, e_miss, t_primary),
            "p_hit_primary": p_primary,
            "p_hit_backup": p_backup,
            "e_hit": e_hit,
            "e_miss": e_miss,
            "t_primary": t_primary,
        }

    def _simulated_switch(self, slow: Settings, fast: Settings) -> int | None:
        """Smallest batch whose fast backup is at least as fast, by bisection; None beyond the largest."""

        def faster(batch: int) -> bool:
            return self.speed(fast, batch) >= self.speed(slow, batch)

        low, high = 0, 1
        while not faster(high):
            if high >= LARGEST_SWITCH:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if faster(middle) else (middle, high)
        return high


def _within(fanout: Iterable[int], known: RoundStatistics) -> tuple[int, ...]:
    """Fan-outs as far as the curves reach."""
    deepest = known.after_primary.shape[1] - 1
    return tuple(min(f, deepest) for f in fanout)
