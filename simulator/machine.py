"""What simulated devices share: how much they slow each other down, and the account of their time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from policies.operation import Prefill

if TYPE_CHECKING:
    from simulator.devices import SimulatedDevice

Slowdowns: TypeAlias = Mapping[tuple[str, str, str, str | None], float]
"""(role, operation, other role, other operation) to the factor by which the first runs slower while the
second is busy; None as the other operation: anything that has no entry of its own."""


def role_of(device: str) -> str:
    """The role that a device plays: `draft` of the devices `draft`, `draft-1`, ...; else its own name."""
    return device.partition("-")[0]


class Machine:
    """Devices that can slow each other down, and the account of their time.

    Args:
        slowdowns: See `Slowdowns`; absent pairs do not interfere.

    Attributes:
        busy_s: Seconds of work per device, prefills left out.
        overlap_s: Seconds in which devices of two roles worked at once, prefills left out.
    """

    def __init__(self, slowdowns: Slowdowns | None = None) -> None:
        self.slowdowns = dict(slowdowns or {})
        self.devices: list[SimulatedDevice] = []
        self.busy_s: dict[str, float] = {}
        self.overlap_s = 0.0
        self._since = 0.0
        self._counted: list[str] = []

    def account(self, now: float) -> None:
        """Charge the time since the last change to the devices that were busy in it."""
        elapsed = now - self._since
        self._since = now
        if elapsed > 0.0:
            for name in self._counted:
                self.busy_s[name] = self.busy_s.get(name, 0.0) + elapsed
            if len({role_of(name) for name in self._counted}) > 1:
                self.overlap_s += elapsed

    def changed(self, now: float) -> None:
        """Replan every running operation: someone has just started, stopped or gone on to something else."""
        self.account(now)
        busy = [d for d in self.devices if d.running is not None]
        self._counted = [d.name for d in busy if not isinstance(d.running.operation, Prefill)]  # type: ignore[union-attr]
        if self.slowdowns:
            for device in busy:
                device.replan(now, self._rate(device, busy))

    def _rate(self, device: SimulatedDevice, busy: list[SimulatedDevice]) -> float:
        rate = 1.0
        for other in busy:
            if other is not device:
                rate /= self._slowdown(device, other)
        return rate

    def _slowdown(self, device: SimulatedDevice, other: SimulatedDevice) -> float:
        mine, its = (role_of(device.name), device.cost_class), role_of(other.name)
        always = self.slowdowns.get((*mine, its, None), 1.0)
        return self.slowdowns.get((*mine, its, other.cost_class), always)
