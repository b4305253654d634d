"""vLLM: its counters (which llama.cpp has, too), benchmark, answers, log and dynamic-speculation profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from hardware_profiles.files import parse_json
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
    from_joint,
    from_rounds,
    from_survivors,
    milliseconds,
    number,
    optional,
    overshoot,
    serving_speeds,
    uniform,
)
from simulator.imports.text import (
    Sample,
    either,
    has,
    is_object,
    reads,
    samples_of,
    says,
)

ENGINES = {"vllm": "vllm", "llamacpp": "llama.cpp"}
POSITION = "spec_decode_num_accepted_tokens_per_pos"
_SPEC = re.compile(r"SpecDecoding metrics: (.*)$")
_V0 = re.compile(r"Speculative metrics: (.*)$")
_STATUS = re.compile(r"Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs")
_TIME = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_DEEPEST_LISTED = 64
SUSPECT = 3.0
"""A round this many times as long as one of the next smaller lookahead is said to be an outlier."""


@reads("vllm-counters", "vllm", "vLLM's /metrics", says("\nvllm:spec_decode_num_draft"))
@reads("llamacpp-counters", "llama.cpp", "llama-server's /metrics", says("\nllamacpp:spec_decode_num_draft"))
def parse_counters(text: str) -> tuple[Imported, ...]:
    """VLLM's and llama.cpp's counters, since the server started.

    Counters are totals over all engines of a data-parallel server; the `_created` twins are Unix times.
    Per position they count rounds that got that far: joint.
    """
    return (_of_counters(samples_of(text), "counters"),)


@reads(
    "vllm-counters-delta",
    "vllm",
    "differences of vLLM's counters, as JSON",
    is_object,
    says("vllm:spec_decode_num_drafts"),
)
def parse_delta(text: str) -> tuple[Imported, ...]:
    """A JSON object whose keys are metric lines and whose values are differences of counters."""
    holder = parse_json(text)
    delta = holder.get("spec_metrics_delta", holder)
    lines = [f"{name} {value}" for name, value in delta.items() if ":" in name]
    return (_of_counters(samples_of("\n".join(lines)), "counters-delta"),)


def parse_difference(before: str, after: str) -> tuple[Imported, ...]:
    """Two pages of one server: what was counted between them.

    Raises:
        ImportRefused: A counter fell (the server restarted), or a series of the first page is gone.
    """
    old = {_key(sample): sample.value for sample in _counted(samples_of(before))}
    new = _counted(samples_of(after))
    if gone := old.keys() - {_key(sample) for sample in new}:
        raise ImportRefused(f"{min(gone)[0]} is in the first page only: is this the same server?")
    differences = []
    for sample in new:
        value = sample.value - old.get(_key(sample), 0.0)
        if value < 0.0:
            raise ImportRefused(
                f"{sample.name} fell: the server restarted between the two pages", sample.line
            )
        differences.append(Sample(sample.name, sample.labels, value, sample.line))
    return (_of_counters(differences, "counters-difference"),)


def _of_counters(samples: Sequence[Sample], source: str) -> Imported:
    prefix = next((p for p in ENGINES if any(s.name.startswith(f"{p}:spec_decode") for s in samples)), None)
    if prefix is None:
        raise ImportRefused(
            "expected counters vllm:spec_decode_* or llamacpp:spec_decode_*; there are none (is speculative "
            "decoding on, and has a request been served?)"
        )
    if len(models := {s.labels["model_name"] for s in samples if "model_name" in s.labels}) > 1:
        raise ImportRefused(f"counters of several models cannot be added up: {', '.join(sorted(models))}")
    rounds = _total(samples, f"{prefix}:spec_decode_num_drafts")
    drafted = _total(samples, f"{prefix}:spec_decode_num_draft_tokens")
    accepted = _total(samples, f"{prefix}:spec_decode_num_accepted_tokens")
    if not rounds or not drafted:
        raise ImportRefused(f"expected {prefix}:spec_decode_num_drafts above 0: nothing was drafted")
    survivors = _positions(samples, f"{prefix}:{POSITION}")
    known: dict[str, Any] = {
        "engine": ENGINES[prefix],
        "source": f"{prefix}-{source}",
        "model": min(models, default=None),
        "drafted": drafted,
        "lookahead": drafted // rounds if drafted % rounds == 0 else len(survivors) or None,
        "notes": _varying(rounds, drafted),
        **_by_requests(samples, prefix, rounds, accepted),
    }
    if survivors:
        return from_survivors(rounds, survivors, accepted=accepted, **known)
    return from_counts(rounds, accepted, **known)


def _by_requests(samples: Sequence[Sample], prefix: str, rounds: int, accepted: int | None) -> dict[str, Any]:
    """What vLLM's request counters add: tokens that nobody received, and the time of a round."""
    finished, made = (_total(samples, f"{prefix}:{n}") for n in ("request_success", "generation_tokens"))
    known: dict[str, Any] = {}
    # A prefill emits a request's first token, every round one more than it accepts.
    if finished:
        known["overshoot_tokens"] = overshoot(rounds, accepted, made, finished)
    decoding = next((s for s in samples if s.name == f"{prefix}:request_decode_time_seconds_sum"), None)
    if decoding is not None and decoding.value > 0.0:
        known["speeds"] = Speeds(round_s=decoding.value / rounds)
        known["notes"] = (
            *_varying(rounds, 0),
            "the time of a round is right only if requests ran one at a time, which counters do not say",
        )
    return known


