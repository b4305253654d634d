"""What crosses the pipe between a device and its worker: integers, strings and tuples of them.

A message names a slot and the row's committed length (`context`); `tail` is the end of the committed
text, so that a worker can check that its cache belongs to it.  KV caches and logits stay in the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tokens: TypeAlias = tuple[int, ...]
Outcome: TypeAlias = tuple[int, int]
"""Number of accepted tokens and the bonus token."""


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Reset a slot and feed its prompt but the last token.  Reply: None."""

    slot: int
    prompt: Tokens


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """Verify `tokens` after the committed text.  Reply: `Verified`."""

    slot: int
    context: int
    tail: Tokens
    tokens: Tokens
    room: int


@dataclass(frozen=True, slots=True)
class DraftRow:
    """Draft `lookahead` tokens; `unseen` is the policy's claim and is audited.  Reply: Tokens."""

    slot: int
    context: int
    tail: Tokens
    lookahead: int
    unseen: int


@dataclass(frozen=True, slots=True)
class PrespeculateRow:
    """Glue and tree over the outcomes of verifying `tokens`.  Reply: `Prepared`."""

    slot: int
    context: int
    tail: Tokens
    tokens: Tokens
    lookahead: int
    fanout: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ContinueRow:
    """Draft `lookahead` tokens past `tokens`.  Reply: `Prepared` with a single outcome."""

    slot: int
    context: int
    tail: Tokens
    tokens: Tokens
    lookahead: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Calibration only: time a forward of a given shape on synthetic KV.  Answer: `ProbeResult`.

    Runs the model call, mask and token selection of the real operations.  Stoppable between repeats.

    Attributes:
        kind: `forward`, new tokens in a chain (a draft step, a verification, a glue step); `tree`, one
            step of `branches` branches; `prefill`, `new_tokens` of a prompt, which select no token.
        batch: Rows, each with a cache of its own; 1 for `tree`.
        new_tokens: Tokens fed per row; unused by `tree`.
        context: Tokens in the cache before (for `tree`: trunk plus what the branches drafted so far).
        branches: Tokens fed by a tree step.
        top: Candidates to rank per position as a glue step does; 0: argmax as all others do.
        repeats: Timed repetitions.
        warmup: Untimed ones before them.
    """

    kind: Literal["forward", "tree", "prefill"] = "forward"
    batch: int = 1
    new_tokens: int = 1
    context: int = 0
    branches: int = 1
    top: int = 0
    repeats: int = 1
    warmup: int = 1

    def __post_init__(self) -> None:
        if min(self.batch, self.new_tokens, self.branches, self.repeats) < 1:
            raise ValueError(f"batch, new_tokens, branches and repeats must be at least 1: {self}")
        if min(self.context, self.top, self.warmup) < 0:
            raise ValueError(f"context, top and warmup must not be negative: {self}")
        if self.kind == "tree" and self.batch != 1:
            raise ValueError(f"a tree probe has batch 1: {self}")


@dataclass(frozen=True, slots=True)
class Echo:
    """Calibration only: send `payload` back, to time a message.  Answer: the payload."""

    payload: Tokens = ()


Message: TypeAlias = PrefillRow | VerifyRow | DraftRow | PrespeculateRow | ContinueRow | Probe | Echo


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a verification after the cuts; see `policies.operations.Verdict`."""

    accepted: int
    emitted: Tokens
    ended: bool
    bonus: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Speculations by outcome, in the order (accepted, rank of the bonus token)."""

    entries: tuple[tuple[Outcome, Tokens], ...]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Seconds of each timed repetition, in order."""

    durations_s: tuple[float, ...]


Reply: TypeAlias = Verified | Prepared | ProbeResult | Tokens | None


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of an operation with its selection of tokens, by the worker's clock.

    Attributes:
        name: `prefill`, `verify`, `feed`, `draft`, `glue`, `tree` or `probe`.
        start: Worker's `perf_counter`, seconds.
        end: Likewise.
        tokens: New tokens that went through the model.
    """

    name: str
    start: float
    end: float
    tokens: int


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
class Failure:
    """From the worker: work `number` raised (-1: loading the model did)."""

    number: int
    start: float
    end: float
    traceback: str


FromWorker: TypeAlias = Ready | Report | Failure
ToWorker: TypeAlias = Work | Stop | Exit
