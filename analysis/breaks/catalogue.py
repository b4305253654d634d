"""The laws that are put to the test, by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from analysis.breaks.comparison import Law
from analysis.breaks.relaxations import RELAXATIONS
from analysis.breaks.sdlaws import SD_LAWS
from analysis.breaks.ssdlaws import SSD_LAWS
from analysis.breaks.systemlaws import SYSTEM_LAWS
from policies.registry import SettingError

LAWS: dict[str, Law] = {law.name: law for law in (*SD_LAWS, *SYSTEM_LAWS, *SSD_LAWS)}


def find_laws(names: Sequence[str]) -> list[Law]:
    """The laws called so, each with all its readings where only the statement is named; all for none.

    Raises:
        SettingError: No such law; the message suggests the nearest name.
    """
    found: dict[str, Law] = {}
    for name in names or LAWS:
        family = {n: law for n, law in LAWS.items() if n == name or n.startswith(f"{name}.")}
        if not family:
            raise SettingError(_unknown("law", name, list(LAWS)))
        found |= family
    return list(found.values())


def find_relaxations(names: Sequence[str]) -> list[str]:
    """The relaxations called so; all for none.

    Raises:
        SettingError: No such relaxation; the message suggests the nearest name.
    """
    for name in names:
        if name not in RELAXATIONS:
            raise SettingError(_unknown("relaxation", name, list(RELAXATIONS)))
    return [name for name in RELAXATIONS if not names or name in names]


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} There are: {', '.join(known)}"
