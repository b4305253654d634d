"""Search for the fastest setting on equal devices: few tokens for many settings, then more for fewer.

**Replication.**  A parallel policy takes a group of devices, the target's and those of one or more drafts;
plain decoding and SD (collocated: both models on the target's devices, used in turn) take the target's
alone.  A model spread over several devices takes all of them (`simulator.needs`).  What is compared is
the same hardware under the same load: `devices` devices that serve `batch` requests at any time, in as many
independent groups as fit, the requests spread evenly over them.  Devices that no group fills, and groups for
which there is no request, idle.  Models on the same devices are taken to cost what each costs on a device of
its own while the other waits, which is what SD does in the profile's placement; that they fit in its memory
is not checked.

**Candidates.**  A coarse grid, the settings whose decisions are recorded, and the neighbours of good ones.

**Rejection.**  All candidates meet the same few requests, and fewer of them more requests.  What each request
takes is kept, so that resamples of requests, the same for all, give every setting an interval, whichever
stage it was rejected at.  A policy that no request more could bring near the fastest is not run on all: it is
known by its ratio to plain decoding on those that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np

from analysis.intervals import Bootstrap, evenly_chosen, outside_grid, sums_by_request, varied
from analysis.stats import grouped
from calibrate.options import Progress, quiet
from hardware_profiles.profile import Profile
from policies.laws.fanout import exact_fanout
from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, configure
from policies.sampling import FloatArray, Sampling
from policies.summary import Summary
from simulator.compiled.replay import COVERED
from simulator.needs import count_devices
from simulator.probe import DraftRule, RoundStatistics, round_statistics
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel


@dataclass(frozen=True, slots=True)
class Deployment:
    """A setting on all devices.

    Attributes:
        settings: The setting.
        group_devices: Devices of a group.
        groups: Groups that fit on the devices.
        devices: Devices in all.
        batch: Requests served at any time, in all.
    """

    settings: Settings
    group_devices: int
    groups: int
    devices: int
    batch: int

    @property
    def widths(self) -> Counter[int]:
        """Number of busy groups by the rows that each serves."""
        busy = min(self.groups, self.batch)
        rows, rest = divmod(self.batch, busy)
        return Counter([rows + 1] * rest + [rows] * (busy - rest))

    @property
    def words(self) -> str:
        """`2 replicas of 1 device`, `1 group of 2 devices`."""
        several = "s" * (self.groups > 1)
        if self.group_devices == 1:
            return f"{self.groups} replica{several} of 1 device"
        return f"{self.groups} group{several} of {self.group_devices} devices"


def deploy(settings: Settings, profile: Profile, *, devices: int, batch: int) -> Deployment | None:
    """The setting on all devices; None where one group takes more than there are."""
    each = count_devices(settings, profile).total
    return None if each > devices else Deployment(settings, each, devices // each, devices, batch)


@dataclass(frozen=True, slots=True)
class GridSpan:
    """What a grid varies.

    Attributes:
        lookaheads: K.
        fanouts: Uniform fan-outs.
        guesses: Budgets of exact shapes, in guesses per position.
        everything: Every backup, and every other knob that changes anything beside it.
    """

    lookaheads: tuple[int, ...]
    fanouts: tuple[int, ...]
    guesses: tuple[int, ...] = ()
    everything: bool = False


COARSE = GridSpan(lookaheads=(1, 2, 3, 4, 6, 8), fanouts=(1, 3), guesses=(1, 2))
FEW = GridSpan(lookaheads=(1, 3, 6), fanouts=(1, 3))
"""For sweeps over traffic."""
BACKUPS = ("primary", "plain")
OTHER_BACKUPS = ("random", "ngram")
"""Tried beside a good setting only, but in a full grid."""
FULL = GridSpan(
    lookaheads=tuple(range(1, 17)), fanouts=tuple(range(1, 17)), guesses=tuple(range(1, 9)), everything=True
)
"""Ten thousand settings with one draft device."""


def grid(
    tokens: TokenModel, temperature: float, span: GridSpan = COARSE, *, draft_devices: int = 1
) -> list[Settings]:
    """Every policy over the lookahead, Saguaro over shape, budget, backup and number of draft devices too.

    Exact shapes fit the hit curves of the tokens; `draft_devices` is the most there are.
    """
    found = [configure("ar", temperature=temperature)]
    for name in ("sd", "pld", "pearl"):
        if name != "pld" or tokens.vocabulary > 0:
            found += [configure(name, lookahead=k, temperature=temperature) for k in span.lookaheads]
    found += [configure("suffix", temperature=temperature)] if tokens.vocabulary > 0 else []
    for k in span.lookaheads:
        shapes = [(f,) * (k + 1) for f in span.fanouts if f <= tokens.max_fanout]
        known = round_statistics(tokens, k, DraftRule(Sampling(temperature))) if span.guesses else None
        shapes += [best_shape(known, g * (k + 1)) for g in span.guesses if known is not None]
        for shape, count in product(dict.fromkeys(shapes), range(1, draft_devices + 1)):
            alike = {"lookahead": k, "fanout": shape, "draft_devices": count, "temperature": temperature}
            choices = every_backup(tokens, shape) if span.everything else [{"backup": b} for b in BACKUPS]
            found += [configure("saguaro", **alike, **knobs) for knobs in choices]
    return list(dict.fromkeys(found))


def every_backup(tokens: TokenModel, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """Knobs of Saguaro that change something beside a fan-out, with every backup that the tokens decide."""
    recorded = tokens.vocabulary > 0
    sets = ("others", "top") if recorded else ("others",)
    found: list[dict[str, Any]] = [{"backup": "primary", "cache_set": each} for each in sets]
    first = min(sum(shape), tokens.max_fanout)  # nothing is drafted, or accepted: all guesses on position 0
    after_backup = (None, (first, *(0,) * (len(shape) - 1)))
    guesses = OTHER_BACKUPS if recorded and tokens.decides_guesses else ()
    for backup, begin, fanout, each in product(
        ("plain", *guesses), ("primary", "backup"), after_backup, sets
    ):
        found.append({"backup": backup, "first": begin, "fanout_backup": fanout, "cache_set": each})
    return found


def recorded_settings(scenario: Scenario, temperature: float) -> list[Settings]:
    """Settings whose decisions are recorded: those of policies that a recorded path cannot replay."""
    known = scenario.decisions.settings.values() if scenario.decisions is not None else ()
    return [configure(own.policy, temperature=temperature, **own.knobs) for own in known]


def neighbours(settings: Settings, tokens: TokenModel) -> list[Settings]:
    """Settings a step away: the next lookaheads, other budgets and shapes, other backups."""
    k, fanout = settings.lookahead, settings.fanout
    if k is None:
        return []
    depths = [d for d in (k - 1, k + 1) if 1 <= d <= MAX_LOOKAHEAD]
    if fanout is None:
        return [settings.but(lookahead=d) for d in depths]
    budget = sum(fanout)
    near = [(d, max(1, round(budget * (d + 1) / (k + 1)))) for d in depths]
    near += [(k, max(1, round(budget * 0.7))), (k, budget), (k, round(budget * 1.4) + 1)]
    found = [
        settings.but(lookahead=d, fanout=exact_shape(tokens, d, b, settings.temperature), fanout_backup=None)
        for d, b in near
    ]
    if len(set(fanout)) == 1:
        uniform = (f for f in (fanout[0] - 1, fanout[0] + 1) if 1 <= f <= tokens.max_fanout)
        found += [settings.but(fanout=(f,) * (k + 1)) for f in uniform]
    found += [settings.but(backup=name, fanout_backup=None) for name in (*BACKUPS, *OTHER_BACKUPS)]
    if settings.backup != "primary":
        first = min(budget, tokens.max_fanout)  # nothing is drafted, or accepted: all guesses on position 0
        found.append(settings.but(fanout_backup=(first, *(0,) * k)))
    if settings.temperature > 0.0 and settings.draft_sampling != "greedy":
        found += [settings.but(scale=c) for c in (0.5, 0.8)]
    return [s for s in dict.fromkeys(found) if s != settings]


def exact_shape(tokens: TokenModel, lookahead: int, budget: int, temperature: float = 0.0) -> tuple[int, ...]:
    """Fan-outs of the highest hit rate within a budget, over the rounds of the recorded text.

    One guess on the likeliest outcome at least: a cache without any is no Saguaro.
    """
    return best_shape(round_statistics(tokens, lookahead, DraftRule(Sampling(temperature))), budget)


def best_shape(known: RoundStatistics, budget: int) -> tuple[int, ...]:
    """As `exact_shape`, of rounds that are known."""
    fanout = exact_fanout(known.weights, known.after_primary, budget)
    if sum(fanout) == 0:
        best = int(np.argmax(known.weights))
        return tuple(int(k == best) for k in range(known.lookahead + 1))
    return fanout


@dataclass(frozen=True, slots=True)
class Tried(Deployment):
    """A deployment, simulated.

    Attributes:
        tokens_per_second: Of all groups together.
        summary: Metrics of one group (the widest).
        extrapolated: Where costs lay outside the measured grid, prefills left out.
        sums: Groups of each width, [n] tokens and [n] seconds of each request that one of them served.
    """

    tokens_per_second: float
    summary: Summary
    extrapolated: tuple[str, ...]
    sums: tuple[tuple[int, FloatArray, FloatArray], ...]

    @property
    def requests(self) -> int:
        """Requests of the traffic that it was tried on."""
        return max((len(tokens) for _, tokens, _ in self.sums), default=0)

    @property
    def per_device(self) -> float:
        """Tokens per second over devices, idle ones included."""
        return self.tokens_per_second / self.devices

    @property
    def per_busy_device(self) -> float:
        """Tokens per second over the devices of groups that have a request: what more traffic would get."""
        return self.tokens_per_second / (sum(self.widths.values()) * self.group_devices)

    @property
    def per_request(self) -> float:
        """Tokens per second that one request sees."""
        return self.tokens_per_second / self.batch


def values_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, to make one that has more."""
    return {each.name: getattr(record, each.name) for each in fields(record)}


