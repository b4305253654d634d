"""What simulated operations take and answer: steps, host time and noise; replies from a token model, a
recording or coins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, cast

import msgspec

from hardware_profiles.optime import Host, HostOperation, OperationHost, OperationTiming, base_name
from hardware_profiles.reply_trace import Decisions, Key
from policies.config import SettingError
from policies.operation import (
    Continue,
    Draft,
    Operation,
    Prespeculate,
    RowOperation,
    Settle,
    Verify,
    total_tokens,
)
from policies.values import RowVerdict, Slots, Source, Speculation, Verdict, cut_to
from simulator.costs import Costs, KeyedNoise, Priced, Pricer
from simulator.synthetic import Synthetic
from simulator.tokens import TokenModel

_PRIMARY, _NONE = int(Source.PRIMARY), int(Source.NONE)
DECODE = "decode"
"""What a verification of nothing is called by profiles."""


RowReplies: TypeAlias = "Recorded | Synthetic | Answered"
"""Replies of row operations, without their time."""


class SimulatedCache:
    """Speculation cache of one simulated round (see `policies.protocols.Cache`)."""

    def __init__(self, tokens: TokenModel, operation: Prespeculate | Continue) -> None:
        self.tokens = tokens
        self.operation = operation

    def lookup(self, verdict: Verdict) -> Slots:
        """The rows whose outcome was prepared for."""
        operation = self.operation
        decide = self.tokens.continues if isinstance(operation, Continue) else self.tokens.hits
        return decide(operation.view, operation, verdict)  # type: ignore[arg-type]

    def take(self, verdict: Verdict, hits: Slots) -> Speculation:
        """The prepared speculation of the rows in `hits`."""
        operation = self.operation
        if isinstance(operation, Continue):  # its first token is the outcome's bonus
            return _drafted(operation.width, hits, operation.lookahead - 1)
        return _drafted(operation.width, hits, operation.lookahead, operation.shape)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation; its id stays unknown."""
        return _drafted(self.operation.width, self.operation.view.slots, 1)


@dataclass(slots=True)
class Form:
    """What operations of one kind and size have in common.

    Attributes:
        kind: By which their luck goes.
        rows: That take part.
        size: See `policies.operation.Operation`.
        lead_s: Seconds from submission to the start on an idle device.
        after_s: From the end to the task's event; None where the replies decide.
        warm_s: See `OperationHost.warm_s`; None before it is known how many steps there are.
        pricer: Of those of this size; None before the first one begins.
        luck: Factors of whole operations by device, as far as they began.
    """

    host: OperationHost
    kind: str
    rows: int
    size: tuple[int, ...] | None
    lead_s: float
    after_s: float | None = None
    warm_s: float | None = None
    pricer: Pricer | None = None
    luck: dict[str, Iterator[float]] = field(default_factory=dict)


