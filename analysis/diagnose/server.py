"""What a server says of itself: its counters between two moments, or any file that `imports` reads."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError

from analysis.diagnose.account import Load, Seen
from policies.registry import SettingError
from simulator.imports.formats import COUNTERS, choose, naming_file, read_file, read_text, sniff
from simulator.imports.measured import Imported, ImportRefused
from simulator.imports.serve import Serve
from simulator.imports.text import Sample, samples_of
from simulator.imports.vllm import parse_difference

LARGEST = 16_000_000
"""Bytes of a page of metrics."""
TIMEOUT_S = 10.0
RUNNING = ("num_requests_running", "requests_processing", "num_running_reqs")
WAITING = ("num_requests_waiting", "requests_deferred", "num_queue_reqs")
KV_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")


def is_url(source: str) -> bool:
    """Whether a source is a server's address."""
    return source.startswith(("http://", "https://"))


def fetch(url: str) -> str:
    """A page of metrics; a bare address is that of its `/metrics`.

    Raises:
        ImportRefused: The server does not answer with one.
    """
    parts = url.split("/", 3)
    address = url if len(parts) > 3 and parts[3] else "/".join(parts[:3]) + "/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # http alone: see `is_url`
            found: bytes = answer.read(LARGEST)
    except (URLError, OSError, ValueError) as error:
        raise ImportRefused(f"{address}: {getattr(error, 'reason', error)}") from error
    return found.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Page:
    """A page of metrics and when it was read."""

    text: str
    at: float = 0.0

    @classmethod
    def of(cls, url: str) -> Page:
        """Read it now."""
        return cls(fetch(url), time.monotonic())


@dataclass(frozen=True)
class Server:
    """A server between two moments, or since its start.

    Attributes:
        measured: Of its speculation.
        plain: Of plain decoding on the same server, if a file holds both.
        running, waiting: Requests; None if not said.
        kv_usage: Share of the KV cache in use.
        preemptions: In between.
        load: What follows from the counters.
        round_s: Seconds of a round, from gaps between what it streams.
        seconds: Between the two moments; None if not known.
    """

    measured: Imported
    plain: Imported | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    load: Load = field(default_factory=Load)
    round_s: float | None = None
    seconds: float | None = None


def read_source(source: Path, before: Path | None, select: str | None) -> Server:
    """A file: metrics, or whatever an engine printed.

    Raises:
        FileRefused: It cannot be read, or holds no speculation.
    """
    found = read_file(source, before=before)
    with naming_file(source):
        measured, plain = choose(found, select)
        if measured.tokens_per_round is None and measured.tokens_per_target_forward is None:
            raise ImportRefused(
                "nothing speculative was measured here (give this file as --plain beside one of speculation)"
            )
        if found.format.name not in COUNTERS:
            batch = measured.batch or 1.0
            return Server(measured, plain, load=Load(batch=float(batch)))
        earlier = None if before is None else Page(before.read_text(encoding="utf-8"))
        return of_pages(Page(source.read_text(encoding="utf-8")), earlier, measured)


def of_pages(page: Page, earlier: Page | None = None, measured: Imported | None = None) -> Server:
    """A server from one page of metrics, or two.

    Raises:
        ImportRefused: Not a page of counters, or nothing was drafted in between.
    """
    if measured is None:
        if earlier is None:
            (measured,) = read_text(page.text, sniff(page.text))
        else:
            measured = parse_difference(earlier.text, page.text)
    now, old = samples_of(page.text), [] if earlier is None else samples_of(earlier.text)

    def counted(*names: str) -> float | None:
        values = [_total(now, name) for name in names]
        found = next((i for i, value in enumerate(values) if value is not None), None)
        return None if found is None else (values[found] or 0.0) - (_total(old, names[found]) or 0.0)

    gaps = counted("inter_token_latency_seconds_count", "time_per_output_token_seconds_count")
    gap_s = counted("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum")
    round_s = gap_s / gaps if gaps and gap_s else measured.round_s
    prompts, made = counted("prompt_tokens_total"), counted("generation_tokens_total")
    finished = counted("request_success_total")
    seconds = page.at - earlier.at if earlier is not None and page.at > earlier.at else None
    running = _gauge(now, RUNNING)
    rows = running
    if seconds and round_s and measured.rounds:
        rows = measured.rounds * round_s / seconds
    context = (prompts + made / 2.0) / finished if prompts is not None and made and finished else 0.0
    per_token = prompts / made if prompts is not None and made else 0.0
    return Server(
        measured,
        running=running,
        waiting=_gauge(now, WAITING),
        kv_usage=_gauge(now, KV_USAGE),
        preemptions=counted("num_preemptions_total"),
        load=Load(max(1.0, rows or 1.0), context, per_token),
        round_s=round_s,
        seconds=seconds,
    )


def _total(samples: Iterable[Sample], name: str) -> float | None:
    values = [s.value for s in samples if s.name.partition(":")[2] == name]
    return sum(values) if values else None


def _gauge(samples: Sequence[Sample], names: Sequence[str]) -> float | None:
    return next((value for name in names if (value := _total(samples, name)) is not None), None)


def seen_by(
    server: Server, serve: Serve | None, load: Load, *, lookahead: int | None, plain_s: float | None
) -> Seen:
    """What was seen, as `account` takes it.

    Args:
        server: As read.
        serve: Its command line, if given; it may say the lookahead.
        load: Of which what the caller says comes first.
        lookahead: As given; None: the measurement's, or the command line's.
        plain_s: Seconds of a plain step, as given; None: the measurement's, if it has them.

    Raises:
        SettingError: A lookahead that contradicts the measurement.
    """
    measured = server.measured
    depth = measured.lookahead or lookahead or (serve.lookahead if serve else None)
    if lookahead is not None and measured.lookahead not in (None, lookahead):
        raise SettingError(f"--lookahead {lookahead} contradicts the measurement's {measured.lookahead}")
    tokens = measured.tokens_per_round or measured.tokens_per_target_forward or 1.0
    if depth is None and measured.acceptance_at_position:
        depth = len(measured.acceptance_at_position)
    if depth is not None and tokens > depth + 1.0:
        raise SettingError(f"{depth} drafted tokens make no rounds of {tokens:.4g} tokens: see --lookahead")
    if plain_s is None:
        plain_s = measured.target_step_s or (server.plain.target_step_s if server.plain else None)
    round_s = server.round_s or measured.round_s
    if round_s is None and measured.draft_s_per_round is not None and measured.verify_s is not None:
        round_s = measured.draft_s_per_round + measured.verify_s
    if round_s is None and measured.tokens_per_second:
        round_s = tokens * load.batch / measured.tokens_per_second
    return Seen(depth, tokens, measured.acceptance_at_position or (), load, plain_s, round_s)
