"""A draft that OpenVINO runs: its forwards are the torch model's, and what is emitted is the target's.

`static` is what an NPU needs (fixed shapes, the whole capacity, padded tokens), here on OpenVINO's CPU
device; no NPU was ever asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_support import (
    InlineWorld,
    check_cached_sets,
    check_drafts,
    serve,
    texts_of,
    tiny_model,
    with_noise,
    worker_specs,
)
from sampling_support import BATCH, LENGTH, PROMPTS, REQUESTS, VOCABULARY, Fit, TableRunner, fit, tables
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from calibrate.live import openvino_graph, openvino_runner
from calibrate.live.arena import Block
from calibrate.live.errors import ModelError, WorkerError
from calibrate.live.openvino_devices import import_openvino, is_static, openvino_devices, require_device
from calibrate.live.openvino_runner import OpenvinoRunner
from calibrate.live.runner import ModelRunner
from calibrate.live.world import LiveWorld
from policies.operations import Request
from policies.registry import configure, start
from policies.rows import Rows

TEXTS = ((3, 1, 4, 1, 5, 9, 2), (6, 5), (3, 5, 8, 9, 7), (9, 3, 2, 3))
CHAINS = ((7,), (1, 2, 3, 4), (5, 6), (8, 9, 10))
FORKS = ((2, 2, 6, -1), (0, 1), (), (3,))
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


def filled(runner: ModelRunner) -> ModelRunner:
    """Slot i holds text i."""
    for slot, text in enumerate(TEXTS):
        runner.reset(slot)
        runner.forward([slot], [text])
    return runner


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


Pair = Callable[[], tuple[ModelRunner, ModelRunner]]


def assert_same(mine: Tensor, theirs: Tensor, counts: Sequence[int]) -> None:
    assert mine.shape == theirs.shape
    for row, count in enumerate(counts):
        torch.testing.assert_close(mine[row, :count], theirs[row, :count], rtol=2e-4, atol=2e-4)


def check_chains(pair: tuple[ModelRunner, ModelRunner], slots: Sequence[int], *, last: bool = False) -> None:
    chains = [CHAINS[slot] for slot in slots]
    mine, theirs = (runner.forward(slots, chains, last_only=last) for runner in pair)
    assert_same(mine, theirs, [1] * len(slots) if last else [len(chain) for chain in chains])
    assert [pair[0].held(slot) for slot in slots] == [pair[1].held(slot) for slot in slots]
    assert pair[0].fed == pair[1].fed


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [1, 2], [2, 0], [3, 1, 0], [2]], ids=str)
def test_forwards_are_the_torch_models(runners: Pair, slots: list[int]) -> None:
    """Ragged chains of any rows; keys and values that it wrote are read again by the next ones."""
    pair = runners()
    pair[0].fed = pair[1].fed = 0
    check_chains(pair, slots)
    check_chains(pair, [0, 1, 2, 3], last=True)
    for runner in pair:
        for slot, keep in enumerate((2, 0, 5, 4)):
            runner.rollback(slot, keep)
    check_chains(pair, slots)
    for runner in pair:
        runner.reset(1)
    check_chains(pair, [1, 3])


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [0], [3, 1]], ids=str)
def test_trees_are_the_torch_models(runners: Pair, slots: list[int]) -> None:
    forks = [FORKS[slot] for slot in slots]
    width = max(map(len, forks))
    steps = torch.randint(64, (3, len(slots), width), generator=torch.Generator().manual_seed(5))
    found = []
    for runner in (pair := runners()):
        tree = runner.open_tree(slots, forks, 3)
        found.append([runner.tree_forward(tree, tokens) for tokens in steps])
        runner.close_tree(tree)
    for mine, theirs in zip(*found, strict=True):
        assert_same(mine, theirs, [len(row) for row in forks])
    check_chains((filled(pair[0]), filled(pair[1])), slots)


def test_nodes_of_a_tree_are_the_torch_models(runners: Pair) -> None:
    """Tokens with a mask of the caller's, behind what slots hold, of which some are then adopted."""
    slots, starts, tokens = [0, 3], [7, 4], [[8, 9, 10], [8, 9, 10]]
    positions = np.array([[7, 8, 8], [4, 5, 5]])  # a root and two children
    hidden = np.ones((2, 3, 10), dtype=bool)
    for row, trunk in enumerate(starts):
        hidden[row, :, :trunk] = False
        for node, seen in enumerate(([0], [0, 1], [0, 2])):
            hidden[row, node, [trunk + each for each in seen]] = False
    pair = runners()
    mine, theirs = (runner.forward_at(slots, starts, tokens, positions, hidden) for runner in pair)
    assert_same(mine, theirs, [3, 3])
    for runner in pair:
        runner.adopt(slots, [[7, 9], [4, 6]], [[8, 10], [8, 10]])
    check_chains(pair, slots)


def test_it_grows_and_probes() -> None:
    llama = tiny_model(1)
    mine, theirs = (filled(r) for r in (OpenvinoRunner(llama, capacity=1, static=True), ModelRunner(llama)))
    chain = [list(range(40))]
    assert_same(mine.forward([0], chain), theirs.forward([0], chain), [40])
    assert (mine.slots, mine.capacity) == (4, 64)
    mine.install_synthetic([0, 1], 20)
    logits = mine.forward([0, 1], [[1], [1]])
    assert logits.isfinite().all() and not torch.allclose(logits[0], logits[1])


