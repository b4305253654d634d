"""A draft that OpenVINO runs: its forwards are the torch model's, and what is emitted is the target's.

`static` is what an NPU needs (fixed shapes, the whole capacity, padded tokens), here on OpenVINO's CPU
device; no NPU was ever asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_support import (
    CHAIN_SLOTS,
    GREEDY,
    TREE_SLOTS,
    Runners,
    assert_same,
    backend_world,
    check_a_sharper_law_is_caught,
    check_chains,
    check_drafting,
    check_fit,
    check_greedy,
    check_nodes,
    check_rollbacks,
    check_trees,
    filled,
    table_draft,
)
from live_support import InlineWorld, check_drafts, serve, texts_of, worker_specs
from sampling_support import BATCH
from tiny_models import tiny_model
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from calibrate.live.backends import openvino
from calibrate.live.backends.installed import import_openvino, is_static, openvino_devices, require_device
from calibrate.live.backends.openvino import OpenvinoRunner
from calibrate.live.backends.torch import ModelRunner
from calibrate.live.errors import ModelError, WorkerError
from calibrate.live.transport.world import LiveWorld
from calibrate.shipped import cache_folder
from policies.registry import configure

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: tiny_model(1),
    "llama, eager attention": lambda: tiny_model(1, attention="eager"),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16)),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
}


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(3)
    return MODELS[request.param]().eval()


@pytest.fixture(params=[False, True], ids=["any shape", "static"], scope="module")
def runners(
    request: pytest.FixtureRequest, model: PreTrainedModel
) -> Callable[[], tuple[ModelRunner, ModelRunner]]:
    """OpenVINO's and torch's, with the same texts; the graphs are made once."""
    mine = OpenvinoRunner(model, slots=4, capacity=32, threads=1, static=request.param)
    theirs = ModelRunner(model, slots=4, capacity=32)
    return lambda: (filled(mine), filled(theirs))


Pair = Callable[[], Runners]


@pytest.mark.parametrize("slots", CHAIN_SLOTS, ids=str)
def test_forwards_are_the_torch_models(runners: Pair, slots: list[int]) -> None:
    check_rollbacks(runners(), slots)


@pytest.mark.parametrize("slots", TREE_SLOTS, ids=str)
def test_trees_are_the_torch_models(runners: Pair, slots: list[int]) -> None:
    pair = runners()
    check_trees(pair, slots)
    check_chains((filled(pair[0]), filled(pair[1])), slots)


def test_nodes_of_a_tree_are_the_torch_models(runners: Pair) -> None:
    check_nodes(runners())


def test_it_grows_and_probes() -> None:
    llama = tiny_model(1)
    mine, theirs = (
        filled(r) for r in (OpenvinoRunner(llama, capacity=1, static=True, threads=1), ModelRunner(llama))
    )
    chain = [list(range(40))]
    assert_same(mine.forward([0], chain), theirs.forward([0], chain), [40])
    assert (mine.slots, mine.capacity) == (4, 64)
    mine.install_synthetic([0, 1], 20)
    logits = mine.forward([0, 1], [[1], [1]])
    assert logits.isfinite().all() and not torch.allclose(logits[0], logits[1])


def test_graphs_are_kept_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, folder = tiny_model(1), tmp_path / "openvino" / "some-key"
    first = OpenvinoRunner(llama, folder=folder, threads=1)
    assert first.converted and (folder / "model.xml").is_file() and any((folder / "compiled").iterdir())
    assert [path.name for path in folder.parent.iterdir()] == ["some-key"]
    monkeypatch.setattr(openvino, "convert", lambda *_: pytest.fail("converted again"))
    second = OpenvinoRunner(llama, folder=folder, threads=1)
    assert not second.converted
    for runner in (first, second):
        filled(runner)
    assert torch.equal(first.forward([0], [[5, 6]]), second.forward([0], [[5, 6]]))


def test_half_precision_is_not_taken_for_something_else() -> None:
    llama = tiny_model(1)
    mine = filled(OpenvinoRunner(llama, precision="bf16", capacity=32, threads=1))
    theirs = filled(ModelRunner(llama, slots=4))
    logits, exact = mine.forward([0], [[1, 2]]), theirs.forward([0], [[1, 2]])
    assert float((logits - exact).abs().max()) < 0.2 * float(exact.abs().max())


def test_what_cannot_be_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = tiny_model(1)
    assert "CPU" in openvino_devices()
    with pytest.raises(ModelError, match=r"no device 'TPU' here, only .*CPU"):
        OpenvinoRunner(llama, "TPU")
    with pytest.raises(ModelError, match=r"no hidden states.*'torch'"):
        OpenvinoRunner(llama).showing([0], 1, print)
    with pytest.raises(ModelError, match="single precision"):
        OpenvinoRunner(tiny_model(1).double())
    other = openvino.convert(tiny_model(2), ModelRunner(llama)._cache.buffers(slice(0, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(openvino, "find_graph", lambda *_: (other, True))
        with pytest.raises(ModelError, match="computes something else"):
            OpenvinoRunner(llama)
    monkeypatch.setattr(import_openvino(), "convert_model", _fails)
    with pytest.raises(ModelError, match=r"cannot convert this model.*no such operation"):
        OpenvinoRunner(llama)


def _fails(*_: object, **__: object) -> None:
    raise RuntimeError("no such operation")


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ModelError, match=r"pip install 'spectwin\[openvino\]'"):
        OpenvinoRunner(tiny_model(1))
    assert openvino_devices() == []


def test_nothing_is_reported_over_the_network() -> None:
    """The package that would is hidden from the converter, installed or not."""
    import_openvino()
    assert sys.modules["openvino_telemetry"] is None


# -- live -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(pair: tuple[str, str]) -> Iterator[LiveWorld]:
    """A torch target and an OpenVINO draft, in processes."""
    with backend_world(pair, "openvino:CPU") as world:
        yield world


@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_greedy_output_is_plain_decodings(
    world: LiveWorld,
    settings: Any,
    prompts: list[tuple[int, ...]],
    plain_texts: list[list[int]],
) -> None:
    check_greedy(world, settings, prompts, plain_texts)
    assert list(cache_folder("openvino").glob("*/model.xml"))


@pytest.mark.parametrize("static", [False, True], ids=["any shape", "static"])
@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_it_drafts_what_the_draft_alone_decodes(
    settings: Any,
    static: bool,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
) -> None:
    draft = OpenvinoRunner(draft_model, slots=2, capacity=128, static=static, threads=1)
    check_drafting(target_model, draft_model, draft, settings, prompts)


def test_a_stale_key_would_be_noticed(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend that does not write the newest token's keys emits the right text with the wrong drafts."""
    draft = OpenvinoRunner(draft_model, capacity=128, threads=1)
    infer = OpenvinoRunner._infer

    def forgetful(self: OpenvinoRunner, *arguments: Any) -> Any:
        logits, states = infer(self, *arguments)
        return logits, [torch.zeros_like(part) for part in states]

    monkeypatch.setattr(OpenvinoRunner, "_infer", forgetful)
    inline = InlineWorld(ModelRunner(target_model), draft)
    rows = serve(inline, GREEDY[0], prompts[2:6], limit=16)
    with pytest.raises(AssertionError):
        check_drafts(inline, rows, prompts[2:6], draft_model)


