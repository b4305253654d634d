"""Sampled Mirror-SD with a streams draft has the target's law, and a draft that draws wrongly has not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from live_support import InlineWorld
from sampling_support import BATCH, LENGTH, PROMPTS, fit
from streams_support import TableNodes, emissions, windows
from test_live_mirror_sampling import HOPELESS, table_world

from calibrate.live.engine import sampling
from calibrate.live.handlers import mirror as handlers
from policies.registry import configure, start
from policies.rows import Rows
from policies.values import Request

KNOBS: dict[str, Any] = {"lookahead": 3, "kappa": 2, "temperature": 0.9, "seed": 2}


def sampled(requests: int, **more: Any) -> tuple[InlineWorld, Rows]:
    world = table_world()
    world.draft.executor.kept[handlers.STREAMS] = SimpleNamespace(streams=2, share=0.5)
    queue = [Request(i, len(p), LENGTH, p) for i, p in zip(range(requests), itertools.cycle(PROMPTS))]
    rows = Rows(queue, BATCH, keep_tokens=True)
    world.run(start(world, rows, configure("mirror", **KNOBS, **more)))
    return world, rows


@pytest.fixture(autouse=True)
def of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        handlers,
        "nodes_of",
        lambda executor, rows: TableNodes(executor.runner, [row.slot for row in rows]),
    )


def test_sampled_texts_have_the_targets_law() -> None:
    """All four tokens jointly; and every window is that of the draft alone, drawn with the same luck."""
    world, rows = sampled(2_000, streams="2")
    found = fit(rows, configure("mirror", **KNOBS).sampling)
    assert found.p_value > 1e-3, str(found)
    assert {1, 2} <= set(itertools.chain(*emissions(world)))
    alone, same = sampled(2_000)
    assert rows.texts == same.texts
    assert windows(world) == windows(alone)


def test_luck_that_two_places_share_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that draws all its tokens with one uniform: each alone has its law, together they have not."""
    keyed = sampling.keyed_uniforms

    def shared(seed: int, stream: str, requests: Any, positions: Any) -> Any:
        return keyed(seed, stream, requests, np.zeros_like(positions))

    monkeypatch.setattr(sampling, "keyed_uniforms", shared)
    _, rows = sampled(2_000, streams="2")
    found = fit(rows, configure("mirror", **KNOBS).sampling)
    assert found.p_value < HOPELESS, str(found)
