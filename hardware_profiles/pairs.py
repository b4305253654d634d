"""Whether a profile and a recording are of the same pair of models."""

from __future__ import annotations

import re
from pathlib import PurePath

from hardware_profiles.profile import Profile
from hardware_profiles.trace_schema import TraceMeta

ANY = "any"
"""The model of a profile that stands for none in particular."""
_DIGEST = re.compile(r"-[0-9a-f]{16}$")


def model_name(name: str) -> str:
    """A model's name without where it lies: `pair:x5`, `x5-5bbfbf7d161d94ac` and `models/x5/` are `x5`."""
    path = PurePath(name.removeprefix("pair:"))
    last = path.parent.name if path.suffix in {".gguf", ".xml"} else path.name
    return _DIGEST.sub("", last).lower()


def other_pair(profile: Profile, meta: TraceMeta) -> str | None:
    """That a recording is of other models than a profile, in words; None where it is not.

    Args:
        profile: Says what each role's model is; `any` is no other model than any.
        meta: Of a trace or of a decision trace.
    """
    mine = (profile.roles.target.model, profile.roles.draft.model)
    theirs = (meta.target_model, meta.draft_model)
    if all(a == ANY or model_name(a) == model_name(b) for a, b in zip(mine, theirs, strict=True)):
        return None
    return (
        f"profile {profile.name!r} is of {mine[0]} with {mine[1]}, the recording of {theirs[0]} with "
        f"{theirs[1]}: times of one pair, acceptance of another"
    )
