"""Is every policy's greedy output plain decoding's, token by token?

The reference is the prompts' recording, which a process without speculative code makes.  A difference where
the target's first two choices lie closer than rounding (`rounds.GAP_BOUND`) is a tie and no error, but is
counted.  What is done is kept as it goes: started again, the command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import click

from analysis.execute import Bench, live_job
from analysis.results import Results, Row
from analysis.rounds import GAP_BOUND
from analysis.show import BATCH, SETTING, Column, table
from analysis.study import POSITIVE, Plan, Study, option
from calibrate.calibration import requests_of
from calibrate.job import Job, inputs, like_profile, worker_specs
from calibrate.journal import Journal, open_journal
from calibrate.live.placement import Mode
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, run_live
from hardware_profiles.store import user_directory
from hardware_profiles.trace import Trace
from policies.registry import POLICIES, SettingError, Settings, configure, find_policy


@dataclass(frozen=True)
class IdentityPlan(Plan):
    """Which policies, on which pair, called how."""

    target: str = option("", "Another target, e.g. the small one inside it.  [default: the profile's]")
    mode: str | None = option(
        None,
        "How the models are called.  [default: as the profile was measured]",
        type=click.Choice(get_args(Mode)),
    )
    policies: tuple[str, ...] = option((), "A list.  [default: all that run live]")
    datastore: str = option("", "Retrieve from this one, too.")
    count: int | None = option(30, "Of the held-out prompts.", type=POSITIVE)
    max_tokens: int | None = option(128, "Most tokens per prompt.", type=POSITIVE)
    batch: tuple[int, ...] = option((1, 4), "List.")
    fresh: bool = option(False, "Forget what an interrupted run left.")


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a text first departs from plain decoding's.

    Attributes:
        request: Id of the request.
        position: Of the first token that differs; the length of the shorter text where one is cut short.
        expected: Plain decoding's token; None where it had ended.
        found: The policy's; None where it had ended.
        gap: Between the log-probabilities of the target's first two choices there.
    """

    request: int
    position: int
    expected: int | None
    found: int | None
    gap: float

    @property
    def tied(self) -> bool:
        """Whether rounding explains it."""
        return self.gap < GAP_BOUND


@dataclass(frozen=True, slots=True)
class Checked:
    """One setting in one batch, compared with plain decoding.

    Attributes:
        policy: Its name.
        setting: Its label.
        batch: Rows served at once.
        prompts: Texts compared.
        tokens: Tokens compared.
        tokens_per_round: Emitted per round and row: 1 would say that nothing was speculated.
        differences: Texts that depart at a place where the target's choice is clear.
        ties: Texts that depart at a tie.
        first: The first departure that is no tie, else the first tie; None without any.
    """

    policy: str
    setting: str
    batch: int
    prompts: int
    tokens: int
    tokens_per_round: float
    differences: int
    ties: int
    first: Departure | None


def identity_settings(names: Sequence[str] = (), *, datastore: str | None = None) -> list[Settings]:
    """Greedy settings whose output has to be plain decoding's.

    Args:
        names: Policies, by name or alias; none: all that run live.
        datastore: One more setting of each policy that retrieves, from this one; None: none.

    Raises:
        SettingError: An unknown policy, or one that runs no models.
    """
    chosen = [find_policy(name) for name in names] or [p for p in POLICIES.values() if "live" in p.worlds]
    for info in chosen:
        if "live" not in info.worlds:
            raise SettingError(f"policy {info.name!r} runs in the simulated world only, without models")
    found = []
    for info in chosen:
        variants = info.variants
        if datastore and "datastore" in info.knobs:
            variants = (*variants, {"datastore": datastore})
        found += [configure(info.name, **knobs) for knobs in variants]
    return list(dict.fromkeys(found))


def answer(bench: Bench) -> list[Row]:
    """A row per setting and batch.

    Raises:
        SettingError: A policy without models, or too few prompts for a batch.
    """
    plan = bench.plan_as(IdentityPlan)
    settings = identity_settings(plan.policies, datastore=plan.datastore or None)
    prompts = bench.prompts()
    if max(plan.batch) > len(prompts):
        raise SettingError(f"{len(prompts)} prompts do not fill a batch of {max(plan.batch)}: give more")
    job = bench.job
    if plan.target:
        other = live_job(plan.target, job.names[1], limit=plan.max_tokens or 1, seed=plan.seed)
        job = like_profile(other, bench.sources.profile)
    job = replace(job, mode=plan.mode or job.mode)  # type: ignore[arg-type]  # click has checked it
    trace = replace(bench, given_job=job).trace(0.0)
    depends = {**inputs(job), "held out": [p.question_id for p in prompts]}
    folder = (bench.out or user_directory()) / ".identity.partial"
    with open_journal(folder, depends, fresh=plan.fresh) as journal:
        found = check(job, trace, settings, plan.batch, journal=journal, progress=bench.progress)
        journal.discard()
    return [as_row(each) for each in found]


def as_row(checked: Checked) -> Row:
    """Columns; those of the first departure begin with `first_`."""
    row = {name: value for name, value in asdict(checked).items() if name != "first"}
    first = {} if checked.first is None else asdict(checked.first)
    return row | {f"first_{name}": value for name, value in first.items()}