def _varying(rounds: int, drafted: int) -> tuple[str, ...]:
    if drafted % rounds == 0:
        return ()
    return (
        (
            f"the draft length varies ({drafted / rounds:.3f} drafted per round): joint rates count short "
            "rounds as rejections and are biased low at the end"
        ),
    )


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


def _total(samples: Sequence[Sample], name: str) -> int | None:
    values = [count(s.value, s.name, s.line) for s in samples if s.name in (name, f"{name}_total")]
    return sum(values) if values else None


def _counted(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.name.endswith(("_total", "_sum", "_count", "_bucket"))]


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))


@reads("vllm-bench", "vllm", "vllm bench serve --save-result", has("mean_itl_ms", "output_throughput"))
def parse_bench(text: str) -> tuple[Imported, ...]:
    """The JSON of `vllm bench serve --save-result`.

    The "inter-token" latency is the gap between chunks, which is a round; time per output token is per
    token.  The rate over all positions is in percent, the rates per position are joint fractions.
    """
    return (of_bench(parse_json(text)),)


def of_bench(found: Mapping[str, Any]) -> Imported:
    """What `vllm bench serve` says, by the keys of its JSON."""
    speculated = "spec_decode_num_drafts" in found
    chunk_s, token_s = milliseconds(found, "mean_itl_ms"), milliseconds(found, "mean_tpot_ms")
    step: dict[str, Any] = {"round_s": chunk_s} if speculated else {"target_step_s": token_s}
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": "vllm-bench",
        "model": found.get("model_id"),
        "batch": optional(found, "max_concurrency"),
        "speeds": serving_speeds(found, **step),
    }
    if not speculated:
        return Imported(notes=("no speculation: times of plain decoding",), **known)
    rounds, drafted, accepted = (
        count(found.get(f"spec_decode_{name}"), f"spec_decode_{name}")
        for name in ("num_drafts", "draft_tokens", "accepted_tokens")
    )
    if not rounds:
        raise ImportRefused("spec_decode_num_drafts is 0: nothing was drafted")
    known |= {"drafted": drafted, **uniform(drafted, rounds)}
    made, finished = optional(found, "total_output_tokens"), optional(found, "completed")
    if made is not None and finished is not None:
        known["overshoot_tokens"] = overshoot(rounds, accepted, int(made), int(finished))
    shares = found.get("spec_decode_per_position_acceptance_rates") or ()
    joint = [number(share, "per-position rate") for share in shares]
    return from_joint(joint, rounds=rounds, accepted=accepted, **known)


