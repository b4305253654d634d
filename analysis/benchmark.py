"""How fast the simulator itself is: simulated output tokens per second of CPU time, by both engines.

    python -m analysis.benchmark            # tables in Markdown
    python -m analysis.benchmark --json
    python -m analysis.benchmark --scale    # seconds and memory as the work grows
    python -m analysis.benchmark --search   # what `recommend` misses of trying everything on all prompts

Machines differ, and one machine from minute to minute, so that every run is measured beside two others that
anybody can repeat: simpy's bare event loop, and a scalar loop in plain Python over a recorded trace.  All
take turns, once around per repetition.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import simpy

from hardware_profiles.files import to_json
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import Trace, read_trace, write_trace
from policies.commandline import HELP, POSITIVE, checked_command, click_options, option, with_options
from policies.registry import configure
from simulator.costs import TextbookCosts
from simulator.run import Engine, Scenario, simulate
from simulator.tokens import TokenModel, coin, replay

SETTINGS = configure("saguaro", lookahead=4, fanout=(3,))
PROFILE = "cpu2-x5"
LENGTH = 1000
"""Tokens of a request of coins."""
SCALE: Mapping[str, tuple[int, ...]] = {
    "tokens": (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
    "batch": (1, 4, 16, 64, 256, 512),
    "positions": (10_000, 100_000, 1_000_000),
    "positions, one category": (10_000, 100_000, 1_000_000),
}
"""What grows: simulated tokens; rows, at a million tokens; positions of the trace, all of them simulated, and
as many of which one category's are read and simulated."""
CATEGORY = "code"
SEARCHED = (("cpu2-x5", 1), ("cpu2-x5", 8), ("cpu2-x20", 1))
"""Profiles and batches at which the search is compared with trying everything."""
TRIED, BY_EVENTS = 1_000, 36
"""Settings of the full grid, and how many of them the event world simulates, too."""
WORLDS = ("textbook_1", "textbook_16", "profile_1", "profile_16")
SHORT, LONG = 30_000, 1_000_000
"""Simulated tokens of a run of the event world, and of the compiled replay."""


@dataclass(frozen=True)
class BenchmarkQuery:
    """How often, and how much."""

    repeats: int = option(7, "Repetitions, of which the median counts.", type=POSITIVE)
    event_tokens: int = option(SHORT, "Simulated tokens of a run of the event world.", type=POSITIVE)
    compiled_tokens: int = option(LONG, "Simulated tokens of a compiled replay.", type=POSITIVE)


