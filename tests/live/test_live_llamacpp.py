"""A draft that llama.cpp runs: its forwards are the torch model's, and what is emitted is the target's.

llama.cpp is built from source, which CI does not do:

    pip install 'spectwin[llamacpp]'
    pytest -m llamacpp
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
from live_support import InlineWorld, serve
from sampling_support import BATCH
from tiny_models import tiny_model
from transformers import PreTrainedModel

from calibrate.live.backends import gguf as writing
from calibrate.live.backends.gguf import export_gguf
from calibrate.live.backends.llamacpp import LlamacppRunner
from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.runner import Nodes
from calibrate.live.engine.trees import Branching
from calibrate.live.errors import AuditError, ModelError
from calibrate.live.transport.world import LiveWorld
from calibrate.shipped import cache_folder
from policies.registry import configure
from policies.tokentree import ROOT

pytestmark = pytest.mark.llamacpp
QUANTISED = ("fp16", "q8_0", "q4_0")


def runner_of(
    model: PreTrainedModel, folder: Path, precision: str = "fp32", **options: Any
) -> LlamacppRunner:
    file = folder / f"{precision}.gguf"
    export_gguf(model, file, precision)
    return LlamacppRunner(model, file, precision, **options)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model(1)


@pytest.fixture(scope="module")
def runners(llama: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Runners]:
    """llama.cpp's in single precision, and torch's, with the same texts."""
    mine = runner_of(llama, tmp_path_factory.mktemp("gguf"), slots=4, capacity=64)
    theirs = ModelRunner(llama, slots=4, capacity=64)
    return lambda: (filled(mine), filled(theirs))


# -- forwards -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", CHAIN_SLOTS, ids=str)
def test_forwards_are_the_torch_models(runners: Callable[[], Runners], slots: list[int]) -> None:
    check_rollbacks(runners(), slots)


@pytest.mark.parametrize("slots", TREE_SLOTS, ids=str)
def test_trees_are_the_torch_models(runners: Callable[[], Runners], slots: list[int]) -> None:
    check_trees(runners(), slots)


def test_nodes_of_a_tree_are_the_torch_models(runners: Callable[[], Runners]) -> None:
    check_nodes(runners())


@pytest.mark.parametrize("seed", range(6))
def test_growing_trees_are_the_torch_models(runners: Callable[[], Runners], seed: int) -> None:
    """Random trees of two rows, fed in random portions; then a path is kept, and decoding goes on."""
    pair, random = runners(), np.random.default_rng(seed)
    growing = [Branching(runner, [1, 3]) for runner in pair]
    sizes = [0, 0]
    for _ in range(4):
        counts = random.integers(0, 4, 2)
        counts[int(random.integers(2))] += 1
        parents = [
            [int(random.integers(ROOT, size + i)) for i in range(count)]
            for size, count in zip(sizes, counts.tolist(), strict=True)
        ]
        tokens = [random.integers(64, size=count).tolist() for count in counts]
        mine, theirs = (each.feed(tokens, parents) for each in growing)
        assert_same(mine, theirs, counts.tolist())
        sizes = [size + int(count) for size, count in zip(sizes, counts, strict=True)]
    paths = [
        [] if not size else path_to(own, int(random.integers(size)))
        for size, own in zip(sizes, growing[0].parents, strict=True)
    ]
    for each in growing:
        each.keep(paths)
    check_chains(pair, [0, 1, 3])


def path_to(parents: list[int], node: int) -> list[int]:
    found = [node]
    while parents[found[0]] != ROOT:
        found.insert(0, parents[found[0]])
    return found


def test_a_tree_that_was_let_go_of_leaves_no_trace(runners: Callable[[], Runners]) -> None:
    pair = runners()
    for runner in pair:
        Branching(runner, [0]).feed([[1, 2, 3]], [[ROOT, 0, 0]])
    check_chains(pair, [0, 1])


def test_it_grows_and_probes(llama: PreTrainedModel, tmp_path: Path) -> None:
    """Also in the middle of a tree: its branches are carried over to the larger buffer."""
    mine, theirs = runner_of(llama, tmp_path, capacity=1), ModelRunner(llama)
    filled(mine), filled(theirs)
    chain = [list(range(40))]
    assert_same(mine.forward([0], chain), theirs.forward([0], chain), [40])
    trees = [runner.open_tree([0], [[3, 20]], 2) for runner in (mine, theirs)]
    first, then = torch.tensor([[1, 2]]), torch.tensor([[5, 6]])
    for runner, tree in zip((mine, theirs), trees, strict=True):
        runner.tree_forward(tree, first)
    mine.reset(9)
    mine.forward([9], [list(range(60))])
    assert mine.slots == 16 and mine._context.cells >= 16 * mine.capacity
    mine_last, theirs_last = (
        runner.tree_forward(tree, then) for runner, tree in zip((mine, theirs), trees, strict=True)
    )
    assert_same(mine_last, theirs_last, [2])
    mine.install_synthetic([0, 1], 20)
    logits = mine.forward([0, 1], [[1], [1]])
    assert logits.isfinite().all() and not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize("precision", QUANTISED)
def test_quantised_weights_are_near(llama: PreTrainedModel, tmp_path: Path, precision: str) -> None:
    """And each one further off than the one before it: none is another one's file."""
    mine, theirs = filled(runner_of(llama, tmp_path, precision, slots=4)), filled(ModelRunner(llama, slots=4))
    logits, exact = mine.forward([0], [[1, 2]]), theirs.forward([0], [[1, 2]])
    error = float((logits - exact).norm() / exact.norm())
    low, high = {"fp16": (1e-6, 5e-3), "q8_0": (1e-2, 6e-2), "q4_0": (0.1, 0.6)}[precision]
    assert low < error < high


