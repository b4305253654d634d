"""Where a measured profile stands on the scales of the relaxations."""

from __future__ import annotations

import numpy as np

from analysis.breaks.worlds import RECORDING
from hardware_profiles.profile import load_profile
from hardware_profiles.store import find_profile
from hardware_profiles.surface import LatencySurface

CONTEXT = 128


def measured_sizes(name: str = RECORDING) -> dict[str, str]:
    """Sizes of the relaxations of costs that a profile was measured to have, by name.

    Raises:
        ProfileError: No such profile, or one without a draft or its tree.
    """
    profile = load_profile(find_profile(name))
    target, draft, tree = (
        LatencySurface(profile.operation(operation))
        for operation in ("target.forward", "draft.forward", "draft.tree")
    )
    slowdowns = [entry.slowdown - 1.0 for entry in profile.overlap]
    return {
        "jitter": f"{_variation(target):.2f} (target), {_variation(draft):.2f} (draft)",
        "verify-k": f"{_growth(target, new_tokens=9):.3f} (9 tokens)",
        "verify-batch": f"{_growth(target, batch=8, new_tokens=5):.3f} (8 rows of 5 tokens)",
        "branches": f"{_growth(tree, branches=15):.2f} (15 branches of one row)",
        "contention": f"{min(slowdowns):.2f} to {max(slowdowns):.2f}" if slowdowns else "not measured",
    }


def _growth(surface: LatencySurface, **wide: int) -> float:
    """Relative growth of a cost per further unit of work."""
    one = {"batch": 1, "new_tokens": 1, "branches": 1, "context": CONTEXT}
    units = int(np.prod(list(wide.values())))
    return (surface.seconds(**(one | wide)) / surface.seconds(**one) - 1.0) / (units - 1)


def _variation(surface: LatencySurface) -> float:
    """Coefficient of variation of a forward's noise."""
    return float(surface.noise((np.arange(10_000) + 0.5) / 10_000).std())
