"""Validate under load: the same arrivals simulated and live, latencies by percentile and goodput.

A load is a rate, or a share of what plain decoding completes where all requests are there at once (simulated,
so that both worlds meet the same arrivals).  Scheduler, policies and texts are the same in both worlds; what
is predicted is time.  Live repetitions serve the same arrivals again, settings and loads in random order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from analysis.execute import DRAWS, EMULATED, Bench, kept_time, live_worlds
from analysis.intervals import varied
from analysis.results import Results, Row, describe
from analysis.show import Column, frame, table
from analysis.stats import grouped, median, spread_of
from analysis.study import POSITIVE, SPLIT, Entry, Picture, option
from calibrate.calibration import requests_of
from calibrate.live.errors import DeadlineMissed
from calibrate.live_traffic import LiveServing, serve_in_time, serve_live
from hardware_profiles.trace import Trace
from policies.commandline import about as described
from policies.registry import SettingError, Settings, configure, find_policy
from policies.values import Request
from serving.metrics import metrics, parse_slo
from serving.rounds import check_rounds
from serving.scheduler import EngineOptions
from serving.traces import read_traffic
from serving.traffic import ARRIVALS, Arrivals, ServedRequest, Traffic, arrival_times
from simulator.costs import Effects
from simulator.scenario import Scenario
from simulator.traffic import serve_traffic

LOADS = {"light": 0.4, "knee": 0.8, "overload": 1.3}
"""Names of shares of what plain decoding completes."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p90", "p99")
METRICS = (
    *(f"{statistic}_{latency}_ms" for latency in LATENCIES for statistic in STATISTICS),
    "request_goodput",
    "output_throughput",
    "tokens_per_round",
)
PANELS = {
    "median_ttft_ms": "median TTFT, ms",
    "p90_ttft_ms": "p90 TTFT, ms",
    "median_tpot_ms": "median TPOT, ms",
    "p90_tpot_ms": "p90 TPOT, ms",
}


@dataclass(frozen=True)
class LoadPlan:
    """What arrives, and the engine that serves it; its options have vLLM's names."""

    rate: tuple[str, ...] = option(
        (),
        "Serve requests that arrive, so many a second: numbers, shares such as 0.5x of what plain decoding "
        "completes, light (0.4x), knee (0.8x) or overload (1.3x); a list.",
    )
    traffic: Path | None = field(
        default=None,
        metadata=described(
            "Serve requests at this trace's times, with replies of at most its lengths.",
            type=click.Path(exists=True, path_type=Path),
        ),
    )
    requests: int = option(100, "Requests at every load.", type=POSITIVE)
    arrivals: Arrivals = field(
        default="poisson", metadata=described("How they come at --rate.", type=click.Choice(ARRIVALS))
    )
    burstiness: float = option(
        0.5, "Shape of --arrivals gamma: 1 is Poisson.", type=click.FloatRange(0, min_open=True)
    )
    slo: str = option("", "Objectives of goodput, s: ttft=1,tpot=0.04,e2el=20.")
    max_num_seqs: int = option(8, "Most rows of a round.", type=POSITIVE)
    max_num_batched_tokens: int = option(2048, "Most tokens of a round.", type=POSITIVE)
    num_gpu_blocks: int | None = option(None, "KV blocks.  [default: always enough]", type=POSITIVE)
    block_size: int = option(16, "Tokens of a KV block.", type=POSITIVE)
    max_model_len: int | None = option(None, "Most tokens of a request.  [default: no limit]", type=POSITIVE)
    enable_chunked_prefill: bool = option(
        True,
        "Read prompts in parts, or whole.",
        spelled=("--enable-chunked-prefill/--no-enable-chunked-prefill",),
    )
    enable_prefix_caching: bool = option(False, "Refused: live slots share nothing.")

    @property
    def under_load(self) -> bool:
        """Whether requests arrive."""
        return bool(self.rate) or self.traffic is not None

    @property
    def engine(self) -> EngineOptions:
        """Of the engine."""
        return EngineOptions(**{each.name: getattr(self, each.name) for each in fields(EngineOptions)})


@dataclass(frozen=True)
class Load:
    """Requests that arrive: what the load is called, and how many come a second."""

    name: str
    rate: float
    traffic: Traffic


