"""The pace that is known beside a profile: that of the decision traces that bear its name."""

from __future__ import annotations

from contextlib import suppress

from hardware_profiles.decisions import read_pace
from hardware_profiles.pace import Pace, joined_pace
from hardware_profiles.profile import Profile
from hardware_profiles.store import decisions_name, find_decisions
from hardware_profiles.trace import TraceError
from policies.registry import POLICIES


def find_pace(
    profile: Profile, temperature: float = 0.0, top_p: float = 1.0, *, name: str | None = None
) -> Pace | None:
    """The pace of all policies, as `calibrate decide` measured it beside a profile; None of none.

    What sampling costs hardly depends on the temperature: where there is no recording at this one, that at
    temperature 1 stands in.

    Args:
        profile: Whose name the decision traces bear.
        temperature: Of the runs to be simulated.
        top_p: Mass of the distributions that is kept.
        name: Under which they are looked for (`store.name_beside`); the profile's own by default.
    """
    found: Pace | None = None
    for sampling in [*([(1.0, 1.0)] if temperature > 0.0 else []), (temperature, top_p)]:
        for info in POLICIES.values():
            if info.needs_decisions:
                with suppress(TraceError):
                    recorded = decisions_name(name or profile.name, info.name, *sampling)
                    found = joined_pace(found, read_pace(find_decisions(recorded)))
    return found
