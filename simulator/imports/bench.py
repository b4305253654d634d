"""Results of serving benchmarks: `vllm bench serve`, SGLang's `bench_serving`, dashboards, GuideLLM."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from hardware_profiles.jsonfile import parse_json
from simulator.imports.derive import from_joint, from_survivors
from simulator.imports.measured import (
    Imported,
    ImportRefused,
    Speeds,
    at_line,
    count,
    milliseconds,
    number,
    optional,
)
from simulator.imports.prometheus import from_means
from simulator.imports.text import json_lines, lines_of

_ROW = re.compile(r"^\s*([A-Z][^:]*):\s+([-\w.]+)\s*$")


def parse_vllm(text: str) -> tuple[Imported, ...]:
    """The JSON of `vllm bench serve --save-result`.

    The "inter-token" latency is the gap between chunks, which is a round; time per output token is per
    token.  The rate over all positions is in percent, the rates per position are joint fractions.
    """
    return (_vllm(parse_json(text)),)


def parse_console(text: str) -> tuple[Imported, ...]:
    """The table that `vllm bench serve` and SGLang's `bench_serving` print."""
    found_at = [(at, m) for at, line in enumerate(text.splitlines(), 1) if (m := _ROW.match(line))]
    rows = {m.group(1).strip(): m.group(2) for _, m in found_at}
    lines = {m.group(1).strip(): at for at, m in found_at}
    if "Accept length" in rows or rows.get("Backend", "").startswith("sglang"):
        return (_sglang_console(rows),)
    names = {
        "max_concurrency": "Maximum request concurrency",
        "completed": "Successful requests",
        "total_output_tokens": "Total generated tokens",
        "output_throughput": "Output token throughput (tok/s)",
        "mean_ttft_ms": "Mean TTFT (ms)",
        "mean_tpot_ms": "Mean TPOT (ms)",
        "mean_itl_ms": "Mean ITL (ms)",
        "spec_decode_num_drafts": "Drafts",
        "spec_decode_draft_tokens": "Draft tokens",
        "spec_decode_accepted_tokens": "Accepted tokens",
    }
    found: dict[str, Any] = {key: rows[name] for key, name in names.items() if name in rows}
    if len(found) < 3:
        raise ImportRefused("expected the table of a serving benchmark (`Serving Benchmark Result`)")
    shares = [(name, value) for name, value in rows.items() if name.startswith("Position ")]
    if shares:  # in percent here
        found["spec_decode_per_position_acceptance_rates"] = [number(v, n) / 100.0 for n, v in shares]
    with at_line(lines.get("Accepted tokens")):
        return (_vllm(found),)


def _vllm(found: Mapping[str, Any]) -> Imported:
    speculated = "spec_decode_num_drafts" in found
    chunk_s, token_s = milliseconds(found, "mean_itl_ms"), milliseconds(found, "mean_tpot_ms")
    speeds = Speeds(
        tokens_per_second=optional(found, "output_throughput"),
        time_to_first_token_s=milliseconds(found, "mean_ttft_ms"),
        time_per_token_s=token_s,
        round_s=chunk_s if speculated else None,
        target_step_s=None if speculated else token_s,
    )
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": "vllm-bench",
        "model": found.get("model_id"),
        "batch": optional(found, "max_concurrency"),
        "speeds": speeds,
    }
    if not speculated:
        return Imported(notes=("no speculation: times of plain decoding",), **known)
    rounds, drafted, accepted = (
        count(found.get(f"spec_decode_{name}"), f"spec_decode_{name}")
        for name in ("num_drafts", "draft_tokens", "accepted_tokens")
    )
    if not rounds:
        raise ImportRefused("spec_decode_num_drafts is 0: nothing was drafted")
    known["drafted"] = drafted
    if drafted % rounds == 0:
        known["lookahead"] = drafted // rounds
    made, finished = optional(found, "total_output_tokens"), optional(found, "completed")
    if made is not None and finished is not None:
        known["overshoot_tokens"] = rounds + accepted + int(finished) - int(made)
    shares = found.get("spec_decode_per_position_acceptance_rates")
    if not shares:
        return Imported(rounds=rounds, accepted=accepted, tokens_per_round=1.0 + accepted / rounds, **known)
    return from_joint(
        [number(s, "per-position rate") for s in shares], rounds=rounds, accepted=accepted, **known
    )


