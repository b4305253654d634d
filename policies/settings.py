"""A policy with its knobs, ready to run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from policies.knobs import KNOBS
from policies.sampling import DraftMode, Sampling
from policies.ssd import Backup, CacheSet, First, Stall, Tree

AnyBackup: TypeAlias = Backup | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A policy and its knobs; a knob that the policy does not have is left None.

    Attributes:
        policy: Name in the registry.
        lookahead: K, at least 1.
        fanout: F_0 ... F_K.
        fanout_backup: The same in rounds after a backup speculation; None: as `fanout`.
        backup: What happens on a cache miss; `auto` has to be resolved before a run.
        stall: Who waits for a redraft.
        first: Where a request's first speculation comes from.
        cache_set: Whether the cached outcomes leave out the rejected token.
        tree: Whether a pre-speculation that no row hits is carried through.
        draft_devices: Devices that share the pre-speculation.
        longest_suffix: Longest ending of the text that prompt lookup searches for, in tokens.
        temperature: Of both models; 0 is greedy.
        top_p: Mass of both models' laws that is kept.
        draft_sampling: How the draft chooses its tokens at a temperature above 0.
        scale: Saguaro's C.
        seed: Seed of the run.
        options: Values of the knobs that have no field here, by name, sorted (see `option`).
    """

    policy: str
    lookahead: int | None = None
    fanout: tuple[int, ...] | None = None
    fanout_backup: tuple[int, ...] | None = None
    backup: AnyBackup | None = None
    stall: Stall | None = None
    first: First | None = None
    cache_set: CacheSet | None = None
    tree: Tree | None = None
    draft_devices: int | None = None
    longest_suffix: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    draft_sampling: DraftMode | None = None
    scale: float | None = None
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str) -> Any:
        """Value of a knob that has no field of its own.

        Raises:
            KeyError: The policy has no such knob.
        """
        return dict(self.options)[name]

    @property
    def knobs(self) -> dict[str, Any]:
        """Its knobs by name, those left None left out; with policy and sampling they make it anew."""
        own = dict(self.options)
        given = {name: own.get(name, getattr(self, name, None)) for name in KNOBS}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            draft=self.draft_sampling or "sampled",
            scale=1.0 if self.scale is None else self.scale,
            seed=self.seed,
        )

    @property
    def reads_text(self) -> bool:
        """Whether the policy looks at the tokens themselves, so that a world without ids cannot run it."""
        return self.policy == "pld" or self.backup == "ngram"

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `saguaro K=4 F=3 primary`; only what differs from the default."""
        parts = [self.policy]
        if self.lookahead is not None:
            parts.append(f"K={self.lookahead}")
        if self.fanout is not None:
            parts.append(f"F={_short(self.fanout)}")
        if self.fanout_backup is not None and self.fanout_backup != self.fanout:
            parts.append(f"Fb={_short(self.fanout_backup)}")
        if self.backup is not None:
            parts.append(self.backup)
        parts += [f"{k}={_shown(v)}" for k, v in self.unusual.items()]
        if self.temperature > 0.0:
            parts.append(f"T={self.temperature:g}")
            if self.top_p < 1.0:
                parts.append(f"top-p={self.top_p:g}")
        return " ".join(parts)

    @property
    def unusual(self) -> dict[str, Any]:
        """Options that differ from their default, by name."""
        return {
            name: value
            for name, value in self.knobs.items()
            if KNOBS[name].rare and value != KNOBS[name].default
        }


FIELDS = frozenset(KNOBS).intersection(field.name for field in fields(Settings))
"""Knobs that have a field in `Settings`; all others are its `options`."""


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _short(fanout: tuple[int, ...]) -> str:
    return str(fanout[0]) if len(set(fanout)) == 1 else ",".join(map(str, fanout))
