"""Blocks in one pass, with and without SSD's cache: what is drafted, losslessness, replay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from live_support import InlineWorld, Reference, inline_world, serve, texts_of
from sampling_support import VOCABULARY, TableRunner, fit, sampled_texts
from test_live_tree_replay import check_replay, requests_of

from calibrate.live.errors import ModelError
from calibrate.live.handlers import block as handlers
from calibrate.live.transport.world import LiveWorld
from policies.block import DraftBlock
from policies.registry import Settings, configure
from policies.saguaro_block import PrepareBlocks

GREEDY = [configure("block", lookahead=4), configure("saguaro-block", lookahead=3, outcomes=2)]
DRAWN = [
    configure("block", lookahead=3, temperature=0.9, seed=2),
    configure("saguaro-block", lookahead=2, outcomes=2, temperature=0.9, seed=2),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", GREEDY, ids=lambda settings: settings.label)
def test_greedy_output_is_plain_decodings(settings: Settings, batch: int, reference: Reference) -> None:
    prompts, texts = reference.some(3, 20)
    world = inline_world(reference.target, reference.draft)
    rows = serve(world, settings, prompts, limit=20, batch=batch)
    assert texts_of(rows) == texts
    table = rows.log.table()
    assert max(table["accepted"]) > 0
    if settings.policy == "saguaro-block":
        assert {0, 1} <= set(table["hit"].tolist())
    assert check_blocks(world, settings, rows.texts, prompts, reference.draft) > 10


def check_blocks(
    world: InlineWorld, settings: Settings, texts: Any, prompts: list[tuple[int, ...]], draft: Any
) -> int:
    """Every block, redrafted or prepared, is what the draft says behind its text, computed from scratch."""
    depth, found = settings.lookahead or 0, 0
    masks = [draft.config.vocab_size - 1] * (depth - 1)

    def said(text: list[int]) -> tuple[int, ...]:
        with torch.no_grad():
            logits = draft(torch.tensor([[*text, *masks]])).logits[0]
        return tuple(logits[len(text) - 1 :].argmax(-1).tolist())

    for operation, answer in world.draft.served:
        if not isinstance(operation, DraftBlock | PrepareBlocks):
            continue
        view = operation.view
        for i, (slot, request, at) in enumerate(zip(view.slots, view.requests, view.positions, strict=True)):
            text = [*prompts[request], *texts[request][:at]]
            if isinstance(operation, DraftBlock):
                assert tuple(answer[slot].tree.tokens) == said(text)
                found += 1
                continue
            for accepted, bonus, tokens, _ in answer[slot].entries:
                chain = operation.inputs[i].tokens[:accepted]
                assert tokens == said([*text, *chain, bonus])
                found += 1
    return found


def test_the_first_token_is_vanilla_speculations(reference: Reference) -> None:
    """With a lookahead of 1 nothing is masked: `sd`, round by round."""
    prompts, _ = reference.some(4, 30)
    found = []
    for settings in (configure("block", lookahead=1), configure("sd", lookahead=1)):
        world = inline_world(reference.target, reference.draft)
        rows = serve(world, settings, prompts, limit=30, batch=2)
        found.append([[(r.accepted, r.bonus) for r in rows.log.rounds(i)] for i in range(4)])
    assert found[0] == found[1]


def config_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableRunner, "config", SimpleNamespace(vocab_size=VOCABULARY), raising=False)


@pytest.mark.parametrize("settings", DRAWN, ids=lambda settings: settings.label)
def test_emitted_texts_have_the_targets_law(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens jointly."""
    config_of(monkeypatch)
    rows = sampled_texts(settings, 1_500)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    assert {0, 1, 2} <= set(rows.log.table()["accepted"])
    correct = handlers.chain_of

    def likely(tokens: Any, handle: int) -> Any:
        """Planted: only tokens that turn out likely are put forward."""
        unlikely = [at for at, token in enumerate(tokens) if token < 2]
        return correct(tokens[: unlikely[0]] if unlikely else tokens, handle)

    monkeypatch.setattr(handlers, "chain_of", likely)
    assert fit(sampled_texts(settings, 1_500), settings.sampling).p_value < 1e-9


@pytest.mark.parametrize("settings", [*GREEDY, DRAWN[1]], ids=lambda settings: settings.label)
def test_a_live_run_replays_round_by_round(
    world: LiveWorld, settings: Settings, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    check_replay(world, settings, requests_of(prompts), 3, tmp_path / "decisions.parquet")


def test_what_cannot_be_is_refused(reference: Reference) -> None:
    prompts, _ = reference.some(1, 8)
    world = inline_world(reference.target, reference.draft)
    with pytest.raises(ModelError, match="pass for each token"):
        serve(world, configure("ssd-eagle"), prompts, limit=8)


def test_other_masks_show(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losslessness cannot see a draft that is shown another mask."""
    prompts, _ = reference.some(2, 30)
    monkeypatch.setattr(handlers, "masks", lambda executor, depth: (7,) * (depth - 1))
    world = inline_world(reference.target, reference.draft)
    rows = serve(world, GREEDY[0], prompts, limit=30)
    with pytest.raises(AssertionError):
        check_blocks(world, GREEDY[0], rows.texts, prompts, reference.draft)
