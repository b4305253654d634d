"""What users see of a serving run, with the names of `vllm bench serve` (docs/reference/metrics.md).

TTFT is from arrival to the first token, queueing included; TPOT (last - first) / (output - 1), of requests
with two tokens or more; ITL the gap between two *rounds* of a request that brought tokens, whatever their
number; e2el from arrival to the last token.  Percentiles interpolate linearly (`numpy.percentile`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.scheduler import Counts
from serving.traffic import TrafficError

PERCENTILES = (50, 90, 95, 99)
SLOS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Served:
    """A serving run.

    Attributes:
        arrival_s: [n] seconds at which each request came; next ones alike.
        first_s: Its first token.
        last_s: Its last token.
        prompt: Its tokens.
        output: Its tokens.
        gaps: [m, 2] seconds between rounds, and how many rounds had such a gap.
        end_s: Seconds at which the last step ended.
        steps: How many there were.
        busy_s: Seconds in which one was running.
        running: Mean rows of a step, by time.
        waiting: Mean requests in the queue, by time, while a step was running.
        most_blocks: Most KV blocks in use.
        counts: Of tokens.
    """

    arrival_s: np.ndarray
    first_s: np.ndarray
    last_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    gaps: np.ndarray
    end_s: float
    steps: int
    busy_s: float
    running: float
    waiting: float
    most_blocks: int
    counts: Counts

    @property
    def ttft_s(self) -> np.ndarray:
        """[n] seconds from arrival to the first token."""
        return np.asarray(self.first_s - self.arrival_s)

    @property
    def e2el_s(self) -> np.ndarray:
        """[n] seconds from arrival to the last token."""
        return np.asarray(self.last_s - self.arrival_s)

    @property
    def tpot_s(self) -> np.ndarray:
        """[n] seconds per token after the first; NaN of a reply of one token."""
        later = np.where(self.output > 1, self.output - 1, np.nan)
        return np.asarray((self.last_s - self.first_s) / later)


def parse_slo(text: str) -> dict[str, float]:
    """`ttft=1,tpot=0.04` as seconds by name.

    Raises:
        TrafficError: It is no such list.
    """
    slo = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            slo[name.strip()] = float(value)
        except ValueError:
            raise TrafficError(f"{part!r:.40} is no objective such as ttft=1 (seconds)") from None
        if name.strip() not in SLOS or not 0.0 < slo[name.strip()] < float("inf"):
            raise TrafficError(f"objectives are {', '.join(SLOS)}, in seconds above 0; got {part!r:.40}")
    return slo


def good(served: Served, slo: Mapping[str, float]) -> np.ndarray:
    """[n] whether each request met all objectives; a reply of one token meets that of TPOT."""
    met = np.ones(len(served.arrival_s), dtype=np.bool_)
    for name, most in slo.items():
        seconds = getattr(served, f"{name}_s")
        met &= np.isnan(seconds) | (seconds <= most)
    return met


def metrics(served: Served, slo: Mapping[str, float] | None = None, **options: Any) -> dict[str, Any]:
    """Of a run, ready for JSON: rates a second, latencies in ms; None where nothing was counted.

    Args:
        served: The run.
        slo: Objectives, s; without any, no goodput.
        options: Beside them: `num_gpu_blocks`.
    """
    duration = float(served.last_s.max() - served.arrival_s.min())
    tokens, counts = int(served.output.sum()), served.counts
    blocks = options.get("num_gpu_blocks")
    found: dict[str, Any] = {
        "completed": len(served.arrival_s),
        "duration": duration,
        "total_input_tokens": int(served.prompt.sum()),
        "total_output_tokens": tokens,
        "request_throughput": len(served.arrival_s) / duration,
        "request_goodput": None if not slo else float(good(served, slo).sum()) / duration,
        "good_share": None if not slo else float(good(served, slo).mean()),
        "output_throughput": tokens / duration,
        "total_token_throughput": (tokens + int(served.prompt.sum())) / duration,
    }
    for name in ("ttft", "tpot", "e2el"):
        found |= _of(name, getattr(served, f"{name}_s"))
    found |= _of("itl", served.gaps[:, 0], served.gaps[:, 1])
    return found | {
        "preemptions": counts.preemptions,
        "recomputed_tokens": counts.lost,
        "prefix_cache_hit_rate": counts.hit / counts.asked if counts.asked else None,
        "steps": served.steps,
        "busy_share": served.busy_s / duration,
        "mean_running": served.running,
        "mean_waiting": served.waiting,
        "most_kv_blocks": served.most_blocks,
        "most_kv_usage": None if not blocks else served.most_blocks / blocks,
        "tokens_per_round": (counts.verified - counts.rejected) / counts.rounds if counts.rounds else None,
        "accepted_per_round": counts.accepted / counts.rounds if counts.rounds else None,
    }


def _of(name: str, seconds: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float | None]:
    """Mean, deviation and percentiles in ms, of values that occur so often each."""
    known = ~np.isnan(seconds)
    values = 1e3 * seconds[known]
    weights = np.ones(len(values)) if counts is None else counts[known]
    keys = [f"mean_{name}_ms", f"std_{name}_ms", f"median_{name}_ms"]
    keys += [f"p{p}_{name}_ms" for p in PERCENTILES[1:]]
    if not len(values):
        return dict.fromkeys(keys)
    mean = float(np.average(values, weights=weights))
    spread = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    cuts = [_percentile(values, weights, p) for p in PERCENTILES]
    return dict(zip(keys, [mean, spread, *cuts], strict=True))


def _percentile(values: np.ndarray, weights: np.ndarray, percent: float) -> float:
    """As `numpy.percentile` of every value repeated so often."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    at = (ends[-1] - 1) * percent / 100.0
    low, high = np.searchsorted(ends, [np.floor(at), np.ceil(at)], side="right")
    below, above = values[order[low]], values[order[high]]
    return float(below + (above - below) * (at - np.floor(at)))
