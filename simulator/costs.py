"""What operations cost: what is common to all ways of telling, and constants (design.md, section 4).

`simulator.measured` tells it from a hardware profile, where an operation is a list of forwards, each looked
up in a measured surface:

| operation | forwards |
|---|---|
| prefill | target or draft prefill over the prompt |
| verify | target forward over 1 + K new tokens per row |
| draft | draft forward over the unseen tokens, then K - 1 single steps |
| prespeculate | glue: draft forward over 1 + K tokens; then K tree steps over all branches |
| continue | K draft steps of one token |
| settle | none: host time only |

A tree step over B rows computes, in each of them, as many branches as the widest row has: rows are padded.
That is what a `draft.tree` grid with the axis `batch` says; one without it knows the total alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol

from policies.operation import Continue, Draft, Operation, Prespeculate, Settle, Verify, Work
from policies.values import View
from simulator.machine import role_of


@dataclass(frozen=True, slots=True)
class Effects:
    """Which effects of real hardware are simulated; all off is the world of the papers' laws.

    Attributes:
        verify_width: Verification of K + 1 tokens costs more than one decode step.
        draft_width: Drafting costs more with more tokens at once (glue, branches).
        batch_width: A batch costs more than one row.
        context: Costs depend on the context length; else on the first row's prompt length alone.
        host: Time between a submission and its start, an end and its report.
        overlap: Devices slow each other down while both work.
        jitter: Latencies vary around their mean.
    """

    verify_width: bool = True
    draft_width: bool = True
    batch_width: bool = True
    context: bool = True
    host: bool = True
    overlap: bool = True
    jitter: bool = True


KNOWN = {"measured": "measured", "roofline": "roofline", "paper": "printed", "synthetic": "given"}
"""What a profile's numbers are, by their provenance."""


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A coordinate outside the measured grid of an operation, where its cost is a linear guess.

    Attributes:
        operation: Name in the profile.
        axis: What lay outside.
        value: The farthest coordinate asked for.
        measured_to: The nearest one that the profile has.
        origin: Where the profile's numbers come from (`hardware_profiles.surface.Provenance.kind`).
    """

    operation: str
    axis: str
    value: int
    measured_to: int
    origin: str = "measured"

    def __str__(self) -> str:
        side = "up to" if self.value > self.measured_to else "from"
        axis = self.axis.replace("_", " ")
        return f"{self.operation} at {axis} {self.value} ({KNOWN[self.origin]} {side} {self.measured_to})"


class Costs(Protocol):
    """Seconds of the steps of an operation on a device."""

    @property
    def steady(self) -> Costs:
        """The same costs at their means, without noise."""
        ...

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """Named steps of the operation, in seconds at full rate."""
        ...

    def worked(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """The same of an operation stated row by row, from each row's [n] steps.

        `seconds` are those of steps that feed no token to a model, by name.
        """
        ...


@dataclass(frozen=True, slots=True)
class TextbookCosts:
    """Constant latencies, the setting of the papers' laws.

    Attributes:
        target_s: One target forward, whatever its width.
        draft_s: One draft step, whatever its width; a pre-speculation takes `lookahead` of them.
    """

    target_s: float
    draft_s: float

    @property
    def steady(self) -> TextbookCosts:
        """See `Costs`: they never vary."""
        return self

    def steps(self, device: str, operation: Operation) -> list[tuple[str, float]]:
        """See `Costs`."""
        match operation:
            case Verify():
                return [("verify", self.target_s)]
            case Settle():
                return []
            case Draft() | Continue() | Prespeculate():
                return [("draft", self.draft_s)] * operation.lookahead
            case _:
                return [("prefill", 0.0)]

    def worked(
        self, device: str, view: View, work: Sequence[Work], seconds: Mapping[str, float]
    ) -> list[tuple[str, float]]:
        """See `Costs`: a call of a model costs the same whatever its width."""
        model = self.target_s if role_of(device) == "target" else self.draft_s
        steps = []
        for parts in zip_longest(*work):
            there = [part for part in parts if part is not None]
            name, fed = max(there, key=itemgetter(1))
            share = share_of(name)
            if share is not None:
                steps.append((name, share * model))
            else:
                steps.append((name, model if fed else seconds.get(name, 0.0)))
        return steps


def share_of(step: str) -> float | None:
    """Share of a model call that a step called e.g. `early:0.4` is; None for a whole call or none at all.

    The pieces of a call follow each other; the first one feeds its tokens, the others feed none.
    """
    _, _, share = step.partition(":")
    return float(share) if share else None
