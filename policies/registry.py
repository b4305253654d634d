"""The policies by name, and how they are configured.

A policy is a module of this package that defines `INFO`, which says what there is to say of it.  It is found
by two lines: `INFO = PolicyInfo(`, and of its configuration `policy: ClassVar[str] = "name"`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

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

T = TypeVar("T")

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


class _Policies(Mapping[str, PolicyInfo]):
    """Looking one up imports its module alone; going over them imports all."""

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The module of each name, by the sources: importing all would take longer than a short command."""
        found = {}
        for file in Path(__file__).parent.glob("*.py"):
            text = file.read_bytes()
            if b"\nINFO = PolicyInfo(" in text:
                name = re.search(rb'\n    policy: ClassVar\[str\] = "([^"]+)"', text)
                found[file.stem if name is None else name[1].decode()] = file.stem
        return found

    @cached_property
    def _order(self) -> list[str]:
        every = [self[name] for name in self._modules]
        return [info.name for info in sorted(every, key=lambda info: (info.order, info.name))]

    def __getitem__(self, name: str) -> PolicyInfo:
        info: PolicyInfo = import_module(f"{__package__}.{self._modules[name]}").INFO
        return info

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._modules)


class _Derived(Mapping[str, T]):
    """What all policies say together, when it is first asked for."""

    def __init__(self, made: Callable[[], dict[str, T]]) -> None:
        self._made = made

    @cached_property
    def _all(self) -> dict[str, T]:
        return self._made()

    def __getitem__(self, name: str) -> T:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


POLICIES: Mapping[str, PolicyInfo] = _Policies()
"""Every policy, in the order in which they build on each other."""

ALIASES: Mapping[str, str] = _Derived(
    lambda: {alias: info.name for info in POLICIES.values() for alias in info.aliases}
)
"""Other names, as on the command line."""

KNOBS: Mapping[str, Knob] = _Derived(
    lambda: {name: each for info in POLICIES.values() for name, each in knobs_of(info.config).items()}
)
"""Every knob of any policy; one that several have is the same in all of them."""


def find_policy(name: str) -> PolicyInfo:
    """The policy called `name` (or an alias of it).

    Raises:
        SettingError: No such policy; the message suggests the nearest name.
    """
    key = name.lower()
    if key in POLICIES or (key := ALIASES.get(key, key)) in POLICIES:
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
    for knob in [knob for knob in given if knob not in info.knobs]:
        if knob not in KNOBS:
            near = difflib.get_close_matches(knob, KNOBS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingError(f"there is no knob {knob!r}{hint}")
        having = [p.name for p in POLICIES.values() if knob in p.knobs]
        raise SettingError(
            f"policy {info.name!r} has no {knob} (it would change nothing); "
            f"policies that have: {', '.join(having)}"
        )