class TimedWork(msgspec.Struct, frozen=True, gc=False):
    """Work of an operation, s at full rate."""

    priced: Priced
    factor: float = 1.0
    host_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.host_s + self.priced.total_s * self.factor

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Named pieces; an operation may be stopped between them."""
        steps = [(name, seconds * self.factor) for name, seconds in self.priced.steps]
        return [("host", self.host_s), *steps] if self.host_s > 0.0 else steps


class OperationTimes:
    """What operations take: their steps and host time; one object serves all devices of a world.

    Args:
        rows: Replies of row operations, whose steps they tell; None where no policy asks for any.
        timings: What their kinds take in real rounds; others take what `costs` says of their steps, and the
            host time of their cost class.
        noise: Of whole operations whose spread in real rounds is known; None: they take their means.
    """

    def __init__(
        self,
        costs: Costs,
        host: Host,
        *,
        rows: RowReplies | None = None,
        timings: Mapping[str, OperationTiming] | None = None,
        noise: KeyedNoise | None = None,
    ) -> None:
        self.noise = noise
        self.timings = timings or {}
        self.costs = costs
        self.rows = rows
        self.host = host
        self._forms: dict[tuple[str, bool, tuple[int, ...]], Form] = {}
        self._common = OperationHost(submit_s=host.submit_s, report_s=host.report_s)

    def form(self, operation: Operation) -> Form:
        """What is looked up of an operation."""
        size = operation.size
        if size is None:
            return self._formed(operation, None)
        key = (operation.kind, operation.sampling.temperature > 0.0, size)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._formed(operation, size)
            form.after_s = form.host.after_s(operation.tokens_fed)
        return form

    def _formed(self, operation: Operation, size: tuple[int, ...] | None) -> Form:
        kind, rows = operation.kind, len(operation.view.slots)
        if kind == "verify" and size is not None and size[1] == 0:
            kind = DECODE
        if operation.kind in self.timings:
            host = self.timings[operation.kind].host
        elif self.host.operations or self.host.sampled:
            named = cast("HostOperation", DECODE if kind == DECODE else operation.cost_class)
            host = self.host.of(named, sampled=not operation.sampling.greedy)
        else:
            host = self._common
        return Form(host, kind, rows, size, host.lead_s(rows))

    def work(self, device: str, operation: Operation, form: Form, idle_s: float) -> TimedWork:
        """What an operation takes; `idle_s` is how long the device did nothing before."""
        host = form.host
        if form.size is None:
            priced = self._priced(device, operation, host)
            tokens = self._tokens_fed(operation) if host.token_s else 0
            warm_s = host.warm_s(rows=form.rows, calls=priced.count, tokens=tokens)
        else:
            if form.pricer is None:
                form.pricer = self._costs(host).pricer(device, operation, form.size)
            priced = form.pricer(operation.view)
            if form.warm_s is None:
                tokens = operation.tokens_fed
                form.warm_s = host.warm_s(rows=form.rows, calls=priced.count, tokens=tokens)
            warm_s = form.warm_s
        beyond = warm_s + host.waking_s(idle_s) if host.wake else warm_s
        factor = luck = 1.0 if host.spread is None or self.noise is None else self._luck(device, form)
        if beyond < 0.0 or host.scale != 1.0:
            factor *= host.stretch(priced.total_s, beyond)
        return TimedWork(priced, factor, beyond * luck if beyond > 0.0 else 0.0)

    def _costs(self, host: OperationHost) -> Costs:
        """Where the spread of whole operations is known, they vary as such, and not by their forwards."""
        return self.costs if host.spread is None else self.costs.steady

    def _priced(self, device: str, operation: Operation, host: OperationHost) -> Priced:
        """Of an operation whose size alone does not tell."""
        costs = self._costs(host)
        if isinstance(operation, RowOperation):
            return Priced.of(self._row_steps(costs, device, operation))
        return costs.pricer(device, operation, None)(operation.view)

    def _luck(self, device: str, form: Form) -> float:
        """How much longer than in the mean an operation takes."""
        spread = form.host.spread
        assert self.noise is not None and spread is not None
        if form.kind == "prefill":
            return 1.0
        stream = form.luck.get(device)
        if stream is None:
            stream = form.luck[device] = self.noise.stream(f"{device}-{form.kind}", spread)
        return next(stream)

    def _row_steps(self, costs: Costs, device: str, operation: RowOperation) -> list[tuple[str, float]]:
        """The steps of a row operation, as its replies tell them, at the times measured of its kind."""
        replies, timing = self._row_replies, self.timings.get(operation.kind)
        work = [reply.work for reply in replies.replies(operation)]
        if timing is None:
            return costs.row_steps(device, operation.view, work, replies.seconds)
        untimed = {name: s for name, s in replies.seconds.items() if base_name(name) not in timing.steps}
        steps = costs.row_steps(device, operation.view, work, untimed)
        rows = len(operation.view.slots)
        return [(name, timing.step(name).seconds(expected_s, rows)) for name, expected_s in steps]

    def after_s(self, operation: Operation, form: Form) -> float:
        """Seconds from the end to the task's event."""
        if form.after_s is not None:
            return form.after_s
        return form.host.after_s(self._tokens_fed(operation) if form.host.report_token_s else 0)

    def mark_s(self, operation: Operation, form: Form) -> float:
        """Seconds from the step that an early result follows to its event."""
        timing = self.timings.get(operation.kind)
        if timing is None or timing.mark_s is None:
            return self.after_s(operation, form)
        return timing.mark_s

    @property
    def _row_replies(self) -> RowReplies:
        if self.rows is None:
            raise SettingError("this world has neither decisions nor coins for operations stated row by row")
        return self.rows

    def _tokens_fed(self, operation: Operation) -> int:
        if isinstance(operation, RowOperation):
            return total_tokens(self._row_replies.replies(operation))
        return operation.tokens_fed


class Replies(OperationTimes):
    """Times and answers of operations; `more` as `OperationTimes` takes it.

    Args:
        tokens: What is accepted.
    """

    def __init__(self, costs: Costs, tokens: TokenModel, host: Host, **more: Any) -> None:
        super().__init__(costs, host, **more)
        self.tokens = tokens

    def answer(self, operation: Operation, completed: int | None) -> Any:
        """Answer of a finished operation; `completed` steps if it was stopped early, else None."""
        if isinstance(operation, Verify):
            return self.tokens.verify(operation.view, operation)
        if isinstance(operation, Prespeculate | Continue):
            return SimulatedCache(self.tokens, operation)
        if isinstance(operation, Draft):
            length = operation.lookahead if completed is None else completed
            return _drafted(operation.width, operation.view.slots, length, operation.shape)
        if isinstance(operation, RowOperation):
            return operation.answer(self._row_replies.replies(operation))
        return self.tokens.settle(operation) if isinstance(operation, Settle) else None

    def early_answer(self, operation: Operation) -> Any:
        """The early result of an operation that has one."""
        if isinstance(operation, RowOperation):
            return operation.answer(self._row_replies.early(operation))
        return self.answer(operation, None)


