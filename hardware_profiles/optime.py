"""The model of host time: what an operation takes beyond its forwards, in real rounds.

    lead     = submit_s + submit_row_s (rows - 1)
    beyond   = extra_s + row_s (rows - 1) + wake min(idle, idle_cap_s) + step_s calls + token_s tokens
    work     = max(0, beyond) + stretch * (what the surfaces say of its forwards)
    after    = report_s + report_token_s tokens

A probe repeats one warm forward; in a round a worker wakes up with cold caches, builds masks and answers,
and the policy thinks in between.  `calibrate.hostfit` fits these coefficients on live runs and the simulator
runs them: both call the methods of `OperationHost`.  An operation of a policy that is replayed from recorded
replies has coefficients of its own, and so has each of its steps (`OperationTiming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from hardware_profiles.records import Frozen, Positive, Seconds, field
from hardware_profiles.surface import Quantiles, RoleName, check_quantiles

LEAST_SHARE = 0.2
"""Least part of its forwards' time that an operation takes, whatever its fit takes off."""


class OperationHost(Frozen, frozen=True, kw_only=True):
    """What one operation costs beyond its forwards, in real rounds, s.

    Attributes:
        submit_s: From the report that the controller acted on to the start of the work on an idle device:
            the policy's own time and the message.
        report_s: From the end of the work to the controller's learning of it.
        submit_row_s: Further time until the start for each row of the batch after the first.
        report_token_s: Further time until the report for each token that went through its forwards: an
            answer grows with them.
        extra_s: Work beyond its forwards; negative where the fit says so.
        row_s: Further work for each row of the batch after the first.
        step_s: Further work for each of its forwards: where tokens are sampled, drawing has a price per
            step besides that per token.
        token_s: Further work for each token that goes through its forwards, padding not counted: choosing a
            token in each branch, and drawing it where tokens are sampled.
        scale: Seconds of its forwards in real rounds per second that the grids say.
        wake: Seconds of further work per second that the device idled before: caches grow cold.
        idle_cap_s: Idling beyond which it costs no more: what could grow cold has.
        spread: What whole operations took in real rounds over the mean of their kind, at `LEVELS`; None: they
            vary as their forwards do in probes.  In rounds the forwards of an operation are slow together,
            and devices that wait for each other wait for whichever is.
    """

    submit_s: Seconds = 0.0
    report_s: Seconds = 0.0
    submit_row_s: Seconds = 0.0
    report_token_s: Seconds = 0.0
    extra_s: float = 0.0
    row_s: float = 0.0
    step_s: Seconds = 0.0
    token_s: Seconds = 0.0
    scale: Positive = 1.0
    wake: Seconds = 0.0
    idle_cap_s: Seconds = 0.0
    spread: Quantiles | None = None

    def __post_init__(self) -> None:
        """Check what types do not say."""
        check_quantiles("spread", self.spread)

    def beyond_s(self, *, rows: int, calls: int, tokens: int, idle_s: float) -> float:
        """Work beyond its forwards, s; may be negative.

        `tokens` go through its `calls` forwards, padding not counted; before that its device was idle for
        `idle_s`.
        """
        return self.warm_s(rows=rows, calls=calls, tokens=tokens) + self.waking_s(idle_s)

    def warm_s(self, *, rows: int, calls: int, tokens: int) -> float:
        """Work beyond its forwards on a device that was not idle, s."""
        return self.extra_s + self.row_s * (rows - 1) + self.step_s * calls + self.token_s * tokens

    def waking_s(self, idle_s: float) -> float:
        """Further work after idling, s."""
        return self.wake * min(idle_s, self.idle_cap_s)

    def stretch(self, expected_s: float, beyond_s: float) -> float:
        """Factor on its forwards: `scale`, less what a negative `beyond_s` takes off all of them alike.

        That is never more than `1 - LEAST_SHARE` of them: a fit of long operations says little of short ones.
        """
        if beyond_s >= 0.0 or expected_s <= 0.0:
            return self.scale
        return self.scale * max(LEAST_SHARE, 1.0 + beyond_s / (self.scale * expected_s))

    def work_s(self, expected_s: float, *, rows: int, calls: int, tokens: int, idle_s: float) -> float:
        """Its work from start to end, s, of which its forwards are expected to take `expected_s`."""
        beyond = self.beyond_s(rows=rows, calls=calls, tokens=tokens, idle_s=idle_s)
        return max(0.0, beyond) + self.stretch(expected_s, beyond) * expected_s

    def lead_s(self, rows: int) -> float:
        """From the report that the policy acted on to the start of the work, s."""
        return self.submit_s + self.submit_row_s * (rows - 1)

    def after_s(self, tokens: int) -> float:
        """From the end of the work to the policy's learning of it, s."""
        return self.report_s + self.report_token_s * tokens


