"""Every policy emits what plain decoding emits, token by token: in batches, from processes, on any misses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from live_support import (
    Reference,
    check_cached_sets,
    check_drafts,
    inline_world,
    serve,
    texts_of,
    worker_specs,
)

from calibrate.live.transport.world import LiveWorld
from policies.registry import Settings, configure

Prompts = list[tuple[int, ...]]

TWO_DRAFTS = [
    configure("saguaro", lookahead=3, fanout=(5, 3, 0, 1), draft_devices=2),
    configure("saguaro", lookahead=2, fanout=(3,), backup="ngram", first="backup", draft_devices=2),
]
SETTINGS = [
    configure("ar"),
    *(configure("sd", lookahead=k) for k in (1, 3, 8)),
    *(configure("pearl", lookahead=k) for k in (1, 4)),
    configure("pld", lookahead=1),
    configure("pld", lookahead=5, longest_suffix=1),
    *(
        configure("saguaro", lookahead=4, fanout=(2,), backup=backup, first=first)
        for backup in ("primary", "primary-all", "plain", "random", "ngram")
        for first in ("primary", "backup")
    ),
    *(configure("saguaro", lookahead=4, fanout=(2,), stall="rows", first=f) for f in ("primary", "backup")),
    configure("saguaro", lookahead=3, fanout=(2,), fanout_backup=(6, 1, 1, 1), backup="ngram"),
    configure("saguaro", lookahead=1, fanout=(2,)),
    configure("saguaro", lookahead=2, fanout=(0, 0, 64), backup="plain"),
    configure("saguaro", lookahead=2, fanout=(3,), cache_set="top"),
    configure("saguaro", lookahead=4, fanout=(1,), tree="abort"),
    configure("saguaro", lookahead=4, fanout=(1,), tree="abort", backup="plain"),
    *TWO_DRAFTS,
    configure("saguaro", lookahead=2, fanout=(1, 0, 0), stall="rows", draft_devices=2),
]


@pytest.fixture(scope="module")
def two_drafts(pair: tuple[str, str]) -> Iterator[LiveWorld]:
    with LiveWorld(*worker_specs(pair, drafts=2)) as world:
        yield world


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_a_batch_emits_what_plain_decoding_emits(settings: Settings, reference: Reference) -> None:
    """Ragged prompts, more of them than rows, and rows that end in different rounds."""
    world = inline_world(reference.target, reference.draft, drafts=settings.draft_devices or 1)
    rows = serve(world, settings, reference.prompts, limit=30, batch=4)
    assert texts_of(rows) == [text[:30] for text in reference.texts]
    assert rows.log.table()["emitted"].sum() == 30 * len(reference.prompts)
    assert (check_cached_sets(world) > 0) == (settings.policy == "saguaro")


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.label)
def test_a_row_drafts_what_the_draft_alone_decodes(settings: Settings, reference: Reference) -> None:
    world = inline_world(reference.target, reference.draft, drafts=settings.draft_devices or 1)
    prompts = reference.prompts[2:8:5]
    rows = serve(world, settings, prompts, limit=16)
    assert texts_of(rows) == [text[:16] for text in reference.texts[2:8:5]]
    compared = check_drafts(world, rows, prompts, reference.draft)
    assert (compared > 0) == (settings.policy not in {"ar", "pld"} and settings.label != "pearl K=1")
    assert (check_cached_sets(world) > 0) == (settings.policy == "saguaro")


@pytest.mark.parametrize("stall", ["batch", "rows"])
def test_a_batch_drafts_what_the_draft_alone_decodes(stall: str, reference: Reference) -> None:
    settings = configure("saguaro", lookahead=3, fanout=(4, 2, 1, 3), stall=stall, draft_devices=2)
    world = inline_world(reference.target, reference.draft, drafts=2)
    rows = serve(world, settings, reference.prompts[:6], limit=24, batch=4)
    assert texts_of(rows) == [text[:24] for text in reference.texts[:6]]
    assert check_drafts(world, rows, reference.prompts, reference.draft) > 20


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("settings", SETTINGS[:6:2] + SETTINGS[6:10] + SETTINGS[16:18], ids=lambda s: s.label)
def test_worker_processes_emit_what_plain_decoding_emits(
    world: LiveWorld, settings: Settings, batch: int, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    rows = serve(world, settings, prompts, batch=batch)
    assert texts_of(rows) == plain_texts
    # One forward per round for all rows, over the last committed token and the drafted ones of each, never
    # over the prefix.
    verifies = [timing for timing in world.timings() if timing.operation == "verify"]
    assert len(verifies) == rows.log.batch_rounds
    assert {len(timing.steps) for timing in verifies} == {1}
    per_round = np.split(1 + rows.log.table()["length"], np.cumsum([t.rows for t in verifies])[:-1])
    assert [timing.tokens for timing in verifies] == [int(lengths.sum()) for lengths in per_round]
    assert [timing.width for timing in verifies] == [int(lengths.max()) for lengths in per_round]


@pytest.mark.parametrize("settings", TWO_DRAFTS, ids=lambda settings: settings.label)
def test_two_draft_processes_share_the_work(
    two_drafts: LiveWorld, settings: Settings, prompts: Prompts, plain_texts: list[list[int]]
) -> None:
    two_drafts.clear_records()
    rows = serve(two_drafts, settings, prompts, batch=3)
    assert texts_of(rows) == plain_texts
    passes = [
        [timing.tokens for timing in device.timings if timing.operation == "prespeculate"]
        for device in two_drafts.drafts
    ]
    assert len(passes[0]) == len(passes[1]) > 0
    assert passes[0] != passes[1]


def test_acceptance_of_the_test_pair_is_mixed(world: LiveWorld, prompts: Prompts) -> None:
    """Else the identities above would say little."""
    rows = serve(world, configure("saguaro", lookahead=3, fanout=(2,)), prompts[2:7], batch=2)
    table = rows.log.table()
    assert set(table["accepted"].tolist()) == {0, 1, 2, 3}
    assert {0, 1} <= set(table["hit"].tolist())
