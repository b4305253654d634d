"""The policies by name, with what `simulate --list-policies` says of them and how they are configured."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from policies.ar import autoregressive
from policies.pearl import pearl
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sd import speculative
from policies.ssd import BACKUPS, Backup, saguaro


class SettingError(ValueError):
    """A policy was given a setting that it cannot run with; the message says the way out."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A policy and its knobs; a knob that the policy does not have must be left None.

    Attributes:
        policy: Name in the registry.
        lookahead: K, at least 1.
        fanout: F_0 ... F_K.
        backup: What happens on a cache miss.
        seed: Seed of the run.
    """

    policy: str
    lookahead: int | None = None
    fanout: tuple[int, ...] | None = None
    backup: Backup | None = None
    seed: int = field(default=0, compare=True)

    @property
    def label(self) -> str:
        """Short name for tables, e.g. `saguaro K=4 F=3 primary`."""
        parts = [self.policy]
        if self.lookahead is not None:
            parts.append(f"K={self.lookahead}")
        if self.fanout is not None:
            uniform = len(set(self.fanout)) == 1
            parts.append(f"F={self.fanout[0]}" if uniform else "F=" + ",".join(map(str, self.fanout)))
        if self.backup is not None:
            parts.append(self.backup)
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy's place in the family (design.md, section 1).

    Attributes:
        name: As on the command line.
        paper: Where it is described.
        predicts: Who predicts the outcome of a verification.
        drafts: How a continuation is drafted.
        on_miss: What happens when the prediction fails.
        verifies: Shape of what is verified.
        replay: Which row of design.md's replay table it is in.
        knobs: Settings it takes.
        run: Starts it: (world, rows, settings) to a generator.
        needs_draft: Whether it uses the draft device.
    """

    name: str
    paper: str
    predicts: str
    drafts: str
    on_miss: str
    verifies: str
    replay: str
    knobs: tuple[str, ...]
    run: Callable[[World, Rows, Settings], Steps]
    needs_draft: bool = True


def _lookahead(settings: Settings) -> int:
    assert settings.lookahead is not None, "checked by `configure`"
    return settings.lookahead


def _run_ar(world: World, rows: Rows, settings: Settings) -> Steps:
    return autoregressive(world, rows)


def _run_sd(world: World, rows: Rows, settings: Settings) -> Steps:
    return speculative(world, rows, lookahead=_lookahead(settings))


def _run_pearl(world: World, rows: Rows, settings: Settings) -> Steps:
    return pearl(world, rows, lookahead=_lookahead(settings))


def _run_saguaro(world: World, rows: Rows, settings: Settings) -> Steps:
    assert settings.fanout is not None and settings.backup is not None, "checked by `configure`"
    return saguaro(
        world,
        rows,
        lookahead=_lookahead(settings),
        fanout=settings.fanout,
        backup=settings.backup,
        seed=settings.seed,
    )


_EXACT = partial(PolicyInfo, replay="exact on the on-path trace")

POLICIES: dict[str, PolicyInfo] = {
    info.name: info
    for info in (
        _EXACT(
            name="ar",
            paper="baseline",
            predicts="nobody",
            drafts="-",
            on_miss="-",
            verifies="one token",
            knobs=(),
            run=_run_ar,
            needs_draft=False,
        ),
        _EXACT(
            name="sd",
            paper="Leviathan et al. 2023; SSD sec. 2.1",
            predicts="nobody",
            drafts="autoregressive",
            on_miss="-",
            verifies="chain",
            knobs=("lookahead",),
            run=_run_sd,
        ),
        _EXACT(
            name="pearl",
            paper="Liu et al. 2025 (PEARL)",
            predicts="all accepted",
            drafts="autoregressive, past the block",
            on_miss="plain decode",
            verifies="chain",
            knobs=("lookahead",),
            run=_run_pearl,
        ),
        _EXACT(
            name="saguaro",
            paper="SSD / Saguaro",
            predicts="draft's top F_k after k accepted",
            drafts="autoregressive, all branches at once",
            on_miss="redraft missing rows, plain decode, or random tokens",
            verifies="chain",
            knobs=("lookahead", "fanout", "backup"),
            run=_run_saguaro,
        ),
    )
}
"""Every policy, in the order in which they build on each other."""

ALIASES = {"ssd": "saguaro", "autoregressive": "ar", "vanilla": "sd", "speculative": "sd"}
DEFAULT_LOOKAHEAD = 4
DEFAULT_FANOUT = 3
MAX_LOOKAHEAD = 64


def find_policy(name: str) -> PolicyInfo:
    """The policy called `name` (or an alias of it).

    Raises:
        SettingError: No such policy; the message suggests the nearest name.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key in POLICIES:
        return POLICIES[key]
    near = difflib.get_close_matches(key, [*POLICIES, *ALIASES], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingError(f"unknown policy {name!r}.{hint} Policies: {', '.join(POLICIES)}")


def configure(
    policy: str,
    *,
    lookahead: int | None = None,
    fanout: tuple[int, ...] | None = None,
    backup: str | None = None,
    seed: int = 0,
) -> Settings:
    """Checked settings of a policy, defaults filled in.

    A single `fanout` number means the same at every position.

    Raises:
        SettingError: Unknown policy; a knob the policy does not have (none is silently ignored); a value
            out of its domain.
    """
    info = find_policy(policy)
    given = {"lookahead": lookahead, "fanout": fanout, "backup": backup}
    for knob, value in given.items():
        if value is not None and knob not in info.knobs:
            having = [p.name for p in POLICIES.values() if knob in p.knobs]
            raise SettingError(
                f"policy {info.name!r} has no {knob} (it would change nothing); "
                f"policies that have: {', '.join(having)}"
            )
    depth = None
    if "lookahead" in info.knobs:
        depth = DEFAULT_LOOKAHEAD if lookahead is None else lookahead
        if not 1 <= depth <= MAX_LOOKAHEAD:
            raise SettingError(
                f"lookahead must be between 1 and {MAX_LOOKAHEAD}, got {depth}"
                + ("; use policy 'ar' for plain decoding" if depth == 0 else "")
            )
    chosen: Backup | None = None
    if "backup" in info.knobs:
        chosen = _backup(backup)
    spread = _fanout(fanout, depth) if "fanout" in info.knobs and depth is not None else None
    return Settings(info.name, depth, spread, chosen, seed)


def _backup(name: str | None) -> Backup:
    for backup in BACKUPS:
        if backup == (name or "primary"):
            return backup
    raise SettingError(f"unknown backup {name!r}; backups: {', '.join(BACKUPS)}")


def _fanout(given: tuple[int, ...] | None, lookahead: int) -> tuple[int, ...]:
    fanout = given or (DEFAULT_FANOUT,)
    if len(fanout) == 1:
        fanout = fanout * (lookahead + 1)
    if len(fanout) != lookahead + 1:
        raise SettingError(
            f"fanout needs 1 number or lookahead + 1 = {lookahead + 1} of them (F_0 ... F_K), "
            f"got {len(fanout)}"
        )
    if min(fanout) < 0 or sum(fanout) == 0:
        raise SettingError(f"fanout must be non-negative and not all zero, got {','.join(map(str, fanout))}")
    return fanout


def start(world: World, rows: Rows, settings: Settings) -> Steps:
    """The generator of a configured policy."""
    return find_policy(settings.policy).run(world, rows, settings)
