"""What `calibrate` shows: progress while it works, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardware_profiles.optime import OperationHost
from hardware_profiles.profile import Profile
from hardware_profiles.surface import GridCost, LatencySurface
from hardware_profiles.trace import Trace
from policies.commandline import wide_console
from policies.curves import hit_curves

if TYPE_CHECKING:
    from calibrate.calibration import Calibrated


MUCH_DRIFT = 0.05
"""Repetitions further apart than this call for a warning."""


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per stage on stderr; yields the function that moves them, (stage, done, total)."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # Two refreshes a second: the bar must not take a core from what is being timed.
    with Progress(*columns, console=wide_console(stderr=True), refresh_per_second=2) as bars:
        tasks: dict[str, int] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield move


def summary_lines(calibrated: Calibrated) -> list[str]:
    """What was found, in a few lines of text."""
    host = calibrated.profile.host
    lines = [_step_line(calibrated.profile)]
    lines += [_host_line(name, entry) for name, entry in host.operations.items()]
    lines += [_host_line(f"{name} (sampled)", entry) for name, entry in host.sampled.items()]
    lines += [
        f"overlap: {entry.device} {entry.operation} {(entry.slowdown - 1) * 100:+.1f} % slower beside "
        f"the {entry.while_busy}'s {entry.while_operation or 'work'}"
        for entry in calibrated.profile.overlap
    ]
    for name, cost in calibrated.profile.operations.items():
        error = cost.interpolation_error
        if error is not None:
            worst = f"median {error.median:.1%}, worst {error.worst:.1%}"
            lines.append(f"interpolation of {name}: {worst} on {error.held_out_points} points held out")
    lines += _drift_lines(calibrated.profile)
    for temperature, trace in calibrated.traces.items():
        lines += _greedy_lines(trace) if temperature == 0.0 else [_sampled_line(temperature, trace)]
    return lines


def _drift_lines(profile: Profile) -> list[str]:
    """How far the repetitions of the grids were apart, and a warning where that is much."""
    drift = {
        name: float(np.ptp(cost.block_factors)) / 2
        for name, cost in profile.operations.items()
        if isinstance(cost, GridCost) and cost.block_factors
    }
    if not drift:
        return []
    lines = ["drift between repetitions: " + ", ".join(f"{n} +-{d:.1%}" for n, d in drift.items())]
    if max(drift.values()) > MUCH_DRIFT:
        lines.append(
            "warning: the machine's speed varied that much while it was measured; was something else "
            "running?  Predictions inherit it: calibrate again on an idle machine"
        )
    return lines


def _step_line(profile: Profile) -> str:
    surfaces = {name: LatencySurface(cost) for name, cost in profile.operations.items()}
    at = {"batch": 1, "context": 128}
    step = surfaces["target.forward"].seconds(new_tokens=1, **at)
    verify = surfaces["target.forward"].seconds(new_tokens=5, **at)
    draft = surfaces["draft.forward"].seconds(new_tokens=1, **at)
    return (
        f"profile {profile.name}: target step {step * 1e3:.2f} ms, verifying 5 tokens {verify * 1e3:.2f} ms, "
        f"draft step {draft * 1e3:.2f} ms; ratio {step / draft:.1f}"
    )


def _host_line(name: str, entry: OperationHost) -> str:
    return (
        f"host, {name}: {entry.submit_s * 1e6:.0f} us {entry.submit_row_s * 1e6:+.0f} us per further row to "
        f"start, {entry.report_s * 1e6:.0f} us {entry.report_token_s * 1e6:+.1f} us per token to report, "
        f"work {entry.scale:.3f} of the grids' {entry.extra_s * 1e6:+.0f} us {entry.row_s * 1e6:+.0f} us per "
        f"further row {entry.step_s * 1e6:+.0f} us per step {entry.token_s * 1e6:+.0f} us per token, "
        f"{entry.wake:.3f} of idling"
    )


def _greedy_lines(trace: Trace) -> list[str]:
    rank = trace.column("draft_rank")
    curves = hit_curves(rank)
    category = np.repeat([r.category for r in trace.requests], np.diff(trace.offsets))
    categories = ", ".join(
        f"{name} {hit_curves(rank[category == name]).acceptance:.2f}"
        for name in dict.fromkeys(category.tolist())
    )
    hits = ", ".join(f"F={f} {curves.after_rejection[f - 1]:.2f}" for f in (1, 2, 3, 5, 8, 15))
    lines = [
        f"acceptance {curves.acceptance:.3f} over {curves.positions} positions; by category: {categories}",
        f"hits after a rejection: {hits}",
    ]
    if (law := curves.power_law) is not None:
        fit = f"R2 {law.r_squared:.3f} (log-log), off by at most {law.worst:.3f}"
        lines.append(f"power law 1 - {law.scale:.2f} F^-{law.exponent:.2f}: {fit}")
    return lines


def _sampled_line(temperature: float, trace: Trace) -> str:
    mass = float(trace.column("accept_mass").mean())
    kept = np.exp(trace.column("draft_top_logprobs").astype(np.float64)).sum(axis=1).mean()
    return (
        f"at temperature {temperature:g}: acceptance {mass:.3f} over {len(trace)} positions; the draft's "
        f"first {trace.meta.draft_top} choices hold {kept:.1%} of its mass"
    )


def json_of(
    calibrated: Calibrated, profile: Path, traces: Mapping[float, Path], resumed: Mapping[str, int]
) -> dict[str, Any]:
    """What `--json` prints: where the files are, acceptance and hit curves by temperature.

    Of random weights there is no trace, no acceptance and no curve: null, or empty.  `resumed` counts pieces
    taken over from an interrupted run, by stage.
    """
    return {
        "profile": str(profile),
        "trace": str(next(iter(traces.values()))) if traces else None,
        "traces": {f"{t:g}": str(path) for t, path in traces.items()},
        "acceptance": {f"{t:g}": _acceptance(t, trace) for t, trace in calibrated.traces.items()},
        "curves": asdict(hit_curves(calibrated.trace.column("draft_rank"))) if traces else None,
        "resumed": dict(resumed),
    }


def _acceptance(temperature: float, trace: Trace) -> float:
    """Of a draft that decodes as the target does: greedy, or sampling from q."""
    if temperature == 0.0:
        return hit_curves(trace.column("draft_rank")).acceptance
    return float(trace.column("accept_mass").mean())