@dataclass
class Worlds:
    """The worlds that are simulated, by name, of about so many tokens.

    Args:
        tokens: Simulated tokens of a run.
    """

    tokens: int
    engine: Engine

    @cached_property
    def recorded(self) -> TokenModel:
        """The shipped trace."""
        return replay(read_trace(find_trace(PROFILE), columns=("draft_rank", "draft_top_ids")))

    def of(self, name: str) -> Scenario:
        """A world, e.g. `profile_16`: costs and batch."""
        costs, _, rows = name.partition("_")
        batch = int(rows)
        if costs == "textbook":
            requests = max(2 * batch, self.tokens // LENGTH)
            coins = coin(0.8, exponent=1.0, requests=requests, length=LENGTH, prompt_length=64, seed=0)
            textbook = TextbookCosts(1.0, 0.1)
            return Scenario(coins, textbook=textbook, batch=batch, requests=requests, engine=self.engine)
        return _served(self.recorded, self.tokens, batch, self.engine)


def _served(model: TokenModel, tokens: int, batch: int, engine: Engine) -> Scenario:
    """About so many tokens of a recording on the profile."""
    each = sum(request.limit for request in model.requests) / len(model.requests)
    requests = max(2 * batch, round(tokens / each))
    profile = load_profile(find_profile(PROFILE))
    return Scenario(model, profile=profile, batch=batch, requests=requests, engine=engine)


def per_second(work: Callable[[], float]) -> float:
    """What `work` returns, per second of CPU time that it takes."""
    started = time.process_time()
    done = work()
    return done / (time.process_time() - started)


def simpy_timeouts(count: int = 100_000) -> float:
    """One process that waits for one timeout after the other."""

    def process(env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        while True:
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(process(env))
    env.run(until=count)
    return float(count)


def scalar_tokens(runs: Sequence[int], needs: Sequence[int], total: int = 200_000) -> float:
    """A hand-written loop over a trace: saguaro at batch 1, constant times, one position after the other."""
    lookahead, fanout, now, position, emitted, n = 4, 3, 0.4, 0, 0, len(runs)
    while emitted < total:
        accepted = min(lookahead, runs[position])
        position = (position + accepted + 1) % n
        emitted += accepted + 1
        now += 1.0 if needs[position - 1] <= fanout else 1.4
    return float(emitted)


def benchmark(query: BenchmarkQuery, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Medians of all, with their spread.

    `compiled` counts the time pass alone, as in a second run with other latencies; `compiled_uncached` lays
    out the rounds, too.
    """
    event, compiled = Worlds(query.event_tokens, "event"), Worlds(query.compiled_tokens, "compiled")
    scenarios = {
        "event": {name: event.of(name) for name in WORLDS},
        "compiled": {name: compiled.of(name) for name in WORLDS},
    }
    recorded = event.recorded
    runs, needs = recorded.run.tolist(), recorded.need_free.tolist()
    measured: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        measured.setdefault(name, []).append(rate)

    for repeat in range(query.repeats + 1):
        for engine, worlds in scenarios.items():
            for name, scenario in worlds.items():
                if engine == "compiled":
                    scenario.tokens.replays.clear()
                    note(f"compiled_uncached.{name}", _tokens_per_second(scenario))
                note(f"{engine}.{name}", _tokens_per_second(scenario))
        note("simpy_timeouts_per_second", per_second(simpy_timeouts))
        note("scalar_tokens_per_second", per_second(lambda: scalar_tokens(runs, needs)))
        progress(repeat, query.repeats)
        if repeat == 0:
            measured.clear()  # the first round compiles, and fills the look-up tables
    return _medians(measured) | {"spread": _spreads(measured), "repeats": query.repeats}


def scale(axis: str, value: int, folder: str) -> dict[str, Any]:
    """CPU seconds and peak memory of one simulation with a profile, in a process that did nothing before.

    Returns:
        `axis` and `value`; `open_s` to read the trace and make the scenario ready, `seconds` to simulate it;
        `megabytes` resident at most, and `base_megabytes` of them for Python and its packages.
    """
    base, started = _resident(), time.process_time()
    tokens = value if axis != "batch" else SCALE["tokens"][2]
    batch = value if axis == "batch" else 16
    columns = ("draft_rank", "draft_top_ids")
    path = f"{folder}/{value}.parquet" if axis.startswith("positions") else find_trace(PROFILE)
    trace = read_trace(path, columns=columns, category=CATEGORY if "category" in axis else None)
    tokens = min(tokens, len(trace)) if axis.startswith("positions") else tokens
    model = replay(trace)
    scenario = _served(model, tokens, batch, "auto")
    opened = time.process_time()
    simulate(scenario, SETTINGS)
    return {
        "axis": axis,
        "value": value,
        "open_s": opened - started,
        "seconds": time.process_time() - opened,
        "megabytes": _resident(),
        "base_megabytes": base,
    }


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_long_trace(positions: int, folder: str) -> None:
    """The shipped trace, so often that it has so many positions; the requests are new ones."""
    short = read_trace(find_trace(PROFILE))
    times, count = -(-positions // len(short)), len(short.requests)
    requests = [each.but(id=i) for i, each in enumerate(short.requests * times)]
    columns = {name: np.concatenate([column] * times) for name, column in short.columns.items()}
    lengths = np.diff(short.offsets)
    columns["request"] = np.repeat(np.arange(count * times), np.tile(lengths, times))
    write_trace(Trace.of(requests, short.meta, **columns), f"{folder}/{positions}.parquet")


def scales(progress: Callable[[int], None]) -> list[dict[str, Any]]:
    """All of `SCALE`, one after the other."""
    found = []
    spawn = get_context("spawn")
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool,
    ):
        for axis, values in SCALE.items():
            for value in values:
                if axis == "positions":
                    pool.submit(write_long_trace, value, folder).result()
                found.append(pool.submit(scale, axis, value, folder).result())
                progress(1)
    return found


def searched(hw: str, batch: int, tried: int = TRIED, by_events: int = BY_EVENTS) -> dict[str, Any]:
    """What `recommend` finds by rejection on few prompts, beside simulating all that it tried on all prompts.

    Returns:
        `settings` tried; `found` and `best`, the winners; `regret`, the share of the best one's speed that
        the one found misses; of `by_events` settings the winners of `both` engines, and by how much any
        speed differs between them at most.
    """
    from analysis.recommend.answer import Query
    from analysis.recommend.search import FULL, fewer, refine

    query = Query(hw=hw, batch=batch)
    search = query.search(query.sources())
    found = refine(search, FULL, tried)[0]
    settings = [each.settings for each in search.tried]
    every = search.elsewhere().best(settings)
    speeds = {each.settings: each.tokens_per_second for each in every}
    few = fewer(settings, by_events)
    events = search.elsewhere(replace(search.scenario, engine="event")).best(few)
    rates = {each.settings: each.tokens_per_second for each in events}
    return {
        "hw": hw,
        "batch": batch,
        "settings": len(every),
        "found": found.settings.label,
        "best": every[0].settings.label,
        "regret": 1.0 - speeds[found.settings] / every[0].tokens_per_second,
        "by_events": len(rates),
        "both": [max(rates, key=lambda each: speeds[each]).label, events[0].settings.label],
        "differ": max(abs(rate / speeds[each] - 1.0) for each, rate in rates.items()),
    }


def _tokens_per_second(scenario: Scenario) -> float:
    return per_second(lambda: simulate(scenario, SETTINGS).summary.tokens)


def _medians(measured: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rates in measured.items():
        group, _, world = name.partition(".")
        median = float(np.median(rates))
        if world:
            found.setdefault(group, {})[world] = median
        else:
            found[group] = median
    return found


def _spreads(measured: dict[str, list[float]]) -> dict[str, list[float]]:
    """Smallest and largest of the repetitions."""
    return {name: [min(rates), max(rates)] for name, rates in measured.items()}


@checked_command("benchmark", context_settings=HELP)
@with_options(click_options(BenchmarkQuery))
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("--scale", "growing", is_flag=True, help="Seconds and memory as the work grows, in its place.")
@click.option("--search", "seeking", is_flag=True, help="The search of recommend against trying everything.")
def main(*, machine: bool, growing: bool, seeking: bool, **options: Any) -> None:
    """Measure the output tokens that the simulator replays per second of CPU time, beside simpy's loop."""
    query = BenchmarkQuery(**options)
    steps = len(SEARCHED) if seeking else sum(map(len, SCALE.values())) if growing else query.repeats
    with click.progressbar(length=steps, hidden=machine, file=sys.stderr) as bar:
        found: Any
        if seeking:
            found = []
            for hw, batch in SEARCHED:
                found.append(searched(hw, batch))
                bar.update(1)
        elif growing:
            found = scales(bar.update)
        else:
            found = benchmark(query, lambda done, _: bar.update(1 if done else 0))
    if machine:
        click.echo(to_json(found, indent=2))
    else:
        table = _search_table if seeking else _scale_table if growing else _speed_table
        click.echo("\n".join(table(found)))


def _speed_table(found: dict[str, Any]) -> list[str]:
    timeouts = found["simpy_timeouts_per_second"]
    lines = [f"| engine | world | tokens per simpy timeout | tokens/s (range of {found['repeats']}) |"]
    lines.append("|---|---|--:|--:|")
    names = {
        "event": "event world",
        "compiled": "compiled, content kept",
        "compiled_uncached": "compiled, laid out",
    }
    for engine, name in names.items():
        for world in WORLDS:
            low, high = found["spread"][f"{engine}.{world}"]
            costs, _, batch = world.partition("_")
            rate = found[engine][world]
            ratio = f"{rate / timeouts:.3g}"
            lines.append(
                f"| {name} | {costs}, batch {batch} | {ratio} | {rate:,.0f} ({low:,.0f}-{high:,.0f}) |"
            )
    scalar = found["scalar_tokens_per_second"]
    lines.append(f"| scalar loop | textbook, batch 1 | {scalar / timeouts:.3g} | {scalar:,.0f} |")
    lines.append(f"\nsimpy: {timeouts:,.0f} timeouts/s")
    return lines


def _scale_table(found: list[dict[str, Any]]) -> list[str]:
    lines = ["| what grows | to | open, s | simulate, s | MB resident |", "|---|--:|--:|--:|--:|"]
    for row in found:
        times = f"{row['open_s']:.2f} | {row['seconds']:.2f} | {row['megabytes']:.0f}"
        lines.append(f"| {row['axis']} | {row['value']:,} | {times} |")
    return lines


def _search_table(found: list[dict[str, Any]]) -> list[str]:
    heads = (
        "profile",
        "batch",
        "settings",
        "found",
        "best of all",
        "regret",
        "in both engines",
        "same",
        "differ",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|--:|--:|---|---|--:|--:|---|--:|"]
    for row in found:
        same = "yes" if len(set(row["both"])) == 1 else f"no: {', '.join(row['both'])}"
        winners = f"{row['found']} | {row['best']} | {row['regret']:.2%}"
        events = f"{row['by_events']} | {same} | {row['differ']:.1e}"
        lines.append(f"| {row['hw']} | {row['batch']} | {row['settings']:,} | {winners} | {events} |")
    return lines


if __name__ == "__main__":
    main()
