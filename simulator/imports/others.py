"""GuideLLM, AIPerf and speculators, Spec-Bench, and the logs of the papers' own engines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean
from typing import Any

from hardware_profiles.files import parse_json
from simulator.imports import vllm
from simulator.imports.measured import (
    Imported,
    ImportRefused,
    at_line,
    believable,
    conditional_of,
    survivors_of,
)
from simulator.imports.text import (
    Row,
    begins,
    both,
    count,
    csv_rows,
    either,
    has,
    json_lines,
    number,
    reads,
    says,
)

_CLOSED = re.compile(r"Model: (.+?), Mode: (.+), Total: (\d+)tok, Time: ([\d.]+)s")
_METRIC = re.compile(r"\[metrics\] Avg ([^:]+): ([\d.]+)")
_FREQUENCY = re.compile(r"^\s*(\d+): ([\d.]+)\s*$")
_TARGET = re.compile(
    r"\[PROFILE target\] handshake=([\d.]+)ms verify=([\d.]+)ms .*hits=(\d+)/(\d+) toks=(\d+)"
)
_TREE = re.compile(r"\[PROFILE draft\] tree_decode: K=(\d+) .*total=([\d.]+)ms")
_GENERATED = re.compile(r"Batch Size: (\d+) Total: (\d+)tok, Time: ([\d.]+)s.*MAT: \[([\d., ]+)\]")


@reads("guidellm", "guidellm", "GuideLLM's benchmarks", has("benchmarks"))
def parse_guidellm(text: str) -> Iterator[Imported]:
    """GuideLLM's sweep: times only; the `throughput` strategy, which queues without end, is left out."""
    for entry in parse_json(text)["benchmarks"]:
        strategy = entry["config"]["strategy"]
        kind = str(strategy["type_"])
        if kind == "throughput":
            continue
        metrics = Row({k: v["successful"].get("median") for k, v in entry["metrics"].items()})
        yield Imported(
            label=kind + (f" {strategy['rate']:g}/s" if "rate" in strategy else ""),
            batch=1.0 if kind == "synchronous" else None,
            **metrics.serving("output_tokens_per_second", "inter_token_latency_ms", "time_to_first_token_ms"),
        )


@reads(
    "speculators",
    "vllm",
    "the speculators project's CSV",
    says("num_drafts", "acceptance_at_pos_0"),
    rows=csv_rows,
)
def parse_speculators(row: Row) -> Imported:
    """A row of the speculators project's tables: counts pooled over a subset, joint shares by position."""
    rounds, drafted, accepted = map(row.count, ("num_drafts", "num_draft_tokens", "num_accepted_tokens"))
    if not rounds:
        raise ImportRefused("num_drafts: expected rounds")
    known: dict[str, Any] = {}
    if "itl_median_ms" in row:
        known = row.serving("output_tps_median", "itl_median_ms", "ttft_median_ms")
        known["notes"] = ("the acceptance is pooled over the whole sweep: the same in every row of a subset",)
    return Imported.from_survivors(
        rounds,
        [round(row.number(name) * rounds) for name in row if name.startswith("acceptance_at_pos_")],
        accepted=accepted,
        drafted=drafted,
        label=" ".join(row[k] for k in ("subset", "strategy", "target_rate") if row.get(k)),
        **known,
    )


@reads(
    "aiperf",
    "aiperf",
    "AIPerf's record or pooled histogram",
    either(has("spec_decode_acceptance"), has("pooled_spec_decode_acceptance_histogram")),
)
def parse_aiperf(text: str) -> Imported:
    """AIPerf's record of one request, or its pooled histogram: sparse, keys are strings."""
    holder = parse_json(text)
    if "spec_decode_acceptance" not in holder:
        return Imported.from_histogram(_dense(holder["pooled_spec_decode_acceptance_histogram"]))
    found = Row(holder["spec_decode_acceptance"])
    found["acceptance_histogram"] = _dense(found.get("acceptance_histogram"))
    return replace(vllm.of_counts(found), engine=str(found.get("engine", "aiperf")))


def _dense(sparse: object) -> list[int]:
    """`{"0": 34, "2": 19}` as [34, 0, 19]."""
    if not isinstance(sparse, dict) or not all(str(key).isdigit() for key in sparse):
        raise ImportRefused(f"expected a histogram of whole numbers, got {sparse!r}")
    deepest = believable(max(map(int, sparse), default=-1))
    return [count(sparse.get(str(j), 0), f"histogram[{j}]") for j in range(deepest + 1)]


