"""Executes messages on a `ModelRunner`: hands each to what does it, and keeps the accounts of all.

What an operation means in forwards is said in `calibrate.live.handlers`.  Every step is one forward for all
rows of the message, wherever each of them is.  Only worker processes (and tests) import this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrate.live.accelerators import synchroniser
from calibrate.live.arena import LawReader, LawWriter
from calibrate.live.errors import AuditError
from calibrate.live.handlers import handler_of
from calibrate.live.handlers.draft import draft, go_on
from calibrate.live.handlers.prespeculate import prespeculate
from calibrate.live.handlers.probe import prefill, probe
from calibrate.live.handlers.verify import settle, verify
from calibrate.live.messages import (
    ContinueRows,
    DraftRows,
    Echo,
    Message,
    PrefillRows,
    PrespeculateRows,
    Probe,
    Reply,
    Row,
    RowwiseRows,
    SettleRows,
    Step,
    VerifyRows,
)
from calibrate.live.outcomes import agreement
from calibrate.live.runner import ModelRunner

T = TypeVar("T")


def never() -> bool:
    """A stop request that never comes."""
    return False


class Executor:
    """Runs one message at a time and stamps each of its model calls.

    Args:
        runner: The model.
        end_token_ids: Tokens that end a request; used by verifications.
        stopped: Polled between steps: whether the running message was asked to stop.
        writer: Where a draft keeps the laws of sampled tokens.
        reader: Where a target finds them.

    Attributes:
        steps: Model calls of the last message, in order.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        end_token_ids: Collection[int] = (),
        stopped: Callable[[], bool] = never,
        writer: LawWriter | None = None,
        reader: LawReader | None = None,
    ) -> None:
        self.runner = runner
        self.end_token_ids = frozenset(end_token_ids)
        self.stopped = stopped
        self.writer = writer
        self.reader = reader or LawReader()
        self.steps: list[Step] = []
        self.announce: Callable[[Reply], None] = lambda reply: None
        """Takes what an operation says on its way."""
        self.kept: dict[str, Any] = {}
        """What handlers keep between operations, by a name of theirs (a datastore, an adapter)."""
        self.used_slots = 0
        """Slots from 0 on of which requests were given some."""
        self._open: dict[int, tuple[int, int, Tensor]] = {}
        self._synchronise = synchroniser(runner.device)

    @torch.inference_mode()
    def execute(self, message: Message) -> Reply:
        """Do what a message says.

        Raises:
            AuditError: The message does not fit what a slot holds, more was fed than it needs, or a law of
                sampled tokens is missing or is another's.
        """
        self.steps = []
        match message:
            case PrefillRows():
                prefill(self, message)
                return None
            case VerifyRows():
                return verify(self, message)
            case SettleRows():
                return settle(self, message)
            case DraftRows():
                return draft(self, message)
            case PrespeculateRows():
                return prespeculate(self, message)
            case ContinueRows():
                return go_on(self, message)
            case RowwiseRows():
                return handler_of(message.kind)(self, message)
            case Probe():
                return probe(self, message)
            case Echo():
                return message.payload

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What is kept under a name, made on first use."""
        if name not in self.kept:
            self.kept[name] = make()
        found: T = self.kept[name]
        return found

    def begin(self, slots: Sequence[int]) -> None:
        """Give slots to new requests: what they held is forgotten."""
        for slot in slots:
            self.runner.reset(slot)
            self._open.pop(slot, None)
        self.used_slots = max(self.used_slots, 1 + max(slots))

    def rewind(self, row: Row) -> None:
        """Roll back to the committed text but its last token."""
        keep = agreement(self.runner.held(row.slot), row.context, row.tail)
        if keep != row.context - 1:
            raise AuditError(
                f"slot {row.slot} holds {keep} tokens of a text of {row.context}; {row.context - 1} expected"
            )
        self.runner.rollback(row.slot, keep)

    def stamp(self, name: str, start: float, fed_before: int, new: Sequence[Sequence[int]]) -> None:
        """Note a step that fed the tokens (or the branches) `new` of each row; waits until it is done."""
        self._synchronise()
        end, fed = time.perf_counter(), self.runner.fed - fed_before
        self.steps.append(Step(name, start, end, fed, len(new), max(map(len, new))))

    def audit_fed(self, expected: int, name: str) -> None:
        """A verification that recomputed its prefix would answer the same, only slower: count instead."""
        fed = sum(step.tokens for step in self.steps)
        if fed != expected:
            raise AuditError(f"{name} fed {fed} tokens to the model instead of {expected}")

    def leave_open(self, row: Row, position: int, law: Tensor) -> None:
        """Keep the target's law [V] at a position of a row that a verification does not decide."""
        self._open[row.slot] = (row.request, position, law)

    def open_laws(self, rows: Sequence[Row]) -> Tensor:
        """[R, V] the target's laws at positions that a verification left open; they are given out once.

        Args:
            rows: `position` is the open one.

        Raises:
            AuditError: That position is not open.
        """
        laws = []
        for row in rows:
            request, position, p = self._open.pop(row.slot, (-1, -1, None))
            if p is None or (request, position) != (row.request, row.position):
                raise AuditError(
                    f"slot {row.slot} has no open position {row.position} of request {row.request}"
                )
            laws.append(p)
        return torch.stack(laws)
