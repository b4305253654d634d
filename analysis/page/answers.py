"""What a page is made of: settings by batch and acceptance, one in detail, and the rounds of each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hardware_profiles.tables import Row
from policies.commandline import POSITIVE, about, option
from policies.registry import SettingError, find_policy
from policies.timeline import Span
from simulator.auto import settings_query
from simulator.given import AcceptanceType, PairOptions
from simulator.report import Report, report_of
from simulator.request import SimulationRequest
from simulator.run import simulate
from simulator.sweep import Sweeper

ROUNDS = 5
"""Verifications of each policy that a timeline shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(PairOptions):
    """What a page is asked to show."""

    hw: str | None = option(None, "GPU, where models are named, or hardware profile, as `simulate` takes it.")
    policies: tuple[str, ...] = option(("ar", "sd", "pearl", "saguaro"), "Policies compared.")
    batches: tuple[int, ...] = option((1, 4, 16, 64, 256), "Batches compared.")
    acceptances: tuple[float, ...] = option((0.5, 0.6, 0.7, 0.8, 0.9), "Acceptances of the map.")
    lookaheads: tuple[int, ...] = option((1, 2, 4, 6), "Lookaheads tried.")
    batch: int = option(16, "Batch of the waterfall and the timelines.", type=POSITIVE)
    prompt_length: int | None = option(None, "Prompt tokens.  [default: 128]", type=POSITIVE)
    acceptance: float | Path | None = field(
        default=None,
        metadata=about("As `simulate` takes it: a number, a file or a name.", type=AcceptanceType()),
    )


HEADINGS = {
    "On what": ("hw", "target", "draft", "tp", "draft_tp", "draft_placement"),
    "What is compared": (
        *("policies", "lookaheads", "batches", "acceptances", "batch", "acceptance", "prompt_length"),
    ),
    "The page": ("out", "port", "help"),
}
"""What `report --help` and `explore --help` list, most wanted first."""


@dataclass(frozen=True)
class Page:
    """The answers.

    Attributes:
        rows: Of every policy, batch and lookahead, at the acceptance asked for.
        cells: The same of the map, by `acceptance`.
        detail: The fastest speculative setting at `batch`.
        rounds: Spans of the first rounds of each policy's fastest setting there, from 0 s on.
    """

    asked: PageRequest
    rows: Sequence[Row]
    cells: Sequence[Row]
    detail: Report
    rounds: dict[str, list[Span]] = field(default_factory=dict)


def answers(asked: PageRequest, progress: Callable[[int], None] = lambda done: None) -> Page:
    """Ask for everything that a page shows; `progress` is told how many settings are done.

    Raises:
        SettingError: No policy can run, or options contradict each other.
    """
    sweeper, done = Sweeper(), 0

    def rows(batches: Sequence[int], acceptance: float | Path | None) -> list[Row]:
        nonlocal done
        found = []
        for request in requests(asked, batches, acceptance):
            found.append(sweeper.row(request))
            done += 1
            progress(done)
        return found

    every = rows(sorted({*asked.batches, asked.batch}), asked.acceptance)
    here = [row for row in best(every) if row["batch"] == asked.batch]
    if not here:
        raise SettingError(str(every[0]["refused"]))
    cells = [{**row, "at": a} for a in asked.acceptances for row in rows(asked.batches, a)]
    fastest = max(here, key=lambda row: (row["policy"] != "ar", row["tokens_per_second"]))
    detail = report_of(
        request_of(asked, fastest["policy"], fastest["lookahead"], asked.batch, asked.acceptance)
    )
    rounds = {row["setting"]: first_rounds(asked, row) for row in here}
    return Page(asked, every, cells, detail, rounds)


def count(asked: PageRequest) -> int:
    """How many settings are asked for."""
    batches = len({*asked.batches, asked.batch}) + len(asked.acceptances) * len(asked.batches)
    return batches * sum(len(lookaheads(asked, policy)) for policy in asked.policies)


def lookaheads(asked: PageRequest, policy: str) -> Sequence[int | None]:
    """Those that are tried of a policy."""
    return asked.lookaheads if "lookahead" in find_policy(policy).knobs else (None,)


def requests(
    asked: PageRequest, batches: Iterable[int], acceptance: float | Path | None
) -> Iterable[SimulationRequest]:
    """One per batch, policy and lookahead."""
    for batch in batches:
        for policy in asked.policies:
            for depth in lookaheads(asked, policy):
                yield request_of(asked, policy, depth, batch, acceptance)


def request_of(
    asked: PageRequest, policy: str, lookahead: int | None, batch: int, acceptance: float | Path | None
) -> SimulationRequest:
    """What `simulate` would be asked."""
    pair = {each.name: getattr(asked, each.name) for each in fields(PairOptions)}
    if isinstance(acceptance, float):
        pair["run_length"] = None  # the map's acceptance takes its place
    query = settings_query(policy, lookahead=lookahead)
    return SimulationRequest(
        **pair,
        query=query,
        batch=batch,
        hw=asked.hw,
        acceptance=acceptance,
        prompt_length=asked.prompt_length,
    )


def best(rows: Iterable[Row]) -> list[Row]:
    """The fastest row of each policy at each batch and acceptance."""
    found: dict[Any, Row] = {}
    for row in rows:
        key = (row["policy"], row["batch"], row.get("at"))
        if (
            row["refused"] is None
            and row["tokens_per_second"] > found.get(key, {"tokens_per_second": 0.0})["tokens_per_second"]
        ):
            found[key] = row
    return list(found.values())


def first_rounds(asked: PageRequest, row: Row) -> list[Span]:
    """Spans from the first verification after all prefills on, `ROUNDS` of them."""
    request = request_of(asked, row["policy"], row["lookahead"], row["batch"], asked.acceptance)
    request = replace(request, requests=row["batch"], max_tokens=48 if asked.hw is None else None)
    spans = report_spans(request)
    target = [s for s in spans if s.device == "target" and "prefill" not in s.name]
    if len(target) <= ROUNDS:
        return []
    start, end = target[0].start_s, target[ROUNDS].start_s
    inside = [s for s in spans if s.end_s > start and s.start_s < end]
    return [
        replace(s, start_s=max(s.start_s, start) - start, end_s=min(s.end_s, end) - start) for s in inside
    ]


def report_spans(request: SimulationRequest) -> Sequence[Span]:
    """The spans of a run."""
    from simulator.request import build_scenario

    scenario, _ = build_scenario(request)
    return simulate(scenario, request.query.settings, timeline=True).spans
