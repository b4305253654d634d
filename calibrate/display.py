"""What `calibrate` shows: progress while it works, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from hardware_profiles.optime import OperationHost
from hardware_profiles.profile import Profile
from hardware_profiles.surface import GridCost, LatencySurface, OperationName
from hardware_profiles.trace import Trace
from policies.commandline import wide_console
from policies.curves import hit_curves

if TYPE_CHECKING:
    from calibrate.calibration import Calibrated


EVERY_S = 30.0
"""Between two lines of progress in a log."""
MUCH_DRIFT = 0.05
"""Repetitions further apart than this call for a warning."""


@contextmanager
def show_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per stage on stderr; yields the function that moves them, (stage, done, total).

    In a log bars would show only once all is done: there a line says now and then how far a stage is.
    """
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
    console = wide_console(stderr=True)
    with Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}
        said = monotonic()

        def move(stage: str, done: int, total: int) -> None:
            nonlocal said
            if not console.is_terminal:
                if monotonic() - said >= EVERY_S:
                    said = monotonic()
                    console.print(f"{stage}: {done} of {total}")
                return
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)  # type: ignore[arg-type]

        yield move


def summary_lines(
    calibrated: Calibrated, *, files: Sequence[Path] = (), then: str = "", verbose: bool = False
) -> list[str]:
    """What was measured, how well, and what next: some ten lines, or every operation on one of its own.

    Args:
        calibrated: What was found.
        files: Written.
        then: The command to go on with, or what to know before; none, where it is empty.
        verbose: Whether the details are said, too.
    """
    profile = calibrated.profile
    named = [("profile", f"{profile.name}: {profile.description}"), *_forwards(profile)]
    named += _accepted(calibrated.traces)
    if profile.overlap:
        most = max(profile.overlap, key=lambda entry: entry.slowdown)
        slower = f"{100 * (most.slowdown - 1.0):.0f} % longer while the other model works"
        named.append(("together", f"the {most.device}'s {most.operation} takes up to {slower}"))
    if (host := profile.host.operations.get("verify")) is not None:
        beyond = host.lead_s(1) + host.after_s(5) + host.warm_s(rows=1, calls=1, tokens=5)
        named.append(
            ("host", f"{1e3 * beyond:+.2f} ms around a verification of 5 tokens, fitted to live rounds")
        )
    named += _quality(profile)
    lines = [f"{name:<9} {text}" for name, text in named]
    if verbose:
        lines += ["", *_detail_lines(calibrated), ""]
    lines += [f"{'wrote':<9} {path}" for path in files]
    return [*lines, f"{'next':<9} {then}"] if then else lines


def _forwards(profile: Profile) -> list[tuple[str, str]]:
    """What a token, a verification and a draft step take, at a context of 128."""

    def ms(name: OperationName, batch: int, new: int) -> float:
        return 1e3 * LatencySurface(profile.operations[name]).seconds(
            batch=batch, new_tokens=new, context=128
        )

    step, draft = ms("target.forward", 1, 1), ms("draft.forward", 1, 1)
    target = f"{step:.2f} ms a token; 5 verified at once {ms('target.forward', 1, 5):.2f} ms"
    cost = profile.operations["target.forward"]
    rows = [point.at[cost.axes.index("batch")] for point in cost.points] if isinstance(cost, GridCost) else []
    if (most := int(max(rows, default=1))) > 1:
        target += f"; a token each for {most} rows {ms('target.forward', most, 1):.2f} ms"
    return [
        ("target", target),
        ("draft", f"{draft:.2f} ms a token: the target takes {step / draft:.1f} times that"),
    ]


