"""Suffix decoding: its trees by hand, losslessness in batches, and replay on the recorded path alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from live_support import Reference, inline_world, serve, texts_of
from sampling_support import fit, sampled_texts
from test_live_tree_replay import requests_of, rounds_of

from calibrate.live.transport.world import LiveWorld
from calibrate.live_runs import run_live
from policies import suffix
from policies.registry import Settings, configure
from policies.suffix import SuffixTree
from policies.values import Source
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import TokenModel

SETTINGS = [
    configure("suffix", tree_reach=5, speculation_factor=2.0),
    configure("suffix", past_outputs="on", speculation_factor=3.0, least_probability=0.3),
]


def test_a_tree_by_hand() -> None:
    tree = SuffixTree(4)
    tree.extend((1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2))
    # The ending 1 2 was followed by 3 twice in four occurrences (the ending itself is one), 3 always by 1.
    assert tree.propose((9, 1, 2), 1.0, 0.0) == (0.5 + 0.5, [3, 1])
    assert tree.propose((9, 1, 2), 1.0, 0.6) == (0.0, [])
    assert tree.propose((9, 1, 2), 0.5, 0.0) == (0.5, [3])
    # Of 2 alone as of 1 2, but half as far; 4 1 2 leads to 3 for sure and, at this reach, no further.
    assert tree.propose((4, 1, 2), 1.0, 0.0) == (1.0, [3])
    assert tree.propose((7,), 1.0, 0.0) == (0.0, [])
    tree.new_text()
    tree.extend((8,))
    assert tree.propose((2,), 1.0, 0.0)[1] == [3]  # 8 did not follow 2


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_that_of_plain_decoding(
    settings: Settings, batch: int, reference: Reference
) -> None:
    prompts, texts = reference.some(4, 30)
    rows = serve(inline_world(reference.target, reference.draft), settings, prompts, limit=30, batch=batch)
    assert texts_of(rows) == texts
    accepted = rows.log.table()["accepted"]
    assert min((accepted == 0).sum(), (accepted > 1).sum()) > 0


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configure("suffix", past_outputs="on", speculation_factor=2.0, temperature=0.9, seed=2)
    found = fit(sampled_texts(settings, 2_000), settings.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    # Planted: what followed the ending is taken for drawn from all ids alike.
    monkeypatch.setattr(suffix, "Source", SimpleNamespace(NGRAM=Source.RANDOM))
    assert fit(sampled_texts(settings, 1_000), settings.sampling).p_value < 1e-9


@pytest.mark.parametrize("batch", [1, 3])
def test_a_live_run_replays_on_the_path(world: LiveWorld, batch: int, prompts: list[tuple[int, ...]]) -> None:
    """Past outputs included: rounds, not the clock, say which requests have ended."""
    requests = requests_of(prompts)
    live = run_live(world, SETTINGS[1], requests, batch=batch, fresh_seed=False)
    path = np.array([token for i in sorted(live.texts) for token in live.texts[i]])
    nothing = dict.fromkeys(("run", "need_rejected", "need_free"), np.zeros_like(path))  # of a draft
    tokens = TokenModel.of(
        requests, [len(live.texts[i]) for i in sorted(live.texts)],
        tokens=path, vocabulary=64, max_fanout=1, **nothing,
    )  # fmt: skip
    scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.1), batch=batch)
    assert rounds_of(simulate(scenario, SETTINGS[1]).rows) == live.rounds