def test_graphs_are_kept_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, folder = tiny_model(1), tmp_path / "openvino" / "some-key"
    first = OpenvinoRunner(llama, folder=folder)
    assert first.converted and (folder / "model.xml").is_file() and any((folder / "compiled").iterdir())
    assert [path.name for path in folder.parent.iterdir()] == ["some-key"]
    monkeypatch.setattr(openvino_graph, "convert", lambda *_: pytest.fail("converted again"))
    second = OpenvinoRunner(llama, folder=folder)
    assert not second.converted
    for runner in (first, second):
        filled(runner)
    assert torch.equal(first.forward([0], [[5, 6]]), second.forward([0], [[5, 6]]))


def test_half_precision_is_not_taken_for_something_else() -> None:
    llama = tiny_model(1)
    mine = filled(OpenvinoRunner(llama, precision="bf16", capacity=32))
    theirs = filled(ModelRunner(llama, slots=4))
    logits, exact = mine.forward([0], [[1, 2]]), theirs.forward([0], [[1, 2]])
    assert float((logits - exact).abs().max()) < 0.2 * float(exact.abs().max())


def test_what_cannot_be_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = tiny_model(1)
    assert "CPU" in openvino_devices()
    with pytest.raises(ModelError, match=r"no device 'TPU' here, only .*CPU"):
        OpenvinoRunner(llama, "TPU")
    with pytest.raises(ModelError, match="single precision"):
        OpenvinoRunner(tiny_model(1).double())
    other = openvino_graph.convert(tiny_model(2), ModelRunner(llama)._cache.buffers(slice(0, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(openvino_runner, "find_graph", lambda *_: (other, True))
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
def world(
    pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LiveWorld, Path]]:
    """A torch target and an OpenVINO draft, in processes."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        target, drafts = worker_specs(pair)
        with LiveWorld(target, replace(drafts[0], backend="openvino:CPU", slots=3)) as world:
            yield world, cache


GREEDY = [
    configure("sd", lookahead=3),
    configure("pearl", lookahead=3),
    configure("saguaro", lookahead=3, fanout=(2,)),
]


@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_greedy_output_is_plain_decodings(
    world: tuple[LiveWorld, Path],
    settings: Any,
    prompts: list[tuple[int, ...]],
    plain_texts: list[list[int]],
) -> None:
    live, cache = world
    for batch in (1, 3):
        rows = serve(live, settings, prompts[2:7], batch=batch)
        assert texts_of(rows) == plain_texts[2:7]
        assert {0, 1} <= set(np.minimum(rows.log.table()["accepted"], 1).tolist())
    assert list(cache.glob("*/openvino/*/model.xml"))


@pytest.mark.parametrize("static", [False, True], ids=["any shape", "static"])
@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_it_drafts_what_the_draft_alone_decodes(
    settings: Any,
    static: bool,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
) -> None:
    """Losslessness cannot see a wrong draft, which would only be rejected."""
    draft = OpenvinoRunner(draft_model, slots=2, capacity=128, static=static)
    inline = InlineWorld(ModelRunner(target_model), draft)
    rows = serve(inline, settings, prompts[2:6], limit=16, batch=2)
    assert check_drafts(inline, rows, prompts[2:6], draft_model) > 10
    assert (check_cached_sets(inline) > 0) == (settings.policy == "saguaro")


def test_a_stale_key_would_be_noticed(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend that does not write the newest token's keys emits the right text with the wrong drafts."""
    draft = OpenvinoRunner(draft_model, capacity=128)
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

SAMPLED = configure("sd", lookahead=3, temperature=0.9, seed=1)


def sampled_fit(**options: Any) -> tuple[Fit, Rows]:
    """Thousands of texts of a target that is a table, drafted by an OpenVINO model of its five tokens."""
    draft = OpenvinoRunner(with_noise(tiny_model(4, vocabulary=VOCABULARY), 0.0), slots=BATCH, capacity=16)
    table: Any = TableRunner(tables()[0])
    world = InlineWorld(table, draft, vocabulary=VOCABULARY, law_bytes=1 << 24)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(REQUESTS)]
    queue = [Request(i, len(prompt), LENGTH, prompt) for i, prompt in enumerate(prompts)]
    rows = Rows(queue, BATCH, keep_tokens=True)
    settings = replace(SAMPLED, **options)
    world.run(start(world, rows, settings))
    return fit(rows, settings.sampling), rows


def test_sampled_output_has_the_targets_law() -> None:
    """A G-test of the four tokens jointly, as in `test_live_sampling`."""
    found, rows = sampled_fit()
    assert found.impossible == 0
    assert found.p_value > 1e-3, str(found)
    table = rows.log.table()
    assert (table["accepted"] > 0).sum() > 1000 and (table["accepted"] < table["length"]).sum() > 1000


def test_a_law_that_was_not_drawn_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice a draft whose kept law is sharper than the one it draws by."""
    write = Block.write

    def sharper(self: Block, step: int, weights: Any, totals: Any, owners: Any) -> None:
        write(self, step, weights**2, (weights.astype(np.float64) ** 2).sum(axis=-1), owners)

    monkeypatch.setattr(Block, "write", sharper)
    found, _ = sampled_fit()
    assert found.p_value < 1e-6, str(found)


def test_processes_draw_what_one_process_draws(
    world: tuple[LiveWorld, Path],
    prompts: list[tuple[int, ...]],
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
) -> None:
    settings = configure("sd", lookahead=3, temperature=1.0, top_p=0.9)
    inline = InlineWorld(ModelRunner(target_model), OpenvinoRunner(draft_model, threads=1))
    alone = serve(inline, settings, prompts[3:7], batch=1)
    apart = serve(world[0], settings, prompts[3:7], batch=1)
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
