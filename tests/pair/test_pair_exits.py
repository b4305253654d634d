"""Training and measuring early exits, and those that ship with the target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_heads import check_training, counting_model
from transformers import LlamaForCausalLM

from calibrate.live.engine.additions import FILE, ExitHeads, exit_layers, load_exits
from calibrate.live.loading import load_model
from calibrate.pair.heads import WIDTHS, Training, exit_kind, exit_losses, measure_exits
from calibrate.shipped import DATA
from policies.laws.mirror import adapter_share, exit_loss

LAYERS = 4


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return counting_model(LAYERS)


def test_exits_learn_and_the_target_does_not(target: LlamaForCausalLM, tmp_path: Path) -> None:
    heads, losses = check_training(exit_kind(), target, tmp_path, Training(steps=120, rows=2))
    assert heads.layers == (1, 2, 3)
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.4
    assert sum(p.numel() for p in heads.parameters()) == 3 * 16 * 16 == round(adapter_share(16, 1.0))


def test_the_loss_is_the_mean_over_exits(target: LlamaForCausalLM) -> None:
    """One position: eq. 15 against its reference."""
    torch.manual_seed(2)
    heads, batch = ExitHeads(16, (1, 3)), torch.tensor([[4, 9]])
    with torch.no_grad():
        states = target(batch, output_hidden_states=True).hidden_states
        found = [
            float(target.lm_head(heads.adapted(layer, states[layer][0, 0])).softmax(-1)[9])
            for layer in (1, 3)
        ]
        assert float(exit_losses(target, heads, batch)) == pytest.approx(exit_loss(found), rel=1e-5)


@pytest.mark.parametrize("sampled", [False, True])
def test_the_measures_lie_below_their_ceiling(target: LlamaForCausalLM, sampled: bool) -> None:
    torch.manual_seed(2)
    heads = ExitHeads(16, exit_layers(LAYERS))
    reports = measure_exits(target, heads, [[3, 4, 5], [7, 8, 9], [1, 2]], sampled=sampled, output=12)
    assert [report.layer for report in reports] == [1, 2, 3]
    for report in reports:
        assert 0 < report.positions <= 36
        masses, ceilings = ([each[w] for w in WIDTHS] for each in (report.overlap, report.ceiling))
        assert masses == sorted(masses)  # nondecreasing in kappa (`mirror.eq9`)
        assert all(mass <= most + 1e-9 for mass, most in zip(masses, ceilings, strict=True))
        if not sampled:
            assert set(ceilings) == {1.0}
            assert report.overlap[1] == report.agreement


def test_a_perfect_exit_reaches_the_ceiling(
    target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(model: LlamaForCausalLM, tokens: torch.Tensor, layers: tuple[int, ...]) -> list[torch.Tensor]:
        with torch.no_grad():
            states = model(input_ids=tokens, output_hidden_states=True).hidden_states
        return [states[-1]] * len(layers)

    monkeypatch.setattr("calibrate.pair.heads.exit_states", last)
    heads = ExitHeads(16, (2,))
    monkeypatch.setattr(heads, "adapted", lambda layer, hidden: hidden)
    (report,) = measure_exits(target, heads, [[3, 4, 5]], sampled=True, output=10)
    assert report.agreement == 1.0
    assert report.overlap == report.ceiling


def test_the_shipped_exits_are_small_and_know_something() -> None:
    folder = DATA / "target"
    assert (folder / FILE).stat().st_size < 1_000_000
    reports = json.loads((folder / "exits.json").read_text())
    assert [(r["layer"], r["layers"], r["sampled"]) for r in reports] == [
        (layer, 5, sampled) for sampled in (False, True) for layer in (1, 2, 4)
    ]
    for sampled in (False, True):
        by_depth = [r["overlap"]["8"] for r in reports if r["sampled"] == sampled]
        assert by_depth == sorted(by_depth)  # here deeper exits know more; mirror.prop2 does not promise it
        assert by_depth[0] > 0.2
    exits = load_exits(load_model(folder))
    assert [exits.layer(name) for name in ("1/4", "1/2", "3/4")] == [1, 2, 4]
