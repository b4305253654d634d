"""The settings that a wish leaves to choose among, and how fast each of them is."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from policies.registry import Settings, configure
from policies.ssd import FAST
from simulator.budget import Fit, fitting_budget
from simulator.checks import GUESSES
from simulator.law import Assumptions, assume, manner_of
from simulator.probe import RoundStatistics, round_statistics
from simulator.run import Scenario, simulate
from simulator.shapes import ngram_weights, shape_after_backup, shape_after_primary
from simulator.wishes import AUTO, Choice, Wish, depth_of, first_backup


class Candidates:
    """Settings of a wish with everything but the lookahead and the backup decided; keeps what it computes.

    Args:
        scenario: Where they will run.
        wish: What they have in common.

    Attributes:
        steady: The scenario with mean latencies: one luck for all.
    """

    def __init__(self, scenario: Scenario, wish: Wish) -> None:
        self.scenario = scenario
        self.wish = wish
        self.steady = replace(scenario, effects=replace(scenario.effects, jitter=False))
        self._speeds: dict[tuple[Settings, int], float] = {}
        self._statistics: dict[int, RoundStatistics] = {}
        self._fits: dict[int, Fit] = {}

    def _configure(self, lookahead: int | None, **changes: Any) -> Settings:
        knobs = self.wish.knobs | changes
        if self.wish.knobs.get("backup") == AUTO and knobs["backup"] in FAST:
            knobs["stall"] = None  # a choice that only a redraft has
        return configure(self.wish.policy, lookahead=lookahead, **knobs)

    def settings(self, lookahead: int | None, backup: str | None) -> Settings:
        """The wished setting with this lookahead and backup; fan-outs computed where they are to be."""
        plain = self._configure(lookahead, backup=backup)
        if not self.wish.shaped or plain.lookahead is None or plain.backup is None:
            return plain
        after_primary = self._shape(plain)
        after_backup = None
        if plain.backup in FAST:
            weights = ngram_weights(self.scenario, plain) if plain.backup == "ngram" else None
            after_backup = shape_after_backup(
                self.known(plain), self._budget(plain), most=self._most(), weights=weights
            )
        return self._configure(
            plain.lookahead, backup=plain.backup, fanout=after_primary, fanout_backup=after_backup
        )

    def _shape(self, settings: Settings) -> tuple[int, ...]:
        return shape_after_primary(
            self.wish.shape or "exact",
            self.known(settings),
            self._budget(settings),
            told=self.told,
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

    def known(self, settings: Settings) -> RoundStatistics:
        """What is known of rounds of the setting's lookahead."""
        depth = settings.lookahead or 1
        if depth not in self._statistics:
            self._statistics[depth] = round_statistics(self.scenario.tokens, depth, manner_of(settings))
        return self._statistics[depth]

    def _most(self) -> int:
        return self.scenario.tokens.max_fanout

    @cached_property
    def told(self) -> Assumptions:
        """What the law is told of the scenario."""
        depth = depth_of(self.wish)
        return assume(self.scenario, self._configure(depth, backup=first_backup(self.wish)))

    def fanout_choice(self, settings: Settings) -> Choice:
        """How the fan-outs of a setting came about."""
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

    def lawful(self, lookahead: int, backup: str | None) -> Settings:
        """A setting cheap enough to ask the law about at every lookahead: a budget is spread evenly."""
        changes: dict[str, Any] = {}
        if isinstance(self.wish.budget, int):
            changes["fanout"] = (max(1, self.wish.budget // (lookahead + 1)),)
        if backup is not None:
            changes["backup"] = backup
        return self._configure(lookahead, **changes)

    def fast_ones(self, lookahead: int | None) -> list[Settings]:
        """Settings with the backups that cost the draft nothing, as far as they can be replayed here."""
        tokens = self.scenario.tokens
        readable = tokens.vocabulary > 0 and tokens.requests[0].prompt is not None
        known = {"plain", *(GUESSES if tokens.decides_guesses else ())} - (set() if readable else {"ngram"})
        return [self.settings(lookahead, name) for name in FAST if name in known]

    def speed(self, settings: Settings, batch: int | None = None) -> float:
        """Tokens per second of a setting, simulated with mean latencies: one luck for all."""
        at = self.scenario.batch if batch is None else batch
        if (settings, at) not in self._speeds:
            requests = max(self.scenario.requests or 0, at) if batch is not None else self.scenario.requests
            world = replace(self.steady, batch=at, requests=requests)
            self._speeds[settings, at] = simulate(world, settings).summary.tokens_per_second
        return self._speeds[settings, at]
