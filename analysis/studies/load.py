"""At which load does speculation stop paying?  The same arrivals served with SD and by plain decoding.

The load of a pair of models on its devices is a share of what plain decoding completes where all requests
come at once. Speculation pays at a load where requests end sooner with it, in the mean: its tokens per
verification are bought with tokens of a step that others wait for. Arrivals are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.execute import Bench
from analysis.results import Results, Row
from analysis.show import COLOURS, Column, frame, table
from analysis.stats import grouped
from analysis.study import POSITIVE, Picture, Plan, Study, option
from hardware_profiles.profile import Profile, load_profile
from hardware_profiles.store import find_profile
from policies.commandline import split_counts, split_numbers
from policies.registry import Settings, configure
from serving.metrics import metrics
from serving.scheduler import EngineOptions
from serving.traffic import Traffic, arrival_times, generated
from simulator.flat_traffic import serve_traffic
from simulator.scenario import Scenario
from simulator.tokens import TokenModel, coin

PAIRS = (
    "h100x1-llama-3.1-8b+llama-3.2-1b",
    "h100x4-llama-3.1-70b+llama-3.2-1b",
    "h100x2-qwen3-32b+qwen3-0.6b",
    "a100x1-llama-3.1-8b+llama-3.2-1b",
    "l40sx1-llama-3.1-8b+llama-3.2-1b",
    "h100x1-qwen3-8b+eagle3-qwen3-8b",
)
TEXTS, TOKENS = 64, 1024
"""Of the coins: made-up replies, used in turn."""


@dataclass(frozen=True)
class LoadPlan(Plan):
    """Which pairs and loads."""

    hw: tuple[str, ...] = option(PAIRS, "Profiles.")
    lookahead: tuple[int, ...] = option((2, 4), "K; a list.", callback=split_counts)
    acceptance: float = option(0.6, "Of drafted tokens.")
    loads: tuple[float, ...] = option(
        (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.1),
        "Shares of what plain decoding completes.",
        callback=split_numbers,
    )
    prompt: int = option(250, "Tokens of every prompt.", type=POSITIVE)
    output: int = option(250, "Tokens of every reply.", type=POSITIVE)
    count: int | None = option(500, "Requests at every load.", type=POSITIVE)


def answer(bench: Bench) -> Iterator[Row]:
    """A row per lookahead, load and repetition on one profile."""
    plan = bench.plan_as(LoadPlan)
    profile = load_profile(find_profile(bench.hw))
    tokens = coin(
        plan.acceptance,
        exponent=1.0,
        scale=1.0,
        requests=TEXTS,
        length=TOKENS,
        prompt_length=1,
        seed=plan.seed,
    )
    count = plan.count or TEXTS
    at_once = generated(count, plan.prompt, plan.output, np.zeros(count))
    capacity = float(served(profile, tokens, configure("ar"), at_once, plan.seed)["request_throughput"])
    for done, load in enumerate(plan.loads):
        for repeat in range(plan.repeats):
            seed = plan.seed + repeat
            times = arrival_times(count, load * capacity, seed=seed)
            traffic = generated(count, plan.prompt, plan.output, times)
            plain = served(profile, tokens, configure("ar"), traffic, seed)
            for lookahead in plan.lookahead:
                found = served(profile, tokens, configure("sd", lookahead=lookahead), traffic, seed)
                at = {"hw": bench.hw, "lookahead": lookahead, "load": load, "rate": load * capacity}
                yield {**at, "repeat": repeat, **beside(found, plain)}
        bench.progress(f"loads of {bench.hw}", done + 1, len(plan.loads))


def served(
    profile: Profile, tokens: TokenModel, settings: Settings, traffic: Traffic, seed: int
) -> dict[str, Any]:
    """Metrics of traffic on a profile; noise is keyed by the seed."""
    scenario = Scenario(tokens, profile=profile, seed=seed)
    return metrics(serve_traffic(scenario, settings, traffic, EngineOptions())[0])


def beside(found: Mapping[str, Any], plain: Mapping[str, Any]) -> Row:
    """Latencies of both, rows of plain decoding, and how much sooner requests end with speculation."""
    row: Row = {"plain_rows": plain["mean_running"]}
    for name in ("mean_e2el_ms", "mean_tpot_ms", "p99_ttft_ms"):
        row |= {f"plain_{name}": plain[name], f"sd_{name}": found[name]}
    return row | {"speedup": plain["mean_e2el_ms"] / found["mean_e2el_ms"]}


def stops_at(loads: Sequence[float], speedups: Sequence[float]) -> float | None:
    """The smallest load from which on speculation does not pay, on a line between loads tried.

    None where it pays at the last one; the first one where it never does.
    """
    paying = [load for load, speedup in zip(loads, speedups, strict=True) if speedup > 1.0]
    if not paying:
        return loads[0]
    last = list(loads).index(paying[-1])
    if last + 1 == len(loads):
        return None
    above, below = speedups[last] - 1.0, 1.0 - speedups[last + 1]
    return loads[last] + (loads[last + 1] - loads[last]) * above / (above + below)


def crossings(rows: Sequence[Row]) -> list[Row]:
    """Per profile and lookahead, where speculation stops paying: over all repetitions, and in each."""
    found = []
    for (hw, lookahead), own in grouped(rows, lambda row: (row["hw"], row["lookahead"])).items():
        loads = sorted({row["load"] for row in own})
        by_load = [[row for row in own if row["load"] == load] for load in loads]
        means = [float(np.mean([row["speedup"] for row in at])) for at in by_load]
        repeats = sorted({row["repeat"] for row in own})
        each = [stops_at(loads, [at[i]["speedup"] for at in by_load]) for i in range(len(repeats))]
        at = stops_at(loads, means)
        known = [load for load in each if load is not None]
        rate = by_load[0][0]["rate"] / loads[0]
        plain_rows = [float(np.mean([row["plain_rows"] for row in here])) for here in by_load]
        found.append(
            {
                "hw": hw,
                "lookahead": lookahead,
                "stops_at": at,
                "low": min(known, default=None),
                "high": max(known) if len(known) == len(each) else None,
                "rate": None if at is None else at * rate,
                "rows": None if at is None else float(np.interp(at, loads, plain_rows)),
                "lightest": means[0],
                "heaviest": means[-1],
            }
        )
    return found


def show(results: Results) -> Iterator[Any]:
    """A line per profile and lookahead."""
    yield table(
        "Load (share of plain decoding's capacity) from which on SD does not pay",
        (
            Column("profile", "hw"),
            Column("K", "lookahead"),
            Column(
                "load", lambda row: "always pays" if row["stops_at"] is None else f"{row['stops_at']:.2f}"
            ),
            Column("range", lambda row: f"{_load(row['low'])} to {_load(row['high'])}"),
            Column("requests/s", "rate", "{:.2f}"),
            Column("rows of AR", "rows", "{:.0f}"),
            Column("speedup, light", "lightest", "{:.2f}"),
            Column("speedup, heavy", "heaviest", "{:.2f}"),
        ),
        results.about["crossings"],
    )


def _load(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def pictures(results: Results) -> Mapping[str, Picture]:
    """How much sooner requests end with speculation, over the load: a panel per lookahead."""

    def draw(figure: Any) -> None:
        lookaheads = sorted({row["lookahead"] for row in results.rows})
        panels = figure.subplots(1, len(lookaheads), sharey=True, squeeze=False)[0]
        for axes, lookahead in zip(panels, lookaheads, strict=True):
            own = [row for row in results.rows if row["lookahead"] == lookahead]
            for number, (hw, rows) in enumerate(grouped(own, lambda row: row["hw"]).items()):
                by_load = grouped(rows, lambda row: row["load"])
                means = [np.mean([row["speedup"] for row in at]) for at in by_load.values()]
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(list(by_load), means, marker="D", markersize=4, color=colour, label=hw)
            axes.axhline(1.0, color="#555555", linewidth=0.8)
            axes.set_title(f"K = {lookahead}", fontsize=9)
            frame(axes, x="load, share of plain decoding's capacity", y="mean latency of AR / SD", legend=0)
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)

    return {"": Picture(draw)}


STUDY = Study(
    name="load",
    question="At which load does speculation stop paying, by pair and device?",
    plan=LoadPlan,
    answer=lambda bench: list(answer(bench)),
    about=lambda results: {"crossings": crossings(results.rows)},
    show=show,
    pictures=pictures,
    examples=("--plot", "--hw h100x4+1 --acceptance 0.8 --lookahead 3,5 --json"),
)
