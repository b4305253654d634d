"""SGLang: its answers, benchmark, log, gauges, tables and traces; and what vLLM and SGLang write alike."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from hardware_profiles.files import parse_json, to_json
from simulator.imports import vllm
from simulator.imports.measured import (
    Imported,
    ImportRefused,
    Speeds,
    at_line,
    believable,
    count,
    counts,
    from_counts,
    from_histogram,
    from_rounds,
    milliseconds,
    number,
    optional,
    overshoot,
    pool,
    serving_speeds,
    uniform,
)
from simulator.imports.text import (
    Sample,
    begins,
    csv_rows,
    either,
    has,
    is_object,
    json_lines,
    lines_of,
    reads,
    samples_of,
    says,
)

_SGLANG_NAMES = {
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "drafted": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    "rounds": ("spec_verify_ct",),
}
"""Every name that SGLang has given a count, the newest first; several stand side by side during a change."""
_ROW = re.compile(r"^\s*([A-Z][^:]*):\s+([-\w.]+)\s*$")
_CONSOLE = {
    "accept_length": "Accept length",
    "concurrency": "Concurrency",
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
"""What the keys of the benchmarks' JSON are called in the tables that they print."""
_LOGGED = {
    "accept len": re.compile(r"accept len: ([\d.]+)"),
    "accept rate": re.compile(r"accept rate: ([\d.]+)"),
    "#running-req": re.compile(r"#running-req: ([\d.]+)"),
    "gen throughput": re.compile(r"gen throughput \(token/s\): ([\d.]+)"),
}
_GAUGES = {
    "accept len": "sglang:spec_accept_length",
    "accept rate": "sglang:spec_accept_rate",
    "#running-req": "sglang:num_running_reqs",
    "gen throughput": "sglang:gen_throughput",
}
"""What SGLang's log says, and its gauges of the same by the same names."""


@reads(
    "sglang-meta-info",
    "sglang",
    "SGLang's answer: meta_info, or sglext.spec_tokens_details",
    either(has("meta_info"), has("sglext.spec_tokens_details")),
)
def parse_answer(text: str) -> tuple[Imported, ...]:
    """SGLang's counts of one answer: `meta_info` or `sglext.spec_tokens_details`, under any of their names.

    `spec_accept_length` is left alone: it divides by rounds the tokens of the whole answer, the prefill's
    first one included.
    """
    return (_of_answer(parse_json(text)),)


def _of_answer(answer: Mapping[str, Any]) -> Imported:
    found = answer.get("meta_info") or answer["sglext"]["spec_tokens_details"]
    rounds = _first(found, "rounds")
    if not rounds:
        raise ImportRefused("expected spec_verify_ct above 0: this answer was not speculated for")
    accepted, drafted = _first(found, "accepted"), _first(found, "drafted")
    tokens = found.get("completion_tokens", answer.get("usage", {}).get("completion_tokens"))
    known: dict[str, Any] = {
        "engine": "sglang",
        "source": "sglang-meta-info",
        "drafted": drafted,
        "overshoot_tokens": overshoot(rounds, accepted, tokens),
        **uniform(drafted, rounds),
    }
    histogram = _first(found, "histogram")
    if histogram is None:
        return from_counts(rounds, accepted, **known)
    return from_histogram(counts(histogram, "histogram"), rounds=rounds, accepted=accepted, **known)


@reads(
    "sglang-stats",
    "sglang",
    "SGLang's answer: sglext.speculative_decoding_stats",
    has("sglext.speculative_decoding_stats"),
)
def parse_stats(text: str) -> tuple[Imported, ...]:
    """SGLang's `sglext.speculative_decoding_stats`: lists per round, both with one token too many.

    A verification's length counts the root, an accepted length the bonus token.
    """
    found = []
    for entry in parse_json(text)["sglext"]["speculative_decoding_stats"]:
        drafted, accepted = (
            [n - 1 for n in counts(entry.get(name), name)] for name in ("verify_lengths", "accept_lengths")
        )
        found.append(from_rounds(accepted, drafted))
    return (pool(found),)


