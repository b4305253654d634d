"""What simulated operations cost and answer: steps, host time and noise; verdicts, drafts and caches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np

from hardware_profiles.optime import Host, HostOperation, KindPace, OperationHost, base_name
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
from policies.values import BoolArray, Source, Speculation, Verdict, View
from simulator.costs import Costs, KeyedNoise
from simulator.replies import RowReplies
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


class Answers:
    """Costs and contents of operations (`simulator.world.Work`).

    Args:
        costs: What operations cost.
        tokens: What is accepted.
        host: Host time.
        contents: Answers of operations stated row by row; None where no policy asks for any.
        pace: What their kinds take in real rounds; others take what `costs` says of their steps, and the host
            time of the operation that they are like.
        noise: Of whole operations whose spread in real rounds is known; None: they take their means.
    """

    def __init__(
        self,
        costs: Costs,
        tokens: TokenModel,
        host: Host,
        *,
        contents: RowReplies | None = None,
        pace: Mapping[str, KindPace] | None = None,
        noise: KeyedNoise | None = None,
    ) -> None:
        self.noise = noise
        self.pace = pace or {}
        self.costs = costs
        self.contents = contents
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
            steps = self._worked(costs, device, operation)
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
        kind = operation.kind if isinstance(operation, RowOperation) else _host_name(operation)
        return self.noise.factor(f"{device}-{kind}", partial(varied, host.spread))

    def _worked(self, costs: Costs, device: str, operation: RowOperation) -> list[tuple[str, float]]:
        """The steps of an operation stated row by row, at its pace."""
        work = [reply.work for reply in self._contents.replies(operation)]
        seconds, pace = self._contents.seconds, self.pace.get(operation.kind)
        if pace is None:
            return costs.row_steps(device, operation.view, work, seconds)
        unpaced = {name: s for name, s in seconds.items() if base_name(name) not in pace.steps}
        rows = len(operation.view.slots)
        steps = costs.row_steps(device, operation.view, work, unpaced)
        return [(name, pace.step(name).seconds(expected_s, rows)) for name, expected_s in steps]

    def latency(self, operation: Operation) -> tuple[float, float]:
        """See `Work`."""
        host = self._host_of(operation)
        tokens = self._tokens_fed(operation) if host.report_token_s else 0
        return host.lead_s(len(operation.view.slots)), host.after_s(tokens)

    def early_latency(self, operation: Operation) -> float:
        """See `Work`."""
        pace = self.pace.get(operation.kind) if isinstance(operation, RowOperation) else None
        if pace is None or pace.mark_s is None:
            return self.latency(operation)[1]
        return pace.mark_s

    @property
    def _contents(self) -> RowReplies:
        if self.contents is None:
            raise SettingError("this world has neither decisions nor coins for operations stated row by row")
        return self.contents

    def _tokens_fed(self, operation: Operation) -> int:
        if isinstance(operation, RowOperation):
            return total_tokens(self._contents.replies(operation))
        return operation.tokens_fed

    def _host_of(self, operation: Operation) -> OperationHost:
        if isinstance(operation, RowOperation) and operation.kind in self.pace:
            return self.pace[operation.kind].host
        if self._same:
            return self._common
        name = _host_name(operation)
        sampled = not operation.sampling.greedy
        if (name, sampled) not in self._hosts:
            self._hosts[name, sampled] = self.host.of(cast("HostOperation", name), sampled=sampled)
        return self._hosts[name, sampled]

    def answer(self, operation: Operation, completed: int | None) -> Any:
        """See `Work`."""
        match operation:
            case RowOperation():
                return operation.answer(self._contents.replies(operation))
            case Verify():
                return self.tokens.verify(operation.view, operation)
            case Settle():
                return self.tokens.settle(operation)
            case Prespeculate() | Continue():
                return SimulatedCache(self.tokens, operation)
            case Draft():
                length = operation.lookahead if completed is None else completed
                return _drafted(_marked(operation.view, operation.width), length, operation.shape)
            case _:
                return None

    def early_answer(self, operation: Operation) -> Any:
        """See `Work`."""
        if isinstance(operation, RowOperation):
            return operation.answer(self._contents.early(operation))
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


def _host_name(operation: Operation) -> str:
    """Under which name a host's times of an operation stand: a verification of nothing is a `decode`."""
    if isinstance(operation, Verify) and not operation.speculation.lengths[operation.view.slots].any():
        return "decode"
    return operation.cost_class
