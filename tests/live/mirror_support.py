"""Tiny models with early exits, and the bugs that tests of Mirror-SD plant."""

from __future__ import annotations

from typing import Any

import pytest
from live_support import InlineWorld, inline_world
from tiny_models import tiny_model, with_noise
from torch import Tensor
from transformers import PreTrainedModel

from calibrate.live.exits import exit_layer
from calibrate.live.handlers import mirror as handlers
from calibrate.live.plain import plain_decode
from policies import mirror as policy
from policies.exits import EarlyVerify, Window
from policies.rows import Rows

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
    world.target.executor.kept[handlers.KEPT] = Lens(models[0])
    return world


def check_windows(world: InlineWorld, rows: Rows, prompts: Prompts, draft: PreTrainedModel) -> int:
    """Every window verified is what the draft alone decodes from the committed text (a stale one is not)."""
    compared = 0
    for operation, _ in world.target.served:
        if isinstance(operation, EarlyVerify):
            view = operation.view
            for request, position, ask in zip(view.requests, view.positions, operation.asks, strict=True):
                text = (*prompts[request], *rows.texts[request][:position])
                assert list(ask.tokens) == plain_decode(draft, text, len(ask.tokens))
                compared += 1
    return compared


def believes_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes what the exit says for verified."""
    heard: list[Tensor] = []
    see, judged = handlers.Exit.see, handlers.judged

    def spy(self: handlers.Exit, hidden: Tensor) -> None:
        heard[:] = [self.exits.logits(self.name, hidden)]
        see(self, hidden)

    monkeypatch.setattr(handlers.Exit, "see", spy)
    monkeypatch.setattr(handlers, "judged", lambda e, m, rows, logits: judged(e, m, rows, heard[0]))


def uses_any_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a miss, verifies what was rolled out for another outcome."""
    correct = policy.reuse

    def stale(branches: Any, verdict: Any) -> Window | None:
        return correct(branches, verdict) or Window(tuple(branches[0][1][1:]), branches[0][2])

    monkeypatch.setattr(policy, "reuse", stale)
