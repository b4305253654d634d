"""vLLM: its counters (which llama.cpp has, too), benchmark, answers, log and dynamic-speculation profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from hardware_profiles.files import parse_json
from simulator.imports.measured import Imported, ImportRefused, at_line, believable, overshoot, uniform
from simulator.imports.text import (
    Row,
    Sample,
    count,
    either,
    has,
    is_object,
    number,
    reads,
    samples_of,
    says,
    stated,
)

ENGINES = {"vllm": "vllm", "llamacpp": "llama.cpp"}
_STATUS = re.compile(r"Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs")
_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_DEEPEST_LISTED = 64
_LONGEST = "max_num_speculative_tokens"
_SHORT = "joint rates count short rounds as rejections"
_V0 = "the V0 engine counts tokens accepted after a rejection, too: its rate and accepted tokens are left out"
SUSPECT = 3.0
"""A round this many times as long as one of the next smaller lookahead is said to be an outlier."""


@reads("vllm-counters", "vllm", "vLLM's /metrics", says("\nvllm:spec_decode_num_draft"))
@reads("llamacpp-counters", "llama.cpp", "llama-server's /metrics", says("\nllamacpp:spec_decode_num_draft"))
def parse_counters(text: str) -> Imported:
    """VLLM's and llama.cpp's counters, since the server started.

    Counters are totals over all engines of a data-parallel server; the `_created` twins are Unix times.
    Per position they count rounds that got that far: joint.
    """
    return _of_counters(samples_of(text), "counters")


@reads(
    "vllm-counters-delta",
    "vllm",
    "differences of vLLM's counters, as JSON",
    is_object,
    says("vllm:spec_decode_num_drafts"),
)
def parse_delta(text: str) -> Imported:
    """A JSON object whose keys are metric lines and whose values are differences of counters."""
    holder = parse_json(text)
    delta = holder.get("spec_metrics_delta", holder)
    lines = [f"{name} {value}" for name, value in delta.items() if ":" in name]
    return _of_counters(samples_of("\n".join(lines)), "counters-delta")


def parse_difference(before: str, after: str) -> Imported:
    """Two pages of one server: what was counted between them.

    Raises:
        ImportRefused: A counter fell (the server restarted), or a series of the first page is gone.
    """
    old, new = (
        {
            (s.name, tuple(sorted(s.labels.items()))): s
            for s in samples_of(page)
            if s.name.endswith(("_total", "_sum", "_count", "_bucket"))
        }
        for page in (before, after)
    )
    if gone := old.keys() - new.keys():
        raise ImportRefused(f"{min(gone)[0]} is in the first page only: is this the same server?")
    differences = []
    for key, sample in new.items():
        value = sample.value - (old[key].value if key in old else 0.0)
        if value < 0.0:
            raise ImportRefused(
                f"{sample.name} fell: the server restarted between the two pages", sample.line
            )
        differences.append(replace(sample, value=value))
    return _of_counters(differences, "counters-difference")


def _of_counters(samples: Sequence[Sample], source: str) -> Imported:
    prefix = next((p for p in ENGINES if any(s.name.startswith(f"{p}:spec_decode") for s in samples)), None)
    if prefix is None:
        raise ImportRefused(
            "expected counters vllm:spec_decode_* or llamacpp:spec_decode_*; there are none (is speculative "
            "decoding on, and has a request been served?)"
        )
    if len(models := {s.labels["model_name"] for s in samples if "model_name" in s.labels}) > 1:
        raise ImportRefused(f"counters of several models cannot be added up: {', '.join(sorted(models))}")
    rounds, drafted, accepted, finished, made = (
        _total(samples, f"{prefix}:{name}")
        for name in (
            "spec_decode_num_drafts",
            "spec_decode_num_draft_tokens",
            "spec_decode_num_accepted_tokens",
            "request_success",
            "generation_tokens",
        )
    )
    if not rounds or not drafted:
        raise ImportRefused(f"expected {prefix}:spec_decode_num_drafts above 0: nothing was drafted")
    survivors = _positions(samples, f"{prefix}:spec_decode_num_accepted_tokens_per_pos")
    known: dict[str, Any] = {
        "engine": ENGINES[prefix],
        "source": f"{prefix}-{source}",
        "model": min(models, default=None),
        "drafted": drafted,
        "lookahead": drafted // rounds if drafted % rounds == 0 else len(survivors) or None,
    }
    notes = []
    if drafted % rounds:
        notes.append(
            f"the draft length varies ({drafted / rounds:.3f} drafted per round): joint rates count short "
            "rounds as rejections and are biased low at the end"
        )
    if finished:  # a prefill emits a request's first token, every round one more than it accepts
        known["overshoot_tokens"] = overshoot(rounds, accepted, made, finished)
    decoding = next((s for s in samples if s.name == f"{prefix}:request_decode_time_seconds_sum"), None)
    if decoding is not None and decoding.value > 0.0:
        known["round_s"] = decoding.value / rounds
        notes.append(
            "the time of a round is right only if requests ran one at a time, which counters do not say"
        )
    known["notes"] = tuple(notes)
    if survivors:
        return Imported.from_survivors(rounds, survivors, accepted=accepted, **known)
    return Imported.from_counts(rounds, accepted, **known)


def _total(samples: Sequence[Sample], name: str) -> int | None:
    values = [count(s.value, s.name, s.line) for s in samples if s.name in (name, f"{name}_total")]
    return sum(values) if values else None


def _positions(samples: Sequence[Sample], name: str) -> list[int]:
    """Rounds that got as far as each position; pages list positions in any order."""
    totals: dict[int, int] = {}
    for sample in samples:
        if sample.name in (name, f"{name}_total"):
            at = count(sample.labels.get("position"), "label position", sample.line)
            totals[at] = totals.get(at, 0) + count(sample.value, sample.name, sample.line)
    if sorted(totals) != list(range(len(totals))):
        raise ImportRefused(f"{name}: expected positions 0, 1, 2, ..., got {sorted(totals)}")
    return [totals[at] for at in range(len(totals))]


@reads("vllm-bench", "vllm", "vllm bench serve --save-result", has("mean_itl_ms", "output_throughput"))
def parse_bench(text: str) -> Imported:
    """The JSON of `vllm bench serve --save-result`."""
    return of_bench(Row(parse_json(text)))


def of_bench(row: Row) -> Imported:
    """What `vllm bench serve` says, by the keys of its JSON.

    The "inter-token" latency is the gap between chunks, which is a round; time per output token is per
    token.  The rate over all positions is in percent, the rates per position are joint fractions.
    """
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": "vllm-bench",
        "model": row.get("model_id"),
        "batch": row.optional("max_concurrency"),
        **row.serving(),
    }
    round_s = row.seconds("mean_itl_ms")
    if "spec_decode_num_drafts" not in row:
        note = "no speculation: times of plain decoding"
        return Imported(target_step_s=row.seconds("mean_tpot_ms"), notes=(note,), **known)
    rounds, drafted, accepted = (
        row.count(f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens", "accepted_tokens")
    )
    if not rounds:
        raise ImportRefused("spec_decode_num_drafts is 0: nothing was drafted")
    made, finished = row.optional("total_output_tokens"), row.optional("completed")
    if made is not None and finished is not None:
        known["overshoot_tokens"] = overshoot(rounds, accepted, int(made), int(finished))
    shares = row.get("spec_decode_per_position_acceptance_rates") or ()
    joint = [number(share, "per-position rate") for share in shares]
    known |= {"drafted": drafted, "round_s": round_s, **uniform(drafted, rounds)}
    return Imported.from_joint(joint, rounds=rounds, accepted=accepted, **known)


@reads(
    "vllm-request",
    "vllm",
    "vLLM's answer with --per-request-spec-decode-metrics",
    has("metrics.speculative_decoding"),
)
def parse_request(text: str) -> Imported:
    """VLLM's `metrics.speculative_decoding` of one answer, summary or detailed."""
    return of_answer(parse_json(text))