def _drafted(
    width: int, rows: Collection[int], length: int, shape: tuple[int, ...] | None = None
) -> Speculation:
    """A speculation of the primary draft for some rows; its ids stay unknown.

    `shape` are the fan-outs that rescaled the distributions its tokens are drawn from, if anything did.
    """
    if len(rows) == width:
        return _all_drafted(width, length, shape)
    return Speculation.primary(width, dict.fromkeys(rows, length), shape)


@lru_cache(maxsize=1024)
def _all_drafted(width: int, length: int, shape: tuple[int, ...] | None) -> Speculation:
    return Speculation((length,) * width, ((_PRIMARY if length else _NONE),) * width, shape=shape)


class Recorded:
    """The replies of a reply trace; `seconds` are those of steps that call no model, by name.

    Args:
        decisions: Of the setting that runs.
        requests: Ids in the trace are below this; the same texts served again have ids that many higher.
    """

    def __init__(self, decisions: Decisions, requests: int) -> None:
        self.decisions = decisions
        self.requests = requests
        self.seconds = decisions.seconds
        self._revived: dict[Key, Any] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """[n] the reply of each row of the operation's view.

        Raises:
            SettingError: The trace does not hold this moment: it is of another setting, or ended earlier.
        """
        replies = []
        for key in self._keys(operation):
            if key not in self._revived:
                self._revived[key] = revive(operation.reply, self._found(self.decisions.replies, key))
            replies.append(self._revived[key])
        if "verdict" not in operation.reply._fields:
            return replies
        rooms = operation.view.rooms
        return [r._replace(verdict=cut_to(r.verdict, room)) for r, room in zip(replies, rooms, strict=True)]

    def early(self, operation: RowOperation) -> list[Any]:
        """[n] the early result of each row."""
        said = [self._found(self.decisions.early, key) for key in self._keys(operation)]
        return [revive(operation.early_reply, each) for each in said]

    def _keys(self, operation: RowOperation) -> list[Key]:
        return [(k, part, request % self.requests, at) for k, part, request, at in operation.reply_keys()]

    def _found(self, replies: Mapping[Key, Any], key: Key) -> Any:
        if key not in replies:
            kind, _, request, position = key
            raise SettingError(
                f"the decision trace of {self.decisions.label!r} has no {kind} of request {request} at "
                f"position {position}: it is of another run; record it again with `calibrate decide`"
            )
        return replies[key]


class Answered:
    """The replies of the one operation that a live worker has just answered.

    Steps of it that call no model take no time: they are not the emulated device's.

    Attributes:
        said: [n] the reply of each row; none yet before it is done.
    """

    def __init__(self) -> None:
        self.said: Sequence[Any] = ()
        self.seconds: Mapping[str, float] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """[n] the reply of each row."""
        return list(self.said)

    def early(self, operation: RowOperation) -> list[Any]:
        """Never asked: a worker answers by itself."""
        raise NotImplementedError("live workers say their early results themselves")


class LivePrices(OperationTimes):
    """What operations take, for live devices that are to last as long: the same code as in the simulation."""

    def __init__(self, costs: Costs, host: Host) -> None:
        self._answered = Answered()
        super().__init__(costs, host, rows=self._answered)

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        """Named pieces of work, s at full rate; an operation may be stopped between them."""
        return self.work(device, operation, self.form(operation), idle_s).steps

    def latency(self, operation: Operation) -> tuple[float, float]:
        """Seconds from submission to the start on an idle device, and from the end to the task's event."""
        form = self.form(operation)
        return form.lead_s, self.after_s(operation, form)

    def early_latency(self, operation: Operation) -> float:
        """See `OperationTimes.mark_s`."""
        return self.mark_s(operation, self.form(operation))

    def answered(self, replies: Sequence[Any]) -> None:
        """The next questions are about an operation with these replies; none: it is not done yet."""
        self._answered.said = replies


def revive(reply: type[Any], plain: Any) -> Any:
    """A named tuple out of the lists that a file keeps."""
    found = reply._make(_tupled(part) for part in plain)
    if "verdict" in found._fields:
        found = found._replace(verdict=RowVerdict._make(found.verdict))
    return found


def _tupled(value: Any) -> Any:
    if type(value) is not list:
        return value
    # Most are of numbers alone, which takes no look at each of them in Python.
    return tuple(map(_tupled, value)) if list in map(type, value) else tuple(value)
