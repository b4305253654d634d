"""How fast our own programs are: the engine beside transformers', compiled forwards, and the simulator.

`engines`: the same pair does the same work, greedy, on equal cores, one thread each, and every engine's
output is compared token by token: a speedup means little on an engine that is slow by itself.  Engines take
turns prompt by prompt, in an order drawn anew each time, so that a drift of the machine hits all alike.  In
transformers both models share a process and a core; ours are two processes on a core each.  In SD the two
take turns, so that at any time one core works, in either engine; ours also pays for messages.

`forwards`: the shapes that a round is made of, timed by the calibration's own probes, eager and compiled in
turn.  What to look for is a verification that costs about as much as a decode step: the premise of the laws.

`speed`: simulated output tokens per second of one core.  It depends on the machine and comes with its spread.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.rounds import first_difference
from analysis.show import Column, table
from analysis.study import POSITIVE, Plan, Study, option
from calibrate.live.placement import MODES, pair_specs, parse_placement
from calibrate.live.reference import Generated, Method, Place, generate_once, generation_process, tokenize
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import run_live
from calibrate.measure import time_shape
from calibrate.shipped import resolve_model
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile, find_trace
from hardware_profiles.trace import read_trace
from policies.registry import Settings, configure
from policies.values import Request
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin, replay

Generate: TypeAlias = Callable[[Request], Generated]
Runs: TypeAlias = Mapping[str, Sequence[Sequence[Generated]]]
"""By engine, [repeats][prompts]."""
BASE = "generate"


@dataclass(frozen=True)
class PairPlan(Plan):
    """Which pair."""

    hw: tuple[str, ...] = ()
    target: str = option("pair:x5", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")


@dataclass(frozen=True)
class EnginesPlan(PairPlan):
    """Called how."""

    lookahead: int = option(4, "K.", type=POSITIVE)
    mode: tuple[str, ...] = option(
        MODES, "Of our engine; repeated.", multiple=True, type=click.Choice(MODES), show_default=True
    )
    placement: str = option("split", "Cores of target and draft; transformers gets the target's first.")
    repeats: int = option(5, "Live repetitions.", type=POSITIVE)


def measure(
    engines: Mapping[str, Generate],
    requests: Sequence[Request],
    *,
    repeats: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[list[Generated]]]:
    """Run every engine on every request; the first request once before, unmeasured, by each."""
    for engine in engines.values():
        engine(requests[0])
    names = list(engines)
    runs: dict[str, list[list[Generated]]] = {name: [[] for _ in range(repeats)] for name in names}
    random = np.random.default_rng(seed)
    planned = [
        (repeat, number, index)
        for repeat in range(repeats)
        for number in random.permutation(len(requests)).tolist()
        for index in random.permutation(len(names)).tolist()
    ]
    for done, (repeat, number, index) in enumerate(planned):
        runs[names[index]][repeat].append(engines[names[index]](requests[number]))
        progress(done + 1, len(planned))
    return runs


def compare(runs: Runs, pinned: str) -> list[Row]:
    """A row per engine: speeds as ratios of sums over the prompts, per repetition, and tokens compared.

    Args:
        runs: Of `measure`, `BASE` and `pinned` among them.
        pinned: Name of assisted generation with equal lookahead.

    Returns:
        `tokens_per_second` (prefills included) of the repetition in the middle; over `BASE` and over `pinned`
        of the same repetition [median, least, largest]; how many `runs` gave tokens `identical` to `BASE`'s,
        and the position of the earliest token that differs.
    """
    speeds = {
        name: np.array([sum(len(r.tokens) for r in row) / sum(r.seconds for r in row) for row in rows])
        for name, rows in runs.items()
    }
    compared = []
    for name, rows in runs.items():
        pairs = [
            first_difference(run.tokens, other.tokens)
            for row, others in zip(rows, runs[BASE], strict=True)
            for run, other in zip(row, others, strict=True)
        ]
        different = [position for position in pairs if position is not None]
        compared.append(
            {
                "engine": name,
                "tokens_per_second": float(np.median(speeds[name])),
                "vs_plain": _spread(speeds[name] / speeds[BASE]),
                "vs_pinned": _spread(speeds[name] / speeds[pinned]),
                "identical": len(pairs) - len(different),
                "runs": len(pairs),
                "first_difference": min(different, default=None),
            }
        )
    return compared


def _spread(ratios: np.ndarray) -> list[float]:
    return [float(np.median(ratios)), float(ratios.min()), float(ratios.max())]


def pinned_name(lookahead: int) -> str:
    """Name of assisted generation with a fixed number of drafted tokens."""
    return f"assisted, K={lookahead}"


def answer(bench: Bench) -> list[Row]:
    """A row per engine."""
    plan = bench.plan_as(EnginesPlan)
    texts = [prompt.text for prompt in bench.prompts()]
    runs = run_engines(plan, texts, lambda done, total: bench.progress("runs", done, total))
    return compare(runs, pinned_name(plan.lookahead))


def run_engines(plan: EnginesPlan, texts: list[str], progress: Callable[[int, int], None]) -> Runs:
    """Start all engines and run them on some prompts."""
    cores = parse_placement(plan.placement)
    target, draft = (str(resolve_model(name)) for name in (plan.target, plan.draft))
    place = Place(target, draft, cores.target_cores[0])
    with ExitStack() as stack:
        pool = stack.enter_context(generation_process())

        def theirs(method: Method, request: Request) -> Generated:
            prompt, limit = request.prompt or (), request.limit
            return pool.submit(generate_once, place, method, prompt, limit, plan.lookahead).result()

        engines: dict[str, Generate] = {
            BASE: partial(theirs, "plain"),
            pinned_name(plan.lookahead): partial(theirs, "assisted"),
            "assisted, default": partial(theirs, "assisted-default"),
        }
        for mode in (mode for mode in MODES if mode in plan.mode):
            specs = (replace(spec, mode=mode) for spec in pair_specs(target, draft, cores))
            world = stack.enter_context(LiveWorld(*specs))
            engines[f"spectwin ar {mode}"] = partial(_ours, world, configure("ar"))
            sd = configure("sd", lookahead=plan.lookahead)
            engines[f"spectwin sd K={plan.lookahead} {mode}"] = partial(_ours, world, sd)
        prompts = enumerate(pool.submit(tokenize, place, texts).result())
        requests = [Request(i, len(ids), plan.max_tokens or 1, ids) for i, ids in prompts]
        return measure(engines, requests, repeats=plan.repeats, seed=plan.seed, progress=progress)


def _ours(world: Any, settings: Settings, request: Request) -> Generated:
    run = run_live(world, settings, [request])
    # From the first message to the last answer.  The world's own time stands still between runs.
    begun = min(timing.submit_s for timing in run.timings)
    ended = max(timing.arrival_s for timing in run.timings)
    return Generated(run.texts[request.id], ended - begun)


def show(results: Results) -> Iterator[Any]:
    """Speeds and their ratios."""

    def spread(name: str) -> Callable[[Row], str]:
        return lambda row: "{:.2f} ({:.2f}-{:.2f})".format(*row[name])

    asked = results.asked
    yield table(
        f"{asked['target']} with {asked['draft']}: median (least-largest) of {asked['repeats']} repetitions",
        (
            Column("engine", "engine"),
            Column("tok/s", "tokens_per_second", "{:.1f}"),
            Column("x generate", spread("vs_plain")),
            Column(f"x assisted K={asked['lookahead']}", spread("vs_pinned")),
            Column("same", lambda row: f"{row['identical']}/{row['runs']}"),
        ),
        results.rows,
    )


ENGINES = Study(
    "engines",
    "Our plain decoding and SD against transformers' own, on the same cores.",
    EnginesPlan,
    answer=answer,
    show=show,
    examples=("--target pair:x5 --count 8 --repeats 5",),
)


CONTEXT = 200
SHAPES: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("draft, 1 token", "draft", "forward", {"new_tokens": 1}),
    ("draft, tree of 15", "draft", "tree", {"branches": 15}),
    ("target, decode 1", "target", "forward", {"new_tokens": 1}),
    ("target, verify 5", "target", "forward", {"new_tokens": 5}),
    ("target, batch 8, 5 tokens each", "target", "forward", {"batch": 8, "new_tokens": 5}),
)
"""(name, device, kind of probe, shape)."""


@dataclass(frozen=True)
class ForwardsPlan(PairPlan):
    """How often."""

    repeats: int = option(9, "Repetitions.", type=click.IntRange(min=2))


def answer_forwards(bench: Bench) -> list[Row]:
    """A row per shape, timed in both modes, which take turns, pinned as in a split placement."""
    plan = bench.plan_as(ForwardsPlan)
    target, draft = (str(resolve_model(name)) for name in (plan.target, plan.draft))
    specs = pair_specs(target, draft, parse_placement("split"))
    samples: dict[str, dict[str, list[list[float]]]] = {}
    with ExitStack() as stack:
        worlds = {
            mode: stack.enter_context(LiveWorld(*(replace(spec, mode=mode, slots=8) for spec in specs)))
            for mode in MODES
        }
        visits = [(mode, *shape) for _ in range(plan.repeats) for shape in SHAPES for mode in MODES]
        for done, (mode, name, device, kind, shape) in enumerate(visits):
            at = {"batch": 1, "context": CONTEXT, **shape}
            seconds = time_shape(worlds[mode], device, kind, at, 4)[1:]
            samples.setdefault(name, {}).setdefault(mode, []).append(seconds)
            bench.progress("forwards", done + 1, len(visits))
    return [summarise(name, by_mode) for name, by_mode in samples.items()]


def summarise(name: str, samples: Mapping[str, Sequence[Sequence[float]]]) -> Row:
    """A shape's samples as one row: median seconds by mode, and [least, median, largest] eager / compiled.

    Args:
        name: Of the shape.
        samples: By mode [repetitions][samples] of seconds; the modes took turns.
    """
    medians = {mode: [float(np.median(each)) for each in repeats] for mode, repeats in samples.items()}
    ratios = [e / c for e, c in zip(medians["eager"], medians["compiled"], strict=True)]
    seconds = {f"{mode}_s": float(np.median(values)) for mode, values in medians.items()}
    spread = [min(ratios), float(np.median(ratios)), max(ratios)]
    return {"forward": name, "context": CONTEXT, **seconds, "eager_over_compiled": spread}


def show_forwards(results: Results) -> Iterator[Any]:
    """Milliseconds in both modes and their ratio."""

    def ratio(row: Row) -> str:
        low, middle, high = row["eager_over_compiled"]
        return f"{middle:.2f} ({low:.2f}-{high:.2f})"

    asked = results.asked
    yield table(
        f"{asked['target']}, context {CONTEXT}, {asked['repeats']} repetitions",
        (
            Column("forward", "forward"),
            Column("eager, ms", "eager_s", lambda s: f"{1e3 * s:.2f}"),
            Column("compiled, ms", "compiled_s", lambda s: f"{1e3 * s:.2f}"),
            Column("eager / compiled (range)", ratio),
        ),
        results.rows,
    )


FORWARDS = Study(
    "forwards",
    "What is compiling worth?  Single forwards, eager and compiled, interleaved.",
    ForwardsPlan,
    answer=answer_forwards,
    show=show_forwards,
    examples=("--target pair:x5",),
)


TOKENS = 60_000
PARTS = {
    "simpy": "event queue and processes (simpy)",
    "policies": "policy, rows and round log",
    "tokens": "token model",
    "costs": "latency look-ups and noise",
    "world": "devices, contention and answers",
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
        "textbook": Scenario(coins, textbook=TextbookCosts(1.0, 0.1), batch=batch, engine="event"),
        "cpu2-x5": Scenario(tokens, profile=profile, batch=batch, requests=requests, engine="event"),
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


def time_shares(scenario: Scenario) -> dict[str, float]:
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


def answer_speed(bench: Bench) -> list[Row]:
    """Simulated output tokens per second for saguaro at batch 1 and 16."""
    return [
        {"world": name, "batch": batch, **rate(scenario, bench.plan.repeats), **time_shares(scenario)}
        for batch in (1, 16)
        for name, scenario in scenarios(batch).items()
    ]


def show_speed(results: Results) -> Iterator[Any]:
    """A line per world and batch, and where the time goes."""
    for row in results.rows:
        name = f"{row['world']}, batch {row['batch']}"
        yield (
            f"{name:>20}: {row['tokens_per_second']:>10,.0f} simulated tokens/s "
            f"({row['min']:,.0f} to {row['max']:,.0f}), {row['microseconds_per_round']:.0f} us per round"
        )
        parts = sorted(PARTS, key=lambda part: -float(row[f"share_{part}"]))
        yield " " * 22 + ", ".join(f"{PARTS[part]} {row[f'share_{part}']:.0%}" for part in parts)


SPEED = Study(
    "speed",
    "How fast is the event world, and where does its time go?",
    SpeedPlan,
    answer=answer_speed,
    show=show_speed,
)

STUDIES = (ENGINES, FORWARDS, SPEED)