@reads(
    "vllm-request",
    "vllm",
    "vLLM's answer with --per-request-spec-decode-metrics",
    has("metrics.speculative_decoding"),
)
def parse_request(text: str) -> tuple[Imported, ...]:
    """VLLM's `metrics.speculative_decoding` of one answer, summary or detailed."""
    return (of_answer(parse_json(text)),)


def of_answer(answer: Mapping[str, Any]) -> Imported:
    """What one answer says."""
    found = answer["metrics"]["speculative_decoding"]
    delivered = optional(answer.get("usage", {}), "completion_tokens")
    return replace(of_counts(found, delivered), source="vllm-request")


def of_counts(found: Mapping[str, Any], delivered: float | None = None) -> Imported:
    """Counts of one answer, of which the engine delivered so many tokens; None if not said."""
    rounds = count(found.get("num_spec_steps"), "num_spec_steps")
    accepted = count(found.get("num_accepted_draft_tokens"), "num_accepted_draft_tokens")
    drafted = count(found.get("num_draft_tokens"), "num_draft_tokens")
    known: dict[str, Any] = {"engine": "vllm", "overshoot_tokens": overshoot(rounds, accepted, delivered)}
    if "per_step_accepted" in found:
        per_round = [counts(found.get(f"per_step_{name}"), name) for name in ("accepted", "drafted")]
        return from_rounds(per_round[0], per_round[1], **known)
    histogram = counts(found.get("acceptance_histogram"), "acceptance_histogram")
    known["drafted"] = drafted
    if drafted != rounds * (len(histogram) - 1):
        known["notes"] = ("the draft length varies: joint rates count short rounds as rejections",)
    return from_histogram(histogram, rounds=rounds, accepted=accepted, **known)


@dataclass(frozen=True, slots=True)
class _Window:
    """A `SpecDecoding` line."""

    line: int
    accepted: int
    drafted: int
    length: str | None
    joint: tuple[float, ...]
    drafted_per_s: float | None
    running: float | None
    throughput: float | None


@reads(
    "vllm-log",
    "vllm",
    "vLLM's log",
    either(says("SpecDecoding metrics: "), says("Speculative metrics: ")),
    pools=True,
)
def parse_log(text: str) -> tuple[Imported, ...]:
    """One measurement per `SpecDecoding` line, and one for plain decoding that was logged before them.

    Rates per position are joint, over the rounds of the window.  The number of listed positions is not
    taken for K: a known version lists one too many.
    """
    windows: list[_Window] = []
    old: list[Imported] = []
    plain: list[tuple[float, float]] = []
    status: re.Match[str] | None = None
    stamp = ""
    for at, line in enumerate(text.splitlines(), 1):
        time = _TIME.search(line)
        if found := _STATUS.search(line):
            status, stamp = found, time.group() if time else ""
            if not windows and not old:
                plain.append((float(found.group(1)), float(found.group(2))))
        elif found := _SPEC.search(line):
            if plain and time is not None and stamp == time.group() and not windows:
                plain.pop()  # the status that belongs to this line
            paired = status if time is not None and stamp == time.group() else None
            windows.append(_window(found.group(1), at, paired))
        elif found := _V0.search(line):
            old.append(_v0(found.group(1), at))
    if not windows and not old:
        raise ImportRefused("expected a line `SpecDecoding metrics: ...` of vLLM; there is none")
    measured = [*old, *_windows(windows)]
    return (*_plain(plain), *sorted(measured, key=lambda m: int(m.label.removeprefix("line "))))


def _plain(statuses: Sequence[tuple[float, float]]) -> list[Imported]:
    steps = [running / speed for speed, running in statuses if speed > 0.0 and running > 0.0]
    if not steps:
        return []
    speeds = Speeds(target_step_s=median(steps), tokens_per_second=median(s for s, r in statuses if s and r))
    note = "status lines before the first SpecDecoding line, taken for plain decoding"
    return [Imported(label="plain", speeds=speeds, notes=(note,))]


