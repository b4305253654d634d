"""What a policy needs of a world: events, devices, and the cache that a pre-speculation returns.

Both worlds satisfy these with simpy's events (design.md, section 1); policies see only the protocols,
so that they import neither simpy nor torch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol, TypeAlias

from hardware_profiles.surface import RoleName
from policies.operation import Operation
from policies.values import Slots, Speculation, Verdict


class Event(Protocol):
    """Something that happens once; a policy waits for it by yielding it.  `|` and `&` combine."""

    @property
    def triggered(self) -> bool: ...
    @property
    def value(self) -> Any: ...
    def __and__(self, other: Any) -> Any: ...
    def __or__(self, other: Any) -> Any: ...


class Task(Event, Protocol):
    """A submitted operation.  Fires exactly once, with the operation's answer or its failure."""

    @property
    def early(self) -> Event:
        """The operation's early result; fires at most once, and only where `Operation.early` asks for it."""
        ...

    def stop(self) -> None:
        """Ask for an end at the next step boundary; a no-op once done or where not interruptible."""
        ...


class Device(Protocol):
    """Serves operations first-in first-out."""

    @property
    def name(self) -> str: ...
    def submit(self, operation: Operation) -> Task:
        """Queue an operation and return at once."""
        ...


class Cache(Protocol):
    """Speculation cache of one round (SSD, definition 4): a map from outcome to speculation."""

    def lookup(self, verdict: Verdict) -> Slots:
        """The rows whose outcome (accepted, bonus) was prepared for, ended ones left out."""
        ...

    def take(self, verdict: Verdict, hits: Slots) -> Speculation:
        """The prepared speculation of the rows in `hits`; empty for all others."""
        ...

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation, of a cache with one outcome (`Continue`)."""
        ...


class World(Protocol):
    """Where a policy runs: a target device and a draft device, in simulated or in real time."""

    @property
    def target(self) -> Device: ...
    @property
    def targets(self) -> Sequence[Device]:
        """All target devices, at least one; `target` is the first."""
        ...

    @property
    def draft(self) -> Device: ...
    @property
    def drafts(self) -> Sequence[Device]:
        """All draft devices, at least one; `draft` is the first."""
        ...

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids (for random backups); 0 in a world without token ids."""
        ...


Steps: TypeAlias = Generator[Event, Any, Any]
"""A running policy or a part of one: yields events, receives their values, may return something."""


def role_of(device: str) -> RoleName:
    """The role that a device plays: of the target (`target`, `target-1`, ...), or of a draft."""
    return "target" if device.startswith("target") else "draft"
