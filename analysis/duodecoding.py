"""DuoDecoding's tables and figures in kind, on the shipped pair: law, simulated, live.

`python -m analysis.duodecoding`: the drafting budget around the cost ratio (Table 3), in worlds that grow
less even and on a profile.  With `--live` also one to four sequences against the threshold (Table 2), what
the threshold predicts (Table 4, Figure 5), the time to the first token (Figure 3) and what a mean iteration
is (Figure 4), each of them measured, and simulated on the content of the live runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.commands import deliver
from analysis.duodecoding_budget import (
    PAPERS_WORLDS,
    Budget,
    Progress,
    around,
    profile_budgets,
    uneven_budget,
)
from analysis.sources import Sources, load_sources
from hardware_profiles.jsonfile import to_json
from policies.commandline import HELP, checked_command, refusals, wide_console
from policies.laws.duo import ttft_ratio
from policies.registry import MAX_LOOKAHEAD, Settings, configure
from simulator.law import law_inputs

if TYPE_CHECKING:
    from analysis.duodecoding_live import Line

SD_LOOKAHEAD = 4
"""The paper's speculative decoding processes 5 tokens per iteration (Figure 4)."""
STATIC = ("1", "2", "3", "4")
UNEVEN_BUDGETS = (4, 8, 10, 12, 14, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28)
NOTHING: Progress = lambda stage, done, total: None  # noqa: E731
"""Shows no progress."""


@dataclass(frozen=True)
class Report:
    """Everything found.

    Attributes:
        profile: Its name.
        uneven: Budgets of the worlds of the paper's cost ratio.
        budgets: Budgets of the profile.
        lines: Settings run live; empty without `--live`.
    """

    profile: str
    uneven: Sequence[Budget]
    budgets: Sequence[Budget]
    lines: Sequence[Line] = field(default_factory=tuple)

    def as_json(self) -> str:
        """One JSON object."""
        found: dict[str, Any] = {
            "profile": self.profile,
            "uneven_worlds": [budget.as_dict() for budget in self.uneven],
            "profile_budgets": [budget.as_dict() for budget in self.budgets],
            "settings": [line.as_dict() for line in self.lines],
        }
        if self.lines:
            found["first_token"] = {world: self.first_token(world) for world in ("simulated", "measured")}
        return to_json(found, indent=2)

    def first_token(self, world: str) -> dict[str, float]:
        """Times to the first token over plain decoding's, by setting; and DuoDecoding's over SD's."""
        times = {line.settings.label: getattr(line, f"{world}_round").first_token_s for line in self.lines}
        plain = times[configure("ar").label]
        found = {label: seconds / plain for label, seconds in times.items()}
        sd, duo = (self._first(policy) for policy in ("sd", "duo"))
        if sd is not None and duo is not None:
            found["duo over sd"] = ttft_ratio(times[duo], times[sd])
        return found

    def _first(self, policy: str) -> str | None:
        """Label of a policy's first setting."""
        return next((line.settings.label for line in self.lines if line.settings.policy == policy), None)


def settings_of(ratio: float) -> list[Settings]:
    """What `--live` runs: SD, the threshold, one to four sequences, and one around the cost ratio."""
    middle = min(MAX_LOOKAHEAD, max(1, round(ratio)))
    budgets = [k for k in range(middle - 2, middle + 3) if 1 <= k <= MAX_LOOKAHEAD]
    return [
        configure("sd", lookahead=SD_LOOKAHEAD),
        configure("duo", lookahead=middle),
        *(configure("duo", lookahead=middle, sequences=n) for n in STATIC if n == "1" or int(n) < middle),
        *(configure("duo", lookahead=k, sequences="1") for k in budgets if k != middle),
    ]


def investigate(
    sources: Sources,
    *,
    tokens: int,
    seed: int,
    live: Callable[[Sequence[Settings]], Sequence[Line]] | None = None,
    progress: Progress = NOTHING,
) -> Report:
    """All that the options ask for.

    Args:
        sources: Profile and its recording.
        tokens: Tokens to simulate per budget in the uneven worlds.
        seed: Of coins and jitter.
        live: Runs settings live; None: nothing is run.
        progress: (stage, done, total).
    """
    uneven = []
    for done, world in enumerate(PAPERS_WORLDS):
        progress("uneven worlds", done, len(PAPERS_WORLDS))
        uneven.append(uneven_budget(world, UNEVEN_BUDGETS, tokens=tokens, seed=seed))
    progress("uneven worlds", len(PAPERS_WORLDS), len(PAPERS_WORLDS))
    scenario = sources.scenario(0.0, seed=seed)
    told = law_inputs(scenario)
    ratio = told.target_s / told.draft_s
    budgets = profile_budgets(scenario, around(ratio, MAX_LOOKAHEAD), progress=progress)
    lines = live(settings_of(ratio)) if live is not None else ()
    return Report(sources.profile.name, uneven, budgets, lines)


def _live_runner(
    sources: Sources, options: dict[str, Any], progress: Progress
) -> Callable[[Sequence[Settings]], Sequence[Line]] | None:
    if not options["live"]:
        return None
    from analysis.duodecoding_live import run_lines
    from calibrate.prompts import find_prompts, load_prompts, spread

    prompts = spread(load_prompts(find_prompts(options["prompts"])), options["count"])
    return lambda settings: run_lines(
        sources,
        settings,
        prompts,
        limit=options["max_tokens"],
        repeats=options["repeats"],
        seed=options["seed"],
        progress=progress,
    )


def print_report(report: Report) -> None:
    """Tables for people."""
    from analysis.duodecoding_tables import tables

    console = wide_console()
    for table in tables(report):
        console.print(table)


@checked_command(context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, help="Profile.")
@click.option("--live", is_flag=True, help="Run the settings on the profile's pair, too.")
@click.option("--prompts", default="heldout", show_default=True, help="Shipped set or Spec-Bench JSONL.")
@click.option("--count", default=8, show_default=True, type=click.IntRange(min=1), help="Live prompts.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option(
    "--tokens", default=20_000, show_default=True, type=click.IntRange(min=100), help="Per simulated budget."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """DuoDecoding's budget, sequences and first token: law, simulated and live."""
    with refusals("--live runs models and --plot draws: pip install 'spectwin[live,plot]'"):
        _answer(options)


def _answer(options: dict[str, Any]) -> None:
    from calibrate.display import show_progress

    with nullcontext(NOTHING) if options["as_json_"] else show_progress() as progress:
        sources = load_sources(options["hw"])
        report = investigate(
            sources,
            tokens=options["tokens"],
            seed=options["seed"],
            live=_live_runner(sources, options, progress),
            progress=progress,
        )
    if options["plot"]:
        from analysis.duodecoding_tables import plot

        plot(report, options["plot"])
    deliver(report.as_json(), options, show=lambda: print_report(report))


if __name__ == "__main__":
    main()