HostOperation: TypeAlias = Literal["decode", "verify", "settle", "draft", "prespeculate", "continue"]


class Host(Frozen, frozen=True, kw_only=True):
    """What the controller adds to the devices' own time, s.

    Attributes:
        message_latency_s: Time of one message between controller and worker, at `LEVELS`.
        operations: What differs by operation; `decode` is a verification of nothing, `settle` has no
            forward at all.
        sampled: The same in runs at a temperature above 0; an operation that is not here costs what
            `operations` says.
    """

    submit_s: Seconds = 0.0
    report_s: Seconds = 0.0
    message_latency_s: Quantiles | None = None
    operations: Mapping[HostOperation, OperationHost] = field(default_factory=dict)
    sampled: Mapping[HostOperation, OperationHost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what types do not say."""
        check_quantiles("message_latency_s", self.message_latency_s)

    def of(self, operation: HostOperation, *, sampled: bool = False) -> OperationHost:
        """What an operation costs; what all have in common if nothing is said of it."""
        stated = (self.sampled.get(operation) if sampled else None) or self.operations.get(operation)
        return stated or OperationHost(submit_s=self.submit_s, report_s=self.report_s)


class StepTiming(Frozen, frozen=True, kw_only=True):
    """What the steps of one name take.

    Attributes:
        factor: Seconds per second that the profile says.
        extra_s: Seconds of each step beyond that; all there is of a step that calls no model.
        row_s: Seconds of each step for each row after the first, beyond what the profile says, too.
    """

    factor: Positive = 1.0
    extra_s: Seconds = 0.0
    row_s: Seconds = 0.0

    def seconds(self, expected_s: float, rows: int = 1, calls: int = 1) -> float:
        """Seconds of `calls` steps over `rows` rows, of which the profile says `expected_s` in all."""
        return calls * (self.extra_s + self.row_s * (rows - 1)) + self.factor * expected_s


AS_EXPECTED = StepTiming()


class OperationTiming(Frozen, frozen=True, kw_only=True):
    """What the operations of one kind take.

    Attributes:
        host: Their own host time, in place of that of their cost class.
        steps: By name, without a share (`early` of `early:0.4`); others take what the profile says.
        mark_s: From the end of the step that an early result follows to the policy's hearing of it; None: as
            long as a report takes.
    """

    host: OperationHost = OperationHost()
    steps: Mapping[str, StepTiming] = field(default_factory=dict)
    mark_s: Seconds | None = None

    def step(self, name: str) -> StepTiming:
        """What the steps called `name` take, with or without a share."""
        return self.steps.get(base_name(name), AS_EXPECTED)


class StepTotal(NamedTuple):
    """The steps of one name in an operation.

    Attributes:
        expected_s: What the profile says of them together.
        seconds: What they took together, at full rate.
    """

    name: str
    calls: int
    expected_s: float
    seconds: float


class Timed(NamedTuple):
    """One operation of a live run.  Seconds are at full rate and at the machine's usual speed.

    Attributes:
        cost_class: The built-in operation whose host time it would have without timing of its own.
        batch: Rows served at once in its run.
        tokens: Tokens that went through the model, padding not counted.
        lead_s: From what the policy acted on to its start; -1 where it waited for other work.
        idle_s: How long its device did nothing before.
        mark_s: From the end of the step that its early result follows to the policy's hearing of it; -1 where
            it has none, or where that was not kept.
    """

    kind: str
    role: RoleName
    cost_class: str
    batch: int
    rows: int
    tokens: int
    lead_s: float
    work_s: float
    report_s: float
    idle_s: float
    steps: tuple[StepTotal, ...]
    mark_s: float = -1.0

    @property
    def calls(self) -> int:
        """Number of its steps."""
        return sum(step.calls for step in self.steps)


def timed_from(plain: Any) -> Timed:
    """An operation's times from the lists that a file keeps."""
    place = Timed._fields.index("steps")
    if not isinstance(plain, list) or len(plain) < place + 1 or not isinstance(plain[place], list):
        raise ValueError(f"timing: expected a list of {len(Timed._fields)} values, got {plain!r:.80}")
    steps = tuple(StepTotal._make(step) for step in plain[place])
    return Timed._make([*plain[:place], steps, *(plain[place + 1 :] or [-1.0])])


def base_name(step: str) -> str:
    """Name of a step without its share."""
    return step.partition(":")[0]


def share_of(step: str) -> float | None:
    """Share of a model call that a step called e.g. `early:0.4` is; None for a whole call or none at all.

    The pieces of a call follow each other; the first one feeds its tokens, the others feed none.
    """
    _, _, share = step.partition(":")
    return float(share) if share else None
