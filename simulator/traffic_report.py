"""`simulate --traffic` and `--rate`: what is asked of a serving run, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from hardware_profiles.files import atomic_write
from hardware_profiles.profile import Profile
from policies.commandline import POSITIVE, about, fitted_table, option, progress_bar
from policies.registry import SettingError, Settings, find_policy
from policies.timeline import Span, chrome_trace
from serving.lookahead import ADAPTS, Adapt, LookaheadByBatch, parse_lookaheads
from serving.loop import StepRecord
from serving.metrics import metrics, parse_slo
from serving.scheduler import EngineOptions
from serving.traces import TRACE_FORMATS, TraceFormat, read_traffic
from serving.traffic import ARRIVALS, Arrivals, Traffic, arrival_times, generated
from simulator.flat_traffic import serve_traffic
from simulator.needs import count_devices, kv_blocks
from simulator.report import FIRST
from simulator.request import SimulationRequest, build_scenario
from simulator.run import baseline_settings
from simulator.traffic import STEPPED

if TYPE_CHECKING:
    from rich.console import Console

REQUESTS = 1000
"""Of made-up traffic, by default."""
COIN_TEXTS, COIN_TOKENS = 64, 1024
"""Made-up replies, which are used in turn."""
LOADS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Of a frontier, over the one asked for."""
ABOVE_0 = click.FloatRange(0, min_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRequest:
    """Options of a serving run; every field is the option of its name."""

    traffic: Path | None = field(
        default=None,
        metadata=about(
            "Serve a trace of requests in place of a full batch.",
            type=click.Path(exists=True, path_type=Path),
        ),
    )
    traffic_format: TraceFormat | None = field(
        default=None,
        metadata=about(
            "Layout of the trace.  [default: as its first line says]", type=click.Choice(TRACE_FORMATS)
        ),
    )
    rate: float | None = option(
        None, "Requests a second: made-up ones, or those of --traffic at other times.", type=ABOVE_0
    )
    prompt: int | None = option(None, "Prompt tokens of made-up requests.  [default: 1000]", type=POSITIVE)
    output: int | None = option(None, "Tokens of their replies.  [default: 300]", type=POSITIVE)
    arrivals: Arrivals | None = field(
        default=None,
        metadata=about("How they come at --rate.  [default: poisson]", type=click.Choice(ARRIVALS)),
    )
    burstiness: float | None = option(
        None, "Shape of --arrivals gamma: 1 is Poisson, less comes in bursts.  [default: 0.5]", type=ABOVE_0
    )
    max_concurrency: int | None = option(
        None, "Users: so many requests are under way at most (a closed loop).", type=POSITIVE
    )
    time_scale: float | None = option(
        None, "Factor on the times of a trace: 0.5 doubles its load.", type=ABOVE_0
    )
    duration: float | None = option(None, "Only what comes in the first so many seconds.", type=ABOVE_0)
    lookahead_by_batch: str | None = option(
        None, "K by the rows of a step, in place of --lookahead: 1:4,8:2,32:0, or vLLM's table."
    )
    adapt: Adapt | None = field(
        default=None,
        metadata=about(
            "Choose by load, at most --lookahead: how many tokens all rows draft, by expected goodput "
            "(SmartSpec), or which of them are verified (vLLM's adaptive verification).",
            type=click.Choice(ADAPTS),
        ),
    )
    slo: str | None = option(None, "Objectives of goodput, s: ttft=1,tpot=0.04,e2el=20.")
    max_num_seqs: int | None = option(None, "Most rows of a step.  [default: 256]", type=POSITIVE)
    max_num_batched_tokens: int | None = option(
        None, "Most tokens of a step.  [default: 2048]", type=POSITIVE
    )
    num_gpu_blocks: int | None = option(None, "KV blocks.  [default: always enough]", type=POSITIVE)
    gpu_memory_utilization: float | None = option(
        None,
        "Share of the memory for weights and KV blocks, as many as fit, in place of --num-gpu-blocks.",
        type=click.FloatRange(0, 1, min_open=True),
    )
    block_size: int | None = option(None, "Tokens of a KV block.  [default: 16]", type=POSITIVE)
    max_model_len: int | None = option(None, "Most tokens of a request.  [default: no limit]", type=POSITIVE)
    enable_chunked_prefill: bool = option(
        True,
        "Read prompts in parts, or whole.",
        spelled=("--enable-chunked-prefill/--no-enable-chunked-prefill",),
    )
    enable_prefix_caching: bool = option(
        True,
        "Find the beginnings of prompts again, or not.",
        spelled=("--enable-prefix-caching/--no-enable-prefix-caching",),
    )

    @property
    def asked(self) -> bool:
        """Whether traffic is to be served.

        Raises:
            SettingError: It is not, and options say how.
        """
        if not (self.traffic is None and self.rate is None and self.max_concurrency is None):
            return True
        for each in fields(self):
            if getattr(self, each.name) != each.default:
                raise SettingError(
                    f"--{each.name.replace('_', '-')} goes with --traffic, --rate or --max-concurrency"
                )
        return False

    @property
    def options(self) -> EngineOptions:
        """Of the engine."""
        names = {each.name for each in fields(EngineOptions)}
        given = {name: getattr(self, name) for name in names}
        return EngineOptions(**{name: value for name, value in given.items() if value is not None})

    def options_for(self, profile: Profile | None, settings: Settings) -> EngineOptions:
        """Of the engine, with the KV blocks that a profile has room for where that is asked for.

        Raises:
            SettingError: Options contradict each other, or the profile does not say.
        """
        if self.gpu_memory_utilization is None:
            return self.options
        if self.num_gpu_blocks is not None or profile is None:
            raise SettingError("--gpu-memory-utilization goes with a profile, in place of --num-gpu-blocks")
        options = self.options
        blocks = kv_blocks(profile, settings, options.block_size, self.gpu_memory_utilization)
        return replace(options, num_gpu_blocks=blocks)

    def requests(self, count: int | None, seed: int) -> Traffic:
        """The requests to serve: the first `count`.

        Raises:
            TrafficError: The file is wrong.
            SettingError: Options contradict each other.
        """
        if self.traffic is None:
            return self._made_up(count or REQUESTS, seed)
        for name in ("prompt", "output"):
            if getattr(self, name) is not None:
                raise SettingError(f"--{name} changes nothing with --traffic: its requests have lengths")
        found = read_traffic(self.traffic, self.traffic_format, block_size=self.options.block_size)
        found = found.cut(count)
        if self.rate is not None:
            if self.time_scale is not None:
                raise SettingError("give either --rate or --time-scale, not both")
            found = found.arriving(self._times(len(found.requests), self.rate, seed))
        elif self.arrivals is not None or self.burstiness is not None:
            raise SettingError("--arrivals and --burstiness go with --rate")
        elif not found.timed and self.max_concurrency is None:
            raise SettingError(
                f"{self.traffic}: does not say when its requests come: give --rate or --max-concurrency"
            )
        return found.scaled(self.time_scale or 1.0).cut(duration_s=self.duration)

    def _made_up(self, count: int, seed: int) -> Traffic:
        for name in ("traffic_format", "time_scale"):
            if getattr(self, name) is not None:
                raise SettingError(f"--{name.replace('_', '-')} goes with --traffic")
        times = np.zeros(count) if self.rate is None else self._times(count, self.rate, seed)
        return generated(count, self.prompt or 1000, self.output or 300, times).cut(duration_s=self.duration)

    def _times(self, count: int, rate: float, seed: int) -> np.ndarray:
        if self.burstiness is not None and self.arrivals != "gamma":
            raise SettingError("--burstiness goes with --arrivals gamma")
        return arrival_times(
            count, rate, self.arrivals or "poisson", burstiness=self.burstiness or 0.5, seed=seed
        )


@dataclass(frozen=True, slots=True)
class Point:
    """A policy at a load: what a user gets of it, and what a device gives.

    Attributes:
        load: Over the one asked for: closer arrivals, or more users.
        tokens_per_second_per_user: One over the mean TPOT; None where no reply has two tokens.
        tokens_per_second_per_device: Of replies.
        good_share: Of requests, where there are objectives.
    """

    policy: str
    load: float
    tokens_per_second_per_user: float | None
    tokens_per_second_per_device: float
    good_share: float | None

    @classmethod
    def of(cls, settings: Settings, load: float, found: Mapping[str, Any], devices: int) -> Point:
        """From a run's metrics."""
        tpot = found["mean_tpot_ms"]
        speed = None if tpot is None else 1e3 / tpot
        return cls(settings.policy, load, speed, found["output_throughput"] / devices, found["good_share"])


@dataclass(frozen=True)
class TrafficReport:
    """A serving run beside plain decoding of the same traffic.

    Attributes:
        found: Metrics of the policy.
        plain: Those of plain decoding; None where the policy is that.
        offered: Requests a second, from the first arrival to the last; None if all come at once.
        sources: Where the numbers come from, in words.
        by_batch: K by the rows of a step; None: always the policy's.
        steps: Of the policy's run, where a timeline is asked for.
        adapt: What chooses K, or what is verified, by load.
        frontier: Of the policy and of plain decoding at other loads, where they are asked for.
    """

    settings: Settings
    traffic: Traffic
    options: EngineOptions
    found: Mapping[str, Any]
    plain: Mapping[str, Any] | None
    sources: dict[str, str]
    by_batch: LookaheadByBatch | None = None
    steps: Sequence[StepRecord] = ()
    adapt: Adapt | None = None
    frontier: Sequence[Point] = ()

    @property
    def offered(self) -> float | None:
        """See above."""
        requests, span = self.traffic.requests, self.traffic.span_s
        return (len(requests) - 1) / span if span > 0.0 else None

    @property
    def label(self) -> str:
        """Of the setting, for people."""
        label = self.settings.label if self.by_batch is None else f"{self.settings.policy} K by batch"
        return label + (f", adaptive {self.adapt}" if self.adapt else "")

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object (docs/reference/json.md)."""
        settings = self.settings
        return {
            "policy": settings.policy,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "knobs": {n: list(v) if isinstance(v, tuple) else v for n, v in settings.knobs.items()},
            "requests": len(self.traffic.requests),
            "offered_rate": self.offered,
            **self.found,
            "engine_options": asdict(self.options),
            "num_speculative_tokens_per_batch_size": None
            if self.by_batch is None
            else self.by_batch.as_vllm(self.options.max_num_seqs),
            "adapt": self.adapt,
            "skipped": dict(self.traffic.skipped),
            "ar": self.plain,
            "frontier": [asdict(point) for point in self.frontier] or None,
            "sources": self.sources,
        }


def serve_asked(
    request: SimulationRequest, asked: TrafficRequest, *, timeline: bool = False, frontier: bool = False
) -> TrafficReport:
    """Serve what the command line asks for, and plain decoding beside it.

    `timeline` keeps the steps, and `frontier` serves both at other loads, too.

    Raises:
        SettingError: Options contradict each other, or the policy or profile cannot be served.
        TrafficError: The traffic is wrong, or can never be served.
    """
    _refuse_closed(request)
    settings = request.query.settings
    traffic = asked.requests(request.requests, settings.seed)
    slo = parse_slo(asked.slo) if asked.slo else None
    table = parse_lookaheads(asked.lookahead_by_batch) if asked.lookahead_by_batch else None
    if table is not None and asked.adapt is not None:
        raise SettingError("give either --lookahead-by-batch or --adapt, not both")
    rounds = request.engine == "event" or settings.policy not in STEPPED
    if isinstance(request.acceptance, float) or request.run_length is not None:
        longest = max(each.output for each in traffic.requests)
        request = replace(request, requests=COIN_TEXTS, max_tokens=max(COIN_TOKENS, longest))
    else:
        request = replace(request, requests=None)
    scenario, sources = build_scenario(request)
    sources |= _said(traffic, asked, rounds=rounds)

    steps = list[StepRecord]()

    def run(
        settings: Settings,
        by_load: LookaheadByBatch | Adapt | None = None,
        watch: Callable[[StepRecord], None] | None = None,
        load: float = 1.0,
    ) -> dict[str, Any]:
        options = asked.options_for(scenario.profile, settings)
        users = asked.max_concurrency and max(1, round(load * asked.max_concurrency))
        with progress_bar(settings.policy, len(traffic.requests)) as progress:
            served, beyond = serve_traffic(
                scenario,
                settings,
                traffic.scaled(1.0 / load) if load != 1.0 else traffic,
                options,
                by_load,
                rounds=rounds,
                max_concurrency=users,
                progress=progress,
                watch=watch,
            )
        found = metrics(served, slo, num_gpu_blocks=options.num_gpu_blocks)
        return {**found, "extrapolated": [asdict(entry) for entry in beyond]}

    found = run(settings, table or asked.adapt, steps.append if timeline else None)
    ar, _ = baseline_settings(settings)
    plain = None if settings.policy == "ar" else run(ar)
    options = asked.options_for(scenario.profile, settings)
    report = TrafficReport(settings, traffic, options, found, plain, sources, table, steps, asked.adapt)
    if not frontier:
        return report
    points = []
    for each, by_load in ((settings, table or asked.adapt), *(() if plain is None else ((ar, None),))):
        devices = 1 if scenario.profile is None else count_devices(each, scenario.profile).total
        points += [Point.of(each, load, run(each, by_load, load=load), devices) for load in LOADS]
    return replace(report, frontier=points)


def _refuse_closed(request: SimulationRequest) -> None:
    """Options of a full batch that mean nothing here."""
    query = request.query
    if query.open_lookahead or query.shaped or query.open_backup:
        raise SettingError("nothing can be left to `auto` with traffic yet: give --lookahead a number")
    if request.batch != 1:
        raise SettingError("--batch is a full batch: with traffic give --max-num-seqs or --max-concurrency")
    if request.engine == "compiled":
        raise SettingError("--engine compiled simulates full batches: with traffic give event, or none")
    for name in ("prompt_length", "max_tokens", "prompt_category"):
        if getattr(request, name) is not None:
            raise SettingError(
                f"--{name.replace('_', '-')} changes nothing here: traffic says how long its texts are"
            )


def _said(traffic: Traffic, asked: TrafficRequest, *, rounds: bool) -> dict[str, str]:
    dropped = "".join(f"; {count} {why}, left out" for why, count in traffic.skipped)
    said = {"traffic": f"{traffic.source}{dropped}"}
    if asked.traffic_format == "sharegpt" or traffic.source.endswith("sharegpt.json"):
        said["traffic"] += "; words in place of tokens"
    if asked.num_gpu_blocks is None and asked.gpu_memory_utilization is None:
        said["kv cache"] = (
            "always enough blocks; --num-gpu-blocks or --gpu-memory-utilization says how many there are"
        )
    said["prompts"] = (
        "read in forwards of their own before a round, by target and draft at once"
        if rounds
        else "read in the steps that verify, by the draft in its own"
    )
    said["replies"] = "the n-th request is accepted like the n-th recorded or tossed one, over and over"
    return said


def write_steps(report: TrafficReport, path: Path) -> None:
    """Chrome-trace JSON of the steps, with rows, queue and KV blocks as curves."""
    spans = [
        Span(
            "engine",
            "step",
            step.began_s,
            step.ended_s,
            {"verifying": step.verifying, "chunk_tokens": step.chunk_tokens},
        )
        for step in report.steps
    ]
    names = ("running", "waiting", "blocks")
    counters = {name: [(step.began_s, getattr(step, name)) for step in report.steps] for name in names}
    text = chrome_trace(spans, title=f"traffic, {report.settings.label}", counters=counters)
    with atomic_write(path) as file:
        file.write(text)


def plot_frontier(report: TrafficReport, path: Path) -> None:
    """Picture of tokens/s/user against tokens/s/device, a point for each load."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.8), layout="constrained")
    for policy in dict.fromkeys(point.policy for point in report.frontier):
        own = [each for each in report.frontier if each.policy == policy and each.tokens_per_second_per_user]
        speeds = [each.tokens_per_second_per_user or 0.0 for each in own]
        colour, label = find_policy(policy).colour, policy if policy == "ar" else report.label
        axes.plot(
            speeds, [p.tokens_per_second_per_device for p in own], marker="o", color=colour, label=label
        )
        for each in own:
            at = (each.tokens_per_second_per_user, each.tokens_per_second_per_device)
            axes.annotate(
                f"{each.load:g}x", at, textcoords="offset points", xytext=(4, 4), fontsize=7, color=colour
            )
    offered = f"1x: {report.offered:.3g} requests/s" if report.offered else "1x: the users asked for"
    axes.set_xlabel(f"tokens/s/user (one over the mean TPOT); {offered}")
    axes.set_ylabel("tokens/s/GPU")
    axes.legend(frameon=False, fontsize=9)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, dpi=130, format=path.suffix.lstrip(".") or "png")
    pyplot.close(figure)


