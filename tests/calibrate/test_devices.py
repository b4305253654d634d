"""Devices and backends: what is asked for, what is refused, and what is passed on to where it is used.

No accelerator is behind these tests: what torch says of one is put in its place, and forwards run on the CPU.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from small_calibration import PLAN, small_job
from small_models import prompts

import calibrate.machine
from calibrate.calibration import run_calibration
from calibrate.checks import MisfitError
from calibrate.cli import main, make_job
from calibrate.job import check_memories, default_name, inputs, like_profile, recorders, worker_specs
from calibrate.live import accelerators, loading, placement
from calibrate.live.accelerators import Found, find_accelerators, synchroniser, torch_device
from calibrate.live.errors import PlacementError
from calibrate.live.executor import Executor
from calibrate.live.placement import (
    Placement,
    WorkerSpec,
    backend_label,
    labelled_backend,
    pair_specs,
    parse_placement,
)
from calibrate.machine import Machine, require_devices
from calibrate.plans import LivePart
from calibrate.recording import RecordingJob, record
from calibrate.roles import role_of

GPU = Found("cuda:0", "Some GPU", 80 * 2**30)
WITH_GPU = Machine("Some CPU", (0, 1, 2), ("cuda: Some GPU",), None, (GPU, Found("openvino:CPU")))


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: (0, 1, 2))


# -- what is asked for ----------------------------------------------------------------------------------

FORMS = [
    ("split", ((0,), (1,)), ("cpu", "cpu"), True),
    ("shared:0,1", ((0, 1), (0, 1)), ("cpu", "cpu"), False),
    ("cuda:0", ((0,), (1,)), ("cuda:0", "cuda:0"), False),
    ("cuda:0+cuda:1", ((0,), (1,)), ("cuda:0", "cuda:1"), True),
    ("cuda:0+cpu", ((0,), (1, 2)), ("cuda:0", "cpu"), True),
    ("cpu+cuda:0", ((1, 2), (0,)), ("cpu", "cuda:0"), True),
    ("mps", ((0,), (1,)), ("mps", "mps"), False),
    ("xpu:1+cpu", ((0,), (1, 2)), ("xpu:1", "cpu"), True),
    ("npu", ((0,), (1,)), ("npu", "npu"), False),
]


@pytest.mark.usefixtures("three_cores")
@pytest.mark.parametrize(("text", "cores", "devices", "apart"), FORMS, ids=[form[0] for form in FORMS])
def test_placements(text: str, cores: Any, devices: tuple[str, str], apart: bool) -> None:
    found = parse_placement(text)
    assert found.name == text and found.devices == devices and found.apart == apart
    assert (found.target_cores, found.draft_cores) == cores
    target, draft = pair_specs("a", "b", found, precision="bf16")
    assert (target.device, draft.device, target.cores, draft.cores) == (*devices, *cores)
    assert (target.backend, draft.precision) == ("torch", "bf16")


def test_one_core_is_enough_for_two_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: (3,))
    found = parse_placement("cuda:0+cpu")
    assert (found.target_cores, found.draft_cores) == ((3,), (3,)) and found.apart


@pytest.mark.parametrize("bad", ["cpu", "cpu+cpu", "cuda:", "cuda:0+", "cuda:a", "gpu:0", "mps:1"])
def test_other_placements_are_refused(bad: str) -> None:
    with pytest.raises(PlacementError, match=r"unknown placement.*cuda:0\+cpu"):
        parse_placement(bad)


def test_specs_refuse_unknown_devices(pair: tuple[str, str]) -> None:
    with pytest.raises(PlacementError, match="unknown device 'gpu'"):
        WorkerSpec("target", pair[0], (0,), device="gpu")


@pytest.mark.parametrize(
    ("backend", "mode", "label"),
    [
        ("torch", "eager", "torch-eager"),
        ("torch", "compiled", "torch-compile"),
        ("openvino:CPU", "eager", "openvino-cpu"),
        ("openvino:GPU.1", "eager", "openvino-gpu.1"),
    ],
)
def test_labels_of_backends(backend: str, mode: Any, label: str) -> None:
    assert backend_label(backend, mode) == label and labelled_backend(label) == backend


# -- what is there --------------------------------------------------------------------------------------


def stub(names: list[str], **more: Any) -> SimpleNamespace:
    """What torch has for a kind of accelerator."""
    return SimpleNamespace(
        is_available=lambda: bool(names),
        device_count=lambda: len(names),
        get_device_name=lambda i: names[i],
        get_device_properties=lambda i: SimpleNamespace(total_memory=(i + 1) * 2**30),
        **more,
    )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", stub(["A", "B"]))
    monkeypatch.setattr(torch, "xpu", stub([]))
    monkeypatch.setattr(torch.backends, "mps", stub([]))


@pytest.mark.usefixtures("two_gpus")
def test_accelerators_are_found() -> None:
    assert find_accelerators() == [Found("cuda:0", "A", 2**30), Found("cuda:1", "B", 2**31)]
    assert torch_device("cuda") == torch.device("cuda:0")
    assert torch_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(PlacementError, match=r"'cuda:2' is not here; found: cpu, cuda:0 \(A\), cuda:1 \("):
        torch_device("cuda:2")
    with pytest.raises(PlacementError, match=r"'xpu' is not here.*whl/xpu"):
        torch_device("xpu")


def test_apples_gpu_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "KINDS", ("mps",))
    monkeypatch.setattr(torch.backends, "mps", stub(["?"]))
    monkeypatch.setattr(torch, "mps", SimpleNamespace())
    assert find_accelerators() == [Found("mps")]
    assert torch_device("mps") == torch.device("mps")


def test_the_cpu_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "find_accelerators", lambda: pytest.fail("nobody asked"))
    assert torch_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "backend", "words"),
    [
        ("cuda:1", "torch", ["'cuda:1' is not here", "cuda:0 (Some GPU)"]),
        ("cuda:0+xpu:0", "torch", ["'xpu:0'", "XPU build"]),
        ("npu", "torch", ["'npu'", "torch-npu", "openvino:NPU"]),
        ("mps", "torch", ["Apple"]),
        ("cuda:0+cpu", "openvino:NPU", ["'openvino:NPU' is not here", "openvino:CPU", "driver"]),
    ],
)
def test_what_is_not_there_is_refused(text: str, backend: str, words: list[str]) -> None:
    with pytest.raises(PlacementError) as caught:
        require_devices(parse_placement(text), WITH_GPU, backend)
    assert all(word in str(caught.value) for word in words), caught.value
    require_devices(parse_placement("cuda:0+cpu"), WITH_GPU, "openvino:CPU")
    require_devices(parse_placement("cuda"), WITH_GPU)


def test_what_a_device_cannot_do_is_refused() -> None:
    machine = replace(WITH_GPU, devices=(*WITH_GPU.devices, Found("mps")))
    require_devices(parse_placement("mps"), machine)
    with pytest.raises(PlacementError, match=r"no double precision.*--temperature 0"):
        require_devices(parse_placement("cpu+mps"), machine, sampled=True)
    with pytest.raises(PlacementError, match=r"its own device.*--placement cuda:0\+cpu"):
        require_devices(parse_placement("cuda:0"), machine, "openvino:CPU")


def test_this_machine_is_looked_at_in_a_process_of_its_own() -> None:
    found = calibrate.machine.find_machine()
    assert found.device("openvino:CPU") == Found("openvino:CPU")
    assert len(found.accelerators) == sum(not d.device.startswith("openvino") for d in found.devices)
    assert (found.device("cuda") is not None) == torch.cuda.is_available()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--placement", "cuda:0"], "device 'cuda:0' is not here; found: cpu. it needs an NVIDIA driver"),
        (["--placement", "mps+cpu"], "device 'mps' is not here"),
        (["--draft-backend", "openvino:NPU"], "pip install 'spectwin[openvino]'"),
        (["--draft-backend", "tensorrt"], "unknown backend 'tensorrt'; backends: torch, openvino:CPU"),
        (["--placement", "cuda:0+tpu"], "unknown placement"),
    ],
)
def test_the_command_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: Machine("Some CPU", (0, 1), ()))
    result = run(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


# -- where it is used -----------------------------------------------------------------------------------


def test_a_stamp_is_of_done_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are launched and go on: the end of a step is taken after waiting for its own device."""
    happened: list[Any] = []
    monkeypatch.setattr(torch, "cuda", stub(["A", "B"], synchronize=happened.append))
    runner: Any = SimpleNamespace(device=torch.device("cuda:1"), fed=3)
    executor = Executor(runner)
    monkeypatch.setattr(time, "perf_counter", lambda: happened.append("time") or 2.5)
    executor.stamp("verify", 1.0, 0, [(1, 2), (3,)])
    assert happened == [torch.device("cuda:1"), "time"]
    assert (executor.steps[0].end, executor.steps[0].tokens) == (2.5, 3)


