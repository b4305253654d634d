"""The policies by name, and how they are configured.

A policy's own module says what there is to say of it (`INFO`); here they stand together.
"""

from __future__ import annotations

import difflib
from typing import Any

from policies.chains import AR, PEARL, PLD, SAGUARO, SD
from policies.double import INFO as DOUBLE
from policies.duo import INFO as DUO
from policies.heads import INFO as HEADS
from policies.info import DECISIONS, EXACT, PolicyInfo
from policies.knobs import (
    DEFAULT_FANOUT,
    DEFAULT_LOOKAHEAD,
    KNOBS,
    MAX_LOOKAHEAD,
    SettingError,
)
from policies.mirror import INFO as MIRROR
from policies.protocols import Steps, World
from policies.rasd import INFO as RASD
from policies.rest import INFO as REST
from policies.rows import Rows
from policies.sampling import Sampling
from policies.settings import FIELDS, AnyBackup, Settings
from policies.tree import INFO as TREE

__all__ = [
    "ALIASES",
    "DECISIONS",
    "DEFAULT_FANOUT",
    "DEFAULT_LOOKAHEAD",
    "EXACT",
    "MAX_LOOKAHEAD",
    "POLICIES",
    "AnyBackup",
    "PolicyInfo",
    "SettingError",
    "Settings",
    "configure",
    "find_policy",
    "start",
]

POLICIES: dict[str, PolicyInfo] = {
    info.name: info
    for info in (
        AR,
        SD,
        PLD,
        REST,
        PEARL,
        SAGUARO,
        DOUBLE,
        DUO,
        TREE,
        HEADS,
        MIRROR,
        RASD,
    )
}
"""Every policy, in the order in which they build on each other."""

ALIASES: dict[str, str] = {alias: info.name for info in POLICIES.values() for alias in info.aliases}
"""Other names, as on the command line."""


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
    policy: str, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0, **knobs: Any
) -> Settings:
    """Checked settings of a policy, defaults filled in.

    A single `fanout` number means the same at every position.

    Args:
        policy: Name or alias.
        temperature: Of both models.
        top_p: Mass of their laws that is kept.
        seed: Of the run.
        knobs: Those of `policies.knobs.KNOBS`; None is as not given.

    Raises:
        SettingError: Unknown policy or knob; a knob the policy does not have, or one that changes nothing at
            temperature 0 (none is silently ignored); a value out of its domain.
    """
    info = find_policy(policy)
    given = {name: value for name, value in knobs.items() if value is not None}
    _refuse_strangers(info, given)
    _check_sampling(temperature, top_p)
    chosen = {
        name: KNOBS[name].check(given.get(name))
        for name in info.knobs
        if not KNOBS[name].sampled or temperature > 0.0
    }
    if "lookahead" in chosen:
        _check_depth(chosen["lookahead"])
    for name in ("fanout", "fanout_backup"):
        if chosen.get(name) is not None:
            chosen[name] = _fanout(chosen[name], chosen["lookahead"])
    settings = Settings(
        info.name,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        options=tuple(sorted((n, v) for n, v in chosen.items() if n not in FIELDS)),
        **{name: value for name, value in chosen.items() if name in FIELDS},
    )
    _refuse_contradictions(settings, given)
    if info.check is not None:
        info.check(settings, given)
    return settings


def start(world: World, rows: Rows, settings: Settings) -> Steps:
    """The generator of a configured policy."""
    return find_policy(settings.policy).run(world, rows, settings)


def _refuse_strangers(info: PolicyInfo, given: dict[str, Any]) -> None:
    for knob in given:
        if knob not in KNOBS:
            near = difflib.get_close_matches(knob, KNOBS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingError(f"there is no knob {knob!r}{hint}")
        if knob not in info.knobs:
            having = [p.name for p in POLICIES.values() if knob in p.knobs]
            raise SettingError(
                f"policy {info.name!r} has no {knob} (it would change nothing); "
                f"policies that have: {', '.join(having)}"
            )


def _check_depth(depth: int) -> None:
    if not 1 <= depth <= MAX_LOOKAHEAD:
        raise SettingError(
            f"lookahead must be between 1 and {MAX_LOOKAHEAD}, got {depth}"
            + ("; use policy 'ar' for plain decoding" if depth == 0 else "")
        )


def _check_sampling(temperature: float, top_p: float) -> None:
    if top_p != 1.0 and temperature == 0.0:
        raise SettingError("top_p changes nothing at temperature 0; give a temperature, e.g. 1")
    try:
        Sampling(temperature, top_p)
    except ValueError as error:
        raise SettingError(str(error)) from error


def _refuse_contradictions(settings: Settings, given: dict[str, Any]) -> None:
    for name in given:
        if KNOBS[name].sampled and settings.temperature == 0.0:
            raise SettingError(f"{name} changes nothing at temperature 0; give a temperature, e.g. 1")
    if settings.draft_sampling == "greedy" and settings.scale not in {None, 1.0}:
        raise SettingError("scale changes nothing with a greedy draft; use draft_sampling 'sampled'")
    if settings.stall == "rows" and settings.backup not in {"primary", "auto"}:
        raise SettingError(
            f"stall 'rows' changes nothing with backup {settings.backup!r}, which makes no row wait"
            if settings.backup != "primary-all"
            else "stall 'rows' contradicts backup 'primary-all', which redrafts every row"
        )


def _fanout(given: tuple[int, ...] | int, lookahead: int) -> tuple[int, ...]:
    fanout = (given,) if isinstance(given, int) else given
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
