"""Readers of request traces that people have: one function per layout, all with the same result.

| layout | times | what to know |
|---|---|---|
| mooncake | `timestamp`, ms | `hash_ids`: one per started block of 512 prompt tokens |
| burstgpt | `Timestamp`, whole s | no response tokens: a failed request, left out |
| azure | `TIMESTAMP`, date with 6 or 7 decimals | 2023 and 2024 |
| vidur | `arrived_at`, s | without that column the rate has to be given |
| sharegpt | none | words in place of tokens; vLLM's filter of short and long entries |
| llmservingsim | `arrival_time_ns` | a line with `sub_requests` is a session of calls, one after the other |
| blis | `arrival_time_us` | `status` other than ok is left out; a header in YAML stands beside it |

Columns are read by name.  A row that makes no sense is an error with its line; nothing is dropped unsaid.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from hardware_profiles.files import parse_json, read_text
from serving.traffic import ServedRequest, Traffic, TrafficError

TraceFormat: TypeAlias = Literal[
    "mooncake", "burstgpt", "azure", "vidur", "sharegpt", "llmservingsim", "blis"
]
TRACE_FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)
MOONCAKE_BLOCK = 512
"""Prompt tokens that one of Mooncake's hash ids stands for."""
MOST_TOKENS = 16_777_216
"""Of a text: no published model reads a longer one."""
SHORTEST, LONGEST_PROMPT, LONGEST_SUM = 4, 1024, 2048
"""What `vllm bench serve` keeps of ShareGPT, in tokens."""


def read_traffic(path: Path, layout: TraceFormat | None = None, *, block_size: int = 16) -> Traffic:
    """The requests of a file.

    Args:
        path: Of the trace.
        layout: None: as its first line says.
        block_size: Tokens of the KV blocks whose identities are made of the texts.

    Raises:
        TrafficError: The file cannot be read, or is not of that layout; with its line.
    """
    try:
        text = read_text(path)
    except ValueError as error:
        raise TrafficError(str(error)) from error
    found = layout or _layout_of(path, text)
    return _READERS[found](path, text, block_size)


def _layout_of(path: Path, text: str) -> TraceFormat:
    first = text.lstrip().partition("\n")[0]
    for layout, needle in _SIGNS.items():
        if re.search(needle, first):
            return layout
    raise TrafficError(f"{path}: its first line is that of no known trace; say which with --traffic-format")


_SIGNS: Mapping[TraceFormat, str] = {
    "mooncake": r'^\{.*"input_length"',
    "llmservingsim": r'^\{.*("input_toks"|"sub_requests")',
    "blis": r"\barrival_time_us\b",
    "burstgpt": r"\bRequest tokens\b",
    "azure": r"\bContextTokens\b",
    "vidur": r"\bnum_prefill_tokens\b",
    "sharegpt": r"^\[",
}


class _Line:
    """A line of a file, whose values are checked as they are read."""

    def __init__(self, path: Path, number: int, values: Mapping[str, Any]) -> None:
        self.where = f"{path}:{number}"
        self.values = values

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            raise TrafficError(f"{self.where}: {name} is missing")
        return str(value)

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0.0 <= value < float("inf"):
            raise TrafficError(f"{self.where}: {name}: expected a number of at least 0, got {text!r:.40}")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        value = self.number(name)
        if value != int(value) or not least <= value <= MOST_TOKENS:
            raise TrafficError(
                f"{self.where}: {name}: expected a whole number, {least} to {MOST_TOKENS:,}, got {value:g}"
            )
        return int(value)

    def list_of(self, name: str, kind: type[Any]) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise TrafficError(f"{self.where}: {name}: expected a list of {_KINDS[kind]}")
        return value


_KINDS: Mapping[type[Any], str] = {int: "whole numbers", dict: "objects"}


def _csv(path: Path, text: str) -> Iterator[_Line]:
    number = 1
    try:
        for number, row in enumerate(csv.DictReader(text.splitlines()), 2):
            yield _Line(path, number, row)
    except csv.Error as error:
        raise TrafficError(f"{path}:{number}: {error}") from error


def _jsonl(path: Path, text: str) -> Iterator[_Line]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError as error:
                raise TrafficError(f"{path}:{number}: {error}") from error
            if not isinstance(row, dict):
                raise TrafficError(f"{path}:{number}: expected an object")
            yield _Line(path, number, row)


