"""Settings with open ends: what a user asks for, whether it makes sense, and what was decided of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from policies.registry import MAX_LOOKAHEAD, SettingError, Settings, configure, find_policy
from simulator.run import Scenario
from simulator.shapes import SHAPES, Shape

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = get_args(Auto)[0]


@dataclass(frozen=True, slots=True)
class Wish:
    """A setting with open ends: the knobs of `policies.registry.configure`, and what to fill in.

    Attributes:
        policy: Name in the registry.
        lookahead: K; `auto`: PEARL's balanced one, else the fastest.
        shape: How the budget is spread over the outcomes; None with explicit fan-outs, or `exact` where a
            budget is given.
        budget: Outcomes per row; `auto` (the default with a shape): as many as can be prepared for
            while the target verifies.
        knobs: All other knobs, as `configure` takes them; `backup` may be `auto`.
    """

    policy: str = "saguaro"
    lookahead: int | Auto | None = None
    shape: Shape | None = None
    budget: int | Auto | None = None
    knobs: dict[str, Any] = field(default_factory=dict)

    @property
    def shaped(self) -> bool:
        """Whether fan-outs are to be computed."""
        return self.shape is not None or self.budget is not None


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision.

    Attributes:
        knob: What was decided.
        value: The decision.
        why: For people.
        numbers: What it rests on.
    """

    knob: str
    value: Any
    why: str
    numbers: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; infinities as None."""
        finite = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in self.numbers.items()
        }
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"knob": self.knob, "value": value, "why": self.why, "numbers": finite}


@dataclass(frozen=True, slots=True)
class Resolution:
    """A setting that can run, and what was decided on the way to it."""

    settings: Settings
    choices: tuple[Choice, ...]


def check_wish(wish: Wish, *, find_switch: bool = False) -> None:
    """Refuse what no scenario could make sense of.

    Raises:
        SettingError: As for `resolve`.
    """
    info = find_policy(wish.policy)
    if wish.shaped and "fanout" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no fan-out (a shape or budget would change nothing)")
    if wish.lookahead == AUTO and "lookahead" not in info.knobs:
        raise SettingError(f"policy {info.name!r} has no lookahead (it would change nothing)")
    if wish.shape is not None and wish.shape not in SHAPES:
        raise SettingError(f"unknown shape {wish.shape!r}; choices: {', '.join(SHAPES)}")
    if isinstance(wish.budget, int) and wish.budget < 1:
        raise SettingError(f"budget must be at least 1, got {wish.budget}")
    fanouts = [wish.knobs.get(knob) for knob in ("fanout", "fanout_backup")]
    if wish.shaped and any(f is not None for f in fanouts):
        raise SettingError("give either fan-outs or a shape and budget for them, not both")
    if wish.lookahead == AUTO and any(f is not None and len(f) > 1 for f in fanouts):
        raise SettingError(
            "one fan-out per position needs a lookahead; with lookahead 'auto' give a single one"
        )
    if find_switch and wish.knobs.get("backup") != AUTO:
        raise SettingError("the switch of backups is looked for with backup 'auto' only")
    configure(wish.policy, lookahead=depth_of(wish), **wish.knobs)


def depth_of(wish: Wish) -> int | None:
    """A lookahead to configure with while it is open: the default, or one with room for every sequence."""
    if isinstance(wish.lookahead, int):
        return wish.lookahead
    return MAX_LOOKAHEAD if wish.lookahead == AUTO and wish.knobs.get("sequences") else None


def refuse_idle(scenario: Scenario, wish: Wish) -> None:
    """Refuse options that would change nothing."""
    backup = wish.knobs.get("backup")
    if find_policy(wish.policy).name == "saguaro" and backup in {None, "primary", "primary-all"}:
        name = backup or "primary"
        for knob, idle in (("fanout_backup", None), ("first", "primary")):
            if wish.knobs.get(knob) not in {None, idle}:
                raise SettingError(
                    f"{knob} changes nothing with backup {name!r}, after which the draft's own tokens are "
                    "verified; choose another backup"
                )
    if wish.knobs.get("stall") == "rows" and scenario.batch == 1:
        raise SettingError("stall 'rows' changes nothing at batch 1: there is no other row to go on")
    if scenario.textbook is not None and (wish.knobs.get("draft_devices") or 1) > 1:
        raise SettingError("draft_devices change nothing with constant times: a tree costs what a step costs")


def first_backup(wish: Wish) -> str | None:
    """The backup to search other knobs with: the wished one, or the primary while it is open."""
    backup = wish.knobs.get("backup")
    return "primary" if backup == AUTO else backup