def load_rows(bench: Bench, plan: LoadPlan, settings: Sequence[Settings]) -> list[Row]:
    """A row per load, setting and metric: simulated, measured, how far off, and the spread.

    Raises:
        SettingError: The setting is not greedy, or options contradict each other.
        TrafficError: The trace is wrong, or a request can never be served.
    """
    if any(each.temperature > 0.0 for each in settings) or bench.plan.batch != (1,):
        raise SettingError("--rate and --traffic go without --temperature and --batch; see --max-num-seqs")
    if plan.enable_prefix_caching:
        raise SettingError("live slots share nothing: there is no --enable-prefix-caching here")
    for each in settings:
        check_rounds(each, plan.engine)
    objectives = parse_slo(plan.slo) if plan.slo else None
    texts = requests_of(bench.trace(0.0), bench.limit)
    effects = Effects() if bench.time_scale is None else EMULATED
    scenario = varied(bench.scenario(0.0), effects=effects)
    rates = {} if bench.stored is None else {row["load"]: row["rate"] for row in bench.stored.rows}
    loads = list(loads_of(plan, scenario, texts, bench.plan.seed, rates))
    runs = live_runs(bench, plan.engine, settings, loads, texts) if bench.plan.live else {}
    measured = {key: [metrics(each.served, objectives) for each in own] for key, own in runs.items()}
    measured = measured or stored(bench)
    same = {each: plain_texts(runs, each, bench.trace(0.0)) for each in settings if runs}
    predicted: dict[tuple[str, str], Row] = {}

    def rows() -> list[Row]:
        return [
            {
                "load": load.name,
                "rate": load.rate,
                "requests": len(load.traffic.requests),
                "profile": bench.sources.profile.name,
                **describe(each),
                **compared(
                    metric, predicted.get((load.name, each.label)), measured.get((load.name, each.label), [])
                ),
                "identical": same.get(each),
            }
            for load in loads
            for each in settings
            for metric in METRICS
        ]

    if bench.out is not None and runs:  # before anything is simulated: it can be predicted again
        Results(bench.study.name, tuple(rows()), {**bench.plan.asked, **bench.notes}).write(bench.out)
    for load in loads:
        for each in settings:
            predicted[load.name, each.label] = simulated(scenario, each, load, plan.engine, objectives)
            bench.progress("simulations", len(predicted), len(loads) * len(settings))
    return rows()


def compared(metric: str, own: Mapping[str, Any] | None, by_repeat: Sequence[Mapping[str, Any]]) -> Row:
    """A metric as simulated, as measured in the mean of repetitions, and how far off."""
    values = [each[metric] for each in by_repeat if each[metric] is not None]
    mean = float(np.mean(values)) if values else None
    simulated = None if own is None else own[metric]
    return {
        "metric": metric,
        "simulated": simulated,
        "measured": mean,
        "measured_low": min(values, default=None),
        "measured_high": max(values, default=None),
        "measured_spread": spread_of(values, mean) if mean else None,
        "by_repeat": values,
        "error": simulated / mean - 1.0 if mean and simulated is not None else None,
        "extrapolated": "" if own is None else own["extrapolated"],
    }


def loads_of(
    plan: LoadPlan, scenario: Scenario, texts: Sequence[Request], seed: int, rates: Mapping[str, float]
) -> Iterator[Load]:
    """The loads that are asked for; `rates` are those of loads that were run before, by name."""
    count = plan.requests
    if plan.traffic is not None:
        if plan.rate:
            raise SettingError("give either --rate or --traffic: a trace has its own times")
        trace = read_traffic(plan.traffic, block_size=plan.block_size).cut(count)
        if not trace.timed:
            raise SettingError(f"{plan.traffic}: does not say when its requests come: give --rate")
        if any(each.after is not None for each in trace.requests):
            raise SettingError(f"{plan.traffic}: calls that wait for others are not served live yet")
        traffic = asking(texts, [each.arrival_s for each in trace.requests])
        shorter = tuple(
            replace(mine, output=min(mine.output, its.output))
            for mine, its in zip(traffic.requests, trace.requests, strict=True)
        )
        rate = (len(shorter) - 1) / traffic.span_s if traffic.span_s else float("inf")
        yield Load(plan.traffic.name, rate, replace(traffic, requests=shorter, source=trace.source))
        return
    steady = varied(scenario, effects=replace(scenario.effects, jitter=False))
    at_once, capacity = asking(texts, np.zeros(count)), 0.0
    for name in plan.rate:
        known = rates.get(name) or number(name)
        if known is None and not capacity:
            served, _ = serve_traffic(steady, configure("ar"), at_once, plan.engine, rounds=True)
            capacity = float(metrics(served)["request_throughput"])
        rate = capacity * share(name) if known is None else known
        times = arrival_times(count, rate, plan.arrivals, burstiness=plan.burstiness, seed=seed)
        yield Load(name, rate, asking(texts, times))


def number(name: str) -> float | None:
    """A load that is a rate; None for a share."""
    try:
        return float(name)
    except ValueError:
        return None


