"""Our engine against the generation that comes with transformers: plain decoding and SD, live, greedy.

A speedup means little on an engine that is slow by itself; here the same pair does the same work on equal
cores, one thread each, and every engine's output is compared token by token.  Engines take turns prompt by
prompt, in an order drawn anew each time, so that a drift of the machine hits all alike.

In transformers both models share a process and a core; ours are two processes on a core each.  In SD
the two take turns, so that at any time one core works, in either engine; ours also pays for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
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
from calibrate.shipped import resolve_model
from policies.registry import Settings, configure
from policies.values import Request

Engine: TypeAlias = Callable[[Request], Generated]
Runs: TypeAlias = Mapping[str, Sequence[Sequence[Generated]]]
"""By engine, [repeats][prompts]."""
BASE = "generate"


@dataclass(frozen=True)
class EnginesPlan(Plan):
    """Which pair, called how."""

    hw: tuple[str, ...] = ()
    target: str = option("pair:x5", "Model name or folder.")
    draft: str = option("pair:draft", "Model name or folder.")
    lookahead: int = option(4, "K.", type=POSITIVE)
    mode: tuple[str, ...] = option(
        MODES, "Of our engine; repeated.", multiple=True, type=click.Choice(MODES), show_default=True
    )
    placement: str = option("split", "Cores of target and draft; transformers gets the target's first.")
    repeats: int = option(5, "Live repetitions.", type=POSITIVE)


def measure(
    engines: Mapping[str, Engine],
    requests: Sequence[Request],
    *,
    repeats: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[list[Generated]]]:
    """Run every engine on every request; the first request once before, unmeasured, by each."""
    random = np.random.default_rng(seed)
    for engine in engines.values():
        engine(requests[0])
    names, done = list(engines), 0
    runs: dict[str, list[list[Generated]]] = {name: [[] for _ in range(repeats)] for name in names}
    for repeat in range(repeats):
        for request in requests:
            for index in random.permutation(len(names)):
                runs[names[index]][repeat].append(engines[names[index]](request))
                done += 1
                progress(done, repeats * len(requests) * len(names))
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
    found = []
    for name, rows in runs.items():
        pairs = [
            first_difference(run.tokens, other.tokens)
            for row, others in zip(rows, runs[BASE], strict=True)
            for run, other in zip(row, others, strict=True)
        ]
        different = [position for position in pairs if position is not None]
        found.append(
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
    return found


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

        engines: dict[str, Engine] = {
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
        return measure(engines, requests, repeats=plan.repeats, progress=progress)


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


STUDY = Study(
    "engines",
    "Our plain decoding and SD against transformers' own, on the same cores.",
    EnginesPlan,
    answer=answer,
    show=show,
    examples=("--target pair:x5 --count 8 --repeats 5",),
)