@reads(
    "spec-bench",
    "spec-bench",
    "Spec-Bench's or REST's answers, JSON lines",
    begins("choices"),
    says('"accept_lengths'),
)
def parse_spec_bench(text: str) -> Imported:
    """Spec-Bench's and REST's answers: a list of tokens per round, bonus counted, one JSON object per line.

    Speeds are ratios of sums; Spec-Bench's own script averages ratios.  REST's counter starts one late: the
    first round of a turn lacks a token, which `new_tokens` gives back.
    """
    lengths: list[int] = []
    tokens, seconds, models = 0, 0.0, set()
    for answer in json_lines(text):
        models.add(str(answer.get("model_id")))
        with at_line(answer.line):
            for choice in answer["choices"]:
                lengths += _rounds(Row(choice))
                tokens += sum(choice["new_tokens"])
                seconds += sum(number(t, "wall_time") for t in choice["wall_time"])
    if not lengths or seconds <= 0.0:
        raise ImportRefused("expected answers with accept_lengths and wall_time")
    note = "times include prefill; speed is a ratio of sums, where Spec-Bench's script averages ratios"
    found = Imported.from_histogram(
        [lengths.count(n) for n in range(1, believable(max(lengths)) + 1)],
        model=min(models),
        lookahead=None,
        batch=1.0,
        tokens_per_second=tokens / seconds,
        notes=(note,),
    )
    if max(lengths) > 1:
        return replace(found, round_s=seconds / len(lengths))
    # A token per round says nothing about a draft.
    notes = (note, "no speculation")
    return replace(found, target_step_s=seconds / tokens, tokens_per_round=None, notes=notes)


def _rounds(choice: Row) -> list[int]:
    """Tokens of each round of all turns."""
    listed = choice.get("accept_lengths", choice.get("accept_lengths:"))
    if listed is None:
        raise ImportRefused("expected accept_lengths in a choice")
    lengths = [count(n, "accept_lengths") for n in listed]
    # idxs is the last index of a turn, decoding_steps a number of rounds.
    steps = choice.get("decoding_steps") or [n + 1 for n in choice["idxs"]]
    if sum(steps) != len(lengths):
        raise ImportRefused(f"expected {sum(steps)} accept_lengths, one per round, got {len(lengths)}")
    start = 0
    for rounds, tokens in zip(steps, choice["new_tokens"], strict=True):
        late = tokens - sum(lengths[start : start + rounds])
        if late not in (0, 1) or rounds < 1:
            raise ImportRefused(f"accept_lengths of a turn make {tokens - late} tokens, not {tokens}")
        lengths[start] += late
        start += rounds
    if min(lengths) < 1:
        raise ImportRefused("a round of no token: every round emits at least the bonus token")
    return lengths


@reads("ssd-log", "ssd", "the SSD engine's log", says("Model: ", "Mode: ", "tok, Time: "))
def parse_ssd(text: str) -> list[Imported]:
    """The SSD engine's log: one measurement per run, each closed by its `Model: ...` line.

    The frequencies are those of rounds after a cache hit; those of all rounds are not logged.
    """
    found: list[Imported] = []
    metrics, frequencies = Row({}), list[float]()
    for at, line in enumerate(text.splitlines(), 1):
        with at_line(at):
            if match := _METRIC.search(line):
                metrics[match.group(1)] = number(match.group(2), match.group(1))
            elif match := _FREQUENCY.match(line):
                frequencies.append(number(match.group(2), "frequency"))
            elif match := _CLOSED.search(line):
                run = _ssd_run(match, metrics, frequencies)
                found.append(replace(run, label=f"line {at}", model=match.group(1)))
                metrics, frequencies = Row({}), []
    if not found:
        raise ImportRefused(
            "expected a line `Model: ..., Mode: ..., Total: Ntok, Time: Ns` of the SSD engine"
        )
    return found


