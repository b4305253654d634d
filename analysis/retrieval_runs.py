"""Runs of `analysis.retrieval`: which settings stand for RASD's tables, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from analysis.family import (
    by_category,
    decided_by_repeat,
    simulated_by_category,
    speeds_by_category,
)
from analysis.family_orders import Speeds
from analysis.livecells import identical, run_interleaved
from calibrate.calibration import record
from calibrate.job import Job
from calibrate.live_runs import LiveRun
from calibrate.prompts import Prompt
from hardware_profiles.datastore import Datastore, datastore_path
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.registry import Settings, configure
from policies.retrieval import PROMPT, RetrieveTree
from simulator.pacing import find_pace
from simulator.run import Scenario
from simulator.tokens import replay

Progress: TypeAlias = Callable[[str, int, int], None]
"""(stage, done, total)."""
PARTS = ("methods", "ablation", "length", "size")
"""What is compared: tables 1 and 2, table 3, figure 3, table 4."""
LENGTHS = (2, 4, 8, 16)
"""Candidate lengths l of figure 3."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "": {},
    ", no pruning": {"prune_top": 0},
    ", no fusion": {"fusion": "off"},
    ", neither": {"prune_top": 0, "fusion": "off"},
}
"""What is left out in table 3."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a table.

    Attributes:
        part: Of `PARTS`.
        name: For people, e.g. `rasd, datastore, no pruning`.
        settings: What runs.
        length: l; None where nothing is retrieved or l is not what is compared.
    """

    part: str
    name: str
    settings: Settings
    length: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What one setting did.

    Attributes:
        settings: The policy and its knobs.
        accepted: Accepted tokens by category.
        forwards: Target forwards by category, counted per row.
        verified: Candidate tokens verified, by category.
        simulated: Tokens and seconds by category, from the decisions of the live runs.
        measured: The same live, one per repetition.
        identical: Whether every greedy text is plain decoding's; None at a temperature above 0.
        found: Share of searches that found something; None for policies without them.
        retrieve_s: Median seconds of a search step; likewise.
        stored: Tokens of its datastore; None without one.
    """

    settings: Settings
    accepted: dict[str, int]
    forwards: dict[str, int]
    verified: dict[str, int]
    simulated: Speeds
    measured: tuple[Speeds, ...]
    identical: bool | None
    found: float | None = None
    retrieve_s: float | None = None
    stored: int | None = None

    def tau(self, category: str | None = None) -> float:
        """Accepted tokens per target forward, the target's own token left out (`rasd.metrics`)."""
        return _ratio(self.accepted, self.forwards, category)

    def candidates(self, category: str | None = None) -> float:
        """Candidate tokens per target forward."""
        return _ratio(self.verified, self.forwards, category)


@dataclass(frozen=True)
class Comparison:
    """Settings on the same prompts at one temperature.

    Attributes:
        entries: Rows of the tables.
        outcomes: By setting, plain decoding among them.
        plain: Plain decoding.
        live: Whether the live times count.
    """

    entries: tuple[Entry, ...]
    outcomes: dict[Settings, Outcome]
    plain: Settings
    live: bool

    @property
    def categories(self) -> list[str]:
        """Of the prompts."""
        return list(self.outcomes[self.plain].simulated)

    def simulated_speedup(self, settings: Settings, category: str | None = None) -> float:
        """SR by simulation: speed over plain decoding, a ratio of sums."""
        mine, plain = self.outcomes[settings].simulated, self.outcomes[self.plain].simulated
        return _speed([mine], category) / _speed([plain], category)

    def measured_speedup(self, settings: Settings, category: str | None = None) -> float | None:
        """SR live, over all repetitions; None where they were not timed."""
        if not self.live:
            return None
        mine, plain = self.outcomes[settings].measured, self.outcomes[self.plain].measured
        return _speed(mine, category) / _speed(plain, category)


def entries_of(
    parts: Sequence[str],
    datastores: Sequence[str],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    lengths: Sequence[int] = LENGTHS,
) -> list[Entry]:
    """The rows of the tables asked for.

    Args:
        parts: Of `PARTS`.
        datastores: The one to retrieve from; several, smallest first, for the table of sizes.
        temperature: Of both models.
        seed: Of sampled runs.
        lengths: Candidate lengths.
    """
    places = [PROMPT, *datastores[-1:]]

    def of(policy: str, place: str = PROMPT, **knobs: Any) -> Settings:
        store = None if place == PROMPT else place
        return configure(policy, temperature=temperature, seed=seed, datastore=store, **knobs)

    found: list[Entry] = []
    if "methods" in parts:
        found.append(Entry("methods", "prompt lookup", of("pld")))
        found += [Entry("methods", f"rest, {_place(p)}", of("rest", p)) for p in places]
        found.append(Entry("methods", "drafted tree", of("tree", tree_plan="dynamic")))
        found += [Entry("methods", f"rasd, {_place(p)}", of("rasd", p)) for p in places]
    if "ablation" in parts:
        found.append(Entry("ablation", "drafted tree", of("tree", tree_plan="dynamic")))
        found += [
            Entry("ablation", f"rasd, {_place(p)}{name}", of("rasd", p, **knobs))
            for p in places
            for name, knobs in ABLATIONS.items()
        ]
    if "length" in parts:
        found += [
            Entry("length", f"{policy}, {_place(p)}", of(policy, p, retrieval_length=length), length)
            for policy in ("rest", "rasd")
            for p in places
            for length in lengths
        ]
    if "size" in parts:
        found += [
            Entry("size", f"{policy}, datastore {store}", of(policy, store))
            for policy in ("rest", "rasd")
            for store in datastores
        ]
    return found


