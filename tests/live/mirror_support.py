"""Tiny models with early exits, checks of what was decided, and the bugs that tests of Mirror-SD plant."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from live_support import InlineWorld, inline_world
from plain_decoding import plain_decode
from tiny_models import VOCABULARY, tiny_model, with_noise
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.engine.additions import ExitHeads, exit_layer, exit_layers, save_exits
from calibrate.live.handlers import mirror as handlers
from calibrate.live.transport.world import LiveWorld
from hardware_profiles.reply_trace import Decisions, DecisionTrace
from hardware_profiles.trace import TraceMeta, TraceRequest
from policies import mirror as policy
from policies.mirror import EarlyVerify
from policies.registry import Settings
from policies.rows import Rows
from policies.values import Drafted
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

Prompts = list[tuple[int, ...]]
Models = tuple[PreTrainedModel, PreTrainedModel]
LAYERS = 4


class Lens:
    """Exits without adapters: the model's own head on what leaves a layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.layers = LAYERS

    def layer(self, name: str) -> int:
        return exit_layer(name, LAYERS)

    def logits(self, name: str, hidden: Tensor) -> Tensor:
        found: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return found


def tiny_models() -> Models:
    """A target of four layers and a draft that mostly agrees."""
    target = tiny_model(0, layers=LAYERS)
    return target, with_noise(target, 0.03)


def lens_world(models: Models) -> InlineWorld:
    world = inline_world(*models)
    world.target.executor.kept[handlers.EXITS] = Lens(models[0])
    return world


def check_windows(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> int:
    """Every window verified is what the draft alone decodes from the committed text (a stale one is not)."""
    compared = 0
    for operation, _ in world.target.served:
        if isinstance(operation, EarlyVerify):
            view = operation.view
            for request, position, ask in zip(view.requests, view.positions, operation.inputs, strict=True):
                text = (*prompts[request], *rows.texts[request][:position])
                assert list(ask.tokens) == plain_decode(draft, text, len(ask.tokens))
                compared += 1
    return compared


def saved(models: Models, folder: Path) -> tuple[str, str]:
    """Folders of the pair, untrained exits beside the target."""
    for model, name in zip(models, ("target", "draft"), strict=True):
        model.save_pretrained(folder / name)
    torch.manual_seed(3)
    save_exits(ExitHeads(32, exit_layers(LAYERS)), LAYERS, folder / "target")
    return str(folder / "target"), str(folder / "draft")


def watch(world: LiveWorld) -> list[str]:
    """In which order marks and reports of speaking verifications come."""
    order: list[str] = []
    submit = world.target.submit

    def watched(operation: Any) -> Any:
        task = submit(operation)
        if isinstance(operation, EarlyVerify):
            task.early.callbacks.append(lambda _: order.append("mark"))
            task.callbacks.append(lambda _: order.append("report"))
        return task

    world.target.submit = watched  # type: ignore[method-assign]
    return order


def check_replay(
    decided: dict[str, Decisions], live: Mapping[Settings, Rows], prompts: Prompts, limit: int
) -> None:
    """Simulated at any batch from what was decided, settings emit what they did live, in the same rounds."""
    meta = TraceMeta(target_model="t", draft_model="d", tokenizer="x", vocabulary=VOCABULARY, sampling={})
    recorded = tuple(
        TraceRequest(id=i, question_id=i, category="a", prompt=prompt, ended="limit")
        for i, prompt in enumerate(prompts)
    )
    trace = DecisionTrace(recorded, meta, decided, limit)
    tokens = coin(0.5, exponent=1.0, requests=len(prompts), length=limit, prompt_length=3, seed=0)
    for (settings, rows), batch in itertools.product(live.items(), (1, 3)):
        scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), batch=batch, decisions=trace)
        replayed = simulate(scenario, settings).rows
        assert replayed.texts == rows.texts
        for i in range(len(prompts)):
            rounds, same = replayed.log.rounds(i), rows.log.rounds(i)
            assert [(r.accepted, r.length, r.hit) for r in rounds] == [
                (r.accepted, r.length, r.hit) for r in same
            ]


def believes_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes what the exit says for verified."""
    heard: list[Tensor] = []
    see, judged = handlers.Exit.see, handlers.outcomes_of

    def spy(self: handlers.Exit, hidden: Tensor) -> None:
        heard[:] = [self.exits.logits(self.name, hidden)]
        see(self, hidden)

    monkeypatch.setattr(handlers.Exit, "see", spy)
    monkeypatch.setattr(handlers, "outcomes_of", lambda e, m, rows, logits: judged(e, m, rows, heard[0]))


def uses_any_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a miss, verifies what was rolled out for another outcome."""
    correct = policy.reuse

    def stale(branches: Any, verdict: Any) -> Drafted | None:
        return correct(branches, verdict) or Drafted(tuple(branches[0][1][1:]), branches[0][2])

    monkeypatch.setattr(policy, "reuse", stale)
