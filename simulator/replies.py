"""What simulated operations take and answer: steps, host time and noise; replies from a token model, a
recording or coins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from hardware_profiles.optime import Host, HostOperation, OperationHost, OperationTiming, base_name
from hardware_profiles.reply_trace import Decisions
from hardware_profiles.surface import varied
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
from policies.values import BoolArray, RowVerdict, Source, Speculation, Verdict, View, cut_to
from simulator.costs import Costs, KeyedNoise
from simulator.tokens import TokenModel

_PRIMARY, _NONE = int(Source.PRIMARY), int(Source.NONE)


class SimulatedCache:
    """Speculation cache of one simulated round (see `policies.protocols.Cache`).

    Args:
        tokens: Decides which outcomes were prepared for.
        operation: What made the cache.
    """

    def __init__(self, tokens: TokenModel, operation: Prespeculate | Continue) -> None:
        self.tokens = tokens
        self.operation = operation

    def lookup(self, verdict: Verdict) -> BoolArray:
        """[B] whether each row's outcome was prepared for."""
        operation = self.operation
        if isinstance(operation, Continue):
            return self.tokens.continues(operation.view, operation, verdict)
        return self.tokens.hits(operation.view, operation, verdict)

    def take(self, verdict: Verdict, hits: BoolArray) -> Speculation:
        """The prepared speculation of the rows marked in `hits`."""
        operation = self.operation
        if isinstance(operation, Continue):  # its first token is the outcome's bonus
            return _drafted(hits, operation.lookahead - 1)
        return _drafted(hits, operation.lookahead, operation.shape)

    def opening(self) -> Speculation:
        """The first token drafted past each row's speculation; its id stays unknown."""
        operation = self.operation
        return _drafted(_marked(operation.view, operation.width), 1)


