"""The runner against plain transformers: what a row gets never depends on its company or its history."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from runner_support import CHAINS, MODELS, TEXTS, assert_close, check_chains, check_tree, filled, plain
from tiny_models import VOCABULARY, tiny_model
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine import forwards as runner_module
from calibrate.live.engine.runner import Nodes
from calibrate.live.errors import AuditError, ModelError


@pytest.fixture(params=MODELS, scope="module")
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]().double().eval()


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model(1).double()


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [1, 2], [2, 0], [3, 1, 0], [2]], ids=str)
def test_a_ragged_forward_equals_each_row_alone(model: PreTrainedModel, slots: list[int]) -> None:
    runner = filled(model)
    check_chains(runner, slots, [CHAINS[slot] for slot in slots])
    check_chains(runner, slots, [(slot + 1,) for slot in slots])
    check_chains(runner, [0, 1, 2, 3], CHAINS)


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0]], ids=str)
def test_rows_of_one_length_need_no_ragged_writes(model: PreTrainedModel, slots: list[int]) -> None:
    runner = filled(model, [(5, 6, 7), (1, 2, 3), (9, 8, 7)])
    check_chains(runner, slots, [(slot, 4) for slot in slots])
    check_chains(runner, slots, [(slot,) for slot in slots])


@pytest.fixture(params=[0, 8], ids=["long", "short"])
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains count as long, of which only the last logits are computed, or as short."""
    monkeypatch.setattr(runner_module, "SHORT", request.param)


@pytest.mark.usefixtures("short")
def test_a_batch_is_prefilled_at_once(model: PreTrainedModel) -> None:
    for last_only in (False, True):
        runner = ModelRunner(model, slots=4, capacity=16)
        for slot in range(4):
            runner.reset(slot)
        logits = runner.forward([0, 1, 2, 3], TEXTS, last_only=last_only)
        for text, found in zip(TEXTS, logits, strict=True):
            at = -1 if last_only else len(text) - 1
            assert_close(found[at], plain(model, text)[-1])
        check_chains(runner, [0, 1, 2, 3], CHAINS)


@pytest.mark.usefixtures("short")
def test_the_last_logits_of_ragged_rows_are_each_rows_own(model: PreTrainedModel) -> None:
    runner, other = filled(model), filled(model)
    full, last = runner.forward([3, 1], CHAINS[1:3]), other.forward([3, 1], CHAINS[1:3], last_only=True)
    assert last.shape == (2, 1, VOCABULARY)
    assert_close(last[:, 0], torch.stack([full[0, 3], full[1, 1]]))


def test_a_rollback_leaves_no_trace(model: PreTrainedModel) -> None:
    runner = filled(model)
    runner.forward([0, 1, 2, 3], CHAINS)
    for slot, keep in enumerate((2, 0, 5, 4)):
        runner.rollback(slot, keep)
        assert runner.held(slot) == list((*TEXTS[slot], *CHAINS[slot])[:keep])
    check_chains(runner, [0, 1, 2, 3], [CHAINS[i] for i in (2, 0, 3, 1)])


@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [0], [1, 0], [3, 2, 1]], ids=str)
def test_branches_equal_chains(model: PreTrainedModel, slots: list[int]) -> None:
    runner = filled(model)
    check_tree(runner, slots)
    check_chains(runner, [0, 1, 2, 3], CHAINS)
    check_tree(runner, slots, depth=1)


def test_growth_keeps_what_slots_hold(llama: PreTrainedModel) -> None:
    runner = filled(llama, capacity=8)
    assert (runner.slots, runner.capacity) == (4, 8)
    check_chains(runner, [0, 1], [range(8), (1,)])
    assert (runner.slots, runner.capacity) == (4, 16)
    runner.reset(4)
    assert (runner.slots, runner.capacity) == (8, 16)
    check_chains(runner, [4, 0, 3], [(1, 2, 3), (4,), (5, 6)])
    check_tree(runner, [0, 1, 3], depth=12)
    assert runner.capacity == 64
    check_chains(runner, [0, 1, 2, 3], CHAINS)


