"""The policies by name, and how they are configured.

A policy is a module of this package that defines `INFO`, which says what there is to say of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import import_module, resources
from typing import Any

from policies.config import (
    DECISIONS,
    DEFAULT_LOOKAHEAD,
    EXACT,
    MAX_LOOKAHEAD,
    Knob,
    PolicyInfo,
    SettingError,
    Settings,
    knobs_of,
)
from policies.protocols import Steps, World
from policies.rows import Rows
from policies.sampling import Sampling

__all__ = [
    "ALIASES",
    "DECISIONS",
    "DEFAULT_LOOKAHEAD",
    "EXACT",
    "KNOBS",
    "MAX_LOOKAHEAD",
    "POLICIES",
    "PolicyInfo",
    "SettingError",
    "Settings",
    "configure",
    "find_policy",
    "start",
]


def _policies() -> Iterator[PolicyInfo]:
    """The policies of this package.

    Their source tells them from the other modules: importing all would import what commands need, too, and
    what imports this module.
    """
    for file in resources.files(__package__).iterdir():
        if file.name.endswith(".py") and "\nINFO = PolicyInfo(" in file.read_text(encoding="utf-8"):
            yield import_module(f"{__package__}.{file.name.removesuffix('.py')}").INFO


POLICIES: dict[str, PolicyInfo] = {
    info.name: info for info in sorted(_policies(), key=lambda info: (info.order, info.name))
}
"""Every policy, in the order in which they build on each other."""

ALIASES: dict[str, str] = {alias: info.name for info in POLICIES.values() for alias in info.aliases}
"""Other names, as on the command line."""

KNOBS: dict[str, Knob] = {
    name: each for info in POLICIES.values() for name, each in knobs_of(info.config).items()
}
"""Every knob of any policy; one that several have is the same in all of them."""


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

    A single `fanout` number means the same at every position; a knob that is None is as not given.

    Raises:
        SettingError: Unknown policy or knob; a knob the policy does not have, or one that changes nothing at
            temperature 0 (none is silently ignored); a value out of its domain.
    """
    info = find_policy(policy)
    given = {name: value for name, value in knobs.items() if value is not None}
    given = {**info.implied.get(policy.lower(), {}), **given}
    _refuse_strangers(info, given)
    if top_p != 1.0 and temperature == 0.0:
        raise SettingError("top_p changes nothing at temperature 0; give a temperature, e.g. 1")
    try:
        Sampling(temperature, top_p)
    except ValueError as error:
        raise SettingError(str(error)) from error
    known = knobs_of(info.config)
    checked = {name: known[name].check(value) for name, value in given.items()}
    idle = [name for name in given if known[name].sampled and temperature == 0.0]
    config = info.config.of(**{name: value for name, value in checked.items() if name not in idle})
    for name in idle:
        raise SettingError(f"{name} changes nothing at temperature 0; give a temperature, e.g. 1")
    settings = Settings(config, temperature, top_p, seed)
    config.check(settings.sampling)
    return settings


def start(world: World, rows: Rows, settings: Settings) -> Steps:
    """The generator of a configured policy."""
    return find_policy(settings.policy).run(world, rows, settings.config, settings.sampling)


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
