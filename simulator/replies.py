"""What simulated operations take and answer: steps, host time and noise; replies from a token model, a
recording or coins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from hardware_profiles.optime import Host, HostOperation, OperationHost, OperationTiming, base_name
from hardware_profiles.reply_trace import Decisions, Key
from policies.config import SettingError
from policies.operation import (
    Continue,
    Draft,
    Operation,
    Prefill,
    Prespeculate,
    RowOperation,
    Settle,
    Verify,
    total_tokens,
)
from policies.values import BoolArray, RowVerdict, Source, Speculation, Verdict, cut_to
from simulator.costs import Costs, KeyedNoise
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

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for."""
        operation = self.operation
        decide = self.tokens.continues if isinstance(operation, Continue) else self.tokens.hits
        return decide(operation.view, operation, verdict)  # type: ignore[arg-type]

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits`."""
        operation = self.operation
        if isinstance(operation, Continue):  # its first token is the outcome's bonus
            return _drafted(hits, operation.lookahead - 1)
        return _drafted(hits, operation.lookahead, operation.shape)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation; its id stays unknown."""
        return _drafted(_marked(self.operation), 1)


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
        self._hosts: dict[tuple[str, bool], OperationHost] = {}
        self._common = None if host.operations or host.sampled else host.of("verify")

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        """Named pieces of work, s at full rate; an operation may be stopped between them.

        `idle_s` is how long the device did nothing before.
        """
        host = self._host_of(operation)
        # Where the spread of whole operations is known, they vary as such, and not by their forwards.
        costs = self.costs if host.spread is None else self.costs.steady
        if isinstance(operation, RowOperation):
            steps = self._row_steps(costs, device, operation)
        else:
            steps = costs.steps(device, operation)
        beyond = host.beyond_s(
            rows=len(operation.view.slots),
            calls=len(steps),
            tokens=self._tokens_fed(operation) if host.token_s else 0,
            idle_s=idle_s,
        )
        factor = luck = self._luck(device, operation, host)
        if beyond < 0.0 or host.scale != 1.0:
            factor *= host.stretch(sum(seconds for _, seconds in steps), beyond)
        if factor != 1.0:
            steps = [(name, seconds * factor) for name, seconds in steps]
        return [("host", beyond * luck), *steps] if beyond > 0.0 else steps

    def _luck(self, device: str, operation: Operation, host: OperationHost) -> float:
        """How much longer than in the mean an operation takes."""
        if self.noise is None or host.spread is None or isinstance(operation, Prefill):
            return 1.0
        kind = DECODE if _is_decode(operation) else operation.kind
        return self.noise.factor(f"{device}-{kind}", host.spread)

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

    def latency(self, operation: Operation) -> tuple[float, float]:
        """Seconds from submission to the start on an idle device, and from the end to the task's event."""
        host = self._host_of(operation)
        tokens = self._tokens_fed(operation) if host.report_token_s else 0
        return host.lead_s(len(operation.view.slots)), host.after_s(tokens)

    def early_latency(self, operation: Operation) -> float:
        """Seconds from the step that an early result follows to its event."""
        timing = self.timings.get(operation.kind)
        if timing is None or timing.mark_s is None:
            return self.latency(operation)[1]
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

    def _host_of(self, operation: Operation) -> OperationHost:
        if operation.kind in self.timings:
            return self.timings[operation.kind].host
        if self._common is not None:
            return self._common
        key = (DECODE if _is_decode(operation) else operation.cost_class, not operation.sampling.greedy)
        if key not in self._hosts:
            self._hosts[key] = self.host.of(cast("HostOperation", key[0]), sampled=key[1])
        return self._hosts[key]


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
        match operation:
            case RowOperation():
                return operation.answer(self._row_replies.replies(operation))
            case Verify():
                return self.tokens.verify(operation.view, operation)
            case Settle():
                return self.tokens.settle(operation)
            case Draft():
                length = operation.lookahead if completed is None else completed
                return _drafted(_marked(operation), length, operation.shape)
            case Prespeculate() | Continue():
                return SimulatedCache(self.tokens, operation)
        return None

    def early_answer(self, operation: Operation) -> Any:
        """The early result of an operation that has one."""
        if isinstance(operation, RowOperation):
            return operation.answer(self._row_replies.early(operation))
        return self.answer(operation, None)


def _marked(operation: Operation) -> BoolArray:
    """[B] mask of an operation's rows."""
    marked = np.zeros(operation.width, dtype=np.bool_)
    marked[operation.view.slots] = True
    return marked


def _drafted(rows: BoolArray, length: int, shape: tuple[int, ...] | None = None) -> Speculation:
    """A speculation of the primary draft for the marked rows; its ids stay unknown.

    `shape` are the fan-outs that rescaled the distributions its tokens are drawn from, if anything did.
    """
    return Speculation(rows * length, rows * (_PRIMARY if length else _NONE), shape=shape)


def _is_decode(operation: Operation) -> bool:
    return isinstance(operation, Verify) and not operation.speculation.lengths[operation.view.slots].any()


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
        rooms = operation.view.rooms.tolist()
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
