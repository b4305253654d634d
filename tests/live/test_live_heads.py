"""Heads on the live engine: trees are what the heads say of the text, and output is the target's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from live_support import InlineWorld, serve, texts_of, worker_specs
from plain_decoding import plain_decode_many
from sampling_support import TableRunner, fit, sampled_texts
from test_live_tree_replay import check_replay, requests_of
from tiny_models import tiny_model
from transformers import LlamaForCausalLM

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine import heads as engine
from calibrate.live.engine.verification import TreeJudge
from calibrate.live.errors import ModelError
from calibrate.live.handlers import chains
from calibrate.live.handlers import heads as handlers
from calibrate.live.loading import load_model
from calibrate.live.placement import Mode
from calibrate.live.transport.world import LiveWorld
from calibrate.pair.embed import Shape, embed
from calibrate.pair.heads import (
    eagle_kind,
    eagle_logits,
    hydra_kind,
    hydra_logits,
    medusa_kind,
    medusa_logits,
)
from policies.heads import DraftHeads
from policies.registry import Settings, configure
from policies.rows import Rows

Prompts = list[tuple[int, ...]]
LIMIT = 16
SETTINGS = [
    configure("heads", heads="medusa", tree_widths=(3, 2)),
    configure("heads", heads="medusa", tree_plan="dynamic", tree_depth=3, tree_topk=2, tree_budget=5),
    configure("heads", heads="hydra", tree_widths=(3, 2, 1)),
    configure("heads", tree_widths=(1, 1, 1)),
    configure("heads", tree_widths=(3, 2, 1)),
    configure("heads", tree_plan="dynamic", tree_depth=3, tree_topk=3, tree_budget=7),
]


def trained(target: LlamaForCausalLM, folder: Path) -> LlamaForCausalLM:
    """The target with heads beside its weights that are a little better than none."""
    target.save_pretrained(folder)
    torch.manual_seed(0)
    for kind in (medusa_kind(3), hydra_kind(3), eagle_kind()):
        made = kind.make(target)
        optimiser = torch.optim.Adam(made.parameters(), lr=1e-2)
        batch = torch.tensor(plain_decode_many(target, [(i,) for i in range(8)], 40))
        for _ in range(10):
            optimiser.zero_grad()
            kind.loss(target, made, batch).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        kind.save(made, int(target.config.num_hidden_layers), folder)
    return load_model(str(folder))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LlamaForCausalLM:
    return trained(tiny_model(0).requires_grad_(False), tmp_path_factory.mktemp("heads") / "target")


def world_of(target: LlamaForCausalLM, mode: Mode = "eager") -> InlineWorld:
    return InlineWorld(ModelRunner(target, mode=mode), ModelRunner(target))


@pytest.mark.parametrize(("settings", "batch"), [*((s, 3) for s in SETTINGS), (SETTINGS[4], 1)])
def test_greedy_text_is_that_of_plain_decoding(
    settings: Settings, batch: int, target: LlamaForCausalLM, prompts: Prompts
) -> None:
    """Prompts of one token too, which leave the heads no state to read at first."""
    world = world_of(target)
    rows = serve(world, settings, prompts[:5], limit=LIMIT, batch=batch)
    assert texts_of(rows) == plain_decode_many(target, prompts[:5], LIMIT)
    assert rows.log.table()["accepted"].sum() > 0
    assert check_trees(world, settings, rows, prompts, target) > 10


def test_compiled_targets_show_their_states(target: LlamaForCausalLM, prompts: Prompts, traced: None) -> None:
    world = world_of(target, "compiled")
    rows = serve(world, SETTINGS[4], prompts[3:5], limit=8, batch=2)
    assert texts_of(rows) == plain_decode_many(target, prompts[3:5], 8)
    assert check_trees(world, SETTINGS[4], rows, prompts[3:5], target) > 2


def check_trees(
    world: InlineWorld, settings: Settings, rows: Rows, prompts: Prompts, target: LlamaForCausalLM
) -> int:
    """The first choices of every tree are what the heads say of the committed text, computed from scratch."""
    kept = world.target.executor.kept
    compared = 0
    for operation, answer in world.target.served:
        if not isinstance(operation, DraftHeads):
            continue
        for slot, request, position in zip(*_places(operation), strict=True):
            tree = answer[slot].tree
            text = [*prompts[request], *rows.texts[request][:position]]
            if len(text) == 1:
                assert not tree.tokens and not answer[slot].work
                continue
            compared += 1
            with torch.no_grad():
                chain = first_choices(target, settings, kept[settings.config.heads], text)
            assert chain in tree.paths or settings.config.tree_plan == "dynamic"
            assert chain[:1] in tree.paths
    return compared


def first_choices(target: Any, settings: Settings, drafter: Any, text: list[int]) -> tuple[int, ...]:
    """What the heads draft after a text as a chain, by the forwards that they are trained with."""
    if settings.config.heads == "medusa":
        logits = medusa_logits(target, drafter.heads, torch.tensor([text]))[1]
        return tuple(logits[0, -2].argmax(-1).tolist()[: 1 + len(settings.config.plan.fed)])
    chain: tuple[int, ...] = ()
    for depth in range(1 + len(settings.config.plan.fed)):
        longer = torch.tensor([[*text, *chain, 0]])
        if settings.config.heads == "hydra":
            said = hydra_logits(target, drafter.heads, longer)[1]
        else:
            said = eagle_logits(target, drafter.head, longer, depth + 1)[1]
        chain += (int(said[0, len(text) - 2, depth].argmax()),)
    return chain


def _places(operation: DraftHeads) -> tuple[tuple[int, ...], ...]:
    view = operation.view
    return view.slots, view.requests, view.positions


def test_stale_states_show_in_trees(
    target: LlamaForCausalLM, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losslessness cannot see a head that reads the states of another path."""
    take = engine.TargetStates.take

    def shifted(self: engine.TargetStates, slot: int) -> Any:
        states = take(self, slot)
        return None if states is None else states.roll(1, 0)

    monkeypatch.setattr(engine.TargetStates, "take", shifted)
    for settings in (SETTINGS[0], SETTINGS[2], SETTINGS[3]):
        world = world_of(target)
        rows = serve(world, settings, prompts[5:7], limit=LIMIT)
        with pytest.raises(AssertionError):
            check_trees(world, settings, rows, prompts[5:7], target)


