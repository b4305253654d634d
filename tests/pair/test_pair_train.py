"""Training on a tiny world: batches, resuming, and the losses of the loop fix and the draft."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrate.pair.train import Plan, Status, Streams, divergence, fit, unlikelihood

STREAMS = Streams({"code": np.arange(500, dtype=np.uint16)}, seed=3)


def test_a_batch_is_a_piece_of_text_that_depends_on_the_step_only() -> None:
    batch = STREAMS.batch(7, rows=4, window=16)
    assert torch.equal(batch, STREAMS.batch(7, rows=4, window=16))
    assert not torch.equal(batch, STREAMS.batch(8, rows=4, window=16))
    assert torch.equal(batch - batch[:, :1], torch.arange(16).expand(4, 16))


def trained(folder: Path, stops: list[int]) -> tuple[torch.Tensor, list[int]]:
    """A linear model fitted to noise in one or several goes; its weight and the steps reported."""
    plan, seen = Plan(steps=8, learning_rate=0.1), list[int]()
    for stop in stops:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)

        def loss(step: int, model: torch.nn.Module = model, stop: int = stop) -> torch.Tensor:
            if step == stop:
                raise KeyboardInterrupt
            noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
            return torch.as_tensor(model(noise).square().mean())

        def report(status: Status) -> None:
            seen.append(status.step)

        try:
            fit(model, loss, plan, folder / "checkpoint.pt", report)
        except KeyboardInterrupt:
            continue
        weight: torch.Tensor = model.weight.detach()
        return weight, seen
    raise AssertionError("never finished")


def test_training_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, _ = trained(tmp_path / "a", [99])
    monkeypatch.setattr("calibrate.pair.train._CHECKPOINT_EVERY_S", 0.0)
    pieces, steps = trained(tmp_path / "b", [3, 5, 99])
    assert steps == list(range(1, 9))
    assert torch.equal(whole, pieces)


def test_a_finished_stage_is_not_trained_again(tmp_path: Path) -> None:
    first, _ = trained(tmp_path, [99])
    again, steps = trained(tmp_path, [99])
    assert steps == []
    assert torch.equal(first, again)


def test_minutes_end_a_stage_before_its_steps_do() -> None:
    plan = Plan(steps=100, learning_rate=1.0, minutes=1.0)
    assert plan.progress(10, 60.0) == 1.0
    assert plan.progress(50, 6.0) == 0.5
    assert plan.rate(1.0) < 0.05 < plan.rate(0.5) < plan.rate(0.02) == pytest.approx(1.0, rel=0.01)


def test_unlikelihood_sees_masked_tokens_only() -> None:
    tokens = torch.tensor([[0, 1, 1]])
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]]))
    masked = torch.tensor([[False, False, True]])
    assert float(unlikelihood(logits, tokens, masked)) == pytest.approx(-math.log(0.25))
    assert float(unlikelihood(logits, tokens, torch.zeros_like(masked))) == 0.0


def test_divergence_is_zero_for_equals_and_counts_masked_positions_only() -> None:
    p = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]))
    q = torch.log(torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]))
    only_last = torch.tensor([[False, True]])
    wanted = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert float(divergence(p, p, only_last)) == 0.0
    assert float(divergence(p, q, only_last)) == pytest.approx(wanted, rel=1e-5)
    assert float(divergence(p, q, torch.ones_like(only_last))) == pytest.approx(wanted / 2, rel=1e-5)
