"""Where a calibration writes: profile, traces, and its unfinished work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calibrate.job import Job, inputs
from calibrate.journal import Journal, open_journal
from calibrate.plans import Plan
from hardware_profiles.profile import save_profile
from hardware_profiles.store import trace_name, user_profile, user_trace
from hardware_profiles.trace import write_trace

if TYPE_CHECKING:
    from calibrate.calibration import Calibrated


def profile_path(job: Job, out: Path | None) -> Path:
    """File of the profile, in `out` or among the user's own."""
    return out / f"{job.name}.json" if out else user_profile(job.name)


def trace_path(job: Job, temperature: float, out: Path | None) -> Path:
    """File of a trace: named like the profile, with `-t<temperature>` where tokens are sampled."""
    name = trace_name(job.name, temperature, job.top_p if temperature > 0.0 else 1.0)
    return out / f"{name}.parquet" if out else user_trace(name)


def open_work(job: Job, out: Path | None, *, fresh: bool = False, what: Plan | None = None) -> Journal:
    """The journal of a job, in a hidden folder beside its profile.

    Args:
        job: What is calibrated.
        out: As for `profile_path`.
        fresh: Discard what an interrupted run left.
        what: What is measured; by default the job's plan.
    """
    folder = profile_path(job, out).parent / f".{job.name}.partial"
    return open_journal(folder, inputs(job, what), fresh=fresh)


def write_all(found: Calibrated, job: Job, out: Path | None) -> Path:
    """Write the traces and then the profile, each whole or not at all; returns the profile's path."""
    for temperature, trace in found.traces.items():
        path = trace_path(job, temperature, out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trace(trace, path)
    path = profile_path(job, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_profile(found.profile, path)
    return path