def share(name: str) -> float:
    """A load as a share of what plain decoding completes.

    Raises:
        SettingError: It is none.
    """
    found = LOADS.get(name) or (number(name[:-1]) if name.endswith("x") else None)
    if found is None or not 0.0 < found < float("inf"):
        raise SettingError(
            f"--rate {name!r}: expected requests a second, a share such as 0.5x, or one of {', '.join(LOADS)}"
        )
    return found


def asking(texts: Sequence[Request], times: Sequence[float] | np.ndarray) -> Traffic:
    """Requests for some texts, in turn, at these times."""
    requests = tuple(
        ServedRequest(float(at), text.prompt_length, text.limit)
        for at, text in zip(times, cycle(texts), strict=False)
    )
    return Traffic(requests, f"{len(requests)} requests for {len(texts)} texts")


def simulated(
    scenario: Scenario,
    settings: Settings,
    load: Load,
    options: EngineOptions,
    objectives: Mapping[str, float] | None,
) -> Row:
    """Metrics of a setting under a load: means over draws of what latencies vary by."""
    draws = range(scenario.seed, scenario.seed + (DRAWS if scenario.effects.jitter else 1))
    found, outside = [], set[str]()
    for seed in draws:
        drawn = varied(scenario, seed=seed)
        served, beyond = serve_traffic(drawn, settings, load.traffic, options, rounds=True)
        found.append(metrics(served, objectives))
        outside |= {str(each) for each in beyond}
    known = {name: [each[name] for each in found if each[name] is not None] for name in METRICS}
    means = {name: float(np.mean(own)) if own else None for name, own in known.items()}
    return means | {"extrapolated": "; ".join(sorted(outside))}


LiveRuns: TypeAlias = Mapping[tuple[str, str], Sequence[LiveServing]]
"""By name of the load and label of the setting, one per repetition."""


def live_runs(
    bench: Bench,
    options: EngineOptions,
    settings: Sequence[Settings],
    loads: Sequence[Load],
    texts: Sequence[Request],
) -> dict[tuple[str, str], list[LiveServing]]:
    """Every setting under every load, live, as often as the plan says; first once unmeasured."""
    entries = [Entry(each, options.max_num_seqs) for each in settings]
    random, runs = np.random.default_rng(bench.plan.seed), dict[tuple[str, str], list[LiveServing]]()
    cells = [(load, each) for load in loads for each in settings]
    planned = [cells[i] for _ in range(bench.plan.repeats) for i in random.permutation(len(cells))]
    with ExitStack() as stack:
        worlds = live_worlds(bench.job, entries, stack, bench.emulation(entries))
        world = worlds[SPLIT]
        first = asking(texts, np.zeros(options.max_num_seqs))
        for each in settings:
            with suppress(DeadlineMissed):
                serve_live(world, each, first, options, texts)
        for done, (load, each) in enumerate(planned):
            run = serve_in_time(world, each, load.traffic, options, texts)
            runs.setdefault((load.name, each.label), []).append(run)
            bench.progress("live", done + 1, len(planned))
        if bench.time_scale is not None:
            bench.notes["emulated"] = kept_time(worlds.values(), bench.time_scale)
    return runs


def plain_texts(runs: LiveRuns, settings: Settings, trace: Trace) -> bool:
    """Whether all replies of a setting are what plain decoding says of their prompts."""
    spans = list(zip(trace.offsets, trace.offsets[1:], strict=False))
    texts = [tuple(trace.token[start:end].tolist()) for start, end in spans]
    return all(
        said == texts[place % len(texts)][: len(said)]
        for (_, label), own in runs.items()
        if label == settings.label
        for run in own
        for place, said in enumerate(run.texts)
    )


