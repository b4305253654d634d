"""Counters and gauges of a `/metrics` page: vLLM, llama.cpp, SGLang."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardware_profiles.jsonfile import parse_json
from simulator.imports.derive import from_survivors
from simulator.imports.measured import Imported, ImportRefused, Speeds, count, number

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
ENGINES = {"vllm": "vllm", "llamacpp": "llama.cpp"}
POSITION = "spec_decode_num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


def samples_of(text: str) -> list[Sample]:
    """All samples of a page in Prometheus' text format.

    Raises:
        ImportRefused: A line that is neither a sample nor a comment.
    """
    found = []
    for at, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _SAMPLE.match(stripped)
        if match is None:
            raise ImportRefused(f"expected `name{{labels}} value`, got {stripped[:60]!r}", at)
        name, labels, value = match.groups()
        found.append(Sample(name, dict(_LABEL.findall(labels or "")), _value(value, name, at), at))
    return found


def parse_counters(text: str) -> tuple[Imported, ...]:
    """VLLM's and llama.cpp's counters, since the server started.

    Counters are totals over all engines of a data-parallel server; the `_created` twins are Unix times.
    Per position they count rounds that got that far: joint.
    """
    return (_of_samples(samples_of(text), "counters"),)


def parse_delta(text: str) -> tuple[Imported, ...]:
    """A JSON object whose keys are metric lines and whose values are differences of counters."""
    holder = parse_json(text)
    delta = holder.get("spec_metrics_delta", holder)
    lines = [f"{name} {value}" for name, value in delta.items() if ":" in name]
    found = _of_samples(samples_of("\n".join(lines)), "counters-delta")
    return (found,)


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
    return (_of_samples(differences, "counters-difference"),)


def parse_sglang(text: str) -> tuple[Imported, ...]:
    """SGLang's gauges: means of the last logging interval, no counters, no positions."""
    samples = samples_of(text)
    length = _gauge(samples, "sglang:spec_accept_length")
    if length is None or not 1.0 <= length < math.inf:
        raise ImportRefused(f"expected a gauge sglang:spec_accept_length of at least 1, got {length}")
    rate, running = _gauge(samples, "sglang:spec_accept_rate"), _gauge(samples, "sglang:num_running_reqs")
    throughput = _gauge(samples, "sglang:gen_throughput")
    return (from_means("sglang-gauges", length, rate=rate, running=running, throughput=throughput),)


def from_means(
    source: str,
    length: float,
    *,
    rate: float | None,
    running: float | None,
    throughput: float | None,
    label: str = "",
) -> Imported:
    """A window of which SGLang tells only means: the acceptance length (with bonus) and the accepted share.

    K = (length - 1) / share.  A round's time is length / throughput with one request running, else unknown.
    """
    # Rounded means: no fewer drafted tokens than the length itself needs.
    depth = max(round((length - 1.0) / rate), math.ceil(length - 1.0)) if rate else None
    alone = running == 1.0 and throughput
    return Imported(
        "sglang",
        source,
        label=label,
        lookahead=depth or None,
        tokens_per_round=length,
        batch=running,
        speeds=Speeds(
            tokens_per_second=throughput, round_s=length / throughput if alone and throughput else None
        ),
        notes=("means of one logging interval: they can be neither added up nor subtracted",),
    )


def _of_samples(samples: Sequence[Sample], source: str) -> Imported:
    prefix = next((p for p in ENGINES if any(s.name.startswith(f"{p}:spec_decode") for s in samples)), None)
    if prefix is None:
        raise ImportRefused(
            "expected counters vllm:spec_decode_* or llamacpp:spec_decode_*; there are none (is speculative "
            "decoding on, and has a request been served?)"
        )
    if len(models := {s.labels["model_name"] for s in samples if "model_name" in s.labels}) > 1:
        raise ImportRefused(f"counters of several models cannot be added up: {', '.join(sorted(models))}")
    rounds = _sum(samples, f"{prefix}:spec_decode_num_drafts")
    drafted = _sum(samples, f"{prefix}:spec_decode_num_draft_tokens")
    accepted = _sum(samples, f"{prefix}:spec_decode_num_accepted_tokens")
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
        **_requests(samples, prefix, rounds, accepted),
    }
    if survivors:
        return from_survivors(rounds, survivors, accepted=accepted, **known)
    length = None if accepted is None else 1.0 + accepted / rounds
    return Imported(rounds=rounds, accepted=accepted, tokens_per_round=length, **known)


def _requests(samples: Sequence[Sample], prefix: str, rounds: int, accepted: int | None) -> dict[str, Any]:
    """What vLLM's request counters add: tokens that nobody received, and the time of a round."""
    finished, made = (_sum(samples, f"{prefix}:{n}") for n in ("request_success", "generation_tokens"))
    known: dict[str, Any] = {}
    # A prefill emits a request's first token, every round one more than it accepts.
    if finished and made is not None and accepted is not None:
        known["overshoot_tokens"] = finished + rounds + accepted - made
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


def _sum(samples: Sequence[Sample], name: str) -> int | None:
    values = [count(s.value, s.name, s.line) for s in samples if s.name in (name, f"{name}_total")]
    return sum(values) if values else None


def _gauge(samples: Sequence[Sample], name: str) -> float | None:
    values = [s.value for s in samples if s.name == name]
    if len(values) > 1:
        raise ImportRefused(
            f"{name} is there {len(values)} times: means of several servers cannot be added up"
        )
    return values[0] if values else None


def _counted(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples if s.name.endswith(("_total", "_sum", "_count", "_bucket"))]


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))


def _value(text: str, name: str, line: int) -> float:
    if text in {"NaN", "+Inf", "-Inf"}:
        return float(text.replace("Inf", "inf"))
    try:
        return float(text)
    except ValueError:
        return number(text, name, line)
