"""The live half of the experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np

from analysis.experiments.bench import FIGURES, Progress, Row
from analysis.intervals import plain
from analysis.livecells import measured, of_setting, run_settings, speedup_by_repeat
from analysis.predictions import Setting
from analysis.validation import with_baselines
from calibrate.job import Job, worker_specs
from calibrate.live.placement import WorkerSpec, available_cores
from calibrate.live.world import LiveWorld
from calibrate.live_runs import LiveRun
from hardware_profiles.trace import Trace
from policies.registry import SettingError
from policies.summary import Summary


class Lab:
    """A live world; use it in a `with` statement.

    Args:
        job: Pair, machine, placement.
        widest: Largest batch that will run.
        drafts: Draft devices, each on cores of its own.
        repeats: Repetitions of every setting.

    Raises:
        SettingError: More draft devices than cores to pin them to.
    """

    def __init__(self, job: Job, *, widest: int = 1, drafts: int = 1, repeats: int = 2) -> None:
        self.job = job
        self.repeats = repeats
        target, draft = worker_specs(job, batch=widest)
        self._world = LiveWorld(target, more_drafts(draft, drafts))

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.close(gently=error is None)

    def measure(
        self,
        settings: Sequence[Setting],
        traces: Mapping[float, Trace],
        *,
        limit: int | None,
        progress: Progress,
    ) -> dict[Setting, Row]:
        """The `measured_...` columns of every setting, plain decoding interleaved."""
        wanted = with_baselines(settings)
        runs = run_settings(
            self._world,
            wanted,
            traces,
            repeats=self.repeats,
            seed=self.job.seed,
            progress=lambda done, total: progress("live settings", done, total),
            limit=limit,
        )
        return {setting: self._row(runs, setting) for setting in settings}

    def _row(self, runs: Sequence[LiveRun], setting: Setting) -> Row:
        settings, batch = setting
        speed, ar = measured(runs, setting), measured(runs, (plain(settings), batch))
        by_repeat = speedup_by_repeat(speed, ar)
        return {
            "measured_speedup_vs_ar": speed.tokens_per_second / ar.tokens_per_second,
            "measured_low": min(by_repeat),
            "measured_high": max(by_repeat),
            **{f"measured_{name}": pooled(of_setting(runs, setting), name) for name in FIGURES},
            "measured_tokens_per_second": speed.tokens_per_second,
        }


def pooled(runs: Sequence[LiveRun], figure: str) -> float | None:
    """A figure over several runs, as a ratio of sums: weighted by what its denominator counts."""
    known = [run.summary for run in runs if getattr(run.summary, figure) is not None]
    if not known:
        return None
    values = [getattr(summary, figure) for summary in known]
    return float(np.average(values, weights=[_weight(summary, figure) for summary in known]))


def _weight(summary: Summary, figure: str) -> float:
    """Positions verified, of which the acceptance rate is a share; rounds for the others."""
    if figure != "acceptance_rate" or not summary.acceptance_rate:
        return float(summary.rounds)
    return summary.accepted_per_round * summary.rounds / summary.acceptance_rate


def more_drafts(draft: WorkerSpec, count: int) -> list[WorkerSpec]:
    """`count` draft workers, the further ones on cores that nobody has yet.

    Raises:
        SettingError: There are too few cores.
    """
    if count == 1:
        return [draft]
    free = [core for core in available_cores() if core not in (0, *draft.cores)]
    if len(free) < count - 1:
        raise SettingError(
            f"{count} draft devices live need {count + 1} cores, one for the target; there are "
            f"{len(available_cores())}: run this experiment without --live"
        )
    more = [replace(draft, name=f"draft-{i + 1}", cores=(free[i],)) for i in range(count - 1)]
    return [draft, *more]
