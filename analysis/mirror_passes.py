"""How many tokens a pass of a streaming draft writes, out of what runs decided, beside the laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hardware_profiles.decisions import Decisions
from policies.laws.mirror import mean_passes
from policies.mirror import STREAMS_BY_BATCH, scheduled_streams


@dataclass(frozen=True)
class Passes:
    """The passes of all windows that a run wrote, rollouts that nobody took among them.

    Attributes:
        windows: Windows written.
        shares: Share of passes that wrote 1, 2, ... tokens (eta_j of `mirror.ss`).
        tokens_per_pass: Their mean.
        acceptance: Right proposals over verified ones; 0 where none was verified.
        passes: J, mean passes per window.
        law_passes: The same where proposals are right independently with that acceptance.
        slowest: Mean passes per operation and row: those of its slowest window, since branches are written
            side by side.
        law_slowest: The same of as many independent windows.
    """

    windows: int
    shares: tuple[float, ...]
    tokens_per_pass: float
    acceptance: float
    passes: float
    law_passes: float
    slowest: float
    law_slowest: float


def passes_of(decisions: Sequence[Decisions], streams: str) -> Passes | None:
    """The passes in what runs decided; None where nothing streamed.

    Args:
        decisions: Of one setting.
        streams: Value of the knob; with `batch`, decisions of several batches count as of the narrowest.
    """
    return _counted([g for g in _groups(decisions) if g], most_streams(streams))


def most_streams(streams: str) -> int:
    """S, the most that a value of the knob `streams` means."""
    return scheduled_streams(1) if streams == STREAMS_BY_BATCH else int(streams)


def _counted(groups: Sequence[Sequence[Sequence[int]]], streams: int) -> Passes | None:
    windows = [window for group in groups for window in group]
    if not windows:
        return None
    counts = Counter(tokens for window in windows for tokens in window)
    total, written = sum(counts.values()), sum(map(sum, windows))
    acceptance = _acceptance(windows, streams)
    gamma = sum(windows[0])
    laws = {n: mean_passes(gamma, streams, acceptance, n) for n in {1, *map(len, groups)}}
    return Passes(
        windows=len(windows),
        shares=tuple(counts[n] / total for n in range(1, max(counts) + 1)),
        tokens_per_pass=written / total,
        acceptance=acceptance,
        passes=total / len(windows),
        law_passes=laws[1],
        slowest=float(np.mean([max(map(len, group)) for group in groups])),
        law_slowest=float(np.mean([laws[len(group)] for group in groups])),
    )


def _groups(decisions: Sequence[Decisions]) -> Iterator[list[list[int]]]:
    """Tokens per pass of the windows of each operation and row."""
    for run in decisions:
        for (kind, *_), reply in run.replies.items():
            if kind == "streamdraft":
                yield [reply[2]]
            elif kind == "streamrollout":
                yield reply[1]


def _acceptance(windows: Sequence[Sequence[int]], streams: int) -> float:
    """Right over verified proposals: after the first wrong one of a pass none is verified."""
    right = verified = 0
    for window in windows:
        left = sum(window) - window[0]
        for tokens in window[1:]:
            proposed = min(streams, left - 1)
            right += tokens - 1
            verified += min(tokens, proposed)
            left -= tokens
    return right / verified if verified else 0.0
