"""Every policy emits what plain decoding emits, token by token, from two processes."""

from __future__ import annotations

import pytest
from live_support import LIMIT, check_cached_sets, check_drafts, inline_world, serve
from transformers import PreTrainedModel

from calibrate.live.world import LiveWorld
from policies.registry import Settings, configure

SETTINGS = [
    configure("ar"),
    *(configure("sd", lookahead=k) for k in (1, 3, 8)),
    *(configure("pearl", lookahead=k) for k in (1, 4)),
    configure("saguaro", lookahead=1, fanout=(2,), backup="primary"),
    *(configure("saguaro", lookahead=4, fanout=(2,), backup=b) for b in ("primary", "plain", "random")),
    configure("saguaro", lookahead=3, fanout=(5, 3, 0, 1), backup="primary"),
    configure("saguaro", lookahead=2, fanout=(0, 0, 64), backup="plain"),
]
Prompts = list[tuple[int, ...]]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_live_policy_emits_what_plain_decoding_emits(
    world: LiveWorld, settings: Settings, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    rows = serve(world, settings, prompts)
    assert [rows.texts[i] for i in range(len(prompts))] == plain_texts
    table = rows.log.table()
    assert table["emitted"].sum() == LIMIT * len(prompts)
    # One verification per round, of the last committed token and the drafted ones, never of the prefix.
    verifies = [timing for timing in world.timings() if timing.operation == "verify"]
    assert [timing.tokens for timing in verifies] == (1 + table["length"]).tolist()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_inline_policy_drafts_what_the_draft_alone_decodes(
    settings: Settings,
    prompts: Prompts,
    plain_texts: list[list[int]],
    target_model: PreTrainedModel,
    draft_model: PreTrainedModel,
) -> None:
    few = prompts[2::5]
    world = inline_world(target_model, draft_model)
    rows = serve(world, settings, few)
    assert [rows.texts[i] for i in range(len(few))] == plain_texts[2::5]
    compared = check_drafts(world, rows, few, draft_model)
    assert (compared > 0) == (settings.policy != "ar" and settings.label != "pearl K=1")
    assert (check_cached_sets(world) > 0) == (settings.policy == "saguaro")


def test_acceptance_of_the_test_pair_is_mixed(world: LiveWorld, prompts: Prompts) -> None:
    """Else the identities above would say little."""
    rows = serve(world, configure("saguaro", lookahead=3, fanout=(2,)), prompts[2:7])
    table = rows.log.table()
    assert set(table["accepted"].tolist()) == {0, 1, 2, 3}
    assert {0, 1} <= set(table["hit"].tolist())
