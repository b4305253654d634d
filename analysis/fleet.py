"""Equal devices: what a setting does with all the devices that one has, at a given traffic.

A parallel policy takes a group of devices, the target's and those of one or more drafts; plain decoding and
SD (collocated: both models on the target's devices, used in turn) take the target's alone.  A model spread
over several devices takes all of them (`simulator.placement`).  What is compared is the
same hardware under the same load: `devices` devices that serve `batch` requests at any time, in as many
independent groups as fit, the requests spread evenly over them.  Devices that no group fills, and groups
for which there is no request, idle.

Models on the same devices are taken to cost what each costs on a device of its own while the other waits,
which is what SD does in the profile's placement; that they fit in its memory is not checked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hardware_profiles.profile import Profile
from policies.registry import Settings
from simulator.placement import count_devices


@dataclass(frozen=True, slots=True)
class Deployment:
    """A setting on all devices.

    Attributes:
        settings: The setting.
        group_devices: Devices of a group.
        groups: Groups that fit on the devices.
        devices: Devices in all.
        batch: Requests served at any time, in all.
    """

    settings: Settings
    group_devices: int
    groups: int
    devices: int
    batch: int

    @property
    def widths(self) -> Counter[int]:
        """Number of busy groups by the rows that each serves."""
        busy = min(self.groups, self.batch)
        rows, rest = divmod(self.batch, busy)
        return Counter([rows + 1] * rest + [rows] * (busy - rest))

    @property
    def words(self) -> str:
        """`2 replicas`, `1 group of 2 devices`."""
        if self.group_devices == 1:
            return f"{self.groups} replica{'s' * (self.groups > 1)} of 1 device"
        return f"{self.groups} group{'s' * (self.groups > 1)} of {self.group_devices} devices"


def deploy(settings: Settings, profile: Profile, *, devices: int, batch: int) -> Deployment | None:
    """The setting on all devices; None where one group takes more than there are."""
    each = count_devices(settings, profile).total
    if each > devices:
        return None
    return Deployment(settings, each, devices // each, devices, batch)
