"""Timelines: which device did what when; one Chrome trace-event schema for both worlds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardware_profiles.files import to_json

MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of work of one device, e.g. `verify`, `draft`, `glue`, `tree`; `details` are for a viewer."""

    device: str
    name: str
    start_s: float
    end_s: float
    details: dict[str, Any] = field(default_factory=dict)


def chrome_trace(
    spans: Iterable[Span],
    *,
    title: str,
    counters: Mapping[str, Iterable[tuple[float, float]]] | None = None,
) -> str:
    """Chrome trace-event JSON of `spans`, to be opened in Perfetto or chrome://tracing.

    `title` names the process row, e.g. `simulated saguaro K=4`; `counters` are (seconds, value) by name, each
    drawn as a curve.
    """
    spans = list(spans)
    tracks = {device: i for i, device in enumerate(sorted({s.device for s in spans}, reverse=True))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": device}}
        for device, tid in tracks.items()
    ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.device,
            "pid": 1,
            "tid": tracks[span.device],
            "ts": round(span.start_s * MICROSECONDS, 3),
            "dur": round((span.end_s - span.start_s) * MICROSECONDS, 3),
            "args": span.details,
        }
        for span in spans
    ]
    events += [
        {"ph": "C", "name": name, "pid": 1, "ts": round(at_s * MICROSECONDS, 3), "args": {name: value}}
        for name, values in (counters or {}).items()
        for at_s, value in values
    ]
    return to_json({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def busy_seconds(spans: Sequence[Span], device: str) -> float:
    """Seconds in which `device` worked."""
    return sum(e - s for s, e in _union(spans, device))


def overlap_seconds(spans: Sequence[Span], first: str, second: str) -> float:
    """Seconds in which both devices worked at the same time; 0 for policies that take turns."""
    a, b = _union(spans, first), _union(spans, second)
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def _union(spans: Sequence[Span], device: str) -> list[tuple[float, float]]:
    """Disjoint, sorted intervals of a device's work (spans may nest: a draft and its steps)."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((s.start_s, s.end_s) for s in spans if s.device == device):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
