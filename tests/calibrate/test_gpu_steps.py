"""The commands of docs/how-to/gpu.md: each is read as it stands, as if there were a GPU; and run in small.

Reading goes through everything before the first worker starts: options, architectures, devices, memory.
"""

from __future__ import annotations

import json
import shlex
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
from policies.pearl import PearlConfig
from policies.sd import SdConfig
from simulator.cli import main as simulate

REPOSITORY = Path(__file__).parents[2]
CORES = tuple(range(16))
GPU = Machine("Some CPU", CORES, ("cuda: GPU",), None, (LocalDevice("cuda:0", "GPU", 140 * 10**9),))


def commands() -> list[list[str]]:
    """Every line within a fence of the page, split as a shell does."""
    blocks = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text(encoding="utf-8").split("```")[1::2]
    return [shlex.split(line) for block in blocks for line in block.strip().splitlines()]


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
    for name, source in (("target-8b", "target"), ("draft-0.5b", "draft")):
        # As they are; in the shapes of the page they would take minutes and 30 GB.
        folder = Path("gpu") / name
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(DATA / source)
    return jobs


def test_the_page_has_every_step() -> None:
    assert {call[0] for call in commands()} == {"calibrate", "simulate", "validate"}
    assert len(of("calibrate")) == 6 and len(of("validate")) == 2 and len(of("simulate")) == 1


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
def test_embed_calibrate_and_validate_in_small(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 2, 3 and 5 with a tiny pair, its draft by OpenVINO, on this machine's cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cores = available_cores()
    here = Machine("Some CPU", cores, (), None, (LocalDevice("openvino:CPU"),))
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: here)
    configs = (ArConfig(), SdConfig(lookahead=2), PearlConfig(lookahead=2))
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(configs, prompts=1, repeats=1),))
    monkeypatch.setattr(calibrate.job, "plan", lambda **_: least)
    lines = [
        json.dumps({"question_id": p.question_id, "category": p.category, "turns": [p.text]})
        for p in prompts(2)
    ]
    Path("prompts.jsonl").write_text("\n".join(lines))
    run(main, "pair", "embed", "2x2", "--source", pair[0], "--out", "gpu/target-8b")
    models = ("--target", "gpu/target-8b", "--draft", pair[1], "--placement", f"shared:{cores[0]}")
    few = ("--prompts", "prompts.jsonl", "--max-tokens", "8", "--temperature", "0")
    backend = ("--draft-backend", "openvino:CPU", "--batches", "1", "--name", "gpu-pair", "--out", "gpu")
    run(main, *models, *few, *backend)
    profile = load_profile("gpu/gpu-pair.json")
    assert {r.policy for r in profile.measured_runs} == {"ar", "sd", "pearl"}
    assert profile.roles.draft.backend == "openvino-cpu" and profile.roles.target.layers == 4
    validated = run(
        analysis.cli.main,
        *("--hw", "gpu/gpu-pair.json", *models, *few, "--count", "2", "--subsets", "1", "--repeats", "1"),
        *("--policies", "ar,sd", "--lookahead", "3", "--out", "gpu/validation"),
    )
    assert "sd" in validated.stdout and any(Path("gpu/validation").iterdir())
    # Step 1's last command, on this profile.
    (call,) = of("simulate")
    call[call.index("--hw") + 1] = "gpu/gpu-pair.json"
    assert "saguaro" in run(simulate, *call).stdout
