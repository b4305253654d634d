"""Running an experiment on one or more profiles."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from analysis.experiments.bench import Bench, Progress, Row
from analysis.experiments.store import Outcome
from analysis.sources import load_sources

EXPERIMENTS = ("budget", "backup", "ratio", "temperature", "scale", "pareto", "drafts")


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run an experiment.

    Attributes:
        name: Which one.
        profiles: On what; only `ratio` makes sense of several.
        live: Whether to measure, too.
        count: Prompts; None: six live, else all.
        limit: Most tokens per request; None: 64 live, else as recorded.
        repeats: Live repetitions.
        seed: Keys latency noise, luck and the order of live runs.
    """

    name: str
    profiles: tuple[str, ...]
    live: bool = False
    count: int | None = None
    limit: int | None = None
    repeats: int = 2
    seed: int = 0


def module_of(name: str) -> ModuleType:
    """The module of an experiment."""
    return import_module(f"analysis.experiments.{name}")


def run_experiment(plan: Plan, progress: Progress) -> Outcome:
    """Simulate, measure if asked to, and say what is seen.

    Raises:
        SettingError: A trace or cores that the experiment needs are not there.
    """
    module = module_of(plan.name)
    rows: list[Row] = []
    live_count = max(6, getattr(module, "WIDEST", 1))
    count = plan.count or (live_count if plan.live else getattr(module, "PROMPTS", None))
    limit = plan.limit or (64 if plan.live else None)
    for name in plan.profiles:
        sources = load_sources(name)
        with ExitStack() as stack:
            bench = Bench(sources, count=count, limit=limit, seed=plan.seed, progress=progress)
            if plan.live:
                from analysis.cli import profiled_job
                from analysis.experiments.lab import Lab

                lab = Lab(
                    profiled_job(sources, limit=plan.limit or 64, seed=plan.seed),
                    widest=getattr(module, "WIDEST", 1),
                    drafts=getattr(module, "DRAFTS", 1),
                    repeats=plan.repeats,
                )
                bench.lab = stack.enter_context(lab)
            rows += module.run(bench)
    how = {"prompts": count, "max_tokens": limit, "repeats": plan.repeats if plan.live else None}
    return Outcome(plan.name, module.title(rows), plan.profiles, plan.live, rows, how)
