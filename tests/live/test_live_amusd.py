"""Asynchronous draft and verification: lossless whatever the clock makes of it, live and in batches."""

from __future__ import annotations

import pytest
from live_support import Reference, inline_world, serve, texts_of
from sampling_support import fit, sampled_texts

from calibrate.live.engine import verification
from calibrate.live.transport.world import LiveWorld
from policies.registry import configure

SETTINGS = configure("amusd", lookahead=5)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_output_is_plain_decodings(world: LiveWorld, batch: int, reference: Reference) -> None:
    prompts, texts = reference.some(4, 30)
    for where in (world, inline_world(reference.target, reference.draft)):
        rows = serve(where, SETTINGS, prompts, limit=30, batch=batch)
        assert texts_of(rows) == texts
        assert min((rows.log.table()["accepted"] == n).sum() for n in (0, 1)) > 0
    kinds = {timing.operation for timing in world.timings()}
    assert {"verify", "continue"} <= kinds


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configure("amusd", lookahead=2, temperature=0.9, seed=2)
    found = fit(sampled_texts(settings, 2_000), settings.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)
    assert fit(sampled_texts(settings, 1_000), settings.sampling).p_value < 1e-9