class _Names:
    """Numbers for texts: equal numbers are equal text with equal text before it."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def __call__(self, content: Any) -> int:
        return self.numbers.setdefault(content, len(self.numbers))

    def chained(self, tokens: Sequence[int], size: int) -> tuple[int, ...]:
        """Of the full blocks of a text."""
        names: list[int] = []
        for start in range(0, len(tokens) - size + 1, size):
            names.append(self((names[-1] if names else None, tuple(tokens[start : start + size]))))
        return tuple(names)


def _mooncake(path: Path, text: str, block_size: int) -> Traffic:
    if MOONCAKE_BLOCK % block_size:
        raise TrafficError(f"{path}: its blocks have {MOONCAKE_BLOCK} tokens, no multiple of {block_size}")
    parts, requests, name = MOONCAKE_BLOCK // block_size, [], _Names()
    for line in _jsonl(path, text):
        prompt, ids = line.whole("input_length", 1), line.list_of("hash_ids", int)
        if len(ids) != -(-prompt // MOONCAKE_BLOCK):
            raise TrafficError(
                f"{line.where}: {len(ids)} hash_ids for {prompt} tokens, expected one per started "
                f"{MOONCAKE_BLOCK}"
            )
        blocks = tuple(name((ids[i // parts], i % parts)) for i in range(prompt // block_size))
        arrival = 1e-3 * line.number("timestamp")
        requests.append(ServedRequest(arrival, prompt, line.whole("output_length", 1), blocks))
    return Traffic(tuple(requests), str(path))


def _burstgpt(path: Path, text: str, _: int) -> Traffic:
    requests, failed = [], 0
    for line in _csv(path, text):
        output = line.whole("Response tokens")
        arrival, prompt = line.number("Timestamp"), line.whole("Request tokens")
        if output == 0:
            failed += 1
        else:
            requests.append(ServedRequest(arrival, prompt, output))
    return Traffic(tuple(requests), str(path), skipped=(("failed", failed),) if failed else ())


def _azure(path: Path, text: str, _: int) -> Traffic:
    requests: list[ServedRequest] = []
    first: tuple[datetime, float] | None = None
    for line in _csv(path, text):
        at = _moment(line)
        first = first or at
        # Seconds and their fractions apart: a date knows microseconds, the file tenths of them.
        arrival = (at[0] - first[0]).total_seconds() + (at[1] - first[1])
        requests.append(
            ServedRequest(round(arrival, 7), line.whole("ContextTokens"), line.whole("GeneratedTokens"))
        )
    return Traffic(tuple(requests), str(path))


def _moment(line: _Line) -> tuple[datetime, float]:
    """A date without its fraction of a second, and that fraction."""
    stamp = line.text("TIMESTAMP")
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?", stamp.strip())
    try:
        if match is None:
            raise ValueError
        zone = (match[3] or "+00:00").replace("Z", "+00:00")
        return datetime.fromisoformat(match[1] + zone).astimezone(UTC), float(match[2] or 0.0)
    except ValueError:
        raise TrafficError(
            f"{line.where}: TIMESTAMP: expected a date and a time, got {stamp!r:.40}"
        ) from None


def _vidur(path: Path, text: str, _: int) -> Traffic:
    timed = "arrived_at" in text.partition("\n")[0]
    requests = [
        ServedRequest(
            line.number("arrived_at") if timed else 0.0,
            line.whole("num_prefill_tokens"),
            line.whole("num_decode_tokens"),
        )
        for line in _csv(path, text)
    ]
    return Traffic(tuple(requests), str(path), timed=timed)


def _sharegpt(path: Path, text: str, _: int) -> Traffic:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise TrafficError(f"{path}: {error}") from error
    if not isinstance(entries, list):
        raise TrafficError(f"{path}: expected a list of conversations")
    requests = []
    for place, entry in enumerate(entries):
        try:
            turns = [turn["value"].split() for turn in entry["conversations"][:2]]
        except (TypeError, KeyError, AttributeError):
            raise TrafficError(f"{path}: entry {place}: expected conversations with values") from None
        if len(turns) == 2 and _kept(prompt := len(turns[0]), output := len(turns[1])):
            requests.append(ServedRequest(0.0, prompt, output))
    short = len(entries) - len(requests)
    skipped = (("of a length that vllm bench drops", short),) if short else ()
    return Traffic(tuple(requests), str(path), timed=False, skipped=skipped)


def _kept(prompt: int, output: int) -> bool:
    return min(prompt, output) >= SHORTEST and prompt <= LONGEST_PROMPT and prompt + output <= LONGEST_SUM


def _llmservingsim(path: Path, text: str, block_size: int) -> Traffic:
    requests: list[ServedRequest] = []
    name = _Names()
    for line in _jsonl(path, text):
        arrival = 1e-9 * line.number("arrival_time_ns")
        calls = [line]
        if "sub_requests" in line.values:
            calls = [_Line(path, 0, call) for call in line.list_of("sub_requests", dict)]
        after, pause = None, 0.0
        for call in calls:
            call.where = line.where
            tokens = call.list_of("input_tok_ids", int) if "input_tok_ids" in call.values else ()
            blocks = name.chained(tokens, block_size)
            requests.append(
                ServedRequest(
                    arrival, call.whole("input_toks", 1), call.whole("output_toks", 1), blocks, after, pause
                )
            )
            if calls[0] is not line:
                after = len(requests) - 1
                pause = 1e-9 * call.number("tool_duration_ns") if "tool_duration_ns" in call.values else 0.0
    return Traffic(tuple(requests), str(path))


def _blis(path: Path, text: str, block_size: int) -> Traffic:
    header = path.with_suffix(".yaml")
    if header.is_file():
        said = dict(re.findall(r"^(\w+):\s*(\S+)", read_text(header), re.MULTILINE))
        if said.get("trace_version") != "2" or said.get("time_unit") != "microseconds":
            raise TrafficError(f"{header}: expected trace_version 2 and time_unit microseconds")
    requests, failed, name = [], 0, _Names()
    for line in _csv(path, text):
        if line.text("status") != "ok":
            failed += 1
            continue
        prompt, group = line.whole("input_tokens"), line.values.get("prefix_group")
        shared = min(line.whole("prefix_length"), prompt) // block_size if group else 0
        blocks = tuple(name((group, i)) for i in range(shared))
        arrival = 1e-6 * line.number("arrival_time_us")
        requests.append(ServedRequest(arrival, prompt, line.whole("output_tokens"), blocks))
    return Traffic(tuple(requests), str(path), skipped=(("failed", failed),) if failed else ())


_READERS: Mapping[TraceFormat, Callable[[Path, str, int], Traffic]] = {
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
    "azure": _azure,
    "vidur": _vidur,
    "sharegpt": _sharegpt,
    "llmservingsim": _llmservingsim,
    "blis": _blis,
}