def test_a_live_run_replays_round_by_round(
    target: LlamaForCausalLM, prompts: Prompts, tmp_path: Path
) -> None:
    folder = str(target.config._name_or_path)
    with LiveWorld(*worker_specs((folder, folder))) as world:
        for i, settings in enumerate((SETTINGS[0], replace(SETTINGS[5], temperature=0.9))):
            check_replay(world, settings, requests_of(prompts), 3, tmp_path / f"{i}.parquet")


def test_an_embedded_target_uses_the_heads_of_the_model_it_holds(
    target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled up with zeros: what they say is the same in the larger shape."""
    larger = embed(target, Shape.parse("3/2x2x5/4"))
    monkeypatch.setattr(engine, "DATA", Path(target.config._name_or_path).parent)
    batch = torch.tensor([[5, 3, 60, 2, 2, 9], [1, 2, 3, 4, 5, 6]])
    for kind, logits in (
        (engine.MedusaHeads, medusa_logits),
        (engine.HydraHeads, hydra_logits),
        (engine.EagleHead, eagle_logits),
    ):
        small, large = (engine.load_heads(model, kind) for model in (target, larger))
        with torch.no_grad():
            torch.testing.assert_close(
                logits(larger, large, batch)[1], logits(target, small, batch)[1], rtol=1e-3, atol=1e-3
            )


class Blind:
    """Stands in for hidden states, and for Medusa heads that say the same whatever they are shown."""

    heads = SimpleNamespace(blocks=(0, 0))
    share = 0.1

    def begin(self, slots: Any) -> None: ...

    @contextmanager
    def keeping(self, *_: Any) -> Iterator[None]:
        yield

    def take(self, slot: int) -> torch.Tensor:
        return torch.zeros(1, 1)

    def logits(self, states: Any) -> torch.Tensor:
        return torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.0], [1.0, 0.0, 2.0, 0.0, 0.0]]).expand(
            len(states), -1, -1
        )


def test_sampled_texts_have_the_targets_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens jointly; nodes are chosen, so that they are accepted with their probability under p."""
    settings = configure("heads", heads="medusa", tree_widths=(2, 2), temperature=0.9, seed=4)
    monkeypatch.setattr(handlers, "MedusaDrafter", Blind)
    monkeypatch.setattr(handlers, "target_states", lambda executor: Blind())
    monkeypatch.setattr(engine, "target_states", lambda executor: Blind())
    monkeypatch.setattr(chains, "target_states", lambda executor: Blind())
    monkeypatch.setitem(handlers.DRAFTERS, "medusa", lambda model: Blind())
    monkeypatch.setattr(TableRunner, "model", None, raising=False)
    rows = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    assert min((rows.log.table()["accepted"] == n).sum() for n in (0, 1, 2)) > 100
    # Planted: a node that is the target's likeliest token is always accepted.
    correct = TreeJudge._accept

    def eager(self: Any, p: torch.Tensor, at: Any, candidates: Any, sibling: int) -> Any:
        likeliest = p[torch.from_numpy(at)].argmax(-1).numpy() == candidates.tokens
        return correct(self, p, at, candidates, sibling) | likeliest

    monkeypatch.setattr(TreeJudge, "_accept", eager)
    assert fit(sampled_texts(settings), settings.sampling).p_value < 1e-12


def test_what_is_not_there_is_refused(tmp_path: Path, target: LlamaForCausalLM, prompts: Prompts) -> None:
    with pytest.raises(ModelError, match="simulated world only; live ones are medusa, hydra, eagle2"):
        serve(world_of(target), configure("heads", heads="eagle3"), prompts[:1], limit=2)
    deep = configure("heads", heads="medusa", tree_widths=(1, 1, 1, 1))
    with pytest.raises(ModelError, match="3 Medusa heads draft at most 3 levels, 4 were asked for"):
        serve(world_of(target), deep, prompts[2:3], limit=2)
    tiny_model(1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="calibrate pair eagle --target"):
        serve(world_of(load_model(str(tmp_path))), SETTINGS[3], prompts[2:3], limit=2)
