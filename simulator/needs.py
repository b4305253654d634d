"""What a setting needs: forwards that were measured, tokens that decide it, devices, and memory on them.

A row holds the keys and values of its text and of what is speculated past it.  The speculation cache sits
on the draft device: every prepared outcome keeps the keys and values of its K tokens there and, where
tokens are sampled, the distribution that each was drawn from, which verification asks for (`float32`).
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles.profile import Profile, Role
from policies.registry import SettingError, Settings, find_policy
from simulator.tokens import TokenModel

GUESSES = ("random", "ngram")
"""Backups whose tokens are guessed rather than drafted."""
PROBABILITY_BYTES = 4


def check_profile(profile: Profile, settings: Settings) -> None:
    """Refuse a policy that needs a forward which the profile does not have.

    Raises:
        SettingError: With the names of what is missing.
    """
    needed = ["target.forward"]
    if find_policy(settings.policy).needs_draft:
        needed.append("draft.forward")
    if settings.fanout is not None:
        needed.append("draft.tree")
    missing = [name for name in needed if name not in profile.operations]
    if missing:
        raise SettingError(
            f"profile {profile.name!r} has no {', '.join(missing)}, which policy {settings.policy!r} needs"
        )


def check_tokens(tokens: TokenModel, settings: Settings) -> None:
    """Refuse a setting that a token model cannot decide.

    Raises:
        SettingError: A fan-out beyond what it knows, or a text to be read where there is none.
    """
    tokens.check_fanout(max((*(settings.fanout or (0,)), *(settings.fanout_backup or (0,)))))
    if settings.backup in GUESSES and not tokens.decides_guesses:
        raise SettingError(
            f"backup {settings.backup!r} needs the draft's choices (column draft_top_ids of the trace): they "
            "decide what a rejected guess frees in the cache; take backup 'primary' or 'plain'"
        )
    if settings.config.reads_text and (tokens.vocabulary == 0 or tokens.requests[0].prompt is None):
        kind, name = "policy", settings.policy
        if settings.backup is not None:
            kind, name = "backup", settings.backup
        raise SettingError(
            f"{kind} {name!r} looks words up in the text, and an acceptance rate has none; use a recorded "
            f"trace, or another {kind}"
        )


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """Devices that one group of a setting takes; tensor-parallel ones count as what they are.

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
    return DeviceCount(target * (settings.target_devices or 1), draft * (settings.draft_devices or 1))


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one device has to hold.

    Attributes:
        device: `target`, `draft`, or `target and draft` where they share one.
        memory_bytes: What it has; all of its tensor-parallel parts together.
        kv_bytes_per_row: Keys and values of one row, speculated tokens included.
        speculation_bytes_per_row: Speculation cache of one row.
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
        return (self.memory_bytes - self.weight_bytes) // each if each else self.rows

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

    `context` is the longest text of a row, prompt and limit; `vocabulary` counts for the distributions of
    sampled runs.
    """
    config = settings.config
    needs = [_need("target", profile.roles.target, batch, context + config.ahead)]
    if find_policy(settings.policy).needs_draft:
        kept = vocabulary * PROBABILITY_BYTES if settings.sampling.draft_sampled else 0
        length, cached = context + config.draft_ahead, config.cached_tokens
        needs.append(_need("draft", profile.roles.draft, batch, length, cached=cached, kept_bytes=kept))
    stated = [need for need in needs if need is not None]
    if profile.placement == "split" or len(stated) < 2:
        return tuple(stated)
    target, draft = stated
    together = MemoryNeed(
        device="target and draft",
        memory_bytes=target.memory_bytes,
        weight_bytes=target.weight_bytes + draft.weight_bytes,
        kv_bytes_per_row=target.kv_bytes_per_row + draft.kv_bytes_per_row,
        speculation_bytes_per_row=draft.speculation_bytes_per_row,
        rows=batch,
    )
    return (together,)


def _need(
    device: str, role: Role, rows: int, length: int, *, cached: int = 0, kept_bytes: int = 0
) -> MemoryNeed | None:
    if role.device.memory_bytes is None or role.weight_bytes is None or role.kv_bytes_per_token is None:
        return None
    return MemoryNeed(
        device=device,
        memory_bytes=role.device.memory_bytes * role.tensor_parallel,
        weight_bytes=role.weight_bytes,
        kv_bytes_per_row=length * role.kv_bytes_per_token,
        speculation_bytes_per_row=cached * (role.kv_bytes_per_token + kept_bytes),
        rows=rows,
    )


def kv_blocks(profile: Profile, settings: Settings, block_size: int, utilization: float) -> int:
    """KV blocks that devices have room for beside the weights: what engines work out when they start.

    A block holds keys and values of both models where they share devices; activations and graphs are taken to
    fit into what `utilization` leaves.

    Raises:
        SettingError: The profile does not state its memory, weights or caches, or nothing is left.
    """
    roles = [profile.roles.target]
    if find_policy(settings.policy).needs_draft:
        roles.append(profile.roles.draft)
    known = [(r.device.memory_bytes, r.weight_bytes, r.kv_bytes_per_token) for r in roles]
    if any(None in each for each in known):
        raise SettingError(
            f"profile {profile.name!r} does not state memory, weights and bytes of a token in the caches: "
            "give --num-gpu-blocks"
        )
    sizes = [
        (
            utilization * (memory or 0) * role.tensor_parallel,
            float(weights or 0),
            1.0 * block_size * (cache or 0),
        )
        for role, (memory, weights, cache) in zip(roles, known, strict=True)
    ]
    if len(sizes) > 1 and (profile.placement != "split" or find_policy(settings.policy).collocated):
        (memory, *target), (_, *draft) = sizes
        sizes = [(memory, target[0] + draft[0], target[1] + draft[1])]
    found = min(int((memory - weights) // block) for memory, weights, block in sizes)
    if found < 1:
        raise SettingError(f"no memory is left for KV blocks at --gpu-memory-utilization {utilization:g}")
    return found


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


def _refusal(need: MemoryNeed, settings: Settings) -> str:
    parts = [f"weights {_gib(need.weight_bytes)}", f"KV caches {_gib(need.rows * need.kv_bytes_per_row)}"]
    smaller = "shorter texts"
    if need.speculation_bytes_per_row:
        parts.append(f"speculation cache {_gib(need.rows * need.speculation_bytes_per_row)}")
        smaller += " or a smaller fan-out budget"
    verb = "have" if " " in need.device else "has"
    problem = (
        f"the {need.device} {verb} {_gib(need.memory_bytes)} of memory, but {settings.label} at batch "
        f"{need.rows} needs {_gib(need.needed_bytes)} ({', '.join(parts)})"
    )
    if need.weight_bytes > need.memory_bytes:
        return f"{problem}; the weights alone do not fit: spread the model over more devices"
    if need.largest_batch >= 1:
        return f"{problem}; use a batch of at most {need.largest_batch}, {smaller}"
    return f"{problem}; not even one row fits: use {smaller}"


def _gib(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
