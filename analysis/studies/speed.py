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


def scenarios(batch: int) -> dict[str, Scenario]:
    """A textbook world and the shipped profile and trace, `TOKENS` tokens each."""
    length = 1000
    coins = coin(
        0.8,
        exponent=1.0,
        requests=max(batch, TOKENS // length),
        length=length,
        prompt_length=64,
        seed=0,
    )
    trace = read_trace(find_trace("cpu2-x5"), columns=("draft_rank", "draft_top_ids"))
    return {
        "textbook": Scenario(tokens=coins, textbook=TextbookCosts(1.0, 0.1), batch=batch),
        "cpu2-x5": Scenario(
            tokens=replay(trace),
            profile=load_profile(find_profile("cpu2-x5")),
            batch=batch,
            requests=max(batch, TOKENS // 128),
        ),
    }


def rate(scenario: Scenario, repeats: int) -> dict[str, float]:
    """Simulated tokens per second of CPU time: median, smallest and largest of `repeats` runs."""
    settings = configure("saguaro", lookahead=4, fanout=(3,))
    rates, rounds = [], 0.0
    for _ in range(repeats + 1):
        started = time.process_time()
        summary = simulate(scenario, settings).summary
        elapsed = time.process_time() - started
        rates.append(summary.tokens / elapsed)
        rounds = summary.batch_rounds
    kept = np.array(rates[1:])  # the first run fills the look-up tables
    return {
        "tokens_per_second": float(np.median(kept)),
        "min": float(kept.min()),
        "max": float(kept.max()),
        "microseconds_per_round": float(1e6 * summary.tokens / np.median(kept) / rounds),
    }


def where(scenario: Scenario) -> dict[str, float]:
    """Share of a run's time per part of the program (by cProfile, which inflates small functions)."""
    profiler = cProfile.Profile()
    profiler.runcall(simulate, scenario, configure("saguaro", lookahead=4, fanout=(3,)))
    spent = dict.fromkeys(PARTS, 0.0)
    stats: Any = pstats.Stats(profiler)
    for (file, _, _), (_, _, own, _, _) in stats.stats.items():
        spent[_part(file)] += own
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()}


def _part(file: str) -> str:
    path = Path(file)
    if "simpy" in path.parts:
        return "simpy"
    if "policies" in path.parts:
        return "policies"
    if "simulator" in path.parts:
        found = [part for part in (path.parent.name, path.stem) if part in PARTS]
        return found[0] if found else "other"
    return "other"


@dataclass(frozen=True)
class SpeedPlan(Plan):
    """How often."""

    hw: tuple[str, ...] = ()
    repeats: int = option(7, "Repetitions.", type=POSITIVE)


def answer(bench: Bench) -> list[Row]:
    """Simulated output tokens per second for saguaro at batch 1 and 16."""
    rows: list[Row] = []
    for batch in (1, 16):
        for name, scenario in scenarios(batch).items():
            shares = {f"share_{part}": share for part, share in where(scenario).items()}
            rows.append({"world": name, "batch": batch, **rate(scenario, bench.plan.repeats), **shares})
    return rows


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