# -- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "q4_0"])
def test_another_models_file_is_refused(llama: PreTrainedModel, tmp_path: Path, precision: str) -> None:
    file = tmp_path / "other.gguf"
    export_gguf(tiny_model(2), file, precision)
    with pytest.raises(ModelError, match="computes something else"):
        LlamacppRunner(llama, file, precision)
    export_gguf(tiny_model(1, vocabulary=65), file, precision)
    with pytest.raises(ModelError, match="computes something else"):
        LlamacppRunner(llama, file, precision)


@pytest.mark.parametrize("precision", ["fp32", "q4_0"])
def test_another_rotation_is_refused(
    llama: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(writing, "interleaved", lambda weights, _: weights)
    with pytest.raises(ModelError, match="computes something else"):
        runner_of(llama, tmp_path, precision)


def test_what_cannot_be_done_is_refused(llama: PreTrainedModel, tmp_path: Path) -> None:
    runner = filled(runner_of(llama, tmp_path, slots=4))
    with pytest.raises(ModelError, match=r"256 sequences, 300 more.*--fanout"):
        runner.open_tree([0], [[1] * 300], 1)
    with pytest.raises(ModelError, match="none for slot 256"):
        runner.reset(256)
    with pytest.raises(ModelError, match="no hidden states"):
        runner.showing([0], 1, print)
    hidden = np.zeros((1, 1, 8), dtype=bool)
    hidden[0, 0, 2] = True  # a token of the trunk
    with pytest.raises(ModelError, match="the whole trunk"):
        runner.forward_at([0], Nodes([7], [[5]], np.array([[7]]), hidden))
    (tmp_path / "bad.gguf").write_bytes(b"no such file")
    with pytest.raises(ModelError, match="cannot load"):
        LlamacppRunner(llama, tmp_path / "bad.gguf", "fp32")


def test_sequences_are_given_back(llama: PreTrainedModel, tmp_path: Path) -> None:
    runner = filled(runner_of(llama, tmp_path, slots=4))
    free = len(runner._sequences.free)
    for _ in range(3):
        tree = runner.open_tree([0, 1], [[1] * 100, [0] * 100], 1)
        assert len(runner._sequences.free) == free - 200
        runner.close_tree(tree)
        Branching(runner, [2]).feed([[1, 2, 3]], [[ROOT, ROOT, 1]])
        assert len(runner._sequences.free) == free - 2
        runner.rollback(2, 3)
        assert len(runner._sequences.free) == free
    with pytest.raises(AuditError, match="no nodes"):
        runner.adopt([0], [[9]], [[1]])


# -- live -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["q8_0", "q4_0"])
def world(request: pytest.FixtureRequest, pair: tuple[str, str]) -> Iterator[LiveWorld]:
    """A torch target and a quantised draft, in processes."""
    with backend_world(pair, f"llamacpp:{request.param}") as world:
        yield world


@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_greedy_output_is_plain_decodings(
    world: LiveWorld,
    settings: Any,
    prompts: list[tuple[int, ...]],
    plain_texts: list[list[int]],
) -> None:
    check_greedy(world, settings, prompts, plain_texts)
    assert list(cache_folder("llamacpp").glob("*/q*_0.gguf"))


@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: s.label)
def test_it_drafts_what_the_draft_alone_decodes(
    settings: Any,
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    draft = runner_of(draft_model, tmp_path, slots=2, capacity=128)
    check_drafting(target_model, draft_model, draft, settings, prompts)


@pytest.mark.parametrize("knobs", [{"lookahead": 7}, {"lookahead": 9, "sequences": "3"}], ids=str)
def test_rows_may_have_fewer_branches_than_others(
    knobs: dict[str, Any],
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    """DuoDecoding's sequences, whose budgets end at different steps, are those that torch drafts."""
    runners = ModelRunner(draft_model, slots=3), runner_of(draft_model, tmp_path, slots=3, capacity=128)
    drafted = []
    for runner in runners:
        world = InlineWorld(ModelRunner(target_model), runner)
        serve(world, configure("duo", **knobs), prompts[:6], limit=16, batch=3)
        answers = [
            (op.view.slots, answer) for op, answer in world.draft.served if op.kind == "draftsequences"
        ]
        drafted.append([[answer[slot].tokens for slot in slots.tolist()] for slots, answer in answers])
    assert drafted[0] == drafted[1]
    assert drafted[0]


# -- sampled --------------------------------------------------------------------------------------------


def table_runner(folder: Path) -> LlamacppRunner:
    return runner_of(table_draft(), folder, "q8_0", slots=BATCH, capacity=16)


def test_sampled_output_has_the_targets_law(tmp_path: Path) -> None:
    check_fit(table_runner(tmp_path))


def test_a_law_that_was_not_drawn_from_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_sharper_law_is_caught(table_runner(tmp_path), monkeypatch)