# -- sampled --------------------------------------------------------------------------------------------


def table_runner() -> OpenvinoRunner:
    return OpenvinoRunner(table_draft(), slots=BATCH, capacity=16, threads=1)


def test_sampled_output_has_the_targets_law() -> None:
    check_fit(table_runner())


def test_a_law_that_was_not_drawn_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_sharper_law_is_caught(table_runner(), monkeypatch)


def test_processes_draw_what_one_process_draws(
    world: LiveWorld,
    prompts: list[tuple[int, ...]],
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
) -> None:
    settings = configure("sd", lookahead=3, temperature=1.0, top_p=0.9)
    inline = InlineWorld(ModelRunner(target_model), OpenvinoRunner(draft_model, threads=1))
    alone = serve(inline, settings, prompts[3:7], batch=1)
    apart = serve(world, settings, prompts[3:7], batch=1)
    assert texts_of(apart) == texts_of(alone)


# -- workers --------------------------------------------------------------------------------------------


def test_specs_that_make_no_sense_are_refused(pair: tuple[str, str]) -> None:
    draft = worker_specs(pair)[1][0]
    for change in ({"role": "target"}, {"mode": "compiled"}, {"precision": "fp64"}, {"device": "cuda:0"}):
        with pytest.raises(ValueError, match="'openvino:CPU'"):
            replace(draft, backend="openvino:CPU", **change)  # type: ignore[arg-type]
    for bad in ("openvino", "openvino:cpu", "onnx", "openvino:CPU;x"):
        with pytest.raises(ValueError, match="unknown backend"):
            replace(draft, backend=bad)
    assert replace(draft, backend="openvino:GPU.1").backend == "openvino:GPU.1"


def test_a_worker_without_its_device_says_so(pair: tuple[str, str]) -> None:
    target, drafts = worker_specs(pair)
    with pytest.raises(WorkerError, match=r"OpenVINO finds no device 'TPU' here, only .*CPU"):
        LiveWorld(target, replace(drafts[0], backend="openvino:TPU"))


def test_what_an_npu_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    core = type("Core", (), {"available_devices": ["CPU", "GPU.0", "GPU.1"]})
    monkeypatch.setattr(import_openvino(), "Core", core)
    for there in ("CPU", "GPU", "GPU.1"):
        require_device(there)
    with pytest.raises(ModelError, match=r"'NPU' here, only CPU, GPU\.0, GPU\.1; an NPU needs its driver"):
        require_device("NPU")
    assert is_static("NPU") and not is_static("GPU.1")
