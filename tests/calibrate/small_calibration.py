"""A calibration of seconds, as a command that can be killed: `small_calibration.py TARGET DRAFT OUT`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from small_models import prompts

from calibrate.calibration import open_work, run_calibration, write_all
from calibrate.job import Job
from calibrate.live.accelerators import LocalDevice
from calibrate.live.placement import available_cores, parse_placement
from calibrate.machine import Machine
from calibrate.plan import Grid, LivePart, Plan
from hardware_profiles.surface import Axis
from policies.ar import ArConfig
from policies.pearl import PearlConfig
from policies.sd import SdConfig
from policies.ssd import SaguaroConfig

GPU = LocalDevice("cuda:0", "Some GPU", 80 * 2**30)
WITH_GPU = Machine("Some CPU", (0, 1, 2), ("cuda: Some GPU",), None, (GPU, LocalDevice("openvino:CPU")))
PROMPTS = 4
FORWARD: tuple[Axis, ...] = ("batch", "new_tokens", "context")
SETTINGS = (
    ArConfig(),
    SdConfig(lookahead=2),
    PearlConfig(lookahead=2),
    SaguaroConfig.of(lookahead=2, fanout=(2,)),
)
PLAN = Plan(
    grids=(
        Grid("target.forward", FORWARD, ((1, 2), (1, 4), (8, 24)), ((1, 2, 16),)),
        Grid("target.prefill", ("batch", "new_tokens"), ((1,), (4, 16))),
        Grid("draft.forward", FORWARD, ((1, 2), (1, 4), (8, 24))),
        Grid("draft.prefill", ("batch", "new_tokens"), ((1,), (4, 16))),
        Grid("draft.tree", ("batch", "branches", "context"), ((1, 2), (1, 8), (8, 24))),
    ),
    repeats=4,
    overlap_repeats=3,
    live=(
        LivePart(SETTINGS, prompts=2, repeats=2),
        LivePart(SETTINGS, prompts=2, repeats=1, batch=2),
        LivePart(SETTINGS, prompts=2, repeats=1, temperature=1.0),
    ),
)
PIECES = 5 + 2 * PROMPTS + PLAN.repeats + PLAN.overlap_repeats + 2 * 4 * 2 + 4 + 4 * 2
"""Lines of a complete journal: inputs, start, pair, messages, the pass, and the pieces themselves."""


def small_job(target: str, draft: str) -> Job:
    """A tiny pair, with a core each if there are two."""
    cores = available_cores()
    return Job(
        machine=Machine("any", cores, ()),
        target=target,
        draft=draft,
        names=("target", "draft"),
        prompts=tuple(prompts(PROMPTS)),
        prompt_set="tiny",
        placement=parse_placement("split" if {0, 1} <= set(cores) else f"shared:{cores[0]}"),
        max_tokens=12,
        quick=True,
        name="small",
        seed=3,
        command="small",
    )


def main(target: str, draft: str, out: Path) -> None:
    """Calibrate, keeping a copy of the complete journal beside the results."""
    job = small_job(target, draft)
    with open_work(job, out, what=PLAN) as journal:
        found = run_calibration(job, lambda *_: None, journal=journal, what=PLAN)
        write_all(found, job, out)
        assert journal.path is not None
        shutil.copy(journal.path, out / "journal.jsonl")
        journal.discard()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
