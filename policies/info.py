"""What the registry says of a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from policies.protocols import Steps, World
from policies.rows import Rows
from policies.settings import Settings

WorldName: TypeAlias = Literal["simulated", "live"]

EXACT = "exact on the on-path trace"
DECISIONS = "exact on a decision trace of the setting"


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
        worlds: Where it runs.
        aliases: Other names it goes by.
        check: Refuses settings that contradict each other: (settings, knobs given by name) to SettingError.
    """

    name: str
    paper: str
    predicts: str
    drafts: str
    on_miss: str
    verifies: str
    knobs: tuple[str, ...]
    run: Callable[[World, Rows, Settings], Steps]
    replay: str = EXACT
    needs_draft: bool = True
    worlds: tuple[WorldName, ...] = ("simulated", "live")
    aliases: tuple[str, ...] = ()
    check: Callable[[Settings, Mapping[str, Any]], None] | None = None

    @property
    def needs_decisions(self) -> bool:
        """Whether its replay takes a decision trace instead of a path recorded by plain decoding."""
        return self.replay == DECISIONS
