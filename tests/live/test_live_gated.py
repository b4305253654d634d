"""A lookahead that ends where the draft is unsure: measures by hand, losslessness, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_support import Reference, inline_world, serve, texts_of
from sampling_support import fit, sampled_texts
from test_live_tree_replay import check_replay, requests_of

from calibrate.live.handlers import gated
from calibrate.live.transport.world import LiveWorld
from policies.registry import Settings, configure

SETTINGS = [
    configure("gated", lookahead=5, least_confidence=0.2),
    configure("gated", lookahead=5, gate="entropy", least_confidence=0.2),
]
DRAWN = configure("gated", lookahead=3, least_confidence=0.5, temperature=0.9, seed=2)


def test_measures_by_hand() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]).log()
    assert gated.confidence(logits, "confidence").tolist() == pytest.approx([0.5, 1.0])
    # H = 0.5 ln 2 + 2 * 0.25 ln 4 = 1.5 ln 2
    bound = 1.0 - (0.2 * 1.5 * np.log(2.0)) ** 0.5
    assert gated.confidence(logits, "entropy").tolist() == pytest.approx([bound, 1.0])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_plain_decodings(settings: Settings, batch: int, reference: Reference) -> None:
    prompts, texts = reference.some(4, 30)
    rows = serve(inline_world(reference.target, reference.draft), settings, prompts, limit=30, batch=batch)
    assert texts_of(rows) == texts
    table = rows.log.table()
    assert set(table["length"]) >= {0, 1, 2} and max(table["accepted"]) > 1


def test_an_open_gate_is_vanilla_speculation(reference: Reference) -> None:
    prompts, _ = reference.some(4, 30)
    found = []
    for settings in (configure("gated", lookahead=3, least_confidence=0.0), configure("sd", lookahead=3)):
        world = inline_world(reference.target, reference.draft)
        rows = serve(world, settings, prompts, limit=30, batch=2)
        found.append(([*map(rows.log.rounds, range(4))], world.draft.executor.runner.fed))
    (one, fed), (other, fed_by_sd) = found
    assert [[(r.accepted, r.bonus) for r in each] for each in one] == [
        [(r.accepted, r.bonus) for r in each] for each in other
    ]
    assert fed == fed_by_sd


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sampled_texts(DRAWN, 2_000)
    found = fit(rows, DRAWN.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    assert {0, 1, 2} <= set(rows.log.table()["length"])
    # Planted: a token that turned out unlikely is not put forward, so that the gate knows the token itself.
    correct = gated.chain_of

    def hidden(tokens: list[int], handle: int) -> Any:
        unlikely = [at for at, token in enumerate(tokens) if token < 2]
        return correct(tokens[: unlikely[0]] if unlikely else tokens, handle)

    monkeypatch.setattr(gated, "chain_of", hidden)
    assert fit(sampled_texts(DRAWN, 2_000), DRAWN.sampling).p_value < 1e-9


@pytest.mark.parametrize("settings", [SETTINGS[0], DRAWN], ids=lambda settings: settings.label)
def test_a_live_run_replays_round_by_round(
    world: LiveWorld, settings: Settings, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    check_replay(world, settings, requests_of(prompts), 3, tmp_path / "decisions.parquet")
