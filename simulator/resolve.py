"""What a user leaves open, decided: lookahead, fan-out and backup `auto`.

Laws propose, simulations on the profile at hand check.  Every decision is returned with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from policies.laws.double import balanced_lookahead
from policies.laws.fanout import expected_hit
from policies.laws.ssd import switch_batch, switch_batch_printed
from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, configure, find_policy
from simulator.budget import step_times
from simulator.candidates import Candidates
from simulator.law import Assumptions, opinion
from simulator.probe import RoundStatistics
from simulator.run import Scenario
from simulator.shapes import ngram_weights
from simulator.wishes import AUTO, Choice, Resolution, Wish, check_wish, first_backup, refuse_idle

CLEARLY = 1.01
"""A simulation overrules a law only by more than this factor: less is noise."""
LONGEST_LAW = 24
"""Largest lookahead that the law is asked about; the search by simulation may go on from there."""
LARGEST_SWITCH = 128
"""Largest batch at which the switch of backups is looked for by simulation."""


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
    refuse_idle(scenario, wish)
    return _Resolver(scenario, wish, find_switch=find_switch).resolve()


class _Resolver:
    """One resolution: what is decided, among which candidates."""

    def __init__(self, scenario: Scenario, wish: Wish, *, find_switch: bool) -> None:
        self.scenario = scenario
        self.wish = wish
        self.find_switch = find_switch
        self.candidates = Candidates(scenario, wish)

    def resolve(self) -> Resolution:
        """Decide, in the order in which decisions rest on each other."""
        choices: dict[str, Choice] = {}
        lookahead, backup = self.wish.lookahead, self.wish.knobs.get("backup")
        if lookahead == AUTO:
            choices["lookahead"] = self._lookahead(first_backup(self.wish))
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
        settings = self.candidates.settings(lookahead, backup)
        if self.wish.shaped:
            choices["fanout"] = self.candidates.fanout_choice(settings)
        return Resolution(settings, tuple(choices.values()))

    def _lookahead(self, backup: str | None) -> Choice:
        told = self.candidates.told
        if find_policy(self.wish.policy).name == "pearl":
            if told.draft_s <= 0.0:
                raise SettingError("a draft step that takes no time balances no lookahead: give one")
            balanced = min(MAX_LOOKAHEAD, balanced_lookahead(told.target_s / told.draft_s))
            why = "balanced: a block is drafted while the target takes a step, ceil(target_s / draft_s)"
            return Choice("lookahead", balanced, why, {"target_s": told.target_s, "draft_s": told.draft_s})
        if find_policy(self.wish.policy).name == "duo":
            return self._drafting_budget(told)

        def lawful_speedup(k: int) -> float:
            at = self.candidates.lawful(k, backup)
            return opinion(at, told, batch=self.scenario.batch).speedup_vs_ar or 0.0

        law = _best(range(1, LONGEST_LAW + 1), lawful_speedup)
        tried: dict[int, float] = {}

        def speed(k: int) -> float:
            tried[k] = self.candidates.speed(self.candidates.settings(k, backup))
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
            tried[k] = self.candidates.speed(configure("pearl", lookahead=k, **known))
            return tried[k]

        best = _climb(printed, speed, MAX_LOOKAHEAD)
        why = f"the cost ratio is {ratio:.3g}; the fastest of {len(tried)} simulated with one sequence"
        speeds = {str(k): tried[k] for k in sorted(tried)}
        return Choice("lookahead", best, why, {"cost_ratio": ratio, "tokens_per_second": speeds})

    def _backup(self, lookahead: int | None) -> Choice:
        slow = self.candidates.settings(lookahead, "primary")
        fast = max(self.candidates.fast_ones(lookahead), key=self.candidates.speed)
        numbers = self._switch(slow, fast)
        batch = min(self.scenario.batch, len(self.scenario.serving()[1]))
        by_law = slow if batch < numbers["b_corrected"] else fast
        other = fast if by_law is slow else slow
        speeds = {s.backup: self.candidates.speed(s) for s in (slow, fast)}
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

    def _switch(self, slow: Settings, fast: Settings) -> dict[str, Any]:
        """b* as printed and corrected, from measured rates and this profile's own times."""
        assert slow.fanout is not None and fast.fanout is not None
        known = self.candidates.known(slow)
        p_primary = expected_hit(known.weights, known.after_primary, _within(slow.fanout, known))
        first = (fast.fanout_backup or fast.fanout)[:1]
        p_backup = expected_hit([1.0], known.after_nothing[None, :], _within(first, known))
        e_hit, e_miss = known.tokens_per_round, 1.0
        if fast.backup == "ngram":
            weights = ngram_weights(self.scenario, fast)
            e_miss += float(sum(k * w for k, w in enumerate(weights)))
        times = step_times(self.candidates.steady, slow)
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
            return self.candidates.speed(fast, batch) >= self.candidates.speed(slow, batch)

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
