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
from small_calibration import WITH_GPU

import calibrate.machine
from calibrate.cli import main
from calibrate.live import accelerators, loading, placement
from calibrate.live.accelerators import LocalDevice, find_accelerators, synchroniser, torch_device
from calibrate.live.backends import torch as backend
from calibrate.live.engine.executor import Executor
from calibrate.live.errors import PlacementError
from calibrate.live.placement import (
    WorkerSpec,
    backend_label,
    labelled_backend,
    own_precision,
    pair_specs,
    parse_placement,
)
from calibrate.machine import Machine, require_devices

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
    assert found.name == text and found.devices == devices and found.separate == apart
    assert (found.target_cores, found.draft_cores) == cores
    target, draft = pair_specs("a", "b", found, precision="bf16")
    assert (target.device, draft.device, target.cores, draft.cores) == (*devices, *cores)
    assert (target.backend, draft.precision) == ("torch", "bf16")


def test_one_core_is_enough_for_two_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "available_cores", lambda: (3,))
    found = parse_placement("cuda:0+cpu")
    assert (found.target_cores, found.draft_cores) == ((3,), (3,)) and found.separate


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
    assert backend_label(backend, mode) == label and labelled_backend(label, "fp32") == backend


def test_llamacpps_label_needs_its_precision() -> None:
    for precision in ("fp16", "q8_0", "q4_0"):
        backend = f"llamacpp:{precision}"
        assert backend_label(backend) == "llamacpp" and own_precision(backend) == precision
        assert labelled_backend("llamacpp", precision) == backend
    assert own_precision("openvino:CPU") is None and own_precision("torch") is None


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
    assert find_accelerators() == [LocalDevice("cuda:0", "A", 2**30), LocalDevice("cuda:1", "B", 2**31)]
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
    assert find_accelerators() == [LocalDevice("mps")]
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
        ("split", "llamacpp:q8_0", ["'llamacpp:q8_0' is not here", "pip install 'spectwin[llamacpp]'"]),
    ],
)
def test_what_is_not_there_is_refused(text: str, backend: str, words: list[str]) -> None:
    with pytest.raises(PlacementError) as caught:
        require_devices(parse_placement(text), WITH_GPU, backend)
    assert all(word in str(caught.value) for word in words), caught.value
    require_devices(parse_placement("cuda:0+cpu"), WITH_GPU, "openvino:CPU")
    require_devices(parse_placement("cuda"), WITH_GPU)
    with_llamacpp = replace(WITH_GPU, devices=(*WITH_GPU.devices, LocalDevice("llamacpp")))
    require_devices(parse_placement("split"), with_llamacpp, "llamacpp:q8_0")


def test_what_a_device_cannot_do_is_refused() -> None:
    machine = replace(WITH_GPU, devices=(*WITH_GPU.devices, LocalDevice("mps")))
    require_devices(parse_placement("mps"), machine)
    with pytest.raises(PlacementError, match=r"no double precision.*--temperature 0"):
        require_devices(parse_placement("cpu+mps"), machine, sampled=True)
    with pytest.raises(PlacementError, match=r"its own device.*--placement cuda:0\+cpu"):
        require_devices(parse_placement("cuda:0"), machine, "openvino:CPU")


def test_this_machine_is_looked_at_in_a_process_of_its_own() -> None:
    found = calibrate.machine.find_machine()
    assert found.device("openvino:CPU") == LocalDevice("openvino:CPU")
    kinds = [each.device.partition(":")[0] for each in found.devices]
    assert len(found.accelerators) == sum(kind not in {"openvino", "llamacpp"} for kind in kinds)
    assert (found.device("cuda") is not None) == torch.cuda.is_available()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--placement", "cuda:0"], "device 'cuda:0' is not here; found: cpu. it needs an NVIDIA driver"),
        (["--placement", "mps+cpu"], "device 'mps' is not here"),
        (["--draft-backend", "openvino:NPU"], "pip install 'spectwin[openvino]'"),
        (["--draft-backend", "llamacpp:q8_0"], "pip install 'spectwin[llamacpp]'"),
        (["--draft-backend", "llamacpp:q5_k_m"], "llamacpp:fp16, llamacpp:q8_0, llamacpp:q4_0"),
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
    assert (executor.steps[0].end_s, executor.steps[0].tokens) == (2.5, 3)


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
    monkeypatch.setattr(backend, "load_model", lambda *a, **k: asked.append((*a, k["device"])) or model)
    backend.open_runner(WorkerSpec("target", pair[0], (0,), "bf16", device="cuda:1"))
    assert asked == [(pair[0], "bf16", "cuda:1")]