@dataclass
class SettingSearch:
    """Simulations of settings on equal devices, each done once.

    Args:
        scenario: Traffic and hardware; its batch is replaced.
        devices: In all.
        batch: Requests served at any time, in all.
        temperature: Of the target.
        progress: (stage, done, total).
    """

    scenario: Scenario
    devices: int
    batch: int
    temperature: float = 0.0
    progress: Progress = quiet
    refused: dict[Settings, str] = field(default_factory=dict)
    """Why a setting cannot run."""
    _known: dict[tuple[Settings, int], Tried] = field(default_factory=dict)
    plain: list[Tried] = field(default_factory=list)
    """Plain decoding, on each number of requests that it was tried on."""
    _scenarios: dict[tuple[int, int], Scenario] = field(default_factory=dict)

    @property
    def simulated(self) -> int:
        """Different settings simulated so far."""
        return len({settings for settings, _ in self._known})

    @property
    def widest(self) -> int:
        """Rows of the widest group of any setting tried."""
        return max(width for each in self._known.values() for width in each.widths)

    def plainly(self, choice: Tried) -> Tried:
        """Plain decoding on the requests that a setting was tried on, or on about as many."""
        return min(self.plain, key=lambda each: abs(each.requests - choice.requests))

    @property
    def tried(self) -> list[Tried]:
        """Every setting simulated so far, on as many requests as it ever was."""
        most: dict[Settings, Tried] = {}
        for each in sorted(self._known.values(), key=lambda tried: tried.requests):
            most[each.settings] = each
        return list(most.values())

    @property
    def profile(self) -> Profile:
        """Of the hardware."""
        assert self.scenario.profile is not None
        return self.scenario.profile

    def elsewhere(self, scenario: Scenario | None = None, batch: int | None = None) -> SettingSearch:
        """A search with other traffic."""
        return SettingSearch(scenario or self.scenario, self.devices, batch or self.batch, self.temperature)

    def try_out(self, settings: Settings, requests: int | None = None) -> Tried | None:
        """Simulate a setting on all devices; None where it cannot run there (see `refused`).

        Each group serves so many requests, taken evenly from the traffic; at least three per row, and by
        default as many as there are.
        """
        deployment = deploy(settings, self.profile, devices=self.devices, batch=self.batch)
        if deployment is None or settings in self.refused:
            return None
        count = requests or len(self.scenario.tokens.requests)
        if (settings, count) not in self._known:
            try:
                self._known[settings, count] = found = self._simulate(deployment, count)
                self.plain += [found] if settings.plain else []
            except SettingError as error:
                self.refused[settings] = str(error)
                return None
        return self._known[settings, count]

    def best(self, settings: Iterable[Settings], requests: int | None = None, stage: str = "") -> list[Tried]:
        """Those that can run, fastest first."""
        different = list(dict.fromkeys(settings))
        choices = []
        for done, one in enumerate(different):
            choices.append(self.try_out(one, requests))
            self.progress(stage, done + 1, len(different))
        return sorted(filter(None, choices), key=lambda choice: -choice.tokens_per_second)

    def _simulate(self, deployment: Deployment, count: int) -> Tried:
        total, summaries, sums = 0.0, [], []
        outside: set[str] = set()
        for width, groups in sorted(deployment.widths.items()):
            run = simulate(self._serving(count, width), deployment.settings)
            total += groups * run.summary.tokens_per_second
            summaries.append(run.summary)
            sums.append((groups, *sums_by_request(run)))
            outside.update(outside_grid(run))
        return Tried(
            **values_of(deployment),
            tokens_per_second=total,
            summary=summaries[-1],
            extrapolated=tuple(sorted(outside)),
            sums=tuple(sums),
        )

    def _serving(self, count: int, width: int) -> Scenario:
        """A group of so many rows that serves so many requests."""
        if (count, width) not in self._scenarios:
            tokens, wanted = self.scenario.tokens, requests_served(count, width)
            if count < len(tokens.requests):
                tokens = evenly_chosen(tokens, wanted)
            self._scenarios[count, width] = varied(self.scenario, tokens=tokens, batch=width, requests=wanted)
        return self._scenarios[count, width]