def _ssd_run(closed: re.Match[str], metrics: Row, frequencies: list[float]) -> Imported:
    mode, tokens, seconds = closed.group(2), int(closed.group(3)), number(closed.group(4), "Time")
    depth = re.search(r"Speculative\(k=(\d+)\)", mode)
    if depth is None:
        step = seconds / tokens
        return Imported(tokens_per_second=1.0 / step, target_step_s=step)
    length = metrics.get("Tokens per step (incl recovery)")
    if length is None:
        raise ImportRefused("expected `[metrics] Avg Tokens per step (incl recovery)` before this line")
    round_s, verify_s = map(metrics.seconds, ("target time per full step (ms)", "target verify time (ms)"))
    waits = round_s and verify_s and "Async" not in mode
    hits, on_hit, on_miss = map(
        metrics.get, ("Cache Hits", "Tokens per step on Cache Hit", "Tokens per step on Cache Miss")
    )
    if on_miss is None and hits is not None and on_hit is not None and hits < 1.0:
        on_miss = (length - hits * on_hit) / (1.0 - hits)
    joint = survivors_of(frequencies)
    return Imported(
        lookahead=int(depth.group(1)),
        tokens_per_round=length,
        cache_hit_rate=hits,
        tokens_per_round_on_hit=on_hit,
        tokens_per_round_on_miss=on_miss,
        joint_acceptance_on_hit=joint or None,
        acceptance_on_hit=conditional_of(joint) if joint else None,
        tokens_per_second=tokens / seconds,
        round_s=round_s,
        verify_s=verify_s,
        draft_s_per_round=round_s - verify_s if waits and round_s and verify_s else None,
        notes=("frequencies per position are those of rounds after a cache hit only",) * bool(joint),
    )


@reads("ssd-profile", "ssd", "the SSD engine's profile lines", says("[PROFILE target]"))
def parse_ssd_profile(text: str) -> Imported:
    """The SSD engine's `[PROFILE ...]` lines; `hits=7/8` counts rows, `toks` the bonus token, too."""
    rows = [tuple(map(float, match.groups())) for match in _TARGET.finditer(text)]
    if not rows:
        raise ImportRefused("expected lines `[PROFILE target] handshake=... hits=N/M toks=N`")
    tree = _TREE.search(text)
    hits, served, tokens = (int(sum(row[i] for row in rows)) for i in (2, 3, 4))
    return Imported.from_counts(
        served,
        tokens - served,
        lookahead=int(tree.group(1)) if tree else None,
        cache_hit_rate=hits / served,
        batch=rows[0][3],
        verify_s=mean(row[1] for row in rows) / 1e3,
        draft_s_per_round=float(tree.group(2)) / 1e3 if tree else None,
    )


@reads(
    "pearl",
    "pearl",
    "PEARL's answers, JSON lines",
    either(both(begins("choices"), says('"num_token"')), begins("task_id", "time")),
)
def parse_pearl(text: str) -> Imported:
    """PEARL's answers: times only.  HumanEval's first prompt warms up and is left out."""
    tokens: list[int] = []
    seconds: list[float] = []
    for row in json_lines(text):
        if "choices" in row:
            for choice in row["choices"]:
                tokens += [count(n, "num_token", row.line) for n in choice["num_token"]]
                seconds += [number(t, "wall_time", row.line) for t in choice["wall_time"]]
        else:
            tokens.append(row.count("new_tokens"))
            seconds.append(row.number("time"))
    warm = 1 if '"task_id"' in text and len(tokens) > 1 else 0
    if sum(seconds[warm:]) <= 0.0:
        raise ImportRefused("expected answers with a time above 0")
    speed = sum(tokens[warm:]) / sum(seconds[warm:])
    note = ("the first prompt warms up and is left out",) * warm
    return Imported(batch=1.0, tokens_per_second=speed, notes=note)


@reads("nano-pearl", "nano-pearl", "nano-PEARL's log", says("[PEARL Generate]"))
def parse_nano_pearl(text: str) -> Imported:
    """nano-PEARL's log.  MAT is a run length: it crosses rounds and is no tokens per round."""
    match = _GENERATED.search(text)
    if match is None:
        raise ImportRefused("expected a line `[PEARL Generate] Batch Size: ... MAT: [...]`")
    batch, tokens, seconds, runs = match.groups()
    return Imported(
        batch=float(batch),
        run_length=mean(Row({"MAT": runs}).listed("MAT")),
        tokens_per_second=int(tokens) / number(seconds, "Time"),
        notes=("MAT is the mean run of accepted tokens between two rejections, a mean of means here",),
    )
