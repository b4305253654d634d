"""Is every policy's greedy output plain decoding's, token by token?

The reference is the prompts' recording, which a process without speculative code makes.  A difference where
the target's first two choices lie closer than rounding (`rounds.GAP_BOUND`) is a tie and no error, but is
counted.  What is done is kept as it goes: started again, the command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, get_args

import click

from analysis.execute import LIVE, Bench
from analysis.results import Results, Row
from analysis.rounds import GAP_BOUND, first_difference
from analysis.show import BATCH, SETTING, Column, table
from analysis.study import POSITIVE, Plan, Study, option
from calibrate.calibration import requests_of
from calibrate.job import inputs, like_profile, make_job, worker_specs
from calibrate.journal import open_journal
from calibrate.live.placement import Mode
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import LiveRun, run_live
from hardware_profiles.store import user_directory
from hardware_profiles.trace import Trace
from policies.commandline import split_counts
from policies.registry import POLICIES, SettingError, Settings, configure, find_policy


@dataclass(frozen=True)
class IdentityPlan(Plan):
    """Which policies, on which pair, called how."""

    target: str = option("", "Another target, e.g. the small one inside it.  [default: the profile's]")
    draft: str = option("", "Another draft, e.g. pair:block.  [default: the profile's]")
    mode: str | None = option(
        None,
        "How the models are called.  [default: as the profile was measured]",
        type=click.Choice(get_args(Mode)),
    )
    policies: tuple[str, ...] = option((), "A list.  [default: all that run live]")
    datastore: str = option("", "Retrieve from this one, too.")
    count: int | None = option(30, "Of the held-out prompts.", type=POSITIVE)
    max_tokens: int | None = option(128, "Most tokens per prompt.", type=POSITIVE)
    batch: tuple[int, ...] = option((1, 4), "List.", callback=split_counts)
    fresh: bool = option(False, "Forget what an interrupted run left.")


def identity_settings(names: Sequence[str] = (), *, datastore: str = "") -> list[Settings]:
    """Greedy settings of policies (by default all that run live) whose output has to be plain decoding's.

    Those that retrieve have one more, from `datastore` if that is given.

    Raises:
        SettingError: An unknown policy, or one that runs no models.
    """
    settings = []
    for info in map(find_policy, names) if names else POLICIES.values():
        variants = info.variants
        if datastore and "datastore" in info.knobs:
            variants = (*variants, {"datastore": datastore})
        if "live" in info.worlds:
            settings += [configure(info.name, **knobs) for knobs in variants]
        elif names:
            raise SettingError(f"policy {info.name!r} runs in the simulated world only, without models")
    return list(dict.fromkeys(settings))


def answer(bench: Bench) -> list[Row]:
    """A row per setting and batch; every finished comparison is kept in a journal.

    Raises:
        SettingError: A policy without models, or too few prompts for a batch.
    """
    plan = bench.plan_as(IdentityPlan)
    settings = identity_settings(plan.policies, datastore=plan.datastore)
    prompts = bench.prompts()
    if max(plan.batch) > len(prompts):
        raise SettingError(f"{len(prompts)} prompts do not fill a batch of {max(plan.batch)}: give more")
    job = bench.job
    if plan.target or plan.draft:
        names = plan.target or job.names[0], plan.draft or job.names[1]
        pair = replace(LIVE, target=names[0], draft=names[1], seed=plan.seed)
        other = make_job(replace(pair, max_tokens=plan.max_tokens or 1))
        job = like_profile(other, bench.sources.profile)
    job = replace(job, mode=plan.mode or job.mode)  # type: ignore[arg-type]  # click has checked it
    trace = replace(bench, given_job=job).trace(0.0)
    requests, rows, started = requests_of(trace), [], 0
    cells = [(each, batch) for batch in plan.batch for each in settings]
    # A second draft worker is started for those only that use it; wide batches, soon done, come first.
    cells.sort(key=lambda cell: (cell[0].draft_devices or 1, -cell[1]))
    depends = {**inputs(job), "held out": [p.question_id for p in prompts]}
    folder = (bench.out or user_directory()) / ".identity.partial"
    with open_journal(folder, depends, fresh=plan.fresh) as journal, ExitStack() as stack:
        for each, batch in cells:
            key, drafts = ("identity", each.label, batch), each.draft_devices or 1
            if not journal.has(*key):
                if drafts != started:
                    stack.close()
                    target, first = worker_specs(job, batch=max(plan.batch))
                    more = [replace(first, name=f"draft-{i}") for i in range(1, drafts)]
                    world = stack.enter_context(LiveWorld(target, [first, *more]))
                    started = drafts
                journal.put(compare(run_live(world, each, requests, batch=batch), trace), *key)
            rows.append(journal.get(*key))
            bench.progress("identity", len(rows), len(cells))
        journal.discard()
    return rows


def compare(run: LiveRun, trace: Trace) -> Row:
    """The texts of a run beside the recorded ones.

    Returns:
        Texts and tokens compared, tokens per round and row (1 would say that nothing was speculated), texts
        that depart where the target's choice is clear (`differences`) and where it is not (`ties`), and the
        first clear departure, else the first tie, in columns that begin with `first_`.
    """
    departures = [d for request in run.requests if (d := departure(run.texts[request], request, trace))]
    clear = [d for d in departures if d["gap"] >= GAP_BOUND]
    first = next(iter(clear or departures), {})
    return {
        "policy": run.settings.policy,
        "setting": run.settings.label,
        "batch": run.batch,
        "prompts": len(run.requests),
        "tokens": sum(len(run.texts[request]) for request in run.requests),
        "tokens_per_round": run.summary.tokens_per_round,
        "differences": len(clear),
        "ties": len(departures) - len(clear),
        **{f"first_{name}": value for name, value in first.items()},
    }


def departure(text: Sequence[int], request: int, trace: Trace) -> Row | None:
    """Where a text departs from the recorded one; None if it does not.

    Returns:
        The position, the token `expected` and that `found` (None where a text had ended), and the `gap` of
        log-probabilities of the target's first two choices there: below `GAP_BOUND` rounding explains it.
    """
    part = trace.slice([request])
    expected = part.token.tolist()
    at = first_difference(text, expected)
    if at is None:
        return None
    first, second = part.column("target_top_logprobs")[min(at, len(expected) - 1), :2]
    return {
        "request": request,
        "position": at,
        "expected": expected[at] if at < len(expected) else None,
        "found": text[at] if at < len(text) else None,
        "gap": float(first - second),
    }


def about(results: Results) -> Row:
    """Totals of all settings."""
    names = ("tokens", "differences", "ties")
    totals = {name: sum(row[name] for row in results.rows) for name in names}
    return {"total": {"runs": len(results.rows), **totals}}


def show(results: Results) -> Iterator[Any]:
    """A row per setting and batch, then one line for all."""

    def first(row: Row) -> str | None:
        if row.get("first_request") is None:
            return None
        return (
            f"request {row['first_request']}, position {row['first_position']}: {row['first_found']} for "
            f"{row['first_expected']}, gap {row['first_gap']:.1e}"
        )

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
            Column("first", first),
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
