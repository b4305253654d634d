"""The policies that verify one chain per row, as the registry knows them."""

from __future__ import annotations

from policies.ar import autoregressive
from policies.guesses import LONGEST
from policies.info import PolicyInfo
from policies.knobs import SettingError
from policies.pearl import pearl
from policies.pld import prompt_lookup
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sd import speculative
from policies.settings import Settings
from policies.ssd import SaguaroKnobs, saguaro


def _lookahead(settings: Settings) -> int:
    assert settings.lookahead is not None, "checked by `configure`"
    return settings.lookahead


def _run_ar(world: World, rows: Rows, settings: Settings) -> Steps:
    return autoregressive(world, rows, sampling=settings.sampling)


def _run_sd(world: World, rows: Rows, settings: Settings) -> Steps:
    return speculative(world, rows, lookahead=_lookahead(settings), sampling=settings.sampling)


def _run_pld(world: World, rows: Rows, settings: Settings) -> Steps:
    longest = settings.longest_suffix or LONGEST
    return prompt_lookup(
        world, rows, lookahead=_lookahead(settings), longest=longest, sampling=settings.sampling
    )


def _run_pearl(world: World, rows: Rows, settings: Settings) -> Steps:
    return pearl(world, rows, lookahead=_lookahead(settings), sampling=settings.sampling)


def _run_saguaro(world: World, rows: Rows, settings: Settings) -> Steps:
    return saguaro(world, rows, saguaro_knobs(settings))


def saguaro_knobs(settings: Settings) -> SaguaroKnobs:
    """The knobs of a configured Saguaro.

    Raises:
        SettingError: The backup is still `auto`: which one is best depends on a profile.
    """
    assert settings.fanout is not None and settings.backup is not None, "checked by `configure`"
    if settings.backup == "auto":
        raise SettingError("backup 'auto' has to be resolved against a profile before a run")
    return SaguaroKnobs(
        lookahead=_lookahead(settings),
        fanout=settings.fanout,
        fanout_backup=settings.fanout_backup,
        backup=settings.backup,
        stall=settings.stall or "batch",
        first=settings.first or "primary",
        cache_set=settings.cache_set or "others",
        tree=settings.tree or "whole",
        draft_devices=settings.draft_devices or 1,
        sampling=settings.sampling,
    )


AR = PolicyInfo(
    name="ar",
    paper="baseline",
    predicts="nobody",
    drafts="-",
    on_miss="-",
    verifies="one token",
    knobs=(),
    run=_run_ar,
    needs_draft=False,
    aliases=("autoregressive",),
)
SD = PolicyInfo(
    name="sd",
    paper="Leviathan et al. 2023; SSD sec. 2.1",
    predicts="nobody",
    drafts="autoregressive",
    on_miss="-",
    verifies="chain",
    knobs=("lookahead", "draft_sampling"),
    run=_run_sd,
    aliases=("vanilla", "speculative"),
)
PLD = PolicyInfo(
    name="pld",
    paper="Saxena 2023 (prompt lookup); baseline of DOUBLE, DuoDecoding, RASD",
    predicts="nobody",
    drafts="retrieval from the text itself",
    on_miss="-",
    verifies="chain",
    knobs=("lookahead", "longest_suffix"),
    run=_run_pld,
    needs_draft=False,
    aliases=("prompt-lookup", "ngram"),
)
PEARL = PolicyInfo(
    name="pearl",
    paper="Liu et al. 2025 (PEARL)",
    predicts="all accepted",
    drafts="autoregressive, past the block",
    on_miss="plain decode",
    verifies="chain",
    knobs=("lookahead", "draft_sampling"),
    run=_run_pearl,
)
SAGUARO = PolicyInfo(
    name="saguaro",
    paper="SSD / Saguaro",
    predicts="draft's top F_k after k accepted",
    drafts="autoregressive, all branches at once",
    on_miss="redraft missing or all rows, n-gram, random tokens, plain decode",
    verifies="chain",
    knobs=(
        "lookahead",
        "fanout",
        "fanout_backup",
        "backup",
        "stall",
        "first",
        "cache_set",
        "tree",
        "draft_devices",
        "draft_sampling",
        "scale",
    ),
    run=_run_saguaro,
    aliases=("ssd",),
)
