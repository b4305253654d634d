"""Sampled decoding is lossless: what every policy emits has the target's law, all tokens jointly.

Each test is a G-test of thousands of texts of four tokens against the exact law, at `ALPHA`: with fixed
seeds it passes or fails for good, and a correct engine would fail one test in a thousand seeds.  What it
would notice is in `test_live_sampling_mutants`.
"""

from __future__ import annotations

import numpy as np
import pytest
from live_support import serve
from sampling_support import fit, joint_law, sampled_texts

from calibrate.live.transport.world import LiveWorld
from policies.registry import Settings, configure
from policies.values import Source

ALPHA = 1e-3
NARROW = {"policy": "saguaro", "lookahead": 2, "fanout": (1,)}
MIXED = {"policy": "saguaro", "lookahead": 3, "fanout": (2, 1, 1, 1)}
CASES = [
    {"policy": "ar"},
    {"policy": "ar", "top_p": 0.7},
    {"policy": "sd", "lookahead": 3},
    {"policy": "sd", "lookahead": 2, "top_p": 0.7},
    {"policy": "sd", "lookahead": 2, "draft_sampling": "greedy"},
    {"policy": "pearl", "lookahead": 1},
    {"policy": "pearl", "lookahead": 2},
    {"policy": "pearl", "lookahead": 3, "top_p": 0.8},
    {"policy": "pearl", "lookahead": 2, "draft_sampling": "greedy"},
    {"policy": "pld", "lookahead": 3, "top_p": 0.8},
    {**MIXED, "backup": "primary", "scale": 0.3},
    {**NARROW, "backup": "primary-all", "scale": 0.6},
    {**NARROW, "backup": "plain"},
    {**NARROW, "backup": "plain", "scale": 0.2},
    {**NARROW, "backup": "random", "first": "backup"},
    {**MIXED, "backup": "random", "scale": 0.3},
    {**NARROW, "backup": "ngram", "first": "backup"},
    {**MIXED, "backup": "ngram", "scale": 0.3, "top_p": 0.8},
    {**MIXED, "stall": "rows", "scale": 0.5},
    {**MIXED, "cache_set": "top", "scale": 0.0, "top_p": 0.9},
    {**MIXED, "tree": "abort", "scale": 0.5},
    {**MIXED, "draft_devices": 2, "scale": 0.4, "fanout_backup": (2, 2, 0, 1), "backup": "ngram"},
    {**MIXED, "draft_sampling": "greedy"},
    {**NARROW, "draft_sampling": "greedy", "backup": "random", "top_p": 0.8},
]


def settings_of(case: dict[str, object]) -> Settings:
    return configure(**{"temperature": 0.9, "seed": 1, **case})  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: settings_of(case).label)
def test_emitted_texts_have_the_targets_law(case: dict[str, object]) -> None:
    settings = settings_of(case)
    rows = sampled_texts(settings)
    found = fit(rows, settings.sampling)
    assert found.impossible == 0
    assert found.p_value > ALPHA, str(found)
    _check_that_everything_happened(settings, rows.log.table())


def _check_that_everything_happened(settings: Settings, table: dict[str, np.ndarray]) -> None:
    """Hits and misses, acceptances and rejections, and every source that the setting names."""
    often = 100
    if settings.policy in {"pearl", "saguaro"}:
        assert min((table["hit"] == hit).sum() for hit in (0, 1)) > often
    sources = {Source.NONE} if settings.policy == "ar" else {Source.PRIMARY}
    if settings.policy == "pld":
        sources = {Source.NONE, Source.NGRAM}
    if settings.policy == "pearl":
        sources = {Source.NONE} if settings.lookahead == 1 else {Source.NONE, Source.PRIMARY}
    backups = {"random": {Source.RANDOM}, "ngram": {Source.NGRAM, Source.NONE}, "plain": {Source.NONE}}
    sources |= backups.get(settings.backup or "", set())
    assert set(np.unique(table["source"])) == {int(source) for source in sources}
    for source in sources - {Source.NONE}:
        mine = table["source"] == source
        assert (table["accepted"][mine] > 0).sum() > often
        assert (table["accepted"][mine] < table["length"][mine]).sum() > often


def test_the_exact_law_is_one() -> None:
    for top_p in (1.0, 0.7):
        law = joint_law(configure("ar", temperature=0.9, top_p=top_p).sampling)
        assert law.sum() == pytest.approx(1.0)
        assert (law == 0.0).any() == (top_p < 1.0)


SAMPLED = [
    configure("ar", temperature=1.0),
    configure("sd", lookahead=3, temperature=1.0, top_p=0.9),
    configure("pearl", lookahead=3, temperature=1.0),
    configure("saguaro", lookahead=3, fanout=(3,), temperature=1.0, scale=0.5),
    configure("saguaro", lookahead=3, fanout=(3,), temperature=1.0, backup="random", top_p=0.9),
]


@pytest.mark.parametrize("settings", SAMPLED, ids=lambda settings: settings.label)
def test_processes_draw_what_one_process_draws(
    world: LiveWorld,
    settings: Settings,
    prompts: list[tuple[int, ...]],
    target_model: object,
    draft_model: object,
) -> None:
    """Laws cross the process boundary unharmed, and neither batch nor slot changes a request's luck."""
    from live_support import inline_world, texts_of

    inline = inline_world(target_model, draft_model)  # type: ignore[arg-type]
    alone = serve(inline, settings, prompts[3:7], batch=1)
    apart = serve(world, settings, prompts[3:7], batch=3)
    assert texts_of(apart) == texts_of(alone)
    assert apart.log.table()["hit"].tolist().count(1) == alone.log.table()["hit"].tolist().count(1)
    assert len({tuple(text) for text in texts_of(apart)}) == 4
