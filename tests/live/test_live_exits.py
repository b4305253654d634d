"""Early exits: a word in mid-forward, where they lie, and that those of an embedding say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mirror_support import LAYERS, Models, tiny_models
from tiny_models import tiny_model
from torch import Tensor

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine.additions import (
    ExitHeads,
    embedded_places,
    exit_layer,
    exit_layers,
    load_exits,
    save_exits,
)
from calibrate.live.errors import ModelError
from calibrate.pair.embed import Shape, embed, real_layers


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models()


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_the_word_is_out_before_the_later_layers_run(mode: Any, models: Models, traced: None) -> None:
    target: Any = models[0]
    order: list[Any] = []
    runner = ModelRunner(target, slots=2, mode=mode)
    for slot in (0, 1):
        runner.reset(slot)
    hooks = [
        layer.register_forward_hook(lambda *_, i=i: order.append(i))
        for i, layer in enumerate(target.model.layers, start=1)
    ]
    seen: list[Tensor] = []

    def see(hidden: Tensor) -> None:
        order.append("said")
        seen.append(hidden.clone())

    with runner.showing([1, 0], 2, see):
        logits = runner.forward([1, 0], [(5, 6, 7), (8, 9)])
    for hook in hooks:
        hook.remove()
    assert order == [1, 2, "said", 3, 4]
    assert runner.fed == 5
    with torch.no_grad():  # rows as they were asked for, whichever way they lie in the cache
        alone = target(torch.tensor([[8, 9]]), output_hidden_states=True)
    torch.testing.assert_close(seen[0][1, :2], alone.hidden_states[2][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[1, :2], alone.logits[0], rtol=1e-4, atol=1e-4)


def test_a_model_without_exits_says_how_to_get_them(models: Models, tmp_path: Path) -> None:
    models[0].save_pretrained(tmp_path)
    model = type(models[0]).from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="calibrate pair exits --target"):
        load_exits(model)
    save_exits(ExitHeads(32, (1, 2)), 3, tmp_path)
    with pytest.raises(ModelError, match="of 3 layers"):
        load_exits(model)


def test_exits_lie_at_the_nearest_layer() -> None:
    assert [exit_layer(name, 5) for name in ("1/4", "1/2", "3/4")] == [1, 2, 4]
    assert exit_layers(2) == (1,)
    with pytest.raises(ModelError, match="no early exit"):
        exit_layer("1/2", 1)


def test_an_exit_of_an_embedding_sees_its_share_of_the_model() -> None:
    assert real_layers(4, 8) == [1, 3, 5, 7]
    assert embedded_places((1, 2, 3), 4, 8, real_layers(4, 8)) == {1: 2, 2: 4, 3: 6}
    assert embedded_places((1, 2, 4), 5, 10, real_layers(5, 10)) == {1: 2, 2: 4, 4: 8}
    with pytest.raises(ModelError, match="not spread evenly"):
        embedded_places((1, 2, 3), 4, 8, [0, 1, 2, 3])


def test_an_embedded_exit_says_what_the_small_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: Any = tiny_model(4, layers=LAYERS)
    (tmp_path / "target").mkdir()
    torch.manual_seed(5)
    save_exits(ExitHeads(32, exit_layers(LAYERS)), LAYERS, tmp_path / "target")
    monkeypatch.setattr("calibrate.live.engine.additions.DATA", tmp_path)
    small.config._name_or_path = str(tmp_path / "target")
    large: Any = embed(small, Shape.parse("2x2"))
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    mine, its = load_exits(small), load_exits(large)
    with torch.no_grad():
        states = [m(ids, output_hidden_states=True).hidden_states for m in (small, large)]
        for name in ("1/4", "1/2", "3/4"):
            assert its.layer(name) == 2 * mine.layer(name)
            found = [
                exits.logits(name, hidden[exits.layer(name)])
                for exits, hidden in zip((mine, its), states, strict=True)
            ]
            torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)