def stored(bench: Bench) -> dict[tuple[str, str], list[Row]]:
    """Metrics of live runs that are predicted again, by load and setting, one per repetition."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in bench.stored.rows if bench.stored is not None else ():
        own = found.setdefault((row["load"], row["setting"]), [{} for _ in row["by_repeat"]])
        for repeat in range(len(own)):
            values = row["by_repeat"]
            own[repeat][row["metric"]] = values[repeat] if repeat < len(values) else None
    return found


def about(results: Results) -> Row:
    """What stands beside the rows: errors by latency and statistic, texts, and how well time was kept."""
    rows = [row for row in results.rows if row["error"] is not None]
    by_metric = grouped(rows, lambda row: row["metric"])
    errors = {
        metric: {
            "median": median(abs(row["error"]) for row in own),
            "largest": max(abs(row["error"]) for row in own),
            "median_spread": median(row["measured_spread"] for row in own),
        }
        for metric, own in by_metric.items()
    }
    texts = [row["identical"] for row in results.rows if row["identical"] is not None]
    return {
        "profile": results.rows[0]["profile"],
        **{name: results.asked[name] for name in ("files", "profile_machine", "machine", "target", "draft")},
        **{name: results.asked[name] for name in ("emulate", "emulated") if results.asked.get(name)},
        "errors": errors,
        "identical_to_plain_decoding": all(texts) if texts else None,
    }


def show(results: Results) -> Iterator[Any]:
    """A table per load, errors by latency, and whether texts are plain decoding's."""
    titles = {"request_goodput": "good requests/s", "output_throughput": "tokens/s"}
    for load, rows in grouped(results.rows, lambda row: row["load"]).items():
        lines: list[Row] = []
        for setting, own in grouped(rows, lambda row: row["setting"]).items():
            known = {row["metric"]: row for row in own}
            for latency in LATENCIES:
                cells = {name: known[f"{name}_{latency}_ms"] for name in STATISTICS}
                lines.append({"setting": setting, "of": f"{latency.upper()}, ms", **cells})
            for metric, title in titles.items():
                if known[metric]["simulated"] is not None:
                    lines.append({"setting": setting, "of": title, "mean": known[metric]})
        columns = [Column("setting", "setting"), Column("", "of"), *(Column(n, n, _cell) for n in STATISTICS)]
        title = f"{load}: {rows[0]['rate']:.3g} requests/s, {rows[0]['requests']} requests"
        yield table(title, columns, lines, left=("",))
    yield "[dim]simulated | measured, error ± half the range of the repetitions[/dim]"
    for metric, own in results.about["errors"].items():
        spread = "" if own["median_spread"] is None else f", spread {own['median_spread']:.1%}"
        yield f"error, {metric}: median {own['median']:.1%}, max {own['largest']:.1%}{spread}"
    if kept := results.about.get("emulated"):
        yield (
            f"emulated: {results.asked['emulate']}, {kept['time_scale']:g} real seconds per second; "
            f"{kept['missed_runs']} runs missed a deadline and were repeated, {kept['late_reports']} "
            "reports came late"
        )
    if (same := results.about["identical_to_plain_decoding"]) is not None:
        yield f"text identical to plain decoding: {'yes' if same else 'NO'}"
    outside = sorted({text for row in results.rows for text in row["extrapolated"].split("; ") if text})
    if outside:
        yield f"[yellow]extrapolated: {'; '.join(outside)}[/yellow]"


def _cell(row: Row) -> str:
    if row["measured"] is None:
        return f"{row['simulated']:.4g}" if row["simulated"] is not None else "-"
    spread = "" if row["measured_spread"] is None else f" ±{100 * row['measured_spread']:.1f}"
    error = "-" if row["error"] is None else f"{100 * row['error']:+.1f}%{spread}"
    return f"{row['simulated']:.4g} | {row['measured']:.4g}  {error}"


def pictures(results: Results) -> dict[str, Picture]:
    """Latencies by load and policy, simulated beside measured."""

    def draw(figure: Any) -> None:
        for axes, (metric, label) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
            mine = [row for row in results.rows if row["metric"] == metric]
            draw_loads(axes, mine, label, legend=metric == next(iter(PANELS)))
        figure.suptitle(f"{results.rows[0]['profile']}: simulated (diamonds), measured (bars: repetitions)")

    return {"": Picture(draw, (11.0, 7.5))}


def draw_loads(axes: Any, rows: Sequence[Row], label: str, *, legend: bool) -> None:
    """A group of settings per load: simulated, and measured with its range."""
    loads = list(dict.fromkeys(row["load"] for row in rows))
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    for i, setting in enumerate(settings):
        mine = [row for row in rows if row["setting"] == setting]
        at = np.arange(len(mine)) + 0.8 * (i + 0.5) / len(settings) - 0.4
        colour = find_policy(mine[0]["policy"]).colour
        axes.plot(at, [r["simulated"] for r in mine], "D", color=colour, markersize=5, label=setting)
        seen = [(x, r) for x, r in zip(at, mine, strict=True) if r["measured"] is not None]
        for x, row in seen:
            ends = [[row["measured"] - row["measured_low"]], [row["measured_high"] - row["measured"]]]
            look = {"fmt": "o", "markerfacecolor": "none", "markersize": 8, "capsize": 3}
            axes.errorbar([x], [row["measured"]], yerr=ends, color=colour, **look)
    axes.set_xticks(range(len(loads)), [f"{load}\n{_rate(rows, load):.3g}/s" for load in loads])
    axes.set_yscale("log")
    frame(axes, x="", y=label, legend=7 * legend)


def _rate(rows: Sequence[Row], load: str) -> float:
    return float(next(row["rate"] for row in rows if row["load"] == load))
