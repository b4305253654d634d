"""SGLang: its answers, benchmark, log, gauges, tables and traces; and what vLLM and SGLang write alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from hardware_profiles.files import parse_json, to_json
from simulator.imports import vllm
from simulator.imports.measured import Imported, ImportRefused, at_line, believable, overshoot, pool, uniform
from simulator.imports.text import (
    Row,
    Sample,
    begins,
    count,
    csv_rows,
    either,
    has,
    is_object,
    json_lines,
    lines_of,
    number,
    reads,
    samples_of,
    says,
    stated,
)

_NAMES = {
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
_GAUGES = {
    "accept len": "sglang:spec_accept_length",
    "accept rate": "sglang:spec_accept_rate",
    "#running-req": "sglang:num_running_reqs",
    "gen throughput (token/s)": "sglang:gen_throughput",
}
"""What SGLang's log says, and its gauges of the same."""


@reads(
    "sglang-meta-info",
    "sglang",
    "SGLang's answer: meta_info, or sglext.spec_tokens_details",
    either(has("meta_info"), has("sglext.spec_tokens_details")),
)
def parse_answer(text: str) -> Imported:
    """SGLang's counts of one answer, under any of their names."""
    return _of_answer(parse_json(text))


def _of_answer(answer: Mapping[str, Any]) -> Imported:
    """`spec_accept_length` is left alone: it divides by rounds also the token that the prefill emits."""
    found = Row(answer.get("meta_info") or answer["sglext"]["spec_tokens_details"])
    rounds, accepted, drafted, histogram = (
        _newest(found, what) for what in ("rounds", "accepted", "drafted", "histogram")
    )
    if not rounds:
        raise ImportRefused("expected spec_verify_ct above 0: this answer was not speculated for")
    delivered = found if "completion_tokens" in found else Row(answer.get("usage", {}))
    known: dict[str, Any] = {
        "engine": "sglang",
        "source": "sglang-meta-info",
        "drafted": drafted,
        "overshoot_tokens": overshoot(rounds, accepted, delivered.whole("completion_tokens")),
        **uniform(drafted, rounds),
    }
    if histogram is None:
        return Imported.from_counts(rounds, accepted, **known)
    histogram = Row({"histogram": histogram}).counts("histogram")
    return Imported.from_histogram(histogram, rounds=rounds, accepted=accepted, **known)


def _newest(found: Row, what: str) -> Any:
    """The value under the newest of the names that are there; aliases must agree."""
    values = {name: found[name] for name in _NAMES[what] if found.get(name) is not None}
    if len({to_json(value) for value in values.values()}) > 1:
        raise ImportRefused(f"names of the same count disagree: {values}")
    value = next(iter(values.values()), None)
    return value if value is None or isinstance(value, list) else count(value, next(iter(values)))


@reads(
    "sglang-stats",
    "sglang",
    "SGLang's answer: sglext.speculative_decoding_stats",
    has("sglext.speculative_decoding_stats"),
)
def parse_stats(text: str) -> Imported:
    """SGLang's `sglext.speculative_decoding_stats`: lists per round, both with one token too many.

    A verification's length counts the root, an accepted length the bonus token.
    """
    found = []
    for entry in map(Row, parse_json(text)["sglext"]["speculative_decoding_stats"]):
        drafted, accepted = (
            [n - 1 for n in entry.counts(name)] for name in ("verify_lengths", "accept_lengths")
        )
        found.append(Imported.from_rounds(accepted, drafted))
    return pool(found)


@reads(
    "answers",
    "",
    "answers of vLLM or SGLang with their counts, JSON lines",
    either(begins("meta_info"), begins("sglext"), begins("metrics")),
    pools=True,
)
def parse_answers(text: str) -> Iterator[Imported]:
    """A run's answers with SGLang's or vLLM's counts, one JSON object per line."""
    for i, answer in enumerate(json_lines(text), 1):
        try:
            with at_line(answer.line):
                found = vllm.of_answer(answer) if "metrics" in answer else _of_answer(answer)
        except (LookupError, TypeError, AttributeError) as error:
            said = f"expected counts of speculative decoding, got {error!r}"
            raise ImportRefused(said, answer.line) from error
        yield replace(found, label=f"answer {i}")


