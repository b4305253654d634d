"""Compiled forwards compute what transformers computes, or are refused."""

from __future__ import annotations

import pytest
import torch
from runner_support import CHAINS, TEXTS, check_chains, check_tree, filled
from tiny_models import tiny_model
from transformers import PreTrainedModel

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine import compiled
from calibrate.live.errors import ModelError


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny_model(1).double()


def test_without_a_compiler_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, llama: PreTrainedModel
) -> None:
    monkeypatch.setattr(compiled, "compiler_problem", lambda device: "no C++ compiler was found")
    with pytest.raises(ModelError, match="no C\\+\\+ compiler was found"):
        ModelRunner(llama, mode="compiled")
    assert ModelRunner(llama).warm([(1, 1)]) == 0


needs_compiler = pytest.mark.skipif(
    compiled.compiler_problem(torch.device("cpu")) is not None, reason="needs a C++ compiler"
)


@needs_compiler
def test_all_four_graphs_equal_plain(traced: None) -> None:
    """On shapes that they were not made for, with growth in between."""
    llama = tiny_model(1)
    runner = filled(llama, mode="compiled", capacity=8)
    assert runner.warm([(1, 1), (1, 2), (4, 1), (4, 3)]) > 0
    assert runner.warm([(1, 1), (1, 9), (8, 1), (2, 3)]) < 0.1
    for slots in ([0, 1, 2, 3], [1, 2], [2, 0], [3, 1, 0], [0]):
        check_chains(runner, slots, [CHAINS[slot] for slot in slots])
        check_chains(runner, slots, [(slot + 1,) for slot in slots])
        check_tree(runner, slots)
    check_tree(runner, [3], depth=2)  # a lone branch
    runner.reset(5)
    check_chains(runner, [5], [(4,)])  # a text of one token
    check_chains(runner, [5], [(4, 1, 2)])
    runner.rollback(5, 2)
    check_chains(runner, [5, 0], [(4, 1, 2, 9), (7,)])


@pytest.mark.slow
@needs_compiler
def test_what_the_compiler_makes_of_several_rows_equals_plain() -> None:
    """One layer has every operation that a graph of more repeats."""
    runner = ModelRunner(tiny_model(1, layers=1), mode="compiled", slots=4, capacity=8)
    slots = (0, 1, 2, 3)
    for slot in slots:
        runner.reset(slot)
    check_chains(runner, slots, TEXTS)
    for some in ([0, 1, 2, 3], [3, 1]):
        check_chains(runner, some, [CHAINS[slot] for slot in some])
        check_chains(runner, some, [(slot + 1,) for slot in some])
        check_tree(runner, some)


@pytest.mark.slow
@needs_compiler
def test_packed_weights_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row alone: the other two graphs."""
    monkeypatch.setattr(compiled, "PACKED", 1)
    llama = tiny_model(1, layers=1)
    runner = filled(llama, mode="compiled")
    assert runner._capture is not None and runner._capture.packs
    for slot in (0, 3):
        check_chains(runner, [slot], [(5,)])
        check_chains(runner, [slot], [(5, 6, 7)])
        check_tree(runner, [slot])


@pytest.mark.slow
@needs_compiler
def test_a_graph_that_computes_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, traced: None
) -> None:
    runner = ModelRunner(tiny_model(1), mode="compiled")
    other = tiny_model(2)
    assert runner._capture is not None
    compile_ = runner._capture._compile

    def wrong(kind: compiled.Kind) -> compiled.Graph:
        own, runner._capture.model = runner._capture.model, other
        graph = compile_(kind)
        runner._capture.model = own
        return graph

    monkeypatch.setattr(runner._capture, "_compile", wrong)
    with pytest.raises(ModelError, match="computes something else"):
        runner.warm([(1, 1)])
