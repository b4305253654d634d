"""Tiny random Llama pairs, and worlds that run them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).parent))  # for `live_support`

from live_support import LIMIT, Reference, worker_specs
from plain_decoding import plain_decode_many
from tiny_models import VOCABULARY, tiny_model, with_noise

from calibrate.live.loading import load_model
from calibrate.live.transport.world import LiveWorld


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and of a draft that agrees with it about two times in three."""
    folder = tmp_path_factory.mktemp("pair")
    target = tiny_model(0)
    target.save_pretrained(folder / "target")
    with_noise(target, 0.05).save_pretrained(folder / "draft")
    return str(folder / "target"), str(folder / "draft")


@pytest.fixture(scope="session")
def other_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("other")
    tiny_model(1, vocabulary=80, layers=1).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def target_model(pair: tuple[str, str]) -> PreTrainedModel:
    return load_model(pair[0])


@pytest.fixture(scope="session")
def draft_model(pair: tuple[str, str]) -> PreTrainedModel:
    return load_model(pair[1])


@pytest.fixture(scope="session")
def prompts() -> list[tuple[int, ...]]:
    """Ten prompts of 1 to 19 tokens."""
    generator = np.random.default_rng(5)
    return [tuple(generator.integers(VOCABULARY, size=1 + 2 * i).tolist()) for i in range(10)]


@pytest.fixture(scope="session")
def plain_texts(target_model: PreTrainedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """What the target emits by plain decoding."""
    return plain_decode_many(target_model, prompts, LIMIT)


@pytest.fixture(scope="session")
def reference(
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
    prompts: list[tuple[int, ...]],
    plain_texts: list[list[int]],
) -> Reference:
    return Reference(target_model, draft_model, prompts, plain_texts)


@pytest.fixture(scope="session")
def shared_world(pair: tuple[str, str]) -> Iterator[LiveWorld]:
    """One world for all tests that leave it in order; starting one takes seconds."""
    with LiveWorld(*worker_specs(pair)) as world:
        yield world


@pytest.fixture
def world(shared_world: LiveWorld) -> LiveWorld:
    """The shared world with empty records."""
    shared_world.clear_records()
    return shared_world


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled models run as the graph that was traced, operation by operation.

    What the C++ compiler makes of a graph takes most of a minute and is for `test_live_compiled` to check.
    """
    compile_ = torch.compile

    def trace(function: Any, *, fullgraph: bool, dynamic: bool, options: dict[str, Any]) -> Any:
        kept = {"guard_filter_fn": options["guard_filter_fn"]}
        return compile_(function, fullgraph=fullgraph, dynamic=dynamic, backend="eager", options=kept)

    monkeypatch.setattr(torch, "compile", trace)
