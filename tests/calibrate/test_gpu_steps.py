"""The stages of `gpu-day`: each is read as it stands, as if there were a GPU; and run in small.

Reading goes through everything before the first worker starts: options, architectures, devices, memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_calibration import PLAN
from small_models import prompts

import analysis.cli
import calibrate.calibration
import calibrate.job
import calibrate.machine
import calibrate.models
from analysis.__main__ import main as analysis_main
from analysis.studies import gpu_day
from analysis.studies.gpu_day import STAGES, GpuDayPlan, Stage
from calibrate.cli import main
from calibrate.job import Job, worker_specs
from calibrate.live import placement
from calibrate.live.accelerators import LocalDevice
from calibrate.live.placement import available_cores
from calibrate.machine import Machine
from calibrate.pair.embed import Shape, embedded_config
from calibrate.plan import LivePart
from calibrate.shipped import DATA
from hardware_profiles.profile import load_profile
from policies.ar import ArConfig
from policies.sd import SdConfig

CORES = tuple(range(16))
GPU = Machine("Some CPU", CORES, ("cuda: GPU",), None, (LocalDevice("cuda:0", "GPU", 140 * 10**9),))


def commands() -> list[list[str]]:
    """Every command of the stages, as they stand."""
    return [stage.arguments(GpuDayPlan(), Path("gpu")) for stage in STAGES]


def of(name: str) -> list[list[str]]:
    """The arguments of a command's calls, without those of `calibrate pair`."""
    return [call[1:] for call in commands() if call[0] == name and call[1] != "pair"]


def label(call: list[str]) -> str:
    return " ".join(call)[:60]


