"""Training and measuring lookahead streams, and those that ship with the draft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from tiny_heads import check_training, counting_model
from transformers import LlamaForCausalLM

from calibrate.live.engine.streams import FILE, StreamHeads, load_streams, save_streams
from calibrate.live.errors import ModelError
from calibrate.live.loading import load_model
from calibrate.pair.heads import Training, measure_streams, stream_kind, stream_logits, stream_loss
from calibrate.shipped import DATA

LAYERS = 2


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> Iterator[None]:
    """Models this small only wait for further threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def draft() -> LlamaForCausalLM:
    return counting_model(LAYERS)


def fresh(draft: LlamaForCausalLM, streams: int = 2) -> StreamHeads:
    torch.manual_seed(2)
    return StreamHeads(draft, streams)


def test_streams_learn_and_the_draft_does_not(draft: LlamaForCausalLM, tmp_path: Path) -> None:
    kind = replace(stream_kind(2), window=32)
    heads, losses = check_training(kind, draft, tmp_path, Training(steps=60, rows=2))
    assert sum(losses[-10:]) / 10 < sum(losses[:10]) / 10 - 0.1
    copied = zip(heads.layer.parameters(), draft.model.layers[-1].parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in copied)


def test_the_loss_is_the_mean_over_streams(draft: LlamaForCausalLM) -> None:
    """Three tokens: stream 1 predicts after two of them, stream 2 after one, to meet the draft's laws."""
    heads, batch = fresh(draft), torch.tensor([[4, 9, 2]])
    with torch.no_grad():
        own, streamed = stream_logits(draft, heads, batch)
        law, guess = own[0].softmax(-1), streamed[0].log_softmax(-1)
        first = -(law[1] @ guess[0, 0] + law[2] @ guess[1, 0]) / 2
        second = -(law[2] @ guess[0, 1])
        assert float(stream_loss(draft, heads, batch)) == pytest.approx(float((first + second) / 2), rel=1e-5)


def test_a_stream_sees_the_past_and_lower_streams_of_its_own_token(draft: LlamaForCausalLM) -> None:
    heads = fresh(draft)
    with torch.no_grad():
        _, before = stream_logits(draft, heads, torch.tensor([[4, 9, 2, 7]]))
        _, after = stream_logits(draft, heads, torch.tensor([[4, 9, 3, 7]]))
        torch.testing.assert_close(before[:, :2], after[:, :2])  # a later token shows in no stream before it
        assert not torch.allclose(before[:, 3], after[:, 3], atol=1e-3)
        heads.embedding[0] += 1.0
        _, moved = stream_logits(draft, heads, torch.tensor([[4, 9, 2, 7]]))
        assert not torch.allclose(before[..., 1, :], moved[..., 1, :], atol=1e-3)
        heads.embedding[0] -= 1.0
        heads.embedding[1] += 1.0
        _, moved = stream_logits(draft, heads, torch.tensor([[4, 9, 2, 7]]))
        torch.testing.assert_close(before[..., 0, :], moved[..., 0, :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampled", [False, True])
def test_measures_of_streams_that_say_what_the_draft_writes(
    sampled: bool, draft: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream 1 that is always right and a stream 2 that never is."""

    def knowing(
        model: LlamaForCausalLM, heads: StreamHeads, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.zeros(*tokens.shape, 2, 32)
        right = torch.nn.functional.one_hot(tokens, 32).float() * 50.0
        logits[:, :-2, 0], logits[:, :-3, 1] = right[:, 2:], -right[:, 3:]
        return logits[..., 0, :], logits

    monkeypatch.setattr("calibrate.pair.heads.stream_logits", knowing)
    prompts = [[3, 4, 5], [7, 8, 9], [1, 2]]
    first, second = measure_streams(draft, fresh(draft), prompts, sampled=sampled, output=12)
    assert (first.stream, first.agreement, first.run) == (1, 1.0, 1.0)
    assert (second.stream, second.agreement, second.run) == (2, 0.0, 0.0)
    assert 0 < first.positions == second.positions <= 3 * 12
    assert first.mass == pytest.approx(1.0, abs=1e-3)


def test_streams_are_of_one_model(draft: LlamaForCausalLM, tmp_path: Path) -> None:
    draft.save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    heads = fresh(draft)
    save_streams(heads, LAYERS, tmp_path)
    found = load_streams(model)
    assert (found.streams, found.share) == (2, 0.5)
    torch.testing.assert_close(found.heads.embedding, heads.embedding, rtol=1e-2, atol=1e-3)
    save_streams(heads, LAYERS + 1, tmp_path)
    with pytest.raises(ModelError, match="of 3 layers, this one has 2"):
        load_streams(model)
    save_streams(StreamHeads(load_model(DATA / "draft"), 2), LAYERS, tmp_path)
    with pytest.raises(ModelError, match="of another model"):
        load_streams(model)


def test_the_shipped_streams_are_small_and_know_something() -> None:
    folder = DATA / "draft"
    assert (folder / FILE).stat().st_size < 1_000_000
    reports = json.loads((folder / "streams.json").read_text())
    assert [(r["sampled"], r["stream"]) for r in reports] == list(product((False, True), (1, 2, 3)))
    for sampled in (False, True):
        runs = [r["run"] for r in reports if r["sampled"] == sampled]
        assert runs == sorted(runs, reverse=True)
        assert runs[0] > 0.05
    assert load_streams(load_model(folder)).streams == 3
