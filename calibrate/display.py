"""What `calibrate` shows: progress while it works, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.curves import HitCurves, hit_curves


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per stage on stderr; yields the function that moves them, (stage, done, total)."""
    from rich.console import Console
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
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bars:
        tasks: dict[str, int] = {}

        def move(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield move


def summary_lines(profile: Profile, trace: Trace, curves: HitCurves) -> list[str]:
    """What was found, in a few lines of text."""
    from hardware_profiles.latency import LatencySurface

    surfaces = {name: LatencySurface(cost) for name, cost in profile.operations.items()}
    at = {"batch": 1, "context": 128}
    step = surfaces["target.forward"].seconds(new_tokens=1, **at)
    verify = surfaces["target.forward"].seconds(new_tokens=5, **at)
    draft = surfaces["draft.forward"].seconds(new_tokens=1, **at)
    ratio = f"target step {step * 1e3:.2f} ms, verifying 5 tokens {verify * 1e3:.2f} ms"
    lines = [f"profile {profile.name}: {ratio}, draft step {draft * 1e3:.2f} ms; ratio {step / draft:.1f}"]
    lines += [
        f"host, {name}: {entry.submit_s * 1e6:.0f} us to start, {entry.report_s * 1e6:.0f} us to report, "
        f"work {entry.scale:.3f} of the grids' {entry.extra_s * 1e6:+.0f} us, {entry.wake:.3f} of idling"
        for name, entry in profile.host.operations.items()
    ]
    lines += [
        f"overlap: {entry.device} {entry.operation} {(entry.slowdown - 1) * 100:+.1f} % slower while the "
        f"{entry.while_busy} works"
        for entry in profile.overlap
    ]
    for name, cost in profile.operations.items():
        error = cost.interpolation_error
        if error is not None:
            found = f"median {error.median:.1%}, worst {error.worst:.1%}"
            lines.append(f"interpolation of {name}: {found} on {error.held_out_points} points held out")
    lines.append(f"acceptance {curves.acceptance:.3f} over {curves.positions} positions; by category: ")
    lines[-1] += ", ".join(f"{name} {value:.2f}" for name, value in acceptance_by_category(trace).items())
    hits = ", ".join(f"F={f} {curves.after_rejection[f - 1]:.2f}" for f in (1, 2, 3, 5, 8, 15))
    lines.append(f"hits after a rejection: {hits}")
    if (law := curves.law) is not None:
        fit = f"R2 {law.r_squared:.3f} (log-log), off by at most {law.worst:.3f}"
        lines.append(f"power law 1 - {law.scale:.2f} F^-{law.exponent:.2f}: {fit}")
    return lines


def acceptance_by_category(trace: Trace) -> dict[str, float]:
    """Greedy acceptance per prompt category."""
    rank = trace.column("draft_rank")
    sizes = np.diff(trace.offsets)
    category = np.repeat([r.category for r in trace.requests], sizes)
    return {
        str(name): hit_curves(rank[category == name]).acceptance for name in dict.fromkeys(category.tolist())
    }