def _sglang_console(rows: Mapping[str, str]) -> Imported:
    names = {
        "accept_length": "Accept length",
        "concurrency": "Concurrency",
        "output_throughput": "Output token throughput (tok/s)",
        "mean_ttft_ms": "Mean TTFT (ms)",
        "mean_tpot_ms": "Mean TPOT (ms)",
    }
    return _sglang({key: rows[name] for key, name in names.items() if name in rows}, "")


def parse_sglang_bench(text: str) -> tuple[Imported, ...]:
    """The JSON lines of SGLang's `bench_serving --output-file`: one measurement per run."""
    rows = list(json_lines(text))
    found = []
    for i, (at, row) in enumerate(rows, 1):
        with at_line(at):
            found.append(_sglang(row, f"run {i}" if len(rows) > 1 else ""))
    return tuple(found)


def _sglang(found: Mapping[str, Any], label: str) -> Imported:
    length = optional(found, "accept_length")
    return Imported(
        "sglang",
        "sglang-bench",
        label=label,
        tokens_per_round=length,
        batch=optional(found, "concurrency"),
        speeds=Speeds(
            tokens_per_second=optional(found, "output_throughput"),
            time_to_first_token_s=milliseconds(found, "mean_ttft_ms"),
            time_per_token_s=milliseconds(found, "mean_tpot_ms"),
        ),
        notes=("the accept length is the server's since it started, not that of this run alone",)
        if length is not None
        else (),
    )


def parse_sglang_log(text: str) -> tuple[Imported, ...]:
    """SGLang's `Decode batch` lines: one measurement each."""
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        if "Decode batch" not in line or "accept len" not in line:
            continue
        names = {"length": "accept len: ", "rate": "accept rate: ", "running": "#running-req: "}
        values = {
            k: m.group(1) for k, n in names.items() if (m := re.search(re.escape(n) + r"([\d.]+)", line))
        }
        speed = re.search(r"gen throughput \(token/s\): ([\d.]+)", line)
        rate, running = optional(values, "rate"), optional(values, "running")
        throughput = number(speed.group(1), "gen throughput", at) if speed else None
        length = number(values.get("length"), "accept len", at)
        found.append(
            from_means(
                "sglang-log", length, rate=rate, running=running, throughput=throughput, label=f"line {at}"
            )
        )
    if not found:
        raise ImportRefused("expected lines `Decode batch ... accept len: ...`; there are none")
    return tuple(found)


def parse_sglang_nightly(text: str) -> tuple[Imported, ...]:
    """SGLang's performance dashboard: one measurement per model and batch."""
    found = []
    for result in parse_json(text)["results"]:
        for row in result.get("benchmarks", []):
            length = optional(row, "acc_length")
            batch, speed = count(row.get("batch_size"), "batch_size"), optional(row, "output_throughput")
            alone = batch == 1 and length and speed
            found.append(
                Imported(
                    "sglang",
                    "sglang-nightly",
                    label=f"{result.get('variant', '')} batch {batch}".strip(),
                    model=result.get("model"),
                    tokens_per_round=length,
                    batch=batch,
                    speeds=Speeds(
                        tokens_per_second=speed,
                        round_s=length / speed if alone and length and speed else None,
                        time_to_first_token_s=milliseconds(row, "ttft_ms"),
                    ),
                )
            )
    return tuple(found)


