"""What the replicates of `analysis.intervals` draw: prompts, luck and latency factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hardware_profiles.costs import GridCost
from hardware_profiles.profile import Profile
from policies.sampling import keyed_generator
from policies.values import IntArray

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """What the replicates draw, the same for every setting.

    Attributes:
        prompts: [R, n] indices into the token model's requests.
        lucks: [R] seeds of sampling luck and latency noise.
        factors: Per operation the [R] latency factors; operations without block factors are left out.
    """

    prompts: IntArray
    lucks: IntArray
    factors: Mapping[str, FloatArray]

    def __len__(self) -> int:
        return len(self.prompts)


def draw(profile: Profile | None, *, requests: int, size: int, replicates: int, seed: int) -> Draws:
    """Draw the replicates.

    Args:
        profile: Whose block factors to draw from; None for constant costs.
        requests: Requests of the token model.
        size: Requests of the run that is predicted.
        replicates: How many.
        seed: Keys every draw.
    """
    prompts = keyed_generator(seed, "bootstrap-prompts").integers(0, requests, (replicates, size))
    lucks = keyed_generator(seed, "bootstrap-lucks").integers(0, 2**31, replicates)
    factors = {}
    for name, known in block_factors(profile).items():
        chosen = keyed_generator(seed, f"bootstrap-{name}").integers(0, len(known), replicates)
        factors[name] = known[chosen]
    return Draws(prompts, lucks, factors)


def block_factors(profile: Profile | None) -> dict[str, FloatArray]:
    """Block factors of the operations that a decode uses and that have any, of mean 1."""
    found: dict[str, FloatArray] = {}
    for name, cost in (profile.operations if profile else {}).items():
        if isinstance(cost, GridCost) and len(cost.block_factors) > 1 and not name.endswith("prefill"):
            factors = np.array(cost.block_factors, dtype=np.float64)
            found[name] = factors / factors.mean()
    return found
