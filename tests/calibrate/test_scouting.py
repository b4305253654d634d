"""Choosing points by measuring: kept in the journal, out-of-memory noted, options checked."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from small_calibration import PLAN as SMALL
from small_calibration import small_job

from calibrate.adaptive import AdaptiveGoal, adapt_plan, adaptive_notes
from calibrate.calibration import CalibrationSteps, lazy_world
from calibrate.journal import Journal
from calibrate.live.errors import WorkerError
from calibrate.measure import measure_grids
from calibrate.options import CalibrationRequest
from calibrate.plan import Grid, Plan

FORWARD = Grid("target.forward", ("batch", "new_tokens", "context"), ((1, 2, 4, 64), (1, 8), (48, 240)))
TREE = Grid("draft.tree", ("batch", "branches", "context"), ((1,), (1, 12, 48), (48, 240)))
PLAN = Plan((FORWARD, TREE), repeats=2, overlap_repeats=1)


class Machine:
    """Bends at 16 tokens; the target's memory ends at `most` tokens in the cache."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.calls = most, 0

    def __call__(self, device: str, kind: str, shape: dict[str, int], repeats: int) -> list[float]:
        self.calls += 1
        if device == "target" and shape["batch"] * shape["context"] > self.most:
            raise WorkerError("target", "Probe", "torch.OutOfMemoryError: CUDA out of memory.")
        tokens = shape["batch"] * shape.get("new_tokens", shape.get("branches", 0))
        return [1e-3 * max(1.0, tokens / 16)] * repeats


def quiet(done: int, total: int) -> None:
    """No progress."""


def adapted(machine: Machine, journal: Journal, *, budget_s: float = 1e9) -> Plan:
    ticks = iter(range(10**9))
    goal = AdaptiveGoal(0.05, budget_s)
    return adapt_plan(PLAN, goal, machine, journal=journal, progress=quiet, clock=lambda: float(next(ticks)))


def test_grids_measured_at_the_points_found_are_within_the_bound() -> None:
    machine, journal = Machine(), Journal()
    plan = adapted(machine, journal)
    grids = measure_grids(plan, machine, seed=0, progress=quiet)
    for cost in grids.values():
        assert cost.interpolation_error is not None and cost.interpolation_error.worst <= 0.05
    assert plan.grids[0].values[0][0] == 1 and plan.grids[0].values[0][-1] == 64
    assert plan.grids[1].values[0] == (1,)
    assert "target.forward" in adaptive_notes(journal) and "under the bound" in adaptive_notes(journal)


def test_a_grid_that_is_done_is_not_chosen_again(tmp_path: Path) -> None:
    machine = Machine()
    with Journal(tmp_path / "journal") as journal:
        first = adapted(machine, journal)
    calls = machine.calls
    with Journal(tmp_path / "journal") as journal:
        assert adapted(machine, journal) == first
    assert machine.calls == calls


def test_out_of_memory_is_noted_and_not_fatal() -> None:
    journal = Journal()
    plan = adapted(Machine(most=64 * 100), journal)
    assert max(plan.grids[0].values[0]) * max(plan.grids[0].values[2]) <= 64 * 100
    assert "out of memory at (64, 1, 240)" in adaptive_notes(journal)


def test_another_failure_is_fatal() -> None:
    def broken(*_: object) -> list[float]:
        raise WorkerError("target", "Probe", "ValueError: no")

    with pytest.raises(WorkerError):
        adapt_plan(PLAN, AdaptiveGoal(0.05), broken, journal=Journal(), progress=quiet)


def test_time_that_is_spent_ends_it() -> None:
    journal = Journal()
    few = adapted(Machine(), journal, budget_s=1e-9)
    assert [len(ticks) for ticks in few.grids[0].values] == [2, 2, 2]
    assert "time was spent" in adaptive_notes(journal)


@pytest.mark.parametrize(
    ("error", "budget", "message"),
    [
        (None, 60.0, "without --until-error"),
        (0.0, None, "above 0"),
        (1.5, None, "below 1"),
        (0.1, 0.0, "above 0 s"),
    ],
)
def test_options_that_make_no_sense(error: float | None, budget: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CalibrationRequest(until_error=error, time_budget=budget)


def test_options() -> None:
    job = small_job("target", "draft")
    assert job.adaptive is None
    assert replace(job, until_error=0.05).adaptive == AdaptiveGoal(0.05, 300.0)
    assert replace(job, until_error=0.05, time_budget=9.0).adaptive == AdaptiveGoal(0.05, 9.0)


def test_live_workers_are_chosen_for_and_measured(pair: tuple[str, str]) -> None:
    job = replace(small_job(*pair), until_error=0.9, time_budget=1.0)
    plan = replace(SMALL, grids=SMALL.grids[:1], repeats=2, live=())
    journal = Journal()
    with ExitStack() as stack:
        bench = CalibrationSteps(job, plan, lazy_world(job, plan, stack), journal, lambda *_: None)
        chosen = bench.adapted()
        grids = replace(bench, what=chosen).grids()
    assert [(t[0], t[-1]) for t in chosen.grids[0].values] == [(1, 2), (1, 4), (8, 24)]
    error = grids["target.forward"].interpolation_error
    assert error is not None and error.held_out_points == len(chosen.grids[0].held_out) > 0
    assert adaptive_notes(journal).startswith("points of target.forward chosen by measuring")