def test_a_cpu_is_not_waited_for() -> None:
    assert synchroniser(torch.device("cpu"))() is None


def test_a_model_is_moved_to_its_device(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` stands for the device; no forward could run there."""
    asked: list[str] = []

    def device(name: str) -> torch.device:
        asked.append(name)
        return torch.device("meta")

    monkeypatch.setattr(loading, "torch_device", device)
    model = loading.load_model(pair[0], "bf16", device="cuda:1")
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
    random = loading.load_model(f"{pair[0]}/config.json", "fp16", device="xpu")
    assert {(p.device.type, p.dtype) for p in random.parameters()} == {("meta", torch.float16)}
    assert asked == ["cuda:1", "xpu"]


def test_a_worker_passes_its_device_on(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = loading.load_model(pair[0]), []
    monkeypatch.setattr(loading, "load_model", lambda *a, **k: asked.append((*a, k["device"])) or model)
    loading.open_runner(WorkerSpec("target", pair[0], (0,), "bf16", device="cuda:1"))
    assert asked == [(pair[0], "bf16", "cuda:1")]


def on(pair: tuple[str, str], text: str, **changes: Any) -> Any:
    """The small job, placed."""
    return replace(small_job(*pair), machine=WITH_GPU, placement=parse_placement(text), **changes)


@pytest.mark.usefixtures("three_cores")
def test_a_job_on_a_gpu(pair: tuple[str, str]) -> None:
    job = on(pair, "cuda:0+cpu", precision="bf16", mode="compiled")
    target, draft = worker_specs(job, batch=4)
    assert (target.device, target.precision, target.mode, target.slots) == ("cuda:0", "bf16", "compiled", 4)
    assert (draft.device, draft.cores, draft.backend) == ("cpu", (1, 2), "torch")
    roles = [role_of(job, role) for role in ("target", "draft")]
    assert [(r.device.kind, r.device.name) for r in roles] == [("cuda", "Some GPU"), ("cpu", "Some CPU")]
    assert roles[0].device.memory_bytes == GPU.memory_bytes and roles[1].device.threads == 2
    assert roles[0].weight_bytes == 2 * (roles[0].parameters or 0)
    assert recorders(job) == 1
    assert default_name(job.machine, "pair:x20", job.placement) == "cpu3-x20-cuda-0-cpu"
    assert inputs(job) != inputs(replace(job, precision="fp32"))


@pytest.mark.usefixtures("three_cores")
def test_a_draft_by_openvino(pair: tuple[str, str]) -> None:
    job = on(pair, "split", mode="compiled", draft_backend="openvino:CPU")
    target, draft = worker_specs(job)
    assert (target.mode, draft.mode, draft.backend) == ("compiled", "eager", "openvino:CPU")
    role = role_of(job, "draft")
    assert (role.backend, role.mode, role.device.kind) == ("openvino-cpu", "captured", "cpu")
    npu = role_of(replace(job, draft_backend="openvino:NPU"), "draft")
    assert (npu.backend, npu.device.kind) == ("openvino-npu", "npu")
    assert default_name(job.machine, "pair:x5", job.placement, "openvino:CPU") == "cpu3-x5-openvino-cpu"
    assert inputs(job) != inputs(replace(job, draft_backend="torch"))


def test_each_device_has_its_own_memory(pair: tuple[str, str]) -> None:
    small = replace(WITH_GPU, devices=(replace(GPU, memory_bytes=2**20),))
    job = on(pair, "cuda:0+cpu")
    check_memories(job, batch=1, length=32)
    with pytest.raises(MisfitError, match=r"0\.0 GiB are available"):
        check_memories(replace(job, machine=small), batch=1, length=32)
    check_memories(replace(job, machine=small, placement=Placement("split", (0,), (1,))), batch=1, length=32)


# -- a draft that OpenVINO runs, recorded and calibrated --------------------------------------------------


def recorded(pair: tuple[str, str], **changes: Any) -> list[Any]:
    texts = tuple(enumerate(prompt.text for prompt in prompts(2)))
    job = RecordingJob(*pair, prompts=texts, limit=8, temperature=0.8, top_p=0.95, **changes)
    found: list[Any] = []
    record(job, found.append)
    return found


def test_a_trace_is_of_the_draft_that_will_run(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine, theirs = recorded(pair, draft_backend="openvino:CPU"), recorded(pair)
    assert len(mine) == 3 and list(tmp_path.glob("*/openvino/*/model.xml"))
    for one, other in zip(mine[1:], theirs[1:], strict=True):
        assert one.columns["token"].tolist() == other.columns["token"].tolist()
        assert one.columns["draft_rank"].tolist() == other.columns["draft_rank"].tolist()
        for name in ("draft_logprob", "accept_mass", "draft_next_top1_logprob", "target_logprob"):
            assert one.columns[name] == pytest.approx(other.columns[name], abs=1e-3, nan_ok=True)


def test_a_calibration_with_an_openvino_draft(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    job = replace(small_job(*pair), draft_backend="openvino:CPU", temperatures=(0.0,))
    knobs = ({"policy": "ar"}, {"policy": "sd", "lookahead": 2}, {"policy": "pearl", "lookahead": 2})
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(knobs, prompts=1, repeats=1),))
    found = run_calibration(job, lambda *_: None, what=least)
    draft = found.profile.roles.draft
    assert (draft.backend, draft.precision) == ("openvino-cpu", "fp32")
    assert found.profile.roles.target.backend == "torch-eager"
    assert found.trace.meta.backend == "openvino-cpu"
    assert found.profile.provenance.note.startswith("draft by openvino-cpu")
    assert {run.policy for run in found.profile.measured_runs} == {"ar", "sd", "pearl"}
    again = like_profile(replace(job, draft_backend="torch", precision="bf16"), found.profile)
    assert (again.draft_backend, again.precision, again.mode) == ("openvino:CPU", "fp32", "eager")


def test_options_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate.machine, "find_machine", lambda: WITH_GPU)
    options = {
        "hw": "auto",
        "target": "pair:target",
        "draft": "pair:draft",
        "prompts": "calibration",
        "temperature": 0.0,
        "max_tokens": 16,
        "seed": 0,
        "placement": "cuda:0",
    }
    job = make_job(options | {"precision": "bf16", "draft_backend": "torch"})
    assert (job.placement.devices, job.precision) == (("cuda:0", "cuda:0"), "bf16")
    assert make_job(options).precision == "fp32" and make_job(options).draft_backend == "torch"