@reads(
    "bench-console",
    "",
    "the table that vllm bench serve or SGLang's bench_serving prints",
    says("Serving Benchmark Result"),
)
def parse_console(text: str) -> Imported:
    """The table that `vllm bench serve` and SGLang's `bench_serving` print."""
    matches = ((at, m) for at, line in enumerate(text.splitlines(), 1) if (m := _ROW.match(line)))
    rows = {m.group(1).strip(): (m.group(2), at) for at, m in matches}
    found = Row({key: rows[name][0] for key, name in _CONSOLE.items() if name in rows})
    if "Accept length" in rows or rows.get("Backend", ("", 0))[0].startswith("sglang"):
        return of_bench(found)
    if len(found) < 3:
        raise ImportRefused("expected the table of a serving benchmark (`Serving Benchmark Result`)")
    shares = [(name, value) for name, (value, _) in rows.items() if name.startswith("Position ")]
    if shares:  # in percent here
        found["spec_decode_per_position_acceptance_rates"] = [number(v, n) / 100.0 for n, v in shares]
    with at_line(rows["Accepted tokens"][1] if "Accepted tokens" in rows else None):
        return vllm.of_bench(found)


@reads(
    "sglang-bench",
    "sglang",
    "JSON lines of SGLang's bench_serving --output-file",
    begins("accept_length", "mean_tpot_ms"),
)
def parse_bench(text: str) -> Iterator[Imported]:
    """The JSON lines of SGLang's `bench_serving --output-file`: one measurement per run."""
    rows = list(json_lines(text))
    for i, row in enumerate(rows, 1):
        with at_line(row.line):
            yield replace(of_bench(row), label=f"run {i}" if len(rows) > 1 else "")


def of_bench(row: Row) -> Imported:
    """What `bench_serving` says, by the keys of its JSON."""
    length = row.optional("accept_length")
    note = "the accept length is the server's since it started, not that of this run alone"
    return Imported(
        "sglang",
        "sglang-bench",
        tokens_per_round=length,
        batch=row.optional("concurrency"),
        notes=() if length is None else (note,),
        **row.serving(),
    )


def _decode_lines(text: str) -> Iterator[Row]:
    for at, line in enumerate(text.splitlines(), 1):
        if "Decode batch" in line and "accept len" in line:
            yield stated(line, at)


@reads(
    "sglang-log",
    "sglang",
    "SGLang's log",
    says("Decode batch", "accept len"),
    rows=_decode_lines,
    empty="expected lines `Decode batch ... accept len: ...`; there are none",
    pools=True,
)
def parse_log(row: Row) -> Imported:
    """A `Decode batch` line of SGLang's log."""
    means = Row({name: row.optional(name) for name in _GAUGES})
    return replace(_of_means(means), label=f"line {row.line}")


@reads("sglang-gauges", "sglang", "SGLang's /metrics", says("\nsglang:spec_accept_length"))
def parse_gauges(text: str) -> Imported:
    """SGLang's gauges: means of the last logging interval, no counters, no positions."""
    samples = samples_of(text)
    means = Row({what: _gauge(samples, name) for what, name in _GAUGES.items()})
    length = means["accept len"]
    if length is None or not 1.0 <= length < math.inf:
        raise ImportRefused(f"expected a gauge sglang:spec_accept_length of at least 1, got {length}")
    return _of_means(means)


def _gauge(samples: Sequence[Sample], name: str) -> float | None:
    values = [s.value for s in samples if s.name == name]
    if len(values) > 1:
        raise ImportRefused(
            f"{name} is there {len(values)} times: means of several servers cannot be added up"
        )
    return values[0] if values else None


def _of_means(row: Row) -> Imported:
    """A window of which SGLang tells only means: the acceptance length (with bonus) and the accepted share.

    K = (length - 1) / share.  A round's time is length / throughput with one request running, else unknown.
    """
    length = row.number("accept len")
    rate, running, throughput = (row.get(name) for name in list(_GAUGES)[1:])
    # Rounded means: no fewer drafted tokens than the length itself needs.
    depth = max(round((length - 1.0) / rate), math.ceil(length - 1.0)) if rate else None
    return Imported(
        lookahead=depth or None,
        tokens_per_round=length,
        batch=running,
        tokens_per_second=throughput,
        round_s=length / throughput if running == 1.0 and throughput else None,
        notes=("means of one logging interval: they can be neither added up nor subtracted",),
    )