def test_positions_are_the_models(llama: PreTrainedModel) -> None:
    runner = ModelRunner(tiny_model(1), capacity=1)
    runner.reset(0)
    runner.forward([0], [[1] * 511])
    check = itertools.repeat((0,), 1)
    runner.forward([0], list(check))
    with pytest.raises(ModelError, match="text of 513 tokens outgrows the model's 512 positions"):
        runner.forward([0], [[1]])
    runner.rollback(0, 510)
    tree = runner.open_tree([0], [[509, 509, 509]], 2)  # its tokens need more columns than positions
    for _ in range(2):
        runner.tree_forward(tree, torch.ones((1, 3), dtype=torch.long))
    with pytest.raises(ModelError, match="513 tokens"):
        runner.open_tree([0], [[509]], 3)


def test_padding_may_reach_past_the_last_position(model: PreTrainedModel) -> None:
    """GPT-2 and its like look positions up in a table; here the clamp is only seen to do no harm."""
    most = int(model.config.max_position_embeddings)
    runner = filled(model, [[1] * (most - 1), [2, 3]])
    check_chains(runner, [0, 1], [(4,), (5, 6, 7, 8)])


def test_probes_hold_random_keys_and_values(llama: PreTrainedModel) -> None:
    runner = ModelRunner(llama, slots=2, capacity=16)
    runner.install_synthetic([0, 1, 2], 20)
    assert [len(runner.held(slot)) for slot in range(3)] == [20] * 3
    logits = runner.forward([0, 1, 2], [[1]] * 3)
    assert logits.isfinite().all()
    assert not torch.allclose(logits[0], logits[1])
    runner.install_synthetic([1], 0)
    check_chains(runner, [1, 0][:1], [(5, 6)])


def test_audits_raise(llama: PreTrainedModel) -> None:
    runner = filled(llama)
    nowhere = Nodes((0, 0), (), np.zeros((2, 1), dtype=np.int64), np.zeros((2, 1, 2), dtype=np.bool_))
    refused: list[tuple[str, Callable[[], object]]] = [
        ("slot 4 was never prefilled", lambda: runner.forward([4], [[1]])),
        ("slots are numbered from 0", lambda: runner.reset(-1)),
        ("different slots", lambda: runner.forward([1, 1], [[1], [1]])),
        ("different slots", lambda: runner.forward([], [])),
        ("different slots", lambda: runner.forward_states(llama, [1, 1], torch.zeros(2, 1, 1), nowhere)),
        ("none empty", lambda: runner.forward([0, 1], [[1], []])),
        ("as many chains", lambda: runner.forward([0, 1], [[1]])),
        ("holds 2 tokens, cannot roll back to 3", lambda: runner.rollback(1, 3)),
        ("cannot roll back to -1", lambda: runner.rollback(1, -1)),
        ("do not lie in a trunk of 2", lambda: runner.open_tree([1], [[2]], 1)),
        ("do not lie in a trunk of 2", lambda: runner.open_tree([1], [[-2]], 1)),
        ("needs branches", lambda: runner.open_tree([1, 0], [[], []], 1)),
        ("needs branches", lambda: runner.open_tree([1, 0], [[1]], 1)),
        ("needs branches", lambda: runner.open_tree([1], [[1]], 0)),
    ]
    for words, call in refused:
        with pytest.raises(AuditError, match=words):
            call()


def test_trees_end(llama: PreTrainedModel) -> None:
    runner = filled(llama)
    tokens = torch.ones((1, 2), dtype=torch.long)
    tree = runner.open_tree([1], [[0, 1]], 1)
    runner.tree_forward(tree, tokens)
    with pytest.raises(AuditError, match="opened for 1 steps"):
        runner.tree_forward(tree, tokens)
    runner.close_tree(tree)
    with pytest.raises(AuditError, match="closed"):
        runner.tree_forward(tree, tokens)
    tree = runner.open_tree([1], [[0, 1]], 1)
    runner.forward([1], [[5]])
    with pytest.raises(AuditError, match="not these"):
        runner.tree_forward(tree, tokens)


def test_models_that_cannot_be_rolled_back_or_masked_are_refused() -> None:
    sliding = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
    )
    with pytest.raises(ModelError, match=r"cropped.*Sliding"):
        ModelRunner(MistralForCausalLM(sliding))
    flexible = tiny_model(1)
    flexible.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="flex_attention"):
        ModelRunner(flexible)
    with pytest.raises(ValueError, match="at least 1"):
        ModelRunner(tiny_model(1), slots=0)
