"""Which policy, lookahead, fan-out and backup: searched by simulation, with how sure and why.

The answer is for a number of equal devices that serve a number of requests at any time
(`analysis.recommend.search`).

Where the best setting changes is looked for over the batch and over the acceptance.  Another acceptance is
made by *thinning* a greedy trace: at each position, by a coin keyed to it, the draft's first choice is taken
to be wrong (it and the second change places), or the target's token is taken to be the draft's first choice;
all else, clusters of easy text included, stays as recorded.  Sampled traces have no such handle; there coins
are tossed at the acceptance wanted, with the hit curve fitted to the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import click
import numpy as np

from analysis.intervals import LEVEL, Bootstrap, Interval, interval
from analysis.recommend.given import LENGTH, given_sources
from analysis.recommend.search import (
    COARSE,
    FEW,
    FULL,
    SettingSearch,
    Tried,
    best_of,
    grid,
    leaders,
    refine,
    resampled,
    values_of,
)
from analysis.results import Row
from analysis.sources import Sources, load_sources
from analysis.study import POSITIVE, option
from calibrate.options import Progress, quiet
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.store import find_acceptance, find_profile, origin, other_pair, shipped_acceptances
from hardware_profiles.trace import Trace
from policies.commandline import about
from policies.registry import SettingError, Settings, configure
from policies.sampling import FloatArray, keyed_uniforms
from policies.summary import Summary
from simulator.compiled.replay import COVERED
from simulator.given import Acceptance, AcceptanceType, PairOptions
from simulator.law import coins_of, law_inputs
from simulator.needs import count_devices
from simulator.request import DEFAULT_ACCEPTANCE, DEFAULT_PROFILE, check_recorded
from simulator.run import Scenario
from simulator.tokens import TokenModel, replay
from simulator.tokens.acceptance import load_acceptance
from simulator.tokens.accepted import SUFFIX


@dataclass(frozen=True, slots=True)
class Query(PairOptions):
    """What a recommendation is asked for: the options of `recommend`.

    Raises:
        SettingError: A value out of its domain.
    """

    hw: str | None = option(
        None,
        f"Hardware profile: a name, shipped:NAME or a file.  [default: {DEFAULT_PROFILE}, composed, with the "
        "acceptance published for that pair]",
    )
    trace: str | None = option(None, "Recorded trace: a name or a file.  [default: the profile's]")
    acceptance: float | Path | None = field(
        default=None,
        metadata=about(
            "Of traffic that was not recorded, as `simulate` takes it: a number, a file or a shipped name.",
            type=AcceptanceType(),
        ),
    )
    prompt_length: int | None = option(
        None, "Prompt tokens of traffic that was not recorded.  [default: 128]", type=POSITIVE
    )
    batch: int = option(1, "Requests served at any time, on all devices.")
    temperature: float = option(0.0, "Of the target; needs a trace at it.")
    max_devices: int | None = option(
        None,
        "Equal devices at hand; a model spread over four of them takes four; up to four draft devices are "
        "tried beside one target.  [default: 2, or as many as the profile's target and draft take together]",
        type=int,
    )
    prompt_category: str | None = option(None, "Only prompts of this category.  [default: all]")
    max_tokens: int | None = option(None, "Most tokens per request.", type=POSITIVE)
    level: float = option(
        LEVEL, "Of the intervals.", type=click.FloatRange(0, 1, min_open=True, max_open=True)
    )
    crossovers: bool = option(
        True,
        "Look at other batches and acceptances, or not; the second pair is the earlier name.",
        spelled=("--crossovers/--no-crossovers", "--flips/--no-flips"),
    )
    grid: Literal["coarse", "full"] = field(
        default="coarse",
        metadata=about("Where the search begins: some hundred settings, or ten thousand."),
    )
    settings: int | None = option(
        None, "Begin with so many settings of the grid, evenly chosen.  [default: all]", type=POSITIVE
    )
    seed: int = option(0, "Same seed, same answer.")

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("max-devices", self.max_devices)):
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")
        if self.temperature < 0.0:
            raise SettingError(f"temperature must be at least 0, got {self.temperature:g}")

    def sources(self) -> Sources:
        """Profile and traces that it names, or traffic made up of the acceptance given.

        Raises:
            SettingError: Options that contradict each other or lack their partner.
        """
        pair = self.composed(self.hw)
        if self.hw is None:
            return self._on_default_pair.sources()
        context = (self.prompt_length or LENGTH) + 0.5 * (self.max_tokens or LENGTH)
        if (acceptance := self.accepted(self.acceptance, context)) is not None:
            return self._given(self.hw, pair, acceptance)
        if pair is not None:
            raise SettingError("nothing was recorded of such a pair: give --acceptance or --run-length")
        if self.hit_rate is not None or self.prompt_length is not None:
            raise SettingError("--hit-rate and --prompt-length go with --acceptance or --run-length")
        temperatures = [self.temperature]
        sources = load_sources(
            self.hw,
            trace=self.trace,
            category=self.prompt_category,
            temperatures=temperatures,
            decided=temperatures,
        )
        return replace(sources, profile=self.verified(sources.profile))

    @property
    def _on_default_pair(self) -> Query:
        """The same where no hardware is named."""
        category, temperature = self.prompt_category, self.temperature or None
        check_recorded({"--trace": self.trace, "--prompt-category": category, "--temperature": temperature})
        said = self.says_acceptance(self.acceptance)
        acceptance = self.acceptance if said else find_acceptance(DEFAULT_ACCEPTANCE)
        return replace(self, hw=DEFAULT_PROFILE, acceptance=acceptance)

    def _given(self, hw: str, pair: tuple[Profile, str] | None, acceptance: Acceptance) -> Sources:
        if self.trace is not None or self.temperature or self.prompt_category is not None:
            raise SettingError(
                "--trace, --temperature and --prompt-category are of recorded traffic: give them or "
                "--acceptance and --run-length"
            )
        path = None if pair else find_profile(hw)
        profile, where = pair or (load_profile(str(path)), origin(Path(str(path))))
        sources = given_sources(
            self.verified(profile),
            where,
            acceptance,
            hit_rate=self.hit_rate,
            length=self.max_tokens or LENGTH,
            prompt_length=self.prompt_length or LENGTH,
            seed=self.seed,
        )
        resolved = ("run_length", "acceptance_by_context")
        asked: Row = {e.name: getattr(self, e.name) for e in fields(PairOptions) if e.name not in resolved}
        asked = {name: value for name, value in asked.items() if value not in (None, False)}
        asked["acceptance"] = f"{acceptance:.4g}" if isinstance(acceptance, float) else self.acceptance
        if isinstance(acceptance, Path):
            shipped = acceptance.stem in shipped_acceptances()
            asked["acceptance"] = acceptance.stem if shipped else acceptance
            file = acceptance.suffix != SUFFIX
            if file and self.hit_rate is None and load_acceptance(acceptance).hit_curve is None:
                asked["hit_curve"] = "1,1"
        return replace(sources, hw=hw, given=asked)

    def search(self, sources: Sources, progress: Progress = quiet) -> SettingSearch:
        """What is searched for it.

        Raises:
            SettingError: No trace at its temperature, or fewer devices than the target takes.
        """
        scenario = sources.scenario(self.temperature, limit=self.max_tokens, seed=self.seed)
        devices, least = self.max_devices, count_devices(configure("ar"), sources.profile).total
        if devices is None:
            devices = usual_devices(sources.profile)
        if devices < least:
            raise SettingError(
                f"the target of profile {sources.profile.name!r} is spread over {least} devices: "
                f"--max-devices must be at least {least}, got {devices}"
            )
        return SettingSearch(scenario, devices, self.batch, self.temperature, progress)

    def bootstrap(self, search: SettingSearch, model_error: float) -> Bootstrap:
        """Replicates of runs of what is searched."""
        return Bootstrap(
            search.scenario, batch=search.widest, model_error=model_error, level=self.level, seed=self.seed
        )


def usual_devices(profile: Profile) -> int:
    """Devices of a recommendation unless others are asked for: a group of the profile's two models."""
    return max(2, count_devices(configure("pearl"), profile).total)