class Stopped(RuntimeError):
    """Raised in place of the first worker."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """A machine of 16 cores, 128 GB and one GPU; jobs end where they would start a worker, and are kept."""
    jobs: list[Job] = []

    def stop(job: Job, *_: Any, **__: Any) -> None:
        jobs.append(job)
        raise Stopped("here the workers would start")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(placement, "available_cores", lambda: CORES)
    monkeypatch.setattr(calibrate.job, "available_memory", lambda: 128 * 10**9)
    found = replace(GPU, devices=(*GPU.devices, LocalDevice("openvino:CPU")))
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: found)
    monkeypatch.setattr(calibrate.calibration, "run_calibration", stop)
    monkeypatch.setattr("analysis.studies.validation.predictor", stop)
    for name, source in (("target", "target"), ("draft", "draft")):
        # As they are; in the shapes of the page they would take minutes and 30 GB.
        folder = Path("gpu") / name
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(DATA / source)
    return jobs


@pytest.mark.parametrize("call", of("calibrate"), ids=label)
def test_calibrations_are_read_as_they_stand(call: list[str], machine: list[Job]) -> None:
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].endswith("the workers would start")
    (job,) = machine
    target, draft = worker_specs(job, batch=job.plan.largest_batch)
    assert (target.device, target.precision) == ("cuda:0", "bf16")
    assert job.name in {path.name.split(".")[1] for path in Path("gpu").glob(".*.partial")}
    assert job.random == ("shape:" in " ".join(call))
    on_cpu = job.placement.name == "cuda:0+cpu"
    assert draft.device == ("cpu" if on_cpu else "cuda:0") and job.placement.separate == on_cpu
    assert len(draft.cores) == (15 if on_cpu else 1)
    assert draft.backend == ("openvino:CPU" if "openvino:CPU" in call else "torch")
    assert target.mode == ("compiled" if "compiled" in call else "eager")
    if "--batches" in call:
        assert set(map(int, call[call.index("--batches") + 1].split(","))) == set(job.batches)


@pytest.mark.parametrize("call", of("validate"), ids=label)
def test_validations_are_read_as_they_stand(call: list[str], machine: list[Job]) -> None:
    result = CliRunner().invoke(analysis.cli.main, call)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].endswith("the workers would start")
    assert machine[0].placement.target_device == "cuda:0"


@pytest.mark.parametrize(
    ("name", "width", "layers", "billions"), [("target", 4096, 30, 7.35), ("draft", 896, 24, 0.4)]
)
def test_the_embedded_pair_has_the_sizes_that_the_page_says(
    name: str, width: int, layers: int, billions: float, tmp_path: Path
) -> None:
    calls = [call for call in commands() if call[1] == "pair"]
    (shape,) = (call[3] for call in calls if name in call[call.index("--out") + 1])
    from transformers import AutoConfig

    config = embedded_config(AutoConfig.from_pretrained(DATA / name), Shape.parse(shape))
    assert (config.hidden_size, config.num_hidden_layers) == (width, layers)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    size = calibrate.models.model_size(str(tmp_path / "config.json"))
    assert size.parameters == pytest.approx(billions * 1e9, rel=0.01)


# -- in small ---------------------------------------------------------------------------------------------


def run(command: Any, *arguments: str) -> Result:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.slow
def test_a_day_in_small(pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stages with a tiny pair on this machine's cores; a second day finds them done."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cores = available_cores()
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: Machine("Some CPU", cores, ()))
    configs = (ArConfig(), SdConfig(lookahead=2))
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(configs, prompts=1, repeats=1),))
    monkeypatch.setattr(calibrate.job, "plan", lambda **_: least)
    lines = [
        json.dumps({"question_id": p.question_id, "category": p.category, "turns": [p.text]})
        for p in prompts(2)
    ]
    Path("prompts.jsonl").write_text("\n".join(lines))
    few = " --prompts prompts.jsonl --temperature 0 --max-tokens 8"
    further = {"pair": "", "draft": "", "live": few + " --subsets 1 --repeats 1"}

    def small_stage(stage: Stage) -> Stage:
        return replace(stage, call=stage.call.replace("compiled", "eager") + further.get(stage.name, few))

    monkeypatch.setattr(gpu_day, "STAGES", tuple(map(small_stage, STAGES)))
    asked = (
        "--out", "day", "--placement", f"shared:{cores[0]}", "--precision", "fp32", "--batches", "1",
        "--target-embedding", "2x2", "--draft-embedding", "1x1", "--target-source", pair[0],
        "--draft-source", pair[1], "--policies", "ar,sd", "--count", "2", "--json",
        "--max-tokens", "8", "--stages", "pair,draft,latencies,live",
    )  # fmt: skip
    first, second = (
        json.loads(run(analysis_main, "run", "gpu-day", *asked).stdout)["rows"] for _ in range(2)
    )
    assert [row["state"] for row in first] == ["done"] * 4
    assert [row["state"] for row in second] == ["kept"] * 4
    made = {row["stage"]: row["files"] for row in first}
    assert "pair.json" in made["latencies"] and "live/validation.json" in made["live"]
    assert load_profile("day/pair.json").roles.target.layers == 4


def test_what_does_not_fit_is_left_and_failures_are_told(tmp_path: Path) -> None:
    """Of 10, 20 and 5 minutes within 16 the second one is left; each takes a minute by this clock."""
    now = iter([0.0, 0.0, 60.0, 60.0, 60.0, 60.0, 120.0])
    stages = [Stage(n, "", f"calibrate {n}", f"{n}.json", m) for n, m in (("a", 10), ("b", 20), ("c", 5))]

    def call(arguments: Sequence[str]) -> None:
        (tmp_path / f"{arguments[1]}.json").touch()
        if arguments[1] == "c":
            raise RuntimeError("no such device")

    plan = GpuDayPlan(minutes=16.0)
    found = list(gpu_day.run_stages(stages, plan, tmp_path, call=call, clock=lambda: next(now)))
    assert [(row["state"], row["seconds"], row["files"]) for row in found] == [
        ("done", 60.0, ["a.json"]), ("no time", 0.0, []), ("failed: no such device", 60.0, ["c.json"]),
    ]  # fmt: skip