def _window(body: str, at: int, status: re.Match[str] | None) -> _Window:
    values = dict(re.findall(r"([A-Z][\w -]*?): ([\d.]+)", body))
    for key in ("Accepted", "Drafted"):
        if key not in values:
            raise ImportRefused(f"expected `{key}: N tokens` in a SpecDecoding line", at)
    shares = re.search(r"Per-position acceptance rate: ([\d., ]+)", body)
    joint = [part.strip() for part in shares.group(1).split(",")] if shares else []
    speed = values.get("Drafted throughput")
    return _Window(
        line=at,
        accepted=count(values["Accepted"], "Accepted", at),
        drafted=count(values["Drafted"], "Drafted", at),
        length=values.get("Mean acceptance length"),
        joint=tuple(number(part, "Per-position acceptance rate", at) for part in joint if part),
        drafted_per_s=None if speed is None else number(speed, "Drafted throughput", at),
        running=None if status is None else float(status.group(2)),
        throughput=None if status is None else float(status.group(1)),
    )


def _windows(windows: Sequence[_Window]) -> list[Imported]:
    """Windows that list as many positions are of one run: their K is one that fits them all."""
    found = []
    for positions in {len(w.joint): None for w in windows}:
        alike = [w for w in windows if len(w.joint) == positions]
        fitting = set.intersection(*(_depths(w) for w in alike))
        for w in alike:
            with at_line(w.line):
                found.append(_of_window(w, _likely(fitting or _depths(w), positions)))
    return found


def _depths(window: _Window) -> set[int]:
    """Every K at which the whole rounds of the window give the printed mean length."""
    if window.length is None:
        return set()
    digits = len(window.length.partition(".")[2])
    return {
        k
        for k in range(1, _DEEPEST_LISTED + 1)
        if window.drafted % k == 0
        and abs(1.0 + window.accepted * k / window.drafted - float(window.length)) <= 0.50001 * 10**-digits
    } if window.drafted else set()  # fmt: skip


def _likely(depths: set[int], positions: int) -> int | None:
    """The K that as many positions were listed for, else the deepest that is no deeper."""
    return max((k for k in depths if k <= positions), default=min(depths, default=None))


def _of_window(window: _Window, depth: int | None) -> Imported:
    notes: tuple[str, ...] = ()
    rounds = window.drafted // depth if depth else None
    if depth is None and window.length is not None and float(window.length) > 1.0:
        rounds = round(window.accepted / (float(window.length) - 1.0))
        notes = (
            (
                "the draft length varies: rounds come from the printed mean length, joint rates count short "
                "rounds as rejections"
            ),
        )
    elif depth is not None and depth != len(window.joint):
        notes = (f"{len(window.joint)} positions are listed but {depth} tokens are drafted per round",)
    known: dict[str, Any] = {
        "label": f"line {window.line}",
        "lookahead": depth,
        "rounds": rounds,
        "drafted": window.drafted,
        "accepted": window.accepted,
        "batch": window.running,
        "speeds": _window_speeds(window, depth),
        "notes": notes,
    }
    if not window.joint and not rounds:
        return Imported(**known)
    found = from_joint(window.joint[:depth], **known)
    if window.joint and depth is None and window.length is not None:
        return replace(found, tokens_per_round=float(window.length))
    return found


def _window_speeds(window: _Window, depth: int | None) -> Speeds:
    # With one request running, rounds follow each other: drafted per second / K of them per second.
    alone = window.running == 1.0 and depth and window.drafted_per_s
    round_s = depth / window.drafted_per_s if alone and depth and window.drafted_per_s else None
    return Speeds(tokens_per_second=window.throughput, round_s=round_s)


