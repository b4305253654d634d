"""What a user leaves open, decided: lookahead, fan-out and backup `auto`.

Laws propose, simulations on the profile at hand check.  Every decision is returned with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

from policies.laws.backup import switch_batch, switch_batch_printed
from policies.laws.double import balanced_lookahead
from policies.laws.fanout import expected_hit
from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, configure, find_policy
from simulator.budget import Fit, fitting_budget, step_times
from simulator.law import Assumptions, assume, manner_of, opinion
from simulator.probe import RoundStatistics, round_statistics
from simulator.run import Scenario, simulate
from simulator.shapes import SHAPES, Shape, ngram_weights, shape_after_backup, shape_after_primary

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = get_args(Auto)[0]
FAST = ("plain", "random", "ngram")
"""Backups that cost the draft nothing."""
CLEARLY = 1.01
"""A simulation overrules a law only by more than this factor: less is noise."""
LONGEST_LAW = 24
"""Largest lookahead that the law is asked about; the search by simulation may go on from there."""
LARGEST_SWITCH = 128
"""Largest batch at which the switch of backups is looked for by simulation."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A setting with open ends: the knobs of `policies.registry.configure`, and what to fill in.

    Attributes:
        policy: Name in the registry.
        lookahead: K; `auto`: PEARL's balanced one, else the fastest.
        shape: How the budget is spread over the outcomes; None with explicit fan-outs, or `exact` where a
            budget is given.
        budget: Outcomes per row; `auto` (the default with a shape): as many as can be prepared for
            while the target verifies.
        knobs: All other knobs, as `configure` takes them; `backup` may be `auto`.
    """

    policy: str = "saguaro"
    lookahead: int | Auto | None = None
    shape: Shape | None = None
    budget: int | Auto | None = None
    knobs: dict[str, Any] = field(default_factory=dict)

    @property
    def shaped(self) -> bool:
        """Whether fan-outs are to be computed."""
        return self.shape is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision.

    Attributes:
        knob: What was decided.
        value: The decision.
        why: For people.
        numbers: What it rests on.
    """

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


def resolve(scenario: Scenario, wish: Wish, *, find_switch: bool = False) -> Resolution:
    """Decide everything that `wish` leaves open.

    Args:
        scenario: Where it will run.
        wish: What is asked for.
        find_switch: Whether to look for the batch at which the backups change places by simulation, too.

    Raises:
        SettingError: A contradiction, a knob that the policy does not have, or a value out of its domain.
    """
    check_wish(wish, find_switch=find_switch)
    _refuse_idle(scenario, wish)
    return _Resolver(scenario, wish, find_switch=find_switch).resolve()


def check_wish(wish: Wish, *, find_switch: bool = False) -> None:
    """Refuse what no scenario could make sense of.

    Raises:
        SettingError: As for `resolve`.
    """
    info = find_policy(wish.policy)
    if wish.shaped and "fanout" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no fan-out (a shape or budget would change nothing)")
    if wish.lookahead == AUTO and "lookahead" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no lookahead (it would change nothing)")
    if wish.shape is not None and wish.shape not in SHAPES:
        raise SettingError(f"unknown shape {wish.shape!r}; choices: {', '.join(SHAPES)}")
    if isinstance(wish.budget, int) and wish.budget < 1:
        raise SettingError(f"budget must be at least 1, got {wish.budget}")
    fanouts = [wish.knobs.get(knob) for knob in ("fanout", "fanout_backup")]
    if wish.shaped and any(f is not None for f in fanouts):
        raise SettingError("give either fan-outs or a shape and budget for them, not both")
    if wish.lookahead == AUTO and any(f is not None and len(f) > 1 for f in fanouts):
        raise SettingError(
            "one fan-out per position needs a lookahead; with lookahead 'auto' give a single one"
        )
    if find_switch and wish.knobs.get("backup") != AUTO:
        raise SettingError("the switch of backups is looked for with backup 'auto' only")
    configure(wish.policy, lookahead=_depth_of(wish), **wish.knobs)


