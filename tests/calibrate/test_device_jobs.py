"""Jobs on devices and backends: what workers, profiles and traces become of them.

No accelerator is behind these tests: what torch says of one is put in its place, and forwards run on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_calibration import GPU, PLAN, WITH_GPU, small_job

import calibrate.machine
from calibrate.calibration import role_of, run_calibration
from calibrate.job import (
    check,
    check_memories,
    default_name,
    inputs,
    like_profile,
    make_job,
    recorders,
    worker_specs,
)
from calibrate.live.placement import Placement, parse_placement
from calibrate.models import MisfitError
from calibrate.options import CalibrationRequest
from calibrate.plan import LivePart
from calibrate.record import Share, record
from policies.ar import ArConfig
from policies.pearl import PearlConfig
from policies.sd import SdConfig


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


@pytest.mark.usefixtures("three_cores")
def test_a_draft_by_llamacpp(pair: tuple[str, str]) -> None:
    """It has a precision of its own, whatever the target's is."""
    job = on(pair, "split", mode="compiled", precision="bf16", draft_backend="llamacpp:q8_0")
    target, draft = worker_specs(job)
    assert (target.mode, draft.mode, draft.backend) == ("compiled", "eager", "llamacpp:q8_0")
    role = role_of(job, "draft")
    assert (role.backend, role.precision, role.device.kind) == ("llamacpp", "q8_0", "cpu")
    assert role.weight_bytes == round(8.5 / 8 * (role.parameters or 0))
    assert role_of(job, "target").precision == "bf16"
    assert default_name(job.machine, "pair:x5", job.placement, "llamacpp:q8_0") == "cpu3-x5-llamacpp-q8_0"
    assert inputs(job) != inputs(replace(job, draft_backend="llamacpp:q4_0"))
    with pytest.raises(ValueError, match="'llamacpp:q8_0' runs drafts only"):
        replace(draft, role="target")


def test_llamacpps_trees_are_limited(pair: tuple[str, str]) -> None:
    """8 rows of 48 branches are 392 sequences; 4 are 196, and there can be 256."""
    job = replace(small_job(*pair), quick=False, draft_backend="llamacpp:q8_0", max_tokens=64)
    with pytest.raises(MisfitError, match=r"256 .* 392 .*--batches 1,2,4"):
        check(job, job.plan)
    smaller = replace(job, batches=(1, 2, 4))
    check(smaller, smaller.plan)
    check(replace(job, draft_backend="torch"), job.plan)


def test_each_device_has_its_own_memory(pair: tuple[str, str]) -> None:
    small = replace(WITH_GPU, devices=(replace(GPU, memory_bytes=2**20),))
    job = on(pair, "cuda:0+cpu")
    check_memories(job, batch=1, length=32)
    with pytest.raises(MisfitError, match=r"0\.0 GiB are available"):
        check_memories(replace(job, machine=small), batch=1, length=32)
    check_memories(replace(job, machine=small, placement=Placement("split", (0,), (1,))), batch=1, length=32)


# -- a draft that OpenVINO runs, recorded and calibrated --------------------------------------------------


def recorded(pair: tuple[str, str], **changes: Any) -> list[Any]:
    job = replace(small_job(*pair), max_tokens=8, temperature=(0.8,), top_p=0.95, **changes)
    found: list[Any] = []
    record(Share(job, 0.8, (0, 1)), found.append)
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
    job = replace(small_job(*pair), draft_backend="openvino:CPU", temperature=(0.0,))
    configs = (ArConfig(), SdConfig(lookahead=2), PearlConfig(lookahead=2))
    least = replace(PLAN, repeats=1, overlap_repeats=1, live=(LivePart(configs, prompts=1, repeats=1),))
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
    request = CalibrationRequest(target="pair:target", temperature=(0.0,), placement="cuda:0")
    job = make_job(replace(request, precision="bf16"))
    assert (job.placement.devices, job.precision) == (("cuda:0", "cuda:0"), "bf16")
    assert make_job(request).precision == "fp32" and make_job(request).draft_backend == "torch"
