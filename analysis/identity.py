"""`python -m analysis.identity`: is every policy's greedy output plain decoding's, token by token?

The reference is the prompts' recording, which a process without speculative code makes.  A difference where
the target's first two choices lie closer than rounding (`rounds.GAP_BOUND`) is a tie and no error, but is
counted.  What is done is kept as it goes: started again, the command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from analysis.commands import Output, deliver
from calibrate.live.placement import Mode
from hardware_profiles.files import to_json
from policies.commandline import (
    HELP,
    checked_command,
    refusals,
    split_integers,
    split_list,
    typed,
    wide_console,
)

if TYPE_CHECKING:
    from calibrate.job import Job
    from calibrate.journal import Journal
    from calibrate.live.transport.world import LiveWorld
    from calibrate.live_runs import LiveRun
    from hardware_profiles.trace import Trace
    from policies.registry import Settings

EXAMPLES = """
\b
Examples:
  python -m analysis.identity --hw cpu2-x5 --prompts 30 --max-tokens 128
  python -m analysis.identity --policies mirror,double --prompts 4 --batch 1 --json
  python -m analysis.identity --target pair:target --mode eager --datastore stdlib --out identity.json
"""


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
        from analysis.rounds import GAP_BOUND

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


@checked_command(epilog=EXAMPLES, context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile whose pair runs.")
@click.option("--target", help="Another target, e.g. the small one inside it.  [default: the profile's]")
@click.option(
    "--mode",
    type=click.Choice(get_args(Mode)),
    help="How the models are called.  [default: as the profile was measured]",
)
@click.option("--policies", default="all", show_default=True, callback=split_list, help="A list.")
@click.option("--datastore", help="Retrieve from this one, too.")
@click.option(
    "--prompts", default=30, show_default=True, type=click.IntRange(min=1), help="Of the held-out ones."
)
@click.option("--max-tokens", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--batch", default="1,4", show_default=True, callback=split_integers, help="List.")
@click.option("--seed", default=0, show_default=True)
@click.option("--fresh", is_flag=True, help="Forget what an interrupted run left.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Compare every policy's greedy output with plain decoding's; exit status 1 on a difference."""
    with refusals():
        request = typed(CheckRequest, options)
        found = _check(request)
    deliver(as_json(found, request), typed(Output, options), show=lambda: print_checked(found))
    if any(each.differences for each in found):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What is checked; every field is the option of its name."""

    hw: str
    target: str | None
    mode: Mode | None
    policies: list[str]
    datastore: str | None
    prompts: int
    max_tokens: int
    batch: tuple[int, ...]
    seed: int
    fresh: bool
    out: Path | None


def _check(request: CheckRequest) -> list[Checked]:
    from analysis.identity_settings import identity_settings
    from analysis.sources import load_sources
    from calibrate.calibration import record
    from calibrate.display import show_progress
    from calibrate.job import inputs
    from calibrate.journal import open_journal
    from calibrate.prompts import find_prompts, load_prompts, spread
    from hardware_profiles.store import user_directory

    names = [] if request.policies == ["all"] else request.policies
    settings = identity_settings(names, datastore=request.datastore)
    prompts = spread(load_prompts(find_prompts("heldout")), request.prompts)
    if max(request.batch) > len(prompts):
        raise ValueError(f"{len(prompts)} prompts do not fill a batch of {max(request.batch)}: give more")
    job = _job(load_sources(request.hw), request)
    out = request.out or user_directory() / "identity.json"
    with show_progress() as progress:
        trace = record(job, prompts, "heldout", progress)
        depends = {**inputs(job), "held out": [p.question_id for p in prompts]}
        with open_journal(out.parent / f".{out.stem}.partial", depends, fresh=request.fresh) as journal:
            found = check(job, trace, settings, request.batch, journal=journal, progress=progress)
            journal.discard()
    return found


def _job(sources: Any, request: CheckRequest) -> Job:
    from analysis.execute import live_job, profiled_job
    from calibrate.job import like_profile

    job: Job = profiled_job(sources, limit=request.max_tokens, seed=request.seed)
    if request.target:
        limit, seed = request.max_tokens, request.seed
        other = live_job(request.target, job.names[1], limit=limit, seed=seed)
        job = like_profile(other, sources.profile)
    return replace(job, mode=request.mode or job.mode)


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
    from calibrate.calibration import requests_of
    from calibrate.live_runs import run_live

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
        from calibrate.job import worker_specs
        from calibrate.live.transport.world import LiveWorld

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


def as_json(found: Sequence[Checked], request: CheckRequest) -> str:
    """One JSON object: what was asked, a total, and a row per setting and batch."""
    names = ("hw", "target", "mode", "datastore", "prompts", "max_tokens", "batch", "seed")
    total = {name: sum(getattr(c, name) for c in found) for name in ("tokens", "differences", "ties")}
    rows = [asdict(each) for each in found]
    return to_json(
        {
            "asked": {n: getattr(request, n) for n in names},
            "total": {"runs": len(found), **total},
            "rows": rows,
        },
        indent=2,
    )


def print_checked(found: Sequence[Checked]) -> None:
    """A row per setting and batch, then one line for all."""
    from rich.table import Table

    table = Table(header_style="bold")
    for title in ("setting", "batch", "prompts", "tokens", "tokens/round", "differences", "ties", "first"):
        table.add_column(title, justify="left" if title in {"setting", "first"} else "right")
    for each in found:
        counts = (each.batch, each.prompts, each.tokens, f"{each.tokens_per_round:.2f}")
        table.add_row(
            each.setting, *map(str, counts), str(each.differences), str(each.ties), _place(each.first)
        )
    console = wide_console()
    console.print(table)
    different = sum(each.differences for each in found)
    console.print(
        f"{len(found)} runs, {sum(c.tokens for c in found):,} tokens: {different} texts differ from plain "
        f"decoding, {sum(c.ties for c in found)} part from it at a tie of the target's logits"
    )


def _place(first: Departure | None) -> str:
    if first is None:
        return ""
    return (
        f"request {first.request}, position {first.position}: {first.found} for {first.expected}, "
        f"gap {first.gap:.1e}"
    )


if __name__ == "__main__":
    main()