def _accepted(traces: Mapping[float, Trace]) -> list[tuple[str, str]]:
    """Acceptance by temperature, by category where there are several, and what a cache would have."""
    rates, cached = list[str](), list[tuple[str, str]]()
    for temperature, trace in traces.items():
        rate = f"{100 * acceptance_of(temperature, trace):.1f} %"
        if temperature:
            rates.append(f"{rate} at temperature {temperature:g}")
            continue
        by = _by_category(trace)
        each = f" ({', '.join(f'{name} {100 * a:.0f}' for name, a in by.items())})" if len(by) > 1 else ""
        rates.append(f"{rate} greedy{each}")
        curves = hit_curves(trace.column("draft_rank"))
        hits = ", ".join(f"{100 * curves.after_rejection[f - 1]:.0f} % of {f}" for f in (1, 3, 8))
        cached.append(
            ("cached", f"in place of a rejected token, the target's is among the draft's next: {hits}")
        )
    return [("accepted", f"of drafted tokens {'; '.join(rates)}"), *cached] if rates else []


def _by_category(trace: Trace) -> dict[str, float]:
    rank = trace.column("draft_rank")
    category = np.repeat([r.category for r in trace.requests], np.diff(trace.offsets))
    names = dict.fromkeys(category.tolist())
    return {name: hit_curves(rank[category == name]).acceptance for name in names}


def _quality(profile: Profile) -> list[tuple[str, str]]:
    """How far off what lies between the measured points is, and how far apart repetitions were."""
    errors = [cost.interpolation_error for cost in profile.operations.values()]
    known = [error for error in errors if error is not None]
    said, drift = list[str](), max(_drift(profile).values(), default=None)
    if known:
        median, worst = (100 * max(getattr(error, name) for error in known) for name in ("median", "worst"))
        said.append(f"between measured points off by {median:.1f} % in the median, {worst:.1f} % at most")
    if drift is not None:
        said.append(f"repetitions differ by +-{100 * drift:.1f} %")
    lines = [("how well", "; ".join(said))] if said else []
    if drift is not None and drift > MUCH_DRIFT:
        lines.append(
            ("warning", "the machine's speed varied, or something else ran: calibrate again when it is idle")
        )
    return lines


def _drift(profile: Profile) -> dict[str, float]:
    """How far the repetitions of the grids were apart."""
    return {
        name: float(np.ptp(cost.block_factors)) / 2
        for name, cost in profile.operations.items()
        if isinstance(cost, GridCost) and cost.block_factors
    }


def _detail_lines(calibrated: Calibrated) -> list[str]:
    """Every operation's."""
    host = calibrated.profile.host
    lines = [_host_line(name, entry) for name, entry in host.operations.items()]
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
    if drift := _drift(calibrated.profile):
        lines.append("drift between repetitions: " + ", ".join(f"{n} +-{d:.1%}" for n, d in drift.items()))
    for temperature, trace in calibrated.traces.items():
        lines += _greedy_lines(trace) if temperature == 0.0 else [_sampled_line(temperature, trace)]
    return lines


def _host_line(name: str, entry: OperationHost) -> str:
    return (
        f"host, {name}: {entry.submit_s * 1e6:.0f} us {entry.submit_row_s * 1e6:+.0f} us per further row to "
        f"start, {entry.report_s * 1e6:.0f} us {entry.report_token_s * 1e6:+.1f} us per token to report, "
        f"work {entry.scale:.3f} of the grids' {entry.extra_s * 1e6:+.0f} us {entry.row_s * 1e6:+.0f} us per "
        f"further row {entry.step_s * 1e6:+.0f} us per step {entry.token_s * 1e6:+.0f} us per token, "
        f"{entry.wake:.3f} of idling"
    )


def _greedy_lines(trace: Trace) -> list[str]:
    curves = hit_curves(trace.column("draft_rank"))
    hits = ", ".join(f"F={f} {curves.after_rejection[f - 1]:.2f}" for f in (1, 2, 3, 5, 8, 15))
    lines = [
        f"acceptance {curves.acceptance:.3f} over {curves.positions} positions",
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
        "acceptance": {f"{t:g}": acceptance_of(t, trace) for t, trace in calibrated.traces.items()},
        "curves": asdict(hit_curves(calibrated.trace.column("draft_rank"))) if traces else None,
        "resumed": dict(resumed),
    }


def acceptance_of(temperature: float, trace: Trace) -> float:
    """Of a draft that decodes as the target does: greedy, or sampling from q."""
    if temperature == 0.0:
        return hit_curves(trace.column("draft_rank")).acceptance
    return float(trace.column("accept_mass").mean())
