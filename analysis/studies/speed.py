"""Speed of the simulator itself: simulated output tokens per second of one core, and where its time goes.

A benchmark, not a test: the numbers depend on the machine and are reported with their spread.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.study import POSITIVE, Plan, Study, option
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import read_trace
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin, replay

TOKENS = 60_000
PARTS = {
    "simpy": "event queue and processes (simpy)",
    "policies": "policy, rows and round log",
    "tokens": "token model",
    "costs": "latency look-ups and noise",
    "devices": "devices and contention",
    "world": "answers",
    "other": "numpy and the rest",
}


SETTINGS = configure("saguaro", lookahead=4, fanout=(3,))


def scenarios(batch: int) -> dict[str, Scenario]:
    """A textbook world and the shipped profile and trace, `TOKENS` tokens each."""
    length = 1000
    coins = coin(
        0.8, exponent=1.0, requests=max(batch, TOKENS // length), length=length, prompt_length=64, seed=0
    )
    tokens = replay(read_trace(find_trace("cpu2-x5"), columns=("draft_rank", "draft_top_ids")))
    profile, requests = load_profile(find_profile("cpu2-x5")), max(batch, TOKENS // 128)
    return {
        "textbook": Scenario(coins, textbook=TextbookCosts(1.0, 0.1), batch=batch),
        "cpu2-x5": Scenario(tokens, profile=profile, batch=batch, requests=requests),
    }


def rate(scenario: Scenario, repeats: int) -> dict[str, float]:
    """Simulated tokens per second of CPU time: median, smallest and largest of `repeats` runs."""
    rates = []
    for _ in range(repeats + 1):
        started = time.process_time()
        summary = simulate(scenario, SETTINGS).summary
        rates.append(summary.tokens / (time.process_time() - started))
    kept = np.array(rates[1:])  # the first run fills the look-up tables
    median = float(np.median(kept))
    return {
        "tokens_per_second": median,
        "min": float(kept.min()),
        "max": float(kept.max()),
        "microseconds_per_round": 1e6 * summary.tokens / median / summary.batch_rounds,
    }


def where(scenario: Scenario) -> dict[str, float]:
    """Share of a run's time per part of the program (by cProfile, which inflates small functions)."""
    profiler = cProfile.Profile()
    profiler.runcall(simulate, scenario, SETTINGS)
    spent = dict.fromkeys(PARTS, 0.0)
    stats: Any = pstats.Stats(profiler)
    for (file, _, _), (_, _, own, _, _) in stats.stats.items():
        path = Path(file)
        ours = (path.parent.name, path.stem) if "simulator" in path.parts else ()
        names = (*(name for name in ("simpy", "policies") if name in path.parts), *ours)
        spent[next((name for name in names if name in PARTS), "other")] += own
    total = sum(spent.values())
    return {f"share_{part}": seconds / total for part, seconds in spent.items()}


@dataclass(frozen=True)
class SpeedPlan(Plan):
    """How often."""

    hw: tuple[str, ...] = ()
    repeats: int = option(7, "Repetitions.", type=POSITIVE)


def answer(bench: Bench) -> list[Row]:
    """Simulated output tokens per second for saguaro at batch 1 and 16."""
    return [
        {"world": name, "batch": batch, **rate(scenario, bench.plan.repeats), **where(scenario)}
        for batch in (1, 16)
        for name, scenario in scenarios(batch).items()
    ]


def show(results: Results) -> Iterator[Any]:
    """A line per world and batch, and where the time goes."""
    for row in results.rows:
        name = f"{row['world']}, batch {row['batch']}"
        yield (
            f"{name:>20}: {row['tokens_per_second']:>10,.0f} simulated tokens/s "
            f"({row['min']:,.0f} to {row['max']:,.0f}), {row['microseconds_per_round']:.0f} us per round"
        )
        parts = sorted(PARTS, key=lambda part: -float(row[f"share_{part}"]))
        yield " " * 22 + ", ".join(f"{PARTS[part]} {row[f'share_{part}']:.0%}" for part in parts)


STUDY = Study(
    "speed",
    "How fast is the simulator itself, and where does its time go?",
    SpeedPlan,
    answer=answer,
    show=show,
)
