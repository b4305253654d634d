"""vLLM's dynamic-speculation profile: acceptance and the time of a round by batch and lookahead."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from hardware_profiles.jsonfile import parse_json
from simulator.imports.derive import from_joint
from simulator.imports.measured import Imported, ImportRefused, Speeds, believable, count, number

SUSPECT = 3.0
"""A round this many times as long as one of the next smaller lookahead is said to be an outlier."""


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
    known: dict[str, Any] = {
        "engine": "vllm",
        "source": "vllm-dynamic",
        "lookahead": count(found.get("max_num_speculative_tokens", len(joint)), "max_num_speculative_tokens"),
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
