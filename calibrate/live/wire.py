"""What crosses the pipe between a device and its worker, and how it is written.

An operation and its replies travel by their fields: MessagePack, written and read from the annotations of
their classes, which both ends know.  Nothing is unpickled.  KV caches and logits stay in the worker; the
probabilities that sampled tokens were drawn from travel through shared memory (`transport.shared_probs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from policies.operation import Operation
from policies.values import UNKNOWN, Ints, Speculation, View


class ProbeResult(NamedTuple):
    """Seconds of each timed repetition, in order."""

    durations_s: tuple[float, ...]


NO_ROWS = View((), (), (), (), ())
"""The view of calibration's own operations, which no request has a part in."""


def _encode(value: Any) -> Any:
    """What MessagePack does not know: numpy's numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent to a worker")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def pack(value: Any) -> bytes:
    """A value of dataclasses, named tuples, numbers, strings and tuples of these, as bytes."""
    return _ENCODER.encode(value)


def unpack(frame: bytes, kind: Any) -> Any:
    """The value that was packed, of a type or a union of envelopes."""
    return _decoder(kind).decode(frame)


def pack_operation(operation: Operation) -> bytes:
    """An operation, copied now; a `ValueError` if it is about no row, or of a world without token ids."""
    view = operation.view
    if view is not NO_ROWS:
        if not len(view.slots):
            raise ValueError("an operation needs at least one row")
        if view.tails is None:
            raise ValueError("a live device needs token ids; use Rows(..., keep_tokens=True)")
        speculation = getattr(operation, "speculation", None)
        if speculation is not None:
            _check_ids(view.slots, speculation)
    return pack(operation)


def _check_ids(slots: Ints, speculation: Speculation) -> None:
    """Refuse drafted tokens without ids."""
    for slot in slots:
        ids = speculation.row(slot).tokens
        if UNKNOWN in ids:
            raise ValueError(f"slot {slot} has drafted tokens of unknown id: {ids}")


def unpack_replies(operation: Operation, frame: bytes, *, early: bool = False) -> tuple[Any, ...]:
    """The replies to an operation, one per row, or what they said early."""
    kind: Any = operation.early_reply if early else operation.reply
    replies: tuple[Any, ...] = unpack(frame, tuple[kind, ...])
    return replies


@dataclass(frozen=True, slots=True)
class Probe(Operation):
    """Calibration only: time a step of a given shape, as real operations take it, on synthetic KV.

    Stoppable between repeats.

    Attributes:
        step: `forward`, new tokens in a chain (a draft step, a verification, a glue step); `tree`, one
            step of `branches` branches; `prefill`, `new_tokens` of a prompt, which select no token.
        batch: Rows, each with a cache of its own.
        new_tokens: Tokens fed per row; unused by `tree`.
        context: Tokens in each cache before (for `tree`: trunk plus what the branches drafted so far).
        branches: Branches per row, each fed one token by a tree step.
        repeats: Timed repetitions.
        warmup: Untimed ones before them.
    """

    kind: ClassVar[str] = "probe"
    reply: ClassVar[Any] = ProbeResult
    view: ClassVar[View] = NO_ROWS

    step: Literal["forward", "tree", "prefill"] = "forward"
    batch: int = 1
    new_tokens: int = 1
    context: int = 0
    branches: int = 1
    repeats: int = 1
    warmup: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.new_tokens, self.branches, self.repeats) < 1:
            raise ValueError(f"batch, new_tokens, branches and repeats must be at least 1: {self}")
        if min(self.context, self.warmup) < 0:
            raise ValueError(f"context and warmup must not be negative: {self}")

    def answer(self, replies: Sequence[ProbeResult]) -> ProbeResult:
        """Its seconds."""
        return replies[0]


@dataclass(frozen=True, slots=True)
class Echo(Operation):
    """Calibration only: send `payload` back, to time a message."""

    kind: ClassVar[str] = "echo"
    reply: ClassVar[Any] = int
    view: ClassVar[View] = NO_ROWS

    payload: tuple[int, ...] = ()

    def answer(self, replies: Sequence[int]) -> tuple[int, ...]:
        """The payload."""
        return tuple(replies)


class StepTime(NamedTuple):
    """One model call of an operation with its selection of tokens.

    Attributes:
        name: `prefill`, `verify`, `feed`, `draft`, `glue`, `tree` or `probe`.
        start_s: Begin of the call, by the worker's `perf_counter`; in a `Timing` since the environment began.
        end_s: Its tokens are chosen.
        tokens: New tokens that went through the model, summed over rows, padding not counted.
        rows: Rows that took part.
        width: Most new tokens of a row, to which the others are padded; in a tree step, most branches.
    """

    name: str
    start_s: float
    end_s: float
    tokens: int
    rows: int = 1
    width: int = 1


class Envelope(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What wraps an operation or its replies on the pipe."""


class Work(Envelope, frozen=True):
    """To the worker: do the operation of a kind that is packed in `body`.

    `at_s`: when it was submitted, on an emulated device, in the emulated machine's seconds (as all of these
    messages' times are there).
    """

    number: int
    kind: str
    body: bytes
    at_s: float | None = None


class Stop(Envelope, frozen=True):
    """To the worker: end work `number` at its next step boundary; asked for at `at_s`, see `Work`."""

    number: int
    at_s: float | None = None


class Exit(Envelope, frozen=True):
    """To the worker: end."""


class Ready(Envelope, frozen=True):
    """From the worker: the model is loaded; its vocabulary's size, end tokens and number of parameters."""

    vocabulary: int
    end_token_ids: tuple[int, ...]
    versions: tuple[tuple[str, str], ...]
    parameters: int


class Report(Envelope, frozen=True):
    """From the worker: work `number` is done; `body` holds its replies.

    An emulated device says when that is to be noticed, and when its own work really began and ended.
    """

    number: int
    start: float
    end: float
    steps: tuple[StepTime, ...]
    body: bytes
    noticed_s: float | None = None
    real_s: tuple[float, float] | None = None


class Early(Envelope, frozen=True):
    """From the worker: the early result of work `number`; to be noticed at, see `Report`."""

    number: int
    body: bytes
    noticed_s: float | None = None


class Failure(Envelope, frozen=True):
    """From the worker: work `number` raised (-1: loading the model did)."""

    number: int
    start: float
    end: float
    traceback: str


FromWorker: TypeAlias = Ready | Report | Early | Failure
ToWorker: TypeAlias = Work | Stop | Exit