def parse_guidellm(text: str) -> tuple[Imported, ...]:
    """GuideLLM's sweep: times only; the `throughput` strategy, which queues without end, is left out."""
    found = []
    for entry in parse_json(text)["benchmarks"]:
        strategy = entry["config"]["strategy"]
        kind = str(strategy["type_"])
        if kind == "throughput":
            continue
        metrics = {k: v["successful"].get("median") for k, v in entry["metrics"].items()}
        rate = f" {strategy['rate']:g}/s" if "rate" in strategy else ""
        speeds = Speeds(
            tokens_per_second=optional(metrics, "output_tokens_per_second"),
            time_per_token_s=milliseconds(metrics, "inter_token_latency_ms"),
            time_to_first_token_s=milliseconds(metrics, "time_to_first_token_ms"),
        )
        one = 1.0 if kind == "synchronous" else None
        found.append(Imported("guidellm", "guidellm", label=kind + rate, batch=one, speeds=speeds))
    return tuple(found)


def parse_speculators(text: str) -> tuple[Imported, ...]:
    """The CSV tables of the speculators project: counts pooled over a subset, joint shares by position."""
    rows = list(csv.DictReader(io.StringIO(text)))
    found = []
    for at, row in enumerate(rows, 2):
        with at_line(at):
            found.append(_speculators(row, at))
    return tuple(found)


def _speculators(row: Mapping[str, str], at: int) -> Imported:
    rounds, drafted, accepted = (
        count(row.get(name), name, at) for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    if not rounds:
        raise ImportRefused("num_drafts: expected rounds", at)
    columns = [name for name in row if name.startswith("acceptance_at_pos_")]
    survivors = [round(number(row[name], name, at) * rounds) for name in columns]
    known: dict[str, Any] = {"engine": "vllm", "source": "speculators", "drafted": drafted}
    label = " ".join(row[k] for k in ("subset", "strategy", "target_rate") if row.get(k))
    if "itl_median_ms" in row:
        known["speeds"] = Speeds(
            tokens_per_second=optional(row, "output_tps_median"),
            time_per_token_s=milliseconds(row, "itl_median_ms"),
            time_to_first_token_s=milliseconds(row, "ttft_median_ms"),
        )
        known["notes"] = ("the acceptance is pooled over the whole sweep: the same in every row of a subset",)
    return from_survivors(rounds, survivors, accepted=accepted, label=label, **known)


def parse_specforge(text: str) -> tuple[Imported, ...]:
    """SpecForge's table: a tokens-per-round and a throughput per drafter and setting, at batch 1.

    `num_draft_tokens` counts the root.  With topk above 1 a tree is verified, so that K is its depth.
    """
    found: list[Imported] = []
    lines = iter(lines_of(text, "accept_length"))
    for model, benchmarks in parse_json(text).items():
        for benchmark in benchmarks.values():
            for setting in benchmark["results"]:
                for row in setting["metrics"]:
                    with at_line(next(lines, None)):
                        found.append(_specforge(model, str(benchmark["benchmark_name"]), setting, row))
    return tuple(found)


def _specforge(model: str, benchmark: str, setting: Mapping[str, Any], row: Mapping[str, Any]) -> Imported:
    steps, topk, batch = (count(setting.get(name), name) for name in ("steps", "topk", "batch_size"))
    length = number(row["accept_length"], "accept_length")
    speed = number(row["output_throughput"], "output_throughput")
    name = str(row["Name"])
    plain = length == 1.0 and "out" in name.lower()
    step = batch * length / speed if speed else None
    return Imported(
        "sglang",
        "specforge",
        label=f"{benchmark} steps={steps} topk={topk} {name}",
        model=model,
        draft=None if plain else name,
        lookahead=None if plain else steps,
        tokens_per_round=None if plain else length,
        batch=batch,
        speeds=Speeds(
            tokens_per_second=speed,
            round_s=None if plain else step,
            target_step_s=step if plain else None,
        ),
        notes=(f"a tree of the {topk} likeliest tokens per step, not a chain",) * (topk > 1 and not plain),
    )
