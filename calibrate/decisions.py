"""What policies decide, from live runs (see `hardware_profiles.decisions`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from calibrate.live.world import LiveWorld
from hardware_profiles.decisions import Decisions, Key, Plain
from policies.config import Settings
from policies.values import Request


def collect_decisions(world: LiveWorld, settings: Settings) -> Decisions:
    """What the devices answered since their records were cleared.

    Args:
        world: After a run.
        settings: What was run.
    """
    replies: dict[Key, Plain] = {}
    marks: dict[Key, Plain] = {}
    for device in world.devices:
        for operation, answered, early in device.replies:
            for i, key in enumerate(operation.reply_keys()):
                if key in replies:
                    raise AssertionError(f"{key} was answered twice; give the operations different parts")
                replies[key] = plain(answered[i])
                if early is not None:
                    marks[key] = plain(early[i])
    return Decisions(settings.label, replies, marks, _seconds(world), settings.policy, plain_knobs(settings))


def plain_knobs(settings: Settings) -> dict[str, Plain]:
    """The knobs of a setting as a file keeps them."""
    return {name: plain(value) for name, value in settings.knobs.items()}


def _seconds(world: LiveWorld) -> dict[str, float]:
    """Median seconds of steps that fed no token to a model, by name."""
    found: dict[str, list[float]] = {}
    for timing in world.timings():
        for step in timing.steps:
            if step.tokens == 0:
                found.setdefault(step.name, []).append(step.end_s - step.start_s)
    return {name: median(values) for name, values in sorted(found.items())}


def plain(value: Any) -> Plain:
    """Tuples as lists, numpy's numbers as Python's."""
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


def joined(runs: Sequence[Decisions]) -> Decisions:
    """The decisions of one setting in several runs, of different requests each.

    Raises:
        ValueError: They are of different settings, or there are none.
    """
    if len({run.label for run in runs}) != 1:
        raise ValueError(f"decisions of {len({run.label for run in runs})} settings cannot be joined")
    replies: dict[Key, Plain] = {}
    marks: dict[Key, Plain] = {}
    for run in runs:
        replies |= run.replies
        marks |= run.marks
    names = sorted({name for run in runs for name in run.seconds})
    seconds = {n: median(run.seconds[n] for run in runs if n in run.seconds) for n in names}
    return replace(runs[0], replies=replies, marks=marks, seconds=seconds)


def decide(
    world: LiveWorld,
    settings: Sequence[Settings],
    requests: Sequence[Request],
    *,
    batch: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Decisions]:
    """Run settings once each and keep what was decided, by label; nothing is timed.

    Args:
        world: Where.
        settings: Of any policies.
        requests: Prompts.
        batch: Rows served at once; it changes no decision.
        progress: Called with (settings done, settings in all).
    """
    from calibrate.runs import run_live

    found = {}
    for done, each in enumerate(settings):
        progress(done, len(settings))
        found[each.label] = run_live(world, each, requests, batch=batch, fresh_luck=False).decisions
    progress(len(settings), len(settings))
    return found