def resampled(tried: Tried, boot: Bootstrap) -> FloatArray:
    """[R] tokens per second of all groups with requests drawn anew, the same ones for every setting."""
    speeds = np.zeros(boot.count)
    for groups, tokens, seconds in tried.sums:
        drawn = boot.weights(len(tokens))
        speeds += groups * (drawn @ tokens) / (drawn @ seconds)
    return speeds


def requests_served(count: int, width: int) -> int:
    """Requests that a group of so many rows serves of `count`: at least three per row of a batch."""
    return max(count, 3 * width if width > 1 else 1)


ROUNDS_OF_REQUESTS = (2, 6)
"""Requests per row in the first and the second stage; the last serves all, and at least three per row."""
LEAST_REQUESTS = (8, 20)
MOST_DRAFTS = 4
"""Draft devices that are tried beside one target: the grid grows with them, and forty devices are groups."""
KEPT = (8, 5)
"""Settings that the first and the second stage leave."""
SLOW = (3, 2)
"""Requests per row that policies meet first which the compiled replay does not lay out, and how many settings
of each that leaves."""
HOPELESS = (0.65, 0.8)
"""What ends a policy after the first stage, and the second: its best is below this share of the fastest."""


def refine(search: SettingSearch, span: GridSpan = COARSE, most: int | None = None) -> list[Tried]:
    """All settings that got to the last stage, fastest first; the best of each policy are among them.

    The search begins with `most` settings of the grid, and one of each policy.
    """
    tokens, roles = search.scenario.tokens, search.profile.roles
    drafts = (search.devices - roles.target.tensor_parallel) // roles.draft.tensor_parallel
    settings = grid(tokens, search.temperature, span, draft_devices=min(max(1, drafts), MOST_DRAFTS))
    per_row = max(search.batch // max(1, search.devices // (2 * roles.target.tensor_parallel)), 1)
    sizes = [max(r * per_row, n) for r, n in zip(ROUNDS_OF_REQUESTS, LEAST_REQUESTS, strict=True)]
    settings += recorded_settings(search.scenario, search.temperature)
    settings = settings if most is None else fewer(settings, most)
    slow = [each for each in settings if each.policy not in COVERED]
    met = search.best(slow, SLOW[0] * per_row, "slow policies")
    of_policy = grouped(met, lambda choice: choice.settings.policy).values()
    left = [choice.settings for mine in of_policy for choice in mine[: SLOW[1]]]
    settings = [*(each for each in settings if each.policy in COVERED), *left]
    first = search.best(settings, sizes[0], "coarse search")
    kept = leaders(first, KEPT[0])
    going = hopeful(kept, HOPELESS[0])
    good = kept[:2] + [choice for choice in going if choice.settings.fanout is None]
    near = [each for choice in good for each in neighbours(choice.settings, tokens)]
    second = search.best([*(choice.settings for choice in going), *near], sizes[1], "refinement")
    reached = leaders(second, KEPT[1])
    last = hopeful(reached, HOPELESS[1])
    found = search.best((choice.settings for choice in last), None, "all tokens")
    if (plain := best_of(found, "ar")) is None:
        return found
    for choice in (*but(kept, going), *but(reached, last)):
        ratio = plain.tokens_per_second / search.plainly(choice).tokens_per_second
        found.append(replace(choice, tokens_per_second=ratio * choice.tokens_per_second))
    return sorted(found, key=lambda choice: -choice.tokens_per_second)


def but(choices: Sequence[Tried], without: Sequence[Tried]) -> list[Tried]:
    """The choices whose setting is not among others."""
    others = {choice.settings for choice in without}
    return [choice for choice in choices if choice.settings not in others]


def hopeful(choices: Sequence[Tried], share: float) -> list[Tried]:
    """Those that reach a share of the fastest, which comes first, and the baselines."""
    least = share * choices[0].tokens_per_second
    return [c for c in choices if c.tokens_per_second >= least or c.settings.policy in {"ar", "sd"}]


def fewer(settings: Sequence[Settings], most: int) -> list[Settings]:
    """So many settings, evenly chosen, and the first of each policy."""
    first = grouped(settings, lambda each: each.policy).values()
    even = np.unique(np.linspace(0, len(settings) - 1, most).astype(np.int64)).tolist()
    return list(dict.fromkeys([*(mine[0] for mine in first), *(settings[i] for i in even)]))


def leaders(choices: Sequence[Tried], count: int) -> list[Tried]:
    """The `count` fastest and the fastest of each policy, fastest first, as `choices` are."""
    first = {choice.settings.policy: i for i, choice in reversed(list(enumerate(choices)))}
    return [choice for i, choice in enumerate(choices) if i < count or first[choice.settings.policy] == i]


def best_of(choices: Sequence[Tried], policy: str) -> Tried | None:
    """The fastest setting of a policy among `choices`, fastest first."""
    return next((c for c in choices if c.settings.policy == policy), None)
