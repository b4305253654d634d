"""Our engine against the generation that comes with transformers: plain decoding and SD, live, greedy.

A speedup means little on an engine that is
slow by itself; here the same pair does the same work on equal cores, one thread each, and every engine's
output is compared token by token.  Engines take turns prompt by prompt, in an order drawn anew each time,
so that a drift of the machine hits all alike.

In transformers both models share a process and a core; ours are two processes on a core each.  In SD
the two take turns, so that at any time one core works, in either engine; ours also pays for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import click
import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.study import POSITIVE, Plan, Study, option
from calibrate.live.placement import MODES, Mode, pair_specs, parse_placement
from calibrate.live.reference import Generated, Method, Place, generate_once, generation_process, tokenize
from calibrate.shipped import resolve_model
from policies.registry import configure
from policies.values import Request

Engine: TypeAlias = Callable[[Request], Generated]
BASE = "generate"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Speed of an engine.

    Attributes:
        engine: Its name.
        tokens_per_second: Tokens over seconds of the repetition in the middle, prefills included.
        vs_plain: Over `generate` of the same repetition: median, least and largest.
        vs_pinned: Over assisted generation with equal lookahead, likewise.
        identical: Runs that gave the same tokens as `generate`.
        runs: Runs in all.
        first_difference: Position of the earliest token that differs; None if none does.
    """

    engine: str
    tokens_per_second: float
    vs_plain: tuple[float, float, float]
    vs_pinned: tuple[float, float, float]
    identical: int
    runs: int
    first_difference: int | None


Runs: TypeAlias = Mapping[str, Sequence[Sequence[Generated]]]
"""By engine, [repeats][prompts]."""


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
    runs: dict[str, list[list[Generated]]] = {name: [] for name in engines}
    names, done = list(engines), 0
    for _ in range(repeats):
        for name in names:
            runs[name].append([])
        for request in requests:
            for index in random.permutation(len(names)):
                runs[names[index]][-1].append(engines[names[index]](request))
                done += 1
                progress(done, repeats * len(requests) * len(names))
    return runs


def compare(runs: Runs, pinned: str) -> list[Comparison]:
    """Speeds as ratios of sums over the prompts, per repetition.

    Args:
        runs: Of `measure`, `BASE` and `pinned` among them.
        pinned: Name of assisted generation with equal lookahead.
    """
    speeds = {
        name: np.array(
            [sum(len(run.tokens) for run in row) / sum(run.seconds for run in row) for row in rows]
        )
        for name, rows in runs.items()
    }
    found = []
    for name, rows in runs.items():
        total, differences = _differences(rows, runs[BASE])
        found.append(
            Comparison(
                engine=name,
                tokens_per_second=float(np.median(speeds[name])),
                vs_plain=_spread(speeds[name] / speeds[BASE]),
                vs_pinned=_spread(speeds[name] / speeds[pinned]),
                identical=total - len(differences),
                runs=total,
                first_difference=min(differences, default=None),
            )
        )
    return found


def _spread(ratios: np.ndarray) -> tuple[float, float, float]:
    return float(np.median(ratios)), float(ratios.min()), float(ratios.max())


def _differences(
    rows: Sequence[Sequence[Generated]], reference: Sequence[Sequence[Generated]]
) -> tuple[int, list[int]]:
    """Number of runs, and of each that gave other tokens the position of the first."""
    pairs = [
        (run.tokens, other.tokens)
        for row, others in zip(rows, reference, strict=True)
        for run, other in zip(row, others, strict=True)
    ]
    return len(pairs), [
        next(
            (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )
        for one, other in pairs
        if one != other
    ]


@dataclass(frozen=True, slots=True)
class Pairing:
    """What to compare.

    Attributes:
        target: Name or folder.
        draft: Likewise.
        lookahead: K of SD and of pinned assisted generation.
        max_tokens: Most tokens per prompt.
        repeats: Repetitions.
        modes: Of our engine.
        placement: Cores, as `parse_placement` reads it; transformers gets the target's first.
    """

    target: str
    draft: str
    lookahead: int
    max_tokens: int
    repeats: int
    modes: tuple[Mode, ...]
    placement: str


def pinned_name(lookahead: int) -> str:
    """Name of assisted generation with a fixed number of drafted tokens."""
    return f"assisted, K={lookahead}"


def run_job(
    job: Pairing, texts: Sequence[str], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Comparison]:
    """Measure and compare all engines on some prompts."""
    from calibrate.live.transport.world import LiveWorld

    cores = parse_placement(job.placement)
    place = Place(job.target, job.draft, cores.target_cores[0])
    with ExitStack() as stack:
        pool = stack.enter_context(generation_process())
        prompts = pool.submit(tokenize, place, list(texts)).result()
        engines: dict[str, Engine] = {
            BASE: _theirs(pool, place, "plain", job.lookahead),
            pinned_name(job.lookahead): _theirs(pool, place, "assisted", job.lookahead),
            "assisted, default": _theirs(pool, place, "assisted-default", job.lookahead),
        }
        for mode in job.modes:
            target, draft = (replace(spec, mode=mode) for spec in pair_specs(job.target, job.draft, cores))
            world = stack.enter_context(LiveWorld(target, draft))
            engines[f"spectwin ar {mode}"] = _ours(world, "ar")
            engines[f"spectwin sd K={job.lookahead} {mode}"] = _ours(world, "sd", lookahead=job.lookahead)
        requests = [Request(i, len(ids), job.max_tokens, ids) for i, ids in enumerate(prompts)]
        runs = measure(engines, requests, repeats=job.repeats, progress=progress)
    return compare(runs, pinned_name(job.lookahead))


def _theirs(pool: Any, place: Place, method: Method, lookahead: int) -> Engine:
    def run(request: Request) -> Generated:
        generated: Generated = pool.submit(
            generate_once, place, method, request.prompt, request.limit, lookahead
        ).result()
        return generated

    return run


def _ours(world: Any, policy: str, **knobs: Any) -> Engine:
    from calibrate.live_runs import run_live

    settings = configure(policy, **knobs)

    def run(request: Request) -> Generated:
        found = run_live(world, settings, [request])
        # From the first message to the last answer.  The world's own time stands still between runs.
        begun = min(timing.submit_s for timing in found.timings)
        ended = max(timing.arrival_s for timing in found.timings)
        return Generated(found.texts[request.id], ended - begun)

    return run


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
    placement: str = option("split", "Cores of target and draft.")
    repeats: int = option(5, "Live repetitions.", type=POSITIVE)


def answer(bench: Bench) -> list[Row]:
    """A row per engine."""
    plan = bench.plan_as(EnginesPlan)
    modes = tuple(mode for mode in MODES if mode in plan.mode)
    pair = Pairing(
        str(resolve_model(plan.target)),
        str(resolve_model(plan.draft)),
        plan.lookahead,
        plan.max_tokens or 1,
        plan.repeats,
        modes,
        plan.placement,
    )
    texts = [prompt.text for prompt in bench.prompts()]
    found = run_job(pair, texts, lambda done, total: bench.progress("runs", done, total))
    return [
        asdict(each) | {"vs_plain": list(each.vs_plain), "vs_pinned": list(each.vs_pinned)} for each in found
    ]


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