def compare(
    job: Job,
    profile: Profile,
    entries: Sequence[Entry],
    prompts: Sequence[Prompt],
    *,
    prompt_set: str,
    repeats: int,
    live: bool,
    progress: Progress,
) -> Comparison:
    """Run every setting on the real pair, and simulate it from what was decided there.

    Args:
        job: Pair and machine, as the profile was measured.
        profile: What predicts.
        entries: Rows of the tables; all at one temperature.
        prompts: Held out from the calibration and from the datastore.
        prompt_set: Their name.
        repeats: Live repetitions.
        live: Whether the live times count.
        progress: (stage, done, total).
    """
    temperature, seed = entries[0].settings.temperature, entries[0].settings.seed
    trace = record(replace(job, temperature=temperature), prompts, prompt_set, progress)
    plain = configure("ar", temperature=temperature, seed=seed)
    asked = list(dict.fromkeys(entry.settings for entry in entries))
    runs = run_interleaved(
        job,
        trace,
        asked,
        plain,
        repeats=repeats,
        progress=lambda done, total: progress(f"runs at T={temperature:g}", done, total),
    )
    scenario = Scenario(
        tokens=replay(trace, seed=job.seed),
        profile=profile,
        seed=job.seed,
        measured_pace=find_pace(profile, temperature),
    )
    outcomes = {}
    for done, settings in enumerate((plain, *asked)):
        mine = [run for run in runs if run.settings == settings]
        outcomes[settings] = _outcome(scenario, settings, trace, mine, job.limit)
        progress("simulations", done + 1, 1 + len(asked))
    return Comparison(tuple(entries), outcomes, plain, live)


def _outcome(
    scenario: Scenario, settings: Settings, trace: Trace, runs: Sequence[LiveRun], limit: int
) -> Outcome:
    accepted, forwards, verified = {}, {}, {}
    for category, ids in by_category(trace).items():
        mine = [run for run in runs if set(run.requests) <= set(ids)]
        rounds = [each for run in mine for own in run.rounds.values() for each in own]
        accepted[category] = sum(each.accepted for each in rounds)
        forwards[category] = len(rounds)
        verified[category] = sum(candidates_verified(run) for run in mine)
    found, retrieve_s = searches_of(runs)
    store = settings.knobs.get("datastore")
    decided = decided_by_repeat(trace, settings, runs, limit)
    return Outcome(
        settings=settings,
        accepted=accepted,
        forwards=forwards,
        verified=verified,
        simulated=simulated_by_category(scenario, settings, trace, decided),
        measured=tuple(speeds_by_category(trace, runs, r) for r in sorted({run.repeat for run in runs})),
        identical=identical(runs, trace) if settings.temperature == 0.0 else None,
        found=found,
        retrieve_s=retrieve_s,
        stored=None if store is None else len(Datastore.open(datastore_path(store))),
    )


def searches_of(runs: Sequence[LiveRun]) -> tuple[float | None, float | None]:
    """(share of searches that found something, median seconds of a search step); None without any."""
    decided = [run.decisions for run in runs]
    replies = [reply for d in decided for key, reply in d.replies.items() if key[0] == RetrieveTree.kind]
    seconds = [d.seconds["retrieve"] for d in decided if "retrieve" in d.seconds]
    if not replies or not seconds:
        return None, None
    # A reply is a `Retrieved`: its first field is the tree, whose first one are the tokens.
    return sum(bool(reply[0][0]) for reply in replies) / len(replies), median(seconds)


def candidates_verified(run: LiveRun) -> int:
    """Candidate tokens that went through the target: nodes of trees, or tokens of chains."""
    trees = [reply for key, reply in run.decisions.replies.items() if key[0] == "verifytree"]
    if trees:
        return sum(tokens - 1 for _, _, work in trees for _, tokens in work)
    return sum(each.length for own in run.rounds.values() for each in own)


def _place(name: str) -> str:
    return "text" if name == PROMPT else "datastore"


def _ratio(over: dict[str, int], under: dict[str, int], category: str | None) -> float:
    chosen = list(under) if category is None else [category]
    return sum(over[c] for c in chosen) / sum(under[c] for c in chosen)


def _speed(speeds: Sequence[Speeds], category: str | None) -> float:
    chosen = [each[c] for each in speeds for c in (each if category is None else (category,))]
    return sum(tokens for tokens, _ in chosen) / sum(seconds for _, seconds in chosen)