LATENCIES = ("ttft", "tpot", "itl", "e2el")
TITLES = ("ms", "mean", "median", "p90", "p95", "p99")
MS = (
    "ttft: until the first token, queueing included; tpot: per further token; itl: between two rounds; "
    "e2el: until the last token; ar: plain decoding of the same requests"
)


def print_traffic(report: TrafficReport, console: Console) -> None:
    """Tables for people."""
    offered = "all at once" if report.offered is None else f"{report.offered:.3g} requests/s offered"
    console.print(f"[bold]{report.label}[/bold] · {len(report.traffic.requests)} requests, {offered}")
    said = dict(report.sources)
    for kind in [kind for kind in said if kind in (*FIRST, "traffic")]:
        console.print(f"[dim]{kind}: {said.pop(kind)}[/dim]", highlight=False)
    runs = {report.settings.policy: report.found} | ({"ar": report.plain} if report.plain else {})
    for name, found in runs.items():
        rows = [[latency, *(_ms(found, title, latency) for title in TITLES[1:])] for latency in LATENCIES]
        console.print(f"\n[bold]{name}[/bold]: {_line(found)}", highlight=False)
        console.print(fitted_table(TITLES, rows))
    for kind, source in {**said, "ms": MS}.items():
        console.print(f"[dim]{kind}: {source}[/dim]", highlight=False)


def _ms(found: Mapping[str, Any], title: str, latency: str) -> str:
    value = found[f"{title}_{latency}_ms"]
    return "-" if value is None else f"{value:.1f}"


def _line(found: Mapping[str, Any]) -> str:
    parts = [
        f"{found['output_throughput']:.1f} tokens/s",
        f"{found['request_throughput']:.3g} requests/s",
        f"{found['mean_running']:.1f} rows, {found['mean_waiting']:.1f} waiting in the mean",
    ]
    if found["request_goodput"] is not None:
        parts.append(f"goodput {found['request_goodput']:.3g}/s ({100 * found['good_share']:.0f} %)")
    if found["preemptions"]:
        parts.append(f"{found['preemptions']} preemptions")
    if beyond := {entry["operation"] for entry in found["extrapolated"]}:
        parts.append(f"beyond what was measured: {', '.join(sorted(beyond))}")
    return ", ".join(parts)