def check(
    job: Job,
    trace: Trace,
    settings: Sequence[Settings],
    batches: Sequence[int],
    *,
    journal: Journal,
    progress: Callable[[str, int, int], None],
) -> list[Checked]:
    """Run settings live on the prompts of a trace and compare every text with the recorded one.

    Args:
        job: Pair, placement and mode.
        trace: Greedy recording of the prompts by plain decoding.
        settings: Greedy ones.
        batches: Rows served at once; each setting runs at each.
        journal: Keeps every finished comparison.
        progress: (stage, done, total).
    """
    requests = requests_of(trace)
    cells = [(each, batch) for batch in batches for each in settings]
    # A second draft worker is started for those only that use it; wide batches, soon done, come first.
    cells.sort(key=lambda cell: (cell[0].draft_devices or 1, -cell[1]))
    found: list[Checked] = []
    with _Worlds(job, max(batches)) as worlds:
        for each, batch in cells:
            key = ("identity", each.label, batch)
            if not journal.has(*key):
                world = worlds.of(each.draft_devices or 1)
                journal.put(asdict(compare(run_live(world, each, requests, batch=batch), trace)), *key)
            found.append(_kept(journal.get(*key)))
            progress("identity", len(found), len(cells))
    return found


class _Worlds:
    """The live world with so many draft workers; one at a time, started when first asked for."""

    def __init__(self, job: Job, batch: int) -> None:
        self._job, self._batch = job, batch
        self._stack = ExitStack()
        self._drafts = 0
        self._world: LiveWorld | None = None

    def __enter__(self) -> _Worlds:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def of(self, drafts: int) -> LiveWorld:
        if self._world is None or drafts != self._drafts:
            self._stack.close()
            target, draft = worker_specs(self._job, batch=self._batch)
            more = [replace(draft, name=f"draft-{i}") for i in range(1, drafts)]
            self._world = self._stack.enter_context(LiveWorld(target, [draft, *more]))
            self._drafts = drafts
        return self._world


def compare(run: LiveRun, trace: Trace) -> Checked:
    """The texts of a run beside the recorded ones."""
    departures = [d for request in run.requests if (d := departure(run.texts[request], request, trace))]
    clear = [d for d in departures if not d.tied]
    return Checked(
        policy=run.settings.policy,
        setting=run.settings.label,
        batch=run.batch,
        prompts=len(run.requests),
        tokens=sum(len(run.texts[request]) for request in run.requests),
        tokens_per_round=run.summary.tokens_per_round,
        differences=len(clear),
        ties=len(departures) - len(clear),
        first=next(iter(clear or departures), None),
    )


def departure(text: Sequence[int], request: int, trace: Trace) -> Departure | None:
    """Where a text departs from the recorded one; None if it does not."""
    part = trace.slice([request])
    expected = part.token.tolist()
    if list(text) == expected:
        return None
    both = min(len(text), len(expected))
    at = next((i for i in range(both) if text[i] != expected[i]), both)
    first, second = part.column("target_top_logprobs")[min(at, len(expected) - 1), :2]
    return Departure(
        request=request,
        position=at,
        expected=expected[at] if at < len(expected) else None,
        found=text[at] if at < len(text) else None,
        gap=float(first - second),
    )


def _kept(piece: Mapping[str, Any]) -> Checked:
    first = piece["first"]
    return Checked(**{**piece, "first": None if first is None else Departure(**first)})


def about(results: Results) -> Row:
    """Totals of all settings."""
    names = ("tokens", "differences", "ties")
    totals = {name: sum(row[name] for row in results.rows) for name in names}
    return {"total": {"runs": len(results.rows), **totals}}


def show(results: Results) -> Iterator[Any]:
    """A row per setting and batch, then one line for all."""
    yield table(
        "",
        (
            SETTING,
            BATCH,
            Column("prompts", "prompts"),
            Column("tokens", "tokens"),
            Column("tokens/round", "tokens_per_round", "{:.2f}"),
            Column("differences", "differences"),
            Column("ties", "ties"),
            Column("first", first_departure),
        ),
        results.rows,
        left=("first",),
        drop=("tokens", "prompts", "ties"),
    )
    total = results.about["total"]
    yield (
        f"{total['runs']} runs, {total['tokens']:,} tokens: {total['differences']} texts differ from plain "
        f"decoding, {total['ties']} part from it at a tie of the target's logits"
    )


def first_departure(row: Row) -> str | None:
    """Where a setting's first departure is."""
    if row.get("first_request") is None:
        return None
    return (
        f"request {row['first_request']}, position {row['first_position']}: {row['first_found']} for "
        f"{row['first_expected']}, gap {row['first_gap']:.1e}"
    )


STUDY = Study(
    "identity",
    "Is every policy's greedy output plain decoding's, token by token?  Status 1 where one is not.",
    IdentityPlan,
    answer=answer,
    about=about,
    show=show,
    failed=lambda results: results.about["total"]["differences"] > 0,
    examples=(
        "--hw cpu2-x5 --count 30 --max-tokens 128",
        "--policies mirror,double --count 4 --batch 1 --json",
        "--target pair:target --mode eager --datastore stdlib --out my-identity",
    ),
)
