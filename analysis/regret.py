"""What following `recommend` costs and saves: its choice against everything that was tried, live.

`python -m analysis.regret --hw cpu2-x5,cpu2-x20`: per profile and prompt category, the choice is made from
the calibration's prompts of that category alone; then it and a grid of settings run live on held-out
prompts.  Regret is how much slower the choice was than the fastest setting tried (zero if it was that);
the gain is over what a careful person without a simulator would take everywhere, SD with K = 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analysis.sources import Sources, load_sources, only
from hardware_profiles.files import atomic_write, to_json
from policies.commandline import HELP, Refusal, checked_command, split_list
from policies.registry import Settings, configure

if TYPE_CHECKING:
    from calibrate.live.transport.world import LiveWorld
    from calibrate.prompts import Prompt

DEFAULT_CHOICE = configure("sd", lookahead=5)
GRID: tuple[Settings, ...] = (
    configure("ar"),
    *(configure("sd", lookahead=k) for k in (2, 3, 5, 7)),
    *(configure("pearl", lookahead=k) for k in (3, 5)),
    *(
        configure("saguaro", lookahead=k, fanout=(f,), backup=backup)
        for k in (3, 5)
        for f in (1, 3)
        for backup in ("primary", "plain")
    ),
)
"""Settings tried live beside the choice."""


@dataclass(frozen=True)
class Case:
    """One prompt category on one profile.

    Attributes:
        profile: Name of the profile.
        category: Of the prompts.
        choice: What `recommend` chose.
        predicted: Its predicted speedup over plain decoding: (low, middle, high).
        speedups: Measured speedups over plain decoding by label, the choice among them.
    """

    profile: str
    category: str
    choice: str
    predicted: tuple[float, float, float]
    speedups: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest setting tried."""
        return max(self.speedups, key=lambda label: self.speedups[label])

    @property
    def regret(self) -> float:
        """Share of the fastest setting's speed that the choice misses."""
        return 1.0 - self.speedups[self.choice] / self.speedups[self.best]

    @property
    def gain(self) -> float:
        """Speed of the choice over that of SD with K = 5, less 1."""
        return self.speedups[self.choice] / self.speedups[DEFAULT_CHOICE.label] - 1.0

    @property
    def default_regret(self) -> float:
        """Share of the fastest setting's speed that SD with K = 5 misses."""
        return 1.0 - self.speedups[DEFAULT_CHOICE.label] / self.speedups[self.best]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "profile": self.profile,
            "category": self.category,
            "choice": self.choice,
            "predicted_speedup_vs_ar": dict(zip(("low", "middle", "high"), self.predicted, strict=True)),
            "measured_speedup_vs_ar": self.speedups[self.choice],
            "best": self.best,
            "best_speedup_vs_ar": self.speedups[self.best],
            "regret": self.regret,
            "gain_over_sd5": self.gain,
            "regret_of_sd5": self.default_regret,
            "tried": self.speedups,
        }


def choose(sources: Sources, category: str) -> tuple[Settings, tuple[float, float, float]]:
    """The setting recommended for a category (two devices, one request), and its predicted speedup."""
    from analysis.recommend.answer import Query, recommend

    found = recommend(only(sources, category), Query(crossovers=False), lambda stage, done, total: None)
    margin = found.winner.over_ar
    return found.winner.choice.settings, (margin.low, margin.middle, margin.high)


def cases_of(
    name: str, *, count: int, limit: int, repeats: int, seed: int, progress: Callable[[str, int, int], None]
) -> list[Case]:
    """Every category of a profile: choose, then run live on held-out prompts.

    Args:
        name: Profile.
        count: Held-out prompts per category.
        limit: Most tokens per prompt.
        repeats: Live repetitions.
        seed: Keys the order of runs.
        progress: (stage, done, total).
    """
    from analysis.execute import profiled_job
    from calibrate.job import worker_specs
    from calibrate.live.transport.world import LiveWorld
    from calibrate.prompts import find_prompts, load_prompts

    sources = load_sources(name)
    trace = sources.trace(0.0)
    categories = list(dict.fromkeys(r.category for r in trace.requests))
    choices = {}
    for done, category in enumerate(categories):
        choices[category] = choose(sources, category)
        progress("recommendations", done + 1, len(categories))
    job = profiled_job(sources, limit=limit, seed=seed)
    prompts = load_prompts(find_prompts("heldout"))
    with LiveWorld(*worker_specs(job)) as world:
        return [
            Case(
                profile=sources.profile.name,
                category=category,
                choice=choice.label,
                predicted=predicted,
                speedups=_live(
                    world, job, choice, _some(prompts, category, count), repeats=repeats, progress=progress
                ),
            )
            for category, (choice, predicted) in choices.items()
        ]


