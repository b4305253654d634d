"""Serving predicted against runs of a live engine: 300 requests that arrive, all percentiles.

The runs are LLMServingSim's `bench/examples` (casys-kaist, MIT): a folder per GPU and model with
`requests.jsonl` (lengths, and when each was queued, said its first token and its last), `meta.json` (the
engine's options) and, where prompts share their beginnings, `prompt_blocks.jsonl`.  Layers of the same name
are their kernel times.  Arrivals, lengths, options and layers are given; nothing is fitted to the runs.

Three opinions:

- `layers`: every step put together from the layers at its mix (`hardware_profiles.mixed`);
- `unmixed`: the same without what a profile cannot know: that decoding rows attend more slowly beside a
  prompt, and that rows of unequal length take longer than their mean;
- `profile`: the profile that `calibrate.silicon import` makes of them, by the rule of `simulator.traffic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import Column, table
from analysis.study import Plan, Study
from hardware_profiles.files import parse_json, read_json, read_text
from hardware_profiles.layers import layers_profile
from hardware_profiles.mixed import MixedLayers
from hardware_profiles.networks import find_network
from policies.commandline import about as about_option
from policies.registry import configure
from serving.loop import serve
from serving.metrics import PERCENTILES, Served, metrics
from serving.scheduler import Counts, EngineOptions
from serving.traffic import ServedRequest, Traffic
from simulator.costs import Effects
from simulator.scenario import Scenario
from simulator.tokens import coin
from simulator.traffic import LayerTimes, SimulatedEngine, serve_traffic

LATENCIES = ("ttft", "tpot", "e2el")
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
KEPT = ("mean", "median", *(f"p{percent}" for percent in PERCENTILES[1:]))
OPINIONS = ("layers", "unmixed", "profile")
AIM = 0.03
"""Largest error that needs no cause."""


@dataclass(frozen=True)
class ServingPlan(Plan):
    """Where the runs and the layers are."""

    hw: tuple[str, ...] = ()
    runs: Path | None = field(
        default=None, metadata=about_option("Folder of live runs, a folder each.", type=FOLDER)
    )
    layers: Path | None = field(
        default=None, metadata=about_option("Folder of layers' times, of the same names.", type=FOLDER)
    )
    host_gap_ms: float = field(
        default=0.0,
        metadata=about_option(
            "Between two steps; 0 where the engine schedules ahead.", type=click.FloatRange(0)
        ),
    )


@dataclass(frozen=True)
class LiveRun:
    """A live run.

    Attributes:
        traffic: Its requests, at the times at which they were queued.
        measured: What they saw; it has no steps and no counts.
        options: Of its engine, as far as they are recorded.
        model: Its name.
        tensor_parallel: GPUs.
    """

    traffic: Traffic
    measured: Served
    options: EngineOptions
    model: str
    tensor_parallel: int


def read_run(folder: Path) -> LiveRun:
    """A run of `bench/examples`.

    Raises:
        ValueError: A file cannot be read, or has not what it should.
    """
    path = folder / "requests.jsonl"
    try:
        rows = sorted(map(parse_json, read_text(path).splitlines()), key=lambda row: float(row["queued_ts"]))
        kwargs = read_json(folder / "meta.json")["engine_kwargs"]
        cache = read_json(folder / "meta.json").get("kv_cache", {})
        shared = _prompt_blocks(folder / "prompt_blocks.jsonl")
        began = float(rows[0]["queued_ts"])
        queued, first, last = (
            np.array([float(row[name]) - began for row in rows])
            for name in ("queued_ts", "first_token_ts", "last_token_ts")
        )
        requests = tuple(
            ServedRequest(at, row["input_toks"], row["output_toks"], shared.get(row["request_id"], ()))
            for at, row in zip(queued.tolist(), rows, strict=True)
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: no live run: {error!r:.60}") from error
    traffic = Traffic(requests, str(path))
    options = EngineOptions(
        max_num_seqs=kwargs["max_num_seqs"],
        max_num_batched_tokens=kwargs["max_num_batched_tokens"],
        num_gpu_blocks=cache.get("num_gpu_blocks"),
        block_size=cache.get("block_size", 16),
    )
    return LiveRun(
        traffic,
        measured_as_served(queued, first, last, traffic),
        options,
        kwargs["model"].rpartition("/")[2].lower(),
        kwargs["tensor_parallel_size"],
    )


def _prompt_blocks(path: Path) -> Mapping[str, tuple[int, ...]]:
    if not path.is_file():
        return {}
    rows = map(parse_json, read_text(path).splitlines())
    return {row["request_id"]: tuple(row["blocks"]) for row in rows}


def measured_as_served(queued: np.ndarray, first: np.ndarray, last: np.ndarray, traffic: Traffic) -> Served:
    """What requests saw, as a run whose steps nobody counted."""
    return Served(
        arrival_s=queued,
        first_s=first,
        last_s=last,
        prompt=np.array([request.prompt for request in traffic.requests]),
        output=np.array([request.output for request in traffic.requests]),
        gaps=np.zeros((0, 2)),
        end_s=float(last.max()),
        steps=0,
        busy_s=0.0,
        running=0.0,
        waiting=0.0,
        most_blocks=0,
        counts=Counts(),
    )


def answer(bench: Bench) -> Iterator[Row]:
    """A row per run, latency and percentile, and one for the throughput."""
    plan = bench.plan_as(ServingPlan)
    if plan.runs is None or plan.layers is None:
        raise ValueError("--runs and --layers say where the live runs and their layers' times are")
    folders = sorted(each for each in plan.runs.iterdir() if (each / "requests.jsonl").is_file())
    if not folders:
        raise ValueError(f"{plan.runs}: no folder in it has a requests.jsonl")
    for folder in folders:
        run = read_run(folder)
        layers = MixedLayers(plan.layers / folder.name, find_network(run.model), run.tensor_parallel)
        predicted = predictions(run, layers, 1e-3 * plan.host_gap_ms)
        yield from compared(folder.name, metrics(run.measured), predicted)


def predictions(run: LiveRun, layers: MixedLayers, gap_s: float) -> dict[str, dict[str, Any]]:
    """Metrics of a run by both opinions."""
    plain = configure("ar")
    tokens = coin(0.5, exponent=1.0, scale=1.0, requests=1, length=1, prompt_length=1, seed=0)
    apart = Unmixed(layers.folder, layers.network, layers.tensor_parallel)
    mixed, unmixed = (
        serve(run.traffic, run.options, SimulatedEngine.of(LayerTimes(each, gap_s), tokens, plain))
        for each in (layers, apart)
    )
    profile = layers_profile(layers, name="layers")
    scenario = Scenario(tokens, profile=profile, effects=Effects(jitter=False))
    surfaces, _ = serve_traffic(scenario, plain, run.traffic, run.options)
    return {"layers": metrics(mixed), "unmixed": metrics(unmixed), "profile": metrics(surfaces)}


class Unmixed(MixedLayers):
    """Layers whose attention takes what each part of a step takes alone."""

    def _attended(
        self, rows: int, context: float, longest: float, chunks: Sequence[tuple[int, int]]
    ) -> float:
        alone = [self._mix(0, 0, rows, context)] if rows else []
        alone += [self._mix(n, history, 0, 0) for n, history in chunks]
        return sum(alone) - (len(alone) - 1) * self._smallest if alone else 0.0


def compared(
    name: str, measured: Mapping[str, Any], predicted: Mapping[str, Mapping[str, Any]]
) -> Iterator[Row]:
    """A row per metric: what was measured, what each opinion says and how far off it is."""
    keys = [f"{kept}_{latency}_ms" for latency in LATENCIES for kept in KEPT]
    for key in (*keys, "duration", "output_throughput"):
        row: Row = {"run": name, "metric": key, "measured": measured[key]}
        for opinion, values in predicted.items():
            row |= {opinion: values[key], f"{opinion}_error": values[key] / measured[key] - 1.0}
        counts = {f"layers_{key}": predicted["layers"][key] for key in ("steps", "preemptions")}
        yield row | counts


def about(results: Results) -> Row:
    """Largest error of each run by each opinion."""
    runs = {}
    for name in dict.fromkeys(row["run"] for row in results.rows):
        rows = [row for row in results.rows if row["run"] == name]
        runs[name] = {
            f"largest_error_{opinion}": max(abs(row[f"{opinion}_error"]) for row in rows)
            for opinion in OPINIONS
        }
    return {"aim": AIM, "runs": runs}


def show(results: Results) -> Iterator[Any]:
    """A table per run, and how far off both opinions are at most."""
    for name, said in results.about["runs"].items():
        rows = [row for row in results.rows if row["run"] == name]
        percent = "{:+.1%}"
        yield table(
            f"{name}: {rows[0]['layers_steps']} steps, {rows[0]['layers_preemptions']} preemptions",
            (
                Column("metric", "metric"),
                Column("measured", "measured", "{:.1f}"),
                Column("layers", "layers", "{:.1f}"),
                Column("error", "layers_error", percent),
                Column("unmixed", "unmixed_error", percent),
                Column("profile", "profile", "{:.1f}"),
                Column("error", "profile_error", percent),
            ),
            rows,
        )
        most = [f"{said[f'largest_error_{opinion}']:.1%} ({opinion})" for opinion in OPINIONS]
        yield f"off by at most {', '.join(most)}"


def failed(results: Results) -> bool:
    """Whether an error of the layers is larger than the aim."""
    return any(run["largest_error_layers"] > AIM for run in results.about["runs"].values())


STUDY = Study(
    name="serving",
    question="Does simulated serving see the queues, latencies and preemptions of a live engine?",
    plan=ServingPlan,
    answer=lambda bench: list(answer(bench)),
    about=about,
    show=show,
    failed=failed,
    examples=("--runs DIR --layers DIR", "--runs DIR --layers DIR --host-gap-ms 1.2 --json"),
)