def of_answer(answer: Mapping[str, Any]) -> Imported:
    """What one answer says."""
    delivered = Row(answer.get("usage", {})).whole("completion_tokens")
    found = of_counts(Row(answer["metrics"]["speculative_decoding"]), delivered)
    return replace(found, source="vllm-request")


def of_counts(row: Row, delivered: int | None = None) -> Imported:
    """Counts of one answer, of which the engine delivered so many tokens; None if not said."""
    rounds, drafted, accepted = (
        row.count(name) for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    known: dict[str, Any] = {"engine": "vllm", "overshoot_tokens": overshoot(rounds, accepted, delivered)}
    if "per_step_accepted" in row:
        per_round = [row.counts(f"per_step_{name}", name) for name in ("accepted", "drafted")]
        return Imported.from_rounds(per_round[0], per_round[1], **known)
    histogram = row.counts("acceptance_histogram")
    if drafted != rounds * (len(histogram) - 1):
        known["notes"] = (f"the draft length varies: {_SHORT}",)
    return Imported.from_histogram(histogram, rounds=rounds, drafted=drafted, accepted=accepted, **known)


@reads(
    "vllm-log",
    "vllm",
    "vLLM's log",
    either(says("SpecDecoding metrics: "), says("Speculative metrics: ")),
    pools=True,
)
def parse_log(text: str) -> list[Imported]:
    """One measurement per `SpecDecoding` line, and one for plain decoding that was logged before them.

    Rates per position are joint, over the rounds of the window.  The number of listed positions is not
    taken for K: a known version lists one too many.
    """
    windows: list[Row] = []
    old: list[Imported] = []
    plain: list[tuple[float, float]] = []
    status, stamp = (0.0, 0.0), ""
    for at, line in enumerate(text.splitlines(), 1):
        time = found.group() if (found := _TIME.search(line)) else None
        _, said, body = line.partition("SpecDecoding metrics: ")
        if found := _STATUS.search(line):
            status, stamp = (float(found.group(1)), float(found.group(2))), time or ""
            if not windows and not old:
                plain.append(status)
        elif said:
            paired = time is not None and stamp == time  # with the status that belongs to this line
            if plain and paired and not windows:
                plain.pop()
            windows.append(_window(body, at, status if paired else (None, None)))
        elif "Speculative metrics: " in line:
            old.append(_of_v0(stated(line.partition("Speculative metrics: ")[2], at)))
    if not windows and not old:
        raise ImportRefused("expected a line `SpecDecoding metrics: ...` of vLLM; there is none")
    measured = [*old, *_of_windows(windows)]
    return [*_plain(plain), *sorted(measured, key=lambda m: int(m.label.removeprefix("line ")))]


def _plain(statuses: Sequence[tuple[float, float]]) -> list[Imported]:
    steps = [running / speed for speed, running in statuses if speed > 0.0 and running > 0.0]
    if not steps:
        return []
    note = "status lines before the first SpecDecoding line, taken for plain decoding"
    speed = median(s for s, running in statuses if s and running)
    return [Imported(label="plain", target_step_s=median(steps), tokens_per_second=speed, notes=(note,))]


def _window(body: str, at: int, status: tuple[float | None, float | None]) -> Row:
    """A `SpecDecoding` line: what it states, `joint` rates, and `throughput` and `running` of its status."""
    row = stated(body, at)
    for key in ("Accepted", "Drafted"):
        if key not in row:
            raise ImportRefused(f"expected `{key}: N tokens` in a SpecDecoding line", at)
        row[key] = row.count(key)
    shares = re.search(r"Per-position acceptance rate: ([\d., ]+)", body)
    row["Per-position acceptance rate"] = shares.group(1) if shares else ""
    row["joint"] = tuple(row.listed("Per-position acceptance rate"))
    row["Drafted throughput"] = row.optional("Drafted throughput")
    row["throughput"], row["running"] = status
    return row


def _of_windows(windows: Sequence[Row]) -> list[Imported]:
    """Windows that list as many positions are of one run: their K is one that fits them all."""
    found = []
    for positions in {len(w["joint"]): None for w in windows}:
        alike = [w for w in windows if len(w["joint"]) == positions]
        fitting = set.intersection(*map(_depths, alike))
        for window in alike:
            depths = fitting or _depths(window)
            # The K that as many positions were listed for, else the deepest that is no deeper.
            depth = max((k for k in depths if k <= positions), default=min(depths, default=None))
            with at_line(window.line):
                found.append(_of_window(window, depth))
    return found


def _depths(window: Row) -> set[int]:
    """Every K at which the whole rounds of the window give the printed mean length."""
    length, drafted = window.get("Mean acceptance length"), window["Drafted"]
    if length is None or not drafted:
        return set()
    rounding = 0.50001 * 10 ** -len(length.partition(".")[2])
    return {
        k
        for k in range(1, _DEEPEST_LISTED + 1)
        if drafted % k == 0 and abs(1.0 + window["Accepted"] * k / drafted - float(length)) <= rounding
    }


def _of_window(window: Row, depth: int | None) -> Imported:
    joint, drafted, accepted = window["joint"], window["Drafted"], window["Accepted"]
    length, running = window.get("Mean acceptance length"), window["running"]
    rounds, notes = drafted // depth if depth else None, list[str]()
    if depth is None and length is not None and float(length) > 1.0:
        rounds = round(accepted / (float(length) - 1.0))
        notes.append(f"the draft length varies: rounds come from the printed mean length, {_SHORT}")
    elif depth is not None and depth != len(joint):
        notes.append(f"{len(joint)} positions are listed but {depth} tokens are drafted per round")
    speed = window["Drafted throughput"]
    known: dict[str, Any] = {
        "label": f"line {window.line}",
        "lookahead": depth,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "batch": running,
        "tokens_per_second": window["throughput"],
        # With one request running, rounds follow each other: drafted per second / K of them per second.
        "round_s": depth / speed if running == 1.0 and depth and speed else None,
        "notes": tuple(notes),
    }
    if not joint and not rounds:
        return Imported(**known)
    found = Imported.from_joint(joint[:depth], **known)
    if joint and depth is None and length is not None:
        return replace(found, tokens_per_round=float(length))
    return found


def _of_v0(row: Row) -> Imported:
    names = ("Number of speculative tokens", "Number of draft tokens", "Number of emitted tokens")
    for name in names:
        if name not in row:
            raise ImportRefused(f"expected {name!r} in a `Speculative metrics` line", row.line)
    depth, drafted, emitted = map(row.count, names)
    if not depth or not drafted:
        raise ImportRefused("expected tokens that were drafted in a `Speculative metrics` line", row.line)
    return Imported(
        label=f"line {row.line}",
        version="V0 engine",
        lookahead=depth,
        rounds=drafted // depth,
        drafted=drafted,
        tokens_per_round=emitted / (drafted // depth),
        notes=(_V0,),
    )


@reads("vllm-dynamic", "vllm", "vLLM's dynamic-speculation profile", has("acceptance_rate_per_pos"))
def parse_dynamic(text: str) -> Imported:
    """`acceptance_rate_per_pos` (joint) and `batch_stats` (milliseconds of a round by batch and K; 0: plain).

    This layout was proposed for vLLM and never merged; figures in it were measured nevertheless.
    """
    row = Row(parse_json(text))
    joint = [number(share, "acceptance_rate_per_pos") for share in row["acceptance_rate_per_pos"]]
    if not joint:
        raise ImportRefused("acceptance_rate_per_pos: expected the rate of a position")
    rounds = sorted(
        (count(batch, "batch"), believable(count(depth, "lookahead")), number(ms, "batch_stats") / 1e3)
        for batch, by_depth in row["batch_stats"].items()
        for depth, ms in by_depth.items()
    )
    return Imported.from_joint(
        joint,
        rounds=None,
        accepted=None,
        lookahead=row.count(_LONGEST) if _LONGEST in row else len(joint),
        target_step_s=next((seconds for batch, depth, seconds in rounds if (batch, depth) == (1, 0)), None),
        round_s_by_batch=tuple(rounds),
        notes=tuple(
            f"batch {batch}, lookahead {depth}: {1e3 * seconds:g} ms is {seconds / before:.0f} times the "
            "lookahead before; an outlier?"
            for (earlier, _, before), (batch, depth, seconds) in pairwise(rounds)
            if earlier == batch and seconds > SUSPECT * before
        ),
    )


def best_lookahead_by_batch(measured: Imported) -> dict[int, int]:
    """The K of most tokens per second at each batch whose round was timed; 0 where plain decoding is fastest.

    A lookahead between two that were timed is interpolated, as vLLM's own script does.

    Raises:
        ImportRefused: No times by batch, or no acceptance by position.
    """
    joint, rounds = measured.joint_acceptance_at_position, measured.round_s_by_batch
    if joint is None or not rounds:
        raise ImportRefused(
            "the best lookahead by batch needs acceptance per position and rounds timed by batch"
        )
    best = {}
    for batch in dict.fromkeys(row[0] for row in rounds):
        timed = {depth: seconds for at, depth, seconds in rounds if at == batch}
        depths = range(min(timed), min(max(timed), len(joint)) + 1)
        seconds = np.interp(depths, list(timed), list(timed.values()))
        speeds = {k: (1.0 + sum(joint[:k])) / s for k, s in zip(depths, seconds, strict=True)}
        best[batch] = max(speeds, key=lambda k: speeds[k])
    return best