def _some(prompts: Sequence[Prompt], category: str, count: int) -> list[Prompt]:
    chosen = [prompt for prompt in prompts if prompt.category == category][:count]
    if not chosen:
        raise ValueError(f"no held-out prompt of category {category!r}")
    return chosen


def _live(
    world: LiveWorld,
    job: Any,
    choice: Settings,
    prompts: list[Prompt],
    *,
    repeats: int,
    progress: Callable[[str, int, int], None],
) -> dict[str, float]:
    """Measured speedup over plain decoding of the grid and the choice, by label."""
    from analysis.livecells import measured, run_settings
    from calibrate.calibration import record

    trace = record(job, prompts, "heldout", progress)
    settings = [(s, 1) for s in dict.fromkeys((*GRID, choice))]
    runs = run_settings(
        world,
        settings,
        {0.0: trace},
        repeats=repeats,
        seed=job.seed,
        progress=lambda done, total: progress(f"live, {prompts[0].category}", done, total),
    )
    ar = measured(runs, (configure("ar"), 1)).tokens_per_second
    return {s.label: measured(runs, (s, batch)).tokens_per_second / ar for s, batch in settings}


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    """Mean and worst regret of the recommendations, and of SD with K = 5."""
    regrets, defaults = [c.regret for c in cases], [c.default_regret for c in cases]
    return {
        "cases": len(cases),
        "mean_regret": sum(regrets) / len(cases),
        "worst_regret": max(regrets),
        "mean_regret_of_sd5": sum(defaults) / len(cases),
        "worst_regret_of_sd5": max(defaults),
        "mean_gain_over_sd5": sum(c.gain for c in cases) / len(cases),
        "predicted_interval_holds": sum(
            c.predicted[0] <= c.speedups[c.choice] <= c.predicted[2] for c in cases
        ),
    }


def as_json(cases: Sequence[Case]) -> str:
    """One JSON object."""
    return to_json({"summary": summary(cases), "cases": [c.as_dict() for c in cases]}, indent=2)


@checked_command(context_settings=HELP)
@click.option("--hw", default="cpu2-x5", show_default=True, callback=split_list, help="Profiles, a list.")
@click.option("--count", default=2, show_default=True, help="Held-out prompts per category.")
@click.option("--max-tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(min=1), help="Live repetitions.")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON object here.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def main(**options: Any) -> None:
    """Run what `recommend` chooses, and everything else, live: how much is missed, how much gained?"""
    from calibrate.display import show_progress

    try:
        with show_progress() as progress:
            cases = [
                case
                for name in options["hw"]
                for case in cases_of(
                    name,
                    count=options["count"],
                    limit=options["max_tokens"],
                    repeats=options["repeats"],
                    seed=options["seed"],
                    progress=progress,
                )
            ]
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        raise Refusal(str(error)) from error
    if options["out"]:
        options["out"].parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(options["out"]) as file:
            file.write(as_json(cases) + "\n")
    if options["as_json_"]:
        click.echo(as_json(cases))
        return
    for case in cases:
        click.echo(
            f"{case.profile} {case.category:>10}: {case.choice} {case.speedups[case.choice]:.2f}x "
            f"(predicted {case.predicted[0]:.2f} to {case.predicted[2]:.2f}); best tried {case.best} "
            f"{case.speedups[case.best]:.2f}x; regret {case.regret:.1%}, SD K=5 {case.default_regret:.1%}"
        )
    found = summary(cases)
    click.echo(
        f"regret: mean {found['mean_regret']:.1%}, worst {found['worst_regret']:.1%}; always SD K=5: mean "
        f"{found['mean_regret_of_sd5']:.1%}, worst {found['worst_regret_of_sd5']:.1%}"
    )


if __name__ == "__main__":
    main()
