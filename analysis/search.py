"""Finding the fastest setting by simulation: few tokens for many settings, then more for fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from analysis.candidates import decided, grid, neighbours
from analysis.fleet import Deployment, deploy
from analysis.serving import chosen_requests, outside_grid, share_surfaces
from policies.registry import SettingError, Settings
from policies.summary import Summary
from simulator.run import Scenario, simulate

Progress: TypeAlias = Callable[[str, int, int], None]
ROUNDS_OF_REQUESTS = (2, 6)
"""Requests per row in the first and the second stage; the last serves all, and at least three per row."""
LEAST_REQUESTS = (8, 20)
MOST_DRAFTS = 4
"""Draft devices that are tried beside one target: the grid grows with them, and forty devices are groups."""
KEPT = (8, 5)
"""Settings that the first and the second stage leave."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting on all devices, simulated.

    Attributes:
        deployment: The setting and how it is spread over the devices.
        tokens_per_second: Of all groups together.
        summary: Metrics of one group (the widest).
        extrapolated: Where costs lay outside the measured grid, prefills left out.
    """

    deployment: Deployment
    tokens_per_second: float
    summary: Summary
    extrapolated: tuple[str, ...]

    @property
    def settings(self) -> Settings:
        """The setting."""
        return self.deployment.settings

    @property
    def per_device(self) -> float:
        """Tokens per second over devices, idle ones included."""
        return self.tokens_per_second / self.deployment.devices

    @property
    def per_busy_device(self) -> float:
        """Tokens per second over the devices of groups that have a request: what more traffic would get."""
        busy = sum(self.deployment.widths.values()) * self.deployment.group_devices
        return self.tokens_per_second / busy

    @property
    def per_request(self) -> float:
        """Tokens per second that one request sees."""
        return self.tokens_per_second / self.deployment.batch


@dataclass
class Search:
    """Simulations of settings on equal devices, each done once.

    Args:
        scenario: Traffic and hardware; its batch is replaced.
        devices: Devices in all.
        batch: Requests served at any time, in all.
    """

    scenario: Scenario
    devices: int
    batch: int
    refused: dict[Settings, str] = field(default_factory=dict)
    """Why a setting cannot run."""
    _known: dict[tuple[Settings, int], Choice] = field(default_factory=dict)

    @property
    def simulated(self) -> int:
        """Different settings simulated so far."""
        return len({settings for settings, _ in self._known})

    def try_out(self, settings: Settings, requests: int | None = None) -> Choice | None:
        """Simulate a setting on all devices; None where it cannot run there (see `refused`).

        Args:
            settings: The setting.
            requests: How many requests each group serves, taken evenly from the traffic; at least three
                per row, and by default as many as there are.
        """
        assert self.scenario.profile is not None
        deployment = deploy(settings, self.scenario.profile, devices=self.devices, batch=self.batch)
        if deployment is None or settings in self.refused:
            return None
        count = requests or len(self.scenario.tokens.requests)
        if (settings, count) not in self._known:
            try:
                self._known[settings, count] = self._simulate(deployment, count)
            except SettingError as error:
                self.refused[settings] = str(error)
                return None
        return self._known[settings, count]

    def best(
        self, settings: Iterable[Settings], requests: int | None = None, progress: Progress | None = None
    ) -> list[Choice]:
        """Those that can run, fastest first."""
        wanted = list(dict.fromkeys(settings))
        found = []
        for done, one in enumerate(wanted):
            if (choice := self.try_out(one, requests)) is not None:
                found.append(choice)
            if progress is not None:
                progress("trying settings", done + 1, len(wanted))
        return sorted(found, key=lambda choice: -choice.tokens_per_second)

    def _simulate(self, deployment: Deployment, count: int) -> Choice:
        total, summary = 0.0, None
        outside: set[str] = set()
        for width, groups in sorted(deployment.widths.items()):
            tokens = self.scenario.tokens
            wanted = requests_served(count, width)
            if count < len(tokens.requests):
                few = np.linspace(0, len(tokens.requests) - 1, min(wanted, len(tokens.requests)))
                tokens = chosen_requests(tokens, np.unique(few.astype(np.int64)))
            scenario = replace(self.scenario, tokens=tokens, batch=width, requests=wanted)
            share_surfaces(self.scenario, scenario)
            run = simulate(scenario, deployment.settings)
            total += groups * run.summary.tokens_per_second
            summary = run.summary
            outside.update(outside_grid(run))
        assert summary is not None, "a batch has at least one row"
        return Choice(deployment, total, summary, tuple(sorted(outside)))


def requests_served(count: int, width: int) -> int:
    """Requests that a group of so many rows serves of `count`: at least three per row of a batch."""
    return max(count, 3 * width if width > 1 else 1)


def refine(search: Search, temperature: float, progress: Progress) -> list[Choice]:
    """All settings that got to the last stage, fastest first; the best of each policy are among them."""
    tokens, devices = search.scenario.tokens, search.devices
    assert search.scenario.profile is not None
    roles = search.scenario.profile.roles
    drafts = (devices - roles.target.tensor_parallel) // roles.draft.tensor_parallel
    settings = grid(tokens, temperature, draft_devices=min(max(1, drafts), MOST_DRAFTS))
    settings += decided(search.scenario, temperature)
    per_row = max(search.batch // max(1, devices // (2 * roles.target.tensor_parallel)), 1)
    sizes = [max(r * per_row, n) for r, n in zip(ROUNDS_OF_REQUESTS, LEAST_REQUESTS, strict=True)]
    first = search.best(settings, sizes[0], lambda s, d, n: progress("coarse search", d, n))
    kept = leaders(first, KEPT[0])
    near = [n for choice in kept[:2] for n in neighbours(choice.settings, tokens)]
    near += [
        n for c in leaders(first, 0) for n in neighbours(c.settings, tokens) if c.settings.fanout is None
    ]
    again = [choice.settings for choice in kept] + near
    second = search.best(again, sizes[1], lambda s, d, n: progress("refinement", d, n))
    last = [choice.settings for choice in leaders(second, KEPT[1])]
    return search.best(last, None, lambda s, d, n: progress("all tokens", d, n))


def leaders(choices: Sequence[Choice], count: int) -> list[Choice]:
    """The `count` fastest and the fastest of each policy, fastest first."""
    kept = list(choices[:count])
    for policy in dict.fromkeys(c.settings.policy for c in choices):
        best = best_of(choices, policy)
        if best is not None and best not in kept:
            kept.append(best)
    return sorted(kept, key=lambda choice: -choice.tokens_per_second)


def best_of(choices: Sequence[Choice], policy: str) -> Choice | None:
    """The fastest setting of a policy among `choices`, fastest first."""
    return next((c for c in choices if c.settings.policy == policy), None)
