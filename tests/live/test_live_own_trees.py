"""Trees that the target makes for itself: Lookahead decoding, Token Recycling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from live_support import Reference, inline_world, serve, texts_of
from sampling_support import fit, sampled_texts
from test_live_tree_replay import check_replay, requests_of

from calibrate.live.engine import verification
from calibrate.live.engine.verification import TreeJudge
from calibrate.live.transport.world import LiveWorld
from policies.config import SettingError
from policies.lookahead import LookaheadDecodingConfig, LookaheadState
from policies.ouroboros import PhrasePool
from policies.recycling import Matrix, RecyclingConfig, ranks_of
from policies.registry import Settings, configure
from policies.tokentree import ROOT, TokenTree
from policies.values import Source
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

SETTINGS = [
    configure("lookahead", window=5, ngram=4, guesses=5),
    configure("lookahead", window=1, ngram=2, guesses=2, prompt_pool="off"),
    configure("lookahead", prompt_pool="off"),
    configure("recycling", recycled_nodes=24),
    configure("recycling", recycled_nodes=6, recycled_top=2),
    configure("ouroboros", lookahead=2, phrase_length=3),
]
SAMPLED = [
    configure("lookahead", window=2, ngram=3, guesses=3, temperature=0.9, seed=2),
    configure("recycling", recycled_nodes=6, recycled_top=3, temperature=0.9, seed=2, top_p=0.8),
    configure("ouroboros", lookahead=1, phrase_length=2, temperature=0.9, seed=2),
]


def test_a_window_by_hand() -> None:
    """W = 3, N = 4: levels fill up, then every column is an n-gram, and the window moves on."""
    state = LookaheadState(LookaheadDecodingConfig(3, 4, 2, "on"), (7, 8, 9, 7, 8), (0, 0))
    # Of the prompt: 7 8 9 7 and 8 9 7 8.
    assert state.pool == {7: {(8, 9, 7): None}, 8: {(9, 7, 8): None}}
    state.levels = [[1, 2]]
    assert state.window()[:2] == ((1, 2), (ROOT, 0))
    state.advance(7, [3, 4, 5])
    state.advance(3, [6, 7, 8])
    tree = state.window()
    # Nodes 0 and 1 are level 0 after the last token, 2 to 4 level 1, 5 to 7 level 2: columns hang together.
    assert tree.tokens == (1, 2, 3, 4, 5, 6, 7, 8)
    assert tree.parents == (ROOT, 0, ROOT, 0, 1, 2, 3, 4)
    state.advance(7, [9, 10, 11])
    # The columns 7 3 6 9, 1 4 7 10, 2 5 8 11; level 1 loses its first token, which is what the text has now.
    assert state.pool[7] == {(8, 9, 7): None, (3, 6, 9): None}
    assert state.pool[1] == {(4, 7, 10): None}
    assert state.levels == [[4, 5], [6, 7, 8], [9, 10, 11]]
    # The latest first; a third n-gram of one token takes the place of the oldest.
    assert state.guesses(7).paths[:1] == [(3,)]
    state.learn((7, 3, 1, 1))
    assert list(state.pool[7]) == [(3, 6, 9), (3, 1, 1)]
    assert state.guesses(7).tokens == (3, 1, 1, 6, 9)


def test_a_matrix_by_hand() -> None:
    matrix = Matrix(RecyclingConfig(recycled_nodes=5, recycled_top=2), (1, 2, 1, 3, 1, 4))
    # Of the prompt's pairs the latest first: 4 and 3 after 1; 2 is out.
    assert matrix.after == {1: (4, 3), 2: (1,), 3: (1,)}
    # Products of (rank + 1), half as much again per level: 1, 1.5, 2, 2.25, 3, 3 ...
    assert ranks_of(5, 2) == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))
    assert matrix.tree(2).paths == [(1,), (1, 4), (1, 3)]  # nothing is known after 4
    matrix.recycle((2, 1, 1), [[5, 6], [7, 8], [9, 9]], (0, 1, 2, 1))
    assert (matrix.after[2], matrix.after[1]) == ((5, 6), (7, 8))  # the last one named stays


def test_phrases_by_hand() -> None:
    pool = PhrasePool(3, 2, (1, 2, 3))
    assert pool.pool == {1: {(2, 3): None}}
    pool.said((1,))  # 2 3 1
    drafted = TokenTree.of_paths([(5, 1)])
    longer = pool.lengthened(drafted)
    assert (longer.tokens, longer.parents) == ((5, 1, 2, 3), (ROOT, 0, 1, 2))
    assert longer.sources == (int(Source.PRIMARY),) * 2 + (int(Source.NGRAM),) * 2
    # The target says 9 after the text, but goes on with 6, 7 and 8 after 5, 6 and 7: of a discarded draft
    # 5 6 7 8 the phrases 5 6 7 and 6 7 8 stay.
    pool.agree((1, 5, 6, 7, 8), (9, 6, 7, 8, 4))
    assert (pool.pool[5], pool.pool[6]) == ({(6, 7): None}, {(7, 8): None})
    assert pool.pool[2] == {(3, 1): None} and 7 not in pool.pool


def test_the_tree_of_the_authors_is_about_that_of_the_rule() -> None:
    """Theirs has 8, 21, 25, 15, 8 and 3 nodes in its six levels."""
    depths = [len(path) for path in ranks_of(80, 8)]
    assert [depths.count(d) for d in range(1, 9)] == [8, 21, 24, 19, 6, 1, 1, 0]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_that_of_plain_decoding(
    settings: Settings, batch: int, reference: Reference
) -> None:
    prompts, texts = reference.some(4, 30)
    rows = serve(inline_world(reference.target, reference.draft), settings, prompts, limit=30, batch=batch)
    assert texts_of(rows) == texts
    accepted = rows.log.table()["accepted"]
    assert min((accepted == 0).sum(), (accepted > 0).sum()) > 0


@pytest.mark.parametrize("settings", SAMPLED, ids=lambda settings: settings.label)
def test_emitted_texts_have_the_targets_law(settings: Settings) -> None:
    rows = sampled_texts(settings, 2_000)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    table = rows.log.table()
    assert min((table["accepted"] == n).sum() for n in (0, 1, 2)) > 30


def no_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected guess may be drawn again."""
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)


def likes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess is accepted wherever the target might say it."""
    monkeypatch.setattr(
        TreeJudge,
        "_accept",
        lambda self, p, at, candidates, sibling: p[at, candidates.tokens].numpy() > 0.15,
    )


@pytest.mark.parametrize("plant", [no_residual, likes_its_own])
def test_a_mutant_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = fit(sampled_texts(SAMPLED[1], 1_000), SAMPLED[1].sampling)
    assert found.p_value < 1e-9, str(found)


@pytest.mark.parametrize(
    "settings", [SETTINGS[0], SAMPLED[1], SETTINGS[-1]], ids=lambda settings: settings.label
)
def test_a_live_run_replays_round_by_round(
    world: LiveWorld, settings: Settings, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    """At any batch: what a request said is its own."""
    check_replay(world, settings, requests_of(prompts), 3, tmp_path / "decisions.parquet")


@pytest.mark.parametrize("policy", ["lookahead", "recycling", "ouroboros"])
def test_coins_cannot_stand_in_for_a_text(policy: str) -> None:
    tokens = coin(0.5, exponent=1.0, requests=1, length=4, prompt_length=5, seed=0)
    with pytest.raises(SettingError, match="coin tosses have none"):
        simulate(Scenario(tokens, textbook=TextbookCosts(1.0, 0.1)), configure(policy))
