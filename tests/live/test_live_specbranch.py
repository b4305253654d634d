"""SpecBranch: branches and lengths by hand, losslessness, PEARL where it has neither, replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_support import Reference, inline_world, serve, texts_of
from sampling_support import fit, sampled_texts
from test_live_tree_replay import check_replay, requests_of

from calibrate.live.engine import verification
from calibrate.live.transport.world import LiveWorld
from policies import specbranch
from policies.config import LawInputs
from policies.registry import Settings, configure
from policies.specbranch import Branches, DraftBranches, branch_count
from policies.values import NO_HANDLE
from simulator.costs import TextbookCosts
from simulator.run import Scenario, simulate
from simulator.tokens import coin

SETTINGS = [
    configure("specbranch", lookahead=4),
    configure("specbranch", lookahead=6, lengths="confidence", least_confidence=0.15),
]
DRAWN = configure("specbranch", lookahead=4, least_confidence=0.5, temperature=0.9, seed=2)


def test_lengths_by_hand() -> None:
    assert [branch_count(4, sure) for sure in (0.0, 0.5, 0.75, 1.0)] == [4, 2, 1, 1]
    reply = Branches(((7, 1, 2, 3),), NO_HANDLE, (5,), (), ((900, 600, 300),))
    for lengths, kept in (("whole", 3), ("confidence", 2), ("history", 2)):
        settings = configure("specbranch", lengths=lengths, least_confidence=0.4)
        branching = specbranch._Branching(settings.config, settings.sampling)  # type: ignore[arg-type]
        assert branching.rest(0, reply, 0) == ((1, 2, 3)[:kept], 5)
    # Of the two tokens kept, which promised 1.5, none was accepted, and the second was not judged:
    # 1 / (1 + 0.9) of what is promised is believed, 0.474 0.316 0.158.
    branching.judged(0, 0)
    assert branching.rest(0, reply, 0).tokens == (1,)
    assert branching.rest(1, reply, 0).tokens == (1, 2)  # another request has its own history


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_greedy_output_is_plain_decodings(settings: Settings, batch: int, reference: Reference) -> None:
    prompts, texts = reference.some(4, 30)
    world = inline_world(reference.target, reference.draft)
    rows = serve(world, settings, prompts, limit=30, batch=batch)
    assert texts_of(rows) == texts
    table = rows.log.table()
    assert {0, 1} <= set(table["hit"]) and max(table["accepted"]) > 1
    drafts = [reply for o, a in world.draft.served if isinstance(o, DraftBranches) for reply in a.values()]
    assert {1, 2} <= {len(reply.tokens) for reply in drafts}
    assert all(len(branch) == settings.lookahead for reply in drafts for branch in reply.tokens)


def test_one_whole_branch_is_pearl_token_by_token() -> None:
    one = configure("specbranch", lookahead=3, branches=1, lengths="whole", temperature=0.9, seed=1)
    pearl = configure("pearl", lookahead=3, temperature=0.9, seed=1)
    assert sampled_texts(one, 200).texts == sampled_texts(pearl, 200).texts
    law = LawInputs(acceptance=0.8, exponent=None, scale=1.0, target_s=1.0, draft_s=0.2)
    assert one.config.law(law, 1).speedup is not None and DRAWN.config.law(law, 1).reason


def test_emitted_texts_have_the_targets_law(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sampled_texts(DRAWN, 2_000)
    found = fit(rows, DRAWN.sampling)
    assert found.impossible == 0 and found.p_value > 1e-3, str(found)
    assert {0, 1, 2} <= set(rows.log.table()["length"])
    monkeypatch.setattr(verification, "residual", lambda p, sigma: p)  # a rejected token may come again
    assert fit(sampled_texts(DRAWN, 1_000), DRAWN.sampling).p_value < 1e-9


@pytest.mark.parametrize("settings", [SETTINGS[0], DRAWN], ids=lambda settings: settings.label)
def test_a_live_run_replays_round_by_round(
    world: LiveWorld, settings: Settings, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    check_replay(world, settings, requests_of(prompts), 3, tmp_path / "decisions.parquet")


def test_branches_catch_what_one_misses_by_coins() -> None:
    """a = 1/2, blocks of 2: a round that verifies one emits 7/4 tokens, a plain one 1.

    After a block that is accepted (1/4), or a plain round, the next round has one with h: 1/2 with one
    branch, 1 where a second one always hits.  Its share is h / (h + 1 - h / 4).
    """
    for branches, h in ((1, 0.5), (4, 1.0)):
        tokens = coin(0.5, exponent=1e-9, scale=0.0, requests=2, length=500, prompt_length=1, seed=0)
        scenario = Scenario(tokens, textbook=TextbookCosts(1.0, 0.25))
        settings = configure("specbranch", lookahead=3, branches=branches, lengths="whole")
        share = h / (h + 1.0 - h / 4.0)
        expected = share * 1.75 + 1.0 - share
        assert simulate(scenario, settings).summary.tokens_per_second == pytest.approx(expected, rel=0.03)