@reads(
    "answers",
    "",
    "answers of vLLM or SGLang with their counts, JSON lines",
    either(begins("meta_info"), begins("sglext"), begins("metrics")),
    pools=True,
)
def parse_answers(text: str) -> tuple[Imported, ...]:
    """A run's answers with SGLang's or vLLM's counts, one JSON object per line."""
    found: list[Imported] = []
    for at, answer in json_lines(text):
        try:
            with at_line(at):
                found.append(vllm.of_answer(answer) if "metrics" in answer else _of_answer(answer))
        except (LookupError, TypeError, AttributeError) as error:
            raise ImportRefused(f"expected counts of speculative decoding, got {error!r}", at) from error
    return tuple(replace(part, label=f"answer {i}") for i, part in enumerate(found, 1))


def _first(found: Mapping[str, Any], what: str) -> Any:
    """The value under the newest of the names that are there; aliases must agree."""
    values = {name: found[name] for name in _SGLANG_NAMES[what] if found.get(name) is not None}
    if len({to_json(value) for value in values.values()}) > 1:
        raise ImportRefused(f"names of the same count disagree: {values}")
    value = next(iter(values.values()), None)
    return value if value is None or isinstance(value, list) else count(value, next(iter(values)))


@reads(
    "bench-console",
    "",
    "the table that vllm bench serve or SGLang's bench_serving prints",
    says("Serving Benchmark Result"),
)
def parse_console(text: str) -> tuple[Imported, ...]:
    """The table that `vllm bench serve` and SGLang's `bench_serving` print."""
    found_at = [(at, m) for at, line in enumerate(text.splitlines(), 1) if (m := _ROW.match(line))]
    rows = {m.group(1).strip(): m.group(2) for _, m in found_at}
    lines = {m.group(1).strip(): at for at, m in found_at}
    found: dict[str, Any] = {key: rows[name] for key, name in _CONSOLE.items() if name in rows}
    if "Accept length" in rows or rows.get("Backend", "").startswith("sglang"):
        return (of_bench(found),)
    if len(found) < 3:
        raise ImportRefused("expected the table of a serving benchmark (`Serving Benchmark Result`)")
    shares = [(name, value) for name, value in rows.items() if name.startswith("Position ")]
    if shares:  # in percent here
        found["spec_decode_per_position_acceptance_rates"] = [number(v, n) / 100.0 for n, v in shares]
    with at_line(lines.get("Accepted tokens")):
        return (vllm.of_bench(found),)


@reads(
    "sglang-bench",
    "sglang",
    "JSON lines of SGLang's bench_serving --output-file",
    begins("accept_length", "mean_tpot_ms"),
)
def parse_bench(text: str) -> tuple[Imported, ...]:
    """The JSON lines of SGLang's `bench_serving --output-file`: one measurement per run."""
    rows = list(json_lines(text))
    found = []
    for i, (at, row) in enumerate(rows, 1):
        with at_line(at):
            found.append(of_bench(row, f"run {i}" if len(rows) > 1 else ""))
    return tuple(found)


def of_bench(found: Mapping[str, Any], label: str = "") -> Imported:
    """What `bench_serving` says, by the keys of its JSON."""
    length = optional(found, "accept_length")
    note = "the accept length is the server's since it started, not that of this run alone"
    return Imported(
        "sglang",
        "sglang-bench",
        label=label,
        tokens_per_round=length,
        batch=optional(found, "concurrency"),
        speeds=serving_speeds(found),
        notes=() if length is None else (note,),
    )


@reads("sglang-log", "sglang", "SGLang's log", says("Decode batch", "accept len"), pools=True)
def parse_log(text: str) -> tuple[Imported, ...]:
    """SGLang's `Decode batch` lines: one measurement each."""
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        if "Decode batch" not in line or "accept len" not in line:
            continue
        means = {name: number(m.group(1), name, at) for name, p in _LOGGED.items() if (m := p.search(line))}
        with at_line(at):
            found.append(_of_means(means, f"line {at}"))
    if not found:
        raise ImportRefused("expected lines `Decode batch ... accept len: ...`; there are none")
    return tuple(found)


