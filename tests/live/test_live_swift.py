"""SWIFT: the target without some layers drafts for the whole one; its slots hold the text as before."""

from __future__ import annotations

import itertools

import pytest
import sampling_support as support
import torch
from live_support import InlineWorld, Reference, inline_world, serve, texts_of
from plain_decoding import plain_decode
from tiny_models import VOCABULARY, tiny_model
from transformers import LlamaForCausalLM

from calibrate.live.backends.torch import ModelRunner
from calibrate.live.engine import verification
from calibrate.live.engine.sampling import token_probs
from calibrate.live.errors import ModelError
from policies.registry import configure, start
from policies.rows import Rows
from policies.swift import DraftSkipping, layers_kept
from policies.values import Request

DRAWN = configure("swift", lookahead=3, least_confidence=0.1, temperature=0.9, seed=2)


def test_layers_by_hand() -> None:
    assert layers_kept(6, 2) == (0, 1, 3, 5) and layers_kept(6, 3) == (0, 1, 2, 4, 5)
    assert layers_kept(6, 1) == (0, 5) and layers_kept(2, 2) == (0, 1)


def deep(vocabulary: int = VOCABULARY) -> LlamaForCausalLM:
    return tiny_model(3, vocabulary=vocabulary, layers=4)


def test_a_part_says_what_a_model_of_these_layers_says() -> None:
    """... behind a text whose keys and values the whole model made; which it does not touch."""
    model, text = deep(), [5, 9, 3, 7]
    runner = ModelRunner(model)
    runner.reset(0)
    runner.forward([0], [text[:-1]])
    with runner.through((0, 1, 3)):
        short = runner.forward([0], [text[-1:]])
    runner.rollback(0, 3)
    whole = runner.forward([0], [text[-1:]])
    with torch.inference_mode():
        assert torch.allclose(whole[0, 0], model(torch.tensor([text])).logits[0, -1], atol=1e-5)
    assert not torch.allclose(whole, short, atol=1e-2)
    # Without a text before it, the part is a model of three layers.
    runner.reset(0)
    with runner.through((0, 1, 3)):
        alone = runner.forward([0], [text])
    model.model.layers = torch.nn.ModuleList(model.model.layers[at] for at in (0, 1, 3))
    model.config.num_hidden_layers = 3
    for at, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = at
    with torch.inference_mode():
        assert torch.allclose(alone[0], model(torch.tensor([text])).logits[0], atol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_output_is_plain_decodings(batch: int, reference: Reference) -> None:
    model, prompts = deep(), reference.prompts[-4:]
    world = inline_world(model, reference.draft)
    rows = serve(world, configure("swift", lookahead=3), prompts, limit=24, batch=batch)
    assert texts_of(rows) == [plain_decode(model, prompt, 24) for prompt in prompts]
    asked = [operation for operation, _ in world.target.served if isinstance(operation, DraftSkipping)]
    table = rows.log.table()
    assert asked and (table["accepted"] > 0).sum() > 0 and len(set(table["length"])) > 1
    with pytest.raises(ModelError, match="no layer of 4 is skipped"):
        serve(world, configure("swift", skip_every=9), prompts, limit=4)


def sampled(model: LlamaForCausalLM, count: int) -> Rows:
    """Texts of one prompt by a model of five tokens."""
    world = InlineWorld(ModelRunner(model), ModelRunner(model), vocabulary=5, ring_bytes=1 << 20)
    rows = Rows([Request(i, 3, support.LENGTH, (1, 2, 4)) for i in range(count)], 100, keep_tokens=True)
    world.run(start(world, rows, DRAWN))
    return rows


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep(support.VOCABULARY)
    texts = torch.tensor([*itertools.product(range(5), repeat=support.LENGTH)])
    with torch.inference_mode():
        logits = model(torch.cat([torch.tensor([[1, 2, 4]]).expand(len(texts), -1), texts], dim=1)).logits
    probs = token_probs(logits[:, 2:-1], DRAWN.sampling).gather(-1, texts[..., None]).prod(dim=1)[:, 0]
    monkeypatch.setattr(support, "joint_law", lambda sampling: probs.numpy())
    rows = sampled(model, 600)
    found = support.fit(rows, DRAWN.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    table = rows.log.table()
    assert min((table["accepted"] == n).sum() for n in (0, 1, 2)) > 9
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)
    assert support.fit(sampled(model, 600), DRAWN.sampling).p_value < 1e-6
