"""What wraps a message on the pipe: orders to a worker, and what it sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from calibrate.live.messages import Message, Reply, Step, Tokens


@dataclass(frozen=True, slots=True)
class Work:
    """To the worker: do this."""

    number: int
    message: Message


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker: end work `number` at its next step boundary."""

    number: int


@dataclass(frozen=True, slots=True)
class Exit:
    """To the worker: end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the model is loaded.

    Attributes:
        vocabulary: The model's `vocab_size`.
        end_token_ids: Its end tokens, from the generation config or the config.
        versions: Of torch and transformers.
        parameters: Number of the model's parameters.
    """

    vocabulary: int
    end_token_ids: Tokens
    versions: tuple[tuple[str, str], ...]
    parameters: int


@dataclass(frozen=True, slots=True)
class Report:
    """From the worker: work `number` is done."""

    number: int
    start: float
    end: float
    steps: tuple[Step, ...]
    reply: Reply


@dataclass(frozen=True, slots=True)
class Mark:
    """From the worker: what work `number` says on its way."""

    number: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Failure:
    """From the worker: work `number` raised (-1: loading the model did)."""

    number: int
    start: float
    end: float
    traceback: str


FromWorker: TypeAlias = Ready | Report | Mark | Failure
ToWorker: TypeAlias = Work | Stop | Exit
