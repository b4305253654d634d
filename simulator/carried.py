"""What `--target-shape`, `--draft-shape` and `--placement` make of a profile, and what that assumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardware_profiles.profile import Profile
from hardware_profiles.scaled import placement_note, replaced, rescaled


def carried(profile: Profile, options: Mapping[str, Any], sources: dict[str, str]) -> Profile:
    """The profile with the models and the placement asked for; what that assumes is added to `sources`.

    Args:
        profile: As loaded; returned unchanged if nothing is asked for.
        options: `target_shape`, `draft_shape` and `placement`, each of which may be missing or None.
        sources: Where numbers come from, for people.

    Raises:
        ValueError: The profile cannot be carried there.
    """
    shapes = {role: options.get(f"{role}_shape") for role in ("target", "draft")}
    profile = rescaled(profile, **shapes)
    if any(shapes.values()):
        models = f"{profile.roles.target.model} and {profile.roles.draft.model}"
        sources["models"] = (
            f"{models} in place of the profile's own: their times are extrapolated, and what is accepted is "
            "still that of the tokens below"
        )
    if (placement := options.get("placement")) not in {None, profile.placement}:
        profile = replaced(profile, placement)
        sources["placement"] = placement_note(placement)
    return profile
