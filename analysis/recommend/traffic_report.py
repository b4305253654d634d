"""What `recommend --rate` says: one screen, JSON, files for vLLM, their results beside what was predicted.

Names are vLLM 0.32's: `vllm bench sweep serve --serve-params --bench-params`, where the first file has a
dictionary of settings by name and the second a list of loads, and `vllm bench serve --goodput ttft:1000`, in
milliseconds.  Its results are a folder per setting and load with a `run=N.json` each, in which the settings'
names stand as `_benchmark_name`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.intervals import Interval
from analysis.recommend.traffic import Choice, Held, TrafficAnswer, interval_of
from analysis.results import Row
from analysis.show import Column, table
from analysis.study import Picture
from hardware_profiles.files import atomic_write, parse_json, read_text, to_json
from policies.commandline import wide_console
from serving.lookahead import LookaheadByBatch
from serving.metrics import metrics
from simulator.flat_traffic import serve_traffic
from simulator.imports.export import Speculation, engines_load

SHOWN = 9
"""Settings in the table for people."""
WORTH_RUNNING = 3
"""Settings beside plain decoding in the parameter sweep."""
COMPARED = (
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "output_throughput",
)  # fmt: skip
MAP_LOADS = 24
"""Loads of the map of goodput."""
NO_MODELS = "no lines for engines, which cannot load {}"


def as_dict(answer: TrafficAnswer) -> dict[str, Any]:
    """The documented JSON object (docs/reference/json.md)."""
    most = answer.plan.options.max_num_seqs
    return {
        "rate": answer.rate,
        "slo_s": dict(answer.slo),
        "good": answer.plan.good,
        "replicas": answer.replicas,
        "requests": len(answer.traffic.requests),
        "settings": [row(answer, each) for each in answer.held],
        "over_plain": spans(answer.over_plain),
        "over_next": spans(answer.over_next),
        "num_speculative_tokens_per_batch_size": None if answer.table is None else answer.table.as_vllm(most),
        "by_batch_and_context": None if answer.by_context is None else answer.by_context.as_vllm(most),
        "engines": lines(answer),
        "measured": list(compared(answer)) if answer.plan.measured else None,
        "warnings": list(answer.warnings),
        "sources": dict(answer.origins),
    }


def spans(interval: Interval | None) -> dict[str, float] | None:
    """An interval for JSON."""
    return None if interval is None else {name: getattr(interval, name) for name in ("low", "middle", "high")}


def row(answer: TrafficAnswer, held: Held) -> Row:
    """A setting for JSON."""
    counts = held.replicas
    return {
        "setting": held.choice.label,
        "policy": held.choice.settings.policy,
        "lookahead": held.choice.settings.lookahead,
        "holds": held.holds,
        "stops_at_rate": spans(held.stops_at),
        "always_holds": bool(np.isinf(held.stops).any()),
        "devices_per_replica": held.devices,
        "devices": None if counts is None else counts[0] * held.devices,
        "devices_range": None if counts is None else [counts[2] * held.devices, counts[1] * held.devices],
        "latency_s": spans(latency(held)),
        **held.seen,
    }


def latency(held: Held) -> Interval:
    """Mean latency of requests, with its interval over seeds."""
    return interval_of(held.latencies_s)


# For engines


def lines(answer: TrafficAnswer) -> dict[str, str]:
    """Commands to paste, by what they are for; none where engines cannot load the models."""
    target, draft = answer.models
    if not engines_load(target) or not engines_load(draft):
        return {}
    start = f"vllm serve {shlex.quote(target)}"
    best = next(
        each.choice
        for each in answer.held
        if each.choice.settings.policy == "ar" or speculation(answer, each.choice) is not None
    )
    flags = speculation(answer, best)
    found = {"vllm": f"{start}{engine_flags(answer)}" + (f" {flags.flags['vllm']}" if flags else "")}
    if answer.plan.export is not None:
        folder = answer.plan.export
        serve, bench = shlex.quote(start + engine_flags(answer)), shlex.quote(bench_command(answer, target))
        params = f"--serve-params {folder}/serve.json --bench-params {folder}/bench.json"
        found["sweep"] = (
            f"vllm bench sweep serve --serve-cmd {serve} --bench-cmd {bench} {params} -o {folder}/runs"
        )
        found["results"] = f"recommend ... --measured {folder}/runs"
    return found


def engine_flags(answer: TrafficAnswer) -> str:
    """Options of the engine that were given."""
    plan, profile = answer.plan, answer.scenario.profile
    devices = profile.roles.target.tensor_parallel if profile else 1
    names = ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len")
    given = {name: getattr(plan, name) for name in names}
    words = [f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value is not None]
    words += [f" --tensor-parallel-size {devices}"] if devices > 1 else []
    if plan.num_gpu_blocks is not None:
        words.append(f" --num-gpu-blocks-override {plan.num_gpu_blocks}")
    if plan.gpu_memory_utilization is not None:
        words.append(f" --gpu-memory-utilization {plan.gpu_memory_utilization:g}")
    words += [] if plan.enable_prefix_caching else [" --no-enable-prefix-caching"]
    return "".join(words)


def speculation(answer: TrafficAnswer, choice: Choice) -> Speculation | None:
    """A setting for engines; None for plain decoding, and for what no engine takes yet."""
    if choice.settings.policy != "sd" or choice.settings.lookahead is None:
        return None
    if isinstance(choice.by_load, str) or (choice.by_load and len(choice.by_load.contexts) > 1):
        return None
    by_load, most = choice.by_load, answer.plan.options.max_num_seqs
    if isinstance(by_load, LookaheadByBatch):
        by_batch = {first: k for first, *_, k in by_load.as_vllm(most)}
        deepest = max(1, by_load.most)
        return Speculation(deepest, model=answer.models[1], by_batch=by_batch, largest_batch=most)
    return Speculation(choice.settings.lookahead, model=answer.models[1])


def bench_command(answer: TrafficAnswer, target: str) -> str:
    """`vllm bench serve` with the same traffic, as far as it knows such."""
    plan, count = answer.plan, len(answer.traffic.requests)
    goals = " ".join(f"{name}:{1e3 * seconds:g}" for name, seconds in answer.slo.items())
    words = (
        f"vllm bench serve --model {shlex.quote(target)} --num-prompts {count} --goodput {goals} --ignore-eos"
    )
    if plan.traffic is None:
        first = answer.traffic.requests[0]
        words += (
            f" --dataset-name random --random-input-len {first.prompt} --random-output-len {first.output}"
        )
    if plan.arrivals == "gamma":
        words += f" --burstiness {plan.burstiness or 0.5:g}"
    return words


def worth_running(answer: TrafficAnswer) -> list[Held]:
    """The few settings that the engine should decide between: the fastest ones, the table, plain decoding."""
    known = [each for each in answer.held if each.choice.settings.policy == "sd"]
    known = [each for each in known if speculation(answer, each.choice) is not None]
    kept = known[:WORTH_RUNNING]
    tables = [each for each in known if isinstance(each.choice.by_load, LookaheadByBatch)]
    kept += [each for each in tables[:1] if each not in kept]
    return kept + [each for each in answer.held if each.choice.settings.policy == "ar"]


def export(answer: TrafficAnswer) -> list[Path]:
    """Write what `vllm bench sweep serve` reads, and the table of lookaheads alone; returns the files."""
    folder = answer.plan.export
    assert folder is not None
    serve: dict[str, Any] = {}
    for each in worth_running(answer):
        flags = speculation(answer, each.choice)
        config = {} if flags is None else {"speculative_config": parse_json(flags.vllm_config)}
        serve[each.choice.label] = config
    at = {
        answer.rate / answer.replicas,
        *(e.stops_at.middle for e in worth_running(answer)[:1] if e.stops_at),
    }
    loads = [{"request_rate": round(rate, 4)} for rate in sorted(at)]
    files: dict[str, Any] = {"serve.json": serve, "bench.json": loads}
    if answer.table is not None:
        files["lookaheads.json"] = answer.table.as_vllm(answer.plan.options.max_num_seqs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with atomic_write(folder / name) as file:
            file.write(to_json(content, indent=2) + "\n")
    return [folder / name for name in files]


def read_results(folder: Path) -> dict[tuple[str, float], list[Mapping[str, Any]]]:
    """Results of a sweep, by setting and requests a second.

    Raises:
        ValueError: There are none, or one is no result of a sweep with named settings.
    """
    runs: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for path in sorted(folder.rglob("run=*.json")):
        try:
            found = parse_json(read_text(path))
            key = (str(found["_benchmark_name"]), float(found["request_rate"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: no result of a sweep with named settings: {error!r:.60}") from error
        runs.setdefault(key, []).append(found)
    if not runs:
        raise ValueError(f"{folder}: there is no run=N.json in it or below it")
    return runs


def compared(answer: TrafficAnswer) -> Iterator[Row]:
    """Results of a sweep beside what is predicted at their loads; a row per metric.

    Raises:
        ValueError: As `read_results`, or a setting is none of those here.
    """
    assert answer.plan.measured is not None
    by_label = {each.choice.label: each.choice for each in answer.held}
    for (name, rate), found in read_results(answer.plan.measured).items():
        if name not in by_label:
            raise ValueError(f"{name!r} of the results is none of the settings here: {', '.join(by_label)}")
        predicted = predicted_at(answer, by_label[name], rate)
        for metric in COMPARED:
            values = [each[metric] for each in found if each.get(metric) is not None]
            if values and predicted.get(metric):
                measured = float(np.mean(values))
                yield {
                    "setting": name,
                    "rate": rate,
                    "metric": metric,
                    "runs": len(values),
                    "measured": measured,
                    "predicted": predicted[metric],
                    "error": predicted[metric] / measured - 1.0,
                }


def predicted_at(answer: TrafficAnswer, choice: Choice, rate: float) -> Mapping[str, Any]:
    """Metrics of a setting at a load."""
    traffic = answer.traffic.scaled(answer.rate / rate)
    options = answer.plan.options_for(answer.scenario.profile, choice.settings)
    served, _ = serve_traffic(answer.scenario, choice.settings, traffic, options, choice.by_load)
    return metrics(served, answer.slo)


# For people


def _stops(row: Row) -> str:
    if row["always_holds"]:
        return "not by so few"
    return "{middle:.2f} ({low:.2f}-{high:.2f})".format(**row["stops_at_rate"])


def _devices(row: Row) -> str:
    if row["devices"] is None:
        return "-"
    low, high = row["devices_range"]
    return f"{row['devices']}" + (f" ({low}-{high})" if low != high else "")


COLUMNS = (
    Column("setting", "setting"),
    Column("holds", lambda row: "yes" if row["holds"] else "no"),
    Column("good %", lambda row: f"{100 * row['good_share']:.0f}"),
    Column("latency s", lambda row: "{middle:.2f} ({low:.2f}-{high:.2f})".format(**row["latency_s"])),
    Column("TTFT\np99 s", lambda row: f"{1e-3 * row['p99_ttft_ms']:.2f}"),
    Column("TPOT\np99 ms", lambda row: "-" if row["p99_tpot_ms"] is None else f"{row['p99_tpot_ms']:.1f}"),
    Column("tok/s", "output_throughput", "{:.0f}"),
    Column("stops holding at\nrequests/s", _stops),
    Column("devices", _devices),
)


def print_answer(answer: TrafficAnswer) -> None:
    """The answer for people, on one screen."""
    say = partial(wide_console().print, highlight=False)
    winner, share = answer.winner, 100 * (answer.plan.good)
    goals = ", ".join(f"{name} at most {seconds:g} s" for name, seconds in answer.slo.items())
    say(f"[bold]{answer.rate:.3g} requests/s[/bold]: {answer.traffic.source}")
    say(f"SLO: {goals}, for {share:.3g} % of requests; {len(winner.stops)} repetitions of each run")
    if winner.holds:
        several = f"{answer.replicas} replicas" if answer.replicas > 1 else "1 replica"
        say(
            f"[bold]{winner.choice.label}[/bold] is the fastest that holds it, on {several} of "
            f"{winner.devices} device{'s' * (winner.devices > 1)}"
        )
        for what, over in (("plain decoding", answer.over_plain), ("the next one", answer.over_next)):
            if over is not None:
                apart = "" if over.low > 1.0 or over.high < 1.0 else ": not told apart"
                say(f"requests end {over.middle:.2f}x sooner than by {what} ({over}){apart}")
    else:
        say("[bold yellow]nothing holds it at any load: a request alone takes longer than a bound[/]")
    rows = [row(answer, each) for each in answer.held]
    say(table("", COLUMNS, rows[:SHOWN], drop=("tok/s", "good %")))
    if answer.table is not None:
        ranges = answer.table.as_vllm(answer.plan.options.max_num_seqs)
        say(f"[bold]K by batch[/bold]: --lookahead-by-batch '{to_json(ranges)}'", soft_wrap=True)
    for name, line in lines(answer).items():
        say(f"[bold]{name}[/bold]: {line}", soft_wrap=True)
    if not lines(answer):
        say(NO_MODELS.format(" and ".join(name for name in answer.models if not engines_load(name))))
    if answer.plan.num_gpu_blocks is None and answer.plan.gpu_memory_utilization is None:
        say("[dim]KV blocks are taken to be always enough: --gpu-memory-utilization 0.9 counts them[/dim]")
    for warning in answer.warnings:
        say(f"[yellow]{warning}[/yellow]")
    if answer.plan.measured:
        say(compared_table(answer))


def compared_table(answer: TrafficAnswer) -> Any:
    """Measured beside predicted."""
    return table(
        "Measured and predicted",
        (
            Column("setting", "setting"),
            Column("requests/s", "rate", "{:.3g}"),
            Column("metric", "metric"),
            Column("runs", "runs"),
            Column("measured", "measured", "{:.1f}"),
            Column("predicted", "predicted", "{:.1f}"),
            Column("error %", lambda row: f"{100 * row['error']:+.1f}"),
        ),
        list(compared(answer)),
    )


def goodput_map(answer: TrafficAnswer) -> Picture:
    """Requests a second that meet the SLO, over load and lookahead: the best K are framed."""
    settings = sorted(
        (
            each
            for each in answer.held
            if each.choice.by_load is None and each.choice.settings.policy in {"ar", "sd"}
        ),
        key=lambda each: each.choice.settings.lookahead or 0,
    )
    known = [stop for each in settings for stop in each.stops if 0.0 < stop < float("inf")]
    high = 1.3 * max([answer.rate, *known])
    rates = np.linspace(high / MAP_LOADS, high, MAP_LOADS)
    found = [[predicted_at(answer, each.choice, float(rate)) for rate in rates] for each in settings]
    goodput = np.array([[cell["request_goodput"] for cell in line] for line in found])
    names = [str(each.choice.settings.lookahead or "AR") for each in settings]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        width = rates[1] - rates[0]
        image = axes.imshow(
            goodput,
            aspect="auto",
            origin="lower",
            extent=(rates[0] - width / 2, rates[-1] + width / 2, -0.5, len(names) - 0.5),
            cmap="viridis",
        )
        for column, rate in enumerate(rates):
            holding = [
                line for line, each in enumerate(found) if each[column]["good_share"] >= answer.plan.good
            ]
            if holding:
                best = min(holding, key=lambda line: found[line][column]["mean_e2el_ms"])
                axes.plot(rate, best, marker="s", markersize=6, markerfacecolor="none", color="white")
        for line, each in enumerate(settings):
            if each.stops_at is not None and each.stops_at.middle:
                axes.plot(
                    [each.stops_at.middle] * 2, [line - 0.45, line + 0.45], color="#c44e52", linewidth=2
                )
        axes.set_yticks(range(len(names)), names)
        axes.axvline(answer.rate / answer.replicas, color="white", linewidth=0.8, linestyle=":")
        axes.set_xlabel("requests/s of a replica (dotted: asked for)")
        axes.set_ylabel("K")
        figure.colorbar(image, label="goodput, requests/s")
        goals = ", ".join(f"{name} {seconds:g} s" for name, seconds in answer.slo.items())
        axes.set_title(
            f"Goodput under {goals}\nred: stops holding it for {100 * (answer.plan.good):.3g} %; "
            "squares: the fastest that holds it",
            fontsize=9,
        )

    return Picture(draw, (8.0, 1.6 + 0.45 * len(names)))
