"""Operations stated row by row, whose content only the models themselves can tell.

The outcome of a verified chain follows from a path recorded by plain decoding (docs/replay.md).  What a draft
puts into a tree, what a datastore returns, which of several candidates survives, does not: it is fed by
tokens off that path.  Such an operation is a `Rowwise`: each row asks for something and gets a reply of its
own, made of integers, strings and tuples of them.  That makes it travel to a worker as it is, and makes a run
of the policy replayable: a *decision trace* keeps every row's reply by (kind, part, request, position)
(`hardware_profiles.decisions`), and the simulated world answers with it, in any batch and on any profile.

A new operation is a subclass, a handler in `calibrate/live/handlers`, and nothing else:

    @dataclass(frozen=True, slots=True)
    class DraftTree(Rowwise):
        kind: ClassVar[str] = "drafttree"
        like: ClassVar[Like] = "draft"
        reply: ClassVar[type[RowReply]] = TreeReply
        shape: tuple[int, ...] = ()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from policies.operations import UNKNOWN, Verdict, View
from policies.sampling import GREEDY, Sampling

Work: TypeAlias = tuple[tuple[str, int], ...]
"""What a row's share of an operation was: (name of a step, tokens of the row that went through the model)."""
Like: TypeAlias = Literal["verify", "settle", "draft", "prespeculate", "continue"]


class RowReply(Protocol):
    """One row's answer: a named tuple of integers, strings and tuples of them, with a field `work`."""

    @property
    def work(self) -> Work:
        """The row's steps, in order; the i-th steps of all rows of an operation are one model call."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


class RowVerdict(NamedTuple):
    """A row's verification after the cuts at the end token and the limit; see `operations.Verdict`.

    Attributes:
        accepted: Drafted tokens accepted and emitted.
        emitted: Ids emitted, the bonus token among them.
        ended: Whether the row emitted its last token.
        bonus: The bonus token; UNKNOWN if it was cut off.
    """

    accepted: int
    emitted: tuple[int, ...]
    ended: bool
    bonus: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Rowwise:
    """An operation stated row by row.  Answer: `RowAnswers`.

    Attributes:
        kind: Its name, in timelines and recordings.
        like: The operation whose host time and contention it shares.
        reply: Type of a row's reply.
        mark: Type of what a row says on the way, where `announce` is set; None: nothing.
        announced_after: Step after which it does.
        view: The rows.
        width: B, slots of the batch.
        asks: [n] what each row of the view asks for: integers, strings and tuples of them.
        sampling: How tokens are chosen.
        part: Tells operations of one kind about the same position of a request apart.
        announce: Whether the task's mark fires.
    """

    kind: ClassVar[str] = ""
    like: ClassVar[Like] = "verify"
    reply: ClassVar[type[Any]]
    mark: ClassVar[type[Any] | None] = None
    announced_after: ClassVar[str] = ""

    view: View
    width: int
    asks: tuple[Any, ...]
    sampling: Sampling = GREEDY
    part: int = 0
    announce: bool = False

    def __post_init__(self) -> None:
        if len(self.asks) != len(self.view.slots):
            raise ValueError(f"{self.kind}: {len(self.view.slots)} rows, {len(self.asks)} asks")

    @property
    def options(self) -> dict[str, Any]:
        """What holds for all rows: the fields that a subclass adds."""
        common = {field.name for field in fields(Rowwise)}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}

    def moments(self) -> list[tuple[str, int, int, int]]:
        """[n] (kind, part, request, position) of each row."""
        view = self.view
        return [
            (self.kind, self.part, request, position)
            for request, position in zip(view.requests.tolist(), view.positions.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class RowAnswers:
    """The replies of a `Rowwise`, by slot.

    Attributes:
        width: B.
        rows: Slot to reply.
    """

    width: int
    rows: Mapping[int, Any]

    def __getitem__(self, slot: int) -> Any:
        return self.rows[slot]


def verdict_of(width: int, rows: Mapping[int, RowVerdict]) -> Verdict:
    """The batch's verdict, from those of its rows by slot."""
    accepted, emitted = np.zeros((2, width), dtype=np.int64)
    bonus = np.full(width, UNKNOWN, dtype=np.int64)
    ended = np.zeros(width, dtype=np.bool_)
    tokens: list[tuple[int, ...]] = [()] * width
    for slot, row in rows.items():
        accepted[slot], emitted[slot] = row.accepted, len(row.emitted)
        ended[slot], bonus[slot], tokens[slot] = row.ended, row.bonus, tuple(row.emitted)
    return Verdict(accepted, emitted, ended, bonus, tuple(tokens))


def joined(first: RowVerdict, then: RowVerdict, room: int) -> RowVerdict:
    """A verification that left its end open, and what settled it, as one.

    Args:
        first: What was emitted before the open position.
        then: What was emitted from there on.
        room: Tokens that the row might emit when the round began; a recording may have been given more.
    """
    whole = RowVerdict(
        first.accepted + then.accepted, (*first.emitted, *then.emitted), then.ended, then.bonus
    )
    return cut_to(whole, room)


def cut_to(verdict: RowVerdict, room: int) -> RowVerdict:
    """A verdict with no more tokens than there is room for, with which the row ends."""
    if len(verdict.emitted) < room:
        return verdict
    emitted = verdict.emitted[:room]
    bonus = verdict.bonus if len(emitted) == len(verdict.emitted) else UNKNOWN
    return RowVerdict(min(verdict.accepted, len(emitted)), emitted, True, bonus)


def total_tokens(replies: Sequence[RowReply]) -> int:
    """Tokens that went through the model, of all rows together."""
    return sum(tokens for reply in replies for _, tokens in reply.work)