@reads("sglang-nightly", "sglang", "SGLang's performance dashboard", has("results"), says('"acc_length"'))
def parse_nightly(text: str) -> Iterator[Imported]:
    """SGLang's performance dashboard: one measurement per model and batch."""
    for result in parse_json(text)["results"]:
        for row in map(Row, result.get("benchmarks", [])):
            batch, length, speed = (
                row.count("batch_size"),
                row.optional("acc_length"),
                row.optional("output_throughput"),
            )
            yield Imported(
                label=f"{result.get('variant', '')} batch {batch}".strip(),
                model=result.get("model"),
                tokens_per_round=length,
                batch=batch,
                tokens_per_second=speed,
                round_s=length / speed if batch == 1 and length and speed else None,
                time_to_first_token_s=row.seconds("ttft_ms"),
            )


def _specforge_rows(text: str) -> Iterator[Row]:
    lines = lines_of(text, "accept_length")
    for model, benchmarks in parse_json(text).items():
        for benchmark in benchmarks.values():
            for setting in benchmark["results"]:
                for row in setting["metrics"]:
                    of = {"model": model, "benchmark": benchmark["benchmark_name"]}
                    yield Row({**setting, **row, **of}, next(lines, None))


@reads(
    "specforge",
    "sglang",
    "SpecForge's table of results",
    is_object,
    says('"benchmark_name"', '"accept_length"'),
    rows=_specforge_rows,
)
def parse_specforge(row: Row) -> Imported:
    """SpecForge's table: a tokens-per-round and a throughput per drafter and setting, at batch 1.

    `num_draft_tokens` counts the root.  With topk above 1 a tree is verified, so that K is its depth.
    """
    steps, topk, batch = (row.count(name) for name in ("steps", "topk", "batch_size"))
    length, speed, name = row.number("accept_length"), row.number("output_throughput"), str(row["Name"])
    step = batch * length / speed if speed else None
    known: dict[str, Any] = {
        "label": f"{row['benchmark']} steps={steps} topk={topk} {name}",
        "model": row["model"],
        "batch": batch,
        "tokens_per_second": speed,
    }
    if length == 1.0 and "out" in name.lower():  # without a draft
        return Imported(target_step_s=step, **known)
    notes = (f"a tree of the {topk} likeliest tokens per step, not a chain",) * (topk > 1)
    return Imported(draft=name, lookahead=steps, tokens_per_round=length, round_s=step, notes=notes, **known)


@reads(
    "sglang-decoupled-verifier",
    "sglang",
    "SGLang's trace of a decoupled verifier",
    says("num_accepted_drafts", "target_forward_ms"),
)
def parse_decoupled_verifier(text: str) -> Imported:
    """SGLang's trace of a decoupled verifier: counts and times of whole batches.  Lengths count the root."""
    rows = list(csv_rows(text))
    rounds, drafted, accepted = (
        sum(row.count(name) for row in rows)
        for name in ("batch_size", "valid_tail_sum", "num_accepted_drafts")
    )
    if not rounds:
        raise ImportRefused("expected rows with a batch_size above 0")
    return Imported.from_counts(
        rounds,
        accepted,
        lookahead=max(row.count("draft_token_num") for row in rows) - 1,
        drafted=drafted,
        verify_s=mean(row.number("target_forward_ms") for row in rows) / 1e3,
        notes=("drafts stream in: a round verifies what has arrived, at most the lookahead",),
    )


@reads(
    "sglang-decoupled-proxy", "sglang", "SGLang's trace of a draft proxy", says("accepted_tail_lens_by_req")
)
def parse_decoupled_proxy(text: str) -> Imported:
    """SGLang's trace of a draft proxy: what each commit accepted, and whether a pre-drafted branch hit."""
    accepted: list[int] = []
    hits: list[bool] = []
    for row in csv_rows(text):
        with at_line(row.line):
            taken, matched = (
                parse_json(row[name]) for name in ("accepted_tail_lens_by_req", "bonus_match_by_req")
            )
            accepted += [count(n, "accepted_tail_lens_by_req") for n in taken.values()]
        hits += [bool(hit) for hit in matched.values()]
    if not accepted or not hits:
        raise ImportRefused("expected commits in accepted_tail_lens_by_req and bonus_match_by_req")
    histogram = [accepted.count(j) for j in range(believable(max(accepted)) + 1)]
    note = "the draft length of a commit is not said: its longest accepted one is taken"
    rate = sum(hits) / len(hits)
    return Imported.from_histogram(histogram, lookahead=None, cache_hit_rate=rate, notes=(note,))