class Replies:
    """Times and answers of operations (`simulator.world.Work`).

    Args:
        costs: What operations cost.
        tokens: What is accepted.
        host: Host time.
        rows: Replies of row operations; None where no policy asks for any.
        timings: What their kinds take in real rounds; others take what `costs` says of their steps, and the
            host time of the operation that they are like.
        noise: Of whole operations whose spread in real rounds is known; None: they take their means.
    """

    def __init__(
        self,
        costs: Costs,
        tokens: TokenModel,
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
        self.tokens = tokens
        self._hosts: dict[tuple[str, bool], OperationHost] = {}
        self._same = not host.operations and not host.sampled
        self._common = host.of("verify")

    def steps(self, device: str, operation: Operation, idle_s: float) -> list[tuple[str, float]]:
        """See `Work`."""
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
        luck = self._luck(device, operation, host)
        extra, factor = beyond * luck, luck
        if beyond < 0.0 or host.scale != 1.0:
            factor *= host.stretch(sum(seconds for _, seconds in steps), beyond)
        if factor != 1.0:
            steps = [(name, seconds * factor) for name, seconds in steps]
        return [("host", extra), *steps] if extra > 0.0 else steps

    def _luck(self, device: str, operation: Operation, host: OperationHost) -> float:
        """How much longer than in the mean an operation takes."""
        if self.noise is None or host.spread is None or isinstance(operation, Prefill):
            return 1.0
        kind = DECODE if _is_decode(operation) else operation.kind
        return self.noise.factor(f"{device}-{kind}", partial(varied, host.spread))

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
        """See `Work`."""
        host = self._host_of(operation)
        tokens = self._tokens_fed(operation) if host.report_token_s else 0
        return host.lead_s(len(operation.view.slots)), host.after_s(tokens)

    def early_latency(self, operation: Operation) -> float:
        """See `Work`."""
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
        if self._same:
            return self._common
        name = DECODE if _is_decode(operation) else operation.cost_class
        sampled = not operation.sampling.greedy
        if (name, sampled) not in self._hosts:
            self._hosts[name, sampled] = self.host.of(cast("HostOperation", name), sampled=sampled)
        return self._hosts[name, sampled]

    def answer(self, operation: Operation, completed: int | None) -> Any:
        """See `Work`."""
        if isinstance(operation, RowOperation):
            return operation.answer(self._row_replies.replies(operation))
        return ON_PATH[type(operation)](self.tokens, operation, completed)

    def early_answer(self, operation: Operation) -> Any:
        """See `Work`."""
        if isinstance(operation, RowOperation):
            return operation.answer(self._row_replies.early(operation))
        assert isinstance(operation, Prespeculate)
        return SimulatedCache(self.tokens, operation)


def _marked(view: View, width: int) -> BoolArray:
    """[width] mask of a view's rows."""
    marked = np.zeros(width, dtype=np.bool_)
    marked[view.slots] = True
    return marked


def _drafted(rows: BoolArray, length: int, shape: tuple[int, ...] | None = None) -> Speculation:
    """A speculation of the primary draft for the marked rows; its ids stay unknown.

    `shape` are the fan-outs that rescaled the distributions its tokens are drawn from, if anything did.
    """
    return Speculation(rows * length, rows * (_PRIMARY if length else _NONE), shape=shape)


def _draft(_: TokenModel, operation: Draft, completed: int | None) -> Speculation:
    length = operation.lookahead if completed is None else completed
    return _drafted(_marked(operation.view, operation.width), length, operation.shape)


ON_PATH: dict[type[Operation], Callable[[TokenModel, Any, int | None], Any]] = {
    Prefill: lambda tokens, operation, completed: None,
    Verify: lambda tokens, operation, completed: tokens.verify(operation.view, operation),
    Settle: lambda tokens, operation, completed: tokens.settle(operation),
    Draft: _draft,
    Prespeculate: lambda tokens, operation, completed: SimulatedCache(tokens, operation),
    Continue: lambda tokens, operation, completed: SimulatedCache(tokens, operation),
}
"""What a token model answers, by (tokens, operation, steps completed if it was stopped)."""

DECODE = "decode"
"""What a verification of nothing is called by profiles."""


def _is_decode(operation: Operation) -> bool:
    return isinstance(operation, Verify) and not operation.speculation.lengths[operation.view.slots].any()


class RowReplies(Protocol):
    """Replies of row operations, without their time."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of steps that call no model, by name."""
        ...

    def replies(self, operation: RowOperation) -> list[Any]:
        """[n] the reply of each row of the operation's view."""
        ...

    def early(self, operation: RowOperation) -> list[Any]:
        """[n] the early result of each row."""
        ...


class Recorded:
    """The replies of a trace of them.

    Args:
        decisions: Of the setting that runs.
        requests: Ids in the trace are below this; the same texts served again have ids that many higher.
    """

    def __init__(self, decisions: Decisions, requests: int) -> None:
        self.decisions = decisions
        self.requests = requests
        self.seconds = dict(decisions.seconds)
        self._revived: dict[tuple[str, int, int, int], Any] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """See `RowReplies`.

        Raises:
            SettingError: The trace does not hold this moment: it is of another setting, or ended earlier.
        """
        replies = [self._reply(operation, key) for key in self._keys(operation)]
        if "verdict" not in operation.reply._fields:
            return replies
        rooms = operation.view.rooms.tolist()
        return [
            reply._replace(verdict=cut_to(reply.verdict, room))
            for reply, room in zip(replies, rooms, strict=True)
        ]

    def early(self, operation: RowOperation) -> list[Any]:
        """See `RowReplies`."""
        return [
            revive(operation.early_reply, self._found(self.decisions.marks, key))
            for key in self._keys(operation)
        ]

    def _keys(self, operation: RowOperation) -> list[tuple[str, int, int, int]]:
        return [(k, part, request % self.requests, at) for k, part, request, at in operation.reply_keys()]

    def _reply(self, operation: RowOperation, key: tuple[str, int, int, int]) -> Any:
        if key not in self._revived:
            self._revived[key] = revive(operation.reply, self._found(self.decisions.replies, key))
        return self._revived[key]

    def _found(self, replies: Any, key: tuple[str, int, int, int]) -> Any:
        if key not in replies:
            kind, _, request, position = key
            raise SettingError(
                f"the decision trace of {self.decisions.label!r} has no {kind} of request {request} at "
                f"position {position}: it is of another run; record it again with `calibrate decide`"
            )
        return replies[key]


Synthesis: TypeAlias = Callable[[Any, TokenModel], list[Any]]
"""(operation, coins) to the replies of its rows, or to their early results."""

SYNTHETIC = "simulator.synthetic"
"""Package whose modules are loaded when coins are first asked for."""
_SYNTHESES: dict[tuple[str, bool], Synthesis] = {}


def synthesises(operation: type[RowOperation], *, early: bool = False) -> Callable[[Synthesis], Synthesis]:
    """Makes a function what replies to an operation out of coins, or what gives its early results."""

    def register(synthesis: Synthesis) -> Synthesis:
        _SYNTHESES[operation.kind, early] = synthesis
        return synthesis

    return register


class Synthetic:
    """Replies made of coin tosses: the papers' assumptions in place of a recording.

    Args:
        tokens: The coins.
    """

    def __init__(self, tokens: TokenModel) -> None:
        self.tokens = tokens
        self.seconds: dict[str, float] = {}

    def replies(self, operation: RowOperation) -> list[Any]:
        """See `RowReplies`.

        Raises:
            SettingError: Nothing is known of this kind of operation but by recording it.
        """
        return synthesis_of(operation.kind)(operation, self.tokens)

    def early(self, operation: RowOperation) -> list[Any]:
        """See `RowReplies`."""
        return synthesis_of(operation.kind, early=True)(operation, self.tokens)


def synthesis_of(kind: str, *, early: bool = False) -> Synthesis:
    """What makes replies of a kind of operation, or its early results, out of coins.

    Raises:
        SettingError: There is nothing of the kind.
    """
    if (kind, early) not in _SYNTHESES:
        for family in iter_modules(import_module(SYNTHETIC).__path__):
            import_module(f"{SYNTHETIC}.{family.name}")
    if (kind, early) not in _SYNTHESES:
        raise SettingError(
            f"coin tosses cannot stand in for {kind!r}, which depends on the tokens themselves; use a "
            "decision trace (`calibrate decide`, then --decisions)"
        )
    return _SYNTHESES[kind, early]


def revive(reply: type[Any], plain: Any) -> Any:
    """A named tuple out of the lists that a file keeps."""
    found = reply._make(_tupled(part) for part in plain)
    if "verdict" in found._fields:
        found = found._replace(verdict=RowVerdict._make(found.verdict))
    return found


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