@reads("sglang-nightly", "sglang", "SGLang's performance dashboard", has("results"), says('"acc_length"'))
def parse_nightly(text: str) -> tuple[Imported, ...]:
    """SGLang's performance dashboard: one measurement per model and batch."""
    found = []
    for result in parse_json(text)["results"]:
        for row in result.get("benchmarks", []):
            length = optional(row, "acc_length")
            batch, speed = count(row.get("batch_size"), "batch_size"), optional(row, "output_throughput")
            alone = batch == 1 and length and speed
            found.append(
                Imported(
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


@reads("sglang-gauges", "sglang", "SGLang's /metrics", says("\nsglang:spec_accept_length"))
def parse_gauges(text: str) -> tuple[Imported, ...]:
    """SGLang's gauges: means of the last logging interval, no counters, no positions."""
    samples = samples_of(text)
    means = {what: _gauge(samples, name) for what, name in _GAUGES.items()}
    length = means["accept len"]
    if length is None or not 1.0 <= length < math.inf:
        raise ImportRefused(f"expected a gauge sglang:spec_accept_length of at least 1, got {length}")
    return (_of_means(means),)


def _of_means(means: Mapping[str, float | None], label: str = "") -> Imported:
    """A window of which SGLang tells only means: the acceptance length (with bonus) and the accepted share.

    K = (length - 1) / share.  A round's time is length / throughput with one request running, else unknown.
    """
    length = number(means.get("accept len"), "accept len")
    rate, running, throughput = (means.get(name) for name in list(_GAUGES)[1:])
    # Rounded means: no fewer drafted tokens than the length itself needs.
    depth = max(round((length - 1.0) / rate), math.ceil(length - 1.0)) if rate else None
    round_s = length / throughput if running == 1.0 and throughput else None
    return Imported(
        label=label,
        lookahead=depth or None,
        tokens_per_round=length,
        batch=running,
        speeds=Speeds(tokens_per_second=throughput, round_s=round_s),
        notes=("means of one logging interval: they can be neither added up nor subtracted",),
    )


def _gauge(samples: Sequence[Sample], name: str) -> float | None:
    values = [s.value for s in samples if s.name == name]
    if len(values) > 1:
        raise ImportRefused(
            f"{name} is there {len(values)} times: means of several servers cannot be added up"
        )
    return values[0] if values else None


@reads(
    "specforge",
    "sglang",
    "SpecForge's table of results",
    is_object,
    says('"benchmark_name"', '"accept_length"'),
)
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


@reads(
    "sglang-decoupled-verifier",
    "sglang",
    "SGLang's trace of a decoupled verifier",
    says("num_accepted_drafts", "target_forward_ms"),
)
def parse_decoupled_verifier(text: str) -> tuple[Imported, ...]:
    """SGLang's trace of a decoupled verifier: counts and times of whole batches.  Lengths count the root."""
    rows = list(csv_rows(text))
    rounds, drafted, accepted = (
        sum(count(row.get(name), name, at) for at, row in rows)
        for name in ("batch_size", "valid_tail_sum", "num_accepted_drafts")
    )
    if not rounds:
        raise ImportRefused("expected rows with a batch_size above 0")
    times = [number(row.get("target_forward_ms"), "target_forward_ms", at) for at, row in rows]
    return (
        from_counts(
            rounds,
            accepted,
            lookahead=max(count(row.get("draft_token_num"), "draft_token_num") for _, row in rows) - 1,
            drafted=drafted,
            speeds=Speeds(verify_s=mean(times) / 1e3),
            notes=("drafts stream in: a round verifies what has arrived, at most the lookahead",),
        ),
    )


@reads(
    "sglang-decoupled-proxy", "sglang", "SGLang's trace of a draft proxy", says("accepted_tail_lens_by_req")
)
def parse_decoupled_proxy(text: str) -> tuple[Imported, ...]:
    """SGLang's trace of a draft proxy: what each commit accepted, and whether a pre-drafted branch hit."""
    accepted: list[int] = []
    hits: list[bool] = []
    for at, row in csv_rows(text):
        with at_line(at):
            taken, matched = (
                parse_json(row[name]) for name in ("accepted_tail_lens_by_req", "bonus_match_by_req")
            )
        accepted += [count(n, "accepted_tail_lens_by_req", at) for n in taken.values()]
        hits += [bool(hit) for hit in matched.values()]
    if not accepted or not hits:
        raise ImportRefused("expected commits in accepted_tail_lens_by_req and bonus_match_by_req")
    histogram = [accepted.count(j) for j in range(believable(max(accepted)) + 1)]
    note = "the draft length of a commit is not said: its longest accepted one is taken"
    rate = sum(hits) / len(hits)
    return (from_histogram(histogram, lookahead=None, cache_hit_rate=rate, notes=(note,)),)
