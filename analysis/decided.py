"""Settings run live on a profile's pair, and the scenario that simulates them on what was decided there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrate.calibration import requests_of
from calibrate.job import Job, worker_specs
from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import Cell, LiveRun, decide, joined, run_matrix
from hardware_profiles.decisions import Decisions, DecisionTrace
from hardware_profiles.profile import Profile
from hardware_profiles.trace import Trace
from policies.registry import Settings
from simulator.pacing import find_pace
from simulator.run import Scenario
from simulator.tokens import replay


def run_deciding(
    job: Job,
    profile: Profile,
    trace: Trace,
    cells: Sequence[Cell],
    deciding: Sequence[Settings],
    *,
    repeats: int,
    progress: Callable[[str, int, int], None],
) -> tuple[list[LiveRun], Scenario]:
    """Cells of one world live, and the scenario of batch 1 that replays the prompts and the decisions.

    A repetition draws what the first did, so that all of them decide alike.

    Args:
        job: Pair and machine, as the profile was measured.
        profile: What predicts.
        trace: Recording of the prompts.
        cells: All at one sampling, in the place "".
        deciding: Settings whose decisions the simulation needs, among those of the cells.
        repeats: Live repetitions; 0: the deciding settings run once, untimed, for their decisions alone.
        progress: (stage, done, total).

    Returns:
        The runs, none without repetitions; and the scenario.
    """
    requests, runs = requests_of(trace), []
    with LiveWorld(*worker_specs(job, batch=max(cell.batch for cell in cells))) as world:
        if repeats:
            runs = run_matrix(
                {"": world},
                cells,
                requests,
                repeats=repeats,
                seed=job.seed,
                progress=lambda done, total: progress("live", done, total),
                fresh_luck=False,
            )
            decided = {each.label: decided_by(runs, each) for each in deciding}
        else:
            decided = decide(
                world, deciding, requests, progress=lambda done, total: progress("decisions", done, total)
            )
    scenario = Scenario(
        replay(trace, seed=job.seed),
        profile=profile,
        seed=job.seed,
        decisions=DecisionTrace(trace.requests, trace.meta, decided, job.limit),
        measured_pace=find_pace(profile, cells[0].settings.temperature),
    )
    return runs, scenario


def decided_by(runs: Sequence[LiveRun], settings: Settings) -> Decisions:
    """What a setting decided in live runs: the same at every batch, in every place and repetition."""
    mine = [run for run in runs if run.settings == settings and run.repeat == 0]
    kept = min(run.batch for run in mine), mine[0].place
    return joined([run.decisions for run in mine if (run.batch, run.place) == kept])
