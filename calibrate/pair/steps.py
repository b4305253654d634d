"""How long one step takes: what the named embeddings' shapes were chosen by.

The calibrator measures costs properly; this is the quick look behind the numbers in README.md. The
models take turns, so that a disturbance of the machine hits all of them and the ratios survive it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

TOKENS = (1, 5, 8)
_CONTEXT = 150
_WARM_UP = 3


@dataclass(frozen=True)
class StepTimes:
    """Median seconds of a forward over ``tokens`` new tokens, single-threaded, batch 1, fp32."""

    name: str
    parameters: int
    seconds: dict[int, float]


def _timed_step(model: Any, cache: Any, tokens: Any) -> float:
    started = time.perf_counter()
    model(input_ids=tokens, past_key_values=cache, use_cache=True)
    seconds = time.perf_counter() - started
    cache.crop(-tokens.shape[1])
    return seconds


def measure_steps(
    models: Mapping[str, Any], *, repeats: int = 30, tokens: Sequence[int] = TOKENS
) -> list[StepTimes]:
    """Time forwards of ``models`` with a context of 150 tokens; sets torch to one thread."""
    import torch

    torch.set_num_threads(1)
    samples: dict[tuple[str, int], list[float]] = {(m, n): [] for m in models for n in tokens}
    with torch.inference_mode():
        context = torch.randint(1, 2048, (1, _CONTEXT))
        caches = {
            name: model(input_ids=context, use_cache=True).past_key_values for name, model in models.items()
        }
        for repeat in range(repeats + _WARM_UP):
            for (name, count), times in samples.items():
                # Two in a row and the second counts: the first pays for the caches of the turn.
                new = context[:, :count]
                _timed_step(models[name], caches[name], new)
                seconds = _timed_step(models[name], caches[name], new)
                if repeat >= _WARM_UP:
                    times.append(seconds)
    return [
        StepTimes(
            name=name,
            parameters=sum(p.numel() for p in model.parameters()),
            seconds={n: statistics.median(samples[name, n]) for n in tokens},
        )
        for name, model in models.items()
    ]


def steps_table(measured: Sequence[StepTimes]) -> Table:
    """Milliseconds per step, and the ratio of one-token steps to the first model's."""
    from rich.table import Table

    table = Table(title=f"Milliseconds per step, {_CONTEXT} tokens of context")
    table.add_column("model")
    table.add_column("parameters", justify="right")
    for count in measured[0].seconds:
        table.add_column(f"{count} new", justify="right")
    table.add_column(f"ratio to {measured[0].name}", justify="right")
    for row in measured:
        ratio = row.seconds[1] / measured[0].seconds[1]
        millis = [f"{1e3 * seconds:.2f}" for seconds in row.seconds.values()]
        table.add_row(row.name, f"{row.parameters / 1e6:.1f}M", *millis, f"{ratio:.1f}")
    return table
