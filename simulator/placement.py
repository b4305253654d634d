"""How many devices a setting takes on a profile's hardware: tensor-parallel ones count as what they are."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles.profile import Profile
from policies.registry import Settings, find_policy


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """Devices that one group of a setting takes.

    Attributes:
        target: Those that the target is spread over.
        draft: Further ones of the draft, or of all drafts together; 0 where it needs none of its own.
    """

    target: int
    draft: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.target + self.draft

    def __str__(self) -> str:
        return f"{self.target} + {self.draft}" if self.draft else str(self.target)


def count_devices(settings: Settings, profile: Profile) -> DeviceCount:
    """The devices of one group of a setting.

    A policy whose models take turns runs on the target's devices, and so does every policy where the profile
    has both models on the same ones.
    """
    target, draft = profile.roles.target.tensor_parallel, profile.roles.draft.tensor_parallel
    if profile.placement == "shared":
        return DeviceCount(max(target, draft))
    if find_policy(settings.policy).collocated:
        return DeviceCount(target)
    return DeviceCount(target, draft * (settings.draft_devices or 1))