def _depth_of(wish: Wish) -> int | None:
    """A lookahead to configure with while it is open: the default, or one with room for every sequence."""
    if isinstance(wish.lookahead, int):
        return wish.lookahead
    return MAX_LOOKAHEAD if wish.lookahead == AUTO and wish.knobs.get("sequences") else None


def _refuse_idle(scenario: Scenario, wish: Wish) -> None:
    """Refuse options that would change nothing."""
    backup = wish.knobs.get("backup")
    if find_policy(wish.policy).name == "saguaro" and backup in {None, "primary", "primary-all"}:
        name = backup or "primary"
        for knob, idle in (("fanout_backup", None), ("first", "primary")):
            if wish.knobs.get(knob) not in {None, idle}:
                raise SettingError(
                    f"{knob} changes nothing with backup {name!r}, after which the draft's own tokens are "
                    "verified; choose another backup"
                )
    if wish.knobs.get("stall") == "rows" and scenario.batch == 1:
        raise SettingError("stall 'rows' changes nothing at batch 1: there is no other row to go on")
    if scenario.textbook is not None and (wish.knobs.get("draft_devices") or 1) > 1:
        raise SettingError("draft_devices change nothing with constant times: a tree costs what a step costs")


class _Resolver:
    """One resolution: what was computed for it, and what was decided."""

    def __init__(self, scenario: Scenario, wish: Wish, *, find_switch: bool) -> None:
        self.scenario = scenario
        self.wish = wish
        self.find_switch = find_switch
        self.steady = replace(scenario, effects=replace(scenario.effects, jitter=False))
        self._speeds: dict[tuple[Settings, int], float] = {}
        self._statistics: dict[int, RoundStatistics] = {}
        self._fits: dict[int, Fit] = {}

    def resolve(self) -> Resolution:
        """Decide, in the order in which decisions rest on each other."""
        choices: dict[str, Choice] = {}
        lookahead, backup = self.wish.lookahead, self.wish.knobs.get("backup")
        if lookahead == AUTO:
            choices["lookahead"] = self._lookahead(_first_of(self.wish))
            lookahead = choices["lookahead"].value
        if backup == AUTO:
            choices["backup"] = self._backup(lookahead)
            backup = choices["backup"].value
        if {"lookahead", "backup"} <= choices.keys() and backup != "primary":  # searched with the primary
            choices["lookahead"] = self._lookahead(backup)
            if choices["lookahead"].value != lookahead:
                lookahead = choices["lookahead"].value
                choices["backup"] = self._backup(lookahead)
                backup = choices["backup"].value
        settings = self._settings(lookahead, backup)
        if self.wish.shaped:
            choices["fanout"] = self._fanout_choice(settings)
        return Resolution(settings, tuple(choices.values()))

    # ---- settings with everything but the lookahead and the backup decided

    def _configure(self, lookahead: int | None, **changes: Any) -> Settings:
        knobs = self.wish.knobs | changes
        if self.wish.knobs.get("backup") == AUTO and knobs["backup"] in FAST:
            knobs["stall"] = None  # a choice that only a redraft has
        return configure(self.wish.policy, lookahead=lookahead, **knobs)

    def _settings(self, lookahead: int | None, backup: str | None) -> Settings:
        plain = self._configure(lookahead, backup=backup)
        if not self.wish.shaped or plain.lookahead is None or plain.backup is None:
            return plain
        after_primary = self._shape(plain)
        after_backup = None
        if plain.backup in FAST:
            weights = ngram_weights(self.scenario, plain) if plain.backup == "ngram" else None
            after_backup = shape_after_backup(
                self._known(plain), self._budget(plain), most=self._most(), weights=weights
            )
        return self._configure(
            plain.lookahead, backup=plain.backup, fanout=after_primary, fanout_backup=after_backup
        )

    def _shape(self, settings: Settings) -> tuple[int, ...]:
        return shape_after_primary(
            self.wish.shape or "exact",
            self._known(settings),
            self._budget(settings),
            told=self._told,
            most=self._most(),
            coins=self.scenario.tokens.law is not None,
        )

    def _budget(self, settings: Settings) -> int:
        if isinstance(self.wish.budget, int):
            return self.wish.budget
        return self._fit(settings).budget

    def _fit(self, settings: Settings) -> Fit:
        depth = settings.lookahead or 1
        if depth not in self._fits:
            self._fits[depth] = fitting_budget(self.steady, settings, most=self._most())
        return self._fits[depth]

    def _known(self, settings: Settings) -> RoundStatistics:
        depth = settings.lookahead or 1
        if depth not in self._statistics:
            self._statistics[depth] = round_statistics(self.scenario.tokens, depth, manner_of(settings))
        return self._statistics[depth]

    def _most(self) -> int:
        return self.scenario.tokens.max_fanout

    @cached_property
    def _told(self) -> Assumptions:
        depth = _depth_of(self.wish)
        return assume(self.scenario, self._configure(depth, backup=_first_of(self.wish)))

    def _fanout_choice(self, settings: Settings) -> Choice:
        assert settings.fanout is not None
        shape = self.wish.shape or "exact"
        numbers: dict[str, Any] = {"shape": shape, "budget": self._budget(settings)}
        why = f"{shape} shape of a budget of {numbers['budget']} per row"
        if not isinstance(self.wish.budget, int):
            fit = self._fit(settings)
            numbers |= fit.as_dict()
            why += f", {fit.why}"
        if settings.fanout_backup is not None:
            numbers["fanout_backup"] = list(settings.fanout_backup)
        return Choice("fanout", settings.fanout, why, numbers)

    # ---- lookahead

    def _lookahead(self, backup: str | None) -> Choice:
        told = self._told
        if find_policy(self.wish.policy).name == "pearl":
            balanced = min(MAX_LOOKAHEAD, balanced_lookahead(told.target_s, told.draft_s))
            why = "balanced: a block is drafted while the target takes a step, ceil(target_s / draft_s)"
            return Choice("lookahead", balanced, why, {"target_s": told.target_s, "draft_s": told.draft_s})
        if find_policy(self.wish.policy).name == "duo":
            return self._drafting_budget(told)
        law = _best(
            range(1, LONGEST_LAW + 1),
            lambda k: opinion(self._lawful(k, backup), told, batch=self.scenario.batch).speedup_vs_ar or 0.0,
        )
        tried: dict[int, float] = {}

        def speed(k: int) -> float:
            tried[k] = self._speed(self._settings(k, backup))
            return tried[k]

        best = _climb(law, speed, MAX_LOOKAHEAD)
        why = f"the law says {law}; the fastest of {len(tried)} simulated"
        return Choice(
            "lookahead",
            best,
            why,
            {"law": law, "tokens_per_second": {str(k): tried[k] for k in sorted(tried)}},
        )

    def _drafting_budget(self, told: Assumptions) -> Choice:
        """The cost ratio, and what simulation makes of it: verification that grows, jitter, real texts.

        Simulated with one sequence, which is PEARL: any recording replays that at every lookahead.
        """
        ratio = told.target_s / told.draft_s if told.draft_s > 0.0 else float(MAX_LOOKAHEAD)
        printed = min(MAX_LOOKAHEAD, max(1, int(ratio)))
        knobs = {
            name: self.wish.knobs.get(name) for name in ("temperature", "top_p", "seed", "draft_sampling")
        }
        known = {name: value for name, value in knobs.items() if value is not None}
        tried: dict[int, float] = {}

        def speed(k: int) -> float:
            tried[k] = self._speed(configure("pearl", lookahead=k, **known))
            return tried[k]

        best = _climb(printed, speed, MAX_LOOKAHEAD)
        why = f"the cost ratio is {ratio:.3g}; the fastest of {len(tried)} simulated with one sequence"
        speeds = {str(k): tried[k] for k in sorted(tried)}
        return Choice("lookahead", best, why, {"cost_ratio": ratio, "tokens_per_second": speeds})

    def _lawful(self, lookahead: int, backup: str | None) -> Settings:
        """A setting cheap enough to ask the law about at every lookahead: a budget is spread evenly."""
        changes: dict[str, Any] = {}
        if isinstance(self.wish.budget, int):
            changes["fanout"] = (max(1, self.wish.budget // (lookahead + 1)),)
        if backup is not None:
            changes["backup"] = backup
        return self._configure(lookahead, **changes)

    # ---- backup

    def _backup(self, lookahead: int | None) -> Choice:
        slow = self._settings(lookahead, "primary")
        fast = max(self._fast_ones(lookahead), key=self._speed)
        numbers = self._switch(slow, fast)
        batch = min(self.scenario.batch, len(self.scenario.serving()[1]))
        by_law = slow if batch < numbers["b_corrected"] else fast
        other = fast if by_law is slow else slow
        speeds = {s.backup: self._speed(s) for s in (slow, fast)}
        overruled = speeds[other.backup] > CLEARLY * speeds[by_law.backup]
        chosen = other if overruled else by_law
        if self.find_switch:
            numbers["b_simulated"] = self._simulated_switch(slow, fast)
        b_star = "never" if math.isinf(numbers["b_corrected"]) else f"{numbers['b_corrected']:.2f}"
        why = f"primary below b* = {b_star}, {fast.backup} from there on, batch is {batch}; simulation " + (
            "overrules the law" if overruled else "agrees"
        )
        numbers |= {"fast": fast.backup, "by_law": by_law.backup, "batch": batch, "tokens_per_second": speeds}
        return Choice("backup", chosen.backup, why, numbers)

    def _fast_ones(self, lookahead: int | None) -> list[Settings]:
        tokens = self.scenario.tokens
        readable = tokens.vocabulary > 0 and tokens.requests[0].prompt is not None
        return [self._settings(lookahead, name) for name in FAST if name != "ngram" or readable]

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
            return self._speed(fast, batch) >= self._speed(slow, batch)

        low, high = 0, 1
        while not faster(high):
            if high >= LARGEST_SWITCH:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if faster(middle) else (middle, high)
        return high

    # ---- simulations

    def _speed(self, settings: Settings, batch: int | None = None) -> float:
        """Tokens per second of a setting, simulated with mean latencies: one luck for all."""
        at = self.scenario.batch if batch is None else batch
        if (settings, at) not in self._speeds:
            requests = max(self.scenario.requests or 0, at) if batch is not None else self.scenario.requests
            world = replace(self.steady, batch=at, requests=requests)
            self._speeds[settings, at] = simulate(world, settings).summary.tokens_per_second
        return self._speeds[settings, at]


def _first_of(wish: Wish) -> str | None:
    """The backup to search other knobs with: the wished one, or the primary while it is open."""
    backup = wish.knobs.get("backup")
    return "primary" if backup == AUTO else backup


def _within(fanout: Iterable[int], known: RoundStatistics) -> tuple[int, ...]:
    """Fan-outs as far as the curves reach."""
    deepest = known.after_primary.shape[1] - 1
    return tuple(min(f, deepest) for f in fanout)


def _best(candidates: Iterable[int], value: Callable[[int], float]) -> int:
    """The candidate of the highest value, the first of equals."""
    return max(candidates, key=value)


def _climb(start: int, value: Callable[[int], float], most: int) -> int:
    """The top of the hill that `start` lies on, walking in steps of one."""
    best, top = start, value(start)
    for step in (1, -1):
        here = best + step
        while 1 <= here <= most and (found := value(here)) > top:
            best, top = here, found
            here += step
        if best != start:
            break
    return best