@dataclass(frozen=True, slots=True)
class Ranked(Tried):
    """A choice with its intervals.

    Attributes:
        speed: Interval of its tokens per second, all groups together.
        over_ar: Interval of its speed over plain decoding's on the same devices.
        winner_over: Interval of the winner's speed over its own, on the same prompts (paired).
    """

    speed: Interval
    over_ar: Interval
    winner_over: Interval

    @property
    def distinguishable(self) -> bool:
        """Whether the winner is faster than it in all but (1 - level) / 2 of the replicates."""
        return self.winner_over.low > 1.0


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best setting at one batch or acceptance.

    Attributes:
        at: The batch or acceptance.
        best: What is fastest there.
        speedup_vs_ar: Its speed over plain decoding's on the same devices.
        speedup_vs_sd: Its speed over the best SD's on the same devices.
        extrapolated: Whether costs outside the measured grid were used.
        recommended_vs_ar: Speed over plain decoding of the setting recommended for the traffic asked about.
    """

    at: float
    best: Settings
    speedup_vs_ar: float
    speedup_vs_sd: float
    extrapolated: bool
    recommended_vs_ar: float | None


@dataclass(frozen=True)
class Recommendation:
    """The answer.

    Attributes:
        query: What was asked.
        sources: What it rests on.
        search: What was simulated and refused for the traffic asked about.
        winner: The fastest.
        runner_up: The fastest other setting.
        best: The best of every policy that can run, by name, `ar` and `sd` always among them.
        by_batch: The best at other batches.
        by_acceptance: The best at other acceptances.
        seconds: What the answer took, files read included.
        cpu_seconds: Of this process, its start included.
    """

    query: Query
    sources: Sources
    search: SettingSearch
    winner: Ranked
    runner_up: Ranked
    best: Mapping[str, Ranked]
    by_batch: Sequence[Optimum] = ()
    by_acceptance: Sequence[Optimum] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def trace(self) -> Trace:
        """The recorded traffic."""
        return self.sources.trace(self.query.temperature)

    @property
    def warnings(self) -> list[str]:
        """What to know before believing anything else: that times and acceptance are of different pairs."""
        mixed = other_pair(self.sources.profile, self.trace.meta)
        return [] if mixed is None else [mixed]

    @property
    def undecided(self) -> Mapping[str, str]:
        """Policies that could not be tried since what they decide is not recorded, and why it is not."""
        return self.sources.undecided.get(self.query.temperature, {})

    @property
    def acceptance(self) -> float:
        """That of the recorded traffic."""
        return float(np.mean(self.search.scenario.tokens.run > 0))

    @property
    def over_sd(self) -> Interval:
        """The winner's speed over the best SD's on equal devices."""
        return self.best["sd"].winner_over

    @property
    def extrapolated(self) -> list[str]:
        """Where costs of the winner or of a baseline lay outside the measured grid."""
        rows = [self.winner, *self.best.values()]
        return sorted({text for row in rows for text in row.extrapolated})


def recommend(sources: Sources, query: Query, progress: Progress = quiet) -> Recommendation:
    """Search, then say how sure, and where the answer changes.

    Raises:
        SettingError: No trace at the temperature, or no policy can run.
    """
    search = query.search(sources, progress)
    found = refine(search, FULL if query.grid == "full" else COARSE, query.settings)
    for policy in ("ar", "sd"):
        if best_of(found, policy) is None:
            reason = next((why for s, why in search.refused.items() if s.policy == policy), "it was refused")
            raise SettingError(f"{policy} cannot run here: {reason}")
    rows = rank(leaders(found, 2), search, query.bootstrap(search, sources.model_error))
    best: dict[str, Ranked] = {}
    for row in rows:
        best.setdefault(row.settings.policy, row)
    answer = Recommendation(query, sources, search, rows[0], rows[1], best)
    if not query.crossovers:
        return answer
    finalists = [choice.settings for choice in found[:3]]
    batches = {float(batch): search.elsewhere(batch=batch) for batch in BATCHES}
    acceptances = {a: with_acceptance(search, finalists[0], answer.trace, a) for a in ACCEPTANCES}
    return replace(
        answer,
        by_batch=points("other batches", batches, finalists, progress),
        by_acceptance=points("other acceptances", acceptances, finalists, progress),
    )


def rank(choices: Sequence[Tried], search: SettingSearch, boot: Bootstrap) -> list[Ranked]:
    """The choices, fastest first, with intervals from replicates on the same prompts and machine.

    A setting that was rejected before all prompts is known by its ratio to plain decoding on those it met.
    """
    speeds: list[FloatArray] = []  # [R] tokens per second of all groups in each replicate

    def predicted(choice: Tried) -> FloatArray:
        widths = choice.widths.items()
        parts = [groups * boot.predicted_speeds(choice.settings, width) for width, groups in widths]
        return np.asarray(np.sum(parts, axis=0), dtype=np.float64)

    plain = predicted(next(choice for choice in choices if choice.settings.plain))
    for done, choice in enumerate(choices):
        if choice.requests >= len(search.scenario.tokens.requests):
            speeds.append(predicted(choice))
        else:
            ratio = resampled(choice, boot) / resampled(search.plainly(choice), boot)
            speeds.append(plain * ratio * boot.error_factors(choice.settings))
        search.progress("intervals", done + 1, len(choices))
    return [
        Ranked(
            **values_of(choice),
            speed=interval(speed, boot.level),
            over_ar=interval(speed / plain, boot.level),
            winner_over=interval(speeds[0] / speed, boot.level),
        )
        for choice, speed in zip(choices, speeds, strict=True)
    ]


def time_per_token(summary: Summary) -> dict[str, float]:
    """Where the milliseconds of a token of one group go: who works while it is made.

    `target_alone`, `both` (at least one draft and the target), `draft_alone`, `nobody` (messages, host).
    """
    seconds, tokens = summary.seconds, summary.tokens
    target = summary.utilization["target"] * seconds
    drafts = max((u * seconds for name, u in summary.utilization.items() if name != "target"), default=0.0)
    both = min(summary.overlap_s, target, drafts)
    parts = {
        "target_alone": target - both,
        "both": both,
        "draft_alone": drafts - both,
        "nobody": max(0.0, seconds - target - drafts + both),
    }
    return {name: 1e3 * value / tokens for name, value in parts.items()}


# Where the answer changes

BATCHES = (1, 2, 4, 8, 16)
ACCEPTANCES = (0.3, 0.45, 0.6, 0.75, 0.9)


def points(
    stage: str, searches: Mapping[float, SettingSearch], finalists: Sequence[Settings], progress: Progress
) -> list[Optimum]:
    """The best of a small grid and the finalists, the winner first, in searches by batch or acceptance."""
    found: list[Optimum] = []
    for at, search in searches.items():
        requests = max(6, 2 * search.batch)
        small = [s for s in grid(search.scenario.tokens, search.temperature, FEW) if s.policy in COVERED]
        # Coins have neither texts nor distributions: settings that need them are refused and drop out.
        ranked = search.best([*finalists, *small], requests)
        ar, sd = best_of(ranked, "ar"), best_of(ranked, "sd")
        assert ar is not None and sd is not None, "every profile with a draft runs both"
        best, winner = ranked[0], search.try_out(finalists[0], requests)
        point = Optimum(
            at=at,
            best=best.settings,
            speedup_vs_ar=best.tokens_per_second / ar.tokens_per_second,
            speedup_vs_sd=best.tokens_per_second / sd.tokens_per_second,
            extrapolated=bool(best.extrapolated or ar.extrapolated),
            recommended_vs_ar=None if winner is None else winner.tokens_per_second / ar.tokens_per_second,
        )
        found.append(point)
        progress(stage, len(found), len(searches))
    return found


def with_acceptance(
    search: SettingSearch, winner: Settings, trace: Trace, acceptance: float
) -> SettingSearch:
    """The search with traffic of another acceptance; decisions belong to the one they were made at."""
    if search.temperature == 0.0:
        tokens = replay(thinned(trace, acceptance))
    else:
        tokens = coins_like(search.scenario, winner, acceptance)
    return search.elsewhere(replace(search.scenario, tokens=tokens, decisions=None))


def crossovers(points: Sequence[Optimum]) -> list[tuple[Optimum, Optimum]]:
    """Neighbouring points between which the best policy changes."""
    return [(a, b) for a, b in pairwise(points) if a.best.policy != b.best.policy]


def thinned(trace: Trace, acceptance: float, *, seed: int = 0) -> Trace:
    """A greedy trace with another acceptance (see above), which is met on average.

    It has `draft_rank`, and `draft_top_ids` where the draft's choices are recorded.  The seed keys the coins,
    by request and position.
    """
    rank = trace.column("draft_rank")
    now = float(np.mean(rank == 0))
    luck = keyed_uniforms(seed, "thinning", trace.request, trace.position)
    changed = rank.copy()
    if acceptance < now:
        changed[(rank == 0) & (luck < 1.0 - acceptance / now)] = 1
    elif now < 1.0:
        changed[(rank > 0) & (luck < (acceptance - now) / (1.0 - now))] = 0
    moved = {"draft_top_ids": _moved(trace, changed)} if "draft_top_ids" in trace.columns else {}
    return trace.changed(draft_rank=changed, **moved)


def _moved(trace: Trace, rank: np.ndarray) -> np.ndarray:
    """[n, M] the draft's choices with the target's token at its new rank."""
    ids = trace.column("draft_top_ids").copy()
    before = trace.column("draft_rank")
    down = np.flatnonzero((before == 0) & (rank == 1))
    if ids.shape[1] > 1:
        ids[down, :2] = ids[down, 1::-1]
    for row in np.flatnonzero((before > 0) & (rank == 0)):
        last = min(int(before[row]), ids.shape[1] - 1)
        ids[row, 1 : last + 1] = ids[row, :last]
        ids[row, 0] = trace.token[row]
    return ids


def coins_like(scenario: Scenario, settings: Settings, acceptance: float) -> TokenModel:
    """Coins with a recording's fitted hit curve and lengths, at another acceptance."""
    requests = scenario.tokens.requests
    return coins_of(
        replace(law_inputs(scenario, settings), acceptance=acceptance),
        requests=len(requests),
        length=round(float(np.mean([r.limit for r in requests]))),
        prompt_length=round(float(np.mean([r.prompt_length for r in requests]))),
        seed=0,
    )