def _v0(body: str, at: int) -> Imported:
    values = dict(re.findall(r"([A-Z][\w ]*?): (\d+(?:\.\d+)?)", body))
    names = ("Number of speculative tokens", "Number of draft tokens", "Number of emitted tokens")
    try:
        depth, drafted, emitted = (count(values[name], name, at) for name in names)
    except KeyError as error:
        raise ImportRefused(f"expected {error} in a `Speculative metrics` line", at) from error
    if not depth or not drafted:
        raise ImportRefused("expected tokens that were drafted in a `Speculative metrics` line", at)
    rounds = drafted // depth
    return Imported(
        label=f"line {at}",
        version="V0 engine",
        lookahead=depth,
        rounds=rounds,
        drafted=drafted,
        tokens_per_round=emitted / rounds,
        notes=(
            (
                "the V0 engine counts tokens accepted after a rejection, too: its rate and accepted tokens "
                "are left out"
            ),
        ),
    )


@reads("vllm-dynamic", "vllm", "vLLM's dynamic-speculation profile", has("acceptance_rate_per_pos"))
def parse_dynamic(text: str) -> tuple[Imported, ...]:
    """`acceptance_rate_per_pos` (joint) and `batch_stats` (milliseconds of a round by batch and K; 0: plain).

    This layout was proposed for vLLM and never merged; figures in it were measured nevertheless.
    """
    found: Mapping[str, Any] = parse_json(text)
    joint = [number(share, "acceptance_rate_per_pos") for share in found["acceptance_rate_per_pos"]]
    if not joint:
        raise ImportRefused("acceptance_rate_per_pos: expected the rate of a position")
    rounds = tuple(
        sorted(
            (count(batch, "batch"), believable(count(depth, "lookahead")), number(ms, "batch_stats") / 1e3)
            for batch, row in found["batch_stats"].items()
            for depth, ms in row.items()
        )
    )
    at = {(batch, depth): seconds for batch, depth, seconds in rounds}
    name = "max_num_speculative_tokens"
    known: dict[str, Any] = {
        "lookahead": count(found.get(name, len(joint)), name),
        "speeds": Speeds(target_step_s=at.get((1, 0)), round_s_by_batch=rounds),
        "notes": _suspects(rounds),
    }
    return (from_joint(joint, rounds=None, accepted=None, **known),)


def best_lookahead_by_batch(measured: Imported) -> dict[int, int]:
    """The K of most tokens per second at each batch whose round was timed; 0 where plain decoding is fastest.

    A lookahead between two that were timed is interpolated, as vLLM's own script does.

    Raises:
        ImportRefused: No times by batch, or no acceptance by position.
    """
    joint, rounds = measured.joint_acceptance_at_position, measured.speeds.round_s_by_batch
    if joint is None or not rounds:
        raise ImportRefused(
            "the best lookahead by batch needs acceptance per position and rounds timed by batch"
        )
    best = {}
    for batch in dict.fromkeys(row[0] for row in rounds):
        timed = {depth: seconds for at, depth, seconds in rounds if at == batch}
        speeds = {k: (1.0 + sum(joint[:k])) / s for k, s in _filled(timed).items() if k <= len(joint)}
        best[batch] = max(speeds, key=lambda k: speeds[k])
    return best


def _filled(timed: Mapping[int, float]) -> dict[int, float]:
    depths = sorted(timed)
    filled = dict(timed)
    for low, high in pairwise(depths):
        for between in range(low + 1, high):
            part = (between - low) / (high - low)
            filled[between] = timed[low] + part * (timed[high] - timed[low])
    return filled


def _suspects(rounds: tuple[tuple[int, int, float], ...]) -> tuple[str, ...]:
    return tuple(
        f"batch {batch}, lookahead {depth}: {1e3 * seconds:g} ms is {seconds / before:.0f} times the "
        "lookahead before; an outlier?"
        for (earlier, _, before), (batch, depth, seconds) in pairwise(rounds)
        if earlier == batch and seconds > SUSPECT * before
    )
