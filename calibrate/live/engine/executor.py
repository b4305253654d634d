"""Executes operations on a model: hands each to its handler (`calibrate.live.handlers`), keeps the accounts.

Every step is one forward for all rows of the operation, wherever each of them is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

from calibrate.live.accelerators import synchroniser
from calibrate.live.engine.rows import Row
from calibrate.live.engine.runner import Runner
from calibrate.live.engine.verification import agreement
from calibrate.live.errors import AuditError
from calibrate.live.shared_probs import ProbsReader, ProbsWriter
from calibrate.live.wire import StepTime
from policies.operation import Operation, RowOperation, total_tokens

T = TypeVar("T")
Handler: TypeAlias = "Callable[[Executor, Any], Sequence[Any]]"
H = TypeVar("H", bound="Callable[..., Sequence[Any]]")

HANDLERS = "calibrate.live.handlers"
"""Package whose modules are loaded when a handler is first asked for."""


class Handled(NamedTuple):
    """A kind of operation: its class, and what a worker does for it."""

    operation: type[Operation]
    handler: Handler


_HANDLED: dict[str, Handled] = {}


def handles(operation: type[Operation]) -> Callable[[H], H]:
    """Makes a function the handler of an operation: from the executor and it, a reply per row of its view."""

    def register(handler: H) -> H:
        _HANDLED[operation.kind] = Handled(operation, handler)
        return handler

    return register


def handled(kind: str) -> Handled:
    """The class and the handler of a kind of operation; an `AuditError` where there is none."""
    if kind not in _HANDLED:
        for family in iter_modules(import_module(HANDLERS).__path__):
            import_module(f"{HANDLERS}.{family.name}")
    if kind not in _HANDLED:
        raise AuditError(f"no handler for operations of kind {kind!r}")
    return _HANDLED[kind]


class Executor:
    """Runs one operation at a time and stamps each of its model calls.

    Args:
        runner: The model.
        end_token_ids: Tokens that end a request; used by verifications.
        stopped: Polled between steps: whether the running operation was asked to stop.
        writer: Where a draft keeps the distributions of sampled tokens.
        reader: Where a target finds them.

    Attributes:
        steps: Model calls of the last operation, in order.
        say_early: Takes an operation's early result, one per row.
        kept: What handlers keep between operations, by a name of theirs (a datastore, an adapter).
        used_slots: Slots from 0 on of which requests were given some.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        end_token_ids: Collection[int] = (),
        stopped: Callable[[], bool] = lambda: False,
        writer: ProbsWriter | None = None,
        reader: ProbsReader | None = None,
    ) -> None:
        self.runner = runner
        self.end_token_ids = frozenset(end_token_ids)
        self.stopped = stopped
        self.writer = writer
        self.reader = reader or ProbsReader()
        self.steps: list[StepTime] = []
        self.say_early: Callable[[Sequence[Any]], None] = lambda replies: None
        self.kept: dict[str, Any] = {}
        self.used_slots = 0
        self._open: dict[int, tuple[Row, Any]] = {}
        self._synchronise = synchroniser(runner.device)

    @torch.inference_mode()
    def execute(self, operation: Operation) -> tuple[Any, ...]:
        """Do an operation; a reply per row of its view.

        Raises:
            AuditError: The operation does not fit what a slot holds, more was fed than it needs (of a row
                operation, than the replies say), or the probabilities of a sampled token are missing or are
                another's.
        """
        self.steps = []
        replies = tuple(handled(operation.kind).handler(self, operation))
        if isinstance(operation, RowOperation):
            self.audit_fed(total_tokens(replies), type(operation).__name__)
        return replies

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What is kept under a name, made on first use."""
        if name not in self.kept:
            self.kept[name] = make()
        value: T = self.kept[name]
        return value

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

    @contextmanager
    def step(self, name: str, new: Sequence[Sequence[int]]) -> Iterator[None]:
        """Stamp what is done within as one step; see `stamp`."""
        start, fed = time.perf_counter(), self.runner.fed
        yield
        self.stamp(name, start, fed, new)

    def stamp(self, name: str, start: float, fed_before: int, new: Sequence[Sequence[int]]) -> None:
        """Note a step that fed the tokens (or the branches) `new` of each row; waits until it is done."""
        self._synchronise()
        end, fed = time.perf_counter(), self.runner.fed - fed_before
        self.steps.append(StepTime(name, start, end, fed, len(new), max(map(len, new))))

    def audit_fed(self, expected: int, name: str) -> None:
        """A verification that recomputed its prefix would answer the same, only slower: count instead."""
        fed = sum(step.tokens for step in self.steps)
        if fed != expected:
            raise AuditError(f"{name} fed {fed} tokens to the model instead of {expected}")

    def leave_open(self, row: Row, kept: Any) -> None:
        """Keep what decides a row's position, which a verification leaves open; `position` is that one."""
        self._open[row.slot] = (row, kept)

    def left_open(self, row: Row) -> Any:
        """What was kept of an open position of a row, given out once.

        Raises:
            AuditError: The position is not open.
        """
        at, kept = self._open.pop(row.slot, (None, None))
        if at is None or (at.request, at.position) != (row.request, row.position):
            raise AuditError(f"slot {row.slot} has no open position {row.position} of request {row.request}")
        return kept
