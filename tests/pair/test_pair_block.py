"""Training a draft to say a block in one pass, and what is said of heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_heads import check_training, counting_model

from calibrate.live.loading import load_model
from calibrate.pair.heads import HeadKind, Training, _measure_drafting, block_kind, block_logits
from calibrate.shipped import DATA


@pytest.fixture
def kind() -> HeadKind:  # type: ignore[type-arg]
    def make(model: torch.nn.Module) -> torch.nn.Module:
        block = counting_model(1).requires_grad_(True)
        block.config.block_mask = 31
        return block

    return replace(block_kind(DATA / "draft"), make=make, window=16)


def test_a_block_learns_to_count_from_its_masks(kind: HeadKind, tmp_path: Path) -> None:  # type: ignore[type-arg]
    _, losses = check_training(kind, counting_model(2), tmp_path, Training(steps=40, rows=2))
    assert sum(losses[-10:]) < sum(losses[:10])


def test_masks_see_the_text_before_them_alone(kind: HeadKind) -> None:  # type: ignore[type-arg]
    """What is said behind a token is what one forward over the text and its masks says."""
    target, block = counting_model(2), kind.make(None)
    text = [4, 9, 2, 7, 5]
    with torch.no_grad():
        _, said = block_logits(target, block, torch.tensor([text]), 3)
        alone = block(torch.tensor([[4, 9, 2, 31, 31]])).logits[0, 2:]
    torch.testing.assert_close(said[0, 1], alone)  # behind the token at 1 the next one, at 2, is known


def test_the_measure_by_hand() -> None:
    """A draft that names the token after the next one, and then only every second one of what follows."""
    target = counting_model(2)

    def logits(_: object, __: object, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        said = torch.zeros(*batch.shape, 2, 32)
        for t in range(batch.shape[1] - 3):
            said[0, t, 0, batch[0, t + 2]] = 1.0
            said[0, t, 1, batch[0, t + 3] if t % 2 else (batch[0, t + 3] + 1) % 32] = 1.0
        return said[:, :, 0], said

    first, second = _measure_drafting(logits, target, None, [(4, 9)], sampled=False, output=12, ahead_of=2)
    assert (first.acceptance, first.right) == (1.0, 1.0)
    # From place 1 on, as far as the text reaches that the model wrote; odd ones are right.
    share = -(-first.positions // 2) / first.positions
    assert second.acceptance == second.right == pytest.approx(share, abs=1e-4)


def test_the_shipped_block_draft_names_its_mask() -> None:
    assert load_model(str(DATA / "block")).config.block_mask == 188
