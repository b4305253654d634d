"""What a setting needs of a profile and of a token model, looked at before anything runs."""

from __future__ import annotations

from hardware_profiles.profile import Profile
from policies.registry import SettingError, Settings, find_policy
from simulator.tokens import TokenModel

GUESSES = ("random", "ngram")
"""Backups whose tokens are guessed rather than drafted."""


def check_profile(profile: Profile | None, settings: Settings) -> None:
    """Refuse a policy that needs a forward which the profile does not have.

    Raises:
        SettingError: With the names of what is missing.
    """
    if profile is None:
        return
    needed = ["target.forward"]
    if find_policy(settings.policy).needs_draft:
        needed.append("draft.forward")
    if settings.fanout is not None:
        needed.append("draft.tree")
    missing = [name for name in needed if name not in profile.operations]
    if missing:
        raise SettingError(
            f"profile {profile.name!r} has no {', '.join(missing)}, which policy {settings.policy!r} needs"
        )


def check_tokens(tokens: TokenModel, settings: Settings) -> None:
    """Refuse a setting that a token model cannot decide.

    Raises:
        SettingError: A fan-out beyond what it knows, or a text to be read where there is none.
    """
    widest = max((*(settings.fanout or (0,)), *(settings.fanout_backup or (0,))))
    if widest > tokens.max_fanout:
        raise SettingError(
            f"fan-out {widest} is more than this trace can decide: it records the draft's first "
            f"{tokens.max_fanout + 1} choices, enough for a fan-out of {tokens.max_fanout}"
            if tokens.vocabulary
            else f"fan-out {widest} is more than the given acceptance can decide: its hit curve reaches to "
            f"{tokens.max_fanout}"
        )
    if settings.backup in GUESSES and not tokens.decides_guesses:
        raise SettingError(
            f"backup {settings.backup!r} needs the draft's choices (column draft_top_ids of the trace): they "
            "decide what a rejected guess frees in the cache; take backup 'primary' or 'plain'"
        )
    if settings.config.reads_text and (tokens.vocabulary == 0 or tokens.requests[0].prompt is None):
        kind, name = "policy", settings.policy
        if settings.backup is not None:
            kind, name = "backup", settings.backup
        raise SettingError(
            f"{kind} {name!r} looks words up in the text, and an acceptance rate has none; use a recorded "
            f"trace, or another {kind}"
        )
