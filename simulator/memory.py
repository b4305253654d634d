"""Whether weights, KV caches and the speculation cache fit on the devices: arithmetic, nothing measured.

A row holds the keys and values of its text and of what is speculated past it.  The speculation cache sits
on the draft device: every prepared outcome keeps the keys and values of its K tokens there and, where
tokens are sampled, the distribution that each was drawn from, which verification asks for (`float32`).
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles.profile import Profile, Role
from policies.registry import SettingError, Settings, find_policy

LAW_BYTES = 4
"""Bytes of one probability of a kept distribution."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one device has to hold.

    Attributes:
        device: `target`, `draft`, or `target and draft` where they share one.
        memory_bytes: What it has; all of its tensor-parallel parts together.
        weight_bytes: Weights.
        kv_bytes_per_row: Keys and values of one row, speculated tokens included.
        speculation_bytes_per_row: Speculation cache of one row.
        rows: Rows of the batch.
    """

    device: str
    memory_bytes: int
    weight_bytes: int
    kv_bytes_per_row: int
    speculation_bytes_per_row: int
    rows: int

    @property
    def needed_bytes(self) -> int:
        """All of it together."""
        return self.weight_bytes + self.rows * (self.kv_bytes_per_row + self.speculation_bytes_per_row)

    @property
    def largest_batch(self) -> int:
        """Most rows that fit; below 1 if not even one does."""
        each = self.kv_bytes_per_row + self.speculation_bytes_per_row
        free = self.memory_bytes - self.weight_bytes
        return free // each if each else self.rows

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.needed_bytes <= self.memory_bytes

    def as_dict(self) -> dict[str, int | str | bool]:
        """Plain values, ready for JSON."""
        return {
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "needed_bytes": self.needed_bytes,
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.rows * self.kv_bytes_per_row,
            "speculation_bytes": self.rows * self.speculation_bytes_per_row,
            "largest_batch": self.largest_batch,
        }


def memory_needs(
    profile: Profile, settings: Settings, batch: int, context: int, *, vocabulary: int = 0
) -> tuple[MemoryNeed, ...]:
    """What each device has to hold; devices whose sizes the profile does not state are left out.

    Args:
        profile: Sizes of models and devices.
        settings: What runs.
        batch: Rows served at once.
        context: Longest text of a row: prompt and limit.
        vocabulary: Number of token ids, for the distributions of sampled runs.
    """
    config = settings.config
    target = _need("target", profile.roles.target, batch, context + config.ahead)
    if not find_policy(settings.policy).needs_draft:
        return () if target is None else (target,)
    law = vocabulary * LAW_BYTES if settings.sampling.draft_sampled else 0
    draft = _need(
        "draft",
        profile.roles.draft,
        batch,
        context + config.draft_ahead,
        cached=config.cached_tokens,
        law_bytes=law,
    )
    if profile.placement == "shared" and target is not None and draft is not None:
        return (_together(target, draft),)
    return tuple(need for need in (target, draft) if need is not None)


def check_memory(
    profile: Profile, settings: Settings, batch: int, context: int, *, vocabulary: int = 0
) -> tuple[MemoryNeed, ...]:
    """`memory_needs`, all of which fit.

    Raises:
        SettingError: One does not; the message has the numbers and the way out.
    """
    needs = memory_needs(profile, settings, batch, context, vocabulary=vocabulary)
    for need in needs:
        if not need.fits:
            raise SettingError(_refusal(need, settings))
    return needs


def _need(
    device: str, role: Role, rows: int, length: int, *, cached: int = 0, law_bytes: int = 0
) -> MemoryNeed | None:
    if role.device.memory_bytes is None or role.weight_bytes is None or role.kv_bytes_per_token is None:
        return None
    return MemoryNeed(
        device=device,
        memory_bytes=role.device.memory_bytes * role.tensor_parallel,
        weight_bytes=role.weight_bytes,
        kv_bytes_per_row=length * role.kv_bytes_per_token,
        speculation_bytes_per_row=cached * (role.kv_bytes_per_token + law_bytes),
        rows=rows,
    )


def _together(target: MemoryNeed, draft: MemoryNeed) -> MemoryNeed:
    return MemoryNeed(
        device="target and draft",
        memory_bytes=target.memory_bytes,
        weight_bytes=target.weight_bytes + draft.weight_bytes,
        kv_bytes_per_row=target.kv_bytes_per_row + draft.kv_bytes_per_row,
        speculation_bytes_per_row=draft.speculation_bytes_per_row,
        rows=target.rows,
    )


def _refusal(need: MemoryNeed, settings: Settings) -> str:
    parts = [
        f"weights {_gib(need.weight_bytes)}",
        f"KV caches {_gib(need.rows * need.kv_bytes_per_row)}",
    ]
    if need.speculation_bytes_per_row:
        parts.append(f"speculation cache {_gib(need.rows * need.speculation_bytes_per_row)}")
    verb = "have" if " " in need.device else "has"
    problem = (
        f"the {need.device} {verb} {_gib(need.memory_bytes)} of memory, but {settings.label} at batch "
        f"{need.rows} needs {_gib(need.needed_bytes)} ({', '.join(parts)})"
    )
    if need.weight_bytes > need.memory_bytes:
        return f"{problem}; the weights alone do not fit: spread the model over more devices"
    smaller = "shorter texts"
    if need.speculation_bytes_per_row:
        smaller += " or a smaller fan-out budget"
    if need.largest_batch >= 1:
        return f"{problem}; use a batch of at most {need.largest_batch}, {smaller}"
    return f"{problem}; not even one row fits: use {smaller}"


def _gib(size: int) -> str:
    """Bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
